"""Translations are put where texts stand, one in another included."""

import pytest

from transduct.formats.places import Place, changed, on_lines, worded


def test_a_text_in_another_is_changed_too():
    outer = Place(1, 9, ["x"], lambda parts: ["<", slice(3, 7), ">", *parts])
    inner = Place.of_text(4, 6, "y", str.upper)
    assert changed("abcdefghijk", [outer, inner], [["new"], ["z"]]) == "a<dZg>newjk"
    assert changed("abcdefghijk", [outer, inner], [["x"], ["z"]]) == "abcdZghijk"
    assert changed("abcdefghijk", [outer, inner], [["x"], ["y"]]) == "abcdefghijk"


def test_what_stands_beside_its_text_is_written_though_it_is_the_same():
    beside = Place.of_text(2, 2, "x", lambda text: f"[{text}]", fills=True)
    assert changed("abcd", [beside], [["x"]]) == "ab[x]cd"


@pytest.mark.parametrize(
    "text", ["Word", "two words", "Ende.", "e-Mail: a b", "가", "(yes)", "don't"]
)
def test_words_are_translated(text):
    assert worded(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "42",
        "1,20",
        "A-1",
        "x_y",
        "menu_1",
        "https://a.b/c",
        "a@b.org",
        "a/b.c",
        "a.b.c",
        "!",
    ],
)
def test_numbers_addresses_and_names_for_programs_are_not(text):
    assert not worded(text)


def test_lines_are_of_about_one_length():
    assert on_lines("a bc def g", 2) == ["a bc", "def g"]
    assert on_lines("a b", 1) == ["a b"]
    assert on_lines("長い文章です", 2) == ["長い文章です"]
    assert on_lines("", 2) == [""]
