"""Layers repacked for fast inference on a CPU, with the same results.

Let N be tokens, D the input width, F the output width, V the vocabulary.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.embeddings import Embedding, PositionVectors, Rows
from transduct.blocks.linear import Linear
from transduct.blocks.transformer import DecoderLayer, EncoderLayer, is_exactly
from transduct.devices import has_onednn
from transduct.kernels import cpu

# a matrix of up to SMALL weights times fewer than FEW rows is faster unpacked
SMALL, FEW = 2**18, 8


def packed_linear(weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """x W^T + b for a constant matrix (F, D), packed for the processor: (..., D) -> (..., F). It
    has no gradients."""
    if cpu.supports(weight.detach()):
        return cpu.Packed(weight, None, bias)
    narrow = weight.dtype == torch.bfloat16
    if not has_onednn() or (narrow and not torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    # The weight is also kept as it is, but only where it is small.
    small = weight if weight.numel() <= SMALL else None

    def product_of(x: Tensor) -> Tensor:
        if small is not None and x.numel() < FEW * x.shape[-1]:
            return F.linear(x, small, bias)
        return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")

    return product_of


class PackedLinear(nn.Module):
    """A linear layer with its matrix packed for the processor."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.packed = packed_linear(
            layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
        )

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., F)."""
        return self.packed(x)


class PackedTable(nn.Module):
    """An embedding table that is also packed for the output projection, with an optional bias
    (V,)."""

    def __init__(self, table: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.numbers, self.bias = table.detach(), None if bias is None else bias.detach()

    @cached_property
    def packed(self) -> Callable[[Tensor], Tensor]:
        """The output projection, packed on first use, because some tables are only looked up."""
        return packed_linear(self.numbers, self.bias)

    @property
    def shape(self) -> torch.Size:
        """(V, D)."""
        return self.numbers.shape

    def rows(self, tokens: Tensor) -> Tensor:
        """Look up embeddings: (N,) -> (N, D)."""
        return self.numbers.index_select(0, tokens)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits: (N, D) -> (N, V)."""
        return self.packed(hidden)

    def select(self, tokens: Tensor) -> "PackedTable":
        """Return the table of these tokens only."""
        return PackedTable(
            self.rows(tokens), None if self.bias is None else self.bias.index_select(0, tokens)
        )


class JointAttention(MultiHeadAttention):
    """Self-attention with one projection to queries, keys and values: it reads x once instead of
    three times, and memory reads bound the time of a step.

    Args:
        of: the readable attention, whose linear layers are joined.
    """

    def __init__(self, of: MultiHeadAttention) -> None:
        nn.Module.__init__(self)
        self.num_heads, self.num_kv_heads = of.num_heads, of.num_kv_heads
        self.d_k, self.d_v = of.d_k, of.d_v
        self.dropout, self.positions, self.cache_dtype = of.dropout, of.positions, of.cache_dtype
        self.output, self.training = of.output, of.training
        parts = of.query, of.key, of.value
        biased = of.query.bias is not None
        with torch.device("meta"):
            joint = Linear(of.query.in_features, sum(p.out_features for p in parts), biased)
        if not of.query.weight.is_meta:  # else the weights are loaded later
            for name in ("weight", "bias") if biased else ("weight",):
                concatenated = torch.cat([getattr(part, name).detach() for part in parts])
                setattr(joint, name, nn.Parameter(concatenated, requires_grad=False))
        self.joint: nn.Module = joint

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, D) -> query (N, H, K), key (N, G, K) and value (N, G, V)."""
        # Queries may have more heads than keys and values, which groups of them share.
        heads = self.num_heads, self.num_kv_heads, self.num_kv_heads
        sizes = [count * width for count, width in zip(heads, (self.d_k, self.d_k, self.d_v))]
        parts = self.joint(x).split(sizes, -1)  # (N, H * K), (N, G * K), (N, G * V)
        query, key, value = (part.unflatten(-1, (h, -1)) for part, h in zip(parts, heads))
        return query, key, value


def exchange(
    model: nn.Module,
    layer: Callable[[nn.Linear], nn.Module],
    table: Callable[[Tensor, Tensor | None], Rows],
) -> None:
    """Replace the linear layers and embedding tables of a model, for inference. Changed ones stay;
    see `is_exactly`.

    First fuses the query, key and value projections of self-attention. Shared tables stay shared,
    and the output bias moves into the output table.
    """
    tables: dict[int, Rows] = {}
    fuse_projections(model)
    for module in list(model.modules()):
        children: list[tuple[str, Any]] = list(module.named_children())
        for name, part in children:
            if is_exactly(part, Linear):
                setattr(module, name, layer(part))
        name = "table" if is_exactly(module, Embedding) else "output_table"
        weight = module._parameters.get(name)
        if weight is not None:
            del module._parameters[name]
            bias = module._parameters.get("output_bias")
            if bias is not None:
                module._parameters["output_bias"] = None
            # the model, which owns the bias, comes before its embeddings
            if id(weight) not in tables:
                tables[id(weight)] = table(weight, bias)
            setattr(module, name, tables[id(weight)])


def pack_layers(model: nn.Module) -> None:
    """Pack all layers of a model for the processor and tabulates its position vectors."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    exchange(model, PackedLinear, PackedTable)
    remember_positions(model, dtype)


def fuse_projections(model: nn.Module) -> None:
    """Fuse the query, key and value projections of each self-attention, unless they already are
    fused."""
    modules: Iterable[Any] = model.modules()
    for module in modules:
        if not is_exactly(module, EncoderLayer, DecoderLayer):
            continue
        self_attention = module.self_attention
        if not is_exactly(self_attention, MultiHeadAttention):
            continue
        parts = self_attention.query, self_attention.key, self_attention.value
        if (
            all(is_exactly(part, Linear) for part in parts)
            and len({p.bias is None for p in parts}) == 1
        ):
            module.self_attention = JointAttention(self_attention)


def remember_positions(model: nn.Module, dtype: torch.dtype) -> None:
    """Tabulate all position vectors of a model: those of its embeddings and those inside its
    attention."""
    modules: Iterable[Any] = model.modules()
    for module in modules:
        if is_exactly(module, PositionVectors):
            module.remember(dtype)
