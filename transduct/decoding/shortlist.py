"""A lexical shortlist: the few target tokens that a source's own tokens make likely, so that no others are scored.

Jean et al. 2015 take it from a dictionary, Mi et al. 2016 from alignments; here the model's own attention aligns. Let V
be the target vocabulary, K the tokens of a shortlist.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.decoding.search import Hypothesis
from transduct.functional.segments import Segments


@dataclass(frozen=True)
class Shortlist:
    """For each source token the target tokens it is most often aligned with, and those that are common everywhere.

    Attributes:
        offsets, tokens: source token s has `tokens[offsets[s] : offsets[s + 1]]`.
        common: tokens that every shortlist holds.
    """

    offsets: Tensor
    tokens: Tensor
    common: Tensor

    @classmethod
    def of(
        cls, sources: Tensor, targets: Tensor, size: int, always: Sequence[int], most: int, common: int
    ) -> "Shortlist":
        """From aligned tokens, (n,) and (n,): the `most` frequent of each source token, the `common` of all.

        Args:
            size: of the source vocabulary.
            always: tokens that are common whatever was seen.
        """
        width = max(targets.tolist(), default=0) + 1
        pairs, counts = np.unique((sources * width + targets).numpy(), return_counts=True)
        source, target = np.divmod(pairs, width)
        order = np.lexsort((-counts, source))
        source, target = source[order], target[order]
        starts = np.searchsorted(source, np.arange(size + 1))
        kept = np.arange(len(source)) - starts[source] < most
        offsets = np.searchsorted(source[kept], np.arange(size + 1))
        frequent = np.argsort(-np.bincount(targets.numpy(), minlength=width), kind="stable")[:common]
        known = sorted({*always, *frequent.tolist()})
        return cls(torch.from_numpy(offsets), torch.from_numpy(target[kept]), torch.tensor(known))

    def candidates(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """The tokens that some sources may be translated with, in order: (K,)."""
        tokens = sorted({token for source in sources for token in source})
        parts = [self.tokens[self.offsets[token] : self.offsets[token + 1]] for token in tokens]
        return torch.cat((self.common, *parts)).unique()  # type: ignore[no-untyped-call]


class Narrowed:
    """What search sees of a model that knows only some tokens of its vocabulary: these tokens, numbered anew.

    Args:
        model: its `step` takes tokens by their old numbers and scores those of `tokens` alone.
        tokens: (K,) in order.
    """

    def __init__(self, model: Any, tokens: Tensor) -> None:
        self.model, self.tokens = model, tokens

    def number(self, token: int) -> int:
        """The new number of a token that it knows."""
        return int(torch.searchsorted(self.tokens, token))

    def start(self, memory: Tensor, segments: Segments, beam: int) -> Any:
        """The state before the first token."""
        return self.model.start(memory, segments, beam)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """(R,) newest tokens -> (R, K) logits, and the state after them."""
        logits, state = self.model.step(self.tokens.index_select(0, tokens), state)
        return logits, state

    def renamed(self, hypothesis: Hypothesis) -> Hypothesis:
        """A hypothesis with the old numbers."""
        return replace(hypothesis, tokens=self.tokens[hypothesis.tokens].tolist())
