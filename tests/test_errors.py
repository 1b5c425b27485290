"""What a user is told is one line."""

import pytest

from transduct.errors import NoText, TransductError, missing_extra


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x0bb"])
def test_an_error_is_one_line(text):
    assert str(TransductError(text)) == "a b"


def test_a_missing_package_comes_with_the_line_that_installs_it():
    expected = "matplotlib is not installed; run: pip install 'transduct[plots]'"
    assert str(missing_extra("matplotlib", "plots")) == expected


def test_no_text_is_said_of_the_files_by_whoever_knows_them():
    said = "found no text to train the tokenizer on; give lines that hold words"
    assert (str(NoText()), str(NoText("a, b: "))) == (said, f"a, b: {said}")
