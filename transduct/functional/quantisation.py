"""Products of 8-bit integers: a row of numbers is 127 steps up and 127 down, and what a step is worth.

Every row has a step of its own, those of the activations too: one step for a whole batch would let a sentence depend on
its neighbours. Let N be tokens, D the width that is read, F the width that is written.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

STEPS = 127  # in each direction
SMALLEST = 1e-12  # a row of zeros has steps all the same


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row as integers of 8 bits, and what a step of it is worth: (N, D) -> (N, D), (N,)."""
    largest = x.abs().amax(-1, keepdim=True).float().clamp(min=SMALLEST)  # (N, 1)
    return (x * (STEPS / largest)).round().to(torch.int8), (largest / STEPS).squeeze(1)  # (N, D), (N,)


def int8_linear(x: Tensor, weight: Tensor, steps: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b with integers on both sides, and the sums in 32 bits: (..., D) -> (..., F).

    On a GPU the weights are made numbers again first: there integers have no kernel for every shape.

    Args:
        weight, steps: (F, D) and (F,), as `quantise_rows` gives them.
    """
    if not x.is_cpu:
        return F.linear(x, (weight * steps[:, None]).to(x.dtype), bias)
    rows, of_rows = quantise_rows(x.flatten(0, -2))  # (N, D), (N,)
    if rows.shape[1] == 1:  # of which PyTorch 2.13's product is wrong
        rows, weight = (F.pad(x, (0, 1)) for x in (rows, weight))
    product = torch._int_mm(rows, weight.T).float().mul_(steps).mul_(of_rows[:, None])  # (N, F)
    return (product if bias is None else product + bias).to(x.dtype).view(*x.shape[:-1], len(weight))  # (..., F)
