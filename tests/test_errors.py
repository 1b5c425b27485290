"""Every error is one line."""

import pickle

import pytest

from transduct.errors import NotFinite, TrainingFailed, TransductError, WrongData, missing_extra


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x0bb"])
def test_an_error_is_one_line(text):
    assert str(TransductError(text)) == "a b"


def test_a_missing_package_comes_with_the_line_that_installs_it():
    expected = "matplotlib is not installed; run: pip install 'transduct[plots]'"
    assert str(missing_extra("matplotlib", "plots")) == expected


@pytest.mark.parametrize(
    "error", [TransductError("a"), NotFinite(), WrongData("b"), TrainingFailed("c"), missing_extra("d", "e")], ids=repr
)
def test_errors_pass_between_processes(error):
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back)) == (type(error), str(error))


def test_wrong_data_is_an_error_like_any_other():
    with pytest.raises(TransductError, match="row 1"):
        raise WrongData("row 1 is no text")
