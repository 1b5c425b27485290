"""Generated scenes: pictures of one or two coloured shapes on white, with captions that describe
them.

A scene is a function of its part and number. A hash of the meaning of its caption decides which
part it belongs to, so no combination of size, colour, shape and place of `valid` or `test` is ever
in `train`, in either wording.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np

from transduct.data.samples import Part, PictureCorpus, part_of
from transduct.errors import require
from transduct_corpora.seen import attribute_scores, require_ndimage

COLOURS = {
    "red": (220, 40, 40),
    "orange": (250, 150, 30),
    "yellow": (245, 225, 50),
    "green": (40, 160, 70),
    "cyan": (70, 205, 225),
    "blue": (45, 75, 220),
    "purple": (145, 60, 185),
    "black": (25, 25, 25),
}
SIZES = {"small": 0.21, "large": 0.36}  # the side of a shape, as a share of the picture's
SHAPES = ("circle", "square", "triangle", "cross")
PLACES = {
    "in the middle": (0.5, 0.5),
    "in the top left": (0.27, 0.27),
    "in the top right": (0.73, 0.27),
    "in the bottom left": (0.27, 0.73),
    "in the bottom right": (0.73, 0.73),
}
# Where the first of two shapes is, and the same relation with the other named first.
RELATIONS = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
SINGLE = 0.2  # the share of scenes with one shape
GAP = 0.1  # the minimum distance of two shapes, as a share of the picture's side
MARGIN = 0.03  # the empty border, as a share of the picture's side
DISTINCT = 500  # captions that every part is sure to have; valid and test have about 850


@dataclass(frozen=True)
class Thing:
    """One shape."""

    size: str
    colour: str
    shape: str

    def __str__(self) -> str:
        return f"a {self.size} {self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """One shape and its place, or two shapes and the relation of the first to the second."""

    things: tuple[Thing, ...]
    place: str

    @property
    def caption(self) -> str:
        """ "a large red circle above a small blue square"."""
        first, *second = map(str, self.things)
        return " ".join([first, self.place, *second])

    @property
    def part(self) -> Part:
        """The part that the scene belongs to, the same for both captions of two shapes."""
        if len(self.things) == 1:
            return part_of(self.caption)
        return part_of(min(self.caption, Scene(self.things[::-1], RELATIONS[self.place]).caption))


def generate(count: int, part: Part, size: int) -> Iterator[tuple[str, np.ndarray]]:
    """Generate the first `count` scenes of a part: captions and pictures (size, size, 3), uint8.

    In `train` captions are repeated, with other pictures; in the other parts each is unique.

    Raises:
        TransductError: `count` is larger than any part is sure to hold.
    """
    require(
        part == "train" or count <= DISTINCT,
        f"cannot generate {count:,} scenes of '{part}'; ask for at most {DISTINCT}",
    )
    seen: set[str] = set()
    number = 0
    while number < count or (part != "train" and len(seen) < count):
        random = Random(f"scenes/{part}/{number}")
        number += 1
        scene = drawn_by_lot(random, part)
        if part != "train" and scene.caption in seen:
            continue
        seen.add(scene.caption)
        yield scene.caption, picture(scene, size, random)


def drawn_by_lot(random: Random, part: Part) -> Scene:
    """Draw a random scene of a part."""
    while True:
        count = 1 if random.random() < SINGLE else 2
        things = tuple(
            Thing(random.choice([*SIZES]), random.choice([*COLOURS]), random.choice(SHAPES))
            for _ in range(count)
        )
        scene = Scene(things, random.choice([*(PLACES if count == 1 else RELATIONS)]))
        if len(set(things)) == count and scene.part == part:
            return scene


def picture(scene: Scene, size: int, random: Random) -> np.ndarray:
    """Draw the picture of a scene, (size, size, 3), uint8, with its shapes randomly moved and
    scaled a little."""
    radii = [SIZES[thing.size] / 2 * random.uniform(0.93, 1.07) for thing in scene.things]
    if len(scene.things) == 1:
        x, y = PLACES[scene.place]
        centres = [(x + random.uniform(-0.04, 0.04), y + random.uniform(-0.04, 0.04))]
    else:
        centres = _apart(radii, scene.place, random)
    canvas = np.full((size, size, 3), 255.0)
    for thing, centre, radius in zip(scene.things, centres, radii):
        covered = coverage(thing.shape, centre, radius, size)[..., None]  # (size, size, 1)
        canvas += covered * (np.array(COLOURS[thing.colour]) - canvas)
    return np.rint(canvas).astype(np.uint8)


def _apart(radii: list[float], place: str, random: Random) -> list[tuple[float, float]]:
    """Random centres of two shapes with these radii, at least `GAP` apart along the axis of their
    relation."""
    before = place in ("above", "left of")
    first, second = radii if before else radii[::-1]
    room = 1.0 - 2 * MARGIN - GAP - 2 * (first + second)
    low, high = sorted((random.uniform(0, room), random.uniform(0, room)))
    along = [MARGIN + low + first, 1.0 - MARGIN - (room - high) - second]
    middle = random.uniform(0.4, 0.6)
    across = [middle + random.uniform(-0.05, 0.05) for _ in radii]
    centres = list(zip(across, along) if place in ("above", "below") else zip(along, across))
    return centres if before else centres[::-1]


def coverage(shape: str, centre: tuple[float, float], radius: float, size: int) -> np.ndarray:
    """The share of each pixel that a shape covers, (size, size) from 0 to 1: an antialiased edge
    one pixel wide.

    Args:
        centre, radius: of the bounding square, as shares of the picture's side; x grows to the
            right, y down.
    """
    places = np.arange(size) + 0.5
    x, y = places[None, :] - centre[0] * size, places[:, None] - centre[1] * size
    r = radius * size
    match shape:  # the signed distance to the nearest edge in pixels, positive inside
        case "circle":
            inside = r - np.hypot(x, y)
        case "square":
            inside = r - np.maximum(abs(x), abs(y))
        case "triangle":
            inside = np.minimum(r - y, (y + r - 2 * abs(x)) / 5**0.5)
        case _:
            across = np.minimum(r - abs(x), r / 3 - abs(y))
            inside = np.maximum(across, np.minimum(r / 3 - abs(x), r - abs(y)))
    return np.clip(inside + 0.5, 0.0, 1.0)


SCENES = PictureCorpus(generate, partial(attribute_scores, colours=COLOURS), require_ndimage)
