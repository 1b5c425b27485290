"""The measurements of growth.py, each in a process of its own: training, decoding, preparing a
corpus, planning."""

import multiprocessing
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paper_layers import REFERENCES, forgotten_peak, generated_batch, high_water
from prepare import numbered_pairs

from transduct.data.batching import load, plan
from transduct.data.corpus import Corpus, Ragged, build, write_rows
from transduct.data.preparing import prepare
from transduct.data.tokenizer import Tokenizer
from transduct.decoding.filters import Filter, FixedLength
from transduct.devices import keep_freed_memory
from transduct.functional.losses import projected_cross_entropy
from transduct.inference import engine
from transduct.inference.packed import pack_layers
from transduct.inference.settings import DecodingConfig
from transduct.models.transformer import Config, Transformer
from transduct.tasks.translation import Batch, MakeBatch
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks, Terms
from transduct.training.log import ignore
from transduct.training.machine import prepare_machine
from transduct.training.step import Stepper, seed_generators

WIDTH = {"d_model": 128, "num_heads": 4, "d_ff": 512, "max_length": 2**14}  # of every model
RUNS, PATIENCE = 5, 5.0  # runs after the warm-up, or as many as fit into these seconds
# tokens of a planned example and of a batch; rows written at once
EXAMPLE, BUDGET, CHUNK = ((4, 13), 4096, 2_000)
STARTS = 9  # positions late in a plan at which a loader is started
IMPORTED = ("growth_points", "torch.utils.tensorboard")
Found = dict[str, float | None]
Run = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """A batch and the model that processes it, with `depth` layers each in encoder and decoder."""

    length: int = 32
    tokens: int = 2048
    depth: int = 2
    vocabulary: int = 8000

    @property
    def sentences(self) -> int:
        """The number of sentences, at least one."""
        return max(1, self.tokens // self.length)


def median_seconds(run: Run) -> float:
    """The median of a few runs after a warm-up; a run longer than the patience needs no warm-up."""
    times: list[float] = []
    while len(times) < RUNS + 1 and (not times or sum(times) < PATIENCE):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return statistics.median(times[1:] or times)


def cost(run: Run, count: float) -> Found:
    """The median seconds of a run, its peak memory in MiB above the current one, and the tokens or
    rows in it."""
    before = forgotten_peak() if REFERENCES.exists() else None
    seconds = median_seconds(run)
    return {
        "count": count,
        "seconds": seconds,
        "MiB": None if before is None else (high_water() - before) / 1024,
    }


def small_transformer(work: Work) -> Any:
    """A small Transformer with random weights."""
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
        total, _ = projected_cross_entropy(
            hidden, model.output_table, batch.outputs, config.label_smoothing
        )
        return {"tokens": (total, batch.counts["tokens"], 1.0)}

    batch = generated_batch(work.length, work.sentences, work.vocabulary)
    stepper = Stepper(model, config, loss, Ranks.join(torch.device("cpu")))
    return cost(
        lambda: stepper.take([batch], 1, config.learning_rate / config.warmup).loss(), batch.tokens
    )


def decoding(work: Work) -> Found:
    """Greedy decoding of one batch, with outputs as long as the sources."""
    keep_freed_memory()
    model = small_transformer(work).eval()
    pack_layers(model)
    rows = generated_batch(work.length, work.sentences, work.vocabulary).source.view(
        -1, work.length
    )
    sources, limits = rows.tolist(), [work.length] * len(rows)
    config = DecodingConfig(beam=1, batch_tokens=rows.numel())

    def constrain(some: Sequence[object]) -> Filter:
        return FixedLength(Tokenizer.END, [work.length] * len(some))

    def run() -> None:
        forbidden = (Tokenizer.UNKNOWN, Tokenizer.BEGIN)
        engine.generate(
            model, sources, limits, config, Tokenizer.BEGIN, Tokenizer.END, forbidden, constrain
        )

    return cost(run, rows.numel())


def preparation(pairs: int, repeated: int) -> Found:
    """Preparing a corpus from two text files, with an existing tokenizer."""
    sides = [generated_sentences(repeated, seed) for seed in (1, 2)]
    tokenizer = Tokenizer.train((text for side in sides for text in side), "bpe", 8000)
    with tempfile.TemporaryDirectory() as folder:
        data, corpus = numbered_pairs(sides, pairs, Path(folder)), Path(folder) / "corpus"

        def run() -> None:
            shutil.rmtree(corpus, ignore_errors=True)
            prepare(data, tokenizer, tokenizer, corpus, ignore)

        return cost(run, pairs)


def generated_sentences(count: int, seed: int) -> list[str]:
    """Random sentences with the lengths of news and a skewed distribution of words."""
    draw = random.Random(seed)
    words = [
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9)))
        for _ in range(5000)
    ]
    lengths = [min(100, max(3, round(draw.lognormvariate(3.0, 0.6)))) for _ in range(count)]
    ranks = [1 / rank for rank in range(1, len(words) + 1)]
    return [" ".join(draw.choices(words, ranks, k=length)) for length in lengths]


def planning(examples: int) -> Found:
    """Planning an epoch of a corpus, and the time to the first batch of a loader that starts late
    in it."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = build(
            Path(folder) / "corpus",
            {},
            lambda place: write_rows(place, 2, [(1.0, generated_rows(examples))]),
            ignore,
        )

        def run() -> list[Any]:
            return plan(corpus.lengths + 1, 1, 0, BUDGET, corpus.weights)

        found = cost(run, examples)
        return found | {"seconds to a batch": seconds_to_a_batch(run(), corpus)}


def generated_rows(count: int) -> Iterator[list[Ragged]]:
    """This many short examples of two columns, in chunks."""
    draw = np.random.default_rng(1)
    for start in range(0, count, CHUNK):
        lengths = draw.integers(*EXAMPLE, (2, min(CHUNK, count - start)))
        yield [(draw.integers(3, 8000, int(column.sum()), np.int32), column) for column in lengths]


def seconds_to_a_batch(order: list[Any], corpus: Corpus) -> float:
    """The median time from opening a loader in the last tenth of a plan until it gives its first
    batch."""
    none = Tokenizer.train(["w"], "word", 8)  # a placeholder; only subword dropout would use it
    make, times = MakeBatch(corpus, (none, none), EXAMPLE[1], 0.0, 1, 0), []
    for number in np.linspace(0.9 * len(order), len(order) - 1, STARTS).astype(int).tolist():
        started = time.process_time()
        next(load(order, make, number))
        times.append(time.process_time() - started)
    return statistics.median(times)


def measured(what: str, argument: Any, repeated: int) -> Found:
    """Measure one point in this process."""
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
    """Measure one point in a fresh process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(measured, what, argument, repeated).result()
