"""Layers whose weights are integers of 8 bits, for a model in use. A quarter of the bytes of float32, and faster.

Let N be tokens, D the width that is read, F the width that is written, V the vocabulary.
"""

import torch
from torch import Tensor, nn

from transduct.blocks.packed import exchange
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
            return self.packed(x).to(x.dtype)
        return int8_linear(x, self.weight, self.steps, self.bias)

    def pack(self) -> None:
        """Lay the weights out for the processor, if there is something faster than PyTorch."""
        if kernels.usable(self.steps):
            self.packed = kernels.Packed(self.weight, self.steps, self.bias)


class QuantisedTable(QuantisedLinear):
    """An embedding table with a step for each row; as the output table it is also multiplied with."""

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
        if self.bias is not None:
            chosen.bias = nn.Parameter(self.bias.index_select(0, tokens), False)
        if self.packed is not None:
            chosen.pack()
        return chosen


def pack_quantised(model: nn.Module) -> None:
    """Lay the quantised layers of a model in use out for the processor, but for tables that are only looked up in."""
    outputs = {id(getattr(module, "output_table", None)) for module in model.modules()}
    for module in list(model.modules()):
        if isinstance(module, QuantisedLinear) and (not isinstance(module, QuantisedTable) or id(module) in outputs):
            module.pack()


def quantise(model: nn.Module) -> None:
    """Put quantised layers in the place of every linear layer of a model and of its tables of embeddings.

    Norms, biases and positions keep their numbers.
    """
    exchange(model, lambda layer: QuantisedLinear(layer.weight, layer.bias), QuantisedTable)
