"""Search as one loop: the model steps, filters rescore or forbid tokens, a strategy chooses.

Works with any model that has `start` and `step`, and any `Strategy`. A strategy may replace the
whole step (`advance`), as `inference.cpu_beam` does; it is tested equal to the readable one.

Let B be sources, R = B * beam the rows of the search, V the vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from transduct.decoding.filters import Filter
from transduct.errors import NotFinite
from transduct.functional.lookup import log_normaliser, top
from transduct.segments import Segments

LengthRule = Literal["wu", "power"]
Phrase = tuple[tuple[int, ...], ...]  # forms in tokens; an output must hold one of them
Stopping = Literal["likeliest", "early", "estimate", "never"]
# A context variable, no global: each thread of a server runs a search of its own.
_AT_PAUSE: ContextVar[Callable[[], None] | None] = ContextVar("called at a pause", default=None)


@dataclass(frozen=True)
class Hypothesis:
    """One finished output.

    Attributes:
        tokens: ids, without the end-of-sentence token.
        score: sum of the log-probabilities of the tokens, the end of the sentence included.
        rank: the score after the length penalty, by which hypotheses are sorted.
    """

    tokens: list[int]
    score: float
    rank: float


class Decodes(Protocol):
    """The interface of a model that search uses."""

    def start(self, memory: Tensor, segments: Segments, beam: int) -> Any:
        """The state before the first token; its `select(rows)` keeps these rows, in this order."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """(R,) newest tokens -> (R, V) logits, and the state after them."""


class Strategy:
    """Chooses the next token of every row and collects finished hypotheses.

    Attributes:
        beam: the number of rows of each source.
        hypotheses: the finished outputs of each source.
        history: (R, t) the tokens of each row, the begin token first.
        sources: (B) the source that each group of rows belongs to.
        done: (B) whether that source is finished.

    Args:
        limits: the most tokens of an output of each source, its end included.
        begin: the token before each output: one for all sources, or one for each.
    """

    _dropped = False

    def __init__(
        self, beam: int, limits: Sequence[int], begin: int | Sequence[int], end: int, device: Any
    ) -> None:
        self.beam, self.end, self.device = beam, end, device
        self.limits = list(limits)
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in limits]
        self.sources, self.done = [*range(len(limits))], [False] * len(limits)
        begins = [begin] * len(limits) if isinstance(begin, int) else list(begin)
        self.history = torch.tensor(begins, device=device).repeat_interleave(beam)[:, None]

    @property
    def running(self) -> bool:
        """Whether any source is not finished yet."""
        return not all(self.done)

    def drop(self, source: int) -> None:
        """Search no more for a source; its rows are gone after the next step."""
        for group, each in enumerate(self.sources):
            if each == source and not self.done[group]:
                self.done[group] = self._dropped = True

    def live(self, source: int) -> list[list[int]]:
        """The tokens of the rows of a source that go on."""
        raise NotImplementedError

    def _shrink(self) -> Tensor | None:
        """Remove finished sources from `sources` and `done`, once a quarter is done or one was
        dropped. Returns the groups of rows (B',) that stay, or None if nothing was removed."""
        # Not at once: dropping rows copies the caches of all that stay.
        if not self.running or not (self._dropped or 4 * sum(self.done) >= len(self.done)):
            return None
        stay = [group for group, done in enumerate(self.done) if not done]
        self.sources, self._dropped = [self.sources[group] for group in stay], False
        self.done = [False] * len(stay)
        return torch.tensor(stay, device=self.device)

    def advance(
        self, model: Decodes, state: Any, filters: Sequence[Filter]
    ) -> tuple[Tensor | None, Any]:
        """Take a step. Returns the rows that the next step continues, None if they stay as they
        are, and the state of the model before it."""
        logits, state = model.step(self.history[:, -1], state)
        # Low precision is enough for the model, not for sums over a long output.
        logits = logits.float()
        # Before the filters: a score is a log-probability of the model, whatever is forbidden.
        normaliser = log_normaliser(logits)  # (R,)
        for each in filters:
            logits = each(logits, self.history)
        return self.choose(logits, normaliser), state

    def choose(self, logits: Tensor, normaliser: Tensor) -> Tensor | None:
        """Take filtered logits (R, V) and the log-normaliser (R,) of the unfiltered ones. Returns
        the rows that the next step continues, or None if they stay as they are."""
        raise NotImplementedError


class Continuations(NamedTuple):
    """The best continuations of each source, in order; padded with scores of minus infinity if
    there are fewer.

    Attributes:
        scores, origin, tokens: (B, beam) of the best continuations, including ends: the score, the
            row of the source that is continued, and the token.
        live: (B, beam) the scores of the best continuations that do not end the sentence.
        rows, newest: (R,) the row that each live continuation extends, and its token.
        ends: whether any of the best may end the sentence.
    """

    scores: Tensor
    origin: Tensor
    tokens: Tensor
    live: Tensor
    rows: Tensor
    newest: Tensor
    ends: bool


def search(
    model: Decodes,
    memory: Tensor,
    segments: Segments,
    strategy: Strategy,
    filters: Sequence[Filter] = (),
) -> list[list[Hypothesis]]:
    """Run `strategy` to the end. Returns the hypotheses of each source, the best first."""
    for _ in steps(model, memory, segments, strategy, filters):
        pause()
    return strategy.hypotheses


@torch.inference_mode()
def steps(
    model: Decodes,
    memory: Tensor,
    segments: Segments,
    strategy: Strategy,
    filters: Sequence[Filter] = (),
) -> Iterator[None]:
    """Run `strategy` to the end. Yields before each step."""
    # The memory is read once: the state keeps its keys and values, once for all rows of a source.
    state = model.start(memory, segments, strategy.beam)
    while strategy.running:
        yield
        rows, state = strategy.advance(model, state, filters)
        # What is kept for each row must follow its row: the model's cache, and the filters' states.
        if rows is not None and strategy.running:
            state.select(rows)
            for each in filters:
                each.select(rows)


def finite(found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """Return the hypotheses if they are all valid.

    Raises:
        NotFinite: if a source has no hypothesis, or its best score is not finite.
    """
    if not all(hypotheses and isfinite(hypotheses[0].score) for hypotheses in found):
        raise NotFinite
    return found


def length_penalty(length: int, alpha: float, rule: LengthRule = "wu") -> float:
    """The divisor of a score: ((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14) or, by the rule
    "power", |Y|^alpha."""
    return float((length if rule == "power" else (5.0 + length) / 6.0) ** alpha)


class Beam(Strategy):
    """Beam search; greedy search if the beam is 1.

    Each step considers the best 2 * beam continuations of a source. Those among the first `beam`
    that end the sentence are finished; the best `beam` that do not end it stay active. A source is
    done when `beam` hypotheses are finished and no active one is likelier than the likeliest of
    them. The second condition matters because a confident model ranks the end of the sentence
    second in step after step, and these poor early ends must not crowd out the right one. At the
    length limit only the end of the sentence is allowed.

    Args:
        rule: of the length penalty; see `length_penalty`.
        cut: whether the end at a length limit, where a `Cut` makes it free, does not count in the
            length.
        stopping: another condition for a source that has `beam` hypotheses: none ("early"), or
            that the worst of the best `beam` ranks no lower than the likeliest active row would if
            it ended now ("estimate") or at the length limit ("never").
    """

    def __init__(
        self,
        beam: int,
        limits: Sequence[int],
        begin: int | Sequence[int],
        end: int,
        alpha: float,
        device: Any,
        rule: LengthRule = "wu",
        stopping: Stopping = "likeliest",
        cut: bool = False,
    ) -> None:
        super().__init__(beam, limits, begin, end, device)
        self.alpha, self.cut = alpha, cut
        self.rule: LengthRule = rule
        self.stopping: Stopping = stopping
        # of the sources that are still searched, and the smallest of them
        self._limits = torch.tensor(self.limits, dtype=torch.int64, device=device)
        self._first_limit = min(self.limits, default=0)
        # whether a source has `beam` hypotheses, but also a row that may still beat them
        self._waiting = False
        self.scores = torch.full(
            (len(limits), beam), float("-inf"), dtype=torch.float64, device=device
        )
        self.scores[:, 0] = 0.0  # all rows of a source start alike: only the first may be continued

    def live(self, source: int) -> list[list[int]]:
        """The tokens of the rows of a source that go on."""
        group = self.sources.index(source)
        rows = self.history.view(-1, self.beam, self.history.shape[1])[group]
        return rows[self.scores[group].isfinite(), 1:].tolist()

    def choose(self, logits: Tensor, normaliser: Tensor) -> Tensor | None:
        """One step of the search over logits (R, V); see `Strategy`."""
        length = self.history.shape[1]
        limits = self._limits if length >= self._first_limit else None
        return self.take(continuations(logits, normaliser, self.scores, self.end, limits, length))

    def take(self, found: Continuations) -> Tensor | None:
        """Advance by one step's continuations. Returns the rows, as `choose` does."""
        self.scores = found.live
        # Reading the continuations on the host stalls a GPU, so only where an output may end.
        if self._waiting or self.history.shape[1] >= self._first_limit or found.ends:
            self._collect_ended(found)
        return self._append(None if self.beam == 1 else found.rows, found.newest)

    def _append(self, rows: Tensor | None, newest: Tensor) -> Tensor | None:
        """Append each row's newest token, without the rows that `_shrink` removes. Returns the
        rows, as `choose` does."""
        if (stay := self._shrink()) is not None:
            rows = torch.arange(len(newest), device=self.device) if rows is None else rows
            rows = rows.view(-1, self.beam)[stay].flatten()  # (R',)
            newest = newest.view(-1, self.beam)[stay].flatten()  # (R',)
            self.scores = self.scores[stay]
            self._limits = self._limits[stay]
            self._first_limit = min(self.limits[source] for source in self.sources)
        history = self.history if rows is None else self.history.index_select(0, rows)
        self.history = torch.cat((history, newest[:, None]), 1)
        return rows

    def _collect_ended(self, found: Continuations) -> None:
        """Collect the continuations that end the sentence, and find out which sources are done."""
        # Where there are too few continuations, those of minus infinity fill up and are no outputs.
        ended = (found.tokens == self.end) & found.scores.isfinite()
        groups = ended.nonzero()[:, 0]
        rows = groups * self.beam + found.origin[ended]
        outputs = self.history.index_select(0, rows)[:, 1:].tolist()
        for group, score, tokens in zip(
            groups.tolist(), found.scores[ended].tolist(), outputs, strict=True
        ):
            if not self.done[group]:
                length = min(len(tokens) + 1, self._longest(self.sources[group]))
                rank = score / length_penalty(length, self.alpha, self.rule)
                self.hypotheses[self.sources[group]].append(Hypothesis(tokens, score, rank))
        # One copy to the host for all sources, not one for each.
        best_active = found.live[:, 0].tolist()
        for group, source in enumerate(self.sources):
            finished = self.hypotheses[source]
            enough = len(finished) >= self.beam and self._enough(source, best_active[group])
            if not self.done[group] and (enough or self.history.shape[1] >= self.limits[source]):
                self.done[group] = True
                finished.sort(key=lambda hypothesis: -hypothesis.rank)
                del finished[self.beam :]
        self._waiting = any(
            not done and len(self.hypotheses[source]) >= self.beam
            for source, done in zip(self.sources, self.done, strict=True)
        )

    def _enough(self, source: int, active: float) -> bool:
        """Whether a source with `beam` hypotheses is done; `active` is its likeliest row's
        score."""
        found, length = self.hypotheses[source], self.history.shape[1]
        if self.stopping == "likeliest":
            # Log-probabilities only fall, so an active row cannot become likelier than it is now.
            return max(h.score for h in found) >= active
        if self.stopping == "early" or self.beam == 1:
            return True
        # A longer output is divided by more: this is the most that an active row can still reach.
        if self.stopping == "never" and self.alpha > 0.0:
            length = self._longest(source)
        worst = sorted((h.rank for h in found), reverse=True)[self.beam - 1]
        return worst >= active / length_penalty(length, self.alpha, self.rule)

    def _longest(self, source: int) -> int:
        """The length by which the longest output of a source is penalised; see `cut`."""
        return max(1, self.limits[source] - self.cut)


def continuations(
    logits: Tensor,
    normaliser: Tensor,
    scores: Tensor,
    end: int,
    limits: Tensor | None = None,
    length: int = 0,
) -> Continuations:
    """The 2 * beam best continuations of each source, split into those that end and those that stay
    active.

    Args:
        logits: (R, V).
        normaliser: (R,) the log-normaliser of each row.
        scores: (B, beam) the log-probability of each row so far, in float64.
        limits: (B,) the most tokens of a row; rows of `length` tokens that have reached it must
            end. None if no source is at its limit.
    """
    sources, beam = scores.shape
    if limits is not None:
        others = torch.arange(logits.shape[1], device=logits.device) != end  # (V,)
        # At its limit a row may only end. A mask, because each source has its own limit.
        over = (limits <= length).repeat_interleave(beam)  # (R,)
        logits = logits.masked_fill(over[:, None] & others, float("-inf"))
    # Twice the beam, because up to `beam` of them may end, and as many must stay active.
    best, tokens = top(logits, min(2 * beam, logits.shape[1]))  # (R, k)
    # In float64, so that the sum over a long output keeps the order of nearly equal rows.
    continued = scores.reshape(-1, 1) + (best.double() - normaliser.double()[:, None])  # (R, k)
    # (B, 2 * beam) each
    found, places = continued.view(sources, -1).topk(min(2 * beam, beam * best.shape[1]), -1)
    origin = places // best.shape[1]  # (B, 2 * beam)
    chosen = tokens.view(sources, -1).gather(1, places)  # (B, 2 * beam)
    ends = chosen == end
    # What ends is moved behind what goes on; within both the order stays.
    count = chosen.shape[1]
    order = (ends.long() * count + torch.arange(count, device=ends.device)).argsort(-1)[:, :beam]
    live = found.gather(1, order).masked_fill(ends.gather(1, order), float("-inf"))
    first_rows = torch.arange(0, sources * beam, beam, device=ends.device)[:, None]  # (B, 1)
    return Continuations(
        scores=found[:, :beam],
        origin=origin[:, :beam],
        tokens=chosen[:, :beam],
        live=live,
        rows=(origin.gather(1, order) + first_rows).flatten(),
        newest=chosen.gather(1, order).flatten(),
        ends=bool(ends.any()),
    )


def pause() -> None:
    """Call what `pausing` has set, such as a server's look at its queue. What it raises ends the
    work."""
    called = _AT_PAUSE.get()
    if called is not None:
        called()


@contextmanager
def pausing(called: Callable[[], None] | None) -> Iterator[None]:
    """Within this block, in this thread, `called` is called at each `pause`; None for nothing."""
    before = _AT_PAUSE.set(called)
    try:
        yield
    finally:
        _AT_PAUSE.reset(before)
