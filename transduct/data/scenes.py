"""Generated scenes: pictures of one or two things on white, each with a caption that says what is where.

A scene depends on its part and its number alone. A hash of what a caption means says which part it belongs to, so no
combination of size, colour, shape and place of `valid` or `test` is ever in `train`, however it is put into words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

from transduct.data.samples import Part, part_of
from transduct.errors import TransductError

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
SIZES = {"small": 0.21, "large": 0.36}  # the side of a thing, in sides of the picture
SHAPES = ("circle", "square", "triangle", "cross")
PLACES = {
    "in the middle": (0.5, 0.5),
    "in the top left": (0.27, 0.27),
    "in the top right": (0.73, 0.27),
    "in the bottom left": (0.27, 0.73),
    "in the bottom right": (0.73, 0.73),
}
# Where the first of two things is, and what is said of the same if the other is named first.
RELATIONS = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
SINGLE = 0.2  # of the scenes hold one thing
GAP = 0.1  # sides of the picture between two things, at least
MARGIN = 0.03  # sides of the picture that stay empty at its edges
DISTINCT = 500  # captions that each part is sure to hold; there are some 850 of valid and of test


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
    """One thing and its place, or two things and where the first is to the second."""

    things: tuple[Thing, ...]
    place: str

    @property
    def caption(self) -> str:
        """ "a large red circle above a small blue square"."""
        first, *second = map(str, self.things)
        return " ".join([first, self.place, *second])

    @property
    def part(self) -> Part:
        """The part the scene belongs to; the same for both captions of two things."""
        if len(self.things) == 1:
            return part_of(self.caption)
        return part_of(min(self.caption, Scene(self.things[::-1], RELATIONS[self.place]).caption))


def generate(count: int, part: Part, size: int) -> Iterator[tuple[str, np.ndarray]]:
    """The first `count` scenes of a part: captions, and pictures (size, size, 3) of 0 to 255.

    In `train` captions come again, with their things elsewhere; in the other parts each comes once.

    Raises:
        TransductError: `count` is more than a part is sure to hold.
    """
    if part != "train" and count > DISTINCT:
        raise TransductError(f"cannot generate {count:,} scenes of '{part}'; ask for at most {DISTINCT}")
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
    """A scene of a part."""
    while True:
        count = 1 if random.random() < SINGLE else 2
        things = tuple(
            Thing(random.choice([*SIZES]), random.choice([*COLOURS]), random.choice(SHAPES)) for _ in range(count)
        )
        scene = Scene(things, random.choice([*(PLACES if count == 1 else RELATIONS)]))
        if len(set(things)) == count and scene.part == part:
            return scene


def picture(scene: Scene, size: int, random: Random) -> np.ndarray:
    """The scene as colours (size, size, 3) of 0 to 255, its things somewhat moved and scaled by lot."""
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
    """Centres of two things of these radii, at least `GAP` apart along the axis that the place names."""
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
    """How much of each pixel a shape covers, (size, size) of 0 to 1: its edge is one pixel wide.

    Args:
        centre, radius: of the square that holds the shape, in sides of the picture; x grows to the right, y down.
    """
    places = np.arange(size) + 0.5
    x, y = places[None, :] - centre[0] * size, places[:, None] - centre[1] * size
    r = radius * size
    match shape:  # pixels from the nearest edge, above zero inside
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
