"""The order of data is a pure function: `plan` says which examples make which batch, `load` reads them."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_start_method
from random import Random
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import DataLoader, Dataset

from transduct.errors import TransductError

Batch = TypeVar("Batch")
Indices = NDArray[np.integer[Any]]
BLUR = 0.1  # lengths are drawn up to a tenth longer before they are sorted
FEWEST = 4  # batches of an epoch for which no process is begun: that takes a tenth of a second
FIXED = 2**63  # the seed of what is scored on, which no training takes
WINDOW = 2**20  # examples planned at a time, so that a plan's working memory does not grow with the corpus


def plan(
    lengths: ArrayLike,
    seed: int,
    epoch: int,
    budget: int,
    weights: Sequence[tuple[int, int, float]] = (),
    window: int = WINDOW,
    growth: Sequence[float] = (1.0,),
) -> list[Indices]:
    """The batches of an epoch: every example exactly once, in an order that depends on the arguments alone.

    Examples are shuffled, sorted by length within windows, cut where the budget is reached, and the batches shuffled.

    Args:
        lengths: (n, sides) tokens of each example on each side, or (n,) of one.
        budget: the most tokens a batch may hold on its fuller side; a longer example is a batch of its own.
        weights: (start, stop, copies), in order, for runs of examples that are not to come exactly once: the whole part
            of `copies` comes always, the rest with that probability, drawn anew each epoch.
        window: examples planned at a time.
        growth: how many times as long each side will be when it is read; one number counts for all.

    Returns:
        Arrays of example indices.
    """
    if budget < 1:
        raise ValueError(f"the token budget of a batch is {budget}, must be at least 1")
    lengths = np.asarray(lengths)
    random = np.random.Generator(philox(seed, epoch))
    order = _copies(len(lengths), weights, random)
    random.shuffle(order)
    batches: list[Indices] = []
    for start in range(0, len(order), window):
        batches += _cut(order[start : start + window], lengths, budget, growth, random)
    return [batches[i] for i in random.permutation(len(batches))]


def random_of(seed: int, epoch: int, *example: int) -> Random:
    """What is drawn for an example, which depends on nothing but these numbers."""
    return Random("/".join(map(str, (seed, epoch, *example))))


def philox(seed: int, number: int) -> np.random.Philox:
    """Random bits that depend on nothing but these two; the seed counts modulo 2^64, the number is not negative."""
    return np.random.Philox(key=np.array([seed % 2**64, number], np.uint64))


def _copies(count: int, weights: Sequence[tuple[int, int, float]], random: np.random.Generator) -> Indices:
    """Every index as often as its weight says."""
    everything: Indices = np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)
    if all(copies == 1.0 for _, _, copies in weights):
        return everything
    parts, before = [], 0
    for start, stop, copies in weights:
        run = everything[start:stop]
        parts += [everything[before:start], *[run] * int(copies), run[random.random(len(run)) < copies % 1.0]]
        before = stop
    return np.concatenate([*parts, everything[before:]])


def _cut(
    order: Indices, lengths: NDArray[Any], budget: int, growth: Sequence[float], random: np.random.Generator
) -> list[Indices]:
    """Sort by length, the fuller side first, and cut where it reaches the budget.

    Lengths are blurred a little, since otherwise the same examples would meet in every epoch.
    """
    sides = np.asarray(lengths[order], dtype=np.int64).reshape(len(order), -1)  # (n, sides)
    if any(factor != 1.0 for factor in growth):
        sides = np.rint(sides * np.asarray(growth)).astype(np.int64)
    blur = 1.0 + BLUR * random.random((len(order), 2), dtype=np.float32)
    by_length = np.lexsort((sides[:, 0] * blur[:, 0], np.rint(sides.max(1) * blur[:, 1])))
    order, totals = order[by_length], np.cumsum(sides[by_length].T, 1)  # (sides, n), each side in one piece
    batches, start = [], 0
    while start < len(order):
        before = totals[:, start - 1] if start else np.zeros_like(totals[:, 0])
        stop = min(np.searchsorted(side, done + budget, "right") for side, done in zip(totals, before, strict=True))
        stop = max(int(stop), start + 1)
        batches.append(order[start:stop])
        start = stop
    return batches


class _Batches(Dataset[Batch | TransductError]):
    """Batch number i of an epoch, made from nothing but the plan, or the error that says why there is none: raised in a
    worker, it would come with the worker's traceback in its message."""

    def __init__(self, batches: list[Indices], make: Callable[[Indices], Batch]) -> None:
        self.batches, self.make = batches, make

    def __getitem__(self, number: int) -> Batch | TransductError:
        try:
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
) -> Iterator[Batch]:
    """Batches `start + rank`, `start + rank + world`, ... of a plan, made ahead of time by `workers` processes.

    `make` turns example indices into a batch and must depend on nothing else, so that workers change nothing.
    """
    numbers = range(start + rank, len(batches), world)
    workers = workers if len(numbers) > FEWEST else 0
    # A worker's parent is this process, unless all come from a server that forks them. To ask settles how they begin.
    parent = None if not workers or get_start_method() == "forkserver" else os.getpid()
    loader = DataLoader(
        _Batches(batches, make),
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        worker_init_fn=partial(_begin, parent),
    )
    return map(_raised, iter(loader))


def _raised(batch: Batch | TransductError) -> Batch:
    """The batch; an error is raised."""
    if isinstance(batch, TransductError):
        raise batch
    return batch


def _begin(parent: int | None, _: int) -> None:
    """Make a worker of a process that has just begun.

    It leaves its parent's group, so that a signal to all of that, as `timeout` and torchrun send it, reaches the
    trainer alone, which ends in order. And it ends if its parent was killed while it began: from now on PyTorch
    watches over whoever is its parent then, and such an orphan would wait for ever.
    """
    os.setpgid(0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
