"""What a model in use shows of itself: pictures of its answers and of its attention."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from transduct.data.images import check_ending, encode_picture
from transduct.errors import TransductError
from transduct.training.checkpoint import write_file


def check_drawable(model: Any, name: str, path: Path | None, attention: Path | None = None) -> None:
    """Refuse a place for pictures that does not fit a model, or of no known format, before it has answered.

    Raises:
        TransductError: it answers in text and there is a place, it answers in pictures and there is none, or its name
            ends in no format of pictures; or there is a place for its attention, of which it has none.
    """
    if attention is not None and not hasattr(model, "attention"):
        raise TransductError(f"{name}: this model has no attention to show; leave --attention away")
    if path is None:
        if getattr(model, "paints", False):
            raise TransductError(
                f"{name}: this model answers with pictures; say where to draw them with --out FILE.png"
            )
        return
    if not hasattr(model, "picture"):
        raise TransductError(f"{name}: this model answers in text, which has no picture; leave --out away")
    check_ending(path)


def places(model: Any, inputs: Sequence[str], out: Path | None, attention: Path | None) -> list[Path]:
    """Where the answers to some inputs are drawn: at a place, of several with their numbers behind its name.

    Raises:
        TransductError: one of these, or the place for attention, is the file of an input or another's.
    """
    numbered = [out.with_stem(f"{out.stem}_{number}") for number in range(1, len(inputs) + 1)] if out else []
    drawn = [out] if out and len(inputs) == 1 else numbered
    taken = {os.path.realpath(given) for given in inputs} if getattr(model, "reads", "text") != "text" else set()
    for path in [*drawn, *([attention] if attention else [])]:
        if (place := os.path.realpath(path)) in taken:
            raise TransductError(f"{path}: this is an input, or another picture's place; draw to another")
        taken.add(place)
    return drawn


def typed_text(given: str) -> str:
    """What a command line or a terminal gave, with U+FFFD for bytes that are not UTF-8."""
    return given.encode(errors="surrogateescape").decode(errors="replace")


def read_once(model: Any, given: str) -> Any:
    """What a model is given: a text, with U+FFFD for bytes that are not UTF-8, or a file's name; of a pipe its
    content, since drawing the answer or the attention reads it once more."""
    if getattr(model, "reads", "text") == "text":
        return typed_text(given)
    try:
        return Path(given).read_bytes() if Path(given).is_fifo() else given
    except OSError:  # which is said once it is to be answered
        return given


def draw(model: Any, given: Any, output: Any, path: Path) -> None:
    """Write the picture that shows a model's answer to what it was given: boxes on a photograph, a painted caption.

    Raises:
        TransductError: the name ends in no known format, or the file cannot be written.
    """
    write_file(path, encode_picture(model.picture(given, output), path))


@dataclass(frozen=True)
class Panel:
    """One picture of attention.

    Attributes:
        weights: (rows, columns), a labelled matrix, or what is laid over `picture`.
        rows, columns: labels; none where the weights lie over a picture.
        picture: (height, width, 3) in 0 to 255; the weights are stretched to its size.
    """

    title: str
    weights: Tensor
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    picture: np.ndarray | None = None
