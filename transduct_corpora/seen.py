"""Checks whether pictures of generated scenes show what their captions say.

Works on pixels alone: shapes are the connected components that are not white, and their colour,
size, shape and place are measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transduct.errors import needing, require
from transduct.evaluation.classification import Scores, wilson_interval

Colours = Mapping[str, tuple[int, int, int]]

WHITE = 255
NEIGHBOURS = np.ones((3, 3), bool)  # of a pixel, by edges and corners
FAINT = 64  # a pixel is part of a shape if one of its colours is further from white
LEAST = 0.006  # the smallest area of a shape, as a share of the picture's; below it is a speck
LARGE = 0.28  # the side from which a shape is large, as a share of the picture's
# How far the centroid is below the centre of the box, in heights of the box: a sixth for triangles,
# 0 for the others.
DROOP = 0.085
# bounds of the share of its box that a shape fills: square 1, circle 0.79, cross 0.56
FULL, HALF = 0.89, 0.67
NEAR, FAR = 0.4, 0.6  # bounds of the middle of a picture


@dataclass(frozen=True)
class Seen:
    """A shape seen in a picture; (x, y) is the centre of its box as shares of the picture's side, y
    growing down."""

    size: str
    colour: str
    shape: str
    x: float
    y: float

    def __str__(self) -> str:
        return f"a {self.size} {self.colour} {self.shape}"


def attribute_scores(
    captions: Sequence[str], pictures: Sequence[np.ndarray], colours: Colours
) -> Scores:
    """`attributes_right`: the percentage of pictures that show exactly what their captions say.

    Raises TransductError if the counts differ or there is nothing to score.
    """
    require(
        captions and len(captions) == len(pictures),
        f"{len(captions):,} captions and {len(pictures):,} pictures; give one picture of each",
    )
    right = [shows(picture, caption, colours) for caption, picture in zip(captions, pictures)]
    details = {"attributes_right": {"interval": wilson_interval(sum(right), len(right))}}
    return Scores({"attributes_right": 100 * sum(right) / len(right)}, details, right)


def shows(picture: np.ndarray, caption: str, colours: Colours) -> bool:
    """Whether a picture (size, size, 3), uint8, shows exactly what the caption says."""
    return caption in captions_of(things_in(picture, colours))


def captions_of(things: Sequence[Seen]) -> set[str]:
    """The captions that are true of a picture with these shapes; none unless there are one or
    two."""
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
    """The shapes in a picture (size, size, 3), uint8: its connected components (8-connectivity),
    without specks.

    Raises MissingExtra if SciPy is not installed.
    """
    ndimage = require_ndimage()
    ink = WHITE - picture.astype(np.float64)  # (size, size, 3), the distance from white
    # (size, size), 0 for the background
    numbers, count = ndimage.label(ink.max(2) > FAINT, NEIGHBOURS)
    shares = np.bincount(numbers.ravel()) / numbers.size
    masks = [numbers == number for number in range(1, count + 1) if shares[number] >= LEAST]
    return [
        _measured(ink, mask, ndimage.binary_dilation(mask, NEIGHBOURS), colours) for mask in masks
    ]


def require_ndimage() -> Any:
    """SciPy's image operations.

    Raises:
        MissingExtra: SciPy is not installed.
    """
    with needing("vision", "SciPy"):
        from scipy import ndimage
    return ndimage


def _measured(ink: np.ndarray, mask: np.ndarray, near: np.ndarray, colours: Colours) -> Seen:
    """Measure the shape at `mask`; the pixels `near` it include its antialiased edge, which it
    covers in part."""
    inside = ink[mask]  # (pixels, 3)
    strength = inside.max(1)
    colour = np.median(inside[strength >= 0.8 * strength.max()], 0)
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
    """The name of a shape, by the share of its box that it fills and the droop of its centroid."""
    if droop > DROOP:
        return "triangle"
    return "square" if extent > FULL else "circle" if extent > HALF else "cross"
