"""Dropout in Triton, in one pass with a bias and an activation before it or an addition after it.

The mask is not stored: the backward pass draws it again from the seed. One draw of Philox serves
eight elements with sixteen bits each, so a rate is rounded to a multiple of 1 / 65536, as on a CPU.
Seven of its ten rounds pass all known tests (Salmon et al. 2011, section 4), and an element costs
some nine integer operations instead of a hundred. What is drawn depends on the seed and on the
element's row and column, not on the tiles.

Let N be rows, F columns. A program has `ROWS` x `COLUMNS` elements at a time, 32 to a thread, in
vectors of 16 bytes of bfloat16. The backward pass of ReLU moves 6 bytes an element, that of GELU
as many, and the sums of the bias's gradient add 4 / `STRETCH`.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from transduct.kernels.cpu import threshold
from transduct.kernels.triton import Pair, compared, waves

ROWS, COLUMNS, WARPS = 16, 256, 4
STRETCH = 128  # rows that a program sums for the gradient of the bias, from the first to the last
ROUNDS = tl.constexpr(7)
# arguments for whose values Triton must not compile a kernel anew
SIZES = ["count", "threshold"]
FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


def dropped(
    x: Tensor,
    rate: float,
    activation: str = "none",
    bias: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """dropout(activation(x + bias)), to which a tensor may be added where there is no activation:
    (N, F), (F,), (N, F) -> (N, F), in the dtype of `added` or else of x."""
    assert added is None or activation == "none", "the backward pass needs what came of the ReLU"
    return _dropped(x, bias, added, seed(x.device), threshold(rate), activation)


def seed(device: torch.device) -> Tensor:
    """A seed from the device's default generator, on the device, so that a captured graph draws
    another one each time. 31 bits, because compiled PyTorch 2.11 may read the bound as int32."""
    return torch.randint(2**31 - 1, (1,), device=device)


def trial(device: torch.device, dtype: torch.dtype, activation: str) -> Iterator[Pair]:
    """Result and gradients, and PyTorch's, given the mask; each kernel takes a second to compile,
    so only those of one activation are tried."""
    size, drops = (ROWS + 1, 2 * COLUMNS + 16), threshold(0.25)
    x, seeds = waves(device, dtype, *size), torch.full((1,), 2**40 + 5, device=device)
    passed = (_dropped(torch.ones_like(x), None, None, seeds, drops, "none") != 0).double()
    # four standard deviations
    yield passed.mean(), torch.tensor(0.75), 4 * (0.25 / 0.75 / passed.numel()) ** 0.5
    yield from compared(
        lambda x, bias=None: _dropped(x, bias, None, seeds, drops, activation),
        lambda x, bias=0.0: FORMULAS[activation](x + bias) * passed * 4 / 3,
        [x, x[0].float()] if activation != "none" else [x],
        x,
        1e-5 if dtype == torch.float32 else 2e-2,
    )


@torch.library.custom_op("transduct::dropped", mutates_args=())
def _dropped(
    x: Tensor,
    bias: Tensor | None,
    added: Tensor | None,
    seed: Tensor,
    threshold: int,
    activation: str,
) -> Tensor:
    """`dropped` by the draws of this seed (1,) int64."""
    x, added = x.contiguous(), None if added is None else added.contiguous()
    count, size = x.shape
    out = torch.empty_like(x if added is None else added)
    if x.numel():
        grid = (triton.cdiv(count, ROWS), triton.cdiv(size, COLUMNS))
        with torch.cuda.device_of(x):  # Triton launches on the current device
            _forward_kernel[grid](
                x,
                x if bias is None else bias,
                x if added is None else added,
                out,
                seed,
                count,
                size,
                threshold,
                65536.0 / (65536 - threshold),
                ACTIVATION=activation,
                BIASED=bias is not None,
                ADDED=added is not None,
                DRAWN=threshold > 0,
                ROWS=ROWS,
                COLUMNS=COLUMNS,
                num_warps=WARPS,
            )
    return out


@_dropped.register_fake
def _(
    x: Tensor,
    bias: Tensor | None,
    added: Tensor | None,
    seed: Tensor,
    threshold: int,
    activation: str,
) -> Tensor:
    return x.new_empty(x.shape, dtype=x.dtype if added is None else added.dtype)


@torch.library.custom_op("transduct::dropped_backward", mutates_args=())
def _gradients(
    grad: Tensor,
    known: Tensor | None,
    bias: Tensor | None,
    seed: Tensor,
    threshold: int,
    activation: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the bias, which is empty without one.

    Args:
        known: the result of ReLU, or the x of another activation.
        dtype: of x.
    """
    grad = grad.contiguous()
    known = grad if known is None else known
    count, size = grad.shape
    out = torch.empty_like(grad, dtype=dtype)
    stretches = triton.cdiv(count, STRETCH)
    sums = grad.new_empty((0 if bias is None else stretches, size), dtype=torch.float32)
    if grad.numel():
        with torch.cuda.device_of(grad):
            _backward_kernel[(stretches, triton.cdiv(size, COLUMNS))](
                grad,
                known,
                grad if bias is None else bias,
                out,
                sums,
                seed,
                count,
                size,
                threshold,
                65536.0 / (65536 - threshold),
                ACTIVATION=activation,
                BIASED=bias is not None,
                DRAWN=threshold > 0,
                ROWS=ROWS,
                COLUMNS=COLUMNS,
                STRETCH=STRETCH,
                num_warps=WARPS,
            )
    if bias is None:
        return out, sums.view(-1)
    return out, sums.sum(0).to(bias.dtype)


@_gradients.register_fake
def _(
    grad: Tensor,
    known: Tensor | None,
    bias: Tensor | None,
    seed: Tensor,
    threshold: int,
    activation: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    none = grad.new_empty(0, dtype=torch.float32)
    return grad.new_empty(grad.shape, dtype=dtype), none if bias is None else bias.new_empty(
        bias.shape
    )


def _remember(ctx, inputs, output):
    x, bias, added, seed, ctx.threshold, ctx.activation = inputs
    ctx.adds, ctx.dtype = added is not None, x.dtype
    # What came of ReLU and dropout tells what passed, and the next layer keeps it anyway.
    known = {"none": None, "relu": output}.get(ctx.activation, x)
    ctx.save_for_backward(known, bias, seed)


def _backward(ctx, grad):
    known, bias, seed = ctx.saved_tensors
    of_x, of_bias = _gradients(
        grad,
        None if known is None else known.contiguous(),
        bias,
        seed,
        ctx.threshold,
        ctx.activation,
        ctx.dtype,
    )
    return of_x, None if bias is None else of_bias, grad if ctx.adds else None, None, None, None


_dropped.register_autograd(_backward, setup_context=_remember)


@triton.jit
def survivors(seed, rows, first, size, threshold, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Which elements of a tile are kept, whose columns are those from `first`, a multiple of 8:
    (R,) -> (R, C)."""
    groups = first // 8 + tl.arange(0, COLUMNS // 8)
    offsets = rows[:, None] * tl.cdiv(size, 8) + groups[None, :]  # (R, C / 8)
    a, b, c, d = tl.randint4x(tl.load(seed), offsets, ROUNDS)
    words = tl.join(tl.join(a, b), tl.join(c, d))  # (R, C / 8, 2, 2)
    bits = tl.join(words & 0xFFFF, words >> 16)  # (R, C / 8, 2, 2, 2)
    return tl.reshape(bits, (ROWS, COLUMNS)).to(tl.int32) >= threshold


@triton.jit(do_not_specialize=SIZES)
def _forward_kernel(
    x, bias, added, out, seed, count, size, threshold, scale,
    ACTIVATION: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, DRAWN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows, start = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS
    columns = start + tl.arange(0, COLUMNS)
    inside = (rows < count)[:, None] & (columns < size)[None, :]
    places = rows.to(tl.int64)[:, None] * size + columns[None, :]
    h = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        h += tl.load(bias + columns, mask=columns < size, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION == "relu":
        h = tl.where(h <= 0.0, 0.0, h)  # keeps NaN
    elif ACTIVATION == "gelu":
        h = 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        h = h * tl.sigmoid(1.5957691216057308 * (h + 0.044715 * h * h * h))
    if DRAWN:
        kept = survivors(seed, rows, start, size, threshold, ROWS, COLUMNS)
        h = tl.where(kept, h * scale, 0.0)
    if ADDED:
        h += tl.load(added + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + places, h.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def _backward_kernel(
    grad, known, bias, out, sums, seed, count, size, threshold, scale,
    ACTIVATION: tl.constexpr, BIASED: tl.constexpr, DRAWN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    """The gradients of `STRETCH` rows of a tile's columns, and the sums of these."""
    start = tl.program_id(1) * COLUMNS
    columns = start + tl.arange(0, COLUMNS)
    within = columns < size
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(0, STRETCH, ROWS):
        rows = tl.program_id(0) * STRETCH + step + tl.arange(0, ROWS)
        inside = (rows < count)[:, None] & within[None, :]
        places = rows.to(tl.int64)[:, None] * size + columns[None, :]
        g = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32) * scale
        if ACTIVATION == "relu":
            y = tl.load(known + places, mask=inside, other=0.0).to(tl.float32)
            g = tl.where(y <= 0.0, 0.0, g)  # what is dropped is zero too
        else:
            if ACTIVATION != "none":
                h = tl.load(known + places, mask=inside, other=0.0).to(tl.float32)
                if BIASED:
                    h += tl.load(bias + columns, mask=within, other=0.0).to(tl.float32)[None, :]
                if ACTIVATION == "gelu":
                    below = 0.5 * (1.0 + tl.erf(h * 0.7071067811865476))
                    g *= below + h * 0.3989422804014327 * tl.exp(-0.5 * h * h)
                else:
                    gate = tl.sigmoid(1.5957691216057308 * (h + 0.044715 * h * h * h))
                    slope = 1.5957691216057308 * (1.0 + 0.134145 * h * h)
                    g *= gate + h * gate * (1.0 - gate) * slope
            if DRAWN:
                alive = survivors(seed, rows, start, size, threshold, ROWS, COLUMNS)
                g = tl.where(alive, g, 0.0)
        tl.store(out + places, g.to(out.dtype.element_ty), mask=inside)
        if BIASED:
            total += g
    if BIASED:
        row = tl.program_id(0).to(tl.int64) * size
        tl.store(sums + row + columns, tl.sum(total, 0), mask=within)
