"""Pictures of generated scenes to what is seen in them: the rule that says whether a picture shows its caption.

It reads pixels and knows nothing of how they were drawn: things are what is not white and hangs together, and their
colour, size, shape and place are measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transduct.errors import TransductError
from transduct.evaluation.classification import Scores, wilson_interval

Colours = Mapping[str, tuple[int, int, int]]

WHITE = 255
FAINT = 64  # a pixel is part of a thing if a colour of it is further from white
LEAST = 0.006  # what is smaller, in parts of the picture, is a speck and no thing
LARGE = 0.28  # the side of a thing, in sides of the picture, from which it is large
# How far the middle of the mass hangs below the middle of the box, in heights: a sixth for a triangle, else nothing.
DROOP = 0.085
FULL, HALF = 0.89, 0.67  # of its box a square fills all, a circle 0.79, a cross 0.56
NEAR, FAR = 0.4, 0.6  # the middle of a picture


@dataclass(frozen=True)
class Seen:
    """A thing in a picture: what it is, and the middle of its box in sides of the picture, y growing down."""

    size: str
    colour: str
    shape: str
    x: float
    y: float

    def __str__(self) -> str:
        return f"a {self.size} {self.colour} {self.shape}"


def attribute_scores(captions: Sequence[str], pictures: Sequence[np.ndarray], colours: Colours) -> Scores:
    """`attributes_right`: the percentage of pictures that show all that their captions name, and nothing else.

    Raises TransductError if the counts differ or there is nothing to score.
    """
    if len(captions) != len(pictures) or not captions:
        raise TransductError(f"{len(captions):,} captions and {len(pictures):,} pictures; give one picture of each")
    right = [shows(picture, caption, colours) for caption, picture in zip(captions, pictures)]
    details = {"attributes_right": {"interval": wilson_interval(sum(right), len(right))}}
    return Scores({"attributes_right": 100 * sum(right) / len(right)}, details, right)


def shows(picture: np.ndarray, caption: str, colours: Colours) -> bool:
    """Whether a picture (size, size, 3) of 0 to 255 shows what the caption says."""
    return caption in captions_of(things_in(picture, colours))


def captions_of(things: Sequence[Seen]) -> set[str]:
    """All that may be said of a picture with these things in it; nothing of none, or of more than two."""
    if len(things) == 1:
        [thing] = things
        place = _place(thing.x, thing.y)
        return {f"{thing} {place}"} if place else set()
    if len(things) != 2:
        return set()
    return {f"{a} {_relation(a, b)} {b}" for a, b in (things, things[::-1])}


def _place(x: float, y: float) -> str | None:
    across = "left" if x < NEAR else "right" if x > FAR else "middle"
    down = "top" if y < NEAR else "bottom" if y > FAR else "middle"
    if across == down:
        return "in the middle"
    return None if "middle" in (across, down) else f"in the {down} {across}"


def _relation(a: Seen, b: Seen) -> str:
    x, y = a.x - b.x, a.y - b.y
    if abs(x) > abs(y):
        return "left of" if x < 0 else "right of"
    return "above" if y < 0 else "below"


def things_in(picture: np.ndarray, colours: Colours) -> list[Seen]:
    """The things in a picture (size, size, 3) of 0 to 255."""
    ink = WHITE - picture.astype(np.float64)  # (size, size, 3), what is missing to white
    parts = connected(ink.max(2) > FAINT)
    return [_seen(ink, part, colours) for part in parts if len(part) >= LEAST * ink.shape[0] * ink.shape[1]]


def connected(mask: np.ndarray) -> list[list[tuple[int, int]]]:
    """The pixels (row, column) of each part of a mask that hangs together by edges or corners."""
    left = set(zip(*(places.tolist() for places in mask.nonzero())))
    parts = []
    while left:
        part = [left.pop()]
        for row, column in part:  # which grows as its neighbours are found
            near = {(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            part += near
        parts.append(part)
    return parts


def _seen(ink: np.ndarray, part: list[tuple[int, int]], colours: Colours) -> Seen:
    """What a part of a picture is, by how much of each pixel it covers, its edges too."""
    rows, columns = np.array(part).T
    held = ink[rows, columns]  # (pixels, 3)
    strength = held.max(1)
    colour = np.median(held[strength >= 0.8 * strength.max()], 0)  # that of the inside
    near = np.zeros(ink.shape[:2], bool)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            near[(rows + i).clip(0, len(near) - 1), (columns + j).clip(0, len(near) - 1)] = True
    covered = np.where(near, (ink @ colour / (colour @ colour)).clip(0.0, 1.0), 0.0)  # (size, size)
    across, down = covered.max(0), covered.max(1)
    width, height = across.sum(), down.sum()
    places = np.arange(len(covered)) + 0.5
    x, y = across @ places / width, down @ places / height
    droop = (covered.sum(1) @ places / covered.sum() - y) / height
    return Seen(
        "large" if max(width, height) >= LARGE * len(covered) else "small",
        min(colours, key=lambda name: float(np.abs(WHITE - colour - colours[name]).sum())),
        _shape(float(covered.sum() / (width * height)), float(droop)),
        float(x / len(covered)),
        float(y / len(covered)),
    )


def _shape(extent: float, droop: float) -> str:
    """The shape that fills so much of its box, its mass so far below the middle."""
    if droop > DROOP:
        return "triangle"
    return "square" if extent > FULL else "circle" if extent > HALF else "cross"
