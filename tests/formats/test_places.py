"""Translations are put where texts stand, one in another included."""

import pytest

from tests.formats.unmarked import made
from tests.refusals import refusal
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


def test_words_are_translated_and_not_numbers_addresses_and_names_for_programs():
    words = ["Word", "two words", "Ende.", "e-Mail: a b", "가", "(yes)", "don't"]
    others = ["", " ", "42", "1,20", "A-1", "x_y", "menu_1", "!", "https://a.b/c", "a@b.org"]
    assert [*filter(worded, [*words, *others, "a/b.c", "a.b.c"])] == words


@pytest.mark.parametrize(
    "kind, content",
    [
        (".csv", 'a,b\n"x" y,z\n'),
        (".csv", 'a,b\n"x'),
        (".json", '{"a": }'),
        (".json", "[" * 100_000),
        (".vtt", "no mark\n"),
        (".srt", "1\n00:00:01,000 00:00:02,000\nb\n"),
        (".po", 'msgid "a"\nmsgstr "b\n'),
        (".po", 'msgid "a"\nmsgid "b"\nbad\n'),
    ],
)
def test_damaged_files_are_refused(kind, content):
    with refusal(r"a: damaged \(.*\); save it again, or translate it with --text"):
        made(kind, content)


def test_lines_are_of_about_one_length():
    assert on_lines("a bc def g", 2) == ["a bc", "def g"]
    assert on_lines("a b", 1) == ["a b"]
    assert on_lines("長い文章です", 2) == ["長い文章です"]
    assert on_lines("", 2) == [""]
