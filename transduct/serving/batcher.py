"""Dynamic batching: requests that wait at the same time are answered together, in slices shared
fairly among them.

Everything except the work itself runs in one event loop, so no locks are needed.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import Any

from transduct.errors import TransductError

AT_ONCE, DEAREST = (
    64,
    16_000,
)  # the most inputs in a slice, and their total cost (a slice holds at least one input)
LONGEST_ADVICE = 60  # the largest Retry-After, in seconds
MEMORY = 0.9  # decay of the moving average of seconds per input

Options = Mapping[str, Any]
Work = Callable[[str, list[Any], Options], list[Any]]


class Full(Exception):
    """The queue is full; retry after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too much is waiting; come back in {seconds} s")
        self.seconds = seconds


@dataclass(eq=False)
class _Request:
    """A pending request.

    Attributes:
        kind: verb and options as text; requests of the same kind may share a slice.
        begun: how many of its inputs have been put into slices.
    """

    verb: str
    inputs: Sequence[Any]
    options: Options
    kind: str
    done: asyncio.Future[list[Any]]
    outputs: list[Any] = field(default_factory=list)
    begun: int = 0


def _counted(error: BaseException, before: int) -> BaseException:
    """Renumber an error about "input N" of a slice to N's number in the request; other errors are
    left as they are."""
    place = re.match(r"(input|pair|prefix) (\d+)\b", str(error))
    if not isinstance(error, TransductError) or place is None:
        return error
    return TransductError(f"{place[1]} {before + int(place[2])}{str(error)[place.end() :]}")


Part = tuple[_Request, list[Any]]  # a request and some of its inputs


class Batcher:
    """Answers concurrent requests in batches.

    Args:
        work: (verb, inputs, options) -> one output per input, each independent of the other inputs.
        most: how many inputs may wait.
        cost: (verb, input, options) -> the cost of an input, limited by `DEAREST` for a slice.
        watch: called after each slice with its number of inputs and its seconds.
    """

    def __init__(
        self,
        work: Work,
        most: int,
        cost: Callable[[str, Any, Options], int],
        watch: Callable[[int, float], None],
    ) -> None:
        self._work, self.most, self._cost, self._watch = work, most, cost, watch
        self._requests: deque[_Request] = deque()
        self._some = asyncio.Event()
        self._pace = 0.1  # moving average of seconds per input
        self._slice_size, self._slice_began = 0, 0.0  # the slice being worked on

    @property
    def waiting(self) -> int:
        """How many inputs are queued."""
        return sum(len(request.inputs) - request.begun for request in self._requests)

    async def ask(self, verb: str, inputs: Sequence[Any], options: Options) -> list[Any]:
        """Return one output for each input. Cancelling removes the rest of the request from the
        queue.

        Raises:
            Full: if the queue is full.
            TransductError: if there are more inputs than the queue could ever take, or from the
                work itself.
        """
        if not inputs:
            return []
        self.check(len(inputs))
        if self.waiting + len(inputs) > self.most:
            raise Full(self.advice)
        kind = f"{verb} {sorted(options.items())}"
        request = _Request(verb, inputs, options, kind, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._some.set()
        try:
            return await request.done
        finally:
            self._forget(request)

    def check(self, count: int) -> None:
        """Check that the queue could take this many inputs.

        Raises:
            TransductError: if it could not.
        """
        if count > self.most:
            raise TransductError(
                f"found {count} inputs, at most {self.most} may wait; send fewer at once"
            )

    @property
    def advice(self) -> int:
        """The estimated seconds until everything now here is done."""
        expected = self._pace * (self.waiting + self._slice_size)
        elapsed = perf_counter() - self._slice_began if self._slice_size else 0.0
        return min(LONGEST_ADVICE, max(1, ceil(max(expected, elapsed))))

    async def run(self) -> None:
        """Answer requests until cancelled; the work runs in one thread."""
        pool = ThreadPoolExecutor(1)
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                while self._requests:
                    await self._answer(self._slice(), pool)
        finally:
            pool.shutdown(wait=False)  # nobody waits for its last slice any more

    def _slice(self) -> list[Part]:
        """Take the next inputs of the first request and of others of its kind. Requests with inputs
        left go to the end of the queue."""
        parts: list[Part] = []
        room, budget, kind = AT_ONCE, DEAREST, self._requests[0].kind
        for request in [each for each in self._requests if each.kind == kind]:
            taken: list[Any] = []
            while request.begun < len(request.inputs) and room:
                cost = self._cost(request.verb, request.inputs[request.begun], request.options)
                if cost > budget and room < AT_ONCE:
                    break
                taken.append(request.inputs[request.begun])
                request.begun, room, budget = request.begun + 1, room - 1, budget - cost
            if taken:
                parts.append((request, taken))
                self._requests.remove(request)
                if request.begun < len(request.inputs):
                    self._requests.append(request)
        return parts

    async def _answer(self, parts: Sequence[Part], pool: Executor) -> None:
        """Answer a slice. If that fails, retry its halves, so that only the request at fault gets
        the error."""
        parts = [
            part for part in parts if not part[0].done.done()
        ]  # the other requests have been cancelled
        if not parts:
            return
        first, inputs = parts[0][0], [each for _, taken in parts for each in taken]
        self._slice_size, self._slice_began = len(inputs), perf_counter()
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(pool, self._answered, first.verb, inputs, first.options)
        await asyncio.wait([answer])
        seconds, self._slice_size = perf_counter() - self._slice_began, 0
        if error := answer.exception():
            if len(parts) > 1:
                half = len(parts) // 2
                await self._answer(parts[:half], pool)
                await self._answer(parts[half:], pool)
            elif not first.done.done():
                self._forget(first)
                first.done.set_exception(_counted(error, first.begun - len(inputs)))
            return
        self._pace = MEMORY * self._pace + (1.0 - MEMORY) * seconds / len(inputs)
        self._watch(len(inputs), seconds)
        outputs = iter(answer.result())
        for request, taken in parts:
            request.outputs += [next(outputs) for _ in taken]
            if len(request.outputs) == len(request.inputs) and not request.done.done():
                request.done.set_result(request.outputs)

    def _answered(self, verb: str, inputs: list[Any], options: Options) -> list[Any]:
        outputs = self._work(verb, inputs, options)
        if len(outputs) != len(inputs):
            raise RuntimeError(f"{verb}: {len(outputs)} outputs for {len(inputs)} inputs")
        return outputs

    def _forget(self, request: _Request) -> None:
        if request in self._requests:
            self._requests.remove(request)
