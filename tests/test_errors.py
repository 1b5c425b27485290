"""Every error is one line."""

import logging
import os
import pickle

import pytest

from transduct.errors import (
    MissingExtra,
    NotFinite,
    TrainingFailed,
    TransductError,
    WrongData,
    needing,
    no_model,
)


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x0bb"])
def test_an_error_is_one_line(text):
    assert str(TransductError(text)) == "a b"


@pytest.mark.parametrize("kind", [TransductError, TrainingFailed])
def test_what_a_terminal_would_obey_is_spelled_out(kind):
    text = "a\x1b[31mb\x9b2J\x07\u202ec\td\r"
    assert str(kind(text)) == r"a\x1b[31mb\x9b2J\x07\u202ec" + "\td"


def test_what_is_logged_is_spelled_out(caplog):
    logging.getLogger("transduct").warning("%s is %d", "a\x1b]0;b", 7)
    assert caplog.messages == [r"a\x1b]0;b is 7"]


@pytest.mark.parametrize(
    "error, package, said",
    [
        (
            ModuleNotFoundError("no module", name="matplotlib.figure"),
            "matplotlib",
            "matplotlib is not installed",
        ),
        (ModuleNotFoundError("no module", name="matplotlib"), None, "matplotlib is not installed"),
        (
            ImportError("libpng.so: no such file"),
            None,
            "plots cannot be imported (libpng.so: no such file)",
        ),
    ],
)
def test_a_missing_package_comes_with_the_line_that_installs_it(error, package, said):
    with pytest.raises(MissingExtra) as caught, needing("plots", package):
        raise error
    assert str(caught.value) == f"{said}; run: pip install 'transduct[plots]'"
    assert caught.value.__cause__ is error


def test_what_is_installed_is_imported():
    with needing("plots"):
        import json
    assert json.loads("1") == 1


@pytest.mark.parametrize(
    "error",
    [TransductError("a"), NotFinite(), WrongData("b"), TrainingFailed("c"), MissingExtra("d")],
    ids=repr,
)
def test_errors_pass_between_processes(error):
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back)) == (type(error), str(error))


def test_wrong_data_is_an_error_like_any_other():
    with pytest.raises(TransductError, match="row 1"):
        raise WrongData("row 1 is no text")


def test_where_no_model_is_the_nearest_folder_is_named(tmp_path):
    (tmp_path / "de-en").mkdir()
    (tmp_path / "file").touch()
    for name, said in (
        ("de-em", f"no such folder; did you mean {tmp_path / 'de-en'}?"),
        ("other", "no such folder; give a run or a model directory"),
        ("a/b/c", "no such folder; give a run or a model directory"),
        ("file", "a file; give a run or a model directory"),
    ):
        assert str(no_model(tmp_path / name)) == f"{tmp_path / name}: {said}"
    os.mkfifo(tmp_path / "pipe")
    assert ": no folder; give a run" in str(no_model(tmp_path / "pipe"))
