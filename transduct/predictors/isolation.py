"""Inputs answered together, in groups that grow; one that is wrong does not stop the others."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from transduct.errors import MissingExtra, TransductError, counted_on_success

Item = TypeVar("Item")


@contextmanager
def of_input(number: int) -> Iterator[None]:
    """Within this, an input is read: an error that names no file is about the input of this number,
    from 0."""
    try:
        yield
    except MissingExtra:
        raise
    except TransductError as error:
        if error.file is not None:
            raise
        raise error.at(input=number) from error


def growing(items: Iterable[Item], most: int, size: int = 1) -> Iterator[list[Item]]:
    """Items in groups to be answered together: `size`, so that their answers are soon there, then
    twice as many each time, up to `most`."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group
        size = min(2 * size, most)


def isolate_failures(
    work: Callable[[list[Any]], Sequence[Any]],
    inputs: Sequence[Any],
    owners: Sequence[Hashable] | None = None,
    caught: type[BaseException] = TransductError,
) -> list[Any]:
    """The output of each input, worked on together, or the error that concerns it alone.

    An error that names an input is of that one, and the others are worked on without it. Any other
    error concerns one owner's inputs; bisection finds whose.

    Args:
        owners: of each input; by default each has its own.
        caught: the errors that are answers; others are raised.

    Raises:
        RuntimeError: `work` gives more or fewer outputs than it is given inputs.
    """
    owners = range(len(inputs)) if owners is None else owners
    found: list[Any] = [None] * len(inputs)
    waiting = [list(range(len(inputs)))]
    while waiting:
        numbers = waiting.pop()
        if not numbers:
            continue
        try:
            with counted_on_success():
                outputs = work([inputs[number] for number in numbers])
            if len(outputs) != len(numbers):
                raise RuntimeError(f"found {len(outputs)} outputs for {len(numbers)} inputs")
            for number, output in zip(numbers, outputs, strict=True):
                found[number] = output
            continue
        except caught as error:
            problem = error
        place = problem.input if isinstance(problem, TransductError) else None
        here = list(dict.fromkeys(owners[number] for number in numbers))
        if isinstance(problem, TransductError) and place is not None and place < len(numbers):
            number = numbers.pop(place)
            found[number] = problem.at(input=number)
            waiting.append(numbers)
        elif len(here) > 1:
            first = {*here[: len(here) // 2]}
            waiting += [
                [number for number in numbers if (owners[number] in first) == left]
                for left in (False, True)
            ]
        else:
            for number in numbers:
                found[number] = problem
    return found
