"""Search with the C kernels: decoder steps, several in one call where possible, the choice of
continuations, and the steps of a running batch: sources that join and leave between steps, each at
a position of its own, over keys and values in one pool of cells for each layer.

Let R be rows, B sources, V the vocabulary, t the number of tokens in each row, G the heads of keys.
Callers check `cpu.supports` or `cpu.library` first.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from transduct.kernels import cpu
from transduct.kernels.cpu import (
    FOUND,
    NUMBER,
    POINTER,
    Packed,
    PackedDecoder,
    empty,
    pointer,
    structure,
)
from transduct.kernels.threads import CORES

WIDEST_BEAM = 32  # the most rows per source that `choose` supports
# rows, about, whose logits are computed at a time; more would leave the cache before they are read
TOGETHER = 64
UNKNOWN = "a token is not in the vocabulary"
STOPPING = ("likeliest", "early", "estimate", "never")  # known to the kernels by index
DOUBLE = ctypes.c_double

# The structures of running.c.
Finished = structure((DOUBLE, "score rank"), (NUMBER, "length"), (POINTER, "tokens"))
Source = structure(
    (NUMBER, "beam active length limit longest span sources end forced free forbidden cut"),
    (NUMBER, "stopping count done"),
    (DOUBLE, "likeliest normaliser"),
    (POINTER, "prefix never penalties memory owned tokens cells scores finished drawn"),
)
_Batch = structure(
    (POINTER, "pools"),
    (NUMBER, "room half rows together"),
    (POINTER, "work logits normalisers news"),
)


# The fields of `decoding.search.Continuations`, in order.
Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool]


class Run(NamedTuple):
    """The input of `ahead`: a search before some steps.

    Attributes:
        history: (R, t) the tokens of each row; the caches hold all but the newest.
        scores: (B, beam) float64, the scores of the rows.
        end: the token that ends an output.
        never: tokens that may not occur in an output.
        limits: (B,) the maximum number of tokens in the rows of a source; after them only the end
            is allowed.
        most: the maximum number of steps, at least one.
        names: (K,) if the search is restricted to a shortlist, the ids of its tokens in the
            decoder's table.
        others: (B, K) which tokens of the shortlist are not allowed for a source.
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
    """The output of `ahead`: a search before the last of the steps taken, as in `Run`, and that
    step's continuations.

    Attributes:
        slots: (R, t) for `rows_attention`, including that step.
    """

    history: Tensor
    slots: Tensor | None
    scores: Tensor
    found: Found


class Steps:
    """Steps of a decoder over keys and values at fixed addresses, with the pointers prepared once
    for all steps.

    Args:
        output: the output projection.
        caches: per layer, the keys (B, G, capacity, beam, K) and values of the tokens that the rows
            have written. All keys and values have one dtype, float32 or float16.
        memories: per layer, the keys (B, G, S, K) and values of the sources.
        lengths: (B,) the lengths of the sources; None if all are S.
    """

    def __init__(
        self,
        decoder: PackedDecoder,
        output: Packed,
        caches: Sequence[tuple[Tensor, Tensor]],
        memories: Sequence[tuple[Tensor, Tensor]],
        lengths: Tensor | None,
    ) -> None:
        (sources, _, capacity, beam, _), longest = caches[0][0].shape, memories[0][0].shape[2]
        self.rows, self.size, self.keys = sources * beam, output.size, caches[0][0]
        self.most = int(min(capacity, decoder.longest))  # the most tokens of a row
        # Once for all steps: fresh memory in each step would cost more than its products.
        numbers = cpu.library().layer_room(decoder.layers.native, self.rows, max(capacity, longest))
        work = empty(numbers + self.rows * decoder.layers.width)
        parts = [
            part for both in zip(caches, memories, strict=True) for pair in both for part in pair
        ]
        # keeps alive what the pointers point to
        self.references = decoder, output, parts, lengths, work
        self.place = cpu.Place(
            capacity, beam, 0, longest, cpu.CACHED.index(self.keys.dtype), None, pointer(lengths)
        )
        # Addresses, so the caches must not move: they are written in place from now on.
        pasts = (cpu.POINTER * len(parts))(*map(pointer, parts))
        self.before = decoder.native, output.native, pasts, self.place
        self.after = self.rows, work.data_ptr(), CORES.sharing
        batches = max(-(-self.rows // TOGETHER), 1)
        self.together = -(-sources // batches)  # of equal size, give or take one source
        # Of some sources; memory that no step touches takes no space.
        scored = self.together * beam
        self.scored = {"logits": empty(scored, self.size), "normaliser": empty(scored)}

    def __call__(self, tokens: Tensor, length: int, slots: Tensor | None) -> Tensor:
        """The newest token of each row (R,) -> logits of the next (R, V); its keys and values are
        added to the caches.

        Args:
            length: the number of tokens in the caches, less than their capacity and the decoder's
                `longest`.
            slots: (R, length + 1), as in `rows_attention`.

        Raises:
            IndexError: if a token is not in the vocabulary.
        """
        assert tokens.shape == (self.rows,), f"{self.rows} rows are stepped, not {len(tokens)}"
        tokens, logits = tokens.to(torch.int64).contiguous(), empty(self.rows, self.size)
        self.place.length, self.place.slots = length, pointer(slots)
        if not cpu.library().decode(
            *self.before, tokens.data_ptr(), *self.after, logits.data_ptr()
        ):
            raise IndexError(UNKNOWN)
        return logits

    def ahead(self, run: Run, slots: Tensor | None) -> Ahead:
        """Take steps of a search until an output may end, the caches are full, or `run.most` steps
        are done.

        Args:
            slots: (R, t), as in `rows_attention`; None without a beam.

        Raises:
            IndexError: if a token is not in the vocabulary.
        """
        (rows, times), results = (
            run.history.shape,
            empty(len(FOUND), *run.scores.shape, dtype=torch.int64),
        )
        # The caches end somewhere; the caller enlarges them and calls again.
        most = min(run.most, self.most - times + 1)
        # tokens and slots, each double-buffered
        buffers = empty(2, 2, rows * (times + most), dtype=torch.int32)
        for buffer, initial in zip(buffers[:, 0], (run.history, slots)):
            if initial is not None:
                buffer[: rows * times].view(rows, times).copy_(initial)
        # The newest tokens go where a step leaves them, as if one had just been taken.
        results[-1] = run.history[:, -1].view_as(run.scores)
        scores = run.scores.clone(memory_format=torch.contiguous_format)
        (tokens, writers), named = buffers[:, 0], torch.empty_like(results[-1])
        search = _search(
            results,
            end=run.end,
            forbidden=len(run.never),
            span=buffers.shape[2],
            together=self.together,
            never=run.never,
            limits=run.limits,
            names=run.names,
            others=run.others,
            named=named,
            tokens=tokens,
            slots=writers,
            scores=scores,
            **self.scored,
        )
        self.place.length = times - 1
        taken = cpu.library().ahead(*self.before, search, most, *self.after)
        if not taken:
            raise IndexError(UNKNOWN)
        times += taken - 1
        # Each step reads one buffer and writes the other, so the last one's parity says where it
        # is.
        tokens, writers = buffers[:, (taken - 1) % 2, : rows * times].view(2, rows, times)
        return Ahead(
            tokens.long(),
            None if slots is None else writers,
            scores,
            _continuations(results, search.ends),
        )


def log_normaliser(logits: Tensor) -> Tensor:
    """The log-sum-exp of each row: (R, V) -> (R,)."""
    logits = logits.contiguous()
    out = empty(logits.shape[0])
    cpu.library().log_normaliser(logits.data_ptr(), *logits.shape, out.data_ptr(), CORES.sharing)
    return out


def _search(results: Tensor, **inputs: Tensor | int | None) -> Any:
    """The kernels' record of a search. It holds pointers only: the caller must keep all tensors
    alive."""
    fields = inputs | dict(zip(FOUND, results, strict=True))
    return cpu.Search(
        **{name: pointer(x) if isinstance(x, Tensor) else x for name, x in fields.items()}
    )


def _continuations(results: Tensor, ends: int) -> Found:
    best, live, origin, tokens, rows, newest = results.unbind()
    best, live = best.view(torch.float64), live.view(torch.float64)
    return best, origin, tokens, live, rows.view(-1), newest.view(-1), ends > 0


def choose(
    logits: Tensor,
    normaliser: Tensor,
    scores: Tensor,
    end: int,
    limits: Tensor | None = None,
    length: int = 0,
) -> Found:
    """`decoding.search.continuations` for at most `WIDEST_BEAM` rows per source. Ties are broken by
    the lower row, then the lower token."""
    beam, (logits, normaliser, scores) = (
        scores.shape[1],
        (x.contiguous() for x in (logits, normaliser, scores)),
    )
    results = empty(len(FOUND), *scores.shape, dtype=torch.int64)
    search = _search(
        results, end=end, limits=limits, scores=scores, logits=logits, normaliser=normaliser
    )
    cpu.library().choose(search, 0, len(scores), logits.shape[1], beam, length)
    return _continuations(results, search.ends)


class Cells:
    """The memory of a running batch, which never grows.

    Args:
        output: the output projection.
        cells: how many tokens have keys and values.
        rows: the most rows of a step.
        sizes: G, and the widths of a key and of a value.
        dtype: of keys and values, float32 or float16.
    """

    def __init__(
        self,
        decoder: PackedDecoder,
        output: Packed,
        cells: int,
        rows: int,
        sizes: tuple[int, int, int],
        dtype: torch.dtype,
    ) -> None:
        (self.groups, *widths), self.decoder, self.output = sizes, decoder, output
        self.cells, self.rows = cells, rows
        self.pools = [
            [empty(self.groups, cells, width, dtype=dtype) for width in widths]
            for _ in range(decoder.native.count)
        ]
        pointers = [pool.data_ptr() for pair in self.pools for pool in pair]
        together = max(TOGETHER, WIDEST_BEAM)
        numbers = cpu.library().layer_room(decoder.layers.native, rows, cells)
        self.drawn = empty(rows, output.size)  # the logits of rows whose tokens are drawn
        self.news = np.zeros(1, np.int64)  # not zero: a call returns after the step under way
        buffers = [empty(numbers + rows * decoder.layers.width), empty(together, output.size)]
        buffers.append(empty(together))
        addresses = (POINTER * len(pointers))(*pointers)
        self.held = addresses, buffers  # keeps alive what `native` points to
        self.native = _Batch(
            ctypes.addressof(addresses),
            cells,
            cpu.CACHED.index(dtype),
            rows,
            together,
            *(buffer.data_ptr() for buffer in buffers),
            self.news.ctypes.data,
        )

    def remember(
        self, layer: int, key: Packed, value: Packed, x: Tensor, cells: np.ndarray
    ) -> None:
        """Project encoded tokens (N, D) to the keys and values of a layer, in these cells (N,)."""
        x = x.contiguous()
        work = empty(len(x) * (max(key.size, value.size) + key.width // 2 + 5))
        where = cells.ctypes.data, len(x), self.groups, x.data_ptr(), work.data_ptr()
        batch = ctypes.byref(self.native)
        cpu.library().remember_cells(key.native, value.native, *where, CORES.sharing, batch, layer)

    def advance(self, sources: ctypes.Array[ctypes.c_void_p], most: int) -> int:
        """Take steps until a source is done or its tokens are drawn, or there are news, `most` at
        most. Returns their number.

        Args:
            sources: the address of each `Source`.

        Raises:
            IndexError: if a token is not in the vocabulary.
        """
        given = self.decoder.native, self.output.native, ctypes.byref(self.native), sources
        taken = cpu.library().advance(*given, len(sources), most, self.cells, CORES.sharing)
        if not taken:
            raise IndexError(UNKNOWN)
        return int(taken)
