"""Pictures changed as they are shown, so that a few of them teach what many would.

Pictures are arrays (side, side, 3) of 0 to 255. All that is drawn comes from the generator that is handed over, one for
each picture and epoch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np

from transduct.errors import missing_extra

GREY = 128  # what an erased piece is filled with
MIXUP_ALPHA, CUTMIX_ALPHA = 0.8, 1.0  # as Touvron et al. 2021 have them
ERASED, ASPECT = (0.02, 0.33), 3.3  # of the picture's area, and the longest side over the shortest


@dataclass(frozen=True)
class Augmentation:
    """How the pictures of training are changed; nothing is, unless the recipe says so.

    Attributes:
        crop: by how many pixels a picture is moved at most, down or up and to either side; what comes in is black.
        flip: whether half of the pictures are mirrored, left to right.
        operations: how many operations of a random kind and strength are done on each. One is TrivialAugment (Mueller
            and Hutter 2021); two are a RandAugment (Cubuk et al. 2020) without its strength to be found.
        erase: the share of pictures of which a piece is made grey (Zhong et al. 2020).
        mix: the share of pictures that another is mixed into with its label: half of them laid over each other
            (mixup, Zhang et al. 2018), half with a piece of the other in its place (CutMix, Yun et al. 2019).
    """

    crop: int = 0
    flip: bool = False
    operations: int = 0
    erase: float = 0.0
    mix: float = 0.0

    def __post_init__(self) -> None:
        for name in ("crop", "operations"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 0")
        for name in ("erase", "mix"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be from 0 to 1")


def augmented(picture: np.ndarray, how: Augmentation, random: Random) -> np.ndarray:
    """A picture changed by all but `mix`: (side, side, 3) -> same, a new array or a view."""
    if how.flip and random.random() < 0.5:
        picture = picture[:, ::-1]
    if how.crop:
        picture = moved(picture, random.randint(-how.crop, how.crop), random.randint(-how.crop, how.crop))
    for _ in range(how.operations):
        picture = operated(picture, random.choice(list(operations())), random.uniform(-1.0, 1.0))
    if how.erase and random.random() < how.erase:
        picture = picture.copy()
        picture[_piece(len(picture), random.uniform(*ERASED), ASPECT ** random.uniform(-1.0, 1.0), random)] = GREY
    return picture


def mixed(picture: np.ndarray, other: np.ndarray, random: Random) -> tuple[np.ndarray, float]:
    """Another picture mixed into one, and the share of the one in what comes out."""
    if random.random() < 0.5:
        share = random.betavariate(MIXUP_ALPHA, MIXUP_ALPHA)
        return np.rint(share * picture + (1.0 - share) * other).astype(np.uint8), share
    place = _piece(len(picture), 1.0 - random.betavariate(CUTMIX_ALPHA, CUTMIX_ALPHA), 1.0, random)
    picture = picture.copy()
    picture[place] = other[place]
    return picture, 1.0 - picture[place].size / picture.size


def moved(picture: np.ndarray, down: int, right: int) -> np.ndarray:
    """The picture moved, with black where nothing is left: the random crop of a picture with a black border."""
    height, width = picture.shape[:2]
    result = np.zeros_like(picture)
    kept = picture[max(0, -down) : height - max(0, down), max(0, -right) : width - max(0, right)]
    result[max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)] = kept
    return result


def _piece(side: int, area: float, aspect: float, random: Random) -> tuple[slice, slice]:
    """A rectangle of a share of the area, its middle anywhere in the picture; what lies outside is cut off."""
    height, width = (side * (area * ratio) ** 0.5 for ratio in (aspect, 1.0 / aspect))
    places = []
    for length in (height, width):
        middle = random.uniform(0.0, side)
        places.append(slice(max(0, round(middle - length / 2)), min(side, round(middle + length / 2))))
    return places[0], places[1]


def operated(picture: np.ndarray, name: str, strength: float) -> np.ndarray:
    """One operation of TrivialAugment's wide space, its strength from -1 to 1: (side, side, 3) -> same."""
    operation = operations()[name]
    from PIL import Image

    return np.asarray(operation(Image.fromarray(np.ascontiguousarray(picture)), strength))


@cache
def operations() -> dict[str, Callable[[Any, float], Any]]:
    """By name, what is done to a Pillow image with a strength; some have no direction and take its size.

    Raises:
        TransductError: Pillow is missing.
    """
    try:
        from PIL import Image, ImageEnhance, ImageOps
    except ImportError as error:
        raise missing_extra("Pillow", "vision") from error

    def affine(image: Any, *matrix: float) -> Any:
        return image.transform(image.size, Image.Transform.AFFINE, matrix)

    def enhanced(kind: Any) -> Callable[[Any, float], Any]:
        return lambda image, strength: kind(image).enhance(1.0 + 0.99 * strength)

    return {
        "identity": lambda image, _: image,
        "shear_x": lambda image, strength: affine(image, 1, 0.99 * strength, 0, 0, 1, 0),
        "shear_y": lambda image, strength: affine(image, 1, 0, 0, 0.99 * strength, 1, 0),
        "translate_x": lambda image, strength: affine(image, 1, 0, round(image.width * strength), 0, 1, 0),
        "translate_y": lambda image, strength: affine(image, 1, 0, 0, 0, 1, round(image.height * strength)),
        "rotate": lambda image, strength: image.rotate(135.0 * strength),
        "brightness": enhanced(ImageEnhance.Brightness),
        "colour": enhanced(ImageEnhance.Color),
        "contrast": enhanced(ImageEnhance.Contrast),
        "sharpness": enhanced(ImageEnhance.Sharpness),
        "posterise": lambda image, strength: ImageOps.posterize(image, 8 - round(6 * abs(strength))),
        "solarise": lambda image, strength: ImageOps.solarize(image, round(256 * (1.0 - abs(strength)))),
        "stretch": lambda image, _: ImageOps.autocontrast(image),
        "equalise": lambda image, _: ImageOps.equalize(image),
    }
