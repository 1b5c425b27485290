"""Texts in lines, in the cells of tables (CSV) and in JSON."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO

from transduct.errors import rewording
from transduct.formats.places import DAMAGED, Place, worded

LINE = re.compile(r"[^\r\n\ufeff]+")
STRING = re.compile(r"\"((?:[^\"\\]|\\.)*)\"(\s*:)?")
UNBROKEN = re.compile(r"\\[nrt]|(?:[^\\]|\\[^nrt])+")


def lines(_: str, content: str) -> Iterator[Place]:
    """The lines of a text."""
    for line in LINE.finditer(content):
        yield from _stripped(line, 0, str, str)


def cells(name: str, content: str) -> Iterator[Place]:
    """The lines in the cells of a table, below its first row, which names the columns.

    Raises:
        TransductError: it is damaged.
    """
    text = content.removeprefix("\ufeff")
    first = re.sub(r"\"[^\"]*\"", "", text.lstrip("\r\n")).partition("\n")[0]
    mark = max(",;\t", key=first.count)  # outside of quotes
    with rewording(csv.Error, DAMAGED, file=name):
        for _ in csv.reader(StringIO(text, newline=""), delimiter=mark, strict=True):
            pass
    cell = re.compile(rf"(\"(?:[^\"]|\"\")*\"|[^{mark}\r\n\"][^{mark}\r\n]*|)({mark}|[\r\n]+|$)")
    at, begun, named = len(content) - len(text), False, False  # whether the first row is, was read
    while at < len(content) and (match := cell.match(content, at)):
        text = match[1].strip()
        if named and match[1].startswith('"'):
            for line in LINE.finditer(match[1][1:-1]):
                yield from _stripped(line, at + 1, lambda x: x.replace('""', '"'), _doubled)
        elif named and worded(text):
            before, _, behind = match[1].partition(text)
            written = partial(_quoted, mark, before, behind)
            yield Place.of_text(at, match.end(1), text, written)
        begun = begun or bool(match[1])
        named = named or (begun and match[2] != mark)
        at = match.end()


def strings(name: str, content: str) -> Iterator[Place]:
    """The lines in the values of JSON; keys stay.

    Raises:
        TransductError: it is damaged.
    """
    with rewording((ValueError, RecursionError), DAMAGED, file=name):
        json.loads(content.removeprefix("\ufeff"))
    written = partial(_escaped, content.isascii() and "\\u" in content)
    for string in STRING.finditer(content):
        for part in () if string[2] else UNBROKEN.finditer(string[1]):
            yield from _stripped(part, string.start(1), lambda x: json.loads(f'"{x}"'), written)


def _stripped(
    found: re.Match[str], at: int, read: Callable[[str], str], written: Callable[[str], str]
) -> Iterator[Place]:
    """The place of a text without the blanks around it, if it is words.

    Args:
        at: where what it was found in begins.
        read: the text of what is spelt there.
    """
    spelt = found[0].strip()
    if worded(text := read(spelt)):
        start = at + found.start() + found[0].index(spelt)
        yield Place.of_text(start, start + len(spelt), text, written)


def _doubled(text: str) -> str:
    return text.replace('"', '""')


def _quoted(mark: str, before: str, behind: str, text: str) -> str:
    """A cell with the blanks around it, without quotes, or with them if it needs them."""
    cell = f"{before}{text}{behind}"
    return f'"{_doubled(cell)}"' if re.search(rf"[{mark}\"\r\n]", text) else cell


def _escaped(ascii_only: bool, text: str) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]
