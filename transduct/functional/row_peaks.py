"""Where the largest logits of each row lie, and the mass of the row, in Triton: one pass over what search looks at.

In single steps the same takes half a dozen passes over the largest array of a step of decoding. Let R be rows, V the
vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from transduct.functional.trials import close

PIECE, WARPS = 4096, 8  # logits at a time


def row_peaks(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The maxima of blocks of `width` neighbours, and log sum exp of pieces of the row: (R, V) -> (R, V / width) and
    (R, V / PIECE), float32; the last block and the last piece may be smaller. The width is a power of two."""
    logits, (rows, size) = logits.contiguous(), logits.shape
    blocks, pieces = triton.cdiv(size, width), triton.cdiv(size, PIECE)
    peaks, masses = (logits.new_empty(rows, count, dtype=torch.float32) for count in (blocks, pieces))
    if rows:
        grid = (rows, pieces)
        shape = {"WIDTH": width, "BLOCKS": PIECE // width}
        with torch.cuda.device_of(logits):  # Triton starts on the present one
            _kernel[grid](logits, peaks, masses, size, blocks, pieces, **shape, num_warps=WARPS)
    return peaks, masses


def trial(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether it finds what single steps find."""
    size = PIECE + 3 * width
    logits = torch.arange(2.0 * size, device=device).sin().to(dtype).view(2, size)
    peaks, masses = row_peaks(logits, width)
    blocks, pieces = logits.float().view(2, -1, width), logits.float().split(PIECE, 1)
    expected = torch.stack([piece.logsumexp(1) for piece in pieces], 1)
    return close(peaks, blocks.amax(2), 0.0) and close(masses, expected, 1e-5)


@triton.jit
def _kernel(logits, peaks, masses, size, blocks, pieces, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    """One piece of one row."""
    row, piece = tl.program_id(0), tl.program_id(1)
    block = piece * BLOCKS + tl.arange(0, BLOCKS)
    columns = block[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(logits + row.to(tl.int64) * size + columns, mask=columns < size, other=float("-inf")).to(tl.float32)
    highest = tl.max(x, 1)
    tl.store(peaks + row.to(tl.int64) * blocks + block, highest, mask=block < blocks)
    top = tl.max(highest, 0)
    level = tl.where(top == float("-inf"), 0.0, top)  # all of them may be forbidden
    mass = tl.sum(tl.sum(tl.exp(x - level), 1), 0)  # at least one, that of the highest, or else zero
    mass = tl.where(mass == mass, tl.maximum(mass, 1.0), mass)  # NaN stays, which a compiled maximum loses
    tl.store(masses + row * pieces + piece, tl.log(mass) + top)
