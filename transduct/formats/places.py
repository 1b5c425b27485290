"""Where texts stand in a document, and how translations are put there."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from textwrap import wrap
from typing import Self

from transduct.errors import TransductError
from transduct.formats.marked import Segment, plain

Written = str | Sequence[str | slice]
EXTRA = "documents"
DAMAGED = "damaged ({error}); save it again, or translate it with --text"
LETTER = re.compile(r"[^\W\d_]")
# an address, or a name for a program
NAME = re.compile(r"[a-z]+://\S+|[^\s@]+@\S+|\w*[\d_/]\S*|\w+([.:/#_-]+\w+)+", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """Where a text stands in a document.

    Attributes:
        start, stop: its characters.
        segment: the text as a model reads it, with marks for what else stands in it.
        written: a translation as the document has it; a slice is what stands there in the document,
            with the translations of the places in it.
        fills: whether the translation stands beside the text, and not for it.
    """

    start: int
    stop: int
    segment: Segment
    written: Callable[[Segment], Written]
    fills: bool = False

    @classmethod
    def of_text(
        cls, start: int, stop: int, text: str, written: Callable[[str], str], fills: bool = False
    ) -> Self:
        """The place of a text without marks."""
        return cls(start, stop, [text], lambda parts: written("".join(map(str, parts))), fills)


def changed(content: str, places: Sequence[Place], translations: Sequence[Segment]) -> str:
    """A document with the translations of its texts in their places. What is its own translation
    stays as it is spelt.

    Args:
        places: by their start; one may lie in another.
    """
    starts = [each.start for each in places]

    def parts(start: int, stop: int, first: int) -> Iterator[str]:
        at = max(first, bisect_left(starts, start))
        while at < len(places) and starts[at] < stop:
            place, new = places[at], translations[at]
            yield content[start : place.start]
            same = plain(new) == plain(place.segment) and not place.fills
            for piece in [slice(place.start, place.stop)] if same else place.written(new):
                if isinstance(piece, str):
                    yield piece
                else:
                    yield from parts(piece.start, piece.stop, at + 1)
            start = place.stop
            at = max(at + 1, bisect_left(starts, start))
        yield content[start:stop]

    return "".join(parts(0, len(content), 0))


def worded(text: str) -> bool:
    """Whether a text is words, and not a number, an address or a name for a program."""
    return bool(LETTER.search(text)) and not NAME.fullmatch(text.strip())


def is_language(code: str, *languages: str) -> bool:
    """Whether a language is one of these, of which "de" means "de-AT" too."""
    return not {code, code.split("-")[0]}.isdisjoint(map(str.lower, languages))


def on_lines(text: str, most: int) -> list[str]:
    """A text on at most so many lines of about one length, or on one if it has too few blanks."""
    for width in count(-(-len(text) // most)) if most > 1 and text else ():
        lines = wrap(text, width, break_long_words=False, break_on_hyphens=False)
        if len(lines) <= most:
            return lines
    return [text]


def damaged(name: str, reason: str) -> TransductError:
    """What to say of a document that is not whole."""
    return TransductError(DAMAGED.replace("{error}", reason), file=name)


def unmarked(content: str) -> str:
    """A document as libraries read it: without the mark of its encoding, and with line feeds."""
    return content.removeprefix("\ufeff").replace("\r\n", "\n")
