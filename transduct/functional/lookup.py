"""Table look-up with a gradient that is fast where rows repeat.

On a GPU the deterministic gradient of `index_select` handles the copies of a row one by one; that
of an embedding does not. `torch.compile` would turn the latter back into the former, so both
directions are custom operators.
"""

from typing import Any

import torch
from torch import Tensor


def lookup(table: Tensor, index: Tensor) -> Tensor:
    """The rows of a table at these indices: (V, D), (N,) -> (N, D)."""
    return rows(table, index) if table.is_cuda else table.index_select(0, index)


@torch.library.custom_op("transduct::rows", mutates_args=())
def rows(table: Tensor, index: Tensor) -> Tensor:
    """`lookup` by the custom operator, on any device."""
    return table.index_select(0, index)


@rows.register_fake
def _(table: Tensor, index: Tensor) -> Tensor:
    return table.new_empty(index.shape[0], table.shape[1])


@torch.library.custom_op("transduct::rows_backward", mutates_args=())
def _sums(grad: Tensor, index: Tensor, count: int) -> Tensor:
    """The gradient of the table (V, D): each row gets the sum of the gradients of its copies."""
    sums: Tensor = torch.ops.aten.embedding_dense_backward(
        grad.contiguous(), index, count, -1, False
    )
    return sums


@_sums.register_fake
def _(grad: Tensor, index: Tensor, count: int) -> Tensor:  # noqa: ARG001 (the operator's signature)
    return grad.new_empty(count, grad.shape[1])


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001 (PyTorch's signature)
    table, index = inputs
    ctx.save_for_backward(index)
    ctx.count = table.shape[0]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _sums(grad, *ctx.saved_tensors, ctx.count), None


rows.register_autograd(_backward, setup_context=_remember)
