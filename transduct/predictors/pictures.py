"""Pictures of a model's answers and of its attention, and where they are written."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from transduct.data.files import readable
from transduct.data.images import check_ending, encode_picture
from transduct.errors import TransductError
from transduct.predictors.base import Predictor
from transduct.storage import write_file


def check_drawable(
    model: Predictor, name: str, path: Path | None, attention: Path | None = None
) -> None:
    """Check, before a model answers, that its pictures can be written to `path` and `attention`.

    Raises:
        TransductError: there is a path but the model answers in text, there is none but it answers
            in pictures, the path does not end in a picture format, or its attention is asked for
            but it has none.
    """
    if attention is not None and not model.attention_names:
        raise TransductError(f"{name}: this model has no attention to show; omit --attention")
    if path is None:
        if model.paints:
            raise TransductError(
                f"{name}: this model answers with pictures; say where to draw them with --out "
                "FILE.png"
            )
        return
    if "picture" not in model.verbs:
        raise TransductError(
            f"{name}: this model answers in text, which has no picture; omit --out"
        )
    check_ending(path)


def places(
    model: Predictor, inputs: Sequence[str], out: Path | None, attention: Path | None
) -> list[Path]:
    """The paths of the pictures of all answers: `out`, numbered if there are several inputs.

    Raises:
        TransductError: one of them, or `attention`, is an input file or used twice.
    """
    numbered = (
        [out.with_stem(f"{out.stem}_{number}") for number in range(1, len(inputs) + 1)]
        if out
        else []
    )
    drawn = [out] if out and len(inputs) == 1 else numbered
    taken = {os.path.realpath(given) for given in inputs if model.reads != "text"}
    for path in [*drawn, *([attention] if attention else [])]:
        if (place := os.path.realpath(path)) in taken:
            raise TransductError(
                f"{path}: this is an input, or another picture's place; draw to another"
            )
        taken.add(place)
    return drawn


def typed_text(given: str) -> str:
    """Text from a command line or terminal, with U+FFFD for bytes that are not UTF-8."""
    return readable(given)


def read_once(model: Predictor, given: str) -> Any:
    """Turn a command-line argument into a model's input: a text, a file name, or the content of a
    pipe.

    A pipe can be read only once, but drawing the answer or the attention reads the input again.
    """
    if model.reads == "text":
        return typed_text(given)
    try:
        return Path(given).read_bytes() if Path(given).is_fifo() else given
    except OSError:  # reported when the model reads it
        return given


def draw(model: Any, given: Any, output: Any, path: Path) -> None:
    """Write a picture of a model's answer: boxes drawn on a photograph, or a generated picture.

    Raises:
        TransductError: the name does not end in a known format, or the file cannot be written.
    """
    write_file(path, encode_picture(model.picture(given, output), path))


@dataclass(frozen=True)
class Panel:
    """One picture of attention.

    Attributes:
        weights: (rows, columns), shown as a labelled matrix or over `picture`.
        rows, columns: labels of the matrix; None with a picture.
        picture: (height, width, 3), 0 to 255; the weights are stretched to its size.
    """

    title: str
    weights: Tensor
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    picture: np.ndarray | None = None
