"""What attention keeps while outputs are written: the caches that make decoding a token at a time cheap.

Let R be the rows of a running search (each of B sources has `beam` of them).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from transduct.functional.attention import hiding

CAPACITY = 32  # tokens that a cache can hold at first; most sentences need no more


@dataclass(frozen=True)
class Clock:
    """A token counter that lives on the device: caches then have a fixed size, as a captured graph needs.

    Attributes:
        now: (1,) how many tokens each row holds, which is the index of the next one.
        reach: how many places of the buffers attention reads, more than `now`; those not written yet are hidden.
    """

    now: Tensor
    reach: int

    def turned(self, bias: Tensor) -> Tensor:
        """Shift a bias (..., S + reach), computed for a query at the last key, to one at `now`."""
        last = bias.shape[-1] - 1
        places = torch.arange(last + 1, device=bias.device) + (self.reach - 1 - self.now)
        return bias.index_select(-1, places.clamp(max=last))


@dataclass
class KVCache:
    """The keys (B, G, t, beam, K) and values (B, G, t, beam, V) of every token a self-attention has seen.

    The buffers double when they are full, so that appending rarely copies; where a clock counts the tokens, their
    size is fixed. Reordering beams copies nothing: `Lineage` says whose tokens each row sees.
    """

    beam: int = 1
    keys: Tensor | None = None
    values: Tensor | None = None
    length: int = 0
    clock: Clock | None = None

    def append(self, key: Tensor, value: Tensor) -> None:
        """Take in one token's (R, G, K) and (R, G, V)."""
        key, value = (x.view(-1, self.beam, *x.shape[1:]).transpose(1, 2) for x in (key, value))  # (B, G, beam, K)
        if self.clock is not None:
            for buffer, newest in zip(self.buffers, (key, value), strict=True):
                buffer.index_copy_(2, self.clock.now, newest.unsqueeze(2))  # (B, G, 1, beam, K)
            return
        if self.full:
            self.grow(key, key.shape[0], key.shape[1], key.shape[3], value.shape[3])
        if torch.is_grad_enabled() and key.requires_grad:  # the steps before need what they have read as it was
            self.keys, self.values = (buffer.clone() for buffer in self.buffers)
        keys, values = self.buffers
        keys[:, :, self.length], values[:, :, self.length] = key, value
        self.length += 1

    def grow(self, like: Tensor, sources: int, groups: int, d_k: int, d_v: int) -> None:
        """Twice as many places, of the type and on the device of another tensor; what is held stays."""
        assert self.clock is None, "fixed buffers do not grow"
        shapes = [(sources, groups, max(CAPACITY, 2 * self.length), self.beam, width) for width in (d_k, d_v)]
        before = () if self.keys is None else self.buffers
        self.keys, self.values = (like.new_empty(shape) for shape in shapes)
        for buffer, held in zip(self.buffers, before):
            buffer[:, :, : self.length] = held

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values with the places not written yet: (B, G, capacity, beam, K) and (B, G, capacity, beam, V)."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    @property
    def full(self) -> bool:
        """Whether there is no place for another token."""
        return self.keys is None or self.keys.shape[2] == self.length

    @property
    def times(self) -> int:
        """t, how many tokens of each row are looked at, some of them hidden where buffers are fixed."""
        return self.length if self.clock is None else self.clock.reach

    def positions(self, rows: int, device: torch.device) -> Tensor:
        """(R,) where the next token of each row stands."""
        if self.clock is not None:
            return self.clock.now.expand(rows)  # (R,)
        return torch.full((rows,), self.length, device=device)

    def held(self) -> tuple[Tensor, Tensor]:
        """What each source holds, (B, G, t * beam, K) and (B, G, t * beam, V)."""
        keys, values = (buffer[:, :, : self.times].flatten(2, 3) for buffer in self.buffers)  # (B, G, t * beam, ..)
        return keys, values

    def select(self, sources: Tensor, still: int = 0) -> None:
        """Keep these sources, in this order.

        Args:
            still: how many of the first keep their place; in inference only the others are copied.
        """
        assert self.clock is None, "sources of fixed buffers are gathered"
        if self.keys is None:
            return
        if not torch.is_inference_mode_enabled():  # somebody may need what was read as it was
            self.keys, self.values = (buffer.index_select(0, sources) for buffer in self.buffers)
            return
        held, count = slice(None, self.length), len(sources)
        for buffer in self.buffers if still < count else ():
            buffer[still:count, :, held] = buffer[:, :, held].index_select(0, sources[still:])
        self.keys, self.values = (buffer[:count] for buffer in self.buffers)


def sources_of(rows: Tensor, beam: int) -> Tensor:
    """The sources (B',) of rows (R',), of which each source has `beam`, side by side, or none."""
    return rows[::beam] // beam


def standing_still(sources: Tensor) -> int:
    """How many sources are the first already, in their order, where these are kept."""
    moved = (sources != torch.arange(len(sources), device=sources.device)).nonzero()
    return int(moved[0]) if len(moved) else len(sources)


@dataclass
class Lineage:
    """The ancestry of beams: for each row and step, which row of its source wrote the token that it goes on from.

    Attributes:
        slots: (R, t) in 32 bits, which of the source's rows has written each token that a row sees; None with one row a
            source, which sees its own. With a clock (R, reach), and -1 where nothing has been written.
        dtype: of `seen`.
        own: (R, 1) in 32 bits, which of its source's rows each row is.
    """

    beam: int = 1
    slots: Tensor | None = None
    clock: Clock | None = None
    dtype: torch.dtype = torch.float32
    own: Tensor | None = None
    _seen: Tensor | None = None

    def grow(self, rows: int, device: torch.device) -> None:
        """A token more in each row, written by the row itself."""
        self._seen = None
        if self.beam == 1 and self.clock is None:
            return
        if self.own is None or len(self.own) != rows:
            self.own = torch.arange(self.beam, dtype=torch.int32, device=device).repeat(rows // self.beam)[:, None]
        own = self.own
        if self.clock is not None and self.slots is not None:
            self.slots.index_copy_(1, self.clock.now, own)
        else:
            self.slots = own.clone() if self.slots is None else torch.cat((self.slots, own), 1)

    def select(self, rows: Tensor) -> None:
        """Go on from these rows, in this order; a row may come twice."""
        if self.slots is not None:
            chosen = self.slots.index_select(0, rows)
            self.slots = chosen if self.clock is None else self.slots.copy_(chosen)

    @property
    def seen(self) -> Tensor | None:
        """(R, 1, 1, t * beam), zero for a token that a row sees and minus infinity for one that it does not."""
        if self._seen is None and self.slots is not None:
            others = self.slots[:, :, None] != torch.arange(self.beam, device=self.slots.device)  # (R, t, beam)
            self._seen = hiding(others, self.dtype).view(len(others), 1, 1, -1)
        return self._seen


@dataclass(frozen=True)
class Memory:
    """What all rows of a source read: keys (B, G, S, K), values (B, G, S, V), kept once whatever the beam.

    It is the source of a cross-attention, or the prompt that a decoder's rows go on from. The bias (B, 1, 1, S) hides
    the places without a token; `lengths` (B,) counts those with one, where they are the first.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor | None
    lengths: Tensor | None = None

    def select(self, sources: Tensor) -> "Memory":
        """Keep these sources, in this order."""
        bias, lengths = (None if x is None else x.index_select(0, sources) for x in (self.bias, self.lengths))
        return Memory(self.keys.index_select(0, sources), self.values.index_select(0, sources), bias, lengths)
