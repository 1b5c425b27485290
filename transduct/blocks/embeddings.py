"""Tokens and positions to vectors."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from transduct.functional import positions as schemes
from transduct.functional.dropout import dropout

VectorScheme = Literal[
    "index", "normalised_index", "binary", "one_hot", "learned", "sinusoidal", "sinusoidal_concatenated"
]


class PositionVectors(nn.Module):
    """A vector for each position, by one of the schemes that have one.

    `width` is the width of the vectors; None takes the scheme's own: 1 for an index, the bits of `max_length`, or
    `max_length` itself for one-hot. Narrower schemes are filled up: an index is repeated, bits end in zeros.
    """

    def __init__(self, scheme: VectorScheme, max_length: int, width: int | None) -> None:
        super().__init__()
        bits = max(1, (max_length - 1).bit_length())
        own = {"index": 1, "normalised_index": 1, "binary": bits, "one_hot": max_length}.get(scheme)
        self.scheme, self.max_length, self.width = scheme, max_length, width or own
        if self.width is None:
            raise ValueError(f"positions '{scheme}' have no width of their own; give one")
        if own is not None and self.width < own:
            raise ValueError(f"positions '{scheme}' up to {max_length} need a width of {own}, found {self.width}")
        self.own = own or self.width
        self.table = nn.Parameter(torch.empty(max_length, self.width)) if scheme == "learned" else None
        if self.table is not None:
            nn.init.normal_(self.table, std=self.width**-0.5)

    def forward(self, positions: Tensor, lengths: Tensor) -> Tensor:
        """(N,) positions and the lengths (N,) of their sequences -> (N, width).

        A decoder does not know its final length and gives `max_length` for it.
        """
        assert self.width is not None
        if self.table is not None:
            return self.table.index_select(0, positions)  # (N, width)
        if self.scheme == "sinusoidal":
            return schemes.sinusoidal(positions, self.width)
        if self.scheme == "sinusoidal_concatenated":
            return schemes.sinusoidal_concatenated(positions, self.width)
        if self.scheme == "index":
            return schemes.index(positions).expand(-1, self.width)
        if self.scheme == "normalised_index":
            return schemes.normalised_index(positions, lengths).expand(-1, self.width)
        if self.scheme == "binary":
            vectors = schemes.binary(positions, self.own)
        else:
            vectors = schemes.one_hot(positions, self.own)
        return nn.functional.pad(vectors, (0, self.width - self.own))  # (N, width)


class Embedding(nn.Module):
    """Tokens times sqrt(d_model), with their positions added, concatenated and projected, or left to attention.

    Vaswani et al. 2017, sections 3.4 and 3.5. The table may be shared with another embedding and with the output.
    """

    def __init__(
        self,
        table: nn.Parameter,
        positions: VectorScheme | None,
        mode: Literal["add", "concatenate"],
        max_length: int,
        rate: float,
    ) -> None:
        super().__init__()
        d_model = table.shape[1]
        self.table, self.mode, self.rate = table, mode, rate
        vectors = {"sinusoidal", "sinusoidal_concatenated", "learned"}
        width = d_model if mode == "add" or positions in vectors else None
        self.positions = PositionVectors(positions, max_length, width) if positions else None
        self.projection: nn.Linear | None = None
        if self.positions is not None and mode == "concatenate":
            assert self.positions.width is not None
            self.projection = nn.Linear(d_model + self.positions.width, d_model)

    def forward(self, tokens: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """(N,) tokens, their positions and the lengths of their sequences -> (N, D)."""
        x = self.table.index_select(0, tokens) * math.sqrt(self.table.shape[1])  # (N, D)
        if self.positions is not None:
            vectors = self.positions(positions, lengths).to(x.dtype)
            x = x + vectors if self.projection is None else self.projection(torch.cat((x, vectors), -1))
        return dropout(x, self.rate, self.training)


def embedding_table(size: int, d_model: int) -> nn.Parameter:
    """(V, D) drawn from N(0, 1 / d_model), so that the scaled embeddings and the tied logits both start near one."""
    return nn.Parameter(torch.randn(size, d_model) * d_model**-0.5)
