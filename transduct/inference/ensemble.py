"""Ensembles for search and scoring: the probability of a token is the mean of the members'
probabilities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transduct.decoding.search import Hypothesis, length_penalty
from transduct.inference import engine
from transduct.models.base import Model
from transduct.segments import Segments


@dataclass
class States:
    """The decoder states of the members."""

    members: list[Any]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        for state in self.members:
            state.select(rows)


class Ensemble(Model):
    """Several models with one vocabulary behind the interface of a single one: `encode`, `decode`,
    `start`, `step`.

    Members make different mistakes but agree on right answers (Hansen and Salamon 1990; Sutskever
    et al. 2014 for translation). Memories and hidden states are lists with one entry per member.
    """

    def __init__(self, members: Sequence[Any]) -> None:
        super().__init__()
        self.members: Any = nn.ModuleList(members)
        # Search and scoring read nothing but `max_length`.
        self.config = min(
            (member.config for member in members), key=lambda config: config.max_length
        )

    def encode(self, tokens: Tensor, segments: Segments) -> list[Any]:
        """Source tokens (N,) -> the memory of each member."""
        return [model.encode(tokens, segments) for model in self.members]

    def decode(
        self, tokens: Tensor, segments: Segments, memory: list[Any], memory_segments: Segments
    ) -> list[Any]:
        """Target tokens (M,) -> the hidden states (M, D) of each member."""
        pairs = zip(self.members, memory, strict=True)
        return [model.decode(tokens, segments, each, memory_segments) for model, each in pairs]

    def logits(self, hidden: list[Any]) -> Tensor:
        """Hidden states (M, D) of each member -> log-probabilities (M, V)."""
        return mean([model.logits(each) for model, each in zip(self.members, hidden, strict=True)])

    def start(self, memory: list[Any], segments: Segments, beam: int) -> States:
        """The state before the first token, with `beam` rows for each source."""
        return States(
            [
                model.start(each, segments, beam)
                for model, each in zip(self.members, memory, strict=True)
            ]
        )

    def step(self, tokens: Tensor, state: States) -> tuple[Tensor, States]:
        """The newest token of each row (R,) -> logits of the next (R, V), and the state after
        it."""
        steps = [
            model.step(tokens, each)
            for model, each in zip(self.members, state.members, strict=True)
        ]
        return mean([logits for logits, _ in steps]), States([after for _, after in steps])


@dataclass(frozen=True)
class Review:
    """Right-to-left rescoring: models that generate backwards decide first what the others decide
    last, so hypotheses that both find likely are more often right (Liu et al. 2016; Sennrich et al.
    2016).

    Attributes:
        model: a right-to-left model, or several as an `Ensemble`.
        weight: the fraction of all members that are right-to-left.
        begin, end: the tokens before and after every output.
    """

    model: Any
    weight: float
    begin: int
    end: int

    def scores(
        self,
        theirs: Sequence[float],
        sources: Sequence[Sequence[int]],
        outputs: Sequence[Sequence[int]],
        budget: int,
    ) -> list[float]:
        """The mean of the left-to-right scores `theirs` and the right-to-left ones, weighted by
        numbers of members. Scores at most `budget` tokens at once."""
        reversed_outputs = [output[::-1] for output in outputs]
        ours = engine.score(self.model, sources, reversed_outputs, self.begin, self.end, budget)
        return [one + self.weight * (other - one) for one, other in zip(theirs, ours, strict=True)]

    def sort(
        self,
        found: Sequence[list[Hypothesis]],
        sources: Sequence[Sequence[int]],
        alpha: float,
        budget: int,
    ) -> list[list[Hypothesis]]:
        """Rescore the hypotheses of each source and sort them, with the length penalty `alpha`."""
        repeated = [
            source for source, hypotheses in zip(sources, found, strict=True) for _ in hypotheses
        ]
        every = [h for hypotheses in found for h in hypotheses]
        scores = iter(
            self.scores([h.score for h in every], repeated, [h.tokens for h in every], budget)
        )

        def reviewed(h: Hypothesis) -> Hypothesis:
            score = next(scores)
            return Hypothesis(h.tokens, score, score / length_penalty(len(h.tokens) + 1, alpha))

        return [sorted(map(reviewed, hypotheses), key=lambda h: -h.rank) for hypotheses in found]


def mean(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of several softmax distributions: logits (N, V) each -> (N, V)."""
    log_probabilities = torch.stack([each.float().log_softmax(-1) for each in logits])
    return log_probabilities.logsumexp(0) - math.log(len(logits))
