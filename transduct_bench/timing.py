"""A contest of speed: the sides of a row, each in a process of its own, take turns, and the medians
count."""

import math
import multiprocessing
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from transduct.devices import peak_memory
from transduct.errors import TransductError
from transduct.interfaces.program import show_warning

SHORTEST = 0.5  # seconds that a turn takes at least; shorter work is repeated


@dataclass(frozen=True)
class Side:
    """One contender: a module-level function that prepares its work, and the function's
    arguments."""

    label: str
    function: Callable[..., Callable[[], int]]
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One measurement: our speed against the best of the peer's settings."""

    name: str
    ours: Side
    peers: list[Side] = field(default_factory=list)


def measure(row: Row, rounds: int) -> dict[str, Any]:
    """Measure one row: median speeds in tokens per second, and the peak memory of each side."""
    sides = [row.ours, *row.peers]
    medians, memories = measured(sides, rounds)
    result: dict[str, Any] = {"name": row.name, "ours": medians[0], "peer": None, "ratio": None}
    result["memory_mb"] = round(memories[0])
    if row.peers:
        best = max(range(1, len(sides)), key=lambda i: medians[i])
        result |= {"peer": medians[best], "ratio": medians[0] / medians[best]}
        result |= {"peer_setting": sides[best].label, "peer_memory_mb": round(memories[best])}
    return result


def measured(
    sides: Sequence[Side],
    rounds: int,
    together: bool = False,
    failed: dict[str, str] | None = None,
    patience: float | None = None,
) -> tuple[list[float], list[float]]:
    """The median speed of each side in tokens per second and its peak memory in MB; the sides take
    turns.

    Args:
        together: load and warm up all sides in parallel, for machines with enough cores for their
            compilers.
        failed: collects the errors of sides that cannot be measured, by label; their speed is NaN.
            If not given, the first error is raised.
        patience: seconds to wait for an answer before a side counts as failed; unlimited if not
            given.
    """
    speeds: list[list[float]] = [[] for _ in sides]
    memories = [0.0 for _ in sides]
    with _running(sides, together, failed, patience) as contenders:
        for number in [*range(len(sides))] * rounds:
            if sides[number].label not in (failed or ()):
                with _noted(sides[number], failed):
                    contenders[number].tell(SHORTEST)
                    speed, memories[number] = contenders[number].answer()
                    speeds[number].append(speed)
    return [statistics.median(each) if each else math.nan for each in speeds], memories


@contextmanager
def _noted(side: Side, failed: dict[str, str] | None) -> Iterator[None]:
    """Record a side's error in `failed` if given, otherwise let it through."""
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
    """Start each side in a process of its own, prepared and warmed up; end the processes
    afterwards."""
    contenders: list[_Contender] = []
    try:
        for side in sides:
            contenders.append(_Contender(side, patience))
        for contender in contenders:
            with _noted(contender.side, failed):
                contender.tell(contender.side)
                if not together:
                    contender.answer()
        for contender in contenders if together else ():
            if contender.side.label not in (failed or ()):
                with _noted(contender.side, failed):
                    contender.answer()
        yield contenders
    finally:
        for contender in contenders:
            contender.pipe.close()  # tells the process to end
        for contender in contenders:
            contender.end()


class _Contender:
    """The measuring process's handle to the process of a side.

    The work is sent through the pipe, not as an argument, because starting a process waits until it
    has read its arguments.
    """

    def __init__(self, side: Side, patience: float | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.side, self.patience = side, patience
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_contend, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, what: Any) -> None:
        """Send the process its work or, for a turn, the seconds that it takes at least.

        Raises:
            TransductError: if the process has ended.
        """
        try:
            self.pipe.send(what)
        except ConnectionError as error:
            raise self._ended() from error

    def answer(self) -> Any:
        """Wait for the answer: None after warming up; after a turn, tokens per second and peak
        memory in MB.

        Raises:
            TransductError: if the process failed, ended, or took too long and was killed.
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
        """Wait for the process to end, and kill it if it does not."""
        self.process.join(5)
        self.process.kill()
        self.process.join()

    def _ended(self) -> TransductError:
        advice = "see its output, or whether memory ran out (fewer --sentences)"
        return TransductError(f"{self.side.label}: ended without an answer; {advice}")


def _contend(pipe: Connection) -> None:
    """The main function of a contender's process: prepare, warm up, then take a turn each
    time it is told to."""
    # the measuring process handles Ctrl-C and ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.showwarning = show_warning
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
            shortest = pipe.recv()
        except EOFError:
            return None
        started, tokens, seconds = time.perf_counter(), 0, 0.0
        while seconds < shortest:
            tokens += run()
            seconds = time.perf_counter() - started
        pipe.send((tokens / seconds, peak_memory() / 2**20))
