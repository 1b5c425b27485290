"""What many ranks cost: measured where one machine can, computed where it cannot.

python benchmarks/scale.py --simulate 10000000000 --ranks 512 --json
python benchmarks/scale.py --costs --tokens-per-second 400000 --euros 2.5
python benchmarks/scale.py --measure ranks restart bulk filters --source train.en --target train.de

`--simulate` runs the real plan over lengths that a function makes: a window is planned as a rank
does at its start, and its batches are shared out to ranks whose number changes twice. `--costs` is
arithmetic from the speed of one GPU; no cluster was measured. `--measure` prints CPU seconds of two
ways that took turns, and their ratio; or bounds that were asked for, and what was found:

ranks     a step of two ranks, and of one with twice `accumulate`: what is more is communication;
          and a step whose gradients are summed in buckets, and in one message after the pass
restart   seconds from the kill of a rank to the next step, at most 30
bulk      `translate --workers 2`, and two plain processes with half of the lines each
filters   a million pairs with every filter but the models', at most 180 seconds
prepare   ten million generated pairs by two workers, and by one: the CPU seconds of the first
          process and half of those of its workers; the memory of one is at most 1 GiB, and its CPU
          seconds are ten times those of a million
"""

import argparse
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, cycle, islice
from multiprocessing import forkserver
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from transduct.bulk.engines import chosen
from transduct.config import Recipe
from transduct.data.batching import _examples, load, plan, windows
from transduct.data.lines import read_lines
from transduct.data.preparing import prepare
from transduct.data.sources import DataConfig, TextSource
from transduct.data.tokenizer import Tokenizer
from transduct.segments import Filler

BUDGET, SEED = 4096, 1
GPUS = (1, 8, 64, 512)
TOKENS, BYTES = 30, 88  # of a pair, on its longer side and on disk
NVLINK, NETWORK = 450e9, 25e9 / 8  # bytes a second within a machine, and between machines
OF_A_MACHINE = 8


class Lengths:
    """The lengths of `count` pairs, a function of their numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, order: np.ndarray) -> np.ndarray:
        mixed = order.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
        return np.stack([5 + mixed % 60, 5 + mixed // 64 % 60], 1).astype(np.int64)


@dataclass(frozen=True)
class Simulated:
    """What a start costs a rank, and whether each example of some windows came once."""

    examples: int
    ranks: int
    windows: int
    seconds_to_start: float
    mb_a_rank: float
    seen_once: bool


def simulate(examples: int, ranks: int, samples: int = 2) -> Simulated:
    """Plan windows of an epoch, and share one out to numbers of ranks that change."""
    of, lengths, before = windows(examples), Lengths(examples), _peak()
    begun = time.perf_counter()
    batches = plan(lengths, SEED, 0, BUDGET, window=(0, of))
    seconds, memory = time.perf_counter() - begun, _peak() - before
    once = _same(np.concatenate([*_shared_out(batches, ranks)]), np.concatenate(batches))
    sampled = sorted({of * number // samples for number in range(samples)})
    found = [_examples(examples, SEED, 0, (number, of)) for number in sampled]
    every = np.concatenate(found)
    once &= len(np.unique(every)) == len(every)
    # All windows together have every example if their sizes add up and no two share one.
    if of == 1:
        once &= len(every) == examples
    return Simulated(examples, ranks, of, round(seconds, 2), round(memory / 2**20, 1), bool(once))


def _shared_out(batches: list[np.ndarray], ranks: int) -> Iterator[np.ndarray]:
    """The batches in the order of ranks that are all there, then half of them, then the rest."""
    start = 0
    for world, steps in ((ranks, 3), (max(ranks // 2, 1), 2), (max(ranks - 1, 1), None)):
        turns = -(-ranks // world)
        for rank in range(world):
            own = load(batches, _itself, start, rank, world, 0, ranks)
            for batch in islice(own, None if steps is None else steps * turns):
                if not isinstance(batch, Filler):
                    yield np.asarray(batch)
        start += ranks * (steps or 0)


def _itself(indices: np.ndarray) -> np.ndarray:
    return indices


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(np.sort(one), np.sort(other))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True)
class Cost:
    """An epoch on paper.

    Attributes:
        sent_ms: time in which the gradients of a step travel, within a machine or between machines.
        efficiency: of a GPU, if no sending is hidden behind the backward pass.
    """

    pairs: int
    gpus: int
    hours: float
    euros: float
    sent_ms: float
    efficiency: float
    corpus_gb: float


def costs(speed: float, parameters: float, step: float, euros: float) -> list[Cost]:
    """What an epoch of many pairs costs.

    Args:
        speed: tokens a second of one GPU.
        step: seconds of a step of one GPU.
        euros: of a GPU and an hour.
    """
    found = []
    for pairs in (10**7, 10**9, 10**10):
        for gpus in GPUS:
            link = NVLINK if gpus <= OF_A_MACHINE else NETWORK
            sent = 2 * 4 * parameters * (gpus - 1) / gpus / link  # a ring: there and back
            efficiency = step / (step + sent)
            hours = pairs * TOKENS / (speed * gpus * efficiency) / 3600
            price = hours * gpus * euros
            storage = pairs * BYTES / 1e9
            found.append(Cost(pairs, gpus, hours, price, 1e3 * sent, efficiency, storage))
    return found


@dataclass(frozen=True)
class Measured:
    """What was measured, and what it is compared with: CPU seconds of another way, or a bound."""

    name: str
    ours: float
    peer: float

    @property
    def ratio(self) -> float:
        """How many times faster ours is, or how much room the bound leaves."""
        return self.peer / self.ours


MEASURED = ("ranks", "restart", "bulk", "filters", "prepare")
SUBREAPER = 36  # of Linux's prctl
STEPS, TURNS = 6, 3  # of a run, and of two ways that are compared
THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-c", "from transduct.interfaces.cli import main; main()"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
TORCHRUN += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]


def recipe(accumulate: int = 1, steps: int = STEPS) -> Recipe:
    """A model of 7.4 million parameters over generated text."""
    shape = {"d_model": 256, "num_heads": 4, "d_ff": 1024, "dropout": 0.1}
    return Recipe(
        "translation",
        {"train": [{"generate": "reverse", "count": 2000}], "workers": 0},
        {"kind": "word", "size": 60},
        {**shape, "encoder_layers": 4, "decoder_layers": 4},
        {
            "batch_tokens": 1024, "accumulate": accumulate, "steps": steps, "warmup": 2,
            "log_every": 1, "validate_every": 0, "checkpoint_every": 4, "average": 1,
        },
    )  # fmt: skip


def rank(out: Path, accumulate: int, message: bool, steps: int) -> None:
    """Train as one rank; the first writes the CPU seconds of a step after the first ones.

    Args:
        message: whether gradients are summed in one message after the pass.
    """
    from transduct.runs.train import train
    from transduct.training import distributed, step

    if message:
        step.combined = lambda model, loss, ranks, *_: distributed.Combined(model, loss, ranks)
    marks: list[float] = []

    def mark(event: Any) -> None:
        if "loss" in event:
            marks.append(time.process_time())

    train(recipe(accumulate, steps), out / "run", notify=str, report=mark)
    if marks:
        (out / "seconds").write_text(str((marks[-1] - marks[1]) / (len(marks) - 2)))


def step_seconds(world: int, accumulate: int, message: bool = False) -> float:
    """CPU seconds of a step, of all ranks together."""
    with TemporaryDirectory() as folder:
        words = [__file__, "--rank", folder, str(accumulate), str(int(message)), str(STEPS)]
        launcher = [sys.executable] if world == 1 else TORCHRUN
        subprocess.run([*launcher, *words], env=THREAD, check=True, stderr=subprocess.PIPE)
        return world * float(Path(folder, "seconds").read_text())


def measure_ranks() -> Iterator[Measured]:
    """Two ranks, and one that does the work of both; buckets, and one message."""
    ways = [(2, 1, False), (1, 2, False), (2, 1, True)]
    ours, alone, message = _in_turns([lambda way=way: step_seconds(*way) for way in ways])
    yield Measured("two ranks by one with twice accumulate", ours, alone)
    yield Measured("buckets by one message", ours, message)


def measure_restart() -> Iterator[Measured]:
    """Seconds from the kill of a rank to the next step that is logged."""
    with TemporaryDirectory() as folder:
        words = [__file__, "--rank", folder, "1", "0", "60"]
        agent = subprocess.Popen(
            [*TORCHRUN, "--max-restarts", "1", *words], env=THREAD, stderr=subprocess.DEVNULL
        )
        log = Path(folder, "run", "log.jsonl")
        _until(lambda: _steps(log) >= 6)
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        killed, changed = time.monotonic(), log.stat().st_mtime_ns
        _until(lambda: log.stat().st_mtime_ns > changed and _steps(log) >= 5)
        found = time.monotonic() - killed
        agent.terminate()
        agent.wait()
    yield Measured("seconds from the kill of a rank to the next step", found, 30.0)


def _steps(log: Path) -> int:
    return log.read_text().count('"loss"') if log.exists() else 0


def _until(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.05)


def measure_bulk() -> Iterator[Measured]:
    """Lines of text translated by two workers, and by two plain processes."""
    from transduct_bench.ours import untrained

    with TemporaryDirectory() as name:
        folder, model = Path(name), str(Path(name, "model"))
        untrained(folder / "model", "tiny", 2000)
        words = [f"w{i * i % 1990}" for i in range(20_000 * 8)]
        lines = [
            " ".join(words[at : at + 3 + at // 8 % 6]) + "\n" for at in range(0, len(words), 8)
        ]
        halves = [folder / "in" / f"{part}.txt" for part in range(2)]
        halves[0].parent.mkdir()
        for part, half in enumerate(halves):
            half.write_text("".join(lines[part * 10_000 : part * 10_000 + 10_000]))
        calls = 0

        def together() -> None:
            nonlocal calls
            calls += 1
            out = ["--out", str(folder / f"out{calls}"), "--workers", "2"]
            _run([[*COMMAND, "translate", model, *map(str, halves), *out]])

        def apart() -> None:
            _run([[*COMMAND, "translate", model, str(half)] for half in halves])

        ctypes.CDLL(None).prctl(SUBREAPER, 1)  # become the parent of workers whose parent has ended
        ours, plain = _in_turns([lambda: _of_children(together), lambda: _of_children(apart)])
    yield Measured("bulk by two plain processes", ours, plain)


def measure_filters(source: Path, target: Path, pairs: int = 1_000_000) -> Iterator[Measured]:
    """Every filter but the models' over the sentences of two aligned files, repeated with numbers
    so that they are none twice."""
    from transduct.bulk.cleaning import filter_corpus

    with TemporaryDirectory() as name:
        for side, given in (("en", source), ("de", target)):
            lines = enumerate(islice(cycle([*read_lines(given)]), pairs))
            with Path(name, f"t.{side}").open("w") as file:
                file.writelines(f"{line} {number}\n" for number, line in lines)
        data = DataConfig([TextSource(source="t.en", target="t.de")], root=name)
        begun = time.process_time()
        filter_corpus(data, Path(name, "out"), True, str)
        found = time.process_time() - begun
    yield Measured(f"CPU seconds of {pairs:,} pairs with every filter", found, 180.0 * pairs / 1e6)


VOCABULARY = [f"w{number}" for number in range(5000)]


def write_pairs(folder: Path, pairs: int) -> DataConfig:
    """Generated pairs, of which every tenth has come before."""
    folder.mkdir()
    with (folder / "t.a").open("w") as source, (folder / "t.b").open("w") as target:
        for number in range(pairs):
            key = number if number % 10 else number // 2
            places = [key, key // 5000, *(key * step for step in (7, 31, 101, 307, 1009))]
            line = " ".join(VOCABULARY[place % 5000] for place in places) + "\n"
            source.write(line)
            target.write(line.upper())
    return DataConfig([TextSource(source="t.a", target="t.b")], root=str(folder))


def prepare_pairs(folder: Path, pairs: int, workers: int) -> tuple[float, float]:
    """Prepare generated pairs; return the CPU seconds of this process with its share of the
    workers', and its memory at most, in MB."""
    data = write_pairs(folder, pairs)
    tokenizer = Tokenizer.train([*VOCABULARY, *map(str.upper, VOCABULARY)], "bpe", 8000)
    begun = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    prepare(data, tokenizer, tokenizer, folder / "corpus", str, chosen(workers, None))
    forkserver._forkserver._stop()  # else what its workers took is not counted
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, theirs = (b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(begun, ended))
    return own + theirs / workers, _peak() / 2**20


def measure_prepare(pairs: int = 1_000_000) -> Iterator[Measured]:
    """A corpus of generated pairs, by two workers and by one, and one of ten times as many."""

    def done(times: int, workers: int) -> tuple[float, float]:
        with TemporaryDirectory() as folder:
            # no file, which the workers would load again
            call = f"prepare_pairs(Path({folder!r}, 'in'), {times * pairs}, {workers})"
            words = [sys.executable, "-c", f"from scale import *; print(*{call})"]
            made = subprocess.run(
                words, env=THREAD, cwd=Path(__file__).parent, check=True, stdout=subprocess.PIPE
            )
        seconds, memory = map(float, made.stdout.split())
        return seconds, memory

    tenth, (two, _), (seconds, memory) = done(1, 1)[0], done(10, 2), done(10, 1)
    yield Measured("two workers by one", two, seconds)
    yield Measured(f"MB of {10 * pairs:,} pairs", memory, 1024.0)
    yield Measured(
        f"CPU seconds of {10 * pairs:,} pairs by ten times those of a tenth", seconds, 10 * tenth
    )


def _run(commands: Sequence[Sequence[str]]) -> None:
    running = [
        subprocess.Popen(each, env=THREAD, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for each in commands
    ]
    statuses = [each.wait() for each in running]
    if any(statuses):
        raise SystemExit(f"failed: {commands}")


def _of_children(work: Callable[[], None]) -> float:
    """CPU seconds of the processes that some work starts, and of those that they start."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    with suppress(ChildProcessError):  # none is left
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _in_turns(ways: Sequence[Callable[[], float]]) -> list[float]:
    """The median of each way."""
    found = [[way() for way in ways] for _ in range(TURNS)]
    return [median(each) for each in zip(*found)]


def _shown(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name} {value:,}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulate", type=int, metavar="EXAMPLES")
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--tokens-per-second", type=float, default=4e5, help="of one GPU")
    parser.add_argument("--parameters", type=float, default=62e6, help="of the model")
    parser.add_argument("--step", type=float, default=0.032, help="seconds of a step of one GPU")
    parser.add_argument("--euros", type=float, default=2.5, help="of a GPU and an hour")
    parser.add_argument("--measure", nargs="+", choices=MEASURED)
    parser.add_argument("--source", type=Path, help="text, for filters")
    parser.add_argument("--target", type=Path, help="its translation")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="of filters and prepare")
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)  # what a rank is started with
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows: Iterator[Any] = iter(())
    if asked.rank:
        out, accumulate, message, steps = asked.rank
        rank(Path(out), int(accumulate), message == "1", int(steps))
    elif asked.simulate:
        rows = iter([simulate(asked.simulate, asked.ranks)])
    elif asked.costs:
        rows = iter(costs(asked.tokens_per_second, asked.parameters, asked.step, asked.euros))
    elif asked.measure:
        filters = partial(measure_filters, asked.source, asked.target, asked.pairs)
        prepared = partial(measure_prepare, asked.pairs)
        ways = (measure_ranks, measure_restart, measure_bulk, filters, prepared)
        rows = chain.from_iterable(dict(zip(MEASURED, ways))[name]() for name in asked.measure)
    else:
        parser.error("give --simulate EXAMPLES, --costs or --measure")
    for row in rows:
        ratio = {"ratio": row.ratio} if isinstance(row, Measured) else {}
        found = {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in {**asdict(row), **ratio}.items()
        }
        print(
            json.dumps(found) if asked.json else "  ".join(_shown(*each) for each in found.items())
        )


if __name__ == "__main__":
    main()
