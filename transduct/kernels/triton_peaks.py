"""The maxima of blocks of logits and the log-sum-exp of each row in Triton, for search: one pass
over the logits.

PyTorch's separate operations need half a dozen passes over the logits, the largest tensor of a
decoding step. Let R be rows, V the vocabulary.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from transduct.kernels.triton import Pair, waves

PIECE, WARPS = 4096, 8  # logits per program


def row_peaks(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The maxima of blocks of `width` logits, and the log-sum-exp of pieces of `PIECE`: (R, V) ->
    (R, V / width) and (R, V / PIECE), float32. The width is a power of two; the last block and the
    last piece may be shorter."""
    logits, (rows, size) = logits.contiguous(), logits.shape
    blocks, pieces = triton.cdiv(size, width), triton.cdiv(size, PIECE)
    peaks, masses = (
        logits.new_empty(rows, count, dtype=torch.float32) for count in (blocks, pieces)
    )
    if rows:
        grid = (rows, pieces)
        shape = {"WIDTH": width, "BLOCKS": PIECE // width}
        with torch.cuda.device_of(logits):  # Triton launches on the current device
            _kernel[grid](logits, peaks, masses, size, blocks, pieces, **shape, num_warps=WARPS)
    return peaks, masses


def trial(device: torch.device, dtype: torch.dtype, width: int) -> Iterator[Pair]:
    """The results, and those of PyTorch's operations."""
    logits = waves(device, dtype, 2, PIECE + 3 * width)
    peaks, masses = row_peaks(logits, width)
    yield peaks, logits.float().view(2, -1, width).amax(2), 0.0
    pieces = logits.float().split(PIECE, 1)
    yield masses, torch.stack([piece.logsumexp(1) for piece in pieces], 1), 1e-5


@triton.jit
def _kernel(logits, peaks, masses, size, blocks, pieces, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    row, piece = tl.program_id(0), tl.program_id(1)
    block = piece * BLOCKS + tl.arange(0, BLOCKS)
    columns = block[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(
        logits + row.to(tl.int64) * size + columns, mask=columns < size, other=float("-inf")
    ).to(tl.float32)
    highest = tl.max(x, 1)
    tl.store(peaks + row.to(tl.int64) * blocks + block, highest, mask=block < blocks)
    top = tl.max(highest, 0)
    level = tl.where(top == float("-inf"), 0.0, top)  # all logits may be minus infinity
    mass = tl.sum(tl.sum(tl.exp(x - level), 1), 0)  # 1 or more, because of the maximum, or else 0
    # keeps NaN, which a compiled maximum loses
    mass = tl.where(mass == mass, tl.maximum(mass, 1.0), mass)
    tl.store(masses + row * pieces + piece, tl.log(mass) + top)
