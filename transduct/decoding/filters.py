"""Filters of search: they forbid tokens, or demand some, before a strategy chooses.

Let R be the rows of the search, V the vocabulary.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, Protocol

import torch
from torch import Tensor

from transduct.kernels import cpu, cpu_search


class Filter(Protocol):
    """Rescores the next tokens, or forbids some by minus infinity. May modify the logits in place.

    `select` keeps its per-row state in step with the search.
    """

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        """Logits (R, V) after the tokens (R, t) of each row so far -> (R, V)."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        ...


def log_normaliser(logits: Tensor) -> Tensor:
    """Log-sum-exp of each row, the logarithm of the softmax denominator: (R, V) -> (R,)."""
    return cpu_search.log_normaliser(logits) if cpu.usable(logits) else logits.logsumexp(-1)


class Forbid:
    """Forbids these tokens.

    Attributes:
        until: the history length up to which the filter does nothing else.
    """

    until: float = inf

    def __init__(self, tokens: Sequence[int], device: Any = None) -> None:
        self.tokens = torch.tensor(tokens, dtype=torch.int64, device=device)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:  # noqa: ARG002 (required by `Filter`)
        return logits.index_fill_(1, self.tokens, float("-inf"))

    def select(self, rows: Tensor) -> None:
        """Do nothing: there is no state per row."""


class Prefix:
    """Makes outputs begin with given tokens, which are scored by the model like any others.

    Args:
        tokens: the prefix of each row.
    """

    def __init__(self, tokens: Sequence[Sequence[int]], device: Any = None) -> None:
        longest = max(map(len, tokens), default=0)
        padded = [[*row, *[-1] * (longest - len(row))] for row in tokens]  # -1 allows any token
        self.tokens = torch.tensor(padded, dtype=torch.int64, device=device).view(
            len(tokens), longest
        )  # (R, L)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        place = history.shape[1] - 1
        if place >= self.tokens.shape[1]:
            return logits
        wanted = self.tokens[:, place, None]  # (R, 1)
        others = torch.arange(logits.shape[1], device=logits.device) != wanted  # (R, V)
        return logits.masked_fill(others & (wanted >= 0), float("-inf"))

    def select(self, rows: Tensor) -> None:
        """Keep the prefixes of these rows, in this order."""
        self.tokens = self.tokens.index_select(0, rows)


class FixedLength(Forbid):
    """Makes every output exactly as long as its limit: `end` has probability one there and is
    forbidden before.

    Args:
        limits: the length of each row's output, its end included; the same for all rows of a
            source.
    """

    def __init__(self, end: int, limits: Sequence[int], device: Any = None) -> None:
        super().__init__([end], device)
        self.end, self.limits = end, torch.tensor(limits, device=device)
        self.until = min(limits, default=0)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        if history.shape[1] < self.until:
            return super().__call__(logits, history)
        at_limit = history.shape[1] >= self.limits  # (R,)
        certain = (
            log_normaliser(logits) if bool(at_limit.any()) else 0.0
        )  # a logit with probability one
        logits[:, self.end] = torch.where(at_limit, certain, float("-inf"))
        return logits

    def select(self, rows: Tensor) -> None:
        """Keep the limits of these rows, in this order."""
        self.limits = self.limits.index_select(0, rows)


class NoRepeat:
    """Lets no output hold a run of `size` tokens twice (Paulus et al. 2018, section 2.5), unless
    nothing else is possible, as where another filter allows one token only."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        written = history[:, 1:]  # without the begin token
        if written.shape[1] < self.size:
            return logits
        runs = written.unfold(1, self.size, 1)  # (R, t - size + 1, size)
        newest = written[:, written.shape[1] - self.size + 1 :]  # (R, size - 1)
        rows, places = (runs[..., :-1] == newest[:, None]).all(-1).nonzero(as_tuple=True)
        bound = logits.clone()
        bound[rows, runs[rows, places, -1]] = float("-inf")
        return torch.where(bound.amax(1, keepdim=True) > float("-inf"), bound, logits)

    def select(self, rows: Tensor) -> None:
        """Do nothing: there is no state per row."""
