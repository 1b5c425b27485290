"""Pictures for a slide of 800 x 450. Charts show means over seeds with their range, as lines or as
bars; a model has the same colour in all chapters."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from transduct.drawing.plots import CURVE_COLOURS, FAINT
from transduct.drawing.svg import (
    INK,
    Line,
    Picture,
    Rectangle,
    Shape,
    Text,
    moved,
    text_columns,
    text_width,
)
from transduct_course.experiment import Row, Rows, grouped

WIDTH, HEIGHT = 800.0, 450.0
SIZES = ("x", "y", "width", "height", "size")  # of a shape
COLOURS = {
    name: CURVE_COLOURS[place]
    for place, names in enumerate(
        (
            ("Transformer", "sinusoidal", "with residuals", "pre-norm", "with feed-forward",
             "attention", "with attention", "with the mask", "all", "pre-trained", "divided"),
            ("GRU", "learned", "without residuals", "no norm", "without feed-forward",
             "feed-forward alone", "without it", "bands", "from scratch", "not divided"),
            ("GRU + attention", "relative", "post-norm", "without, as many parameters",
             "all, as many parameters"),
            ("tanh", "one vector", "binary"),
            ("LSTM", "index"),
            ("LSTM, open gates", "rotary"),
            ("none", "a guess", "untrained"),
            ("alibi",),
            ("normalised_index",),
            ("sinusoidal_concatenated",),
            ("one_hot",),
        )
    )
    for name in names
}  # fmt: skip


@dataclass(frozen=True)
class Chart:
    """The values `y` of rows by `x`, a line for each value of `by`; texts and numbers as `x` stand
    at equal distances.

    Attributes:
        factor: multiplies the values: 100 for a share in percent.
        log: whether the axis of the values is logarithmic.
        bars: whether groups of bars are drawn instead of lines.
    """

    rows: Rows
    x: str
    y: str
    by: str
    title: str
    x_label: str = ""
    y_label: str = ""
    factor: float = 1.0
    log: bool = False
    bars: bool = False

    def values(self) -> dict[str, dict[str, list[float]]]:
        """For each line, at each x, the values over seeds that are numbers."""
        return {
            str(name): {
                str(x): [
                    self.factor * float(row[self.y])
                    for row in rows
                    if row.get(self.y) is not None and math.isfinite(row[self.y])
                ]
                for (x,), rows in grouped(group, self.x).items()
            }
            for (name,), group in grouped(self.rows, self.by).items()
        }


def by_kind(rows: Rows, kinds: Mapping[str, str]) -> list[Row]:
    """A row for each value that has a name here: its `kind` is the name, its `value` the value."""
    return [{**row, "kind": kind, "value": row[key]} for row in rows for key, kind in kinds.items()]


def by_place(rows: Rows, values: str, places: str | int = 0) -> list[Row]:
    """A row for each value of a list. Its `place` is in another list, or is counted from a number
    on."""
    return [
        {**row, "place": place, "value": value}
        for row in rows
        for place, value in (
            enumerate(row[values], places)
            if isinstance(places, int)
            else zip(row[places], row[values], strict=True)
        )
    ]


def slide(*panels: Chart | Picture, rows_of: int = 0) -> Picture:
    """One chart or picture, or several, two in a row; of so many rows, if more is to stand beneath.
    A picture that is too large is made smaller."""
    across, down = min(2, len(panels)), max(rows_of, math.ceil(len(panels) / 2))
    width, height = WIDTH / across, HEIGHT / down
    shapes: list[Shape] = []
    for number, panel in enumerate(panels):
        place = number % across * width, number // across * height
        if isinstance(panel, Picture):
            scale = min(1.0, width / panel.width, height / panel.height)
            found = [_scaled(shape, scale) for shape in panel.shapes]
        else:
            found = [*_shapes(panel, width, height)]
        shapes += moved(found, *place)
    return Picture(WIDTH, HEIGHT, tuple(shapes))


def cells(lines: Sequence[Sequence[tuple[str, float]]], title: str, wide: float) -> Picture:
    """Rows of texts in boxes of a width, each as dark as its share."""
    shapes: list[Shape] = [Text(12, 20, title, 13, bold=True)]
    for number, line in enumerate(lines):
        for place, (text, share) in enumerate(line):
            x, y = 12 + wide * place, 32 + 28 * number
            fill = f"#{246 - int(130 * share):02x}{248 - int(60 * share):02x}fa"
            most = int((wide - 8) / text_width("a", 11))
            text = text if text_columns(text) <= most else f"{text[: most - 1]}…"
            shapes.append(Rectangle(x, y, wide - 4, 25, fill))
            shapes.append(Text(x + wide / 2 - 2, y + 17, text, 11, "middle"))
    return Picture(24 + wide * max(map(len, lines)), 44 + 28 * len(lines), tuple(shapes))


def _scaled(shape: Shape, scale: float) -> Shape:
    sizes = {name: scale * value for name, value in vars(shape).items() if name in SIZES}
    if isinstance(shape, Line):
        sizes["points"] = tuple((scale * x, scale * y) for x, y in shape.points)
    return replace(shape, **sizes)


def _shapes(chart: Chart, width: float, height: float) -> Iterator[Shape]:
    lines = chart.values()
    names = list(dict.fromkeys(x for line in lines.values() for x in line))
    if all(name.replace(".", "").isdigit() for name in names):
        names.sort(key=float)
    ticks = _ticks([v for line in lines.values() for vs in line.values() for v in vs], chart)
    scaled = math.log10 if chart.log else float
    low, high = scaled(ticks[0]), scaled(ticks[-1])
    yield Text(12, 20, chart.title, 13, bold=True)
    at, down = 12.0, 38.0
    colours = {
        name: COLOURS.get(name, CURVE_COLOURS[i % len(CURVE_COLOURS)])
        for i, name in enumerate(lines)
    }
    for name, colour in colours.items():
        if at > 12 and at + 28 + text_width(name, 11) > width:
            at, down = 12.0, down + 16
        yield Rectangle(at, down - 8, 12, 8, colour)
        yield Text(at + 16, down, name, 11)
        at += 28 + text_width(name, 11)
    texts = [f"{tick:g}" for tick in ticks]
    left = 18 + max(text_width(text, 10) for text in texts)
    top, bottom = down + (28 if chart.y_label else 14), height - (38 if chart.x_label else 24)
    room = (width - 12 - left) / len(names)

    def to_y(value: float) -> float:
        return bottom - (scaled(max(value, ticks[0])) - low) / (high - low) * (bottom - top)

    if chart.y_label:
        yield Text(12, top - 10, chart.y_label, 10)
    for tick, text in zip(ticks, texts, strict=True):
        yield Line(left, to_y(tick), ((width - 12 - left, 0),), FAINT)
        yield Text(left - 6, to_y(tick) + 4, text, 10, "end")
    for i, name in enumerate(names):
        yield Text(left + (i + 0.5) * room, bottom + 14, name, 10, "middle")
    if chart.x_label:
        yield Text((left + width - 12) / 2, bottom + 30, chart.x_label, 11, "middle")
    for number, (name, line) in enumerate(lines.items()):
        part, points = 0.8 * room / len(lines), []
        for i, x in enumerate(names):
            if not (values := line.get(x)):
                continue
            across = left + (i + 0.5) * room
            if chart.bars:
                across += (number + 0.5 - len(lines) / 2) * part
                y = to_y(fmean(values))
                yield Rectangle(across - 0.45 * part, y, 0.9 * part, bottom - y, colours[name])
            points.append((across, to_y(fmean(values))))
            tall = to_y(max(values)) - to_y(min(values))
            yield Line(
                across, to_y(min(values)), ((0, tall),), INK if chart.bars else colours[name]
            )
        if points and not chart.bars:
            (x0, y0), *rest = points
            yield Line(x0, y0, tuple((x - x0, y - y0) for x, y in rest), colours[name], 2)


def _ticks(values: Sequence[float], chart: Chart) -> list[float]:
    """About four round numbers that enclose the values and, unless the axis is logarithmic, 0."""
    if chart.log:
        positive = [value for value in values if value > 0] or [1.0]
        first, last = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        apart = max(1, math.ceil((last - first) / 6))
        return [10.0**power for power in range(first, max(last, first + 1) + apart, apart)]
    highest = max([*values, 1e-9])
    power = 10.0 ** math.floor(math.log10(highest / 4))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each * 5 >= highest)
    return [number * step for number in range(math.ceil(highest / step - 1e-9) + 1)]
