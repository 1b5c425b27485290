"""The caches of attention that make decoding a token at a time cheap.

Let R be the rows of a running search, `beam` for each of B sources.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from transduct.functional.attention import hiding

CAPACITY = 32  # initial capacity of a cache in tokens; most sentences need no more


@dataclass(frozen=True)
class Clock:
    """A token counter on the device, for caches of fixed size in a captured graph.

    Attributes:
        now: (1,) the number of tokens in each row, which is the index of the next one.
        reach: the number of places in the buffers that attention reads, more than `now`; unwritten
            ones are masked.
    """

    now: Tensor
    reach: int

    def turned(self, bias: Tensor) -> Tensor:
        """Shift a bias (..., S + reach), computed for a query at the last key, to a query at
        `now`."""
        last = bias.shape[-1] - 1
        places = torch.arange(last + 1, device=bias.device) + (self.reach - 1 - self.now)
        return bias.index_select(-1, places.clamp(max=last))


@dataclass
class KVCache:
    """The KV cache of a self-attention: keys (B, G, t, beam, K) and values (B, G, t, beam, V) of
    all tokens so far.

    The buffers double when they are full, so that appending rarely copies; with a clock their size
    is fixed. Reordering beams copies nothing, because `Lineage` records whose tokens each row sees.
    """

    beam: int = 1
    keys: Tensor | None = None
    values: Tensor | None = None
    length: int = 0
    clock: Clock | None = None

    def append(self, key: Tensor, value: Tensor) -> None:
        """Add the key (R, G, K) and value (R, G, V) of one token per row."""
        key, value = (
            x.view(-1, self.beam, *x.shape[1:]).transpose(1, 2) for x in (key, value)
        )  # (B, G, beam, K)
        if self.clock is not None:
            for buffer, newest in zip(self.buffers, (key, value), strict=True):
                buffer.index_copy_(2, self.clock.now, newest.unsqueeze(2))  # (B, G, 1, beam, K)
            return
        if self.full:
            self.grow(key, key.shape[0], key.shape[1], key.shape[3], value.shape[3])
        if (
            torch.is_grad_enabled() and key.requires_grad
        ):  # the graphs of earlier steps need their inputs unchanged
            self.keys, self.values = (buffer.clone() for buffer in self.buffers)
        keys, values = self.buffers
        keys[:, :, self.length], values[:, :, self.length] = key, value
        self.length += 1

    def grow(self, like: Tensor, sources: int, groups: int, d_k: int, d_v: int) -> None:
        """Double the buffers, keeping their contents; they take dtype and device from `like`."""
        assert self.clock is None, "fixed buffers do not grow"
        shapes = [
            (sources, groups, max(CAPACITY, 2 * self.length), self.beam, width)
            for width in (d_k, d_v)
        ]
        before = () if self.keys is None else self.buffers
        self.keys, self.values = (like.new_empty(shape) for shape in shapes)
        for buffer, old in zip(self.buffers, before):
            buffer[:, :, : self.length] = old

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values with their unwritten places: (B, G, capacity, beam, K) and (B, G,
        capacity, beam, V)."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    @property
    def full(self) -> bool:
        """Whether there is no room for another token."""
        return self.keys is None or self.keys.shape[2] == self.length

    @property
    def times(self) -> int:
        """t, the number of tokens per row that attention reads; in fixed buffers some of them are
        masked."""
        return self.length if self.clock is None else self.clock.reach

    def positions(self, rows: int, device: torch.device) -> Tensor:
        """(R,) the position of the next token of each row."""
        if self.clock is not None:
            return self.clock.now.expand(rows)  # (R,)
        return torch.full((rows,), self.length, device=device)

    def held(self) -> tuple[Tensor, Tensor]:
        """The keys (B, G, t * beam, K) and values (B, G, t * beam, V) of all rows of each
        source."""
        keys, values = (
            buffer[:, :, : self.times].flatten(2, 3) for buffer in self.buffers
        )  # (B, G, t * beam, ..)
        return keys, values

    def select(self, sources: Tensor, still: int = 0) -> None:
        """Keep these sources, in this order.

        Args:
            still: the number of leading sources that keep their place; in inference mode only the
                others are copied.
        """
        assert self.clock is None, "sources of fixed buffers are gathered"
        if self.keys is None:
            return
        if not torch.is_inference_mode_enabled():  # autograd may need the old buffers
            self.keys, self.values = (buffer.index_select(0, sources) for buffer in self.buffers)
            return
        written, count = slice(None, self.length), len(sources)
        for buffer in self.buffers if still < count else ():
            buffer[still:count, :, written] = buffer[:, :, written].index_select(0, sources[still:])
        self.keys, self.values = (buffer[:count] for buffer in self.buffers)


def standing_still(sources: Tensor) -> int:
    """The number of leading sources that keep their place if these are kept: the first i with
    sources[i] != i."""
    moved = (sources != torch.arange(len(sources), device=sources.device)).nonzero()
    return int(moved[0]) if len(moved) else len(sources)


@dataclass
class Lineage:
    """The ancestry of beams: which row of its source wrote each token that a row continues.

    Attributes:
        slots: (R, t) int32, the index within its source of the row that wrote each token; None if
            each source has one row. With a clock (R, reach), and -1 at unwritten places.
        dtype: of `seen`.
        own: (R, 1) int32, the index of each row within its source.
    """

    beam: int = 1
    slots: Tensor | None = None
    clock: Clock | None = None
    dtype: torch.dtype = torch.float32
    own: Tensor | None = None
    _seen: Tensor | None = None

    def grow(self, rows: int, device: torch.device) -> None:
        """Add a token to each row, written by the row itself."""
        self._seen = None
        if self.beam == 1 and self.clock is None:
            return
        if self.own is None or len(self.own) != rows:
            self.own = torch.arange(self.beam, dtype=torch.int32, device=device).repeat(
                rows // self.beam
            )[:, None]
        own = self.own
        if self.clock is not None and self.slots is not None:
            self.slots.index_copy_(1, self.clock.now, own)
        else:
            self.slots = own.clone() if self.slots is None else torch.cat((self.slots, own), 1)

    def select(self, rows: Tensor) -> None:
        """Continue from these rows, in this order; a row may occur several times."""
        if self.slots is not None:
            chosen = self.slots.index_select(0, rows)
            self.slots = chosen if self.clock is None else self.slots.copy_(chosen)

    @property
    def seen(self) -> Tensor | None:
        """The mask (R, 1, 1, t * beam): zero for the tokens that a row sees, minus infinity for all
        others."""
        if self._seen is None and self.slots is not None:
            others = self.slots[:, :, None] != torch.arange(
                self.beam, device=self.slots.device
            )  # (R, t, beam)
            self._seen = hiding(others, self.dtype).view(len(others), 1, 1, -1)
        return self._seen


@dataclass(frozen=True)
class Memory:
    """Keys (B, G, S, K) and values (B, G, S, V) that all rows of a source share, kept once whatever
    the beam.

    They belong to the memory of a cross-attention, or to the prompt that a decoder continues. The
    bias (B, 1, 1, S) masks padding; `lengths` (B,) are the numbers of tokens, if the padding is on
    the right.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor | None
    lengths: Tensor | None = None

    def select(self, sources: Tensor) -> "Memory":
        """Keep these sources, in this order."""
        bias, lengths = (
            None if x is None else x.index_select(0, sources) for x in (self.bias, self.lengths)
        )
        return Memory(
            self.keys.index_select(0, sources), self.values.index_select(0, sources), bias, lengths
        )
