"""Many sequences in batches: sorted by length, up to a budget of tokens, on as many threads as suit
the device."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

import torch
from torch import Tensor

from transduct.decoding.search import pause
from transduct.kernels.threads import CORES
from transduct.segments import Segments

Item = TypeVar("Item")
Result = TypeVar("Result")
FEW = 8  # sources that justify another worker
Progress = Callable[[int, int], None]  # called with how many more inputs are done, and of how many
_PROGRESS: ContextVar[Progress | None] = ContextVar("_PROGRESS", default=None)
_SHARE: ContextVar[Callable[..., list[Any]] | None] = ContextVar("_SHARE", default=None)


@contextmanager
def _within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Set a context variable for this block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def watched(progress: Progress) -> AbstractContextManager[None]:
    """Call `progress` as inputs of a search in this block are done."""
    return _within(_PROGRESS, progress)


def report_progress(done: int, of: int) -> None:
    """Report to whoever watches, see `watched`."""
    progress = _PROGRESS.get()
    if progress is not None:
        progress(done, of)


def shared_by(share: Callable[..., list[Any]]) -> AbstractContextManager[None]:
    """Let ranks share out what is `shared` in this block, by such as `Ranks.share`."""
    return _within(_SHARE, share)


def shared(
    work: Callable[[Sequence[Item]], Iterable[Result]], items: Sequence[Item]
) -> list[Result]:
    """The results of `work`, one for each item. Where ranks share a validation, each does some of
    the items, and all get all results."""
    share = _SHARE.get()
    if share is None:
        return list(work(items))
    with _within(_SHARE, None):  # one rank alone does what is shared within
        return share(work, items)


def in_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices sorted by length, the longest first, in batches of at most `budget` tokens (at least
    one sequence)."""
    batch: list[int] = []
    tokens = 0
    # The longest first: where memory is short, the first batch shows it, and short ones fill the
    # end.
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and tokens + lengths[number] > budget:
            yield batch
            batch, tokens = [], 0
        batch.append(number)
        tokens += lengths[number]
    if batch:
        yield batch


def balanced_batches(lengths: Sequence[int], budget: int, workers: int) -> list[list[int]]:
    """Like `in_batches`, but balanced over parallel workers: rounds the number of batches up to a
    multiple of the workers and makes the largest batch as small as that allows. Otherwise a
    leftover batch could keep one worker busy while the others wait."""
    if workers == 1:
        return list(in_batches(lengths, budget))
    ordered, tokens = sorted(lengths, reverse=True), sum(lengths)

    def count(most: int) -> int:
        return sum(1 for _ in in_batches(ordered, most))

    # Rounds of equal work: with 3 batches for 2 workers one of them would idle through the third.
    wanted = -(-count(budget) // workers) * workers
    # More tokens a batch never need more batches, so bisection finds the smallest size.
    lowest, highest = min(budget, tokens // max(wanted, 1)), min(budget, tokens)
    smallest = bisect_left(range(highest), True, lo=lowest, key=lambda most: count(most) <= wanted)
    return list(in_batches(lengths, smallest))


def workers_for(device: torch.device, inputs: int, wanted: int = 0) -> int:
    """How many batches to decode in parallel: on a CPU `wanted` or the number of cores, but one for
    few inputs."""
    # A thread for one or two sources costs more than it gains.
    most = max(1, inputs // FEW)
    if device.type != "cpu" or most == 1:
        return 1
    return min(wanted or CORES.count(), most)


def parallel_map(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> Iterator[Result]:
    """Map `work` over the items, in order, with this many threads of one core each.

    A decoding step is too small to split over cores, and its kernels release the GIL.
    """

    def after_pause(item: Item, context: Context | None = None) -> Result:
        if context is not None:
            return context.run(after_pause, item)
        pause()
        return work(item)

    if workers == 1:
        yield from map(after_pause, items)
        return
    # a thread takes no context over by itself, and two may not enter one
    contexts = [copy_context() for _ in items]
    with CORES, ThreadPoolExecutor(workers, initializer=CORES.work_alone) as pool:
        yield from pool.map(after_pause, items, contexts)


def answered(
    work: Callable[[list[int]], Iterable[Result]],
    lengths: Sequence[int],
    budget: int,
    workers: int = 1,
) -> list[Result]:
    """The answer to each input, by `work` on the numbers of those in a batch; see `shared`.

    Args:
        lengths: of the inputs.
        budget: the most tokens of a batch.
        workers: how many batches are worked on in parallel.
    """
    # ranks that share the batches make the same ones, however many cores each has
    batches = balanced_batches(lengths, budget, workers if _SHARE.get() is None else 1)
    found: list[Any] = [None] * len(lengths)
    answers = shared(lambda some: parallel_map(work, some, workers), batches)
    for numbers, each in zip(batches, answers, strict=True):
        for number, answer in zip(numbers, each, strict=True):
            found[number] = answer
    return found


def device_of(model: Any) -> torch.device:
    """The device of a model's weights."""
    # `parameters` would name each module on the way, which takes longer than to plan a text.
    weights = (each for part in model.modules() for each in vars(part)["_parameters"].values())
    device: torch.device = next(each for each in weights if each is not None).device
    return device


def encode(
    model: Any, sources: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Segments]:
    """Encode sources. Returns the memory and its segments."""
    tokens, segments = flat(sources, device)
    return model.encode(tokens, segments), segments


def flat(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Segments]:
    """Concatenate sequences of ids into one flat tensor with its segments."""
    tokens = torch.tensor(
        [token for sequence in sequences for token in sequence], dtype=torch.int64
    )
    return tokens.to(device), Segments.of([len(sequence) for sequence in sequences], device)
