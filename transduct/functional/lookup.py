"""Table look-up with a gradient that is fast where rows repeat, and numbers that sum up rows.

On a GPU the deterministic gradient of `index_select` handles the copies of a row one by one. A
kernel of ours sums sorted runs of them, and so, more slowly, does an embedding. `torch.compile`
would turn an embedding back into the former, so both directions are custom operators.
"""

from typing import Any

import torch
from torch import Tensor

from transduct.functional.fast import cpu, cpu_search, row_sums, takes

PEAK_BLOCK = 64  # logits per block; blocks are ranked by their maxima first


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
    if takes("triton_rows", grad):
        return row_sums(grad, index, count)
    sums: Tensor = torch.ops.aten.embedding_dense_backward(
        grad.contiguous(), index, count, -1, False
    )
    return sums


@_sums.register_fake
def _(grad: Tensor, index: Tensor, count: int) -> Tensor:  # noqa: ARG001 (the operator's signature)
    return grad.new_empty(count, grad.shape[1])


def _remember(
    ctx: Any,
    inputs: tuple[Tensor, Tensor],
    output: Tensor,  # noqa: ARG001 (PyTorch's signature)
) -> None:
    table, index = inputs
    ctx.save_for_backward(index)
    ctx.count = table.shape[0]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _sums(grad, *ctx.saved_tensors, ctx.count), None


rows.register_autograd(_backward, setup_context=_remember)


def top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row, in order, and their indices: (R, V) -> (R, k), (R, k).

    On a CPU a maximum is much cheaper than a topk, so blocks are ranked by their maxima first.
    """
    if logits.shape[1] // PEAK_BLOCK <= count or logits.device.type != "cpu":
        values, places = logits.topk(count, -1)
        return values, places
    return largest_in(logits, block_peaks(logits).topk(count, -1).indices, count)


def block_peaks(logits: Tensor) -> Tensor:
    """The maximum of each full block: (R, V) -> (R, V // PEAK_BLOCK)."""
    blocks = logits.shape[1] // PEAK_BLOCK
    return logits[:, : blocks * PEAK_BLOCK].view(len(logits), blocks, PEAK_BLOCK).amax(-1)


def largest_in(logits: Tensor, blocks: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row and their indices, (R, k) each, given the `count` blocks (R,
    k) with the largest maxima, which hold them all unless they lie beyond the last full block."""
    within = torch.arange(PEAK_BLOCK, device=logits.device)
    # (R, k * PEAK_BLOCK)
    places = torch.add(within, blocks[:, :, None], alpha=PEAK_BLOCK).flatten(1)
    if rest := logits.shape[1] % PEAK_BLOCK:
        beyond = torch.arange(logits.shape[1] - rest, logits.shape[1], device=logits.device)
        places = torch.cat((places, beyond.expand(len(logits), -1)), 1)
    values, order = largest(logits.gather(1, places), count)
    return values, places.gather(1, order)


def largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row and their indices; a single one by a maximum."""
    values, places = x.max(1, keepdim=True) if count == 1 else x.topk(count, -1)
    return values, places


def log_normaliser(logits: Tensor) -> Tensor:
    """Log-sum-exp of each row, the logarithm of the softmax denominator: (R, V) -> (R,)."""
    return cpu_search.log_normaliser(logits) if cpu.supports(logits) else logits.logsumexp(-1)
