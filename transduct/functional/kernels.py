"""Bindings to the kernels in C beside it: loops of decoding on a CPU that PyTorch has no kernel for. Those for training
are in `functional.training_kernels`.

Whoever calls asks `usable` first and has the formula at hand: the library is there if it could be compiled when the
package was installed, and it wants AVX512-VNNI of the processor; AMX, where there is AMX, gives the same bits sooner.
The GIL is released in every call, so that threads decode side by side. Let R be rows, D the width that is read, F the
width that is written, V the vocabulary.
"""

import ctypes
import math
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import torch
from torch import Tensor

from transduct.functional.cores import CORES

POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int64
FOUND = ("best", "live", "origin", "chosen", "rows", "newest")  # of a search


class _Linear(ctypes.Structure):
    _fields_ = [("packed", POINTER), ("steps", POINTER), ("bias", POINTER), ("d", NUMBER), ("f", NUMBER)]


class _Norm(ctypes.Structure):
    _fields_ = [("scale", POINTER), ("shift", POINTER), ("epsilon", ctypes.c_double)]


class _Layer(ctypes.Structure):
    _fields_ = [
        *[(name, NUMBER) for name in ("d", "heads", "groups", "dk", "dv", "pre", "activation")],
        ("turns", POINTER),
        ("norms", _Norm * 3),
        *[(name, _Linear) for name in ("joint", "output", "query", "recall", "inner", "outer")],
    ]


class _Decoder(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(_Layer)), ("count", NUMBER), ("table", POINTER), ("vocabulary", NUMBER),
        ("steps", POINTER), ("positions", POINTER), ("factor", ctypes.c_double), ("last", _Norm),
    ]  # fmt: skip


class Place(ctypes.Structure):
    _fields_ = [
        *[(name, NUMBER) for name in ("room", "beam", "length", "longest")],
        ("slots", POINTER),
        ("lengths", POINTER),
    ]


class Search(ctypes.Structure):
    _fields_ = [
        *[(name, NUMBER) for name in ("end", "ends", "forbidden", "span", "together")],
        *[(name, POINTER) for name in ("never", "limits", "names", "others", "named")],
        *[(name, POINTER) for name in ("tokens", "slots", "scores", "logits", "normaliser")],
        *[(name, POINTER) for name in FOUND],
    ]


LINEAR, NORM, LAYER, DECODER, PLACE, SEARCH = (
    ctypes.POINTER(kind) for kind in (_Linear, _Norm, _Layer, _Decoder, Place, Search)
)
ARGUMENTS: dict[str, list[Any]] = {
    "packed_size": [NUMBER, NUMBER],
    "pack": [POINTER, NUMBER, NUMBER, POINTER],
    "pack_floats": [POINTER, NUMBER, NUMBER, POINTER, NUMBER],
    "linear": [LINEAR, POINTER, NUMBER, POINTER, POINTER, NUMBER],
    "normalised": [NORM, POINTER, NUMBER, NUMBER, POINTER],
    "log_normaliser": [POINTER, NUMBER, NUMBER, POINTER],
    "choose": [SEARCH, *[NUMBER] * 5],
    "rows_attention": [POINTER, NUMBER, POINTER, POINTER, *[NUMBER] * 9, *[POINTER] * 4],
    "remember": [LINEAR, LINEAR, POINTER, *[NUMBER] * 3, POINTER, POINTER, NUMBER, POINTER, POINTER],
    "layer_room": [LAYER, NUMBER, NUMBER],
    "encoder": [LAYER, NUMBER, POINTER, NUMBER, NUMBER, POINTER, NUMBER, POINTER, NUMBER],
    "decode": [DECODER, LINEAR, POINTER, PLACE, POINTER, NUMBER, POINTER, NUMBER, POINTER],
    "ahead": [DECODER, LINEAR, POINTER, PLACE, SEARCH, NUMBER, NUMBER, POINTER, NUMBER],
    "share_threads": [POINTER],
    "attention_room": [POINTER],
    **{name: [POINTER, NUMBER] for name in ("segments_attention", "drop", "turn_rows", "row_losses")},
}
RESULTS = dict.fromkeys(("packed_size", "layer_room", "decode", "ahead", "attention_room"), NUMBER)
BLOCK = 64  # columns of a packed matrix that lie side by side
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")  # that the kernels know


def usable(*tensors: Tensor) -> bool:
    """Whether there is a library, for tensors like these, through which no gradient goes: it has none."""
    if library() is None or any(not x.is_cpu or x.dtype != torch.float32 for x in tensors):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


@cache
def library() -> Any:
    """The compiled library, None where there is none, it was built for another system or from other sources than lie
    here, or the processor does not know its instructions."""
    folder, wrong = Path(__file__).parent, ""
    sources = b"".join(path.read_bytes() for path in sorted(folder.glob("kernels*.[ch]")))
    for path in sorted(folder.glob("_kernels*.so")):
        try:
            found = ctypes.CDLL(str(path))
        except OSError as error:  # another system may share the folder
            wrong = f"{path}: cannot be loaded ({error})"
            continue
        if sources and getattr(found, "sources", int)() != ctypes.c_int(crc32(sources)).value:
            wrong = f"{path}: built from other sources"
        elif found.supported():
            for name, arguments in ARGUMENTS.items():
                function = getattr(found, name)
                function.argtypes, function.restype = arguments, RESULTS.get(name)
            parallel = getattr(ctypes.CDLL(None), "GOMP_parallel", None)  # of the OpenMP that PyTorch has loaded
            found.share_threads(parallel and ctypes.cast(parallel, POINTER))
            return found
    if wrong:
        warnings.warn(f"{wrong}; decoding and training are slower until you install again", stacklevel=2)
    return None


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Room on the CPU, whatever type and device others have made PyTorch's defaults."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def pointer(x: Tensor | None) -> int | None:
    assert x is None or x.is_contiguous(), f"numbers with strides {x.stride()} would be read as if they lay in a row"
    return None if x is None else x.data_ptr()


class _PointedAt:
    """What holds pointers to numbers that nobody changes: a copy of a model has the same ones."""

    def __deepcopy__(self, memo: Any) -> Self:
        return self


class Packed(_PointedAt):
    """A linear layer as the kernels read it: a weight (F, D), of 8-bit integers with steps (F,) or of float32 without,
    and a bias or none."""

    def __init__(self, weight: Tensor, steps: Tensor | None, bias: Tensor | None) -> None:
        (self.size, self.width), weight = weight.shape, weight.contiguous()
        if steps is None:
            packed = empty(-(-self.size // BLOCK) * BLOCK * self.width)
            given = weight.data_ptr(), self.size, self.width, packed.data_ptr(), CORES.sharing
            library().pack_floats(*given)
        else:
            packed, steps = empty(library().packed_size(self.size, self.width), dtype=torch.int8), steps.detach()
            library().pack(weight.data_ptr(), self.size, self.width, packed.data_ptr())
        self.held = packed, steps, None if bias is None else bias.detach()  # what the pointers point at
        self.native = _Linear(*map(pointer, self.held), self.width, self.size)

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b, of integers as `functional.quantisation.int8_linear`, in one pass: (..., D) -> (..., F)."""
        if x.shape[-1] != self.width:
            raise ValueError(f"the rows are {x.shape[-1]} wide, the matrix reads {self.width}")
        x = x.float().contiguous()
        rows, out = x.numel() // self.width, empty(*x.shape[:-1], self.size)
        bytes_ = 0 if self.held[1] is None else rows * ((self.width + 3) // 4 * 4 + 4)
        room, threads = empty(bytes_, dtype=torch.uint8), CORES.sharing
        library().linear(self.native, x.data_ptr(), rows, out.data_ptr(), room.data_ptr(), threads)
        return out


def remember(
    key: Packed, value: Packed, x: Tensor, offsets: Tensor, longest: int, groups: int
) -> tuple[Tensor, Tensor]:
    """Keys (B, G, S, K) and values (B, G, S, V) of flat sequences (N, D) that begin at `offsets` (B + 1,), zero where a
    sequence is over."""
    sources, x = len(offsets) - 1, x.contiguous()
    keys, values = (empty(sources, groups, longest, packed.size // groups) for packed in (key, value))
    work = empty(len(x) * (max(key.size, value.size) + key.width // 4 + 2))
    where, threads = (offsets.data_ptr(), sources, longest, groups), CORES.sharing
    given = x.data_ptr(), work.data_ptr(), threads, keys.data_ptr(), values.data_ptr()
    library().remember(key.native, value.native, *where, *given)
    return keys, values


Norm = tuple[Tensor, Tensor | None, float]  # the scale, the shift or None (root mean square), and the epsilon


class PackedNorm(_PointedAt):
    """A norm as the kernels read it."""

    def __init__(self, norm: Norm) -> None:
        self.held, self.native = norm, _norm(norm)  # what the pointers point at, and they

    def __call__(self, x: Tensor) -> Tensor:
        """(R, D) -> (R, D)."""
        x, out = x.contiguous(), empty(*x.shape)
        library().normalised(self.native, x.data_ptr(), *x.shape, out.data_ptr())
        return out


class PackedLayers(_PointedAt):
    """Layers as the kernels read them.

    Args:
        sizes: D, H, G, K, V of the values, whether norms stand before the sublayers, and the number of the activation
            in `ACTIVATIONS`.
        layers: of each its norms, that of the cross-attention or None between the others, and its linear layers: query,
            key and value in one; output; query and output of the cross-attention, or None; the two of the feed-forward
            part.
        turns: (positions, K), the sines and then the cosines of rotary positions; None without them.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int, int, int, bool, int],
        layers: Sequence[tuple[Sequence[Norm | None], Sequence[Packed | None]]],
        turns: Tensor | None = None,
    ) -> None:
        self.held = layers, turns  # what the pointers point at
        natives = []
        for norms, linears in layers:
            parts = [_Linear() if linear is None else linear.native for linear in linears]
            natives.append(_Layer(*sizes, pointer(turns), (_Norm * 3)(*map(_norm, norms)), *parts))
        self.native, self.width = (_Layer * len(natives))(*natives), sizes[0]
        self.longest = math.inf if turns is None else len(turns)  # tokens of a sequence

    def encode(self, x: Tensor, offsets: Tensor, longest: int) -> Tensor:
        """Flat sequences through the layers of an encoder: (N, D), and where each begins (B + 1,) -> (N, D)."""
        x = x.clone(memory_format=torch.contiguous_format)
        rows, sources = x.shape[0], len(offsets) - 1
        work, threads = empty(library().layer_room(self.native, rows, longest)), CORES.sharing
        where = offsets.data_ptr(), sources, longest
        library().encoder(self.native, len(self.native), *where, x.data_ptr(), rows, work.data_ptr(), threads)
        return x


class PackedDecoder(_PointedAt):
    """A decoder as the kernels read it, from tokens to logits.

    Args:
        table: (V, D) of float32, or of 8-bit integers with steps (V,); a token is its row times `factor`.
        positions: (longest, D), what each position adds; None for nothing.
        last: the norm after the layers, if there is one.
    """

    def __init__(
        self,
        layers: PackedLayers,
        table: Tensor,
        steps: Tensor | None,
        factor: float,
        positions: Tensor | None,
        last: Norm | None,
    ) -> None:
        self.held = layers, table, steps, positions, last  # what the pointers point at
        self.layers, self.longest = layers, layers.longest if positions is None else min(layers.longest, len(positions))
        pointers = pointer(table), len(table), pointer(steps), pointer(positions)
        self.native = _Decoder(layers.native, len(layers.native), *pointers, factor, _norm(last))


def _norm(norm: Norm | None) -> _Norm:
    return _Norm() if norm is None else _Norm(pointer(norm[0]), pointer(norm[1]), norm[2])


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
        keys, values: (B, G, capacity, width, K) and (B, G, capacity, width, V), in one piece; R / B rows to a source.
        times: how many places are filled.
        lengths: (B,) how many of them a source has; all if not given.
        slots: (R, times) in 32 bits, which of the width each row sees at each time; the first if not given.
    """
    (rows, heads, d_k), (sources, groups, capacity, width, d_v) = query.shape, values.shape
    out, weights = empty(rows, heads, d_v), empty(max(times, 1))
    library().rows_attention(
        query.data_ptr(), query.stride(0), keys.data_ptr(), values.data_ptr(),
        rows, rows // sources, heads, groups, d_k, d_v, capacity, width, times,
        pointer(lengths), pointer(slots), weights.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out
