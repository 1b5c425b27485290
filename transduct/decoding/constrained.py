"""Beam search whose outputs hold given phrases.

This is grid beam search (Hokamp & Liu 2017): each step may also go on with any phrase. The rows are
shared out between outputs that lack as many tokens (dynamic beam allocation, Post & Vilar 2018), so
that those with a phrase, which are less likely, are not crowded out by those without.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transduct.decoding.search import Beam, Continuations, Phrase


@dataclass(frozen=True)
class Progress:
    """What an output lacks.

    Attributes:
        left: the phrases that it does not hold yet.
        begun: what is missing of forms that its last tokens begin, after the number of the phrase.
    """

    left: tuple[Phrase, ...]
    begun: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def missing(self) -> int:
        """The least number of tokens until it holds all phrases."""
        least = [min(map(len, phrase)) for phrase in self.left]
        saved = (least[number] - len(rest) for number, rest in self.begun)
        return sum(least) - max(0, max(saved, default=0))

    @property
    def wanted(self) -> set[int]:
        """The tokens that begin a phrase or go on with it."""
        forms = [form for phrase in self.left for form in phrase]
        return {rest[0] for rest in [*forms, *(rest for _, rest in self.begun)]}

    def after(self, token: int) -> "Progress":
        """What it lacks after one more token."""
        forms = ((n, form) for n, phrase in enumerate(self.left) for form in phrase)
        begun = [(n, rest[1:]) for n, rest in (*self.begun, *forms) if rest[0] == token]
        for number, rest in begun:
            if not rest:
                return Progress(self.left[:number] + self.left[number + 1 :])
        return Progress(self.left, tuple(begun))


class _Candidate(NamedTuple):
    """A continuation of a row."""

    score: float
    row: int
    token: int
    progress: Progress


class ConstrainedBeam(Beam):
    """`Beam`, but an output may end only if it holds its phrases. One that does not is found where
    none does within the length limit.

    Args:
        phrases: those of each source.
        given: as for `Beam`.
    """

    def __init__(self, phrases: Sequence[Sequence[Phrase]], *given: Any, **rules: Any) -> None:
        super().__init__(*given, **rules)
        self._progress = [[Progress(tuple(each))] * self.beam for each in phrases]

    def choose(self, logits: Tensor, normaliser: Tensor) -> Tensor | None:
        """One step of the search over logits (R, V); see `Strategy`."""
        totals = self.scores.reshape(-1, 1) + (logits.double() - normaliser.double()[:, None])
        ended, live = list[list[_Candidate]](), list[list[_Candidate]]()
        for source, table in zip(self.sources, totals.split(self.beam), strict=True):
            candidates = self._candidates(table, self._progress[source])
            ended.append(self._filled(self._ends(candidates, source)))
            live.append(self._filled(self._shared_out(candidates, source)))
            self._progress[source] = [each.progress for each in live[-1]]

        def column(found: list[list[_Candidate]], name: str, kind: Any = torch.int64) -> Tensor:
            values = [[each._asdict()[name] for each in row] for row in found]
            return torch.tensor(values, dtype=kind, device=self.device)  # (B, beam)

        first = torch.arange(0, len(totals), self.beam, device=self.device)[:, None]  # (B, 1)
        return self.take(
            Continuations(
                column(ended, "score", torch.float64),
                column(ended, "row"),
                column(ended, "token"),
                column(live, "score", torch.float64),
                (column(live, "row") + first).flatten(),
                column(live, "token").flatten(),
                any(each.score > float("-inf") for row in ended for each in row),
            )
        )

    def _candidates(self, table: Tensor, before: list[Progress]) -> list[_Candidate]:
        """The continuations to choose from, the likeliest first: the best of all, the best of each
        row, those that go on with a phrase, and ends."""
        size = table.shape[1]
        places = {*table.flatten().topk(min(2 * self.beam, table.numel())).indices.tolist()}
        for row, (best, progress) in enumerate(zip(table.argmax(1).tolist(), before, strict=True)):
            places |= {row * size + token for token in (best, self.end, *progress.wanted)}
        scores = table.flatten()[[*places]].tolist()
        found = [
            _Candidate(score, place // size, place % size, before[place // size])
            for score, place in zip(scores, places, strict=True)
            if score > float("-inf")
        ]
        return sorted(
            (
                each._replace(progress=each.progress.after(each.token))
                if each.token != self.end
                else each
                for each in found
            ),
            key=lambda each: (-each.score, each.row, each.token),
        )

    def _ends(self, candidates: list[_Candidate], source: int) -> list[_Candidate]:
        """Those that end an output: with all phrases, and among the best that have them."""
        whole = [each for each in candidates if not each.progress.missing]
        if self.history.shape[1] >= self.limits[source]:
            whole = [each for each in whole if each.token == self.end]
            if not whole and not self.hypotheses[source]:
                whole = [each for each in candidates if each.token == self.end]
        return [each for each in whole[: self.beam] if each.token == self.end]

    def _shared_out(self, candidates: list[_Candidate], source: int) -> list[_Candidate]:
        """Those to go on with: by turns the best of the outputs that lack nothing, one token, two
        tokens, and so on."""
        if self.history.shape[1] >= self.limits[source]:
            return []
        seen, ranked = Counter[int](), []
        for number, each in enumerate(candidates):
            if each.token != self.end:
                missing = each.progress.missing
                ranked.append((seen[missing], missing, number))
                seen[missing] += 1
        return [candidates[number] for number in sorted(n for *_, n in sorted(ranked)[: self.beam])]

    def _filled(self, found: list[_Candidate]) -> list[_Candidate]:
        """As many as there are rows; what is filled up is never continued."""
        nothing = _Candidate(float("-inf"), 0, self.end, Progress(()))
        return [*found, *[nothing] * (self.beam - len(found))]
