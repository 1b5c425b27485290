"""Dynamic batching: requests that wait at the same time are answered together, in slices that the
scheduler shares out among clients.

One thread works. Whatever is queued or cancelled meanwhile is seen at its next pause: it then
answers a much shorter request in between, or ends what nobody waits for any more.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from time import perf_counter
from typing import Any

from transduct.decoding.search import pausing
from transduct.errors import TransductError
from transduct.predictors.isolation import isolate_failures
from transduct.serving.jobs import Job
from transduct.serving.scheduler import Scheduler, Slice, Ticket

AT_ONCE = 64  # the most pieces in a slice
LONGEST_ADVICE = 60  # the largest Retry-After, in seconds
MEMORY = 0.9  # decay of the moving average of seconds per token


class Full(Exception):
    """The queue is full; retry after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too much is waiting; come back in {seconds} s")
        self.seconds = seconds


class _Abandoned(Exception):
    """Nobody waits any more for what is being worked on."""


class _Request:
    """A job in the queue, and what is known of its answer."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job, self.loop, self.answer = job, loop, loop.create_future()
        self.outputs: list[Any] = [None] * len(job.pieces)
        self.missing = len(job.pieces)

    def settle(self, answer: Sequence[Any] | BaseException) -> None:
        """Give the answer, or the error, to who waits for it; from any thread."""

        def settle() -> None:
            if self.answer.done():
                return
            if isinstance(answer, BaseException):
                self.answer.set_exception(answer)
            else:
                self.answer.set_result(list(answer))

        self.loop.call_soon_threadsafe(settle)


class Batcher:
    """Answers concurrent requests in batches.

    Args:
        most: how many inputs may wait. A small request finds another tenth of these places, so
            that large ones cannot take them all.
        budget: the most tokens in a slice.
        watch: called after each slice with its number of pieces and its seconds.
        start: called first in the thread that works.
    """

    def __init__(
        self,
        most: int,
        budget: int,
        watch: Callable[[int, float], None],
        start: Callable[[], None] | None = None,
    ) -> None:
        self.most, self._budget, self._watch, self._start = most, budget, watch, start
        self._queue = Scheduler()
        self._requests: dict[Ticket, _Request] = {}
        self._changed = threading.Condition()  # guards the two above
        self._news, self._stopped = False, False
        self._pace = 1e-3  # moving average of seconds per token

    @property
    def waiting(self) -> int:
        """How many inputs nobody has begun to work on."""
        with self._changed:
            return sum(
                self._requests[ticket].job.inputs - self._requests[ticket].job.owners[ticket.begun]
                for ticket in self._queue.tickets
                if ticket.waits
            )

    @property
    def advice(self) -> int:
        """The estimated seconds until everything now here is done."""
        with self._changed:
            cost = sum(sum(each.costs[each.ended :]) for each in self._queue.tickets)
        return min(LONGEST_ADVICE, max(1, ceil(self._pace * cost)))

    def check(self, count: int) -> None:
        """Check that the queue could take this many inputs.

        Raises:
            TransductError: if it could not.
        """
        if count > self.most:
            raise TransductError(
                f"found {count} inputs, at most {self.most} may wait; send fewer at once"
            )

    async def ask(self, job: Job, client: str) -> list[Any]:
        """Return an answer, or the error that concerns it alone, for each input. Cancelling ends
        the work.

        Raises:
            Full: if the queue is full.
            TransductError: if there are more inputs than the queue could ever take, or from the
                work itself.
        """
        self.check(job.inputs)
        room = self.most + (self.most // 10 if job.inputs <= self.most // 100 else 0)
        if self.waiting + job.inputs > room:
            raise Full(self.advice)
        if not job.pieces:
            return []
        request = _Request(job, asyncio.get_running_loop())
        with self._changed:
            ticket = self._queue.add(client, job.kind, job.costs)
            self._requests[ticket], self._news = request, True
            self._changed.notify()
        try:
            return await request.answer
        finally:
            with self._changed:
                self._forget(ticket)

    async def run(self) -> None:
        """Answer requests until cancelled."""
        pool = ThreadPoolExecutor(1, initializer=self._start)
        try:
            await asyncio.get_running_loop().run_in_executor(pool, self._serve)
        finally:
            with self._changed:
                self._stopped = self._news = True
                self._changed.notify()
            pool.shutdown(wait=False)  # it ends at its next pause

    def _serve(self) -> None:
        """Work until stopped."""
        while True:
            with self._changed:
                some = None if self._stopped else self._queue.take(AT_ONCE, self._budget)
                if some is None and not self._stopped:
                    self._changed.wait()
            if self._stopped:
                return
            if some is not None:
                self._work(some)

    def _work(self, some: Slice, interrupted: Slice | None = None) -> None:
        """Work on a slice, and time it."""
        began = perf_counter()
        # what interrupts is short, and is not interrupted itself
        with pausing(None if interrupted else lambda: self._pause(some)):
            self._answer(some.pieces)
        seconds = perf_counter() - began
        self._watch(len(some.pieces), seconds)
        with self._changed:
            self._pace = MEMORY * self._pace + (1.0 - MEMORY) * seconds / some.cost
            self._queue.done(some)

    def _pause(self, some: Slice) -> None:
        """Answer what is much shorter than this slice and has a right to go first."""
        if not self._news:
            return
        with self._changed:
            if self._stopped or not any(ticket in self._requests for ticket, _ in some.pieces):
                raise _Abandoned
            shorter = self._queue.take(AT_ONCE, self._budget, some)
            self._news = shorter is not None
        if shorter is not None:
            self._work(shorter, some)

    def _answer(self, pieces: Sequence[tuple[Ticket, int]]) -> None:
        """Work on some pieces, and give their answers to the requests that are complete. An error
        reaches only the input, or else the request, that it is about."""
        with self._changed:
            here = {
                ticket: self._requests[ticket] for ticket, _ in pieces if ticket in self._requests
            }
        pieces = [(ticket, piece) for ticket, piece in pieces if ticket in here]
        if not pieces:
            return
        inputs = [here[ticket].job.pieces[piece] for ticket, piece in pieces]
        job, abandoned = here[pieces[0][0]].job, False

        def work(given: list[Any]) -> Sequence[Any]:
            nonlocal abandoned
            try:
                return job.work(given)
            except _Abandoned:
                abandoned = True
                return given

        # a library in Rust may panic, and the thread that works must go on
        outputs = isolate_failures(work, inputs, [ticket for ticket, _ in pieces], BaseException)
        if abandoned:
            return
        for (ticket, piece), output in zip(pieces, outputs, strict=True):
            if not isinstance(output, BaseException):
                self._keep(ticket, piece, output)
            elif isinstance(output, TransductError) and output.input is not None:
                self._keep(ticket, piece, output.at(input=here[ticket].job.owners[piece]))
            else:
                self._settle(ticket, output)

    def _settle(self, ticket: Ticket, error: BaseException) -> None:
        """Tell a request what went wrong, and forget it."""
        with self._changed:
            request = self._requests.get(ticket)
            self._forget(ticket)
        if request is not None:
            request.settle(error)

    def _keep(self, ticket: Ticket, piece: int, output: Any) -> None:
        """Keep the output of a piece; the last one completes the answer."""
        with self._changed:
            request = self._requests.get(ticket)
        if request is not None:
            request.outputs[piece] = output
            request.missing -= 1
            if not request.missing:
                [answers] = isolate_failures(
                    lambda given: [request.job.join(*given)], [request.outputs], None, BaseException
                )
                request.settle(answers)

    def _forget(self, ticket: Ticket) -> None:
        """Take a request out; the lock is held."""
        self._requests.pop(ticket, None)
        self._queue.cancel(ticket)
        self._news = True
