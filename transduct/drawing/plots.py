"""Pictures of attention and training: heat maps, grids, overlays, line charts, text blocks for a
terminal, and sheets of generated pictures."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from transduct import storage
from transduct.data.images import Picture as Pixels
from transduct.data.images import encode_picture
from transduct.drawing.svg import (
    INK,
    Line,
    Photograph,
    Picture,
    Rectangle,
    Shape,
    Text,
    moved,
    printable,
    text_columns,
    text_width,
)
from transduct.errors import needing, require, rewording
from transduct.storage import write_file

FAINT, NOT_FINITE = "#d8dee4", "#dcdcdc"
# Pale to dark, and blue through white to red; after ColorBrewer's YlGnBu and RdBu (Harrower and
# Brewer, 2003).
SEQUENTIAL = ("#f3f8f1", "#d3eecd", "#9ad7bd", "#4fb5c0", "#2a87b8", "#26559c", "#172a62")
DIVERGING = ("#1b4f8f", "#5b9bc8", "#bcd9ea", "#f7f7f7", "#f6c6ac", "#d9705a", "#98182f")
CURVE_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    INK,  # until here Okabe and Ito (2008)
    "#882255",
    "#999933",
    "#332288",
    "#888888",
)
BLOCKS = " ▁▂▃▄▅▆▇█"

MARGIN, GAP = 16.0, 24.0
LARGEST_CELL = 26
SQUARE_CELL = 7  # cells larger than this are square, smaller ones fill the available space
MOST_CELLS = 1 << 20  # the most cells of all heat maps on a page
LONGEST_TITLE = 120  # characters; a longer title is cut
LONGEST_LABEL = 24  # columns; a longer label is cut
PHOTOGRAPH = 160.0  # pixels of the longer side
LARGEST = 1e300  # values are clipped to this, so that the sum of two is finite
RED, REDDEST = (220, 38, 38), 0.75  # the colour of overlays, and its greatest opacity
HINTED_CELLS = 1024  # larger heat maps get no tooltips, which make the file several times as large

Values = npt.NDArray[np.float64]
Labels = Sequence[str] | None
Limits = tuple[float, float]


class Array(Protocol):
    """The interface shared by numpy arrays and torch tensors, of any type and on any device."""

    def tolist(self) -> Any: ...


Matrix = Array | Sequence[Sequence[float]]


def save(picture: Picture, path: str | os.PathLike[str]) -> None:
    """Write a picture atomically to an SVG or PNG file, depending on the file extension.

    Raises TransductError if the extension is another, the file cannot be written, or matplotlib is
    missing.
    """
    path = Path(path)
    check_ending(path)
    write_file(path, picture.svg().encode() if path.suffix.lower() == ".svg" else picture.png())


def check_ending(path: Path | None) -> None:
    """Raise TransductError if a path is given and `save` does not support its extension."""
    require(
        path is None or path.suffix.lower() in (".svg", ".png"),
        f"'{path}' does not name a picture; end it in .svg or .png",
    )


def heatmap(
    matrix: Matrix,
    rows: Labels = None,
    columns: Labels = None,
    title: str = "",
    limits: Limits | None = None,
) -> Picture:
    """A heat map of a matrix (rows, columns), such as the attention of target tokens to source
    tokens.

    The colour scale runs from 0 to the largest value, from blue through white to red if there are
    negative values, or between the `limits`. Values that are not finite, such as masked scores, are
    grey. Raises TransductError if the matrix is not rectangular, the numbers of labels do not match
    it, or the limits are not in order.
    """
    return grid([("", matrix, rows, columns)], title=title, limits=limits)


def grid(
    panels: Sequence[tuple[str, Matrix, Labels, Labels]],
    per_row: int | None = None,
    title: str = "",
    limits: Limits | None = None,
) -> Picture:
    """A grid of heat maps (title, matrix, rows, columns) with a common colour scale, `per_row` in
    each row.

    Raises TransductError as `heatmap` does, and if there is no heat map.
    """
    require(
        panels, "there is no heat map to draw; give at least one (title, matrix, rows, columns)"
    )
    per_row = min(len(panels), per_row or math.ceil(math.sqrt(len(panels))))
    matrices = [_matrix(matrix, rows, columns) for _, matrix, rows, columns in panels]
    limits = limits or _limits(matrices)
    require(limits[0] < limits[1], f"limits {limits} are not in order; give the lower one first")
    parts = [
        _panel(name, matrix, rows, columns, limits, width=max(160, 640 // per_row))
        for matrix, (name, _, rows, columns) in zip(matrices, panels)
    ]
    return page(parts, per_row, title, limits)


def overlays(panels: Sequence[tuple[str, Matrix, np.ndarray]], title: str = "") -> Picture:
    """A grid of photographs (title, matrix, pixels), reddened where the matrix is large.

    The matrix is stretched over the pixels (height, width, 3); its largest value is the reddest.
    Raises TransductError if there is no photograph, or a matrix is not rectangular.
    """
    require(panels, "there is no photograph to draw; give at least one (title, matrix, pixels)")
    per_row = math.ceil(math.sqrt(len(panels)))
    parts = [_overlay(name, _matrix(matrix, None, None), pixels) for name, matrix, pixels in panels]
    return page(parts, per_row, title, None)


def draw_attention(model: Any, given: Any, path: Path, options: Mapping[str, Any]) -> None:
    """Draw a model's attention for an input: as overlays on a picture, or as heat maps of every
    head of every layer for a text."""
    found = model.attention(given, **options)
    panels = found.panels()
    matrices = [(p.title, p.weights, p.rows, p.columns) for p in panels if p.picture is None]
    photographs = [(p.title, p.weights, p.picture) for p in panels if p.picture is not None]
    require(
        (cells := sum(weights.numel() for _, weights, *_ in matrices)) <= MOST_CELLS,
        f"{cells:,} weights are too many to draw, {MOST_CELLS:,} at most; give a shorter input",
    )
    heads = len(next(iter(found.weights.values()))) if len(matrices) > 1 else 1
    text = given if isinstance(given, str) else ""  # an input read from a pipe has no title
    title = text if len(text) <= LONGEST_TITLE else text[: LONGEST_TITLE - 1] + "…"
    save(
        overlays(photographs, title=title)
        if photographs
        else grid(matrices, per_row=heads, title=title),
        path,
    )


def page(
    parts: Sequence[Picture], per_row: int = 1, title: str = "", limits: Limits | None = None
) -> Picture:
    """The parts in rows on one page, with a colour bar beside them if there are limits."""
    widths = [max(part.width for part in parts[place::per_row]) for place in range(per_row)]
    shapes: list[Shape] = [Text(MARGIN, MARGIN + 13, title, 15, bold=True)] if title else []
    top = bottom = MARGIN + (32 if title else 0)
    for start in range(0, len(parts), per_row):
        line = parts[start : start + per_row]
        height = max(part.height for part in line)
        x, y = MARGIN, bottom + (GAP if start else 0)
        for part, width in zip(line, widths):
            shapes += moved(part.shapes, x, y + height - part.height)
            x += width + GAP
        bottom = y + height
    right = MARGIN + sum(width + GAP for width in widths) - GAP
    if limits is not None:
        bar = _colour_bar(limits, height=max(60.0, min(160.0, bottom - top)))
        bottom = max(bottom, top + bar.height)
        shapes += moved(bar.shapes, right + GAP, bottom - bar.height)
        right += GAP + bar.width
    right = max(right, MARGIN + text_width(title, 15))
    return Picture(right + MARGIN, bottom + MARGIN, tuple(shapes))


def curves(
    x: Array | Sequence[float],
    lines: Mapping[str, Array | Sequence[float]],
    title: str = "",
    x_label: str = "",
    y_label: str = "",
) -> Picture:
    """A line chart of named lines, each with one value for each x. Values that are not finite leave
    gaps.

    Raises TransductError if there is no line, or a line is not as long as x.
    """
    require(lines, "there is no line to draw; give at least one")
    across = _numbers(x, "x", 1)
    series = {name: _numbers(y, f"line '{name}'", 1) for name, y in lines.items()}
    for name, values in series.items():
        require(
            values.size == across.size,
            f"line '{name}' has {values.size} values, x has {across.size}; give equally many",
        )
    x_ticks, x_texts = _ticks(across)
    y_ticks, y_texts = _ticks(np.concatenate(list(series.values())))
    left = MARGIN + max(text_width(text, 11) for text in y_texts) + 8
    top = MARGIN + (30 if title else 0) + (22 if y_label else 4)
    right, bottom = left + 520, top + 280

    def to_x(value: float) -> float:
        return left + (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (right - left)

    def to_y(value: float) -> float:
        return bottom - (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (bottom - top)

    shapes: list[Shape] = [Text(MARGIN, MARGIN + 13, title, 15, bold=True)] if title else []
    shapes += [Text(MARGIN, top - 12, y_label, 12)] if y_label else []
    for tick, text in zip(y_ticks, y_texts):
        y = to_y(tick)
        shapes += [
            Line(left, y, ((right - left, 0),), FAINT),
            Text(left - 8, y + 4, text, 11, "end"),
        ]
    for tick, text in zip(x_ticks, x_texts):
        shapes += [
            Line(to_x(tick), bottom, ((0, 5),)),
            Text(to_x(tick), bottom + 19, text, 11, "middle"),
        ]
    shapes.append(Line(left, bottom, ((right - left, 0),)))
    shapes += [Text((left + right) / 2, bottom + 40, x_label, 12, "middle")] if x_label else []
    for number, (name, values) in enumerate(series.items()):
        colour = CURVE_COLOURS[number % len(CURVE_COLOURS)]
        shapes += _polylines(
            [(to_x(a), to_y(b)) for a, b in zip(across.tolist(), values.tolist())], colour
        )
        y = top + 6 + 20 * number
        shapes += [
            Line(right + 20, y, ((18, 0),), colour, 2.5),
            Text(right + 46, y + 4, _label(name)),
        ]
    legend = max(text_width(_label(name), 12) for name in series)
    page_right = max(right + 46 + legend, MARGIN + text_width(title, 15))
    page_bottom = max(bottom + (46 if x_label else 24), top + 20 * len(series))
    return Picture(page_right + MARGIN, page_bottom + MARGIN, tuple(shapes))


def terminal(matrix: Matrix, rows: Labels = None, columns: Labels = None) -> str:
    """A heat map as text: the fuller the block, the larger the value; a dot stands for a value that
    is not finite.

    Each column is as wide as its label. Raises TransductError as `heatmap` does.
    """
    values = _matrix(matrix, rows, columns)
    filled = _fractions(values, _limits([values]))
    names = [_label(row) for row in rows] if rows is not None else [""] * len(values)
    heads = (
        [_label(column) for column in columns] if columns is not None else [""] * values.shape[1]
    )
    widths = [max(2, text_columns(head)) for head in heads]
    margin = max(map(text_columns, names))
    padded = [head + " " * (width - text_columns(head)) for head, width in zip(heads, widths)]
    lines = [" ".join([" " * margin, *padded])]
    for name, row in zip(names, filled):
        blocks = (
            "·" if math.isnan(part) else BLOCKS[round(part * (len(BLOCKS) - 1))] for part in row
        )
        cells = [block * width for block, width in zip(blocks, widths)]
        lines.append(" ".join([" " * (margin - text_columns(name)) + name, *cells]))
    return "".join(f"{line.rstrip()}\n" for line in (lines if columns is not None else lines[1:]))


def _panel(
    name: str, matrix: Values, rows: Labels, columns: Labels, limits: Limits, width: int
) -> Picture:
    """One heat map without its colour bar: row labels on its left, slanted column labels above
    it."""
    cell_height, cell_width = (min(LARGEST_CELL, max(1, width // count)) for count in matrix.shape)
    if min(cell_height, cell_width) > SQUARE_CELL:
        cell_height = cell_width = min(cell_height, cell_width)
    slant = math.sqrt(0.5)  # sine and cosine of 45 degrees
    row_texts, row_size = _spaced(rows, cell_height)
    column_texts, column_size = _spaced(columns, cell_width * slant)
    row_margin = max((text_width(text, row_size) + 7 for _, text in row_texts), default=0.0)
    column_margin = max(
        (text_width(text, column_size) * slant + 14 for _, text in column_texts), default=0.0
    )
    left, top = row_margin, column_margin + (20 if name else 0)
    shapes: list[Shape] = [Text(left, 12, name, 12, bold=True)] if name else []
    right = max(left + matrix.shape[1] * cell_width, left + text_width(name, 12))
    for i, text in row_texts:
        y = top + (i + 0.5) * cell_height + row_size * 0.36  # letters are about 0.72 em high
        shapes.append(Text(left - 7, y, text, row_size, "end"))
    for j, text in column_texts:
        x = left + (j + 0.5) * cell_width + column_size * 0.25
        shapes.append(Text(x, top - 6, text, column_size, angle=-45))
        right = max(right, x + text_width(text, column_size) * slant)
    seam = 1 if min(cell_height, cell_width) >= 12 else 0
    for i, colours in enumerate(_colours(matrix, limits)):
        for j, colour in enumerate(colours):
            place = (
                left + j * cell_width,
                top + i * cell_height,
                cell_width - seam,
                cell_height - seam,
            )
            hint = f"{rows[i] if rows else i}, {columns[j] if columns else j}: {matrix[i, j]:.3g}"
            shapes.append(Rectangle(*place, colour, hint if matrix.size <= HINTED_CELLS else ""))
    return Picture(right, top + len(matrix) * cell_height - seam, tuple(shapes))


def _overlay(name: str, matrix: Values, pixels: np.ndarray) -> Picture:
    pixels = _shrunk(pixels)
    height, width = pixels.shape[:2]
    rows, columns = (
        np.arange(size) * count // size for size, count in zip((height, width), matrix.shape)
    )
    # (height, width, 1)
    share = REDDEST * _fractions(matrix, (0.0, _limits([matrix])[1]))[rows][:, columns, None]
    mixed = (1.0 - share) * pixels + share * np.array(RED)
    scale = PHOTOGRAPH / max(height, width)
    size = (width * scale, height * scale)
    photograph = Photograph(0, 20, *size, np.rint(mixed).astype(np.uint8))
    return Picture(
        max(size[0], text_width(name, 12)),
        20 + size[1],
        (Text(0, 12, name, 12, bold=True), photograph),
    )


def _shrunk(pixels: np.ndarray) -> np.ndarray:
    """A photograph downsampled by block means to at most twice its displayed size."""
    step = math.ceil(max(pixels.shape[:2]) / (2 * PHOTOGRAPH))
    down, across = (min(step, size) for size in pixels.shape[:2])
    height, width = pixels.shape[0] // down, pixels.shape[1] // across
    blocks = pixels[: height * down, : width * across].reshape(height, down, width, across, 3)
    return pixels if step == 1 else blocks.mean((1, 3))


def _colour_bar(limits: Limits, height: float) -> Picture:
    low, high = limits
    ticks = [low, 0.0, high] if low < 0 < high else [low, high]
    steps = 40
    values = np.linspace(high, low, steps).reshape(steps, 1)
    shapes: list[Shape] = [
        Rectangle(0, i * height / steps, 12, height / steps, colour)
        for i, (colour,) in enumerate(_colours(values, limits))
    ]
    for tick in ticks:
        y = (high - tick) / (high - low) * (height - 9) + 9  # digits are 9 pixels high
        shapes.append(Text(18, y, f"{tick:.3g}", 11))
    return Picture(18 + max(text_width(f"{tick:.3g}", 11) for tick in ticks), height, tuple(shapes))


def _polylines(points: list[tuple[float, float]], colour: str) -> list[Shape]:
    """Lines through the runs of finite points; an isolated point becomes a small square."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if all(map(math.isfinite, point)):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    shapes: list[Shape] = []
    for (x, y), *rest in filter(None, runs):
        if rest:
            shapes.append(
                Line(x, y, tuple((right - x, down - y) for right, down in rest), colour, 2)
            )
        else:
            shapes.append(Rectangle(x - 3, y - 3, 6, 6, colour))
    return shapes


def _ticks(values: Values) -> tuple[list[float], list[str]]:
    """About five round numbers that enclose the values, and their texts."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if high - low < 1 / LARGEST:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    ticks = [
        i * step for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    ]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return ticks, [
        f"{tick:,.{decimals}f}" if decimals <= 5 and abs(tick) < 1e7 else f"{tick:.3g}"
        for tick in ticks
    ]


def _numbers(values: Array | Sequence[float] | Matrix, name: str, dimensions: int) -> Values:
    with rewording(
        (TypeError, ValueError),
        f"{name} is not made of numbers in equal rows; give numbers or an array",
    ):
        numbers = np.asarray(
            values if isinstance(values, Sequence) else values.tolist(), dtype=np.float64
        )
    require(
        numbers.ndim == dimensions and numbers.size,
        f"{name} has the shape {numbers.shape}; give {dimensions} dimensions, none of them 0",
    )
    return np.where(np.isfinite(numbers), np.clip(numbers, -LARGEST, LARGEST), numbers)


def _matrix(matrix: Matrix, rows: Labels, columns: Labels) -> Values:
    values = _numbers(matrix, "the matrix", 2)
    for name, labels, count in zip(("row", "column"), (rows, columns), values.shape):
        given = count if labels is None else len(labels)
        require(given == count, f"{given} {name} labels for {count} {name}s; give one for each")
    return values


def _limits(matrices: Sequence[Values]) -> Limits:
    finite = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    largest = float(np.abs(finite).max(initial=0)) or 1.0
    return (-largest if finite.min(initial=0) < 0 else 0.0), largest


def _fractions(matrix: Values, limits: Limits) -> Values:
    """The values scaled from the limits to 0 and 1; NaN where they are not finite."""
    low, high = limits
    return np.clip(np.where(np.isfinite(matrix), (matrix - low) / (high - low), np.nan), 0, 1)


def _colours(matrix: Values, limits: Limits) -> list[list[str]]:
    anchors = DIVERGING if limits[0] < 0 else SEQUENTIAL
    channels = np.array([[int(anchor[i : i + 2], 16) for i in (1, 3, 5)] for anchor in anchors])
    places = _fractions(matrix, limits) * (len(anchors) - 1)
    mixed = np.stack(
        [np.interp(places, range(len(anchors)), channel) for channel in channels.T], axis=-1
    )
    return [
        [
            "#{:02x}{:02x}{:02x}".format(*map(round, c)) if np.isfinite(c[0]) else NOT_FINITE
            for c in row
        ]
        for row in mixed.tolist()
    ]


def _spaced(labels: Labels, length: float) -> tuple[list[tuple[int, str]], float]:
    """The labels that fit with so many pixels for each, with their indices, and the font size.

    If they would be too small to read, only every second, third, ... label is kept.
    """
    size = min(12.0, max(8.0, length * 0.8))
    every = math.ceil(8.5 / length)
    return [(i, _label(label)) for i, label in enumerate(labels or []) if i % every == 0], size


def _label(text: str) -> str:
    text = "␣" if text.isspace() else printable(text[: 4 * LONGEST_LABEL])  # no more is ever shown
    if text_columns(text) <= LONGEST_LABEL:
        return text
    while text_columns(text) > LONGEST_LABEL - 1:
        text = text[:-1]
    return text + "…"


SHOWN = 16  # the most pictures on a sheet
# the least width of a picture, the pictures in a row, the pixels between
CELL, PER_ROW, EDGE = 128, 8, 8


def save_sheet(page: Pixels, directory: Path) -> Path:
    """Write a sheet of pictures into a run directory; from there it is copied into the model
    directory."""
    path = directory / "samples.png"
    storage.write_file(path, encode_picture(page, path))
    return path


def sheet(stacks: Sequence[Sequence[Pixels]], captions: Sequence[str] | None = None) -> Pixels:
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
