"""Scaling of cost: time and memory against everything that can grow, compared with the law each
should follow.

python benchmarks/growth.py [--what training decoding preparation plan] [--full | --miniature] --out
FOLDER

Training (a step of the trainer) and decoding (greedy, every output as long as its source) of a
small Transformer are measured against sentence length, tokens per batch, layers of encoder and
decoder, and vocabulary; preparing a corpus against its pairs, planning an epoch against its
examples. Each point is measured in a process of its own on one core. Seconds are medians of CPU
time, so that other work on the machine counts little. Memory is the rise of VmHWM over what the
process held before (model, corpus, tokenizers). Draws growth_*.svg, prints tables and, as the last
line, JSON.
"""

import argparse
import json
import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from growth_points import Found, Work, apart
from paper_tables import markdown

from transduct.data.batching import SORTED
from transduct.drawing.plots import CURVE_COLOURS, FAINT, GAP, MARGIN, save
from transduct.drawing.svg import INK, Line, Picture, Rectangle, Shape, Text, moved

MATTERS = {"seconds": 1e-3, "MiB": 8.0, "seconds to a batch": 0.0}  # smaller values are noise
FASTER = 1.5  # a cost above this multiple of its law at the largest point grows too fast
SENTENCES = 2_000  # sentences, which are repeated with numbers


@dataclass(frozen=True)
class Sizes:
    """What to measure. `usual` is the default work, of which one number at a time is changed."""

    usual: Work
    long: Work  # the default work when the length is changed
    lengths: Sequence[int]
    tokens: Sequence[int]
    depths: Sequence[int]
    vocabularies: Sequence[int]
    pairs: Sequence[int]
    examples: Sequence[int]
    repeated: int = SENTENCES


DEFAULT = Sizes(
    usual=Work(),
    long=Work(tokens=8192),
    lengths=[2**power for power in range(4, 14)],
    tokens=[2**power for power in range(8, 15)],
    depths=[1, 2, 4, 8, 16],
    vocabularies=[1000 * 2**power for power in range(8)],
    pairs=[10**power for power in range(3, 7)],
    examples=[10**power for power in range(4, 8)],
)
FULL = replace(DEFAULT, pairs=[*DEFAULT.pairs, 10**7], examples=[*DEFAULT.examples, 10**8])
MINIATURE = Sizes(
    usual=Work(16, 128, 1, 100),
    long=Work(16, 128, 1, 100),
    lengths=[8, 16, 32],
    tokens=[128, 256, 512],
    depths=[1, 2, 4],
    vocabularies=[100, 200, 400],
    pairs=[50, 100, 200],
    examples=[1000, 2000, 4000],
    repeated=50,
)

# The laws


SHAPES: dict[str, Callable[[float], float]] = {
    "a": lambda x: 0.0,  # noqa: ARG005
    "a + c log x": math.log2,
    "a + c x": lambda x: x,
    "a + c x²": lambda x: x * x,
    # at most a window is sorted at once
    "a + c x log x": lambda x: x * math.log2(max(2.0, min(x, SORTED))),
}


@dataclass(frozen=True)
class Law:
    """How a cost should grow: a fixed part plus a part that grows in one of the known shapes."""

    shape: str
    fixed: float
    rate: float

    def __call__(self, x: float) -> float:
        return self.fixed + self.rate * SHAPES[self.shape](x)


def law_through(shape: str, xs: Sequence[float], ys: Sequence[float], least: float) -> Law:
    """The law through the first point above noise and the first later one that is twice as high.

    Larger points are predicted, not fitted. Neither part of a law is negative.
    """
    start = next((i for i, y in enumerate(ys) if y >= least), len(ys) - 1)
    x, y = xs[start], ys[start]
    further = next((i for i in range(start, len(ys)) if ys[i] >= 2 * y), len(ys) - 1)
    rise = SHAPES[shape](xs[further]) - SHAPES[shape](x)
    if rise == 0.0 or ys[further] <= y:
        return Law(shape, y, 0.0)
    rate = (ys[further] - y) / rise
    fixed = y - rate * SHAPES[shape](x)
    return (
        Law(shape, fixed, rate)
        if fixed >= 0.0
        else Law(shape, 0.0, ys[further] / SHAPES[shape](xs[further]))
    )


@dataclass(frozen=True)
class Row:
    """One quantity of one kind of work against one variable."""

    what: str
    grows: str
    quantity: str
    each: str
    xs: Sequence[int]
    ys: Sequence[float]
    counts: Sequence[float]
    law: Law

    @property
    def over(self) -> list[float]:
        """Each point as a multiple of the law's prediction."""
        return [
            y / self.law(x) if self.law(x) > 0.0 else math.nan
            for x, y in zip(self.xs, self.ys, strict=True)
        ]

    @property
    def exponent(self) -> float:
        """The exponent of x between the last two points."""
        (x, y), (last_x, last_y) = list(zip(self.xs, self.ys, strict=True))[-2:]
        return math.log(last_y / y) / math.log(last_x / x) if min(y, last_y) > 0.0 else math.nan

    @property
    def faster(self) -> bool:
        """Whether the quantity grows faster than its law."""
        return self.over[-1] > FASTER and self.ys[-1] >= MATTERS[self.quantity]


@dataclass(frozen=True)
class Axis:
    """A variable: the arguments of a point for each of its values, its unit, and the laws of the
    quantities."""

    grows: str
    each: str
    points: dict[int, Any]
    laws: dict[str, str]


def axes(what: str, sizes: Sizes) -> list[Axis]:
    """All variables of one kind of work.

    Batches have the same number of tokens at all lengths, so a cost quadratic in the length of a
    sentence grows linearly, and a linear one, as all memory should be, stays constant.
    """
    linear = {"seconds": "a + c x", "MiB": "a + c x"}
    if what == "preparation":
        return [Axis("pairs", "pair", {count: count for count in sizes.pairs}, linear)]
    if what == "plan":
        # rows are found by binary search
        laws = {"seconds": "a + c x log x", "MiB": "a + c x", "seconds to a batch": "a + c log x"}
        return [Axis("examples", "example", {count: count for count in sizes.examples}, laws)]
    usual, of_lengths = sizes.usual, linear | {"MiB": "a"}
    return [
        Axis(
            "length of a sentence",
            "token",
            {n: replace(sizes.long, length=n) for n in sizes.lengths},
            of_lengths,
        ),
        Axis(
            "tokens of a batch",
            "token",
            {n: replace(usual, tokens=n) for n in sizes.tokens},
            linear,
        ),
        Axis(
            "layers of each half",
            "token",
            {n: replace(usual, depth=n) for n in sizes.depths},
            linear,
        ),
        Axis(
            "vocabulary",
            "token",
            {n: replace(usual, vocabulary=n) for n in sizes.vocabularies},
            linear,
        ),
    ]


def rows_of(what: str, sizes: Sizes) -> Iterator[Row]:
    """Every quantity against every variable; a point on two axes is measured once."""
    known: dict[Any, Found] = {}
    for axis in axes(what, sizes):
        for x, argument in axis.points.items():
            if argument not in known:
                known[argument] = apart(what, argument, sizes.repeated)
                print(f"{what}, {axis.grows} {x:,}: {known[argument]}", file=sys.stderr)
        found, xs = [known[argument] for argument in axis.points.values()], list(axis.points)
        for quantity, shape in axis.laws.items():
            ys = [y for each in found if (y := each[quantity]) is not None]
            if len(ys) == len(xs):  # memory is known only on Linux
                law = law_through(shape, xs, ys, MATTERS[quantity])
                yield Row(
                    what,
                    axis.grows,
                    quantity,
                    axis.each,
                    xs,
                    ys,
                    [each["count"] or 1 for each in found],
                    law,
                )


# What is shown


def tables(rows: Sequence[Row]) -> str:
    """A table for each variable: the quantities, and how well each follows its law."""
    parts = []
    for what, grows in dict.fromkeys((row.what, row.grows) for row in rows):
        chosen = [row for row in rows if (row.what, row.grows) == (what, grows)]
        header, columns = [grows], [list(chosen[0].xs)]
        for row in chosen:
            header.append(row.quantity)
            columns.append(list(row.ys))
            if row.quantity == "seconds":
                header.append(f"µs per {row.each}")
                columns.append(
                    [1e6 * y / count for y, count in zip(row.ys, row.counts, strict=True)]
                )
            header.append(f"times {row.law.shape}")
            columns.append([f"{over:.2f}" for over in row.over])
        last = (
            f"{row.quantity} as x^{row.exponent:.2f}{' (faster)' if row.faster else ''}"
            for row in chosen
        )
        said = f"{what}; over the last two points {', '.join(last)}.\n"
        parts += [said, markdown(header, list(zip(*columns, strict=True)))]
    return "\n".join(parts)


def picture(rows: Sequence[Row]) -> Picture:
    """A row of panels for each variable."""
    shapes: list[Shape] = [
        Text(MARGIN, MARGIN + 13, f"Growth: {rows[0].what} (dashed: the law)", 15, bold=True)
    ]
    right, top = 0.0, MARGIN + 32
    for grows in dict.fromkeys(row.grows for row in rows):
        panels = [panel(row) for row in rows if row.grows == grows]
        left = MARGIN
        for part in panels:
            shapes += moved(part.shapes, left, top)
            left += part.width + GAP
        right, top = max(right, left), top + panels[0].height + GAP
    return Picture(right - GAP + MARGIN, top - GAP + MARGIN, tuple(shapes))


def panel(row: Row) -> Picture:
    """A log-log plot of a quantity and its law."""
    left, top, width, height = 60.0, 22.0, 280.0, 170.0
    held = [(float(x), y) for x, y in zip(row.xs, row.ys, strict=True) if y > 0.0]
    foretold = [
        (x, row.law(x))
        for x in np.geomspace(row.xs[0], row.xs[-1], 40).tolist()
        if row.law(x) > 0.0
    ]
    heights = [y for _, y in (*held, *foretold)] or [1.0]
    ticks = log_ticks(min(heights), max(heights))

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / row.xs[0]) / math.log(row.xs[-1] / row.xs[0])
        return left + across * width, top + height * (
            1 - math.log(y / ticks[0]) / math.log(ticks[-1] / ticks[0])
        )

    shapes: list[Shape] = [Text(left, 10, f"{row.quantity}, {row.law.shape}", 12, bold=True)]
    for tick in ticks:
        _, y = place(row.xs[0], tick)
        shapes += [
            Line(left, y, ((width, 0),), FAINT),
            Text(left - 8, y + 4, short(tick), 11, "end"),
        ]
    for number in row.xs[:: math.ceil(len(row.xs) / 5)]:
        x, bottom = place(number, ticks[0])
        shapes += [Line(x, bottom, ((0, 5),)), Text(x, bottom + 18, short(number), 11, "middle")]
    shapes.append(Text(left + width / 2, top + height + 36, row.grows, 12, "middle"))
    dashes = list(pairwise([place(*point) for point in foretold]))[::2]
    shapes += [
        Line(*start, ((end[0] - start[0], end[1] - start[1]),), INK) for start, end in dashes
    ]
    points = [place(*point) for point in held]
    for (x, y), (next_x, next_y) in pairwise(points):
        shapes.append(Line(x, y, ((next_x - x, next_y - y),), CURVE_COLOURS[0], 2))
    hints = (f"{number:,.10g}: {value:.4g}" for number, value in held)
    shapes += [
        Rectangle(x - 3, y - 3, 6, 6, CURVE_COLOURS[0], hint)
        for (x, y), hint in zip(points, hints, strict=True)
    ]
    return Picture(left + width + 20, top + height + 42, tuple(shapes))


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose two others, few enough to be readable."""
    ticks: list[float] = []
    for factors in ((1, 2, 5), (1,)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
        marks = [factor * 10.0**power for power in powers for factor in factors]
        first = bisect_right(marks, low) - 1
        ticks = marks[max(0, first) : max(bisect_left(marks, high), first + 1) + 1]
        if len(ticks) <= 7:
            break
    return ticks


def short(number: float) -> str:
    """A number in short form for an axis: 20M for twenty million."""
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number:,.10g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ["training", "decoding", "preparation", "plan"]
    parser.add_argument("--what", choices=kinds, nargs="+", default=kinds)
    parser.add_argument(
        "--full",
        action="store_true",
        help="to 10^7 pairs and 10^8 examples: 10 GB of disk, 6 of memory",
    )
    parser.add_argument(
        "--miniature",
        action="store_true",
        help="everything so small that it says nothing, in seconds",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    sizes = MINIATURE if arguments.miniature else FULL if arguments.full else DEFAULT
    everything = []
    for what in arguments.what:
        rows = list(rows_of(what, sizes))
        save(picture(rows), arguments.out / f"growth_{what}.svg")
        print(tables(rows))
        everything += [
            {**asdict(row), "over": row.over, "exponent": row.exponent, "faster": row.faster}
            for row in rows
        ]
    print(json.dumps(everything))


if __name__ == "__main__":
    main()
