"""float32 matrix products on a CPU by the fastest of PyTorch's two libraries and, with AMX, our
kernel.

PyTorch multiplies float32 with MKL. On AMD processors MKL is half as fast as oneDNN; on Intel's it
is as fast, or twice as fast for a transposed matrix. kernels_floats.c is 1.3 to 1.6 times as fast
as MKL, with smaller errors (benchmarks/results/cpu_202611.md). Let N be tokens, D the input width,
F the output width.
"""

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transduct.devices import has_onednn, made_by_intel
from transduct.kernels import cpu
from transduct.kernels.cpu import first_only

FEWEST = 64  # rows and columns; with fewer, converting the matrices takes longer than it saves

Multiplication = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class _ThreadLocal(threading.local):
    workspace: Tensor | None = None  # scratch space, kept because fresh memory is slower


_LOCAL = _ThreadLocal()


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b^T, for any strides: (N, D), (F, D) -> (N, F)."""
    faster = _faster_than_mkl(a, b)
    return F.linear(a, b) if faster is None else faster(a, b, None)


def add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b^T to `out`: (N, F), (N, D), (F, D)."""
    # Straight into `out`, without a matrix in between; this is half of a backward pass.
    if _float32(out) and out.is_contiguous() and _faster_than_mkl(a, b) is _split:
        _split(a, b, None, out)
    elif out.dtype == a.dtype:
        out.addmm_(a, b.T)  # reads transposed matrices in place, unlike oneDNN's product
    else:
        out += product(a, b)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: (..., D), (F, D), (F,) -> (..., F)."""
    if not _float32(x) or x.numel() < FEWEST * x.shape[-1] or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    # Only here the autograd function is worth its cost: it takes longer than a small product.
    rows = x.reshape(-1, x.shape[-1])
    faster = _faster_than_mkl(rows, weight, bias)
    if faster is None:
        return F.linear(x, weight, bias)
    return _Linear.apply(rows, weight, bias, faster).view(*x.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    """A linear layer that is multiplied by `faster`; its backward pass uses `product`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, faster: Multiplication
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        return faster(x, weight, bias)

    @staticmethod
    @first_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (grad,) = ctx.saved_tensors, grads
        wanted = ctx.needs_input_grad
        return (
            product(grad, weight.T) if wanted[0] else None,
            product(grad.T, x.T) if wanted[1] else None,
            grad.sum(0) if wanted[2] else None,
            None,
        )


def _float32(*tensors: Tensor) -> bool:
    """Whether PyTorch would multiply these tensors with MKL, now."""
    if torch.compiler.is_compiling():
        return False
    return all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)


def _faster_than_mkl(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Multiplication | None:
    """What multiplies (N, D) by (F, D)^T and adds a bias (F,) faster than MKL does; None if nothing
    does."""
    if min(a.shape) < FEWEST or not _float32(a, b, *([] if bias is None else [bias])):
        return None
    fitting = a.shape[1:] == b.shape[1:] and (bias is None or bias.shape == b.shape[:1])
    if fitting and len(b) >= FEWEST and _splits():
        return _split
    return _by_onednn if _faster() else None


def _by_onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")


def _split(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """a b^T + bias by our kernel; with `out`, a b^T is added to it."""
    # The kernel takes rows or columns that are contiguous: a transposed matrix needs no copy.
    a, b = (x if 1 in x.stride() else x.contiguous() for x in (a.resolve_neg(), b.resolve_neg()))
    bias = None if bias is None else bias.resolve_neg().contiguous()
    result = cpu.empty(len(a), len(b)) if out is None else out
    if _LOCAL.workspace is None:
        _LOCAL.workspace = cpu.empty(cpu.library().split_room(), dtype=torch.int16)
    sides = (cpu.Matrix(x.data_ptr(), *x.shape, *x.stride()) for x in (a, b))
    job = cpu.Floats(*sides, *map(cpu.pointer, (bias, result, _LOCAL.workspace)), out is not None)
    cpu.library().split_product(ctypes.byref(job), torch.get_num_threads())
    return result


@cache
def _splits() -> bool:
    """Whether our kernel is compiled and the processor has AMX for bfloat16."""
    return cpu.library() is not None and bool(cpu.library().splits())


@cache
def _faster() -> bool:
    """Whether oneDNN is faster than MKL. Decided by the CPU vendor, not by timing, because a
    resumed run must multiply exactly as before."""
    return has_onednn() and not made_by_intel()
