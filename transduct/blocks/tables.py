"""Embedding tables, for look-up and output projection: plain tensors, or `Rows` that are packed or quantised."""

from copy import copy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from transduct.functional.lookup import lookup


class Rows(Protocol):
    """A table that is kept otherwise than as plain numbers, such as a quantised one."""

    @property
    def shape(self) -> torch.Size:
        """(V, D)."""
        ...

    @property
    def numbers(self) -> Tensor:
        """(V, D), as plain numbers."""
        ...

    @property
    def bias(self) -> Tensor | None:
        """(V,), if there is one."""
        ...

    def rows(self, tokens: Tensor) -> Tensor:
        """(N,) -> (N, D)."""
        ...

    def __call__(self, hidden: Tensor) -> Tensor:
        """(N, D) -> (N, V), the bias of the rows added if they have one."""
        ...

    def select(self, tokens: Tensor) -> Any:
        """The table of these tokens alone: (K, D)."""
        ...


Table = Tensor | Rows


def rows_of(table: Table, tokens: Tensor) -> Tensor:
    """The rows of some tokens: (V, D), (N,) -> (N, D)."""
    if not isinstance(table, Tensor):
        return table.rows(tokens)
    return lookup(table, tokens)


def project(hidden: Tensor, table: Table, bias: Tensor | None = None) -> Tensor:
    """How well each row fits, and its bias (V,), which rows kept otherwise bring along: (N, D), (V, D) -> (N, V)."""
    return nn.functional.linear(hidden, table, bias) if isinstance(table, Tensor) else table(hidden)


def numbers_of(table: Table) -> Tensor:
    """A table as plain numbers, (V, D), whatever it is kept as."""
    return table if isinstance(table, Tensor) else table.numbers


def output_of(model: Any) -> tuple[Tensor, Tensor | None]:
    """A model's output table as plain numbers, (V, D), and the bias (V,) of its rows, if they have one."""
    table: Table = model.output_table
    return numbers_of(table), getattr(model, "output_bias", None) if isinstance(table, Tensor) else table.bias


def narrowed(model: Any, tokens: Tensor) -> Any:
    """A model that scores only some tokens (K,) of its vocabulary; it shares everything but its output table."""
    other = copy(model)
    other._modules, other._parameters = dict(model._modules), dict(model._parameters)
    del other.output_table
    table: Table = model.output_table
    other.output_table = table.index_select(0, tokens) if isinstance(table, Tensor) else table.select(tokens)
    bias = other._parameters.pop("output_bias", None)
    other.output_bias = None if bias is None else bias.index_select(0, tokens)
    return other


def embedding_table(size: int, d_model: int) -> nn.Parameter:
    """(V, D) drawn from N(0, 1 / d_model), so that the scaled embeddings and the tied logits both start near one."""
    table = torch.empty(size, d_model)
    if not table.is_meta:  # where nothing is drawn, but half a second of imports would pass
        table.normal_(std=d_model**-0.5)
    return nn.Parameter(table)
