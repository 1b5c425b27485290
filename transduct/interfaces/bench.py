"""`transduct bench`: our speed beside a peer's, each in a process of its own, turn by turn."""

import math
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from transduct.errors import TransductError
from transduct.interfaces import peers
from transduct.training.memory import peak_memory

DECODING_PEERS, TRAINING_PEERS = ("ctranslate2", "transformers"), ("transformers", "torch")
# What sentences are like: mean and spread of the logarithm of their length, shortest, longest.
CAPTIONS, NEWS = (2.65, 0.3, 5, 40), (3.0, 0.6, 3, 100)
LONGER = 1.13  # a translation is than its source
SHORTEST = 0.5  # seconds of a turn; what takes less is done again and again
LARGEST = 1 << 24  # of what is counted


@dataclass(frozen=True)
class Side:
    """One contender: the function of a module that prepares its work, and what it is given."""

    label: str
    function: Callable[..., Callable[[], int]]
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """What is measured: the speed of our side against the best of the peer's settings."""

    name: str
    ours: Side
    peers: list[Side] = field(default_factory=list)


@dataclass(frozen=True)
class Sizes:
    """How large the model and the work are."""

    size: str
    vocabulary: int
    sentences: int
    threads: int
    device: str


def measure(row: Row, rounds: int) -> dict[str, Any]:
    """The medians of one row, in tokens a second, and the memory of each side at its peak."""
    sides = [row.ours, *row.peers]
    medians, memories = measured(sides, rounds)
    found: dict[str, Any] = {"name": row.name, "ours": medians[0], "peer": None, "ratio": None}
    found["memory_mb"] = round(memories[0])
    if row.peers:
        best = max(range(1, len(sides)), key=lambda i: medians[i])
        found |= {"peer": medians[best], "ratio": medians[0] / medians[best]}
        found |= {"peer_setting": sides[best].label, "peer_memory_mb": round(memories[best])}
    return found


def measured(
    sides: Sequence[Side],
    rounds: int,
    together: bool = False,
    failed: dict[str, str] | None = None,
    patience: float | None = None,
) -> tuple[list[float], list[float]]:
    """The median speed of each side, in tokens a second, and its memory in MB; they take turns.

    Args:
        together: whether all are loaded and warmed up at once, where compilers have cores enough.
        failed: takes up, by the label of each side that cannot be measured, why; its speed is NaN. If not given, the
            first such ends all.
        patience: seconds after which a side that has not answered has failed; any number if not given.
    """
    speeds: list[list[float]] = [[] for _ in sides]
    memories = [0.0 for _ in sides]
    with _running(sides, together, failed, patience) as contenders:
        for number in [*range(len(sides))] * rounds:
            if sides[number].label not in (failed or ()):
                with _noted(sides[number], failed):
                    contenders[number].tell("go")
                    speed, memories[number] = contenders[number].answer()
                    speeds[number].append(speed)
    return [statistics.median(each) if each else math.nan for each in speeds], memories


@contextmanager
def _noted(side: Side, failed: dict[str, str] | None) -> Iterator[None]:
    """Record the error of a side in `failed`, if that is given; otherwise raise it."""
    try:
        yield
    except TransductError as error:
        if failed is None:
            raise
        failed[side.label] = str(error)


@contextmanager
def _running(
    sides: Sequence[Side], together: bool, failed: dict[str, str] | None, patience: float | None
) -> Iterator[list["_Contender"]]:
    """The sides, each prepared and warmed up in a process of its own."""
    contenders: list[_Contender] = []
    try:
        for side in sides:
            contenders.append(_Contender(side, patience))
            if not together:
                with _noted(side, failed):
                    contenders[-1].tell(side)
                    contenders[-1].answer()
        if together:
            for contender in contenders:
                with _noted(contender.side, failed):
                    contender.tell(contender.side)
            for contender in contenders:
                if contender.side.label not in (failed or ()):
                    with _noted(contender.side, failed):
                        contender.answer()
        yield contenders
    finally:
        for contender in contenders:
            contender.pipe.close()  # which each takes for the end
        for contender in contenders:
            contender.end()


class _Contender:
    """The process of a side, seen from the one that measures.

    Its work comes by the pipe and is no argument: starting a process waits until it has read its arguments.
    """

    def __init__(self, side: Side, patience: float | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.side, self.patience = side, patience
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_contend, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, what: Any) -> None:
        """Give it its work, or have it take a turn.

        Raises:
            TransductError: it has ended.
        """
        try:
            self.pipe.send(what)
        except ConnectionError as error:
            raise self._ended() from error

    def answer(self) -> Any:
        """None once it is warm; of a turn tokens a second, and MB of memory at its peak.

        Raises:
            TransductError: it has failed, has ended, or takes too long, which ends it.
        """
        try:
            if not self.pipe.poll(self.patience):
                self.process.kill()
                raise TransductError(f"{self.side.label}: no answer within {self.patience:g} s")
            answer = self.pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error
        if isinstance(answer, TransductError):
            raise answer
        return answer

    def end(self) -> None:
        """Wait until it has ended by itself, or end it."""
        self.process.join(5)
        self.process.kill()
        self.process.join()

    def _ended(self) -> TransductError:
        said = "ended without an answer; see what it said, or whether memory ran out (fewer --sentences)"
        return TransductError(f"{self.side.label}: {said}")


def _contend(pipe: Connection) -> None:
    """A contender's process: prepare, warm up, and take a turn whenever it is told to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches whoever tells it, who ends it
    try:
        side: Side = pipe.recv()
        run = side.function(**side.arguments)
        run()
    except TransductError as error:
        return pipe.send(error)
    except EOFError:
        return None
    pipe.send(None)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return None
        started, tokens, seconds = time.perf_counter(), 0, 0.0
        while seconds < SHORTEST:
            tokens += run()
            seconds = time.perf_counter() - started
        pipe.send((tokens / seconds, peak_memory() / 2**20))


def decoding_rows(sizes: Sizes, against: str | None, folder: Path, given: tuple[str, Path] | None) -> list[Row]:
    """What `bench decode` measures, with models written to `folder`: drawn weights and forced lengths, or a model and
    a text that were given."""
    from transduct.interop import ctranslate2, int8
    from transduct.tasks.base import model_directory
    from transduct.tasks.speed import decoding, read_sentences, untrained

    if given is None:
        untrained(folder / "float32", sizes.size, sizes.vocabulary)
    elif against == "transformers":
        raise TransductError("transformers does not take our models; compare with ctranslate2, or leave --model out")
    model = folder / "float32" if given is None else model_directory(given[0])
    int8.convert(model, folder / "int8")
    if against == "ctranslate2":
        ctranslate2.convert(model, folder / "ctranslate2")
    trained = None if given is None else sorted(read_sentences(str(model), given[1]), key=len)
    many = sizes.sentences
    plans = [
        ("greedy, int8, captions, batches of 128", CAPTIONS, many, 1, "int8", 128),
        ("greedy, int8, news, batches of 64", NEWS, many // 2, 1, "int8", 64),
        ("beam 4, int8, captions, batches of 32", CAPTIONS, many // 2, 4, "int8", 32),
        ("greedy, float32, captions, batches of 128", CAPTIONS, many, 1, "float32", 128),
        ("greedy, bfloat16, captions, batches of 128", CAPTIONS, many, 1, "bfloat16", 128),
        ("greedy, int8, one sentence", CAPTIONS, 1, 1, "int8", 1),
        ("beam 4, int8, one sentence", CAPTIONS, 1, 4, "int8", 1),
    ]
    rows = []
    for name, kind, count, beam, precision, batch in plans:
        if sizes.device.startswith("cuda") and precision == "int8":
            continue
        sources, lengths = drawn(kind, max(count, 1), sizes.vocabulary, batch)
        if trained is not None:
            name, sources = name.replace("captions", "a text"), trained if batch > 1 else [trained[len(trained) // 2]]
            if kind is NEWS:
                continue
        work = {"sources": sources, "lengths": None if trained else lengths, "beam": beam, "precision": precision}
        ours = {**work, "model": str(folder / "int8" if precision == "int8" else model), "device": sizes.device}
        others = _decoding_peers(against, work, folder, sizes, batch)
        for said, how in _ways(sizes, "captured"):
            if others or against is None:
                given_us = {**ours, "threads": sizes.threads, **how}
                rows.append(Row(name + said, Side("transduct", decoding, given_us), others))
    return rows


def _ways(sizes: Sizes, *switches: str) -> list[tuple[str, dict[str, bool]]]:
    """As recipes have it, and on a GPU with each switch besides: what the name of a row says of it, and the switch."""
    on_gpu = sizes.device.startswith("cuda")
    return [("", {}), *((f", {switch}", {switch: True}) for switch in switches if on_gpu)]


def _decoding_peers(against: str | None, work: dict[str, Any], folder: Path, sizes: Sizes, batch: int) -> list[Side]:
    """The peer's settings that are tried; none where it cannot do this work."""
    on_gpu = sizes.device.startswith("cuda")
    if against == "ctranslate2" and (work["precision"] != "bfloat16" or on_gpu):
        settings = dict.fromkeys([(1, sizes.threads), (sizes.threads, 1), (1, 1)][: 3 if batch == 1 else 2])
        if on_gpu:
            settings = {(1, sizes.threads): None}
        given = {**work, "model": str(folder / "ctranslate2"), "batch": batch, "device": sizes.device}
        return [
            Side(f"{w} workers, {t} threads", peers.ctranslate2_decoding, {**given, "workers": w, "threads": t})
            for w, t in settings
        ]
    if against == "transformers" and work["precision"] != "int8":
        given = {**work, "shape": _shape(sizes), "batch": batch, "threads": sizes.threads, "device": sizes.device}
        return [Side("generate", peers.transformers_decoding, given)]
    return []


def training_rows(sizes: Sizes, against: str | None) -> list[Row]:
    """What `bench train` measures."""
    from transduct.tasks.speed import training

    kind = CAPTIONS if sizes.size in ("tiny", "small") else NEWS
    sources, lengths = drawn(kind, sizes.sentences, sizes.vocabulary, 1)
    random = Random(2)
    targets = [[random.randrange(3, sizes.vocabulary) for _ in range(length)] for length in lengths]
    per_batch = max(1, 4096 * len(sources) // sum(lengths))
    batches = [
        (sources[start : start + per_batch], targets[start : start + per_batch])
        for start in range(0, len(sources), per_batch)
    ]
    rows = []
    for precision in ("float32", "bfloat16"):
        work = {"batches": batches, "precision": precision, "device": sizes.device, "threads": sizes.threads}
        ours = {**work, "size": sizes.size, "vocabulary": sizes.vocabulary}
        theirs = {**work, "shape": _shape(sizes)}
        others = [] if against is None else [Side(against, getattr(peers, f"{against}_training"), theirs)]
        name = f"training, {sizes.size}, {precision}, batches of 4096 tokens"
        for said, how in _ways(sizes, "captured", "compiled"):
            rows.append(Row(name + said, Side("transduct", training, {**ours, **how}), others))
    return rows


def _shape(sizes: Sizes) -> dict[str, Any]:
    from transduct.tasks.translator import FAMILIES

    known = FAMILIES["transformer"]
    return {"dropout": 0.1, "vocabulary": sizes.vocabulary, **known.sizes[sizes.size]}


def drawn(
    kind: tuple[float, float, int, int], count: int, vocabulary: int, batch: int
) -> tuple[list[list[int]], list[int]]:
    """Sentences of drawn words, sorted by length, and how long their translations are: alike in a batch."""
    mean, spread, shortest, longest = kind
    random = Random(1)
    sizes = sorted(min(max(round(random.lognormvariate(mean, spread)), shortest), longest) for _ in range(count))
    if count == 1:  # the median sentence
        sizes = [round(math.exp(mean))]
    sources = [[random.randrange(3, vocabulary) for _ in range(size)] for size in sizes]
    lengths: list[int] = []
    for start in range(0, count, batch):
        group = sizes[start : start + batch]
        lengths += [round(LONGER * sum(group) / len(group)) + 1] * len(group)
    return sources, lengths


def about() -> dict[str, Any]:
    """The machine and the versions, for whoever reads the numbers later."""
    versions = {}
    for package in ("transduct", "torch", "ctranslate2", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "machine": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _check(sizes: Sizes, rounds: int) -> None:
    from transduct.tasks.translator import FAMILIES

    known = FAMILIES["transformer"].sizes
    if sizes.size not in known:
        raise TransductError(f"unknown size '{sizes.size}'; known are: {', '.join(known)}")
    counts = {"sentences": sizes.sentences, "threads": sizes.threads, "rounds": rounds, "vocabulary": sizes.vocabulary}
    for name, count in counts.items():
        least = 4 if name == "vocabulary" else 1  # a word beside those with a meaning
        if not least <= count <= LARGEST:
            raise TransductError(f"{name} is {count}, must be from {least} to {LARGEST}")


def run(
    what: str, against: str | None, sizes: Sizes, rounds: int, only: str, given: tuple[str, Path] | None
) -> Iterator[dict[str, Any]]:
    """The rows of a benchmark, one by one as they are measured.

    Raises:
        TransductError: the peer is unknown or not installed, a size is impossible, or nothing is called `only`.
    """
    from transduct.training.machine import pick_device

    known = {"decode": DECODING_PEERS, "train": TRAINING_PEERS}
    if what not in known:
        raise TransductError(f"unknown benchmark '{what}'; known are: {', '.join(known)}")
    if against is not None and against not in known[what]:
        raise TransductError(f"no '{against}' to {what} against; known are: {', '.join(known[what])}")
    _check(sizes, rounds)
    sizes = replace(sizes, device=str(pick_device(sizes.device)))
    with tempfile.TemporaryDirectory(prefix="transduct-bench-") as folder:
        if what == "decode":
            rows = decoding_rows(sizes, against, Path(folder), given)
        else:
            rows = training_rows(sizes, against)
        chosen = [row for row in rows if only in row.name]
        if not chosen:
            raise TransductError(f"nothing is called '{only}'; there are: {'; '.join(row.name for row in rows)}")
        for row in chosen:
            print(f"measuring: {row.name}", file=sys.stderr)
            yield measure(row, rounds)
