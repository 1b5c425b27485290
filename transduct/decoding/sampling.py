"""Sampling, in the same loop as search; what a sentence draws does not depend on its batch."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transduct.decoding.search import Hypothesis, Strategy

# how many of the likeliest are tried first: they usually hold the top p, and sorting all is slow
FIRST = 1024


class Sampling(Strategy):
    """Draws each token from the softmax of logits / temperature, truncated to the top k and to the
    top p of its mass (Holtzman et al. 2020).

    Each step a row draws one uniform number from a generator seeded with (seed, key, sample
    number). The key is, for example, a source and its begin token, so that a source gets the same
    samples alone and in any batch.
    """

    def __init__(
        self,
        samples: int,
        limits: Sequence[int],
        begin: int | Sequence[int],
        end: int,
        keys: Sequence[Sequence[int]],
        seed: int = 1,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        device: Any = None,
    ) -> None:
        super().__init__(samples, limits, begin, end, device)
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.generators = [each for key in keys for each in generators(key, samples, seed)]
        self.finished = [False] * len(self.generators)  # of each row
        self.scores = torch.zeros(len(self.generators), dtype=torch.float64, device=device)

    def live(self, source: int) -> list[list[int]]:
        """The tokens of the samples of a source that are not finished."""
        first = self.sources.index(source) * self.beam
        rows = [row for row in range(first, first + self.beam) if not self.finished[row]]
        return self.history[rows, 1:].tolist()

    def choose(self, logits: Tensor, normaliser: Tensor) -> Tensor | None:
        """Draw one token for each row from logits (R, V); the rows of sources that are not done
        stay in order."""
        uniform = torch.tensor(
            [generator.random() for generator in self.generators], device=self.device
        )
        tokens = draw(logits.double() / self.temperature, uniform, self.top_k, self.top_p)  # (R,)
        length = self.history.shape[1]
        at_limit = torch.tensor(
            [length >= self.limits[source] for source in self.sources for _ in range(self.beam)]
        )
        tokens = tokens.masked_fill(at_limit.to(tokens.device), self.end)
        self.scores += (
            logits.gather(1, tokens[:, None]).squeeze(1) - normaliser
        ).double() * torch.tensor([not done for done in self.finished], device=self.device)
        for row, token in enumerate(tokens.tolist()):
            if token == self.end and not self.finished[row]:
                self.finished[row] = True
                found = self.hypotheses[self.sources[row // self.beam]]
                score = float(self.scores[row])
                found.append(Hypothesis(self.history[row, 1:].tolist(), score, score))
                found.sort(key=lambda hypothesis: -hypothesis.rank)
        self.history = torch.cat((self.history, tokens[:, None]), 1)
        self.done = [
            self.done[group] or all(self.finished[group * self.beam : (group + 1) * self.beam])
            for group in range(len(self.done))
        ]
        if (places := self._shrink()) is None:
            return None
        rows = torch.arange(len(tokens), device=self.device).view(-1, self.beam)[places].flatten()
        self.history, self.scores = self.history[rows], self.scores[rows]
        stay = rows.tolist()
        self.generators = [self.generators[row] for row in stay]
        self.finished = [self.finished[row] for row in stay]
        return rows


def generators(key: Sequence[int], samples: int, seed: int) -> list[random.Random]:
    """The generator of each sample, from which it draws a number in each step."""
    return [random.Random(f"{seed}/{list(key)}/{i}") for i in range(samples)]


def draw(
    logits: Tensor, uniform: Tensor, top_k: int = 0, top_p: float = 1.0, tried: int = FIRST
) -> Tensor:
    """Inverse transform sampling: the first token at which the cumulative probability exceeds a
    uniform number.

    Tokens are taken in the order of their ids: in the order of likelihood, two that differ only by
    rounding would change places between batches.

    Args:
        logits: (R, V).
        uniform: (R,) in [0, 1).
        top_k: only the k likeliest; 0 for all.
        top_p: only the smallest set of the likeliest whose mass reaches p.
        tried: how many of the likeliest are tried for `top_p` before all are sorted; 0 for none,
            so that no number is read on the host.

    Returns:
        (R,) token ids.
    """
    kept = logits.double().softmax(-1)  # (R, V)
    if top_k or top_p < 1.0:
        kept = _likeliest(kept, top_k, top_p, tried)
    mass = kept.cumsum(-1)
    place = (mass <= uniform.double()[:, None] * mass[:, -1:]).sum(-1)  # (R,)
    last = (kept.shape[-1] - 1) - (kept > 0).flip(-1).long().argmax(-1)
    # stays in range if `uniform` was rounded up to one, or for NaN, which `finite` reports
    return place.minimum(last)


def _likeliest(probabilities: Tensor, top_k: int, top_p: float, tried: int) -> Tensor:
    """Probabilities (R, V) with those outside the top k and top p set to zero; of equal ones the
    first stay."""
    size = probabilities.shape[1]
    values = probabilities.topk(min(top_k or tried or size, size), -1).values  # in order
    if top_k:
        masses = values / values.sum(-1, keepdim=True)
    elif tried and bool((values.sum(-1) < top_p).any()):
        # seldom: the first few usually hold nearly all the mass
        values = masses = probabilities.topk(size, -1).values
    else:
        masses = values
    # (R, 1) how many to keep
    count = (masses.cumsum(-1) - masses < top_p).sum(-1, keepdim=True).clamp(min=1)
    least = values.gather(-1, count - 1)
    more, equal = probabilities > least, probabilities == least
    first = equal.cumsum(-1) <= count - more.sum(-1, keepdim=True)
    return probabilities.masked_fill(~(more | (equal & first)), 0.0)
