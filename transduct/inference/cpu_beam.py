"""Beam search in C: the choice of a step, and several steps in one call where the decoder is fused.

A step of a small model takes a tenth of a millisecond, less than Python needs for its calls. Most
steps need no decision in Python: no output ends, and no filter looks. The kernels take these by
themselves and return at the first step that needs one. `inference.device_beam` is the same search
on a GPU; `decoding.search.Beam` is the one to read.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transduct.decoding.filters import Filter
from transduct.decoding.search import Beam, Continuations, Decodes
from transduct.decoding.shortlist import Narrowed
from transduct.inference.fused import fused_decoder
from transduct.kernels import cpu, cpu_search
from transduct.kernels.cpu_search import WIDEST_BEAM, Run

BETWEEN_PAUSES = 32  # the most steps in one call, a few milliseconds; see `decoding.search.pause`


class CPUBeam(Beam):
    """`Beam` by the kernels. It finds the same outputs; of equal continuations it takes the lower
    row, then the lower token."""

    def advance(
        self, model: Decodes, state: Any, filters: Sequence[Filter]
    ) -> tuple[Tensor | None, Any]:
        """Take as many steps as need no decision in between, at least one; see `Strategy`."""
        found = self._several(model, state, filters)
        # A filter must see the logits, or the decoder is not fused: take a readable step.
        if found is None:
            return super().advance(model, state, filters)
        return self.take(found), state

    def choose(self, logits: Tensor, normaliser: Tensor) -> Tensor | None:
        """One step of the search over logits (R, V); see `Strategy`."""
        if not cpu.supports(logits) or self.beam > WIDEST_BEAM:
            return super().choose(logits, normaliser)
        length = self.history.shape[1]
        limits = self._limits if length >= self._first_limit else None
        chosen = cpu_search.choose(logits, normaliser, self.scores, self.end, limits, length)
        return self.take(Continuations(*chosen))

    def _several(self, model: Any, state: Any, filters: Sequence[Filter]) -> Continuations | None:
        """Take several steps, up to the first in which an output may end, and return that step's
        continuations. None if the search must go step by step."""
        until = min([self._first_limit + 1, *(each.until for each in filters)])
        most = int(until - self.history.shape[1])
        if most < 1:
            return None
        forbidden = torch.cat([self.history.new_empty(0), *(each.forbidden for each in filters)])
        # A row that may finish its source is compared with the finished ones after each step.
        most = 1 if self._waiting else min(most, BETWEEN_PAUSES)
        run = Run(self.history, self.scores, self.end, forbidden, self._limits, most)
        if isinstance(model, Narrowed):
            run = run._replace(names=model.tokens, others=state.others)
            model, state = model.model, state.inner
        decoder = fused_decoder(model)
        taken = None if decoder is None else decoder.ahead(model, state, run)
        if taken is None:
            return None
        self.history, self.scores = taken.history, taken.scores
        return Continuations(*taken.found)
