"""Layers whose weights are integers of 8 bits, for a model in use. A quarter of the bytes of float32, and faster.

Let N be tokens, D the model width, V the vocabulary.
"""

import torch
from torch import Tensor, nn

from transduct.blocks.embeddings import Embedding
from transduct.functional.quantisation import int8_linear, quantise_rows


class QuantisedLinear(nn.Module):
    """A linear layer with a step for each of its outputs; its bias is as it was."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight, steps = quantise_rows(layer.weight.detach())
        self.weight, self.steps = nn.Parameter(weight, False), nn.Parameter(steps, False)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone(), False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, F)."""
        return int8_linear(x, self.weight, self.steps, self.bias)


class QuantisedTable(nn.Module):
    """A table of embeddings with a step for each row; of the output's table too, for which it is multiplied."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        values, steps = quantise_rows(table.detach())
        self.values, self.steps = nn.Parameter(values, False), nn.Parameter(steps, False)

    @property
    def shape(self) -> torch.Size:
        """(V, D)."""
        return self.values.shape

    def rows(self, tokens: Tensor) -> Tensor:
        """(N,) -> (N, D)."""
        return self.values.index_select(0, tokens) * self.steps.index_select(0, tokens)[:, None]

    def forward(self, hidden: Tensor) -> Tensor:
        """(N, D) -> (N, V)."""
        return int8_linear(hidden, self.values, self.steps)


def quantise(model: nn.Module) -> None:
    """Put quantised layers in the place of every linear layer of a model and of its tables of embeddings.

    Tables that are one stay one. Norms, biases and positions keep their numbers.
    """
    tables: dict[int, QuantisedTable] = {}
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(module, name, QuantisedLinear(layer))
        name = "table" if isinstance(module, Embedding) else "output_table"
        table = module._parameters.get(name)
        if table is not None:
            del module._parameters[name]
            setattr(module, name, tables.setdefault(id(table), QuantisedTable(table)))
