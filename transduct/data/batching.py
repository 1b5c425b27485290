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

Batch = TypeVar("Batch")
Indices = NDArray[np.integer[Any]]
BLUR = 0.1  # lengths are randomly increased by up to this share before they are sorted
KILLED = re.compile(r"DataLoader worker .*(killed|exited|aborted)")  # in PyTorch's messages
# batches or fewer are made without worker processes, whose start takes a tenth of a second
FEWEST = 4
FIXED = 2**63  # the seed of generated validation data, which no training uses
# examples planned at a time, so that the working memory of a plan does not grow with the corpus
WINDOW = 2**20


def plan(
    lengths: ArrayLike,
    seed: int,
    epoch: int,
    budget: int,
    weights: Sequence[tuple[int, int, float]] = (),
    growth: Sequence[float] = (1.0,),
) -> list[Indices]:
    """The batches of an epoch: every example exactly once, in an order that depends only on the
    arguments.

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

    Returns:
        The example indices of each batch.
    """
    if budget < 1:
        raise ValueError(f"the token budget of a batch is {budget}, must be at least 1")
    lengths = np.asarray(lengths)
    # A generator of its own, not the global one: nothing else that draws can change the plan.
    random = np.random.Generator(philox(seed, epoch))
    order = _copies(len(lengths), weights, random)
    random.shuffle(order)
    batches: list[Indices] = []
    for start in range(0, len(order), WINDOW):
        batches += _cut(order[start : start + WINDOW], lengths, budget, growth, random)
    # Else every epoch would go from short to long, and the model would forget the short.
    return [batches[i] for i in random.permutation(len(batches))]


def random_of(seed: int, epoch: int, *example: int) -> Random:
    """The random generator of an example, a function of these numbers alone."""
    return Random("/".join(map(str, (seed, epoch, *example))))


def philox(seed: int, number: int) -> np.random.Philox:
    """A bit generator, a function of these numbers alone: a seed (modulo 2^64) and a number that is
    not negative."""
    return np.random.Philox(key=np.array([seed % 2**64, number], np.uint64))


def _copies(
    count: int, weights: Sequence[tuple[int, int, float]], random: np.random.Generator
) -> Indices:
    """The indices of all examples, repeated according to `weights`."""
    everything: Indices = np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)
    # Of millions of examples no copy is made for what is the usual case.
    if all(copies == 1.0 for _, _, copies in weights):
        return everything
    parts, before = [], 0
    for start, stop, copies in weights:
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
    random: np.random.Generator,
) -> list[Indices]:
    """Sort examples by the length of their longer side and cut them into batches at the budget.

    Lengths are blurred a little; otherwise the same examples would share a batch in every epoch.
    """
    sides = np.asarray(lengths[order], dtype=np.int64).reshape(len(order), -1)  # (n, sides)
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


class _Batches(Dataset[Batch | TransductError]):
    """The batches of a plan, by number.

    An error is returned, not raised: PyTorch would put the worker's traceback into its message.
    """

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
    """Iterate over batches `start + rank`, `start + rank + world`, ... of a plan, made ahead by
    `workers` processes.

    `make` turns example indices into a batch; it must be a pure function, so that workers do not
    change the result.
    """
    # A resumed run starts in the middle of the same plan; ranks take turns in it.
    numbers = range(start + rank, len(batches), world)
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
        worker_init_fn=partial(_begin, parent),
    )
    return map(_raised, loader)


@contextmanager
def naming_killed_workers() -> Iterator[None]:
    """Within this, a process that prepares batches and is killed is named, with what to do.

    PyTorch raises its error in a handler of the signal, so in whatever runs at that moment: in the
    middle of a step as well as in `load`. Hence it stands around all of a training.

    Raises:
        TrainingFailed: one was killed, for which PyTorch has a RuntimeError that names the process.
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


def _raised(batch: Batch | TransductError) -> Batch:
    """The batch; raises it if it is an error."""
    if isinstance(batch, TransductError):
        raise batch
    return batch


def _begin(parent: int | None, _: int) -> None:
    """Initialise a worker process.

    It leaves the process group of its parent, so that a signal to the whole group, as sent by
    `timeout` and torchrun, reaches only the trainer, which shuts down in order. And it exits if the
    parent was killed during its start: PyTorch would watch its new parent instead, and the orphan
    would wait for ever.
    """
    os.setpgid(0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
