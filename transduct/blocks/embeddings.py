"""Embedding tables, and embeddings of tokens, positions, picture patches and filterbanks.

A table is a plain tensor or, for inference, a packed or quantised one (`Rows`); it may also be the
output projection.
"""

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from transduct.blocks.linear import Linear
from transduct.functional import positions as schemes
from transduct.functional.dropout import dropout
from transduct.functional.lookup import lookup
from transduct.records import refuse_if
from transduct.segments import Segments

VectorScheme = Literal[
    "index",
    "normalised_index",
    "binary",
    "one_hot",
    "learned",
    "sinusoidal",
    "sinusoidal_concatenated",
    "sinusoidal_inclusive",
]


# The vectors that are computed: positions (N,), lengths (N,) and the scheme's width -> (N, width).
COMPUTED: dict[VectorScheme, Callable[[Tensor, Tensor, int], Tensor]] = {
    "index": lambda positions, *_: schemes.index(positions),
    "normalised_index": lambda positions, lengths, _: schemes.normalised_index(positions, lengths),
    "binary": lambda positions, _, width: schemes.binary(positions, width),
    "one_hot": lambda positions, _, width: schemes.one_hot(positions, width),
    "sinusoidal": lambda positions, _, width: schemes.sinusoidal(positions, width),
    "sinusoidal_concatenated": lambda positions, _, width: schemes.sinusoidal_concatenated(
        positions, width
    ),
    "sinusoidal_inclusive": lambda positions, _, width: schemes.sinusoidal_inclusive(
        positions, width
    ),
}


class Rows(Protocol):
    """The interface of tables that are not plain tensors, such as quantised ones."""

    @property
    def shape(self) -> torch.Size:
        """(V, D)."""

    @property
    def numbers(self) -> Tensor:
        """(V, D), the table as a plain tensor."""

    @property
    def bias(self) -> Tensor | None:
        """(V,), the output bias, if there is one."""

    def rows(self, tokens: Tensor) -> Tensor:
        """Look up embeddings: (N,) -> (N, D)."""

    def __call__(self, hidden: Tensor) -> Tensor:
        """Compute logits, including the bias if there is one: (N, D) -> (N, V)."""

    def select(self, tokens: Tensor) -> Any:
        """Return the table of these tokens only: (K, D)."""


Table = Tensor | Rows


def rows_of(table: Table, tokens: Tensor) -> Tensor:
    """Look up embeddings: (V, D), (N,) -> (N, D)."""
    if not isinstance(table, Tensor):
        return table.rows(tokens)
    return lookup(table, tokens)


def project(hidden: Tensor, table: Table, bias: Tensor | None = None) -> Tensor:
    """Compute logits: (N, D), (V, D) -> (N, V). The bias (V,) is for plain tables; `Rows` have
    their own."""
    return nn.functional.linear(hidden, table, bias) if isinstance(table, Tensor) else table(hidden)


def numbers_of(table: Table) -> Tensor:
    """Any table as a plain tensor (V, D)."""
    return table if isinstance(table, Tensor) else table.numbers


def output_of(model: Any) -> tuple[Tensor, Tensor | None]:
    """The output table of a model as a plain tensor (V, D), and its bias (V,) or None."""
    table: Table = model.output_table
    if not isinstance(table, Tensor):
        return table.numbers, table.bias
    return table, model._parameters.get("output_bias")


def narrowed(model: Any, tokens: Tensor) -> Any:
    """A copy of a model that scores only these tokens (K,); it shares everything except the output
    table."""
    other = copy(model)
    other._modules, other._parameters = dict(model._modules), dict(model._parameters)
    del other.output_table
    table: Table = model.output_table
    other.output_table = (
        table.index_select(0, tokens) if isinstance(table, Tensor) else table.select(tokens)
    )
    bias = other._parameters.pop("output_bias", None)
    other.output_bias = None if bias is None else bias.index_select(0, tokens)
    return other


def embedding_table(size: int, d_model: int) -> nn.Parameter:
    """A table (V, D) from N(0, 1 / d_model), so that scaled embeddings and tied logits both start
    near one."""
    table = torch.empty(size, d_model)
    # on the meta device drawing does nothing, but takes half a second of imports
    if not table.is_meta:
        table.normal_(std=d_model**-0.5)
    return nn.Parameter(table)


class PositionVectors(nn.Module):
    """A vector for each position, by one of the vector schemes.

    Args:
        width: of the vectors. None takes the scheme's own: 1 for an index, the number of bits for
            binary, `max_length` for one-hot. A larger width repeats the index and pads the others
            with zeros.
        first: the number of the first position, where vectors are computed.
    """

    def __init__(
        self, scheme: VectorScheme, max_length: int, width: int | None, first: int = 0
    ) -> None:
        super().__init__()
        bits = max(1, (max_length - 1).bit_length())
        scheme_width = {
            "index": 1,
            "normalised_index": 1,
            "binary": bits,
            "one_hot": max_length,
        }.get(scheme)
        self.scheme, self.max_length, self.width = scheme, max_length, width or scheme_width
        self.first = first
        if self.width is None:
            raise ValueError(f"positions '{scheme}' have no width of their own; give one")
        if scheme_width is not None and self.width < scheme_width:
            found = (
                f"positions '{scheme}' up to {max_length} need a width of {scheme_width}, found "
                f"{self.width}"
            )
            raise ValueError(
                f"{found}; reduce max_length, or use position_mode 'concatenate' or learned "
                "positions"
            )
        self.scheme_width = scheme_width or self.width
        self.table = (
            nn.Parameter(torch.empty(max_length, self.width)) if scheme == "learned" else None
        )
        # drawing nothing would import a compiler
        if self.table is not None and not self.table.is_meta:
            nn.init.normal_(self.table, std=self.width**-0.5)

    def remember(self, dtype: torch.dtype) -> None:
        """Tabulate the vectors of all positions, for inference, unless they depend on a sequence's
        length."""
        if self.table is None and self.scheme not in schemes.LENGTH_DEPENDENT:
            places = torch.arange(self.max_length)
            # some schemes return an expanded view
            vectors = self(places, places).detach().to(dtype).contiguous()
            self.table = nn.Parameter(vectors, requires_grad=False)

    def forward(self, positions: Tensor, lengths: Tensor) -> Tensor:
        """Positions (N,) and the lengths (N,) of their sequences -> (N, width).

        A decoder, which does not know its final length, passes `max_length`.
        """
        assert self.width is not None
        if self.table is not None:
            return lookup(self.table, positions)  # (N, width)
        if self.first:
            positions = positions + self.first
        vectors = COMPUTED[self.scheme](positions, lengths, self.scheme_width)
        if self.scheme in ("index", "normalised_index"):
            return vectors.expand(-1, self.width)
        missing = self.width - self.scheme_width
        return nn.functional.pad(vectors, (0, missing)) if missing else vectors  # (N, width)


class Embedding(nn.Module):
    """Token embeddings times sqrt(d_model), with positions added, concatenated and projected, or
    left to attention.

    Vaswani et al. 2017, sections 3.4 and 3.5. The table may be shared with another embedding and
    with the output.

    Args:
        scaled: whether the table's vectors are multiplied by sqrt(d_model).
        first: see `PositionVectors`.
        norm: of the sum; none by default.
    """

    def __init__(
        self,
        table: Table,
        positions: VectorScheme | None,
        mode: Literal["add", "concatenate"],
        max_length: int,
        rate: float,
        scaled: bool = True,
        first: int = 0,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        d_model = table.shape[1]
        self.table, self.factor, self.rate = table, math.sqrt(d_model) if scaled else 1.0, rate
        self.norm = norm
        vectors = {"sinusoidal", "sinusoidal_concatenated", "sinusoidal_inclusive", "learned"}
        width = d_model if mode == "add" or positions in vectors else None
        self.positions = PositionVectors(positions, max_length, width, first) if positions else None
        self.projection: Linear | None = None
        if self.positions is not None and mode == "concatenate":
            assert self.positions.width is not None
            self.projection = Linear(d_model + self.positions.width, d_model)

    def forward(self, tokens: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Tokens, their positions and the lengths of their sequences, (N,) each -> (N, D).

        Unknown lengths, as in a decoder, count as `max_length`.
        """
        x = rows_of(self.table, tokens) * self.factor  # (N, D)
        if self.positions is not None:
            if lengths is None:
                lengths = torch.full_like(positions, self.positions.max_length)
            vectors = self.positions(positions, lengths).to(x.dtype)
            x = (
                x + vectors
                if self.projection is None
                else self.projection(torch.cat((x, vectors), -1))
            )
        if self.norm is not None:
            x = self.norm(x)
        return dropout(x, self.rate) if self.training else x


class PatchEmbedding(nn.Module):
    """Linear projection of square patches of pictures (Dosovitskiy et al. 2021, equation 1).

    Patches are ordered row by row, and the values of a patch channel by channel, like the weights
    of a convolution.
    """

    def __init__(self, patch_size: int, d_model: int, channels: int = 3) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.projection = Linear(channels * patch_size**2, d_model)

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, C, height, width) -> (B, P, D)."""
        (count, channels, height, width), side = pictures.shape, self.patch_size
        squares = pictures.reshape(count, channels, height // side, side, width // side, side)
        # (B, P, D)
        return self.projection(squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))


class GroupedLinear(nn.Module):
    """Separate linear layers for groups of neighbouring channels: (..., inputs) -> (...,
    outputs)."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, inputs // groups, outputs // groups))
        self.bias = nn.Parameter(torch.zeros(outputs))
        bound = math.sqrt(6.0 * groups / (inputs + outputs))  # Xavier-uniform in each group
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs) -> (N, outputs)."""
        groups, width, _ = self.weight.shape
        parts = x.view(-1, groups, width).transpose(0, 1)  # (groups, N, width)
        return (
            torch.baddbmm(self.bias.view(groups, 1, -1), parts, self.weight)
            .transpose(0, 1)
            .flatten(1)
        )


class FilterbankStem(nn.Module):
    """Two convolutions over time of stride 2 (as in Wang et al. 2020; here of width 3, with GELU),
    then residual ones.

    They run over flat sequences, each as if padded with a zero frame on both sides. Every sequence
    has a multiple of four frames, so that a window of stride 2 is a pair of frames and the last
    frame of the pair before, and never crosses into the next sequence.

    Args:
        layers: the number of residual convolutions, of stride 1.
        groups: the number of groups into which bands and channels are divided, as in a grouped
            convolution.
    """

    def __init__(self, bands: int, d_model: int, layers: int = 0, groups: int = 1) -> None:
        super().__init__()
        self.groups = groups
        self.first = GroupedLinear(3 * bands, d_model, groups)
        self.second = GroupedLinear(3 * d_model, d_model, groups)
        self.norms = nn.ModuleList(nn.GroupNorm(groups, d_model) for _ in range(layers))
        self.residual = nn.ModuleList(
            GroupedLinear(3 * d_model, d_model, groups) for _ in range(layers)
        )

    def forward(self, x: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """Filterbanks (N, M) -> (N / 4, D), and their segments."""
        for convolution in (self.first, self.second):
            segments = halved(segments)
            pairs = x.view(-1, 2, x.shape[1])  # (N / 2, 2, C)
            x = self._convolved(
                convolution, _before(pairs[:, 1], segments), pairs[:, 0], pairs[:, 1]
            )
        for norm, residual in zip(self.norms, self.residual, strict=True):
            y = norm(x)
            x = x + self._convolved(residual, _before(y, segments), y, _after(y, segments))
        return x, segments

    def _convolved(self, convolution: nn.Module, *three: Tensor) -> Tensor:
        """GELU(convolution) of three neighbouring frames, (N, C) each, concatenated within each
        group."""
        # (N, groups, C / groups) each
        parts = [part.view(len(part), self.groups, -1) for part in three]
        return nn.functional.gelu(convolution(torch.cat(parts, 2).flatten(1)))  # (N, C)


def _before(x: Tensor, segments: Segments) -> Tensor:
    """The token before each token in its sequence, zero before the first: (N, C) -> (N, C)."""
    return nn.functional.pad(x[:-1], (0, 0, 1, 0)) * (segments.positions > 0)[:, None]


def _after(x: Tensor, segments: Segments) -> Tensor:
    """The token after each token in its sequence, zero after the last: (N, C) -> (N, C)."""
    last = segments.lengths.index_select(0, segments.sequence) - 1
    return nn.functional.pad(x[1:], (0, 0, 0, 1)) * (segments.positions < last)[:, None]


def halved(segments: Segments) -> Segments:
    """The segments of sequences half as long; all lengths are even."""
    lengths, offsets = segments.lengths // 2, segments.offsets // 2
    longest, total = segments.longest // 2, segments.total // 2
    return replace(segments, lengths=lengths, offsets=offsets, longest=longest, total=total)


def require_shared(config: Any) -> None:
    """Raise ValueError if one table is shared by two vocabularies of different size."""
    refuse_if(
        config.tie in ("all", "embeddings") and config.source_size != config.target_size,
        f"tie '{config.tie}' needs one shared vocabulary, found {config.source_size} and "
        f"{config.target_size} entries; set tokenizer.shared=true or model.tie=decoder",
    )
