"""Layers repacked for fast inference on a CPU; what they compute is unchanged.

Let N be tokens, D the width that is read, F the width that is written, V the vocabulary.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from transduct.blocks.embeddings import Embedding
from transduct.blocks.tables import Rows
from transduct.blocks.transformer import join_attention, remember_positions
from transduct.functional.products import packed_linear


class PackedLinear(nn.Module):
    """A linear layer whose matrix lies as the processor wants it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.packed = packed_linear(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., F)."""
        return self.packed(x)


class PackedTable(nn.Module):
    """A table of embeddings, and the same laid out for the product that makes logits of it, a bias (V,) added."""

    def __init__(self, table: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.numbers, self.bias = table.detach(), None if bias is None else bias.detach()

    @cached_property
    def packed(self) -> Callable[[Tensor], Tensor]:
        """The product with it, laid out when it is first asked for: a table may never be multiplied."""
        return packed_linear(self.numbers, self.bias)

    @property
    def shape(self) -> torch.Size:
        """(V, D)."""
        return self.numbers.shape

    def rows(self, tokens: Tensor) -> Tensor:
        """(N,) -> (N, D)."""
        return self.numbers.index_select(0, tokens)

    def forward(self, hidden: Tensor) -> Tensor:
        """(N, D) -> (N, V)."""
        return self.packed(hidden)

    def select(self, tokens: Tensor) -> "PackedTable":
        """The table of these tokens alone."""
        return PackedTable(self.rows(tokens), None if self.bias is None else self.bias.index_select(0, tokens))


def exchange(
    model: nn.Module, layer: Callable[[nn.Linear], nn.Module], table: Callable[[Tensor, Tensor | None], Rows]
) -> None:
    """Replace every linear layer and every table of embeddings of a model in use.

    Queries, keys and values of self-attention become one layer first. Tables that are shared stay shared, and the bias
    of the output becomes its table's.
    """
    tables: dict[int, Rows] = {}
    join_attention(model)
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if isinstance(part, nn.Linear):
                setattr(module, name, layer(part))
        name = "table" if isinstance(module, Embedding) else "output_table"
        held = module._parameters.get(name)
        if held is not None:
            del module._parameters[name]
            bias = module._parameters.get("output_bias")
            if bias is not None:
                module._parameters["output_bias"] = None
            if id(held) not in tables:  # the model, which has the bias, comes before its embeddings
                tables[id(held)] = table(held, bias)
            setattr(module, name, tables[id(held)])


def pack_layers(model: nn.Module) -> None:
    """Lay out a model for the processor, and look up what need not be computed again: the vectors of its positions."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    exchange(model, PackedLinear, PackedTable)
    remember_positions(model, dtype)
