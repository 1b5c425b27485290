"""Beam search that stays on the device: `search.Beam` over tensors of fixed shape and address;
and sampling, by the numbers that `Sampling` draws on the host.

No step synchronises with the host, so that a step can be captured as a CUDA graph and replayed.
Tokens and back-pointers are recorded step by step; the outputs are traced back when the search is
over. Let B be sources, R = B * beam the rows of the search, V the vocabulary, L the longest output,
its end included.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from transduct.decoding.sampling import draw
from transduct.decoding.search import Hypothesis, length_penalty
from transduct.functional.lookup import PEAK_BLOCK, block_peaks, largest, largest_in, log_normaliser
from transduct.kernels.triton import trusted

NOTHING = float("-inf")
RANKED = 128  # continuations of a source, of a beam of up to 7, that are ranked by all pairs
SHARED = ("rules", "special", "now")  # fields of a `DeviceBeam` that do not belong to its sources


@dataclass(frozen=True)
class Rules:
    """What all steps of all searches share.

    Attributes:
        end: the token that ends an output.
        forbidden: tokens that no output may contain.
        fixed: whether every output is as long as its limit and its end costs nothing, as with
            `FixedLength`.
        led: whether outputs begin with given tokens, as with `Prefix`.
        no_repeat: no output holds a run of this many tokens twice, as with `NoRepeat`; 0 allows
            any.
        temperature, top_k, top_p: how tokens are drawn, each row for itself, as by `Sampling`; a
            temperature of 0 searches.
    """

    end: int
    forbidden: tuple[int, ...] = ()
    fixed: bool = False
    led: bool = False
    no_repeat: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True)
class DeviceBeam:
    """The state of a search and its record; greedy search if the beam is 1.

    Chooses the same tokens as `search.Beam`. Sources that are done are stepped too, without effect.

    Attributes:
        special: (f + 1,) the tokens scored separately: the forbidden ones, then the end.
        now: (1,) the number of model steps so far; the caller increments it.
        newest: (B, beam) the last token of each row.
        scores: (B, beam) the log-probability of each row.
        limits: (B,) the most tokens of an output, its end included.
        count, likeliest: (B,) the number of finished hypotheses and the highest score among them.
        done: (B,) whether a source is finished.
        tokens, parents: (B, L, beam) the token each row chose in each step, and the row it
            continued.
        ended, origins: (B, L, beam) the scores of the hypotheses that ended in each step (minus
            infinity for none), and the rows they ended.
        leads: (B, L) the token each output must have in each place, -1 for any; (B, 0) if none is
            led.
        written: (B, beam, L) the tokens of each row, -1 where none is yet; (B, beam, 0) if runs may
            be repeated.
        over: (B, beam) whether a drawn output has ended.
        uniform: (B, beam, L) the number by which each row draws in each step; (B, beam, 0) in a
            search.
    """

    rules: Rules
    special: Tensor
    now: Tensor
    newest: Tensor
    scores: Tensor
    limits: Tensor
    count: Tensor
    likeliest: Tensor
    done: Tensor
    tokens: Tensor
    parents: Tensor
    ended: Tensor
    origins: Tensor
    leads: Tensor
    written: Tensor
    over: Tensor
    uniform: Tensor

    @classmethod
    def of(cls, rules: Rules, now: Tensor, sources: int, beam: int, capacity: int) -> "DeviceBeam":
        """An empty search for up to `sources` sources, all of them done."""

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(sources, *shape, dtype=torch.int64, device=now.device)

        def scores(*shape: int) -> Tensor:
            return torch.full((sources, *shape), NOTHING, dtype=torch.float64, device=now.device)

        return cls(
            rules,
            # each once
            special=torch.tensor(
                [*({*rules.forbidden} - {rules.end}), rules.end], device=now.device
            ),
            now=now,
            newest=numbers(beam),
            scores=scores(beam),
            limits=numbers(),
            count=numbers(),
            likeliest=scores(),
            done=numbers() == 0,
            tokens=numbers(capacity, beam),
            parents=numbers(capacity, beam),
            ended=scores(capacity, beam),
            origins=numbers(capacity, beam),
            leads=numbers(capacity * rules.led) - 1,
            written=numbers(beam, capacity * bool(rules.no_repeat)) - 1,
            over=numbers(beam) > 0,
            uniform=scores(beam, capacity * bool(rules.temperature)).float(),
        )

    @property
    def by_source(self) -> dict[str, Any]:
        """The tensors whose first dimension is the sources, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in SHARED
        }

    def admit(self, begin: Tensor, limits: Tensor) -> None:
        """Start a search with the begin tokens (B,) and the limits (B,) of its sources; 0 marks an
        unused place."""
        sources = len(limits)
        self.newest[:sources] = begin[:, None]
        self.limits[:sources] = limits
        # all rows of a source start alike: a search may only continue the first
        self.scores.fill_(NOTHING)[:, : None if self.rules.temperature else 1] = 0.0
        self.over.zero_()
        self.count.zero_()
        self.likeliest.fill_(NOTHING)
        self.done.fill_(True)[:sources] = limits == 0
        self.ended.fill_(NOTHING)
        self.written.fill_(-1)

    def lead(self, prefixes: Sequence[Sequence[int]]) -> None:
        """Set what the outputs of the first sources begin with; rows are of one length, with -1 for
        any token."""
        given = torch.tensor(prefixes, dtype=torch.int64)[:, : self.leads.shape[1]]
        self.leads.fill_(-1)
        self.leads[: len(given), : given.shape[1]] = given.to(self.leads.device)

    def draw_by(self, uniform: Sequence[Sequence[Sequence[float]]]) -> None:
        """Set the numbers by which the rows of the first sources draw, one for each step up to the
        source's limit."""
        given = np.zeros((len(uniform), *self.uniform.shape[1:]), np.float32)
        for rows, numbers in zip(given, uniform, strict=True):
            rows[:, : len(numbers[0])] = numbers
        self.uniform[: len(given)] = torch.from_numpy(given)

    def part(self, sources: int) -> "DeviceBeam":
        """A view of the first `sources` sources."""
        return replace(self, **{name: x[:sources] for name, x in self.by_source.items()})

    def gather(self, sources: Tensor) -> None:
        """Move these sources to the front, in this order."""
        for x in self.by_source.values():
            x[: len(sources)] = x.index_select(0, sources)

    def choose(self, logits: Tensor) -> Tensor | None:
        """One search step over logits (R, V), which are modified. Returns the rows (R,) that the
        next step continues, or None if they stay as they are."""
        sources, beam = self.scores.shape
        at_limit = self.limits <= self.now  # (B,)
        if self.rules.temperature:
            self._draw(logits.float(), at_limit)
            return None
        best, tokens, end = self._continuations(logits, at_limit)
        if beam == 1:
            ends = (end >= best[:, :, 0]) & (end > NOTHING) & ~self.done[:, None]  # (B, 1)
            self.done.logical_or_(at_limit | ends[:, 0])
            ended = end.masked_fill(~ends, NOTHING)
            self._write({"tokens": tokens[:, :, 0], "ended": ended}, best[:, :, 0])
            return None
        best, tokens = (
            torch.cat((best, end[:, :, None]), 2),
            pad(tokens, (0, 1), value=self.rules.end),
        )
        width = best.shape[2]
        scores, places = best_of(best.flatten(1), min(2 * beam, beam * width))  # (B, 2 * beam)
        origin = places // width  # (B, 2 * beam), which row of the source
        ends = places % width == width - 1
        first = ends[:, :beam] & (scores[:, :beam] > NOTHING) & ~self.done[:, None]
        ended = scores[:, :beam].masked_fill(~first, NOTHING)
        # those that go on, in order, before those that end: (B, beam)
        behind = torch.where(ends, ends.cumsum(1) + (~ends).sum(1, keepdim=True), (~ends).cumsum(1))
        live = inverse(behind - 1)[:, :beam]
        kept = scores.masked_fill(ends, NOTHING).gather(1, live)
        self.count.add_(first.sum(1))
        self.likeliest.copy_(self.likeliest.maximum(ended.amax(1)))
        self.done.logical_or_(at_limit | (self.count >= beam) & (self.likeliest >= kept[:, 0]))
        parents, newest = (
            origin.gather(1, live),
            tokens.flatten(1).gather(1, places.gather(1, live)),
        )  # (B, beam) each
        self._write(
            {"tokens": newest, "parents": parents, "ended": ended, "origins": origin[:, :beam]},
            kept,
        )
        first_rows = torch.arange(0, sources * beam, beam, device=logits.device)[:, None]  # (B, 1)
        return (parents + first_rows).flatten()  # (R,)

    def _draw(self, logits: Tensor, at_limit: Tensor) -> None:
        """`choose` where tokens are drawn; as `Sampling.choose` and the filters before it."""
        rules, (sources, beam) = self.rules, self.scores.shape
        over = at_limit[:, None].expand(-1, beam).flatten()  # (R,)
        normaliser, end = log_normaliser(logits), slice(rules.end, rules.end + 1)
        if rules.fixed:
            logits[:, rules.end] = torch.where(over, normaliser, NOTHING)
        if rules.led:
            logits, _ = self._as_led(logits, logits[:, end])
        forbidden = self.special if rules.end in rules.forbidden else self.special[:-1]
        logits = logits.index_fill(1, forbidden, NOTHING)
        if 0 < rules.no_repeat <= self.written.shape[2]:
            logits, _ = self._unrepeated(logits, logits[:, end])
        uniform = self.uniform.index_select(2, self.now - 1).flatten()  # (R,)
        # all are sorted at once, for a graph cannot look whether the first are enough
        scaled = logits.double() / rules.temperature
        tokens = draw(scaled, uniform, rules.top_k, rules.top_p, tried=0)
        tokens = tokens.masked_fill(over, rules.end)
        gained = logits.gather(1, tokens[:, None]).squeeze(1) - normaliser
        scores = self.scores + gained.double().view(sources, beam)
        scores, tokens = scores.where(~self.over, self.scores), tokens.view(sources, beam)
        ends = (tokens == rules.end) & ~self.over
        self.over.logical_or_(ends)
        self.done.logical_or_(self.over.all(1))
        same = torch.arange(beam, device=logits.device).expand(sources, -1)
        ended = scores.masked_fill(~ends, NOTHING)
        self._write({"tokens": tokens, "parents": same, "ended": ended, "origins": same}, scores)

    def _write(self, written: dict[str, Tensor], scores: Tensor) -> None:
        """Record this step's values (B, beam) and make its tokens and scores the current ones."""
        self.newest.copy_(written["tokens"])
        self.scores.copy_(scores)
        step = self.now - 1
        if self.rules.no_repeat:
            if "parents" in written:
                rows = written["parents"][:, :, None].expand_as(self.written)
                self.written.copy_(self.written.gather(1, rows))
            self.written.index_copy_(2, step, written["tokens"][:, :, None])
        for name, values in written.items():
            getattr(self, name).index_copy_(1, step, values[:, None])

    def _continuations(self, logits: Tensor, at_limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The scores and tokens of the best continuations of each row, (B, beam, k) each, and the
        score of its end, (B, beam)."""
        rules, (sources, beam) = self.rules, self.scores.shape
        # What is forbidden only in some rows counts in the normaliser, so it is taken before.
        whole = log_normaliser(logits.float())[:, None] if rules.led or rules.no_repeat else None
        special = logits.index_select(1, self.special).float()  # (R, f + 1)
        logits.index_fill_(1, self.special, NOTHING)
        end = special[:, -1:]
        if rules.led:
            logits, end = self._as_led(logits, end)
        if 0 < rules.no_repeat <= self.written.shape[2]:
            logits, end = self._unrepeated(logits, end)
        # (R, k), (R, k), (R, n)
        values, tokens, masses = likeliest(logits, 1 if beam == 1 else 2 * beam)
        normaliser = whole
        if normaliser is None:
            normaliser = torch.cat((masses, special), 1).logsumexp(1, keepdim=True)  # (R, 1)
        end = normaliser if rules.fixed else end
        best, end = (
            (x.double() - normaliser).view(sources, beam, -1) + self.scores[:, :, None]
            for x in (values, end)
        )
        if rules.fixed:
            end = end.masked_fill(~at_limit[:, None, None], NOTHING)
        if rules.end in rules.forbidden:
            end = torch.full_like(end, NOTHING)
        best = best.masked_fill(at_limit[:, None, None], NOTHING)
        return best, tokens.view(sources, beam, -1), end[:, :, 0]  # (B, beam, k) twice, (B, beam)

    def _as_led(self, logits: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """The logits (R, V) and those of the end (R, 1), minus infinity but for what each output
        must go on with."""
        wanted = self.leads.index_select(1, self.now - 1)  # (B, 1)
        wanted = wanted.expand(-1, self.scores.shape[1]).reshape(-1, 1)  # (R, 1)
        others = torch.arange(logits.shape[1], device=logits.device) != wanted  # (R, V)
        other_end = (wanted >= 0) & (wanted != self.rules.end)
        return (
            logits.masked_fill(others & (wanted >= 0), NOTHING),
            end.masked_fill(other_end, NOTHING),
        )

    def _unrepeated(self, logits: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """The logits (R, V) and those of the end (R, 1), minus infinity where a run of tokens would
        come again, unless nothing else is possible."""
        size, written = self.rules.no_repeat, self.written.flatten(0, 1)  # (R, L)
        count = self.now - 1  # (1,) tokens written so far
        runs = written.unfold(1, size, 1)  # (R, L - size + 1, size)
        places = torch.arange(written.shape[1], device=written.device)
        before = (count - size + 1 + places[: size - 1]).clamp(min=0)
        newest = written.index_select(1, before)  # (R, size - 1)
        again = (runs[..., :-1] == newest[:, None]).all(-1)
        again &= places[: runs.shape[1]] + size <= count
        marks = torch.where(again, NOTHING, 0.0).to(logits.dtype)  # (R, L - size + 1)
        tokens = runs[..., -1].clamp(min=0)
        marks = torch.zeros_like(logits).scatter_reduce(1, tokens, marks, "amin")
        bound = logits + marks
        end_bound = end + marks[:, self.rules.end, None].float()
        possible = (bound.amax(1, keepdim=True) > NOTHING) | (end_bound > NOTHING)  # (R, 1)
        return torch.where(possible, bound, logits), torch.where(possible, end_bound, end)

    def hypotheses(self, sources: int, alpha: float) -> list[list[Hypothesis]]:
        """The finished hypotheses of the first `sources` sources, the best first; waits for the
        device."""
        tokens, parents, ended, origins = (
            x[:sources].cpu().numpy() for x in (self.tokens, self.parents, self.ended, self.origins)
        )
        source, time, rank = np.isfinite(ended).nonzero()  # by source, in the order they were found
        scores = ended[source, time, rank]
        penalties = np.array(
            [length_penalty(length + 1, alpha) for length in range(ended.shape[1])]
        )
        ranks = scores / penalties[time]
        order = np.lexsort((-ranks, source))
        starts = np.searchsorted(source, source)  # index of the first hypothesis of the same source
        order = order[np.arange(len(order)) - starts < ended.shape[2]]
        source, time, row = source[order], time[order], origins[source, time, rank][order]
        written = np.zeros((len(order), ended.shape[1]), np.int64)
        for step in range(int(time.max(initial=0)) - 1, -1, -1):
            running = step < time
            written[running, step] = tokens[source[running], step, row[running]]
            row[running] = parents[source[running], step, row[running]]
        found: list[list[Hypothesis]] = [[] for _ in range(sources)]
        rows = zip(
            written.tolist(),
            source.tolist(),
            time.tolist(),
            scores[order].tolist(),
            ranks[order].tolist(),
        )
        for output, number, length, score, rank in rows:
            found[number].append(Hypothesis(output[:length], score, rank))
        return found


def best_of(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row, in order, and their indices: (B, n) -> (B, k) twice. Of
    equal ones the first come first.

    Few are ranked by comparing all pairs: a top-k in float64 is one of the slowest kernels of a
    step, and in float32 sums over long outputs would tie.
    """
    if scores.shape[1] > RANKED:
        values, places = scores.topk(count, -1)
        return values, places
    # NaN comes first, as in a top-k, so that it is found
    known = torch.where(scores.isnan(), torch.inf, scores)
    one, other = known[:, :, None], known[:, None]
    earlier = torch.ones(one.shape[1], one.shape[1], dtype=torch.bool, device=scores.device).tril(
        -1
    )
    rank = ((other > one) | ((other == one) & earlier)).sum(2)  # (B, n)
    places = inverse(rank)[:, :count]
    return scores.gather(1, places), places


def inverse(order: Tensor) -> Tensor:
    """The inverse of the permutation in each row: (B, n) -> (B, n)."""
    numbers = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, numbers)


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` largest logits of each row, in order, their indices, and the log-sum-exp of the
    row in parts.

    Args:
        logits: (R, V), contiguous.

    Returns:
        (R, k) and (R, k), with k at most V, and (R, n), numbers whose log-sum-exp is that of the
        row.
    """
    count, blocks = min(count, logits.shape[1]), logits.shape[1] // PEAK_BLOCK
    peaks, masses = _peaks(logits)
    if blocks <= count:
        values, places = logits.topk(count, -1)
    else:
        values, places = largest_in(logits, largest(peaks[:, :blocks], count)[1], count)
    return values.float(), places, masses


def _peaks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The maxima of the blocks, (R, V / PEAK_BLOCK) or one more for a partial block, and the
    log-sum-exp of parts of the row, (R, n)."""
    if trusted("triton_peaks", logits.device, logits.dtype, PEAK_BLOCK):
        from transduct.kernels.triton_peaks import row_peaks

        return row_peaks(logits, PEAK_BLOCK)
    return block_peaks(logits), log_normaliser(logits.float())[:, None]
