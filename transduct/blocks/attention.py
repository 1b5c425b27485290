"""Multi-head attention over segments, for whole sequences and for one token at a time; then what a
search carries from token to token: the caches that attention reads, and the state that holds them.

Let N be tokens, M tokens of a memory, B sequences, T and S the lengths of queries and keys, H heads
and G key heads, K and V the widths of keys and values. A search has R rows, `beam` for each source.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from transduct.blocks.embeddings import PositionVectors, VectorScheme
from transduct.blocks.linear import Linear
from transduct.functional import positions as schemes
from transduct.functional.attention import (
    Bias,
    attention_over_past,
    for_cache,
    hiding,
    memory_attention,
    newest_attention,
    padding_bias,
    segment_attention,
    segment_weights,
)
from transduct.segments import Segments, pad, sources_of

AttentionScheme = Literal["rotary", "alibi", "relative", "bucketed"]
# farther distances share a vector; Shaw et al. 2018 found no difference between 2 and 256
CLIP = 16
CAPACITY = 32  # initial capacity of a cache in tokens; most sentences need no more


def split_scheme(
    positions: Literal["none"] | VectorScheme | AttentionScheme,
) -> tuple[VectorScheme | None, AttentionScheme | None]:
    """Split a position scheme into that of the embedding and that inside attention; at least one is
    None."""
    match positions:
        case "none":
            return None, None
        case "rotary" | "alibi" | "relative" | "bucketed":
            return None, positions
        case _:
            return positions, None


class AttentionPositions(nn.Module):
    """Positions inside self-attention: they rotate or are added to query, key and value, or bias
    the scores.

    Args:
        buckets, farthest, causal: of the scheme "bucketed"; see `positions.buckets_of`.
    """

    def __init__(
        self,
        scheme: AttentionScheme | VectorScheme,
        max_length: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        buckets: int = 32,
        farthest: int = 128,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.scheme, self.num_heads = scheme, num_heads
        self.farthest, self.causal = farthest, causal
        if scheme == "rotary" and d_k % 2:
            raise ValueError(
                f"rotary positions turn pairs of numbers: d_k must be even, found {d_k}"
            )
        shapes = {"relative": (2 * CLIP + 1, d_k), "bucketed": (buckets, num_heads)}
        shape = shapes.get(scheme)
        self.table = None if shape is None else nn.Parameter(torch.zeros(shape))
        self.for_keys: PositionVectors | None = None
        self.for_values: PositionVectors | None = None
        if scheme not in get_args(AttentionScheme):
            self.for_keys = PositionVectors(scheme, max_length, d_k)  # type: ignore[arg-type]
            self.for_values = PositionVectors(scheme, max_length, d_v)  # type: ignore[arg-type]

    def apply_to(
        self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query (N, H, K), key (N, G, K) and value (N, G, V) with the positions applied."""
        if self.scheme == "rotary":
            return schemes.rotary(query, positions), schemes.rotary(key, positions), value
        if self.for_keys is None or self.for_values is None:
            return query, key, value
        # The same vector for all heads: it says where a token is, not what a head looks for.
        shift = self.for_keys(positions, lengths)[:, None].to(query.dtype)  # (N, 1, K)
        return (
            query + shift,
            key + shift,
            value + self.for_values(positions, lengths)[:, None].to(value.dtype),
        )

    @property
    def bias(self) -> Bias | None:
        """The bias on the scores, if the scheme has one."""
        if self.scheme == "alibi":
            return lambda query, keys: schemes.alibi(
                self.num_heads, query.shape[2], keys, query.device
            )
        if self.table is not None:
            table = self.table
            if self.scheme == "bucketed":
                return lambda query, keys: schemes.bucketed(
                    table.to(query.dtype), query.shape[2], keys, self.farthest, self.causal
                )
            return lambda query, keys: schemes.relative(query, table.to(query.dtype), keys)
        return None


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V); section
    3.2.2.

    num_heads, d_k and d_v are independent of d_model. With fewer key heads than query heads, each
    key head serves a group of query heads (Ainslie et al. 2023).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        positions: AttentionPositions | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.d_k = d_k or d_model // num_heads
        self.d_v = d_v or self.d_k
        self.dropout, self.positions = dropout, positions
        # All heads in one matrix: h products of width d_k are one product of width h * d_k.
        self.query: Any = Linear(d_model, num_heads * self.d_k, bias)
        self.key: Any = Linear(d_model, self.num_kv_heads * self.d_k, bias)
        self.value: Any = Linear(d_model, self.num_kv_heads * self.d_v, bias)
        self.output: nn.Module = Linear(num_heads * self.d_v, d_model, bias)
        self.cache_dtype = torch.float32  # of cached keys and values, where the kernels read them

    def forward(
        self,
        x: Tensor,
        segments: Segments,
        causal: bool = False,
        weights: list[Tensor] | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Self-attention of each token of (N, D) over its own sequence or, if causal, over the
        tokens up to itself.

        Args:
            weights: a list to which the attention weights (B, H, T, S) are appended, computed by
                the plain formula.
            bias: (B, H, T, S), added to the scaled scores instead of the bias of the positions.
        """
        # Schemes relative to the length need it; a causal decoder does not know how long it gets.
        lengths = segments.lengths[segments.sequence] if self.positions and not causal else None
        query, key, value = self.project(x, segments.positions, lengths)
        position_bias = self.positions.bias if self.positions else None
        score_bias = position_bias if bias is None else lambda *_: bias
        return self._attend(query, key, value, segments, segments, causal, score_bias, weights)

    def cross(
        self,
        x: Tensor,
        segments: Segments,
        memory: Tensor,
        memory_segments: Segments,
        weights: list[Tensor] | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Cross-attention of each token of (N, D) over the memory (M, D) of its own source.

        `weights` as in `forward`; `bias` (B, H, T, S) is added to the scaled scores.
        """
        query = self.query(x).unflatten(-1, (self.num_heads, self.d_k))  # (N, H, K)
        key, value = self._keys_and_values(memory)
        score_bias = None if bias is None else lambda *_: bias
        return self._attend(
            query, key, value, segments, memory_segments, False, score_bias, weights
        )

    def step(
        self,
        x: Tensor,
        cache: "KVCache",
        prompt: "Memory | None" = None,
        positions: Tensor | None = None,
        ancestry: "Ancestry | None" = None,
    ) -> Tensor:
        """Causal self-attention of one new token per row, whose key and value are added to the
        cache: (R, D) -> (R, D).

        Args:
            prompt: keys and values before those of the cache, as returned by `remember_prompt`.
            positions: (R,) of the new tokens; by default they follow the tokens of the cache.
            ancestry: whose tokens each row sees, including the new one; needed if a source has
                several rows.
        """
        if positions is None and self.positions is not None:
            positions = cache.positions(len(x), x.device)
        query, key, value = self.project(x, positions, None)
        # Before attention, because a token also attends to itself.
        cache.append(for_cache(key, self.cache_dtype), for_cache(value, self.cache_dtype))
        bias = self.positions.bias if self.positions else None
        heads = cache.attend(query, ancestry or Ancestry(), prompt, bias)  # (R, H, V)
        return self.output(heads.flatten(1))  # (R, D)

    def remember_prompt(self, x: Tensor, segments: Segments) -> "Memory":
        """The keys and values of prompts that `step` continues: (N, D) -> Memory.

        Prompts are padded on the left, so that their distances to the tokens after them are right.
        """
        _, key, value = self.project(x, segments.positions, None)
        keys, values = (
            _pad_before(part, segments).transpose(1, 2).contiguous() for part in (key, value)
        )
        # (B, 1, 1, S)
        bias = None if segments.equal else hiding(~segments.mask.flip(1))[:, None, None]
        return Memory(keys, values, bias)

    def remember(self, memory: Tensor, segments: Segments) -> "Memory":
        """The keys and values of the sources, computed once for a whole search: (M, D) ->
        Memory."""
        keys, values = (
            pad(for_cache(part, self.cache_dtype), segments).transpose(1, 2).contiguous()
            for part in self._keys_and_values(memory)
        )  # (B, G, S, ..)
        return Memory(keys, values, padding_bias(segments), segments.lengths)

    def recall(self, x: Tensor, memory: "Memory") -> Tensor:
        """Cross-attention of one new token per row over the memory of its source: (R, D) -> (R,
        D)."""
        query = self.query(x).unflatten(-1, (self.num_heads, self.d_k))  # (R, H, K)
        return self.output(memory.attend(query).flatten(1))  # (R, D)

    def project(
        self, x: Tensor, positions: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project (N, D) to query (N, H, K), key (N, G, K) and value (N, G, V), with positions
        applied.

        Args:
            lengths: (N,) the length of each token's sequence, if known.
        """
        query, key, value = self.heads(x)
        if self.positions is None or positions is None:
            return query, key, value
        if lengths is None:  # a decoder does not know its final length
            max_length = self.positions.for_keys.max_length if self.positions.for_keys else 1
            lengths = torch.full_like(positions, max_length)
        return self.positions.apply_to(query, key, value, positions, lengths)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project (N, D) to query (N, H, K), key (N, G, K) and value (N, G, V)."""
        query = self.query(x).unflatten(-1, (self.num_heads, self.d_k))  # (N, H, K)
        return query, *self._keys_and_values(x)

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = self.key(x).unflatten(-1, (self.num_kv_heads, self.d_k))  # (M, G, K)
        return key, self.value(x).unflatten(-1, (self.num_kv_heads, self.d_v))  # (M, G, V)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        queries: Segments,
        keys: Segments,
        causal: bool,
        bias: Bias | None,
        weights: list[Tensor] | None,
    ) -> Tensor:
        # Computed once more by the plain formula: the kernels below never store the weights.
        if weights is not None:
            weights.append(segment_weights(query, key, queries, keys, causal, bias))
        # Dropout of the weights themselves, as in the paper's code: a row no longer sums to one.
        rate = self.dropout if self.training else 0.0
        heads = segment_attention(query, key, value, queries, keys, causal, bias, rate)  # (N, H, V)
        return self.output(heads.flatten(1))  # (N, D)


def self_attention(
    d_model: int,
    num_heads: int,
    positions: Literal["none"] | VectorScheme | AttentionScheme,
    max_length: int,
) -> MultiHeadAttention:
    """Self-attention whose heads share d_model evenly, with the positions inside it if they are of
    that kind."""
    _, scheme = split_scheme(positions)
    d_k = d_model // num_heads
    inside = scheme and AttentionPositions(scheme, max_length, num_heads, d_k, d_k)
    return MultiHeadAttention(d_model, num_heads, positions=inside)


def _pad_before(flat: Tensor, segments: Segments) -> Tensor:
    """`pad` with the zeros before each sequence: (N, ...) -> (B, L, ...)."""
    # Right-aligned: the token after a prompt is then at the same place for all rows.
    padding = segments.longest - segments.lengths
    slots = segments.slots + padding.index_select(0, segments.sequence)  # (N,)
    empty = flat.new_zeros(len(segments) * segments.longest, *flat.shape[1:])
    # (B, L, ...)
    return empty.index_copy(0, slots, flat).view(len(segments), segments.longest, *flat.shape[1:])


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
        score_bias = None if bias is None else self._bias(bias, query, prompt)
        return attention_over_past(query, *self.tokens(), before, score_bias, ancestry.mask)

    def _bias(self, bias: Bias, query: Tensor, prompt: "Memory | None") -> Tensor:
        """The bias on the scores of the prompt's tokens and of those of all rows: (R, H, 1, S + t *
        beam)."""
        # Distances count from the start of the prompt.
        before = 0 if prompt is None else prompt.keys.shape[2]
        # (R, H, 1, S + t)
        by_distance = self._position_bias(bias, query.unsqueeze(2), before + self.length)
        # It depends on the distance alone: it is the same for the tokens of all rows of a source.
        past = by_distance[..., before:].repeat_interleave(self.beam, -1)  # (R, H, 1, t * beam)
        return torch.cat((by_distance[..., :before], past), -1)

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
