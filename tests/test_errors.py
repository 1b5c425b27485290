"""What a user is told is one line."""

import pytest

from transduct.errors import TransductError, WrongData, missing_extra


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x0bb"])
def test_an_error_is_one_line(text):
    assert str(TransductError(text)) == "a b"


def test_a_missing_package_comes_with_the_line_that_installs_it():
    expected = "matplotlib is not installed; run: pip install 'transduct[plots]'"
    assert str(missing_extra("matplotlib", "plots")) == expected


def test_wrong_data_is_an_error_like_any_other():
    with pytest.raises(TransductError, match="row 1"):
        raise WrongData("row 1 is no text")
