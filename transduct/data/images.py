"""Pictures as arrays (height, width, 3) of 0 to 255: read from files by Pillow, whatever their format and mode."""

import io
import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transduct.data.files import Refused, read_members
from transduct.data.sources import TextSource
from transduct.data.text import read_rows
from transduct.errors import TransductError, missing_extra

Picture = np.ndarray  # (height, width, 3), uint8

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
MOST_PIXELS = 64 * 2**20  # a file that says it holds more is refused before it is decoded
SIXTEEN_BITS = ("PNG", "PPM")  # formats whose mode "I", of 32 bits, holds 16
DECODING_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, RuntimeError, MemoryError)  # of Pillow
WHITE = (255, 255, 255)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("Pillow", "vision") from error
    return Image


def read_picture(data: bytes | Path, name: str) -> Picture:
    """A picture file as colours (height, width, 3), turned as its camera says; what is transparent is white.

    Palettes, grey, 16 bits a channel and other modes are converted; of a moving picture the first frame is taken.

    Args:
        name: what errors call it.

    Raises:
        TransductError: it cannot be read, is no picture, is truncated, or claims too many pixels.
    """
    image = _pillow()
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of what is refused or mended here
            with image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as opened:
                width, height = opened.size
                if width * height > MOST_PIXELS:
                    raise TransductError(_too_large(name, f"{width} x {height}"))
                if opened.mode == "F" or (opened.mode == "I" and opened.format not in SIXTEEN_BITS):
                    found = f"a {opened.format} of 32 bits a pixel (mode {opened.mode})"
                    raise TransductError(f"{name}: found {found}, expected 8 or 16 bits a channel; convert it")
                return _colours(ImageOps.exif_transpose(opened), image)
    except image.DecompressionBombError as error:
        raise TransductError(_too_large(name, str(error))) from error
    except FileNotFoundError as error:
        raise TransductError(f"{name}: no such file; give the path of a picture") from error
    except DECODING_ERRORS as error:
        unknown = isinstance(error, image.UnidentifiedImageError)
        reason = "of no known format" if unknown else str(error) or type(error).__name__
        raise TransductError(f"{name}: not a whole picture ({reason}); expected one that Pillow can read") from error


def _too_large(name: str, found: str) -> str:
    return f"{name}: claims too many pixels ({found}), at most {MOST_PIXELS:,} are read; make it smaller"


def _colours(opened: Any, image: Any) -> Picture:
    if opened.mode.startswith("I"):  # 16 bits of grey; `read_picture` has refused what holds more
        grey = np.asarray(opened, np.int64).clip(0, 65535) // 257
        return np.repeat(grey.astype(np.uint8)[..., None], 3, 2)  # (height, width, 3)
    if opened.has_transparency_data:
        opened = opened.convert("RGBA")
        opened = image.alpha_composite(image.new("RGBA", opened.size, (*WHITE, 255)), opened)
    return np.array(opened.convert("RGB"))  # (height, width, 3)


def resized(picture: Picture, height: int, width: int) -> Picture:
    """The picture at another size, smoothed."""
    if picture.shape[:2] == (height, width):
        return picture
    image = _pillow()
    return np.array(image.fromarray(picture).resize((width, height), image.Resampling.BICUBIC))


def fitted(picture: Picture, size: int) -> Picture:
    """The middle square of a picture, `size` pixels on each side."""
    height, width = picture.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return resized(picture[top : top + side, left : left + side], size, size)


def check_ending(path: Path) -> None:
    """Raise TransductError if a name ends in no format that pictures are written in."""
    if path.suffix.lower() not in ENDINGS:
        raise TransductError(f"'{path}' is no name for a picture; end it in {', '.join(ENDINGS[:3])}")


def save_picture(picture: Picture, path: Path) -> None:
    """Write a picture in the format its name ends with; the file appears whole or not at all.

    Raises:
        TransductError: the name ends in no known format, or the file cannot be written.
    """
    check_ending(path)
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        _pillow().fromarray(np.ascontiguousarray(picture)).save(beside)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise TransductError(f"cannot write '{path}' ({error.strerror}); give a file in a folder you own") from error


@dataclass(frozen=True)
class ImageSource:
    """Pictures of a corpus, and a text for each.

    Attributes:
        images: a folder, or a tar archive, plain or compressed.
        captions: a file of NAME, tab, TEXT lines; without it the text of a picture is the folder it lies in.
        weight: how often an epoch shows each.
    """

    images: str
    captions: str | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight is {self.weight}; give a number above 0, or leave the corpus out")

    def files(self) -> list[str]:
        """The files the corpus is read from, as the recipe names them."""
        return [self.images, *filter(None, (self.captions,))]


def read_pictures(source: ImageSource, root: Path, refused: Refused) -> Iterator[tuple[str, Picture]]:
    """Name and pixels of each picture of a corpus, in the archive's order; the broken ones are refused.

    Raises:
        TransductError: the archive is missing or damaged, or a picture is broken and they may not be.
    """
    for name, content in read_members(root / source.images, ENDINGS):
        with refused.each():
            yield name, read_picture(content(), f"{source.images}: {name}")


def read_labelled(source: ImageSource, root: Path, refused: Refused) -> Iterator[tuple[str, Picture, str]]:
    """Name, pixels and text of each picture; a picture without a text, or a text without a picture, is refused.

    Raises:
        TransductError: as `read_pictures`, or the captions cannot be read or name a picture twice.
    """
    captions = None if source.captions is None else read_captions(source.captions, root)
    for name, content in read_members(root / source.images, ENDINGS):
        text = Path(name).parent.name if captions is None else captions.pop(name, None)
        with refused.each():
            picture = read_picture(content(), f"{source.images}: {name}")
            if not text:
                expected = "a caption of it" if source.captions else "a folder named by its label"
                raise TransductError(f"{source.images}: {name}: found no text for it, expected {expected}")
            yield name, picture, text
    for name in captions or {}:
        with refused.each():
            raise TransductError(f"{source.captions}: {name}: found a caption without its picture in {source.images}")


def read_captions(file: str, root: Path) -> dict[str, str]:
    """The caption of each picture, by its name."""
    captions: dict[str, str] = {}
    for number, (name, text) in enumerate(read_rows(TextSource(pairs=file), root), 1):
        if name in captions:
            raise TransductError(f"{file}:{number}: '{name}' has a caption already; keep one of them")
        captions[name] = text
    return captions
