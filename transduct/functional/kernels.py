"""The face of `kernels.c`: loops of decoding on a CPU that PyTorch has no kernel for.

Whoever calls asks `usable` first and has the formula at hand: the library is there if it could be compiled when the
package was installed, and it wants AVX512-VNNI of the processor. Python's lock is let go in every call, so that threads
decode side by side. Let R be rows, D the width that is read, F the width that is written, V the vocabulary.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int64
ARGUMENTS: dict[str, list[Any]] = {
    "pack": [POINTER, NUMBER, NUMBER, POINTER],
    "int8_linear": [POINTER, NUMBER, NUMBER, POINTER, NUMBER, *[POINTER] * 4],
    "log_normaliser": [POINTER, NUMBER, NUMBER, POINTER],
    "rows_attention": [POINTER, NUMBER, POINTER, POINTER, *[NUMBER] * 9, *[POINTER] * 4],
}


def usable(*tensors: Tensor) -> bool:
    """Whether there is a library, for tensors like these."""
    return library() is not None and all(x.is_cpu and x.dtype == torch.float32 for x in tensors)


@cache
def library() -> Any:
    """The compiled library, None where there is none or the processor does not know its instructions."""
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        found = ctypes.CDLL(str(path))
        found.packed_size.argtypes, found.packed_size.restype = [NUMBER, NUMBER], NUMBER
        for name, arguments in ARGUMENTS.items():
            function = getattr(found, name)
            function.argtypes, function.restype = arguments, None
        if found.supported():
            return found
    return None


def pack(weight: Tensor) -> Tensor:
    """Integers of 8 bits (F, D) as `int8_linear` reads them."""
    held = weight.contiguous()
    packed = torch.empty(library().packed_size(*held.shape), dtype=torch.int8)
    library().pack(held.data_ptr(), *held.shape, packed.data_ptr())
    return packed


def int8_linear(x: Tensor, packed: Tensor, steps: Tensor, bias: Tensor | None) -> Tensor:
    """`functional.quantisation.int8_linear` in one pass: (R, D) -> (R, F)."""
    x = x.contiguous()
    (rows, width), size = x.shape, steps.shape[0]
    out = torch.empty(rows, size)
    room = torch.empty(rows * ((width + 3) // 4 * 4 + 4), dtype=torch.uint8)
    shift = None if bias is None else bias.data_ptr()
    library().int8_linear(
        x.data_ptr(), rows, width, packed.data_ptr(), size, steps.data_ptr(), shift, out.data_ptr(), room.data_ptr()
    )
    return out


def log_normaliser(logits: Tensor) -> Tensor:
    """log sum exp of each row: (R, V) -> (R,)."""
    logits = logits.contiguous()
    out = torch.empty(logits.shape[0])
    library().log_normaliser(logits.data_ptr(), *logits.shape, out.data_ptr())
    return out


def rows_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    times: int,
    lengths: Tensor | None = None,
    slots: Tensor | None = None,
) -> Tensor:
    """Attention of one query a row over what its source has: (R, H, K) -> (R, H, V).

    Args:
        query: the heads of a row lie side by side.
        keys, values: (B, G, room, width, K) and (B, G, room, width, V), in one piece; R / B rows to a source.
        times: how many of the room are filled.
        lengths: (B,) how many of them a source has; all if not given.
        slots: (R, times) in 32 bits, which of the width each row sees at each time; the first if not given.
    """
    (rows, heads, d_k), (sources, groups, room, width, d_v) = query.shape, values.shape
    out, weights = torch.empty(rows, heads, d_v), torch.empty(max(times, 1))
    library().rows_attention(
        query.data_ptr(), query.stride(0), keys.data_ptr(), values.data_ptr(),
        rows, rows // sources, heads, groups, d_k, d_v, room, width, times,
        None if lengths is None else lengths.data_ptr(), None if slots is None else slots.data_ptr(),
        weights.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out
