"""Filters of search: they forbid tokens, or demand some, before a strategy chooses.

Let R be the rows of the search, V the vocabulary.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from transduct.functional.lookup import log_normaliser


class Filter:
    """Rescores the next tokens, or forbids some by minus infinity. May modify the logits in place.

    A search that takes several steps in one call cannot show a filter the logits of each step. So a
    filter declares for which steps that is not needed.

    Attributes:
        until: while the history is shorter than this, the filter does nothing but forbid the tokens
            in `forbidden`. By default it must see all logits.
        forbidden: (F,) these tokens.
    """

    until: float = 0
    forbidden: Tensor = torch.empty(0, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        """Logits (R, V) after the tokens (R, t) of each row so far -> (R, V)."""
        raise NotImplementedError

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; here nothing, for filters without state per row."""


class Forbid(Filter):
    """Forbids these tokens."""

    until = inf

    def __init__(self, tokens: Sequence[int], device: Any = None) -> None:
        self.forbidden = torch.tensor(tokens, dtype=torch.int64, device=device)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:  # noqa: ARG002 (as in `Filter`)
        """Logits (R, V) without these tokens."""
        return logits.index_fill_(1, self.forbidden, float("-inf"))


class Prefix(Filter):
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
        position = history.shape[1] - 1
        if position >= self.tokens.shape[1]:
            return logits
        wanted = self.tokens[:, position, None]  # (R, 1)
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
        # A logit equal to the log-normaliser has probability one.
        certain = log_normaliser(logits) if bool(at_limit.any()) else 0.0
        logits[:, self.end] = torch.where(at_limit, certain, float("-inf"))
        return logits

    def select(self, rows: Tensor) -> None:
        """Keep the limits of these rows, in this order."""
        self.limits = self.limits.index_select(0, rows)


class NoRepeat(Filter):
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
        rows, starts = (runs[..., :-1] == newest[:, None]).all(-1).nonzero(as_tuple=True)
        bound = logits.clone()
        bound[rows, runs[rows, starts, -1]] = float("-inf")
        return torch.where(bound.amax(1, keepdim=True) > float("-inf"), bound, logits)
