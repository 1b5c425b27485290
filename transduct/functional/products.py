"""float32 matrix products on a CPU by the faster of PyTorch's two libraries.

PyTorch multiplies float32 with MKL. On AMD processors MKL is half as fast as oneDNN; on Intel's it is as fast, or twice
as fast for a transposed matrix (benchmarks/results/cpu_202611.md). The precision is the same. Let N be tokens, D the
input width, F the output width.
"""

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transduct.functional import kernels
from transduct.functional.derivatives import first_only

FEWEST = 64  # rows; with fewer, oneDNN's conversion of the matrix takes longer than it saves
SMALL, FEW = 2**18, 8  # a matrix of up to SMALL weights times fewer than FEW rows is faster unpacked


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b^T, for any strides: (N, D), (F, D) -> (N, F)."""
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
    """A linear layer whose backward pass uses `product` too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    @first_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (x, weight), (grad,) = ctx.saved_tensors, grads
        wanted = ctx.needs_input_grad
        return (
            product(grad, weight.T) if wanted[0] else None,
            product(grad.T, x.T) if wanted[1] else None,
            grad.sum(0) if wanted[2] else None,
        )


def packed_linear(weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """Return `linear` for a constant matrix (F, D), packed for the processor: (..., D) -> (..., F), without
    gradients."""
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
    """Whether the processor is Intel's, according to Linux; False on other systems."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@cache
def _onednn() -> bool:
    """Whether oneDNN is available, on x86-64."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and platform.machine().lower() in ("x86_64", "amd64")


@cache
def _faster() -> bool:
    """Whether oneDNN is faster than MKL. Decided by the CPU vendor, not by timing, because a resumed run must multiply
    exactly as before."""
    return _onednn() and not made_by_intel()
