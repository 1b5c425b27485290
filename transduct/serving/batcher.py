"""Requests are answered together, in the order in which the scheduler lets clients take turns.

One thread works. Sentences that a running batch takes join it between two steps, and leave it once
they are finished or nobody waits for them. Everything else is worked on in slices. Whatever is
queued or cancelled meanwhile is seen at the next pause of a slice: a much shorter request is then
answered in between, or what nobody waits for any more ends.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import ceil
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

from transduct.decoding.search import Hypothesis, pausing
from transduct.errors import TransductError
from transduct.inference.engine import Cohorts, running_batch
from transduct.inference.running import STEPS, Running
from transduct.inference.settings import Sentence
from transduct.predictors.isolation import isolate_failures
from transduct.serving.jobs import BESIDE, Job, ignore
from transduct.serving.requests import Problem
from transduct.serving.scheduler import MUCH, Scheduler, Slice, Ticket

AT_ONCE = 64  # the most pieces in a slice
LONGEST_ADVICE = 60  # the largest Retry-After, in seconds
ENCODED = 1024  # the most tokens that join a running batch at a time, unless one has more
ROWS_A_STEP = 8  # a batch takes a step for so many of its rows before others join
DECAY = 0.9  # decay of the moving average of seconds per token
Batch = Running | Cohorts


class Full(Problem):
    """The queue is full."""

    def __init__(self, seconds: int, close: bool = False) -> None:
        super().__init__(
            429, f"too much is waiting; come back in {seconds} s", seconds=seconds, close=close
        )


# Called in the loop with the number of a piece and its new tokens.
Follow = Callable[[int, list[int]], None]


class _Abandoned(Exception):
    """Nobody waits any more for what is being worked on."""


class _Request:
    """A job in the queue, and what is known of its answer."""

    def __init__(
        self,
        job: Job,
        answer: "asyncio.Future[list[Any]]",
        follow: Follow | None,
        begin: Callable[[], None],
    ) -> None:
        self.job, self.answer, self.follow, self._begin = job, answer, follow, begin
        self.outputs: list[Any] = [None] * len(job.pieces)
        self.missing, self.begun = len(job.pieces), False

    def begin(self) -> None:
        """Note once that work has begun."""
        if not self.begun:
            self.begun = True
            self._begin()

    def settle(self, answer: Sequence[Any] | BaseException) -> None:
        """Give the answer, or the error, to who waits for it; in the event loop."""
        if self.answer.done():
            return
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(list(answer))


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
        self._news, self._stopped = False, False  # news: requests that came or went, not yet seen
        # Whether it will be woken, and for a small request, and all inputs; only the loop changes
        # these.
        self._waking, self._urgent, self._inputs = False, False, 0
        # Of each model, by kind. Models are not kept alive, so that unloading one frees its memory.
        self._batches: WeakKeyDictionary[Any, dict[type[Batch], Batch]] = WeakKeyDictionary()
        # The pieces in running batches by their sentences, and those that wait until they fit.
        self._running: dict[Sentence, tuple[Ticket, int]] = {}
        self._ready: deque[tuple[Ticket, int]] = deque()
        self._steps, self._seconds = 0, 0.0  # until others join, and since an answer
        # Of requests that cost this much or less, the sentences take steps alone for some seconds.
        self._small, self._lead = 0, 0.0
        self._pace = 1e-3  # moving average of seconds per token
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: list[tuple[Callable[..., Any], Sequence[Any]]] = []  # due in the loop

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
    def pages(self) -> int:
        """How many pages of the running batches are used."""
        return sum(batch.used for batch in self._every())

    def _every(self) -> list[Batch]:
        return [each for kinds in [*self._batches.values()] for each in [*kinds.values()]]

    @property
    def advice(self) -> int:
        """The estimated seconds until everything now here is done."""
        with self._changed:
            cost = sum(sum(each.costs[each.ended :]) for each in self._queue.tickets)
        return min(LONGEST_ADVICE, max(1, ceil(self._pace * cost)))

    async def ask(
        self,
        job: Job,
        client: str,
        follow: Follow | None = None,
        begin: Callable[[], None] = ignore,
    ) -> list[Any]:
        """Return an answer, or the error that concerns it alone, for each input. Cancelling ends
        the work.

        Args:
            follow: called with the tokens of each piece as they appear, if the job has sentences.
            begin: called by the thread that works, when it begins with the first piece.

        Raises:
            Full: if the queue is full.
            TransductError: from the work itself.
        """
        places = self.most + (self.most // 10 if job.inputs <= self.most // 100 else 0)
        # Few of the inputs here wait, but to count these takes longer.
        if self._inputs + job.inputs > places and self.waiting + job.inputs > places:
            raise Full(self.advice)
        if not job.pieces:
            return []
        self._loop = asyncio.get_running_loop()
        request = _Request(job, self._loop.create_future(), follow, begin)
        with self._changed:
            ticket = self._queue.add(client, job.kind, job.costs)
            self._requests[ticket] = request
        self._inputs += job.inputs
        self._urgent |= ticket.total <= self._small
        if not self._waking:  # once for all requests that the loop reads together
            self._waking = True
            self._loop.call_soon(self._wake)
        try:
            return await request.answer
        finally:
            self._inputs -= job.inputs
            with self._changed:
                self._forget(ticket)

    def _wake(self) -> None:
        """Let the thread that works see what has been asked."""
        self._waking = False
        with self._changed:
            self._news = True
            # else nobody joins before the steps under way are taken
            if self._steps <= 0 or self._urgent:
                self._signal()
            self._urgent = False
            self._changed.notify()

    async def run(self) -> None:
        """Answer requests until cancelled."""
        pool = ThreadPoolExecutor(1, initializer=self._start)
        try:
            await asyncio.get_running_loop().run_in_executor(pool, self._serve)
        finally:
            with self._changed:
                self._stopped = True
                self._signal()
                self._changed.notify()
            pool.shutdown(wait=False)  # it ends at its next pause

    def _serve(self) -> None:
        """Work until stopped."""
        while True:
            with self._changed:
                some = None if self._stopped else self._next()
                if not (some or self._stopped or self._running or self._ready):
                    self._changed.wait()
            if self._stopped:
                return
            self._advance(some)

    def _next(self, within: Slice | None = None) -> Slice | None:
        """The next slice; the lock is held. None while those in running batches go first."""
        # No request costs less than what an input does beside its tokens.
        if self._ready or (self._running and self._steps > 0 and self._small < BESIDE):
            return None
        left = self._budget - sum(ticket.costs[piece] for ticket, piece in self._running.values())
        if self._running:
            left = min(left, ENCODED)
        if self._running and (self._steps > 0 or left <= 0):
            # Who is much cheaper waits neither for these steps nor for the end of what is dear.
            within, left = within or Slice([*self._running.values()]), ENCODED
            dear = self._steps <= 0 and within.dearest > ENCODED
            if not dear and all(each.total > self._small for each in self._queue.tickets):
                return None
        return self._queue.take(AT_ONCE, left, within)

    def _advance(self, some: Slice | None, interrupted: Slice | None = None) -> None:
        """Work on a slice, or let it join a running batch; then let these take steps."""
        if some is not None:
            with self._changed:
                job = next(
                    (self._requests[t].job for t, _ in some.pieces if t in self._requests), None
                )
            if job is not None and job.sentences:
                self._ready += some.pieces
            else:
                self._work(some, interrupted)
        if self._running or self._ready:
            began = perf_counter()
            self._join()
            self._step()
            self._seconds += perf_counter() - began
        self._run_calls()

    def _join(self) -> None:
        """Let pieces that fit join their running batches, and those leave that nobody waits for."""
        joining: dict[Batch, list[Sentence]] = {}
        used: dict[Batch, tuple[int, int]] = {}
        with self._changed:
            self._news = False
            for one in [one for one, (t, _) in self._running.items() if t not in self._requests]:
                del self._running[one]
                for batch in self._every():
                    batch.leave(one)
            while self._ready:
                ticket, piece = self._ready[0]
                request = self._requests.get(ticket)
                if request is None:
                    self._ready.popleft()
                    continue
                request.begin()
                one, model = request.job.sentences[piece], request.job.model
                if request.follow is not None:
                    one.follow = partial(self._call_in_loop, request.follow, piece)
                kinds = self._batches.setdefault(model, {})
                known = kinds.get(Running)  # what the model can do is not asked again
                suits = isinstance(known, Running) and known.suits(one)
                kind = Running if suits else running_batch(model, one)
                batch = kinds[kind] = kinds.get(kind) or kind(model)
                pages, rows = used.get(batch, (0, 0))
                if not batch.takes(one, pages, rows):
                    break
                used[batch] = pages + one.pages, rows + one.beam
                joining.setdefault(batch, []).append(one)
                self._running[one] = self._ready.popleft()
        largest = max((ticket.total for ticket, _ in self._running.values()), default=0)
        self._small = largest // MUCH
        for batch, sentences in joining.items():
            if self._steps <= 0:  # who joins meanwhile does not prolong them
                self._steps = (batch.rows + len(sentences)) // ROWS_A_STEP
            self._guarded(batch, batch.join, sentences)

    def _step(self) -> None:
        """Let the running batches take steps, and answer those that are finished.

        After a step of all, the sentences of small requests take steps alone, for as long as it
        took. So they wait for one such step, and the large ones have half of the time at least.
        """
        most, taken, began = self._steps if self._steps > 0 else STEPS, 1, perf_counter()
        alone = self._lead > 0.0 and self._small >= BESIDE
        small = [one for one, (t, _) in self._running.items() if alone and t.total <= self._small]
        for batch in self._every():
            only = [one for one in small if one in batch.all] if small else None
            together = len(batch.all if only is None else only)
            if not together:
                continue
            start, before = perf_counter(), batch.steps
            done = self._guarded(batch, partial(batch.step, most, only))
            taken = max(taken, batch.steps - before)
            self._watch(together, perf_counter() - start)
            if done:
                self._finish(done)
        seconds = perf_counter() - began
        if small:
            self._lead -= seconds
        else:
            self._steps -= taken
            self._lead = min(self._lead + seconds, seconds)

    def _finish(self, done: Sequence[tuple[Sentence, list[Hypothesis]]]) -> None:
        """Answer sentences of running batches. One whose output is another sentence goes on as
        that."""
        pieces = [self._running.pop(one) for one, _ in done]
        with self._changed:
            jobs = [(r := self._requests.get(ticket)) and r.job for ticket, _ in pieces]
        outputs = isolate_failures(
            lambda some: [job and job.read(*each) for job, each in some],
            [*zip(jobs, done, strict=True)],
            [ticket for ticket, _ in pieces],
            BaseException,
        )
        ended = []
        for job, (ticket, piece), output in zip(jobs, pieces, outputs, strict=True):
            if isinstance(output, Sentence):
                assert isinstance(job, Job)
                job.sentences[piece] = output
                self._ready.append((ticket, piece))
            else:
                self._deliver(ticket, piece, output)
                ended.append((ticket, piece))
        some = Slice(ended)
        with self._changed:
            if ended:
                self._pace = DECAY * self._pace + (1.0 - DECAY) * self._seconds / some.cost
                self._seconds = 0.0
            self._queue.done(some)

    def _guarded(
        self, batch: Batch, work: Callable[..., Any], sentences: Sequence[Sentence] = ()
    ) -> Any:
        """Do something with a batch. If it fails, its sentences are worked on one by one, so that
        an error reaches only the request that it is about."""
        [done] = isolate_failures(
            lambda _: [work(sentences) if sentences else work()], [batch], None, BaseException
        )
        if not isinstance(done, BaseException):
            return done
        with self._changed:
            for kinds in [*self._batches.values()]:
                for kind in [kind for kind, each in kinds.items() if each is batch]:
                    del kinds[kind]
        for one in [*batch.all, *sentences]:
            ticket, piece = self._running.pop(one)
            self._answer([(ticket, piece)])
            with self._changed:
                self._queue.done(Slice([(ticket, piece)]))
        return []

    def _work(self, some: Slice, interrupted: Slice | None = None) -> None:
        """Work on a slice, and time it."""
        began = perf_counter()
        # what interrupts is short, and is not interrupted itself
        with pausing(None if interrupted else lambda: self._pause(some)):
            self._answer(some.pieces)
        seconds = perf_counter() - began
        self._watch(len(some.pieces), seconds)
        with self._changed:
            self._pace = DECAY * self._pace + (1.0 - DECAY) * seconds / some.cost
            self._queue.done(some)

    def _pause(self, some: Slice) -> None:
        """Answer what is much shorter than this slice and has a right to go first."""
        if not (self._news or self._running or self._ready):
            return
        with self._changed:
            if self._stopped or not any(ticket in self._requests for ticket, _ in some.pieces):
                raise _Abandoned
            shorter = self._next(some)
            self._news = shorter is not None
        self._advance(shorter, some)

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
        for request in here.values():
            request.begin()
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
            self._deliver(ticket, piece, output)

    def _deliver(self, ticket: Ticket, piece: int, output: Any) -> None:
        """Give the output of a piece to its request, whose last one completes the answer. An error
        that is about no input ends the request."""
        with self._changed:
            request = self._requests.get(ticket)
        if request is None:
            return
        if isinstance(output, TransductError) and output.input is not None:
            output = output.at(input=request.job.owners[piece])
        elif isinstance(output, BaseException):
            with self._changed:
                self._forget(ticket)
            self._call_in_loop(request.settle, output)
            return
        request.outputs[piece] = output
        request.missing -= 1
        if request.job.follow is not None:
            self._call_in_loop(request.job.follow, [*request.outputs])
        if not request.missing:
            [answers] = isolate_failures(
                lambda given: [request.job.join(*given)], [request.outputs], None, BaseException
            )
            self._call_in_loop(request.settle, answers)

    def _call_in_loop(self, call: Callable[..., Any], *given: Any) -> None:
        """Call something in the event loop, at the next `_run_calls`: all calls together, because
        to wake the loop takes longer than most of them."""
        self._calls.append((call, given))

    def _run_calls(self) -> None:
        """Let the event loop do the calls that are due."""
        calls, self._calls, loop = self._calls, [], self._loop
        if calls and loop is not None:
            soon = loop.call_soon
            loop.call_soon_threadsafe(lambda: [soon(call, *given) for call, given in calls])

    def _forget(self, ticket: Ticket) -> None:
        """Take a request out; the lock is held."""
        request = self._requests.pop(ticket, None)
        self._queue.cancel(ticket)
        if request is not None and request.missing:
            self._signal()

    def _signal(self) -> None:
        """Let the thread that works see that something has changed; the lock is held."""
        self._news = True
        for batch in self._every():
            batch.interrupt()
