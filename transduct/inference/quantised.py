"""Layers with int8 weights, for inference: a quarter of the size of float32, and faster.

Let N be tokens, D the input width, F the output width, V the vocabulary.
"""

import torch
from torch import Tensor, nn

from transduct.blocks.transformer import DecoderLayer
from transduct.functional.quantisation import int8_linear, quantise_rows
from transduct.inference.packed import exchange
from transduct.kernels import cpu


class QuantisedLinear(nn.Module):
    """A linear layer of int8 weights with a step for each output; the bias is not quantised."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        if weight.is_meta:  # loaded later
            integers, steps = (
                weight.new_empty(weight.shape, dtype=torch.int8),
                weight.new_empty(len(weight)),
            )
        else:
            integers, steps = quantise_rows(weight.detach())
        self.weight, self.steps = nn.Parameter(integers, False), nn.Parameter(steps, False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), False)
        self.packed: cpu.Packed | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, F)."""
        if self.packed is not None:
            return self.packed(x).to(x.dtype)
        return int8_linear(x, self.weight, self.steps, self.bias)

    def pack(self) -> None:
        """Pack the weights for the processor, if there is a kernel that is faster than PyTorch."""
        if cpu.usable(self.steps):
            self.packed = cpu.Packed(self.weight, self.steps, self.bias)


class QuantisedTable(QuantisedLinear):
    """An int8 embedding table with a step for each row, which can also be the output projection."""

    @property
    def shape(self) -> torch.Size:
        """(V, D)."""
        return self.weight.shape

    @property
    def numbers(self) -> Tensor:
        """(V, D), dequantised."""
        return self.weight * self.steps[:, None]

    def rows(self, tokens: Tensor) -> Tensor:
        """Look up embeddings: (N,) -> (N, D)."""
        return self.weight.index_select(0, tokens) * self.steps.index_select(0, tokens)[:, None]

    def select(self, tokens: Tensor) -> "QuantisedTable":
        """Return the table of these tokens only."""
        chosen = QuantisedTable(self.weight[:0].float())
        chosen.weight = nn.Parameter(self.weight.index_select(0, tokens), False)
        chosen.steps = nn.Parameter(self.steps.index_select(0, tokens), False)
        if self.bias is not None:
            chosen.bias = nn.Parameter(self.bias.index_select(0, tokens), False)
        if self.packed is not None:
            chosen.pack()
        return chosen


def pack_quantised(model: nn.Module) -> None:
    """Pack the quantised layers of a model for the processor, except tables that are only looked
    up."""
    outputs = {id(getattr(module, "output_table", None)) for module in model.modules()}
    for module in list(model.modules()):
        if isinstance(module, QuantisedLinear) and (
            not isinstance(module, QuantisedTable) or id(module) in outputs
        ):
            module.pack()


def quantise(model: nn.Module) -> None:
    """Quantise all linear layers and embedding tables of a model, in place, but for changed ones;
    see `exchange`.

    Norms, biases and positions are not quantised. KV caches of decoders over a memory become
    float16 where the kernels read them: that takes much of the time, and int8 rounds more coarsely.
    """
    for module in model.modules():
        if isinstance(module, DecoderLayer):
            module.self_attention.cache_dtype = module.cross_attention.cache_dtype = torch.float16
    exchange(model, lambda layer: QuantisedLinear(layer.weight, layer.bias), QuantisedTable)
