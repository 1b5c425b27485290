"""The face of `kernels.c`: loops of decoding on a CPU that PyTorch has no kernel for.

Whoever calls asks `usable` first and has the formula at hand: the library is there if it could be compiled when the
package was installed, and it wants AVX512-VNNI of the processor. Python's lock is let go in every call, so that threads
decode side by side. Let R be rows, D the width that is read, F the width that is written, V the vocabulary.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int64


class _Linear(ctypes.Structure):
    _fields_ = [("packed", POINTER), ("steps", POINTER), ("bias", POINTER), ("d", NUMBER), ("f", NUMBER)]


class _Norm(ctypes.Structure):
    _fields_ = [("scale", POINTER), ("shift", POINTER), ("epsilon", ctypes.c_double)]


class _Layer(ctypes.Structure):
    _fields_ = [
        *[(name, NUMBER) for name in ("d", "heads", "groups", "dk", "dv", "pre")],
        ("norms", _Norm * 3),
        *[(name, _Linear) for name in ("joint", "output", "query", "recall", "inner", "outer")],
    ]


class _Past(ctypes.Structure):
    _fields_ = [
        ("keys", POINTER), ("values", POINTER), ("room", NUMBER), ("beam", NUMBER), ("length", NUMBER),
        ("slots", POINTER), ("memory_keys", POINTER), ("memory_values", POINTER), ("longest", NUMBER),
        ("lengths", POINTER),
    ]  # fmt: skip


LINEAR, LAYER, PAST = (ctypes.POINTER(kind) for kind in (_Linear, _Layer, _Past))
ARGUMENTS: dict[str, list[Any]] = {
    "packed_size": [NUMBER, NUMBER],
    "pack": [POINTER, NUMBER, NUMBER, POINTER],
    "int8_linear": [LINEAR, POINTER, NUMBER, POINTER, POINTER, NUMBER],
    "share_threads": [POINTER] * 3,
    "log_normaliser": [POINTER, NUMBER, NUMBER, POINTER],
    "rows_attention": [POINTER, NUMBER, POINTER, POINTER, *[NUMBER] * 9, *[POINTER] * 4],
    "decoder_room": [LAYER, PAST, NUMBER],
    "decoder_layer": [LAYER, PAST, POINTER, NUMBER, POINTER, NUMBER],
}
RESULTS = {"packed_size": NUMBER, "decoder_room": NUMBER}


def usable(*tensors: Tensor) -> bool:
    """Whether there is a library, for tensors like these."""
    return library() is not None and all(x.is_cpu and x.dtype == torch.float32 for x in tensors)


@cache
def library() -> Any:
    """The compiled library, None where there is none or the processor does not know its instructions."""
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        found = ctypes.CDLL(str(path))
        if found.supported():
            for name, arguments in ARGUMENTS.items():
                function = getattr(found, name)
                function.argtypes, function.restype = arguments, RESULTS.get(name)
            _share_threads(found)
            return found
    return None


def _share_threads(found: Any) -> None:
    """Tell the library of the threads of PyTorch's OpenMP, where it is the one of the GNU compilers."""
    for path in (Path(torch.__file__).parent / "lib").glob("libgomp*"):
        team = ctypes.CDLL(str(path))
        functions = [getattr(team, name) for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")]
        found.share_threads(*(ctypes.cast(function, POINTER) for function in functions))


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


class Packed:
    """A linear layer of integers of 8 bits as the kernels read it: a weight (F, D), steps (F,) and a bias or none."""

    def __init__(self, weight: Tensor, steps: Tensor, bias: Tensor | None) -> None:
        (self.size, self.width), weight = weight.shape, weight.contiguous()
        packed = torch.empty(library().packed_size(self.size, self.width), dtype=torch.int8)
        library().pack(weight.data_ptr(), self.size, self.width, packed.data_ptr())
        self.held = packed, steps.detach(), None if bias is None else bias.detach()  # what the pointers point at
        self.native = _Linear(*map(_pointer, self.held), self.width, self.size)

    def __call__(self, x: Tensor) -> Tensor:
        """`functional.quantisation.int8_linear` in one pass: (R, D) -> (R, F)."""
        x = x.contiguous()
        rows = x.shape[0]
        out = torch.empty(rows, self.size)
        room = torch.empty(rows * ((self.width + 3) // 4 * 4 + 4), dtype=torch.uint8)
        threads = torch.get_num_threads()
        library().int8_linear(self.native, x.data_ptr(), rows, out.data_ptr(), room.data_ptr(), threads)
        return out


class PackedLayer:
    """A decoder layer of integers of 8 bits as the kernels read it, its feed-forward part with a ReLU.

    Args:
        sizes: D, H, G, K, V of the values, and whether norms stand before the sublayers.
        norms: of each sublayer the scale, the shift or None (root mean square), and the epsilon.
        linears: query, key and value in one; output; query and output of the cross-attention; feed-forward.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int, int, int, bool],
        norms: Sequence[tuple[Tensor, Tensor | None, float]],
        linears: Sequence[Packed],
    ) -> None:
        norms = [
            (scale.detach(), None if shift is None else shift.detach(), epsilon) for scale, shift, epsilon in norms
        ]
        self.held = norms, linears
        parts = [_Norm(_pointer(scale), _pointer(shift), epsilon) for scale, shift, epsilon in norms]
        self.native = _Layer(*sizes, (_Norm * 3)(*parts), *(linear.native for linear in linears))

    def step(
        self,
        x: Tensor,
        cache: tuple[Tensor, Tensor],
        length: int,
        slots: Tensor | None,
        memory: tuple[Tensor, Tensor],
        lengths: Tensor | None,
    ) -> Tensor:
        """One new token a row through the layer: (R, D) -> (R, D); its key and value join the cache.

        Args:
            cache: keys (B, G, room, beam, K) and values, filled up to `length`.
            slots: (R, length + 1), as `rows_attention` takes them.
            memory: keys (B, G, S, K) and values, of which each source has `lengths`, or all of them.
        """
        rows, x = x.shape[0], x.clone(memory_format=torch.contiguous_format)
        past = _Past(
            cache[0].data_ptr(), cache[1].data_ptr(), cache[0].shape[2], cache[0].shape[3], length,
            _pointer(slots), memory[0].data_ptr(), memory[1].data_ptr(), memory[0].shape[2], _pointer(lengths),
        )  # fmt: skip
        room = torch.empty(library().decoder_room(self.native, past, rows))
        threads = torch.get_num_threads()
        library().decoder_layer(self.native, past, x.data_ptr(), rows, room.data_ptr(), threads)
        return x


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
        _pointer(lengths), _pointer(slots), weights.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out
