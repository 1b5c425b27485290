"""Every error is one line."""

import pickle

import pytest

from transduct.errors import (
    MissingExtra,
    NotFinite,
    TrainingFailed,
    TransductError,
    WrongData,
    needing,
)


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x0bb"])
def test_an_error_is_one_line(text):
    assert str(TransductError(text)) == "a b"


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
