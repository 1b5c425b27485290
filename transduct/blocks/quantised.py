"""Layers whose weights are integers of 8 bits, for a model in use. A quarter of the bytes of float32, and faster.

Let N be tokens, D the width that is read, F the width that is written, V the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from transduct.blocks.caches import KVCache, Lineage, Memory
from transduct.blocks.packed import exchange
from transduct.blocks.transformer import ACTIVATIONS, DecoderLayer
from transduct.functional import kernels
from transduct.functional.quantisation import int8_linear, quantise_rows


class QuantisedLinear(nn.Module):
    """A linear layer with a step for each of its outputs; its bias is as it was."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        if weight.is_meta:  # to be filled
            integers, steps = weight.new_empty(weight.shape, dtype=torch.int8), weight.new_empty(len(weight))
        else:
            integers, steps = quantise_rows(weight.detach())
        self.weight, self.steps = nn.Parameter(integers, False), nn.Parameter(steps, False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), False)
        self.packed: kernels.Packed | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, F)."""
        if self.packed is not None:
            return self.packed(x.float()).to(x.dtype)
        return int8_linear(x, self.weight, self.steps, self.bias)

    def pack(self) -> None:
        """Lay the weights out for the processor, if there is something faster than PyTorch."""
        if kernels.usable(self.steps):
            self.packed = kernels.Packed(self.weight, self.steps, self.bias)


class QuantisedTable(QuantisedLinear):
    """A table of embeddings with a step for each row; of the output's table too, for which it is multiplied."""

    @property
    def shape(self) -> torch.Size:
        """(V, D)."""
        return self.weight.shape

    @property
    def numbers(self) -> Tensor:
        """(V, D), what the integers stand for."""
        return self.weight * self.steps[:, None]

    def rows(self, tokens: Tensor) -> Tensor:
        """(N,) -> (N, D)."""
        return self.weight.index_select(0, tokens) * self.steps.index_select(0, tokens)[:, None]

    def select(self, tokens: Tensor) -> "QuantisedTable":
        """The table of these tokens alone."""
        chosen = QuantisedTable(self.weight[:0].float())
        chosen.weight = nn.Parameter(self.weight.index_select(0, tokens), False)
        chosen.steps = nn.Parameter(self.steps.index_select(0, tokens), False)
        if self.packed is not None:
            chosen.pack()
        return chosen


class FusedDecoderLayer(nn.Module):
    """A decoder layer whose `step` is a single call, for the step of one sentence is nothing but calls."""

    def __init__(self, layer: DecoderLayer, packed: kernels.PackedLayer) -> None:
        super().__init__()
        self.layer, self.packed = layer, packed
        self.cross_attention = layer.cross_attention

    @staticmethod
    def packed_of(layer: DecoderLayer) -> kernels.PackedLayer | None:
        """The layer as the kernels read it; None if a part of it is unknown to them."""
        own, cross, forward = layer.self_attention, layer.cross_attention, layer.feed_forward
        linears = [own.joint, own.output, cross.query, cross.output, forward.inner, forward.outer]
        packed = [linear.packed for linear in linears if isinstance(linear, QuantisedLinear)]
        plain = own.positions is None and forward.gate is None and forward.activation is ACTIVATIONS["relu"]
        if not plain or len(packed) < len(linears) or None in packed:
            return None
        around = (layer.around_attention, layer.around_cross, layer.around_feed_forward)
        held: list[Any] = [part.norm for part in around]
        norms = [(norm.weight, getattr(norm, "bias", None), norm.eps) for norm in held]
        sizes = (len(held[0].weight), own.num_heads, own.num_kv_heads, own.d_k, own.d_v, layer.around_attention.pre)
        return kernels.PackedLayer(sizes, norms, packed)  # type: ignore[arg-type]

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        """As `DecoderLayer`."""
        return self.layer(*arguments, **named)

    def step(self, x: Tensor, cache: KVCache, memory: Memory, lineage: Lineage) -> Tensor:
        """One new token a row: (R, D) -> (R, D)."""
        own = self.layer.self_attention
        cache.make_room(x, len(memory.keys), own.num_kv_heads, own.d_k, own.d_v)
        past = cache.length, lineage.slots
        x = self.packed.step(x, cache.rooms, *past, (memory.keys, memory.values), memory.lengths)
        cache.length += 1
        return x


def pack_quantised(model: nn.Module) -> None:
    """Lay the quantised layers of a model in use out for the processor, and make decoder layers single calls."""
    for module in list(model.modules()):
        if isinstance(module, QuantisedLinear):
            module.pack()
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if isinstance(part, DecoderLayer) and (packed := FusedDecoderLayer.packed_of(part)) is not None:
                setattr(module, name, FusedDecoderLayer(part, packed))


def quantise(model: nn.Module) -> None:
    """Put quantised layers in the place of every linear layer of a model and of its tables of embeddings.

    Norms, biases and positions keep their numbers.
    """
    exchange(model, lambda layer: QuantisedLinear(layer.weight, layer.bias), QuantisedTable)
