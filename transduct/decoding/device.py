"""Beam search that stays on the device: `search.Beam` over shapes and addresses that do not change.

No step waits for the device or copies anything to or from it, so that a step can be captured as a graph and replayed.
What has been chosen is written down step by step; whole outputs are read from it when a search is over. Let B be
sources, R = B * beam the rows of the search, V the vocabulary, L the most tokens of an output, its end included.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from transduct.decoding.search import PEAK_BLOCK, Hypothesis, length_penalty, log_normaliser
from transduct.functional.trials import trusted

NOTHING = float("-inf")


@dataclass(frozen=True)
class Rules:
    """What is the same in every step of every search.

    Attributes:
        end: the token that ends an output.
        forbidden: tokens that no output may hold.
        fixed: whether every output is as long as its limit allows and its end comes free, as with `FixedLength`.
    """

    end: int
    forbidden: tuple[int, ...] = ()
    fixed: bool = False


@dataclass(frozen=True)
class DeviceBeam:
    """The state of the search, and what it has written down; with a beam of one it is greedy.

    It chooses as `search.Beam` does. A source that is done is stepped on, to no effect.

    Attributes:
        special: the tokens (f + 1,) that do not compete with the others, those forbidden and then the end.
        now: (1,) how often the model has been stepped; whoever steps it counts.
        newest: (B, beam) the last token of each row.
        scores: (B, beam).
        limits: (B,).
        count, likeliest: (B,) finished hypotheses, and the highest score of one.
        done: (B,).
        tokens, parents: (B, L, beam) what each row wrote in each step, and which row of the source it went on from.
        ended, origins: (B, L, beam) scores of the hypotheses that ended in each step, minus infinity where none did,
            and the rows that they ended.
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

    @classmethod
    def of(cls, rules: Rules, now: Tensor, sources: int, beam: int, capacity: int) -> "DeviceBeam":
        """A search that can hold so many sources; all are done."""

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(sources, *shape, dtype=torch.int64, device=now.device)

        def scores(*shape: int) -> Tensor:
            return torch.full((sources, *shape), NOTHING, dtype=torch.float64, device=now.device)

        return cls(
            rules,
            special=torch.tensor([*({*rules.forbidden} - {rules.end}), rules.end], device=now.device),  # each once
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
        )

    @property
    def of_sources(self) -> list[Tensor]:
        """Everything that belongs to sources, whose first dimension they are."""
        return [getattr(self, field.name) for field in fields(self)[3:]]

    def admit(self, begin: Tensor, limits: Tensor) -> None:
        """Begin anew after tokens (B,) with limits (B,), zero for a place that nobody fills."""
        held = len(limits)
        self.newest[:held] = begin[:, None]
        self.limits[:held] = limits
        self.scores.fill_(NOTHING)[:, 0] = 0.0  # all rows of a source begin alike: only the first may be continued
        self.count.zero_()
        self.likeliest.fill_(NOTHING)
        self.done.fill_(True)[:held] = limits == 0
        self.ended.fill_(NOTHING)

    def part(self, sources: int) -> "DeviceBeam":
        """The search of the first sources; nothing is copied."""
        names = [field.name for field in fields(self)[3:]]
        return replace(self, **{name: getattr(self, name)[:sources] for name in names})

    def gather(self, sources: Tensor) -> None:
        """Move these sources to the front, in this order."""
        for x in self.of_sources:
            x[: len(sources)] = x.index_select(0, sources)

    def choose(self, logits: Tensor) -> Tensor | None:
        """One step over logits (R, V), which are changed; gives back the rows (R,) that the next step continues, None
        if they stay as they are."""
        sources, beam = self.scores.shape
        at_limit = self.limits <= self.now  # (B,)
        best, tokens, end = self._continuations(logits, at_limit)
        if beam == 1:
            self._greedy(best[:, :, 0], tokens[:, :, 0], end, at_limit)
            return None
        best, tokens = torch.cat((best, end[:, :, None]), 2), pad(tokens, (0, 1), value=self.rules.end)
        width = best.shape[2]
        scores, places = best.flatten(1).topk(min(2 * beam, beam * width), -1)  # (B, 2 * beam)
        origin = places // width  # (B, 2 * beam), which row of the source
        ends = places % width == width - 1
        first = ends[:, :beam] & (scores[:, :beam] > NOTHING) & ~self.done[:, None]
        ended = scores[:, :beam].masked_fill(~first, NOTHING)
        kept, live = scores.masked_fill(ends, NOTHING).topk(beam, -1)  # (B, beam)
        self.count.add_(first.sum(1))
        self.likeliest.copy_(self.likeliest.maximum(ended.amax(1)))
        self.done.logical_or_(at_limit | (self.count >= beam) & (self.likeliest >= kept[:, 0]))
        parents, newest = origin.gather(1, live), tokens.flatten(1).gather(1, places.gather(1, live))  # (B, beam) each
        self._write({"tokens": newest, "parents": parents, "ended": ended, "origins": origin[:, :beam]}, kept)
        first_rows = torch.arange(0, sources * beam, beam, device=logits.device)[:, None]  # (B, 1)
        return (parents + first_rows).flatten()  # (R,)

    def _greedy(self, best: Tensor, newest: Tensor, end: Tensor, at_limit: Tensor) -> None:
        """The same with one row a source, which ends or goes on: (B, 1) each."""
        ends = (end >= best) & (end > NOTHING) & ~self.done[:, None]
        self.done.logical_or_(at_limit | ends[:, 0])
        self._write({"tokens": newest, "ended": end.masked_fill(~ends, NOTHING)}, best)

    def _write(self, written: dict[str, Tensor], scores: Tensor) -> None:
        """Write down (B, beam) of this step, and have it ready for the next."""
        self.newest.copy_(written["tokens"])
        self.scores.copy_(scores)
        place = self.now - 1
        for name, values in written.items():
            getattr(self, name).index_copy_(1, place, values[:, None])

    def _continuations(self, logits: Tensor, at_limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores and tokens of the likeliest continuations of each row, (B, beam, k) each, and the score of its end,
        (B, beam)."""
        rules, (sources, beam) = self.rules, self.scores.shape
        held = logits.index_select(1, self.special).float()  # (R, f + 1)
        logits.index_fill_(1, self.special, NOTHING)
        values, tokens, masses = likeliest(logits, 1 if beam == 1 else 2 * beam)  # (R, k), (R, k), (R, n)
        normaliser = torch.cat((masses, held), 1).logsumexp(1, keepdim=True)  # (R, 1)
        end = normaliser if rules.fixed else held[:, -1:]
        best, end = ((x.double() - normaliser).view(sources, beam, -1) + self.scores[:, :, None] for x in (values, end))
        if rules.fixed:
            end = end.masked_fill(~at_limit[:, None, None], NOTHING)
        if rules.end in rules.forbidden:
            end = torch.full_like(end, NOTHING)
        best = best.masked_fill(at_limit[:, None, None], NOTHING)
        return best, tokens.view(sources, beam, -1), end[:, :, 0]  # (B, beam, k) twice, (B, beam)

    def hypotheses(self, sources: int, alpha: float) -> list[list[Hypothesis]]:
        """What the first sources have finished, the best first; waits for the device."""
        tokens, parents, ended, origins = (
            x[:sources].cpu().numpy() for x in (self.tokens, self.parents, self.ended, self.origins)
        )
        source, time, place = np.isfinite(ended).nonzero()  # in the order in which they were found
        scores = ended[source, time, place]
        penalties = np.array([length_penalty(length + 1, alpha) for length in range(ended.shape[1])])
        ranks = scores / penalties[time]
        order = np.lexsort((-ranks, source))
        starts = np.searchsorted(source, source)  # of the first that each source has found
        order = order[np.arange(len(order)) - starts < ended.shape[2]]
        source, time, row = source[order], time[order], origins[source, time, place][order]
        written = np.zeros((len(order), ended.shape[1]), np.int64)
        for step in range(int(time.max(initial=0)) - 1, -1, -1):
            running = step < time
            written[running, step] = tokens[source[running], step, row[running]]
            row[running] = parents[source[running], step, row[running]]
        found: list[list[Hypothesis]] = [[] for _ in range(sources)]
        rows = zip(written.tolist(), source.tolist(), time.tolist(), scores[order].tolist(), ranks[order].tolist())
        for output, number, length, score, rank in rows:
            found[number].append(Hypothesis(output[:length], score, rank))
        return found


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` largest of each row, in order, where they are, and the mass of the row.

    The k largest numbers lie in the k blocks with the largest maxima, which one pass finds.

    Args:
        logits: (R, V), contiguous.

    Returns:
        (R, k) and (R, k), with at most V for k, and (R, n), numbers whose log sum exp is the row's.
    """
    size, count = logits.shape[1], min(count, logits.shape[1])
    peaks, masses = _peaks(logits)
    if peaks.shape[1] <= count:
        values, places = logits.topk(count, -1)
        return values.float(), places, masses
    _, chosen = _largest(peaks, count)  # (R, k)
    within = torch.arange(PEAK_BLOCK, device=logits.device)
    places = torch.add(within, chosen[:, :, None], alpha=PEAK_BLOCK).flatten(1)  # (R, k * PEAK_BLOCK)
    if size % PEAK_BLOCK:  # the last block is not full
        values = logits.gather(1, places.clamp(max=size - 1)).masked_fill(places >= size, NOTHING)
    else:
        values = logits.gather(1, places)
    values, order = _largest(values, count)
    return values.float(), places.gather(1, order), masses


def _largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row and where they are; one is found in one step."""
    values, places = x.max(1, keepdim=True) if count == 1 else x.topk(count, -1)
    return values, places


def _peaks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The maxima of blocks, (R, V / PEAK_BLOCK), and log sum exp of pieces of the row, (R, n)."""
    if trusted("row_peaks", logits.device, logits.dtype, PEAK_BLOCK):
        from transduct.functional.row_peaks import row_peaks

        return row_peaks(logits, PEAK_BLOCK)
    blocks = logits.shape[1] // PEAK_BLOCK
    whole = logits[:, : blocks * PEAK_BLOCK].view(len(logits), blocks, PEAK_BLOCK)  # (R, V / PEAK_BLOCK, PEAK_BLOCK)
    rest = [logits[:, blocks * PEAK_BLOCK :].amax(1, keepdim=True)] if logits.shape[1] % PEAK_BLOCK else []
    return torch.cat((whole.amax(-1), *rest), 1), log_normaliser(logits.float())[:, None]
