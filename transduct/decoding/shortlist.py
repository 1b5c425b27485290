"""Lexical shortlists: score only the few target tokens that a source's tokens make likely.

Jean et al. 2015 take them from a dictionary, Mi et al. 2016 from alignments; here the model's own
attention aligns. Let V be the target vocabulary, K the tokens of a shortlist.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.decoding.search import Hypothesis
from transduct.segments import Segments, sources_of


@dataclass(frozen=True)
class Shortlist:
    """The target tokens most often aligned with each source token, and the most common ones
    overall.

    Attributes:
        offsets, tokens: the target tokens of source token s are `tokens[offsets[s] : offsets[s +
            1]]`.
        common: tokens on every shortlist.
    """

    offsets: Tensor
    tokens: Tensor
    common: Tensor

    @classmethod
    def of(
        cls,
        sources: Tensor,
        targets: Tensor,
        size: int,
        always: Sequence[int],
        most: int,
        common: int,
    ) -> "Shortlist":
        """Build a shortlist from pairs of aligned tokens, (n,) and (n,).

        Args:
            size: the size of the source vocabulary.
            always: tokens to put on every shortlist.
            most: how many of the most frequent target tokens to keep for each source token.
            common: how many of the most frequent target tokens overall to put on every shortlist.
        """
        width = max(targets.tolist(), default=0) + 1
        pairs, counts = np.unique((sources * width + targets).numpy(), return_counts=True)
        source, target = np.divmod(pairs, width)
        order = np.lexsort((-counts, source))
        source, target = source[order], target[order]
        starts = np.searchsorted(source, np.arange(size + 1))
        kept = np.arange(len(source)) - starts[source] < most
        offsets = np.searchsorted(source[kept], np.arange(size + 1))
        frequent = np.argsort(-np.bincount(targets.numpy(), minlength=width), kind="stable")[
            :common
        ]
        known = sorted({*always, *frequent.tolist()})
        return cls(torch.from_numpy(offsets), torch.from_numpy(target[kept]), torch.tensor(known))

    def fits(self, sources: int, targets: int, always: Set[int]) -> bool:
        """Whether it is valid for vocabularies of these sizes and has these tokens on every
        shortlist."""
        if any(
            x.ndim != 1 or x.dtype != torch.int64 for x in (self.offsets, self.tokens, self.common)
        ):
            return False
        ends = torch.cat(
            (torch.zeros(1, dtype=torch.int64), self.offsets, torch.tensor([len(self.tokens)]))
        )
        known = torch.cat((self.tokens, self.common))
        named = bool(((known >= 0) & (known < targets)).all())
        complete = always <= {*self.common.tolist()}
        return (
            len(self.offsets) == sources + 1
            and bool((ends.diff() >= 0).all())
            and named
            and complete
        )

    def candidates(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """The candidate target tokens of a batch of sources, sorted (K,), and which of them each
        source may use (B, K)."""
        rows = []
        for source in sources:
            parts = [
                self.tokens[self.offsets[token] : self.offsets[token + 1]] for token in {*source}
            ]
            rows.append(torch.cat((self.common, *parts)))
        tokens = torch.cat(rows).unique()
        allowed = torch.zeros(len(sources), len(tokens), dtype=torch.bool)
        for row, each in zip(allowed, rows, strict=True):
            row[torch.searchsorted(tokens, each)] = True
        return tokens, allowed


class Narrowed:
    """A model restricted to part of its vocabulary, whose tokens are renumbered for the search.

    Args:
        model: its `step` takes tokens by their full ids and scores only `tokens`.
        tokens: (K,) sorted full ids.
        allowed: (B, K) whether a source may use a token; those that only its neighbours may use get
            minus infinity.
    """

    def __init__(self, model: Any, tokens: Tensor, allowed: Tensor) -> None:
        self.model, self.tokens, self.allowed = model, tokens, allowed

    def number(self, token: int) -> int:
        """The restricted id of a token in `tokens`."""
        return int(torch.searchsorted(self.tokens, token))

    def start(self, memory: Tensor, segments: Segments, beam: int) -> "NarrowedState":
        """The state before the first token."""
        return NarrowedState(self.model.start(memory, segments, beam), ~self.allowed, beam)

    def step(self, tokens: Tensor, state: "NarrowedState") -> tuple[Tensor, "NarrowedState"]:
        """(R,) newest tokens -> (R, K) logits, and the state after them."""
        logits, state.inner = self.model.step(self.tokens.index_select(0, tokens), state.inner)
        grouped = logits.view(len(state.others), state.beam, -1)  # (B, beam, K)
        return grouped.masked_fill(state.others[:, None], float("-inf")).view_as(logits), state

    def renamed(self, hypothesis: Hypothesis) -> Hypothesis:
        """A hypothesis with full token ids."""
        return replace(hypothesis, tokens=self.tokens[hypothesis.tokens].tolist())


@dataclass
class NarrowedState:
    """The model's state, and which tokens each source may not use: (B, K)."""

    inner: Any
    others: Tensor
    beam: int

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; those of a source stay together."""
        self.inner.select(rows)
        if len(rows) < len(self.others) * self.beam:
            self.others = self.others.index_select(0, sources_of(rows, self.beam))
