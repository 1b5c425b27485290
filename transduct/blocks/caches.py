"""What search carries from token to token: the caches of attention, and the state that holds them.

Let R be the rows of a running search, `beam` for each of B sources.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from transduct.functional.attention import (
    Bias,
    attention_over_past,
    hiding,
    memory_attention,
    newest_attention,
)
from transduct.segments import sources_of

CAPACITY = 32  # initial capacity of a cache in tokens; most sentences need no more


@dataclass
class KVCache:
    """The KV cache of a self-attention: keys (B, G, t, beam, K) and values (B, G, t, beam, V) of
    all tokens so far.

    The buffers double when they are full, so that appending rarely copies. Reordering beams copies
    nothing, because `Ancestry` records whose tokens each row sees.
    """

    beam: int = 1
    keys: Tensor | None = None
    values: Tensor | None = None
    length: int = 0

    def append(self, key: Tensor, value: Tensor) -> None:
        """Add the key (R, G, K) and value (R, G, V) of one token per row."""
        # (B, G, beam, K)
        key, value = (x.view(-1, self.beam, *x.shape[1:]).transpose(1, 2) for x in (key, value))
        # Doubling: n appends copy at most 2 n tokens in all.
        if self.full:
            self.grow(key, key.shape[0], key.shape[1], key.shape[3], value.shape[3])
        # the graphs of earlier steps need their inputs unchanged
        if torch.is_grad_enabled() and key.requires_grad:
            self.keys, self.values = (buffer.clone() for buffer in self.buffers)
        keys, values = self.buffers
        # In place, at the next time step of all rows.
        keys[:, :, self.length], values[:, :, self.length] = key, value
        self.length += 1

    def grow(self, like: Tensor, sources: int, groups: int, d_k: int, d_v: int) -> None:
        """Double the buffers, keeping their contents; they take dtype and device from `like`."""
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
        """Whether another token does not fit."""
        return self.keys is None or self.keys.shape[2] == self.length

    def positions(self, rows: int, device: torch.device) -> Tensor:
        """(R,) the position of the next token of each row."""
        return torch.full((rows,), self.length, device=device)

    def attend(
        self,
        query: Tensor,
        ancestry: "Ancestry",
        prompt: "Memory | None" = None,
        bias: Bias | None = None,
    ) -> Tensor:
        """Attention of the newest token of each row over the prompt of its source, if there is one,
        and over its own past: (R, H, K) -> (R, H, V).

        Args:
            bias: of the positions, on the scores.
        """
        if prompt is None and bias is None:
            return newest_attention(
                query, *self.buffers, self.length, ancestry.writers, ancestry.mask
            )
        before = None if prompt is None else (prompt.keys, prompt.values, prompt.bias)
        term = None if bias is None else self._bias(bias, query, prompt)
        return attention_over_past(query, *self.tokens(), before, term, ancestry.mask)

    def _bias(self, bias: Bias, query: Tensor, prompt: "Memory | None") -> Tensor:
        """The bias on the scores of the prompt's tokens and of those of all rows: (R, H, 1, S + t *
        beam)."""
        # Distances count from the start of the prompt.
        before = 0 if prompt is None else prompt.keys.shape[2]
        # (R, H, 1, S + t)
        term = self._position_bias(bias, query.unsqueeze(2), before + self.length)
        # It depends on the distance alone: it is the same for the tokens of all rows of a source.
        past = term[..., before:].repeat_interleave(self.beam, -1)  # (R, H, 1, t * beam)
        return torch.cat((term[..., :before], past), -1)

    def _position_bias(self, bias: Bias, query: Tensor, keys: int) -> Tensor:
        return bias(query, keys)

    def tokens(self) -> tuple[Tensor, Tensor]:
        """The keys (B, G, t * beam, K) and values (B, G, t * beam, V) of all rows of each
        source."""
        # (B, G, t * beam, ..)
        keys, values = (buffer[:, :, : self.length].flatten(2, 3) for buffer in self.buffers)
        return keys, values

    def select(self, sources: Tensor, still: int = 0) -> None:
        """Keep these sources, in this order.

        Args:
            still: the number of leading sources that keep their place; in inference mode only the
                others are copied.
        """
        if self.keys is None:
            return
        if not torch.is_inference_mode_enabled():  # autograd may need the old buffers
            self.keys, self.values = (buffer.index_select(0, sources) for buffer in self.buffers)
            return
        # Only what is written is moved, and only of sources that change their place.
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
class Ancestry:
    """The ancestry of beams: which row of its source wrote each token that a row continues.

    Attributes:
        writers: (R, t) int32, the index within its source of the row that wrote each token; None if
            each source has one row.
        dtype: of the mask.
        row_numbers: (R, 1) int32, the index of each row within its source.
    """

    beam: int = 1
    writers: Tensor | None = None
    dtype: torch.dtype = torch.float32
    row_numbers: Tensor | None = None
    _mask: Tensor | None = None

    def grow(self, rows: int, device: torch.device) -> None:
        """Add a token to each row, written by the row itself."""
        self._mask = None
        if self.beam == 1:
            return
        if self.row_numbers is None or len(self.row_numbers) != rows:
            self.row_numbers = torch.arange(self.beam, dtype=torch.int32, device=device).repeat(
                rows // self.beam
            )[:, None]
        before = [] if self.writers is None else [self.writers]
        self.writers = torch.cat((*before, self.row_numbers), 1)

    def select(self, rows: Tensor) -> None:
        """Continue from these rows, in this order; a row may occur several times."""
        if self.writers is not None:
            self.writers = self.writers.index_select(0, rows)

    @property
    def mask(self) -> Tensor | None:
        """The mask (R, 1, 1, t * beam): zero for the tokens that a row sees, minus infinity for all
        others."""
        if self._mask is None and self.writers is not None:
            numbers = torch.arange(self.beam, device=self.writers.device)
            # A row sees of each time step the one token that its own line of ancestors wrote.
            others = self.writers[:, :, None] != numbers  # (R, t, beam)
            self._mask = hiding(others, self.dtype).view(len(others), 1, 1, -1)
        return self._mask


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

    def attend(self, query: Tensor) -> Tensor:
        """Attention of one query per row over the memory of its source: (R, H, K) -> (R, H, V)."""
        return memory_attention(query, self.keys, self.values, self.bias, self.lengths)

    def select(self, sources: Tensor) -> "Memory":
        """Keep these sources, in this order."""
        bias, lengths = (
            None if x is None else x.index_select(0, sources) for x in (self.bias, self.lengths)
        )
        return Memory(
            self.keys.index_select(0, sources), self.values.index_select(0, sources), bias, lengths
        )


@dataclass
class State:
    """The state of a search: for each layer a KV cache and a memory, and the ancestry of the
    rows."""

    beam: int
    caches: list[KVCache]
    memories: list[Memory]
    ancestry: Ancestry

    @property
    def length(self) -> int:
        """The number of tokens in each row; valid for growing buffers only."""
        return self.caches[0].length

    def select(self, rows: Tensor) -> None:
        """Keep these rows (R',), in this order: of each source all `beam` rows or, once it is
        finished, none."""
        # Fewer rows mean finished sources; else only the order of beams changes, and no cache
        # moves.
        if len(rows) < len(self.memories[0].keys) * self.beam:
            self.select_sources(sources_of(rows, self.beam))
        self.ancestry.select(rows)

    def select_sources(self, sources: Tensor) -> None:
        """Keep these sources, in this order."""
        self.memories = [memory.select(sources) for memory in self.memories]
        still = standing_still(sources)
        for cache in self.caches:
            cache.select(sources, still)


@dataclass
class MemoryState(State):
    """The state of a decoder that reads the memory of an encoder."""

    @property
    def positions(self) -> Tensor:
        """(R,) the position of the next token of each row."""
        keys = self.memories[0].keys
        return self.caches[0].positions(len(keys) * self.beam, keys.device)


@dataclass
class PromptState(State):
    """The state of a decoder without an encoder: its memories are those of the prompts.

    Attributes:
        lengths: (B,) the length of each prompt.
    """

    lengths: Tensor

    @property
    def positions(self) -> Tensor:
        """(R,) the position of the next token of each row, counted from the start of its prompt."""
        return self.lengths.repeat_interleave(self.beam) + self.length

    def select_sources(self, sources: Tensor) -> None:
        """Keep these sources, in this order."""
        super().select_sources(sources)
        self.lengths = self.lengths.index_select(0, sources)
