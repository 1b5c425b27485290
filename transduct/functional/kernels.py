"""The face of the kernels in C beside it: loops of decoding on a CPU that PyTorch has no kernel for.

Whoever calls asks `usable` first and has the formula at hand: the library is there if it could be compiled when the
package was installed, and it wants AVX512-VNNI of the processor; AMX, where there is AMX, gives the same bits sooner.
The GIL is released in every call, so that threads decode side by side. Let R be rows, D the width that is read, F the
width that is written, V the vocabulary.
"""

import ctypes
import math
import warnings
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self
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


class _Place(ctypes.Structure):
    _fields_ = [
        *[(name, NUMBER) for name in ("room", "beam", "length", "longest")],
        ("slots", POINTER),
        ("lengths", POINTER),
    ]


class _Search(ctypes.Structure):
    _fields_ = [
        *[(name, NUMBER) for name in ("end", "ends", "forbidden", "span", "together")],
        *[(name, POINTER) for name in ("never", "limits", "names", "others", "named")],
        *[(name, POINTER) for name in ("tokens", "slots", "scores", "logits", "normaliser")],
        *[(name, POINTER) for name in FOUND],
    ]


LINEAR, NORM, LAYER, DECODER, PLACE, SEARCH = (
    ctypes.POINTER(kind) for kind in (_Linear, _Norm, _Layer, _Decoder, _Place, _Search)
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
}
RESULTS = dict.fromkeys(("packed_size", "layer_room", "decode", "ahead"), NUMBER)
BLOCK = 64  # columns of a packed matrix that lie side by side
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")  # that the kernels know
MOST = 32  # rows of a source that `choose` looks at
TOGETHER = 64  # rows whose logits are held at a time; those of more leave the cache before they have been looked at
UNKNOWN = "a token is not in the vocabulary"


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
            return found
    if wrong:
        warnings.warn(f"{wrong}; decoding is slower until you install again", stacklevel=2)
    return None


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Room on the CPU, whatever type and device others have made PyTorch's defaults."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def _pointer(x: Tensor | None) -> int | None:
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
            packed = _empty(-(-self.size // BLOCK) * BLOCK * self.width)
            given = weight.data_ptr(), self.size, self.width, packed.data_ptr(), CORES.sharing
            library().pack_floats(*given)
        else:
            packed, steps = _empty(library().packed_size(self.size, self.width), dtype=torch.int8), steps.detach()
            library().pack(weight.data_ptr(), self.size, self.width, packed.data_ptr())
        self.held = packed, steps, None if bias is None else bias.detach()  # what the pointers point at
        self.native = _Linear(*map(_pointer, self.held), self.width, self.size)

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b, of integers as `functional.quantisation.int8_linear`, in one pass: (..., D) -> (..., F)."""
        if x.shape[-1] != self.width:
            raise ValueError(f"the rows are {x.shape[-1]} wide, the matrix reads {self.width}")
        x = x.float().contiguous()
        rows, out = x.numel() // self.width, _empty(*x.shape[:-1], self.size)
        bytes_ = 0 if self.held[1] is None else rows * ((self.width + 3) // 4 * 4 + 4)
        room, threads = _empty(bytes_, dtype=torch.uint8), CORES.sharing
        library().linear(self.native, x.data_ptr(), rows, out.data_ptr(), room.data_ptr(), threads)
        return out


def remember(
    key: Packed, value: Packed, x: Tensor, offsets: Tensor, longest: int, groups: int
) -> tuple[Tensor, Tensor]:
    """Keys (B, G, S, K) and values (B, G, S, V) of flat sequences (N, D) that begin at `offsets` (B + 1,), zero where a
    sequence is over."""
    sources, x = len(offsets) - 1, x.contiguous()
    keys, values = (_empty(sources, groups, longest, packed.size // groups) for packed in (key, value))
    work = _empty(len(x) * (max(key.size, value.size) + key.width // 4 + 2))
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
        x, out = x.contiguous(), _empty(*x.shape)
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
            natives.append(_Layer(*sizes, _pointer(turns), (_Norm * 3)(*map(_norm, norms)), *parts))
        self.native, self.width = (_Layer * len(natives))(*natives), sizes[0]
        self.longest = math.inf if turns is None else len(turns)  # tokens of a sequence

    def encode(self, x: Tensor, offsets: Tensor, longest: int) -> Tensor:
        """Flat sequences through the layers of an encoder: (N, D), and where each begins (B + 1,) -> (N, D)."""
        x = x.clone(memory_format=torch.contiguous_format)
        rows, sources = x.shape[0], len(offsets) - 1
        work, threads = _empty(library().layer_room(self.native, rows, longest)), CORES.sharing
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
        pointers = _pointer(table), len(table), _pointer(steps), _pointer(positions)
        self.native = _Decoder(layers.native, len(layers.native), *pointers, factor, _norm(last))


Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool]  # the fields of `decoding.search.Continuations`


class Run(NamedTuple):
    """What the steps of a search begin with.

    Attributes:
        history: (R, t) the tokens of each row, of which the caches hold all but the newest.
        scores: (B, beam) what the rows are worth, in 64 bits.
        end: the token that ends an output.
        never: tokens that no output may hold.
        limits: (B,) how many tokens the rows of a source may hold; the next is the end, and the last that is taken.
        most: steps, one at least.
        names: (K,) where the search knows few tokens only, what the decoder's table calls them.
        others: (B, K) which of them a source does not know.
    """

    history: Tensor
    scores: Tensor
    end: int
    never: Tensor
    limits: Tensor
    most: int
    names: Tensor | None = None
    others: Tensor | None = None


class Ahead(NamedTuple):
    """What the rows hold and are worth before the last of some steps, as above, and what was found in it.

    Attributes:
        slots: (R, t) of `rows_attention`, with that step's own.
    """

    history: Tensor
    slots: Tensor | None
    scores: Tensor
    found: Found


class Steps:
    """A decoder's steps over keys and values that stay where they are, made ready once for all of them.

    Args:
        output: the matrix that gives the logits.
        caches: of each layer keys (B, G, room, beam, K) and values of what the rows have written.
        memories: of each layer keys (B, G, S, K) and values, of which each source has `lengths`, or all of them.
    """

    def __init__(
        self,
        decoder: PackedDecoder,
        output: Packed,
        caches: Sequence[tuple[Tensor, Tensor]],
        memories: Sequence[tuple[Tensor, Tensor]],
        lengths: Tensor | None,
    ) -> None:
        (sources, _, room, beam, _), longest = caches[0][0].shape, memories[0][0].shape[2]
        self.rows, self.size, self.keys = sources * beam, output.size, caches[0][0]
        self.reach = int(min(room, decoder.longest))  # tokens that a row may hold
        numbers = library().layer_room(decoder.layers.native, self.rows, max(room, longest))
        work = _empty(numbers + self.rows * decoder.layers.width)
        parts = [part for both in zip(caches, memories, strict=True) for pair in both for part in pair]
        self.held = decoder, output, parts, lengths, work  # what the pointers point at
        self.place = _Place(room, beam, 0, longest, None, _pointer(lengths))
        pasts = (POINTER * len(parts))(*map(_pointer, parts))
        self.before = decoder.native, output.native, pasts, self.place
        self.after = self.rows, work.data_ptr(), CORES.sharing
        self.together = min(max(TOGETHER // beam, 1), sources)

    def __call__(self, tokens: Tensor, length: int, slots: Tensor | None) -> Tensor:
        """The newest token of each row (R,) -> logits of the next (R, V); its keys and values join the caches.

        Args:
            length: how many tokens these hold so far, less than the decoder's `longest` and their room.
            slots: (R, length + 1), as `rows_attention` takes them.

        Raises:
            IndexError: a token is not in the vocabulary.
        """
        assert tokens.shape == (self.rows,), f"{self.rows} rows are stepped, not {len(tokens)}"
        tokens, logits = tokens.to(torch.int64).contiguous(), _empty(self.rows, self.size)
        self.place.length, self.place.slots = length, _pointer(slots)
        if not library().decode(*self.before, tokens.data_ptr(), *self.after, logits.data_ptr()):
            raise IndexError(UNKNOWN)
        return logits

    def ahead(self, run: Run, slots: Tensor | None) -> Ahead:
        """Steps of a search until an output may end, there is no more room, or as many as are asked for.

        Args:
            slots: (R, t) as `rows_attention` takes them; None without a beam.

        Raises:
            IndexError: a token is not in the vocabulary.
        """
        (rows, times), found = run.history.shape, _room_for_found(run.scores)
        most = min(run.most, self.reach - times + 1)
        held = _empty(2, 2, rows * (times + most), dtype=torch.int32)  # tokens and slots, and two rooms of each
        for part, given in zip(held[:, 0], (run.history, slots)):
            if given is not None:
                part[: rows * times].view(rows, times).copy_(given)
        found[-1] = run.history[:, -1].view_as(run.scores)
        scores = run.scores.clone(memory_format=torch.contiguous_format)
        (tokens, writers), named = held[:, 0], torch.empty_like(found[-1])
        search = _searching(
            found, end=run.end, forbidden=len(run.never), span=held.shape[2], together=self.together, never=run.never,
            limits=run.limits, names=run.names, others=run.others, named=named, tokens=tokens, slots=writers,
            scores=scores, **self._scored,
        )  # fmt: skip
        self.place.length = times - 1
        taken = library().ahead(*self.before, search, most, *self.after)
        if not taken:
            raise IndexError(UNKNOWN)
        times += taken - 1
        tokens, writers = held[:, (taken - 1) % 2, : rows * times].view(2, rows, times)
        return Ahead(tokens.long(), None if slots is None else writers, scores, _found(found, search.ends))

    @cached_property
    def _scored(self) -> dict[str, Tensor]:
        """Room for the logits of some sources and their log-normalisers."""
        rows = self.together * self.place.beam
        return {"logits": _empty(rows, self.size), "normaliser": _empty(rows)}


def _norm(norm: Norm | None) -> _Norm:
    return _Norm() if norm is None else _Norm(_pointer(norm[0]), _pointer(norm[1]), norm[2])


def log_normaliser(logits: Tensor) -> Tensor:
    """log sum exp of each row: (R, V) -> (R,)."""
    logits = logits.contiguous()
    out = _empty(logits.shape[0])
    library().log_normaliser(logits.data_ptr(), *logits.shape, out.data_ptr())
    return out


def _room_for_found(scores: Tensor) -> Tensor:
    return _empty(6, *scores.shape, dtype=torch.int64)


def _searching(found: Tensor, **given: Tensor | int | None) -> _Search:
    """A search of these fields, and room for what it finds; whoever calls holds on to all of them."""
    fields = given | dict(zip(FOUND, found, strict=True))
    return _Search(**{name: _pointer(x) if isinstance(x, Tensor) else x for name, x in fields.items()})


def _found(room: Tensor, ends: int) -> Found:
    best, live, origin, tokens, rows, newest = room.unbind()
    best, live = best.view(torch.float64), live.view(torch.float64)
    return best, origin, tokens, live, rows.view(-1), newest.view(-1), ends > 0


def choose(
    logits: Tensor, normaliser: Tensor, scores: Tensor, end: int, limits: Tensor | None = None, length: int = 0
) -> Found:
    """`decoding.search.continuations` for at most `MOST` rows a source; of equal ones the first row's and the first
    token's come first."""
    beam, (logits, normaliser, scores) = scores.shape[1], (x.contiguous() for x in (logits, normaliser, scores))
    found = _room_for_found(scores)
    search = _searching(found, end=end, limits=limits, scores=scores, logits=logits, normaliser=normaliser)
    library().choose(search, 0, len(scores), logits.shape[1], beam, length)
    return _found(found, search.ends)


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
    out, weights = _empty(rows, heads, d_v), _empty(max(times, 1))
    library().rows_attention(
        query.data_ptr(), query.stride(0), keys.data_ptr(), values.data_ptr(),
        rows, rows // sources, heads, groups, d_k, d_v, room, width, times,
        _pointer(lengths), _pointer(slots), weights.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out
