"""Dropout, residual connection and norm of a sublayer in one Triton kernel, with its backward pass.

s = residual + dropout(x) and y = norm(s): pre-norm layers go on with s and read y, post-norm ones
go on with y. The mask is drawn again in the backward pass, see `triton_dropout`. That pass also
sums the gradients of the norm's weights: each program over a fixed run of rows, and one sum over
the programs after it, so that the result is deterministic.

Let N be rows of width D. With s in float32, x and y in bfloat16, the forward pass moves 12 bytes an
element and the backward pass 16. A program has `ELEMENTS` numbers of s to a thread at a time, in
vectors of 16 bytes; of rows of 512 these are two for two warps. With 128 registers a thread eight
such programs share a processor of the GPU, which waits for 80 KiB of memory at a time, and all
programs run at once. Their sums add 8 / `stretch` bytes an element twice.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from transduct.kernels.cpu import threshold
from transduct.kernels.triton import Pair, compared, waves
from transduct.kernels.triton_dropout import SIZES, _dropped, seed, survivors

ELEMENTS = 16  # per thread
PROGRAMS = 2048  # warps of the backward pass: more would wait for their turn
FEWEST = 16  # rows that a program sums, so that few rows make few sums


def sum_and_norm(
    residual: Tensor,
    x: Tensor,
    rate: float,
    weight: Tensor,
    shift: Tensor | None,
    epsilon: float,
    rms: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """s = residual + dropout(x) and y = norm(s): (N, D) twice -> (N, D) twice.

    Args:
        weight, shift: (D,), of the norm.
        rms: whether the norm leaves the mean as it is.
        dtype: of y; s has that of the residual.
    """
    seeds, drops = seed(x.device), threshold(rate)
    s, y, _ = _sum_and_norm(residual, x, weight, shift, seeds, drops, epsilon, rms, dtype)
    return s, y


def trial(device: torch.device, dtype: torch.dtype, size: int, rms: bool) -> Iterator[Pair]:
    """Results and gradients, and those of the formula in float64, given the mask."""
    residual, x, pull = waves(device, torch.float32, 3, FEWEST + 3, size)
    numbers = torch.arange(1.0 * size, device=device)
    parameters = [1.5 + numbers.cos(), *([] if rms else [numbers.sin() + 0.1])]
    seeds, drops = torch.full((1,), 2**40 + 5, device=device), threshold(0.25)
    passed = _dropped(torch.ones_like(x), None, None, seeds, drops, "none") != 0

    def exact(residual: Tensor, x: Tensor, weight: Tensor, *shift: Tensor) -> Any:
        s = residual + x * passed * 4 / 3
        norm: Any = F.rms_norm if rms else F.layer_norm
        return s, norm(s, weight.shape, weight, *shift, eps=1e-5)

    return compared(
        lambda residual, x, weight, shift=None: _sum_and_norm(
            residual, x, weight, shift, seeds, drops, 1e-5, rms, dtype
        )[:2],
        exact,
        [residual, x.to(dtype), *parameters],
        (pull, x.to(dtype)),
        1e-4 if dtype == torch.float32 else 3e-2,
    )


def tile(size: int) -> tuple[int, int, int]:
    """The rows and columns of a tile for rows of this width, and its warps."""
    block = max(16, triton.next_power_of_2(size))
    warps = min(16, max(1, block // 256))
    return max(1, min(8, warps * 32 * ELEMENTS // block)), block, warps


def stretch(count: int, size: int) -> int:
    """How many rows a program of the backward pass takes: it follows from the shape alone, so that
    sums are taken in one order."""
    rows, _, warps = tile(size)
    return max(FEWEST, rows * triton.cdiv(count, rows * max(1, PROGRAMS // warps)))


@torch.library.custom_op("transduct::sum_and_norm", mutates_args=())
def _sum_and_norm(
    residual: Tensor,
    x: Tensor,
    weight: Tensor,
    shift: Tensor | None,
    seed: Tensor,
    threshold: int,
    epsilon: float,
    rms: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """s, y, and (2, N) the mean and the inverse deviation of each row."""
    residual, x = residual.contiguous(), x.contiguous()
    count, size = x.shape
    s, y = torch.empty_like(residual), x.new_empty(x.shape, dtype=dtype)
    moments = x.new_empty((2, count), dtype=torch.float32)
    rows, block, warps = tile(size)
    if count:
        with torch.cuda.device_of(x):  # Triton launches on the current device
            _forward_kernel[(triton.cdiv(count, rows),)](
                residual,
                x,
                weight,
                x if shift is None else shift,
                seed,
                s,
                y,
                moments,
                count,
                size,
                threshold,
                65536.0 / (65536 - threshold),
                epsilon,
                SHIFTED=shift is not None,
                RMS=rms,
                DRAWN=threshold > 0,
                ROWS=rows,
                BLOCK=block,
                num_warps=warps,
            )
    return s, y, moments


@_sum_and_norm.register_fake
def _(
    residual: Tensor,
    x: Tensor,
    weight: Tensor,
    shift: Tensor | None,
    seed: Tensor,
    threshold: int,
    epsilon: float,
    rms: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    moments = x.new_empty((2, x.shape[0]), dtype=torch.float32)
    return residual.new_empty(residual.shape), x.new_empty(x.shape, dtype=dtype), moments


@torch.library.custom_op("transduct::sum_and_norm_backward", mutates_args=())
def _gradients(
    of_s: Tensor | None,
    of_y: Tensor,
    s: Tensor,
    moments: Tensor,
    weight: Tensor,
    seed: Tensor,
    threshold: int,
    rms: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the residual, of x, whose dtype is given, and, in float32, (2, D) of weight
    and shift."""
    of_s, of_y = None if of_s is None else of_s.contiguous(), of_y.contiguous()
    count, size = s.shape
    of_residual, of_x = torch.empty_like(s), s.new_empty(s.shape, dtype=dtype)
    rows, block, warps = tile(size)
    run = stretch(count, size)
    programs = triton.cdiv(count, run)
    sums = s.new_empty((programs, 2, size), dtype=torch.float32)
    if count:
        with torch.cuda.device_of(s):
            _backward_kernel[(programs,)](
                of_y if of_s is None else of_s,
                of_y,
                s,
                moments,
                weight,
                seed,
                of_residual,
                of_x,
                sums,
                count,
                size,
                run,
                threshold,
                65536.0 / (65536 - threshold),
                STREAM=of_s is not None,
                RMS=rms,
                DRAWN=threshold > 0,
                ROWS=rows,
                BLOCK=block,
                num_warps=warps,
            )
    return of_residual, of_x, sums.sum(0)


@_gradients.register_fake
def _(
    of_s: Tensor | None,
    of_y: Tensor,
    s: Tensor,
    moments: Tensor,
    weight: Tensor,
    seed: Tensor,
    threshold: int,
    rms: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    of_x = s.new_empty(s.shape, dtype=dtype)
    return s.new_empty(s.shape), of_x, s.new_empty((2, s.shape[1]), dtype=torch.float32)


def _remember(ctx, inputs, output):
    _, x, weight, shift, seed, ctx.threshold, _, ctx.rms, ctx.kind = inputs
    s, _, moments = output
    ctx.dtypes = [None if each is None else each.dtype for each in (x, weight, shift)]
    ctx.set_materialize_grads(False)  # post-norm layers do not go on with s
    ctx.mark_non_differentiable(moments)
    ctx.save_for_backward(s, moments, weight, seed)


def _backward(ctx, of_s, of_y, _):
    s, moments, weight, seed = ctx.saved_tensors
    of_y = s.new_zeros(s.shape, dtype=ctx.kind) if of_y is None else of_y
    dtype, *kinds = ctx.dtypes
    of_residual, of_x, sums = _gradients(
        of_s, of_y, s, moments, weight, seed, ctx.threshold, ctx.rms, dtype
    )
    of_weight, of_shift = (
        None if kind is None else part.to(kind) for part, kind in zip(sums, kinds)
    )
    return of_residual, of_x, of_weight, of_shift, None, None, None, None, None


_sum_and_norm.register_autograd(_backward, setup_context=_remember)


@triton.jit(do_not_specialize=SIZES)
def _forward_kernel(
    residual, x, weight, shift, seed, s, y, moments,
    count, size, threshold, scale, epsilon,
    SHIFTED: tl.constexpr, RMS: tl.constexpr, DRAWN: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    within = columns < size
    inside = (rows < count)[:, None] & within[None, :]
    places = rows.to(tl.int64)[:, None] * size + columns[None, :]
    a = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    if DRAWN:
        a = tl.where(survivors(seed, rows, 0, size, threshold, ROWS, BLOCK), a * scale, 0.0)
    a += tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
    # rounded as it is stored, so that the backward pass sees the same numbers
    rounded = a.to(s.dtype.element_ty)
    tl.store(s + places, rounded, mask=inside)
    a = rounded.to(tl.float32)
    if not RMS:
        mean = tl.sum(a, 1) / size
        tl.store(moments + rows, mean, mask=rows < count)
        a = tl.where(within[None, :], a - mean[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(a * a, 1) / size + epsilon)
    tl.store(moments + count + rows, spread, mask=rows < count)
    gain = tl.load(weight + columns, mask=within, other=0.0).to(tl.float32)
    a = a * spread[:, None] * gain[None, :]
    if SHIFTED:
        a += tl.load(shift + columns, mask=within, other=0.0).to(tl.float32)[None, :]
    tl.store(y + places, a.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=[*SIZES, "run"])
def _backward_kernel(
    of_s, of_y, s, moments, weight, seed, of_residual, of_x, sums,
    count, size, run, threshold, scale,
    STREAM: tl.constexpr, RMS: tl.constexpr, DRAWN: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of a run of rows, and the sums of those of weight and shift."""
    columns = tl.arange(0, BLOCK)
    within = columns < size
    gain = tl.load(weight + columns, mask=within, other=0.0).to(tl.float32)
    of_weight = tl.zeros([BLOCK], tl.float32)
    of_shift = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0) * run
    for start in range(first, first + run, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < count)[:, None] & within[None, :]
        places = rows.to(tl.int64)[:, None] * size + columns[None, :]
        g = tl.load(of_y + places, mask=inside, other=0.0).to(tl.float32)
        a = tl.load(s + places, mask=inside, other=0.0).to(tl.float32)
        spread = tl.load(moments + count + rows, mask=rows < count, other=0.0)
        if not RMS:
            mean = tl.load(moments + rows, mask=rows < count, other=0.0)
            a = tl.where(inside, a - mean[:, None], 0.0)
        a = a * spread[:, None]  # the row as normed
        of_weight += tl.sum(g * a, 0)
        of_shift += tl.sum(g, 0)
        g = g * gain[None, :]
        along = tl.sum(g * a, 1) / size
        rest = g - a * along[:, None]
        if not RMS:
            rest -= (tl.sum(g, 1) / size)[:, None]
        g = rest * spread[:, None]
        if STREAM:
            g += tl.load(of_s + places, mask=inside, other=0.0).to(tl.float32)
        tl.store(of_residual + places, g.to(of_residual.dtype.element_ty), mask=inside)
        if DRAWN:
            g = tl.where(survivors(seed, rows, 0, size, threshold, ROWS, BLOCK), g * scale, 0.0)
        tl.store(of_x + places, g.to(of_x.dtype.element_ty), mask=inside)
    sums += tl.program_id(0).to(tl.int64) * 2 * size + columns
    tl.store(sums, of_weight, mask=within)
    tl.store(sums + size, of_shift, mask=within)
