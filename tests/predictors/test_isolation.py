"""An input that is wrong does not stop the others."""

import numpy as np
import pytest

from transduct.errors import MissingExtra, TransductError, count_unknown, warned_once
from transduct.predictors.isolation import growing, isolate_failures, of_input


@pytest.mark.parametrize(
    "error, said",
    [
        (TransductError("odd"), "input 3: odd"),
        (TransductError("odd", file="a.png"), "a.png: odd"),
        (MissingExtra("no Pillow"), "no Pillow"),
    ],
    ids=str,
)
def test_an_error_that_names_no_file_is_about_the_input_that_is_read(error, said):
    with pytest.raises(type(error)) as caught, of_input(2):
        raise error
    assert str(caught.value) == said


def doubled(given):
    """Doubles texts; a numbered error for "odd", one without a number for "broken"."""
    if "odd" in given:
        raise TransductError("odd", input=given.index("odd"))
    if "broken" in given:
        raise TransductError("a file is broken")
    if "panic" in given:
        raise BaseException("a panic")
    return [text * 2 for text in given if text != "lost"]


@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("seed", range(4))
def test_every_input_has_its_answer_or_its_error(count, seed):
    random = np.random.default_rng(seed)
    given = [str(each) for each in random.choice(["a", "b", "odd", "broken"], count)]
    found = isolate_failures(doubled, given)
    for number, (text, output) in enumerate(zip(given, found, strict=True), 1):
        expected = {"odd": f"input {number}: odd", "broken": "a file is broken"}
        assert str(output) == expected.get(text, text * 2)
        assert isinstance(output, TransductError) == (text in expected)


def test_an_error_without_a_number_is_of_all_inputs_of_its_owner():
    found = isolate_failures(doubled, ["a", "broken", "b", "c", "odd"], ["x", "x", "y", "y", "x"])
    assert [str(each) for each in found] == [
        *("a file is broken", "a file is broken", "bb", "cc", "input 5: odd")
    ]


def test_what_is_no_answer_is_raised():
    with pytest.raises(RuntimeError, match="found 1 outputs for 2 inputs"):
        isolate_failures(doubled, ["a", "lost"])
    with pytest.raises(BaseException, match="a panic"):
        isolate_failures(doubled, ["a", "panic"])
    first, panic = isolate_failures(doubled, ["a", "panic"], None, BaseException)
    assert (first, str(panic)) == ("aa", "a panic")


def test_what_is_read_again_is_counted_once(caplog):
    def counting(given):
        count_unknown([["€"]] * len(given))
        return doubled(given)

    with warned_once() as found:
        isolate_failures(counting, ["a", "odd", "b", "broken", "c"])
    assert found.texts == 3


def test_groups_grow():
    assert [len(group) for group in growing(range(60), 16)] == [1, 2, 4, 8, 16, 16, 13]
    assert [*growing("abcde", 4, 4)] == [["a", "b", "c", "d"], ["e"]]
    assert [*growing([], 4)] == []
