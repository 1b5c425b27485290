"""Augmentation of training pictures.

Pictures are uint8 arrays (side, side, 3). All randomness comes from the generator passed in, one
for each picture and epoch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np

from transduct.errors import needing
from transduct.records import Checked, Count, Probability

GREY = 128  # fills an erased rectangle
MIXUP_ALPHA, CUTMIX_ALPHA = 0.8, 1.0  # as in Touvron et al. 2021
# shares of the picture's area, and the largest ratio of the sides
ERASED, ASPECT = (0.02, 0.33), 3.3


@dataclass(frozen=True)
class Augmentation(Checked):
    """How training pictures are augmented; not at all by default.

    Attributes:
        crop: the maximum shift in pixels, vertically and horizontally; the uncovered border is
            black.
        flip: whether half of the pictures are mirrored, left to right.
        operations: the number of operations of random kind and strength on each picture. One is
            TrivialAugment (Mueller and Hutter 2021). Two are like RandAugment (Cubuk et al. 2020),
            without a strength to tune.
        erase: the share of pictures in which a random rectangle is made grey (Zhong et al. 2020).
        mix: the share of pictures mixed with another one and its label. Half are blended (mixup,
            Zhang et al. 2018), half get a rectangle of the other (CutMix, Yun et al. 2019).
    """

    crop: Count = 0
    flip: bool = False
    operations: Count = 0
    erase: Probability = 0.0
    mix: Probability = 0.0


def augmented(picture: np.ndarray, how: Augmentation, random: Random) -> np.ndarray:
    """Apply everything but `mix` to a picture: (side, side, 3) -> same, a new array or a view."""
    if how.flip and random.random() < 0.5:
        picture = picture[:, ::-1]
    if how.crop:
        down, right = (random.randint(-how.crop, how.crop) for _ in range(2))
        picture = moved(picture, down, right)
    for _ in range(how.operations):
        picture = operated(picture, random.choice(list(operations())), random.uniform(-1.0, 1.0))
    if how.erase and random.random() < how.erase:
        picture = picture.copy()
        area, aspect = random.uniform(*ERASED), ASPECT ** random.uniform(-1.0, 1.0)
        picture[_rectangle(len(picture), area, aspect, random)] = GREY
    return picture


def mixed(picture: np.ndarray, other: np.ndarray, random: Random) -> tuple[np.ndarray, float]:
    """Mix another picture into one; also returns the weight of the first in the result."""
    if random.random() < 0.5:
        weight = random.betavariate(MIXUP_ALPHA, MIXUP_ALPHA)
        return np.rint(weight * picture + (1.0 - weight) * other).astype(np.uint8), weight
    area = 1.0 - random.betavariate(CUTMIX_ALPHA, CUTMIX_ALPHA)
    place = _rectangle(len(picture), area, 1.0, random)
    picture = picture.copy()
    picture[place] = other[place]
    return picture, 1.0 - picture[place].size / picture.size


def moved(picture: np.ndarray, down: int, right: int) -> np.ndarray:
    """Shift a picture and fill up with black, which is a crop of the picture with a black
    border."""
    height, width = picture.shape[:2]
    result = np.zeros_like(picture)
    kept = picture[max(0, -down) : height - max(0, down), max(0, -right) : width - max(0, right)]
    result[max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)] = kept
    return result


def _rectangle(side: int, area: float, aspect: float, random: Random) -> tuple[slice, slice]:
    """A rectangle of a given share of the area, centred anywhere in the picture and clipped to
    it."""

    def part(length: float) -> slice:
        middle = random.uniform(0.0, side)
        return slice(max(0, round(middle - length / 2)), min(side, round(middle + length / 2)))

    return part(side * (area * aspect) ** 0.5), part(side * (area * (1.0 / aspect)) ** 0.5)


def operated(picture: np.ndarray, name: str, strength: float) -> np.ndarray:
    """Apply an operation of TrivialAugment's wide space, with a strength from -1 to 1: (side, side,
    3) -> same."""
    operation = operations()[name]
    from PIL import Image

    return np.asarray(operation(Image.fromarray(np.ascontiguousarray(picture)), strength))


@cache
def operations() -> dict[str, Callable[[Any, float], Any]]:
    """The operations by name: functions of a Pillow image and a strength; some use only its
    absolute value, or none.

    Raises:
        TransductError: Pillow is missing.
    """
    with needing("vision", "Pillow"):
        from PIL import Image, ImageEnhance, ImageOps

    def affine(image: Any, *matrix: float) -> Any:
        return image.transform(image.size, Image.Transform.AFFINE, matrix)

    def enhanced(kind: Any) -> Callable[[Any, float], Any]:
        return lambda image, strength: kind(image).enhance(1.0 + 0.99 * strength)

    return {
        "identity": lambda image, _: image,
        "shear_x": lambda image, strength: affine(image, 1, 0.99 * strength, 0, 0, 1, 0),
        "shear_y": lambda image, strength: affine(image, 1, 0, 0, 0.99 * strength, 1, 0),
        "translate_x": lambda image, strength: affine(
            image, 1, 0, round(image.width * strength), 0, 1, 0
        ),
        "translate_y": lambda image, strength: affine(
            image, 1, 0, 0, 0, 1, round(image.height * strength)
        ),
        "rotate": lambda image, strength: image.rotate(135.0 * strength),
        "brightness": enhanced(ImageEnhance.Brightness),
        "colour": enhanced(ImageEnhance.Color),
        "contrast": enhanced(ImageEnhance.Contrast),
        "sharpness": enhanced(ImageEnhance.Sharpness),
        "posterise": lambda image, strength: ImageOps.posterize(
            image, 8 - round(6 * abs(strength))
        ),
        "solarise": lambda image, strength: ImageOps.solarize(
            image, round(256 * (1.0 - abs(strength)))
        ),
        "stretch": lambda image, _: ImageOps.autocontrast(image),
        "equalise": lambda image, _: ImageOps.equalize(image),
    }
