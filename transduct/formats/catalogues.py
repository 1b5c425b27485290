"""Message catalogues (PO): their texts, and the translations that they lack.

polib finds the texts, which are then looked up in the file.
"""

import re
from collections.abc import Iterator
from typing import Any

from transduct.errors import needing, rewording
from transduct.formats.places import DAMAGED, EXTRA, Place, damaged, unmarked

STRING = r"\"(?:[^\"\\\n]|\\.)*\""
MESSAGE = re.compile(rf"^msgstr(?:\[\d+\])?[ \t]+({STRING}(?:\s*{STRING})*)", re.MULTILINE)
NEXT = re.compile(rf"({STRING})[ \t]*(?=\")")  # a string with another behind it


def messages(name: str, content: str) -> Iterator[Place]:
    """The messages of a PO file that have no translation; raises like `catalogue`."""
    with needing(EXTRA):
        import polib
    expected = []  # the text of each translation in the file, and what it translates
    for entry in catalogue(name, content):
        if entry.msgid_plural:
            expected += [(text, source) for source, text in plurals(entry)]
        else:
            expected.append((entry.msgstr, entry.msgid))
    found = list(MESSAGE.finditer(content))
    if header := len(found) == len(expected) + 1:
        found = found[1:]
    texts = [
        "".join(polib.unescape(each[1:-1]) for each in re.findall(STRING, m[1])) for m in found
    ]
    if texts != [text for text, _ in expected]:
        raise damaged(name, f"{len(found)} of {len(expected) + header} translations found")
    for match, (held, text) in zip(found, expected, strict=True):
        if not held and text.strip():
            yield Place.of_text(
                *match.span(1), text, lambda made: f'"{polib.escape(made)}"', fills=True
            )


def plurals(entry: Any) -> list[tuple[str, str]]:
    """Each form of a plural after what it translates; the only form of a language is its plural."""
    texts = [text for _, text in sorted(entry.msgstr_plural.items())]
    sources = [entry.msgid, *[entry.msgid_plural] * len(texts)][len(texts) == 1 :]
    return list(zip(sources, texts))


def catalogue(name: str, content: str) -> list[Any]:
    """The entries of a PO file, without obsolete ones.

    Raises:
        TransductError: it is damaged, or polib is not installed.
    """
    with needing(EXTRA):
        import polib
    with rewording((OSError, UnicodeError), DAMAGED, file=name):
        lines = _one_string_a_line(unmarked(content))
        return [entry for entry in polib.pofile(f"{lines}\n") if not entry.obsolete]


def _one_string_a_line(content: str) -> str:
    """A catalogue with each string on a line of its own, as polib reads it."""
    lines = content.split("\n")
    return "\n".join(line if line.startswith("#") else NEXT.sub(r"\1\n", line) for line in lines)
