"""Bindings to the C kernels in this folder for decoding on a CPU. Those for training are in
`kernels.cpu_training`.

Callers check `supports` first and fall back to the formula: the library exists only if it could be
compiled when the package was installed, and it needs a processor with one of the instruction
sets in `PATHS`. All of them return the same bits; `report` says which one is used. The environment
variable TRANSDUCT_KERNELS limits them, for example to avx2, or switches the kernels off by "none".
Every call releases the GIL, so that threads can decode in parallel.
Let R be rows, D the input width, F the output width, V the vocabulary.
"""

import ctypes
import math
import os
import platform
import warnings
from collections.abc import Callable, Sequence
from functools import cache, wraps
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self
from zlib import crc32

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduct.errors import TransductError
from transduct.kernels.threads import CORES

# The instruction sets in the order of kernels.h, those of a processor family from slow to fast, and
# the suffix of their functions: AVX-VNNI, AVX512-VNNI and AMX change only products.
PATHS = {
    "avx2": "_avx2",
    "avx_vnni": "_avx2",
    "avx512": "_avx512",
    "avx512_vnni": "_avx512",
    "amx": "_avx512",
    "neon": "_neon",
    "dotprod": "_neon",
    "i8mm": "_neon",
}
ARM = ("neon", "dotprod", "i8mm")
LIMIT = "TRANSDUCT_KERNELS"
POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int64
# of a layer, in the order of their use
LINEARS = "joint", "output", "query", "recall", "inner", "outer"
FOUND = ("best", "live", "origin", "chosen", "rows", "newest")  # the outputs of a search


def structure(*fields: tuple[Any, str]) -> Any:
    """A structure of the C files: the types of its fields and their names, in its order."""
    pairs = [(name, kind) for kind, names in fields for name in names.split()]
    return type("Structure", (ctypes.Structure,), {"_fields_": pairs})


# The structures of kernels.h.
_Linear = structure((POINTER, "packed steps bias"), (NUMBER, "d f"), (POINTER, "next"))
_Norm = structure((POINTER, "scale shift"), (ctypes.c_double, "epsilon"))
_Layer = structure(
    (NUMBER, "d heads groups dk dv pre activation"),
    (POINTER, "turns"),
    (_Norm * 3, "norms"),
    (_Linear, " ".join(LINEARS)),
)
_Decoder = structure(
    (ctypes.POINTER(_Layer), "layers"),
    (NUMBER, "count"),
    (POINTER, "table"),
    (NUMBER, "vocabulary"),
    (POINTER, "steps positions"),
    (ctypes.c_double, "factor"),
    (_Norm, "last"),
)
Place = structure((NUMBER, "capacity beam length longest half"), (POINTER, "slots lengths"))
Search = structure(
    (NUMBER, "end ends forbidden span together"),
    (POINTER, "never limits names others named tokens slots scores logits normaliser"),
    (POINTER, " ".join(FOUND)),
)
Matrix = structure((POINTER, "x"), (NUMBER, "rows columns down along"))
Floats = structure((Matrix, "left right"), (POINTER, "bias out workspace"), (NUMBER, "add"))
LINEAR, NORM, LAYER, DECODER, PLACE, SEARCH = (
    ctypes.POINTER(kind) for kind in (_Linear, _Norm, _Layer, _Decoder, Place, Search)
)
# Declared for each function: without this ctypes would pass addresses as 32-bit numbers.
ARGUMENTS: dict[str, list[Any]] = {
    "packed_size": [NUMBER, NUMBER, NUMBER],
    "pack": [POINTER, NUMBER, NUMBER, NUMBER, POINTER, NUMBER],
    "linear": [LINEAR, POINTER, NUMBER, POINTER, POINTER, NUMBER],
    "normalised": [NORM, POINTER, NUMBER, NUMBER, POINTER],
    "log_normaliser": [POINTER, NUMBER, NUMBER, POINTER, NUMBER],
    "choose": [SEARCH, *[NUMBER] * 5],
    "rows_attention": [POINTER, NUMBER, POINTER, POINTER, *[NUMBER] * 10, *[POINTER] * 4],
    "remember": [
        LINEAR,
        LINEAR,
        POINTER,
        *[NUMBER] * 3,
        POINTER,
        POINTER,
        NUMBER,
        NUMBER,
        POINTER,
        POINTER,
    ],
    "layer_room": [LAYER, NUMBER, NUMBER],
    "encoder": [LAYER, NUMBER, POINTER, NUMBER, NUMBER, POINTER, NUMBER, POINTER, NUMBER],
    "decode": [DECODER, LINEAR, POINTER, PLACE, POINTER, NUMBER, POINTER, NUMBER, POINTER],
    "ahead": [DECODER, LINEAR, POINTER, PLACE, SEARCH, NUMBER, NUMBER, POINTER, NUMBER],
    "advance": [DECODER, LINEAR, POINTER, POINTER, *[NUMBER] * 4],
    "remember_cells": [
        LINEAR,
        LINEAR,
        POINTER,
        *[NUMBER] * 2,
        *[POINTER] * 2,
        NUMBER,
        POINTER,
        NUMBER,
    ],
    "share_threads": [POINTER],
    "splits": [],
    "split_room": [],
    "split_product": [ctypes.POINTER(Floats), NUMBER],
    "attention_room": [POINTER],
    **{
        name: [POINTER, NUMBER]
        for name in ("segments_attention", "drop", "turn_rows", "row_losses")
    },
}
# of these there is one for all instruction sets
COMMON = ("share_threads", "splits", "split_room", "split_product")
# these return a number
COUNTS = (
    "packed_size",
    "layer_room",
    "decode",
    "ahead",
    "advance",
    "attention_room",
    "splits",
    "split_room",
)
CACHED = (torch.float32, torch.float16)  # of a KV cache
NO_SECOND = (
    "this backward pass has no second derivative; compute it from the plain formula, without "
    "kernels"
)
# supported by the kernels, which know them by index
ACTIVATIONS = "relu", "gelu", "gelu_tanh", "silu"


def supports(*tensors: Tensor, caches: Sequence[Tensor] = ()) -> bool:
    """Whether the kernels can take these tensors: float32 on the CPU, without gradients. KV caches
    may be float16."""
    right = [x.dtype == torch.float32 for x in tensors] + [x.dtype in CACHED for x in caches]
    if library() is None or not all(right) or not all(x.is_cpu for x in (*tensors, *caches)):
        return False
    # They know no gradients: with one asked for, the readable path must run.
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, *caches)))


def trainable(*tensors: Tensor) -> bool:
    """Whether the kernels for training can take these tensors: on the CPU, and all float32 or all
    bfloat16."""
    # The compiler cannot look into C, and fuses what these kernels fuse by itself.
    if torch.compiler.is_compiling() or any(not x.is_cpu for x in tensors):
        return False
    kinds = {x.dtype for x in tensors}
    return (kinds == {torch.float32} or kinds == {torch.bfloat16}) and library() is not None


def threshold(rate: float) -> int:
    """The number of 65536 equally likely draws that drop an element, never all of them."""
    return min(round(rate * 65536), 65535)


def first_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward pass of an `autograd.Function` whose result depends on the saved
    tensors.

    `once_differentiable` alone raises only where the incoming gradient has a graph; for a gradient
    that is constant, such as that of a loss, a second derivative would silently be zero.

    Raises:
        RuntimeError: in the backward pass, if its graph is asked for (`create_graph=True`).
    """
    once = once_differentiable(backward)

    @wraps(backward)
    def guarded(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(NO_SECOND)
        return once(ctx, *grads)

    return guarded


@cache
def _compiled() -> Any:
    """The compiled library, whatever the processor. None if there is none, or if it was built for
    another system or from other sources than those in this folder."""
    folder, wrong = Path(__file__).parent, ""
    # A library from older sources may have other structures: it would read wrong memory.
    sources = b"".join(path.read_bytes() for path in sorted(folder.glob("*.[ch]")))
    endings = "so", "pyd"  # pyd on Windows
    for path in sorted(x for each in endings for x in folder.glob(f"_kernels*.{each}")):
        try:
            native = ctypes.CDLL(str(path))
        except OSError as error:  # the folder may be shared with another system
            wrong = f"{path}: cannot be loaded ({error})"
            continue
        if not sources or getattr(native, "sources", int)() == ctypes.c_int(crc32(sources)).value:
            return native
        wrong = f"{path}: built from other sources"
    if wrong:
        warnings.warn(
            f"{wrong}; decoding and training are slower until you install again", stacklevel=3
        )
    return None


@cache
def library() -> Any:
    """The functions of the compiled library, for the fastest instruction set that the processor has
    and TRANSDUCT_KERNELS allows. None without a library or such a set.

    Raises:
        TransductError: TRANSDUCT_KERNELS is not one of `PATHS`, nor "none".
    """
    native, allowed = _compiled(), _available(limited=True)
    if native is None or not allowed:
        return None
    functions = {}
    for name, arguments in ARGUMENTS.items():
        function = getattr(native, name if name in COMMON else name + PATHS[allowed[-1]])
        function.argtypes, function.restype = arguments, NUMBER if name in COUNTS else None
        functions[name] = function
    native.use_path([*PATHS].index(allowed[-1]))
    # the OpenMP runtime that PyTorch loaded
    parallel = None if os.name == "nt" else getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    functions["share_threads"](parallel and ctypes.cast(parallel, POINTER))
    return SimpleNamespace(**functions, path=allowed[-1])


def _available(limited: bool = False) -> list[str]:
    """The instruction sets for which the library was compiled and that the processor has, from slow
    to fast; with `limited`, those that TRANSDUCT_KERNELS allows."""
    limit, native, names = os.environ.get(LIMIT), _compiled(), ["none", *PATHS]
    if limit and limit not in names:
        raise TransductError(f"{LIMIT}={limit} is unknown; choose one of {', '.join(names)}")
    allowed = [*PATHS][: names.index(limit) if limited and limit else None]
    return [name for n, name in enumerate(allowed) if native is not None and native.has_path(n)]


class Kernel(NamedTuple):
    """A kernel, the instruction set that it uses or None, those that it can use on this machine,
    and why it uses no faster one."""

    name: str
    used: str | None
    available: list[str]
    reason: str


def report() -> list[Kernel]:
    """Which kernels this machine has and uses, and why not others."""
    native, present, rows = library(), _available(), []
    wide = {path: suffix[1:] for path, suffix in PATHS.items()}
    for name, sets in {
        "int8 products": {path: path for path in PATHS},
        "float32 products of few rows, attention, norms, layers, search, training": wide,
        "float32 products of many rows": {"amx": "amx"},
    }.items():
        available = [*dict.fromkeys(sets[path] for path in present if path in sets)]
        used = None if native is None else sets.get(native.path)
        # of the same processor family
        lacking = dict.fromkeys(
            other
            for path, other in sets.items()
            if other not in available
            and (path in ARM) == (platform.machine().lower() in ("arm64", "aarch64"))
        )
        if _compiled() is None:
            reason = "the kernels are not compiled: install again where there is a C compiler"
        elif available and used != available[-1]:
            reason = f"{LIMIT} is {os.environ.get(LIMIT)}"
        else:
            reason = f"this processor has no {', '.join(lacking)}" if lacking else ""
        rows.append(Kernel(name, used, available, reason))
    return rows


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """An uninitialised tensor on the CPU, whatever the default dtype and device of PyTorch."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def pointer(x: Tensor | None) -> int | None:
    """The address of a contiguous tensor; None for None."""
    assert x is None or x.is_contiguous(), (
        f"the kernels read contiguous tensors, found strides {x.stride()}"
    )
    return None if x is None else x.data_ptr()


class _PointedAt:
    """Holds pointers to numbers that never change, so that copies of a model can share them."""

    def __deepcopy__(self, memo: Any) -> Self:
        return self


class Packed(_PointedAt):
    """A linear layer in the layout of the kernels: a weight (F, D), either int8 with `steps` (F,)
    or float32 without, and an optional bias (F,)."""

    def __init__(self, weight: Tensor, steps: Tensor | None, bias: Tensor | None) -> None:
        (self.size, self.width), weight = weight.shape, weight.contiguous()
        # Blocks of columns side by side, as the instruction set in use reads them in order.
        shape = self.size, self.width, steps is not None
        packed = empty(library().packed_size(*shape), dtype=torch.int8)
        library().pack(weight.data_ptr(), *shape, packed.data_ptr(), CORES.sharing)
        # keeps alive what `native` points to
        self.references = packed, *(None if x is None else x.detach() for x in (steps, bias))
        self.native = _Linear(*map(pointer, self.references), self.width, self.size)

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b in one pass, for int8 as `inference.quantised.int8_linear`: (..., D) ->
        (..., F)."""
        if x.shape[-1] != self.width:
            raise ValueError(f"the input is {x.shape[-1]} wide, the matrix expects {self.width}")
        x = x.float().contiguous()
        rows, out = x.numel() // self.width, empty(*x.shape[:-1], self.size)
        # 8-bit products need space for the rounded rows, of up to 16 bits, and their steps.
        bytes_ = 0 if self.references[1] is None else rows * (2 * self.width + 20)
        workspace, threads = empty(bytes_, dtype=torch.uint8), CORES.sharing
        library().linear(
            self.native, x.data_ptr(), rows, out.data_ptr(), workspace.data_ptr(), threads
        )
        return out


def remember(
    key: Packed,
    value: Packed,
    x: Tensor,
    offsets: Tensor,
    longest: int,
    groups: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Project flat sequences (N, D), which begin at `offsets` (B + 1,), to keys (B, G, S, K) and
    values (B, G, S, V), padded with zeros to S = `longest`, as float32 or float16."""
    sources, x = len(offsets) - 1, x.contiguous()
    keys, values = (
        empty(sources, groups, longest, packed.size // groups, dtype=dtype)
        for packed in (key, value)
    )
    work = empty(len(x) * (max(key.size, value.size) + key.width // 2 + 5))
    library().remember(
        key.native,
        value.native,
        offsets.data_ptr(),
        sources,
        longest,
        groups,
        x.data_ptr(),
        work.data_ptr(),
        CORES.sharing,
        CACHED.index(dtype),
        keys.data_ptr(),
        values.data_ptr(),
    )
    return keys, values


Norm = tuple[Tensor, Tensor | None, float]  # scale, shift (None for RMSNorm) and epsilon


class PackedNorm(_PointedAt):
    """A norm in the layout of the kernels."""

    def __init__(self, norm: Norm) -> None:
        self.references, self.native = norm, _norm(norm)  # the tensors, and the pointers to them

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise each row: (R, D) -> (R, D)."""
        x, out = x.contiguous(), empty(*x.shape)
        library().normalised(self.native, x.data_ptr(), *x.shape, out.data_ptr())
        return out


class PackedLayers(_PointedAt):
    """The layers of an encoder or a decoder in the layout of the kernels.

    Args:
        sizes: D, H, G, K, the width V of a value, whether the layers are pre-norm, and the index of
            the activation in `ACTIVATIONS`.
        layers: for each layer its norms (self-attention, cross-attention or None, feed-forward) and
            its linear layers (query, key and value as one; output; query and output of the
            cross-attention, or None; the two of the feed-forward network).
        turns: (positions, K), sines followed by cosines for rotary positions; None without them.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int, int, int, bool, int],
        layers: Sequence[tuple[Sequence[Norm | None], Sequence[Packed | None]]],
        turns: Tensor | None = None,
    ) -> None:
        self.references = layers, turns  # keeps alive what `native` points to
        natives = []
        for norms, linears in layers:
            parts = [_Linear() if linear is None else linear.native for linear in linears]
            natives.append(_Layer(*sizes, pointer(turns), (_Norm * 3)(*map(_norm, norms)), *parts))
        self.native, self.width = (_Layer * len(natives))(*natives), sizes[0]
        used = [
            linear
            for layer in self.native
            for name in LINEARS
            if (linear := getattr(layer, name)).packed
        ]
        # Each layer knows the next one's weights and has them fetched while it computes.
        for linear, following in pairwise(used):
            linear.next = following.packed
        self.longest = math.inf if turns is None else len(turns)  # the most tokens of a sequence

    def encode(self, x: Tensor, offsets: Tensor, longest: int) -> Tensor:
        """Run an encoder over flat sequences (N, D), which begin at `offsets` (B + 1,): -> (N,
        D)."""
        # The kernel works in place; the caller's tensor stays as it is.
        x = x.clone(memory_format=torch.contiguous_format)
        rows, sources = x.shape[0], len(offsets) - 1
        work, threads = empty(library().layer_room(self.native, rows, longest)), CORES.sharing
        where = offsets.data_ptr(), sources, longest
        library().encoder(
            self.native, len(self.native), *where, x.data_ptr(), rows, work.data_ptr(), threads
        )
        return x


class PackedDecoder(_PointedAt):
    """A whole decoder, from tokens to logits, in the layout of the kernels.

    Args:
        table: (V, D), the embeddings, float32 or int8 with `steps` (V,).
        factor: scales the embeddings.
        positions: (longest, D), added to the embeddings, or None.
        last: the norm after the layers, or None.
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
        # keeps alive what `native` points to
        self.references = layers, table, steps, positions, last
        self.layers, self.longest = (
            layers,
            layers.longest if positions is None else min(layers.longest, len(positions)),
        )
        pointers = pointer(table), len(table), pointer(steps), pointer(positions)
        self.native = _Decoder(layers.native, len(layers.native), *pointers, factor, _norm(last))


def _norm(norm: Norm | None) -> Any:
    return _Norm() if norm is None else _Norm(pointer(norm[0]), pointer(norm[1]), norm[2])


def rows_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    times: int,
    lengths: Tensor | None = None,
    slots: Tensor | None = None,
) -> Tensor:
    """Attention of one query per row over the keys of its source: (R, H, K) -> (R, H, V).

    Args:
        query: the heads of a row are contiguous.
        keys, values: (B, G, capacity, width, K) and (B, G, capacity, width, V), float32 or float16,
            contiguous; R / B rows per source.
        times: the number of time steps that are filled.
        lengths: (B,) the number of them that each source has; all by default.
        slots: (R, times) int32, which of the `width` entries a row sees at each time step; the
            first by default.
    """
    (rows, heads, d_k), (sources, groups, capacity, width, d_v) = query.shape, values.shape
    out, weights = empty(rows, heads, d_v), empty(max(times, 1))
    library().rows_attention(
        query.data_ptr(),
        query.stride(0),
        keys.data_ptr(),
        values.data_ptr(),
        rows,
        rows // sources,
        heads,
        groups,
        d_k,
        d_v,
        capacity,
        width,
        times,
        CACHED.index(keys.dtype),
        pointer(lengths),
        pointer(slots),
        weights.data_ptr(),
        out.data_ptr(),
    )
    return out
