"""Symmetric int8 quantisation with one scale per row, and products of quantised matrices.

A row is stored as integers from -127 to 127 and a step, its largest magnitude / 127. Activations
have a step per row too: one for the whole batch would make a sentence depend on its neighbours. Let
N be tokens, D the input width, F the output width.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

STEPS = 127  # in each direction
SMALLEST = 1e-12  # the least magnitude, so that a row of zeros has a step


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise each row: (N, D) -> int8 (N, D) and the steps (N,)."""
    largest = x.abs().amax(-1, keepdim=True).float().clamp(min=SMALLEST)  # (N, 1)
    return (x * (STEPS / largest)).round().to(torch.int8), (largest / STEPS).squeeze(
        1
    )  # (N, D), (N,)


def int8_linear(x: Tensor, weight: Tensor, steps: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, with int8 inputs and int32 sums: (..., D) -> (..., F).

    On a GPU the weights are dequantised first, because there PyTorch's int8 product does not
    support all shapes.

    Args:
        weight, steps: (F, D) and (F,), as returned by `quantise_rows`.
    """
    if not x.is_cpu:
        return F.linear(x, (weight * steps[:, None]).to(x.dtype), bias)
    rows, row_steps = quantise_rows(x.flatten(0, -2))  # (N, D), (N,)
    if rows.shape[1] == 1:  # for which PyTorch 2.13's product is wrong
        rows, weight = (F.pad(x, (0, 1)) for x in (rows, weight))
    product = torch._int_mm(rows, weight.T).float().mul_(steps).mul_(row_steps[:, None])  # (N, F)
    return (
        (product if bias is None else product + bias).to(x.dtype).view(*x.shape[:-1], len(weight))
    )  # (..., F)
