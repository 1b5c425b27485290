"""A file with a structure is known by its ending and its content, and a pipe by its content."""

import pytest

from transduct.errors import TransductError
from transduct.formats.kinds import ending_of, kind_of, refuse

STARTS = {
    "a.tmx": (b'<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "x">\n<tmx version="1.4">', ".tmx"),
    "a.xliff": (b'<xliff version="2.0">', ".xlf"),
    "a.po": (b'# by\n\nmsgid ""\nmsgstr ""\n', ".po"),
    "a.pot": (b'msgctxt "menu"\nmsgid "a"\n', ".po"),
    "a.srt": (b"\xef\xbb\xbf1\r\n00:00:01,000 --> 00:00:02,000\r\n", ".srt"),
    "a.vtt": (b"WEBVTT - a title\n\n", ".vtt"),
    "a.HTML": (b"<!-- c -->\n<!DOCTYPE html><p>", ".html"),
    "a.htm": (b"<html lang=en>", ".html"),
    "a.json": (b'[\n {"de": 1}', ".json"),
    "a.jsonl": (b'{"de": 1}\n', ".jsonl"),
    "a.csv": (b"de,en\n", ".csv"),
}


@pytest.mark.parametrize("name", STARTS)
def test_the_kind_is_that_of_ending_and_content(name):
    start, kind = STARTS[name]
    assert kind_of(name, start) == kind_of(f"{name}.gz", start) == kind
    assert kind_of(None, start) == ("" if kind == ".csv" else kind)
    assert kind_of("a.txt", start) == kind_of(name, b"A line\nof text\n") == ""
    with pytest.raises(TransductError, match=r"x: found .*, expected lines of text; .*; forced"):
        refuse("x", kind, "; forced")
    refuse("x", "")


def test_a_part_of_a_page_is_known_by_its_name_alone():
    assert [kind_of(name, b"\n<p>One.</p>") for name in ("a.html", None)] == [".html", ""]
    assert kind_of("a.html", b"a < b") == ""


def test_json_on_several_lines_in_a_pipe_is_no_list_of_lines():
    assert kind_of(None, b'{\n "a": "b"\n}\n') == ".json"
    assert kind_of(None, b'{"a": "b"}\n') == kind_of("a.jsonl", b'{\n "a": "b"\n}\n') == ".jsonl"


@pytest.mark.parametrize(
    "start", [b"", b"1\n", b"[1] See below.\n", b"{a} b\n", b"<b>a</b>\n", b"msgid a"]
)
def test_lines_of_text_in_a_pipe_are_no_structure(start):
    assert kind_of(None, start) == ""


def test_the_ending_is_that_before_the_compression():
    assert [ending_of(each) for each in ("a.PO.xz", "a.b", "a", "x.gz")] == [".po", ".b", "", ""]
