"""How cost grows: time and memory against everything that can grow, beside the law that each should follow.

python benchmarks/growth.py [--what training decoding preparation plan] [--full | --miniature] [--out FOLDER]

Training (a step of the trainer) and decoding (greedy, every output as long as its source) of a small Transformer grow
with the length of a sentence, the tokens of a batch, the layers of each half and the vocabulary; preparing a corpus
with its pairs, planning an epoch with its examples. Each point is measured by a process of its own on one core: seconds
are the median of the processor's, so that other work counts little, and memory is how far VmHWM rises over what the
process held before, its model, corpus and tokenizers. Draws growth_*.svg, prints tables and, as the last line, JSON.
"""

import argparse
import ctypes
import gc
import json
import math
import multiprocessing
import random
import shutil
import statistics
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paper_layers import REFERENCES, STATUS, generated_batch
from paper_tables import markdown
from prepare import numbered_pairs

from transduct.blocks.packed import pack_layers
from transduct.data.batching import WINDOW, load, plan
from transduct.data.corpus import Corpus, Ragged, build, prepare, write_rows
from transduct.data.tokenizer import Tokenizer
from transduct.decoding import engine
from transduct.decoding.engine import DecodingConfig
from transduct.decoding.search import Filter, FixedLength
from transduct.functional.losses import projected_cross_entropy
from transduct.interfaces.drawing import INK, Line, Picture, Rectangle, Shape, Text, moved
from transduct.interfaces.pictures import CURVE_COLOURS, FAINT, GAP, MARGIN, save
from transduct.models.transformer import Config, Transformer
from transduct.tasks.translation import Batch, MakeBatch
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks
from transduct.training.log import ignore
from transduct.training.machine import keep_freed_memory, prepare_machine, seed_generators
from transduct.training.step import Stepper, Terms

WIDTH = {"d_model": 128, "num_heads": 4, "d_ff": 512, "max_length": 2**14}  # of every model
RUNS, PATIENCE = 5, 5.0  # as many runs after one that warms up, or as fit into so many seconds
MATTERS = {"seconds": 1e-3, "MiB": 8.0, "seconds to a batch": 0.0}  # less than that is noise
FASTER = 1.5  # times the law at the largest point: more than a law's constant can hide
SENTENCES = 2_000  # that are repeated with numbers
EXAMPLE, BUDGET, CHUNK = (4, 13), 4096, 2_000  # tokens of an example that is planned; of a batch; rows written at once
STARTS = 9  # batches far into a plan that are waited for
IMPORTED = ("paper_layers", "transduct.tasks.translation", "transduct.training.step", "torch.utils.tensorboard")
Found = dict[str, float | None]
Run = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """A batch, and the model it goes through: `depth` layers in each of its halves."""

    length: int = 32
    tokens: int = 2048
    depth: int = 2
    vocabulary: int = 8000

    @property
    def sentences(self) -> int:
        """One at least."""
        return max(1, self.tokens // self.length)


@dataclass(frozen=True)
class Sizes:
    """What is measured: `usual` is the work of which one number at a time is changed."""

    usual: Work
    long: Work  # the same for all lengths
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
    "a + c x log x": lambda x: x * math.log2(max(2.0, min(x, WINDOW))),  # what is sorted is never more than a window
}


@dataclass(frozen=True)
class Law:
    """How cost should grow: a fixed part and one that grows in one of the known shapes."""

    shape: str
    fixed: float
    rate: float

    def __call__(self, x: float) -> float:
        return self.fixed + self.rate * SHAPES[self.shape](x)


def law_through(shape: str, xs: Sequence[float], ys: Sequence[float], least: float) -> Law:
    """The law through the first point that is not noise, and the first after it that is twice as high.

    What is larger is foretold and not fitted. Neither part of a law is below zero.
    """
    start = next((i for i, y in enumerate(ys) if y >= least), len(ys) - 1)
    x, y = xs[start], ys[start]
    further = next((i for i in range(start, len(ys)) if ys[i] >= 2 * y), len(ys) - 1)
    rise = SHAPES[shape](xs[further]) - SHAPES[shape](x)
    if rise == 0.0 or ys[further] <= y:
        return Law(shape, y, 0.0)
    rate = (ys[further] - y) / rise
    fixed = y - rate * SHAPES[shape](x)
    return Law(shape, fixed, rate) if fixed >= 0.0 else Law(shape, 0.0, ys[further] / SHAPES[shape](xs[further]))


@dataclass(frozen=True)
class Row:
    """One quantity of one work against one thing that grows."""

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
        """Each point as a multiple of what the law says."""
        return [y / self.law(x) if self.law(x) > 0.0 else math.nan for x, y in zip(self.xs, self.ys, strict=True)]

    @property
    def exponent(self) -> float:
        """The power of x that the quantity follows over the last two points."""
        (x, y), (last_x, last_y) = list(zip(self.xs, self.ys, strict=True))[-2:]
        return math.log(last_y / y) / math.log(last_x / x) if min(y, last_y) > 0.0 else math.nan

    @property
    def faster(self) -> bool:
        """Whether it grows faster than its law."""
        return self.over[-1] > FASTER and self.ys[-1] >= MATTERS[self.quantity]


# What is measured, each in a process of its own


def median_seconds(run: Run, patience: float = PATIENCE) -> float:
    """The median of a few runs after one that warms up; a run longer than the patience is its own warming up."""
    times: list[float] = []
    while len(times) < RUNS + 1 and (not times or sum(times) < patience):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return statistics.median(times[1:] or times)


def high_water() -> int | None:
    """The most KiB this process has held, by Linux's own count; None elsewhere."""
    return int(STATUS.read_text().split("VmHWM:")[1].split()[0]) if STATUS.exists() else None


def cost(run: Run, count: float) -> Found:
    """Median seconds of a run, MiB that runs hold at most beyond what the process holds now, and what is in a run."""
    gc.collect()
    if REFERENCES.exists():
        ctypes.CDLL(None).malloc_trim(0)
        REFERENCES.write_text("5")  # forget the highest count so far
    before = high_water()
    seconds = median_seconds(run)
    after = high_water()
    memory = None if before is None or after is None else (after - before) / 1024
    return {"count": count, "seconds": seconds, "MiB": memory}


def small_transformer(work: Work) -> Any:
    """A model whose weights are drawn."""
    seed_generators(1)
    layers = {"encoder_layers": work.depth, "decoder_layers": work.depth}
    return Transformer(Config(work.vocabulary, work.vocabulary, **layers, **WIDTH))


def training(work: Work) -> Found:
    """The trainer's step on one batch."""
    prepare_machine()
    model = small_transformer(work).train()
    config = TrainingConfig(batch_tokens=work.tokens, device="cpu")

    def loss(model: Any, batch: Batch) -> Terms:
        memory = model.encode(batch.source, batch.source_segments)
        hidden = model.decode(batch.inputs, batch.target_segments, memory, batch.source_segments)
        total, _ = projected_cross_entropy(hidden, model.output_table, batch.outputs, config.label_smoothing)
        return {"tokens": (total, batch.counts["tokens"], 1.0)}

    batch = generated_batch(work.length, work.sentences, work.vocabulary)
    stepper = Stepper(model, config, loss, Ranks.join(torch.device("cpu")))
    return cost(lambda: stepper.take([batch], 1, config.learning_rate / config.warmup), batch.tokens)


def decoding(work: Work) -> Found:
    """One batch of sentences to outputs of their length."""
    keep_freed_memory()
    model = small_transformer(work).eval()
    pack_layers(model)
    rows = generated_batch(work.length, work.sentences, work.vocabulary).source.view(-1, work.length)
    sources, limits = rows.tolist(), [work.length] * len(rows)
    config = DecodingConfig(beam=1, batch_tokens=rows.numel())

    def constrain(numbers: Sequence[int]) -> Filter:
        return FixedLength(Tokenizer.END, [work.length] * len(numbers))

    def run() -> None:
        forbidden = (Tokenizer.UNKNOWN, Tokenizer.BEGIN)
        engine.generate(model, sources, limits, config, Tokenizer.BEGIN, Tokenizer.END, forbidden, constrain)

    return cost(run, rows.numel())


def preparation(pairs: int, repeated: int) -> Found:
    """Two files of text to a corpus; the tokenizer is there already."""
    sides = [generated_sentences(repeated, seed) for seed in (1, 2)]
    tokenizer = Tokenizer.train((text for side in sides for text in side), "bpe", 8000)
    with tempfile.TemporaryDirectory() as folder:
        data, corpus = numbered_pairs(sides, pairs, Path(folder)), Path(folder) / "corpus"

        def run() -> None:
            shutil.rmtree(corpus, ignore_errors=True)
            prepare(data, tokenizer, tokenizer, corpus, ignore)

        return cost(run, pairs)


def generated_sentences(count: int, seed: int) -> list[str]:
    """Sentences as long as those of news, of drawn words of which few are frequent."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    lengths = [min(100, max(3, round(draw.lognormvariate(3.0, 0.6)))) for _ in range(count)]
    ranks = [1 / rank for rank in range(1, len(words) + 1)]
    return [" ".join(draw.choices(words, ranks, k=length)) for length in lengths]


def planning(examples: int) -> Found:
    """The plan of an epoch of a corpus, and what the loader needs for the first batch when it starts far into it."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = build(
            Path(folder) / "corpus", {}, lambda place: write_rows(place, 2, [(1.0, generated_rows(examples))]), ignore
        )

        def run() -> list[Any]:
            return plan(corpus.lengths + 1, 1, 0, BUDGET, corpus.weights)

        found = cost(run, examples)
        return found | {"seconds to a batch": seconds_to_a_batch(run(), corpus)}


def generated_rows(count: int) -> Iterator[list[Ragged]]:
    """So many short examples of two columns, in chunks."""
    draw = np.random.default_rng(1)
    for start in range(0, count, CHUNK):
        lengths = draw.integers(*EXAMPLE, (2, min(CHUNK, count - start)))
        yield [(draw.integers(3, 8000, int(column.sum()), np.int32), column) for column in lengths]


def seconds_to_a_batch(order: list[Any], corpus: Corpus) -> float:
    """The median time from opening a loader in the last tenth of a plan until it gives its first batch."""
    none = Tokenizer.train(["w"], "word", 8)  # only dropout would ask it
    make, times = MakeBatch(corpus, (none, none), EXAMPLE[1], 0.0, 1, 0), []
    for number in np.linspace(0.9 * len(order), len(order) - 1, STARTS).astype(int).tolist():
        started = time.process_time()
        next(load(order, make, number))
        times.append(time.process_time() - started)
    return statistics.median(times)


def measured(what: str, argument: Any, repeated: int) -> Found:
    """One point, in this process."""
    torch.set_num_threads(1)
    match what:
        case "training":
            return training(argument)
        case "decoding":
            return decoding(argument)
        case "preparation":
            return preparation(argument, repeated)
        case _:
            return planning(argument)


def apart(what: str, argument: Any, repeated: int) -> Found:
    """One point, in a process that has done nothing before but to import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(measured, what, argument, repeated).result()


@dataclass(frozen=True)
class Axis:
    """What grows: a point's argument for each of its values, what there are so many of, and the laws."""

    grows: str
    each: str
    points: dict[int, Any]
    laws: dict[str, str]


def axes(what: str, sizes: Sizes) -> list[Axis]:
    """All that grows for one kind of work.

    The tokens of a batch are the same for all lengths: what grows with a sentence's square then grows with its length,
    and what grows with its length, as all memory should, stays.
    """
    linear = {"seconds": "a + c x", "MiB": "a + c x"}
    if what == "preparation":
        return [Axis("pairs", "pair", {count: count for count in sizes.pairs}, linear)]
    if what == "plan":
        laws = {
            "seconds": "a + c x log x",
            "MiB": "a + c x",
            "seconds to a batch": "a + c log x",
        }  # rows are found by binary search
        return [Axis("examples", "example", {count: count for count in sizes.examples}, laws)]
    usual, of_lengths = sizes.usual, linear | {"MiB": "a"}
    return [
        Axis("length of a sentence", "token", {n: replace(sizes.long, length=n) for n in sizes.lengths}, of_lengths),
        Axis("tokens of a batch", "token", {n: replace(usual, tokens=n) for n in sizes.tokens}, linear),
        Axis("layers of each half", "token", {n: replace(usual, depth=n) for n in sizes.depths}, linear),
        Axis("vocabulary", "token", {n: replace(usual, vocabulary=n) for n in sizes.vocabularies}, linear),
    ]


def rows_of(what: str, sizes: Sizes) -> Iterator[Row]:
    """Every quantity against all it grows with; a point that lies on two axes is measured once."""
    known: dict[Any, Found] = {}
    for axis in axes(what, sizes):
        for x, argument in axis.points.items():
            if argument not in known:
                known[argument] = apart(what, argument, sizes.repeated)
                print(f"{what}, {axis.grows} {x:,}: {known[argument]}", file=sys.stderr)
        found, xs = [known[argument] for argument in axis.points.values()], list(axis.points)
        for quantity, shape in axis.laws.items():
            ys = [y for each in found if (y := each[quantity]) is not None]
            if len(ys) == len(xs):  # no memory is known elsewhere than on Linux
                law = law_through(shape, xs, ys, MATTERS[quantity])
                yield Row(what, axis.grows, quantity, axis.each, xs, ys, [each["count"] or 1 for each in found], law)


# What is shown


def tables(rows: Sequence[Row]) -> str:
    """A table for each thing that grows: the quantities, and in how far each follows its law."""
    parts = []
    for what, grows in dict.fromkeys((row.what, row.grows) for row in rows):
        chosen = [row for row in rows if (row.what, row.grows) == (what, grows)]
        header, columns = [grows], [list(chosen[0].xs)]
        for row in chosen:
            header.append(row.quantity)
            columns.append(list(row.ys))
            if row.quantity == "seconds":
                header.append(f"µs per {row.each}")
                columns.append([1e6 * y / count for y, count in zip(row.ys, row.counts, strict=True)])
            header.append(f"times {row.law.shape}")
            columns.append([f"{over:.2f}" for over in row.over])
        last = (f"{row.quantity} as x^{row.exponent:.2f}{' (faster)' if row.faster else ''}" for row in chosen)
        said = f"{what}; over the last two points {', '.join(last)}.\n"
        parts += [said, markdown(header, list(zip(*columns, strict=True)))]
    return "\n".join(parts)


def picture(rows: Sequence[Row]) -> Picture:
    """A line of panels for each thing that grows."""
    shapes: list[Shape] = [Text(MARGIN, MARGIN + 13, f"Growth: {rows[0].what} (dashed: the law)", 15, bold=True)]
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
    """A quantity against what it grows with, both as logarithms, and its law."""
    left, top, width, height = 60.0, 22.0, 280.0, 170.0
    held = [(float(x), y) for x, y in zip(row.xs, row.ys, strict=True) if y > 0.0]
    foretold = [(x, row.law(x)) for x in np.geomspace(row.xs[0], row.xs[-1], 40).tolist() if row.law(x) > 0.0]
    heights = [y for _, y in (*held, *foretold)] or [1.0]
    ticks = log_ticks(min(heights), max(heights))

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / row.xs[0]) / math.log(row.xs[-1] / row.xs[0])
        return left + across * width, top + height * (1 - math.log(y / ticks[0]) / math.log(ticks[-1] / ticks[0]))

    shapes: list[Shape] = [Text(left, 10, f"{row.quantity}, {row.law.shape}", 12, bold=True)]
    for tick in ticks:
        _, y = place(row.xs[0], tick)
        shapes += [Line(left, y, ((width, 0),), FAINT), Text(left - 8, y + 4, short(tick), 11, "end")]
    for number in row.xs[:: math.ceil(len(row.xs) / 5)]:
        x, bottom = place(number, ticks[0])
        shapes += [Line(x, bottom, ((0, 5),)), Text(x, bottom + 18, short(number), 11, "middle")]
    shapes.append(Text(left + width / 2, top + height + 36, row.grows, 12, "middle"))
    dashes = list(pairwise([place(*point) for point in foretold]))[::2]
    shapes += [Line(*start, ((end[0] - start[0], end[1] - start[1]),), INK) for start, end in dashes]
    points = [place(*point) for point in held]
    for (x, y), (next_x, next_y) in pairwise(points):
        shapes.append(Line(x, y, ((next_x - x, next_y - y),), CURVE_COLOURS[0], 2))
    hints = (f"{number:,.10g}: {value:.4g}" for number, value in held)
    shapes += [
        Rectangle(x - 3, y - 3, 6, 6, CURVE_COLOURS[0], hint) for (x, y), hint in zip(points, hints, strict=True)
    ]
    return Picture(left + width + 20, top + height + 42, tuple(shapes))


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose two others, as few as can be read."""
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
    """A number as an axis has room for it: 20M for twenty million."""
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number:,.10g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ["training", "decoding", "preparation", "plan"]
    parser.add_argument("--what", choices=kinds, nargs="+", default=kinds)
    parser.add_argument(
        "--full", action="store_true", help="to 10^7 pairs and 10^8 examples: 10 GB of disk, 6 of memory"
    )
    parser.add_argument("--miniature", action="store_true", help="everything so small that it says nothing, in seconds")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder for the pictures")
    arguments = parser.parse_args()
    sizes = MINIATURE if arguments.miniature else FULL if arguments.full else DEFAULT
    everything = []
    for what in arguments.what:
        rows = list(rows_of(what, sizes))
        save(picture(rows), arguments.out / f"growth_{what}.svg")
        print(tables(rows))
        everything += [
            {**asdict(row), "over": row.over, "exponent": row.exponent, "faster": row.faster} for row in rows
        ]
    print(json.dumps(everything))


if __name__ == "__main__":
    main()
