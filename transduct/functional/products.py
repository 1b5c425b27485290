"""Matrix products of float32 by the faster of the two libraries that PyTorch brings along.

On a CPU PyTorch multiplies float32 with MKL, which on AMD's processors reaches half of what oneDNN does, and on Intel's
as much, or twice as much where a matrix lies turned (benchmarks/results/cpu_202611.md); the precision is the same. Let
N be tokens, D the width that is read, F the width that is written.
"""

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transduct.functional import kernels

FEWEST = 64  # rows that are worth the time it takes to lay a matrix out
SMALL, FEW = 2**18, 8  # numbers of a matrix of which so few rows are faster as they were


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b^T: (N, D), (F, D) -> (N, F), whose strides may be any."""
    plain = a.dtype != torch.float32 or a.device.type != "cpu" or torch.compiler.is_compiling()
    if not plain and min(len(a), a.shape[1]) >= FEWEST and _faster():
        return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return F.linear(a, b)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: (..., D), (F, D), (F,) -> (..., F)."""
    plain = x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu")
    if plain or torch.compiler.is_compiling() or x.numel() < FEWEST * x.shape[-1] or not _faster():
        return F.linear(x, weight, bias)
    return _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    """The products of the backward pass go the same way as that of the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (x, weight), (grad,) = ctx.saved_tensors, grads
        wanted = ctx.needs_input_grad
        return (
            product(grad, weight.T) if wanted[0] else None,
            product(grad.T, x.T) if wanted[1] else None,
            grad.sum(0) if wanted[2] else None,
        )


def packed_linear(weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """`linear` for a matrix (F, D) that stays as it is, laid out for the processor: (..., D) -> (..., F). It has no
    gradient."""
    if kernels.usable(weight.detach()):
        return kernels.Packed(weight, None, bias)
    narrow = weight.dtype == torch.bfloat16
    if not _onednn() or (narrow and not torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    small = weight if weight.numel() <= SMALL else None

    def product_of(x: Tensor) -> Tensor:
        if small is not None and x.numel() < FEW * x.shape[-1]:
            return F.linear(x, small, bias)
        return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")

    return product_of


@cache
def made_by_intel() -> bool:
    """Whether the processor is Intel's, as far as Linux tells."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@cache
def _onednn() -> bool:
    """Whether the library is there, on x86-64."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and platform.machine().lower() in ("x86_64", "amd64")


@cache
def _faster() -> bool:
    """Whether it is faster than the default one. That is said by the maker and not by a clock, for a run that goes on
    must multiply as it did before."""
    return _onednn() and not made_by_intel()
