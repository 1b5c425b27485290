"""Pictures as uint8 arrays (height, width, 3), read from files of many formats and modes by
Pillow."""

import io
import logging
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from transduct.data.archives import read_members
from transduct.data.files import Refused, Weight
from transduct.data.lines import composed, stored
from transduct.data.tables import in_utf8, tsv_rows
from transduct.errors import TransductError, needing, placing, require, rewording
from transduct.records import Checked, Range

Picture = np.ndarray  # (height, width, 3), uint8
Given = Any  # accepted by `as_picture`: str | Path | bytes | PIL.Image.Image | Picture

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
# those of the endings; Pillow tries no others
FORMATS = "PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"
BAND = 1 << 20  # pixels converted at once
MOST_PIXELS = 64 * 2**20  # a file whose header claims more is refused before it is decoded
Side = Annotated[int, Range(1, 8192)]  # pixels; a square of the largest side has MOST_PIXELS
SIXTEEN_BITS = ("PNG", "PPM")  # formats that use the 32 bits of mode "I" for values of 16
# pixels, limits of the formats
LONGEST_SIDES = {".jpg": 65500, ".jpeg": 65500, ".webp": 16383, ".gif": 65535}
# raised by Pillow; the second line by damaged files, where a value has the wrong type
DECODING_ERRORS = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error, RuntimeError, MemoryError),
    *(TypeError, AttributeError, LookupError, ArithmeticError),
)
# PNG raw modes -> the factor by which Pillow scales their values
KEYED = {"L;2": 85, "L;4": 17, "RGB;16B": 1 / 256}
WHITE = (255, 255, 255)

logging.getLogger("PIL").addHandler(logging.NullHandler())  # errors are reported here, in one line


def _pillow() -> Any:
    with needing("vision", "Pillow"):
        from PIL import Image
    return Image


def as_picture(given: Given, name: str | None = None) -> Picture:
    """Convert to a picture: a path, the bytes of a file, a Pillow image, or an array.

    Args:
        name: its name in error messages, unless it is a path.

    Raises:
        TransductError: the type is not supported, or the picture is damaged.
    """
    if isinstance(given, str | Path):
        return read_picture(stored(Path(given)), str(given))
    if isinstance(given, bytes | bytearray):
        return read_picture(bytes(given), name)
    if isinstance(given, np.ndarray):
        right = given.dtype == np.uint8 and given.ndim == 3 and given.shape[2] == 3 and given.size
        found = f"an array of shape {given.shape}, {given.dtype}"
        require(right, f"found {found}; expected (height, width, 3), uint8", file=name)
        return given
    expected = "a path, the bytes of a file, an image of Pillow's or an array"
    require(
        isinstance(given, _pillow().Image),
        f"found {type(given).__name__}; expected {expected}",
        file=name,
    )
    with _decoding(name):
        return as_picture(_converted(given, name, own=False), name)  # checks that it has pixels


def read_picture(data: bytes | Path, name: str | None) -> Picture:
    """Read a picture file as RGB, rotated as its EXIF data say, on white where it is transparent.

    Palettes, grey, 16 bits per channel and other modes are converted; of an animation the first
    frame is used.

    Args:
        name: its name in error messages.

    Raises:
        TransductError: the file cannot be read, is not a picture, is truncated, or claims too many
            pixels.
    """
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    with _decoding(name), _pillow().open(file, formats=FORMATS) as opened:
        return _converted(opened, name, own=True)


@contextmanager
def _decoding(name: str | None) -> Iterator[None]:
    """Turn whatever Pillow raises over a picture into an error with its name."""
    image = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of defects that are refused or corrected here
            yield
    except image.DecompressionBombError as error:
        raise _too_large(name, str(error)) from error
    except FileNotFoundError as error:
        raise TransductError("no such file; give the path of a picture", file=name) from error
    except DECODING_ERRORS as error:
        unknown = isinstance(error, image.UnidentifiedImageError)
        reason = "of no known format" if unknown else str(error) or type(error).__name__
        problem = (
            f"not a whole picture ({reason}); expected a PNG, JPEG, WebP, BMP, GIF, TIFF or PPM"
        )
        raise TransductError(problem, file=name) from error


def _too_large(name: str | None, found: str) -> TransductError:
    claim = f"claims too many pixels ({found}), at most {MOST_PIXELS:,} are read; make it smaller"
    return TransductError(claim, file=name)


def _converted(opened: Any, name: str | None, own: bool) -> Picture:
    from PIL import ImageOps

    width, height = opened.size
    if width * height > MOST_PIXELS:
        raise _too_large(name, f"{width} x {height}")
    deep = opened.mode == "F" or (opened.mode == "I" and opened.format not in SIXTEEN_BITS)
    found = f"found a {opened.format or 'picture'} of 32 bits a pixel (mode {opened.mode})"
    require(not deep, f"{found}, expected 8 or 16 bits a channel; convert it", file=name)
    tiles = getattr(opened, "tile", None)
    # the raw mode in the file, known only until it is decoded
    mode = tiles[0][3] if tiles else None
    # A copy of the largest picture takes 270 MB; what a caller gave is left as it is.
    if own:
        ImageOps.exif_transpose(opened, in_place=True)
    turned = opened if own else ImageOps.exif_transpose(opened)
    key = turned.info.get("transparency")  # the transparent colour of a PNG, not scaled by Pillow
    if key is not None and mode in KEYED:
        scaled = [int(value * KEYED[mode]) for value in (key if isinstance(key, tuple) else [key])]
        turned.info["transparency"] = tuple(scaled) if isinstance(key, tuple) else scaled[0]
    return _colours(turned)


def _colours(opened: Any) -> Picture:
    image = _pillow()
    if opened.mode.startswith("I"):  # grey of 16 bits; 32 bits have been refused
        grey = np.array(opened)  # (height, width), of 16 or 32 bits
        transparent = grey == opened.info.get("transparency", -1)
        np.clip(grey, 0, 65535, out=grey)
        grey //= 257
        grey[transparent] = 255
        return np.repeat(grey.astype(np.uint8)[..., None], 3, 2)  # (height, width, 3)
    width, height = opened.size
    picture, rows = np.empty((height, width, 3), np.uint8), max(1, BAND // max(1, width))
    transparent = opened.has_transparency_data
    for top in range(0, height, rows):  # in bands, for each step makes a copy
        band = opened.crop((0, top, width, min(top + rows, height)))
        if transparent:
            band = band.convert("RGBA")
            band = image.alpha_composite(image.new("RGBA", band.size, (*WHITE, 255)), band)
        picture[top : top + rows] = np.asarray(band.convert("RGB"))
    return picture


def resized(picture: Picture, height: int, width: int) -> Picture:
    """The picture resized with bicubic interpolation."""
    if picture.shape[:2] == (height, width):
        return picture
    image = _pillow()
    return np.array(image.fromarray(picture).resize((width, height), image.Resampling.BICUBIC))


def fitted(picture: Picture, size: int) -> Picture:
    """The central square of a picture, resized to `size` x `size` pixels."""
    height, width = picture.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = resized(picture[top : top + side, left : left + side], size, size)
    # a view would keep the whole picture in memory
    return square if height == width else square.copy()


def check_ending(path: Path) -> None:
    """Raise TransductError if the ending of a path is not a known picture format."""
    require(
        path.suffix.lower() in ENDINGS,
        f"'{path}' does not name a picture; end it in {', '.join(ENDINGS[:3])}",
    )


def encode_picture(picture: Picture, path: Path) -> bytes:
    """The content of a picture file in the format given by the ending of `path`.

    Raises:
        TransductError: the format is unknown, or cannot hold the picture.
    """
    check_ending(path)
    height, width = picture.shape[:2]
    ending, remedy = path.suffix.lower(), "give a name that ends in .png"
    most = LONGEST_SIDES.get(ending, max(height, width))
    found = f"the picture is {width:,} x {height:,}, such a file holds at most {most:,} on a side"
    require(max(height, width) <= most, f"cannot write '{path}' ({found}); {remedy}")
    file, library = io.BytesIO(), _pillow()
    with rewording(
        (OSError, ValueError, MemoryError), f"cannot write '{path}' ({{error}}); {remedy}"
    ):
        image = library.fromarray(np.ascontiguousarray(picture))
        image.save(file, library.registered_extensions()[ending])
    return file.getvalue()


@dataclass(frozen=True)
class ImageSource(Checked):
    """A corpus of pictures, with a text for each.

    Attributes:
        images: a folder, or a tar archive, plain or compressed.
        captions: a file with lines of NAME, tab, TEXT; without it, the name of a picture's folder
            is its text.
        weight: how often an epoch shows each picture.
    """

    images: str
    captions: str | None = None
    weight: Weight = 1.0

    def files(self) -> list[str]:
        """The files of the corpus, by their names in the recipe."""
        return [name for name in (self.images, self.captions) if name is not None]


def read_pictures(
    source: ImageSource, root: Path, refused: Refused
) -> Iterator[tuple[str, Picture]]:
    """Read the names and pixels of all pictures in the order of the archive; broken ones are
    refused.

    Raises:
        TransductError: the archive is missing or damaged, or a picture is broken and the policy is
            to stop.
    """
    for name, content in read_members(root / source.images, ENDINGS):
        with refused.each(), placing(f"{source.images}: {name}"):
            yield name, read_picture(content(), None)


def read_labelled(
    source: ImageSource, root: Path, refused: Refused
) -> Iterator[tuple[str, Picture, str]]:
    """Read the name, pixels and text of each picture; one without a text, or a text without a
    picture, is refused.

    Raises:
        TransductError: as in `read_pictures`, or the captions cannot be read or name a picture
            twice.
    """
    captions = None if source.captions is None else read_captions(source.captions, root, refused)
    expected = "a folder named by its label" if captions is None else "a caption of it"
    for name, content in read_members(root / source.images, ENDINGS):
        text = (Path(name).parent.name if captions is None else captions.pop(name, "")).strip()
        with refused.each(), placing(f"{source.images}: {name}"):
            picture = read_picture(content(), None)
            require(
                text, f"found no text for it, expected {expected}; write one, or remove the picture"
            )
            yield name, picture, text
    for name in captions or {}:
        with refused.each(), placing(f"{source.captions}: {name}"):
            raise TransductError(
                f"found a caption without its picture in {source.images}; add it, or remove the "
                "line"
            )


def read_captions(file: str, root: Path, refused: Refused | None = None) -> dict[str, str]:
    """Read the captions of pictures, by the names of the pictures; without a policy, a wrong line
    stops."""
    refused = Refused("stop", advise=False) if refused is None else refused
    captions: dict[str, str] = {}
    rows = tsv_rows(root / file, [0, 1], strict=refused.policy == "stop")
    for number, row in enumerate(in_utf8(rows, file), 1):
        with refused.each(), placing(file, number):
            if isinstance(row, TransductError):
                raise row
            name = composed(row[0])
            require(name not in captions, f"'{name}' has a caption already; keep one of them")
            captions[name] = row[1]
    return captions
