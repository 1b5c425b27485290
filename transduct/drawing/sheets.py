"""Sheets of pictures: samples side by side on one page, for the model directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transduct import storage
from transduct.data.images import Picture, encode_picture
from transduct.errors import needing

SHOWN = 16  # the most pictures on a sheet
CELL, PER_ROW, EDGE = (
    128,
    8,
    8,
)  # the least width of a picture, the pictures in a row, the pixels between


def save_sheet(page: Picture, directory: Path) -> Path:
    """Write a sheet of pictures into a run directory; from there it is copied into the model
    directory."""
    path = directory / "samples.png"
    storage.write_file(path, encode_picture(page, path))
    return path


def sheet(stacks: Sequence[Sequence[Picture]], captions: Sequence[str] | None = None) -> Picture:
    """One page of pictures: stacks of equal height side by side, each with an optional caption
    below."""
    image, drawing, font = pillow()
    height, width = stacks[0][0].shape[:2]
    scale = max(1, CELL // width)
    lines = [_wrapped(text, width * scale, font) for text in captions or [""] * len(stacks)]
    line = font.getbbox("Ag")[3] + 2
    cell = (
        width * scale + EDGE,
        len(stacks[0]) * (height * scale + 2) + EDGE + line * max(map(len, lines)),
    )
    rows = -(-len(stacks) // PER_ROW)
    page = image.new(
        "RGB", (min(PER_ROW, len(stacks)) * cell[0] + EDGE, rows * cell[1] + EDGE), "white"
    )
    pen = drawing.Draw(page)
    for number, (stack, text) in enumerate(zip(stacks, lines)):
        left, top = (
            EDGE + place * size for place, size in zip((number % PER_ROW, number // PER_ROW), cell)
        )
        for picture in stack:
            enlarged = picture.repeat(scale, 0).repeat(scale, 1)
            page.paste(image.fromarray(enlarged), (left, top))
            pen.rectangle(
                (left - 1, top - 1, left + width * scale, top + height * scale), outline="lightgrey"
            )
            top += height * scale + 2
        for words in text:
            pen.text((left, top), words, fill="black", font=font)
            top += line
    return np.array(page)


def _wrapped(text: str, width: int, font: Any) -> list[str]:
    """Wrap a text into lines no wider than `width`, unless a single word is wider."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def pillow() -> tuple[Any, Any, Any]:
    """The parts of Pillow that draw sheets: its modules Image and ImageDraw, and a font."""
    with needing("vision", "Pillow"):
        from PIL import Image, ImageDraw, ImageFont
    return Image, ImageDraw, ImageFont.load_default(size=11)
