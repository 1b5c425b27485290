"""Label-smoothed cross-entropy in Triton: two passes over each row of logits, which the gradient
overwrites.

PyTorch's separate operations need a dozen passes over the logits, the largest tensor of a training
step. Let N be rows, V the vocabulary.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from transduct.kernels.triton import Pair, waves

BLOCK, WARPS = 4096, 8  # logits per iteration


@torch.library.custom_op("transduct::row_losses", mutates_args=("logits",))
def row_losses(
    logits: Tensor, targets: Tensor, smoothing: float, counted: Tensor | None, wanted: bool
) -> tuple[Tensor, Tensor]:
    """Return the smoothed loss and the negative log-likelihood of each row, (N,) and (N,), in
    float32.

    Args:
        logits: (N, V), contiguous; overwritten with their gradient if `wanted`.
        targets: (N,).
        smoothing: e, the weight of the uniform distribution.
        counted: (N,) the weight of each row; 1.0 by default.
    """
    count, size = logits.shape
    losses, nlls = (logits.new_empty(count, dtype=torch.float32) for _ in range(2))
    if count:
        with torch.cuda.device_of(logits):  # Triton launches on the current device
            _kernel[(count,)](
                logits,
                targets,
                logits if counted is None else counted,
                losses,
                nlls,
                size,
                smoothing,
                COUNTED=counted is not None,
                WANTED=wanted,
                BLOCK=BLOCK,
                num_warps=WARPS,
            )
    return losses, nlls


@row_losses.register_fake
def _(
    logits: Tensor, targets: Tensor, smoothing: float, counted: Tensor | None, wanted: bool
) -> tuple[Tensor, Tensor]:
    count = logits.shape[0]
    return logits.new_empty(count, dtype=torch.float32), logits.new_empty(
        count, dtype=torch.float32
    )


def trial(device: torch.device, dtype: torch.dtype) -> Iterator[Pair]:
    """Losses and gradient, and PyTorch's."""
    size, targets = BLOCK + 5, torch.tensor([0, BLOCK + 4, 7], device=device)
    logits = waves(device, dtype, 3, size)
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, targets, reduction="none", label_smoothing=0.1)
    losses, _ = row_losses(logits, targets, 0.1, None, True)
    yield losses, expected, 1e-5
    [gradient] = torch.autograd.grad(expected.sum(), exact)
    yield logits, gradient, 1e-2


@triton.jit
def _kernel(
    logits, targets, counted, losses, nlls, size, smoothing,
    COUNTED: tl.constexpr, WANTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: the log-sum-exp and the sum of its logits, then the gradient softmax - (1 - e)
    one-hot - e / V."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * size
    target = tl.load(targets + row)
    weight = tl.load(counted + row).to(tl.float32) if COUNTED else 1.0
    chosen = tl.load(logits + target).to(tl.float32)
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits + columns, mask=columns < size, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, x)
        # only columns past the end of a short row so far
        level = tl.where(higher == float("-inf"), 0.0, higher)
        mass = mass * tl.exp(highest - level) + tl.exp(x - level)
        total += tl.where(columns < size, x, 0.0)
        highest = higher
    top = tl.max(highest, 0)
    log_mass = tl.log(tl.sum(mass * tl.exp(highest - top), 0)) + top
    tl.store(nlls + row, weight * (log_mass - chosen))
    # a logit may be minus infinity
    smoothed = smoothing * tl.where(smoothing > 0.0, tl.sum(total, 0) / size, 0.0)
    tl.store(losses + row, weight * (log_mass - (1.0 - smoothing) * chosen - smoothed))
    if WANTED:
        for start in range(0, size, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(logits + columns, mask=columns < size, other=0.0).to(tl.float32)
            grad = (
                tl.exp(x - log_mass)
                - smoothing / size
                - tl.where(columns == target, 1.0 - smoothing, 0.0)
            )
            tl.store(
                logits + columns, (weight * grad).to(logits.dtype.element_ty), mask=columns < size
            )
