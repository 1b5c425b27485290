"""The one way from `functional` to `kernels`: what computes a formula faster on some device.

A formula first asks whether a kernel takes its tensors, with `cpu.trainable` or `takes`.
Each kernel is tested equal to its formula. The Triton kernels are imported on first use, because
they load a compiler.
"""

from typing import Any

import torch
from torch import Tensor

from transduct.kernels import cpu, cpu_search, cpu_training
from transduct.kernels.cpu import first_only
from transduct.kernels.cpu_products import add_product, product
from transduct.kernels.triton import trusted

KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)  # which Triton's kernels take

__all__ = [
    "KERNEL_TYPES",
    "add_product",
    "cpu",
    "cpu_search",
    "cpu_training",
    "dropped",
    "first_only",
    "product",
    "row_losses",
    "row_sums",
    "short_attention",
    "takes",
]


def takes(kernel: str, x: Tensor, *about: object) -> bool:
    """Whether a Triton kernel takes this tensor, on this GPU; see `kernels.triton.trusted`."""
    return x.dtype in KERNEL_TYPES and trusted(kernel, x.device, x.dtype, *about)


def short_attention(*inputs: Any) -> Tensor:
    """`triton_attention.short_attention`, once `takes("triton_attention", ...)`."""
    from transduct.kernels.triton_attention import short_attention

    return short_attention(*inputs)


def row_losses(*inputs: Any) -> tuple[Tensor, Tensor]:
    """`triton_losses.row_losses`, once `takes("triton_losses", ...)`."""
    from transduct.kernels.triton_losses import row_losses

    return row_losses(*inputs)


def dropped(*inputs: Any) -> Tensor:
    """`triton_dropout.dropped`, once `takes("triton_dropout", ...)`."""
    from transduct.kernels.triton_dropout import dropped

    return dropped(*inputs)


def row_sums(*inputs: Any) -> Tensor:
    """`triton_rows.row_sums`, once `takes("triton_rows", ...)`."""
    from transduct.kernels.triton_rows import row_sums

    return row_sums(*inputs)
