"""Text with tags inside: what a model reads of it, and where the tags stand in its translation.

Tags are opaque. They are placed by links between characters of the two texts, such as a model's
attention gives. However wrong these are, each tag is there once and all are well nested.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from transduct.errors import TransductError, require

DEEPEST = 200  # tags inside each other
# What is never cut: a word, a number, a sign; in scripts without blanks a character.
UNIT = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|[^\W\d_]+|\d+|\S"
)
TAKEN = 1 << 40  # more than any number of characters: what a run never crosses


@dataclass(frozen=True)
class Mark:
    """A tag in a text.

    Attributes:
        id: what it is, for its owner; nothing here reads it.
        kind: "open" and "close" around a text; "alone" for a picture, a comment and the like.
    """

    id: Any
    kind: Literal["open", "close", "alone"] = "alone"


Segment = Sequence[str | Mark]
Span = tuple[int, int]
Link = tuple[Span, Span]  # characters of a translation, and those of its source


@dataclass(eq=False)
class _Tag:
    """A tag and what it encloses.

    Attributes:
        marks: one, or two around a text.
        start, stop: the characters of the source that it encloses.
        spaced: whether there are blanks on both sides.
        place: the characters of the translation that it encloses.
    """

    marks: list[Mark]
    start: int
    stop: int
    inner: list["_Tag"] = field(default_factory=list)
    spaced: bool = False
    place: Span = (0, 0)


def plain(segment: Segment) -> str:
    """The text of a segment as a model reads it: without tags, and with one blank where two would
    meet.

    Raises:
        TransductError: its tags are not well nested.
    """
    return _read(segment)[0]


def _read(segment: Segment) -> tuple[str, _Tag]:
    text, opened = "", [_Tag([], 0, 0)]
    last = opened[0]
    for part in segment:
        if isinstance(part, str):
            last.spaced = text[-1:] == " " == part[:1]
            text += part.lstrip(" ") if last.spaced else part
        elif part.kind == "close":
            require(len(opened) > 1, "a tag closes that is not open; open it first")
            last = opened.pop()
            last.marks.append(part)
            last.stop = len(text)
        else:
            last = _Tag([part], len(text), len(text))
            opened[-1].inner.append(last)
            opened += [last] if part.kind == "open" else []
            require(len(opened) <= DEEPEST, f"more than {DEEPEST} tags are open; close some")
    if len(opened) > 1:
        raise TransductError("a tag is left open; close it")
    opened[0].stop = len(text)
    return text, opened[0]


def placed(segment: Segment, translation: str, links: Iterable[Link] = ()) -> list[str | Mark]:
    """A translation with the tags of its source.

    A tag encloses the run of words in which most are linked to what it encloses in the source, and
    fewest to anything else. One that encloses nothing stands where the fewest words are on the
    wrong side of it.

    Raises:
        TransductError: as `plain`.
    """
    text, root = _read(segment)
    units = [found.span() for found in UNIT.finditer(translation)]
    root.place = 0, len(translation)
    if root.inner:
        _Places(text, translation, units, _origins(text, translation, units, links)).fill(
            root, 0, len(units)
        )
    return [part for part in _written(root, translation) if part != ""]


def _origins(
    text: str, translation: str, units: Sequence[Span], links: Iterable[Link]
) -> np.ndarray:
    """The place in the source that each character comes from; -1 if that is not known."""
    origins = np.full(len(translation), -1.0)
    for (start, stop), (first, last) in links:
        origins[start:stop] = (first + last - 1) / 2
    # A word that both texts have once is the same one, wherever a model looked.
    words = [found[0] for found in UNIT.finditer(text)]
    theirs = [translation[start:stop] for start, stop in units]
    counts = Counter(words), Counter(theirs)
    once = {found[0]: found.start() for found in UNIT.finditer(text)}
    for word, (start, stop) in zip(theirs, units, strict=True):
        if counts[0][word] == counts[1][word] == 1:
            origins[start:stop] = once[word]
    return origins


class _Places:
    """Finds the places of tags in a translation.

    Args:
        origins: of the characters of the translation.
    """

    def __init__(
        self, text: str, translation: str, units: Sequence[Span], origins: np.ndarray
    ) -> None:
        self.text, self.origins = text, origins
        # where each unit begins and ends, with one more after the last and before the first
        self.starts = np.array([*(start for start, _ in units), len(translation)])
        self.stops = np.array([0, *(stop for _, stop in units)])

    def _sums(self, values: np.ndarray, first: int, last: int) -> np.ndarray:
        """The sum of some values of characters over each of some units."""
        sums = np.concatenate(([0], values.cumsum()))
        return sums[self.stops[first + 1 : last + 1]] - sums[self.starts[first:last]]

    def fill(self, parent: _Tag, first: int, last: int) -> None:
        """Place the tags inside one that has the units from `first` to `last`."""
        owner = np.full(last - first, -1)
        own = self._filled(parent)
        for number, tag in enumerate(parent.inner):
            here = self._filled(tag)
            if here == own and last > first and here[0] < here[1]:
                run = 0, last - first
            elif here[0] < here[1]:
                run = self._run(tag, parent, owner, first)
            else:
                run = (0, 0)  # it encloses nothing; see below
            if run[0] < run[1]:
                owner[run[0] : run[1]] = number
                begin, end = first + run[0], first + run[1]
                tag.place = int(self.starts[begin]), int(self.stops[end])
                self.fill(tag, begin, end)
        for number, tag in enumerate(parent.inner):
            if number not in owner:
                place = self._point(tag, parent, own, owner, first)
                self._collapse(tag, min(max(place, parent.place[0]), parent.place[1]))

    def _filled(self, tag: _Tag) -> Span:
        """What a tag encloses in the source, without the blanks around it."""
        inside = self.text[tag.start : tag.stop]
        start = tag.start + len(inside) - len(inside.lstrip())
        return start, max(start, tag.start + len(inside.rstrip()))

    def _share(self, tag: _Tag, parent: _Tag, count: int) -> float:
        """Where a tag would stand among some units if words kept their order."""
        middle = (tag.start + tag.stop) / 2 - parent.start
        return middle / max(1, parent.stop - parent.start) * count

    def _run(self, tag: _Tag, parent: _Tag, owner: np.ndarray, first: int) -> Span:
        """The run of free units with the most links into a tag, less those that lead elsewhere."""
        inside = (self.origins >= tag.start) & (self.origins < tag.stop)
        scores = np.where(self.origins < 0, 0, np.where(inside, 1, -1))
        scores = self._sums(scores, first, first + len(owner))
        sums = np.concatenate(([0], np.where(owner >= 0, -TAKEN, scores).cumsum()))
        lowest = np.minimum.accumulate(sums[:-1])
        gains = sums[1:] - lowest
        if gains.max(initial=0) > 0:  # of equal runs the longest
            stop = int(np.flatnonzero((gains == gains.max()) & (scores > 0))[-1])
            starts = (sums[: stop + 1] == lowest[stop]) & (scores[: stop + 1] > 0)
            return int(starts.argmax()), stop + 1
        free = np.flatnonzero(owner < 0)
        if not len(free):
            return 0, 0
        nearest = int(free[np.abs(free + 0.5 - self._share(tag, parent, len(owner))).argmin()])
        return nearest, nearest + 1

    def _point(self, tag: _Tag, parent: _Tag, own: Span, owner: np.ndarray, first: int) -> int:
        """The character before which a tag that encloses nothing stands."""
        if tag.start <= own[0]:
            return parent.place[0]
        count, known, after = len(owner), self.origins >= 0, self.origins >= tag.start
        # characters from behind it that stand before each unit, and the other way round
        late, early = (
            np.concatenate(([0], self._sums(known & each, first, first + count).cumsum()))
            for each in (after, ~after)
        )
        wrong = late + early[-1] - early
        far = np.abs(np.arange(count + 1) - self._share(tag, parent, count)) / (count + 2)
        split = np.zeros(count + 1, bool)  # what another tag encloses is not cut
        split[1:-1] = (owner[1:] == owner[:-1]) & (owner[1:] >= 0)
        place = int(np.where(split, np.inf, wrong + far).argmin())
        if tag.start >= own[1]:
            place = count
        attached = tag.start > 0 and not self.text[tag.start - 1].isspace()
        return int((self.stops if attached else self.starts)[first + place])

    def _collapse(self, tag: _Tag, place: int) -> None:
        """Let a tag, and all inside it, enclose nothing."""
        tag.place = place, place
        for each in tag.inner:
            self._collapse(each, place)


def _written(tag: _Tag, translation: str) -> list[str | Mark]:
    """What stands inside a tag."""
    out: list[str | Mark] = []
    at, last = tag.place
    for inner in sorted(tag.inner, key=lambda each: each.place):
        start, stop = inner.place
        out += [translation[at:start], inner.marks[0], *_written(inner, translation)]
        out += inner.marks[1:]
        between = inner.spaced and start == stop and not translation[stop : stop + 1].isspace()
        out += [" "] if between and stop < len(translation) else []
        at = stop
    return [*out, translation[at:last]]
