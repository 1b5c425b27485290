"""Several models as one, for search and for scores: the probability of a token is the mean of theirs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transduct.decoding import engine
from transduct.decoding.search import Hypothesis, length_penalty
from transduct.functional.segments import Segments


@dataclass(frozen=True)
class Limits:
    """The part of a model's configuration that search and scoring read."""

    max_length: int


@dataclass
class States:
    """The state of each member."""

    members: list[Any]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        for state in self.members:
            state.select(rows)


class Ensemble(nn.Module):
    """Models of one vocabulary that each can `encode`, `decode`, `start` and `step`; so can they together.

    Their mistakes differ, their right answers do not (Hansen and Salamon 1990; Sutskever et al. 2014 for translation).
    Memories and hidden states are lists, one entry a member.
    """

    attention_names: Sequence[str] = ()  # each has its own

    def __init__(self, members: Sequence[Any]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.config = Limits(min(member.config.max_length for member in members))

    def encode(self, tokens: Tensor, segments: Segments) -> list[Any]:
        """Source tokens (N,) -> the memory of each."""
        return [model.encode(tokens, segments) for model in self._each()]

    def decode(self, tokens: Tensor, segments: Segments, memory: list[Any], memory_segments: Segments) -> list[Any]:
        """Target tokens (M,) -> the hidden states (M, D) of each."""
        pairs = zip(self._each(), memory, strict=True)
        return [model.decode(tokens, segments, held, memory_segments) for model, held in pairs]

    def logits(self, hidden: list[Any]) -> Tensor:
        """-> (M, V)."""
        return mean([model.logits(held) for model, held in zip(self._each(), hidden, strict=True)])

    def start(self, memory: list[Any], segments: Segments, beam: int) -> States:
        """The state before the first token, with `beam` rows for each source."""
        return States([model.start(held, segments, beam) for model, held in zip(self._each(), memory, strict=True)])

    def step(self, tokens: Tensor, state: States) -> tuple[Tensor, States]:
        """The newest token of each row (R,) -> logits of the next (R, V), and the state after it."""
        steps = [model.step(tokens, held) for model, held in zip(self._each(), state.members, strict=True)]
        return mean([logits for logits, _ in steps]), States([after for _, after in steps])

    def _each(self) -> Sequence[Any]:
        return list(self.members)


@dataclass(frozen=True)
class Review:
    """Rescoring by models that write from the other end: they chose first what the others chose last, so what
    both find likely is more often right (Liu et al. 2016; Sennrich et al. 2016).

    Attributes:
        model: one of them, or several as an `Ensemble`.
        share: which part of all members it holds.
        begin, end: the tokens that stand before and after every output.
    """

    model: Any
    share: float
    begin: int
    end: int

    def scores(
        self, theirs: Sequence[float], sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], budget: int
    ) -> list[float]:
        """The scores of outputs: the mean of what the others give and of its own, by how many members they are; of at
        most `budget` tokens at once."""
        turned = [output[::-1] for output in outputs]
        own = engine.score(self.model, sources, turned, self.begin, self.end, budget)
        return [one + self.share * (other - one) for one, other in zip(theirs, own, strict=True)]

    def sort(
        self, found: Sequence[list[Hypothesis]], sources: Sequence[Sequence[int]], alpha: float, budget: int
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source in the order of these scores, penalised for their lengths by `alpha`."""
        of_each = [source for source, held in zip(sources, found, strict=True) for _ in held]
        every = [h for held in found for h in held]
        scores = iter(self.scores([h.score for h in every], of_each, [h.tokens for h in every], budget))

        def reviewed(h: Hypothesis) -> Hypothesis:
            score = next(scores)
            return Hypothesis(h.tokens, score, score / length_penalty(len(h.tokens) + 1, alpha))

        return [sorted(map(reviewed, held), key=lambda h: -h.rank) for held in found]


def mean(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of the softmaxes of several logits (N, V): (N, V)."""
    likely = torch.stack([each.float().log_softmax(-1) for each in logits])
    return likely.logsumexp(0) - math.log(len(logits))
