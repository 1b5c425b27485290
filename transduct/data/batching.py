"""Batching: `plan` computes the batches of an epoch as a pure function of its arguments, `load`
reads them."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_start_method
from random import Random
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import DataLoader, Dataset

from transduct.errors import TrainingFailed, TransductError
from transduct.segments import Filler

Batch = TypeVar("Batch")
Indices = NDArray[np.integer[Any]]
BLUR = 0.1  # lengths are randomly increased by up to this share before they are sorted
KILLED = re.compile(r"DataLoader worker .*(killed|exited|aborted)")  # in PyTorch's messages
# batches or fewer are made without worker processes, whose start takes a tenth of a second
FEWEST = 4
FIXED = 2**63  # the seed of generated validation data, which no training uses
# examples sorted at a time, so that the working memory of a plan does not grow with the corpus
SORTED = 2**20
# An epoch of more examples is planned in windows. Each mixes at least so many parts of the corpus,
# and a part is so many consecutive examples.
WHOLE, PARTS, PART = 2**27, 64, 2**16


def plan(
    lengths: ArrayLike,
    seed: int,
    epoch: int,
    budget: int,
    weights: Sequence[tuple[int, int, float]] = (),
    growth: Sequence[float] = (1.0,),
    added: int = 0,
    window: tuple[int, int] = (0, 1),
) -> list[Indices]:
    """The batches of an epoch, or of a window of it: every example exactly once, in an order that
    depends only on the arguments.

    Examples are shuffled, sorted by length within windows and cut into batches at the budget; then
    the batches are shuffled.

    Args:
        lengths: (n, sides) tokens of each example on each side, or (n,) for a single side.
        budget: the maximum number of tokens in a batch, on its fuller side; a longer example is a
            batch of its own.
        weights: (start, stop, copies), in order, for runs of examples that do not come exactly
            once: they come as often as the integer part of `copies`, and once more with the
            probability of its fraction, drawn anew each epoch.
        growth: the factor by which each side will be longer when it is read; a single number
            applies to all sides.
        added: tokens that every example has besides `lengths`, on each side.
        window: which window of the epoch, and of how many; see `windows`.

    Returns:
        The example indices of each batch.
    """
    if budget < 1:
        raise ValueError(f"the token budget of a batch is {budget}, must be at least 1")
    # Lengths that are computed or mapped from a file stay where they are: only a window is read.
    sizes: Any = np.asarray(lengths) if isinstance(lengths, Sequence) else lengths
    # A generator of its own, not the global one: nothing else that draws can change the plan.
    random = np.random.Generator(philox(seed, epoch, window[0]))
    order = _copies(_examples(len(sizes), seed, epoch, window), weights, random)
    random.shuffle(order)
    batches: list[Indices] = []
    for start in range(0, len(order), SORTED):
        batches += _cut(order[start : start + SORTED], sizes, budget, growth, added, random)
    # Else every epoch would go from short to long, and the model would forget the short.
    return [batches[i] for i in random.permutation(len(batches))]


def windows(count: int) -> int:
    """The number of windows in which an epoch of so many examples is planned."""
    return 1 if count <= WHOLE else -(-count // PART) // PARTS


def _examples(count: int, seed: int, epoch: int, window: tuple[int, int]) -> Indices:
    """The examples of a window, in the order of the corpus; each is in one window of an epoch."""
    number, of = window
    kind = np.int32 if count < 2**31 else np.int64
    if of == 1:
        return np.arange(count, dtype=kind)
    # Drawn from a stream that no window uses, so that all windows agree on who has which part.
    parts = np.random.Generator(philox(seed, epoch, of)).permutation(-(-count // PART))
    starts = np.sort(np.array_split(parts, of)[number]).astype(kind) * PART
    return np.concatenate([np.arange(i, min(i + PART, count), dtype=kind) for i in starts])


def _copies(
    everything: Indices, weights: Sequence[tuple[int, int, float]], random: np.random.Generator
) -> Indices:
    """Examples in the order of the corpus, repeated according to `weights`."""
    # Of millions of examples no copy is made for what is the usual case.
    if all(copies == 1.0 for _, _, copies in weights):
        return everything
    parts, before = [], 0
    for *bounds, copies in weights:
        start, stop = np.searchsorted(everything, bounds)
        run = everything[start:stop]
        parts += [
            everything[before:start],
            *[run] * int(copies),
            run[random.random(len(run)) < copies % 1.0],
        ]
        before = stop
    return np.concatenate([*parts, everything[before:]])


def _cut(
    order: Indices,
    lengths: NDArray[Any],
    budget: int,
    growth: Sequence[float],
    added: int,
    random: np.random.Generator,
) -> list[Indices]:
    """Sort examples by the length of their longer side and cut them into batches at the budget.

    Lengths are blurred a little; otherwise the same examples would share a batch in every epoch.
    """
    sides = np.asarray(lengths[order], np.int64).reshape(len(order), -1) + added  # (n, sides)
    if any(factor != 1.0 for factor in growth):
        sides = np.rint(sides * np.asarray(growth)).astype(np.int64)
    blur = 1.0 + BLUR * random.random((len(order), 2), dtype=np.float32)
    # By the longer side first, so that little is padded; the other side orders those alike.
    by_length = np.lexsort((sides[:, 0] * blur[:, 0], np.rint(sides.max(1) * blur[:, 1])))
    # With running totals a cut is a binary search, not a sum over examples.
    order, totals = order[by_length], np.cumsum(sides[by_length].T, 1)  # (sides, n), contiguous
    batches, start = [], 0
    while start < len(order):
        before = totals[:, start - 1] if start else np.zeros_like(totals[:, 0])
        stop = min(
            np.searchsorted(side, done + budget, "right")
            for side, done in zip(totals, before, strict=True)
        )
        # An example longer than the budget still comes, alone.
        stop = max(int(stop), start + 1)
        batches.append(order[start:stop])
        start = stop
    return batches


def random_of(seed: int, epoch: int, *example: int) -> Random:
    """The random generator of an example, a function of these numbers alone."""
    return Random("/".join(map(str, (seed, epoch, *example))))


def philox(seed: int, number: int, stream: int = 0) -> np.random.Philox:
    """A bit generator, a function of these numbers alone: a seed (modulo 2^64), and two numbers
    that are not negative."""
    key = np.array([seed % 2**64, number], np.uint64)
    return np.random.Philox(counter=[0, 0, 0, stream], key=key)


class _Batches(Dataset[Batch | Filler | TransductError]):
    """The batches of a plan, by number; of the inverted number, a filler of its first example.

    An error is returned, not raised: PyTorch would put the worker's traceback into its message.
    """

    def __init__(self, batches: list[Indices], make: Callable[[Indices], Batch]) -> None:
        self.batches, self.make = batches, make

    def __getitem__(self, number: int) -> Batch | Filler | TransductError:
        try:
            if number < 0:
                return Filler(self.make(self.batches[~number][:1]))
            return self.make(self.batches[number])
        except TransductError as error:
            return error

    def __len__(self) -> int:
        return len(self.batches)


def load(
    batches: list[Indices],
    make: Callable[[Indices], Batch],
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
    a_step: int | None = None,
) -> Iterator[Batch | Filler]:
    """Iterate over a rank's batches of a plan from number `start` on, made ahead by `workers`
    processes.

    Args:
        make: turns example indices into a batch; a pure function, so that workers do not change the
            result.
        a_step: batches of a training step, of all ranks together; one for each rank if not given.
    """
    # A resumed run starts in the middle of the same plan.
    numbers = shared_out(len(batches), start, rank, world, a_step or world)
    workers = workers if len(numbers) > FEWEST else 0
    # Workers are children of this process, unless a fork server starts them. Asking fixes the start
    # method.
    parent = None if not workers or get_start_method() == "forkserver" else os.getpid()
    loader = DataLoader(
        _Batches(batches, make),
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        worker_init_fn=partial(_start_worker, parent),
    )
    return map(_raise_error, loader)


def shared_out(count: int, start: int, rank: int, world: int, a_step: int) -> list[int]:
    """The numbers of a rank's batches from `start` on, step by step; inverted for a filler.

    The ranks take turns in each step's batches. Where one has none left in the last turn, it has a
    filler. So a step is the same batches for any number of ranks.
    """
    first = np.arange(start, count, a_step)[:, None]  # (steps, 1)
    turns = np.arange(0, a_step, world)  # (turns,)
    left = np.minimum(count - first, a_step)
    numbers = np.where(turns + rank < left, first + turns + rank, ~first)  # (steps, turns)
    chosen: list[int] = numbers[turns < left].tolist()
    return chosen


@contextmanager
def naming_killed_workers() -> Iterator[None]:
    """Within this block, replace PyTorch's error for a killed process that prepares batches by one
    that says what to do.

    PyTorch raises its error in a handler of the signal, so in whatever runs at that moment: in the
    middle of a step as well as in `load`. Hence the block is all of a training.

    Raises:
        TrainingFailed: a process was killed.
    """
    try:
        yield
    except RuntimeError as error:
        if not KILLED.search(str(error)):
            raise
        raise TrainingFailed(
            "a process that prepares batches was killed, perhaps because memory ran out; go on "
            "with {resume}, and with a smaller data.workers if it happens again"
        ) from error


def _raise_error(batch: Batch | Filler | TransductError) -> Batch | Filler:
    """The batch, unless an error came from the worker in its place."""
    if isinstance(batch, TransductError):
        raise batch
    return batch


def _start_worker(parent: int | None, _: int) -> None:
    """Initialise a worker process.

    It leaves the process group of its parent, so that a signal to the whole group, as sent by
    `timeout` and torchrun, reaches only the trainer, which shuts down in order. And it exits if the
    parent was killed during its start: PyTorch would watch its new parent instead, and the orphan
    would wait for ever.
    """
    os.setpgid(0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
