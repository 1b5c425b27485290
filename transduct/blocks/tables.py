"""Embedding tables for look-up and output projection: plain tensors, or packed or quantised
`Rows`."""

from copy import copy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from transduct.functional.lookup import lookup


class Rows(Protocol):
    """The interface of tables that are not plain tensors, such as quantised ones."""

    @property
    def shape(self) -> torch.Size:
        """(V, D)."""
        ...

    @property
    def numbers(self) -> Tensor:
        """(V, D), the table as a plain tensor."""
        ...

    @property
    def bias(self) -> Tensor | None:
        """(V,), the output bias, if there is one."""
        ...

    def rows(self, tokens: Tensor) -> Tensor:
        """Look up embeddings: (N,) -> (N, D)."""
        ...

    def __call__(self, hidden: Tensor) -> Tensor:
        """Compute logits, including the bias if there is one: (N, D) -> (N, V)."""
        ...

    def select(self, tokens: Tensor) -> Any:
        """Return the table of these tokens only: (K, D)."""
        ...


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
    return numbers_of(table), getattr(model, "output_bias", None) if isinstance(
        table, Tensor
    ) else table.bias


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
    if (
        not table.is_meta
    ):  # on the meta device drawing does nothing, but takes half a second of imports
        table.normal_(std=d_model**-0.5)
    return nn.Parameter(table)
