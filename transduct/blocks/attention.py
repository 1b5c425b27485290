"""Multi-head attention over segments, and the caches that make decoding a token at a time cheap.

Let R be the rows of a running search (each of B sources has `beam` of them).
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from transduct.blocks.embeddings import PositionVectors, VectorScheme
from transduct.functional import positions as schemes
from transduct.functional.attention import (
    Bias,
    padded_attention,
    padding_bias,
    segment_attention,
    segment_weights,
)
from transduct.functional.segments import Segments, pad

AttentionScheme = Literal["rotary", "alibi", "relative"]
CLIP = 16  # distances beyond it share a vector; Shaw et al. 2018 found 2 to 256 alike


@dataclass
class KVCache:
    """The keys (R, G, t, K) and values (R, G, t, V) of every token a self-attention has seen.

    Rooms are taken in doubling steps, so that appending a token copies nothing most of the time.
    """

    keys: Tensor | None = None
    values: Tensor | None = None
    length: int = 0

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Take in one token's (R, G, K) and (R, G, V); give back all keys and values so far."""
        self.keys, self.values = self._room(self.keys, key), self._room(self.values, value)
        self.keys[:, :, self.length], self.values[:, :, self.length] = key, value
        self.length += 1
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may come twice."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def _room(self, held: Tensor | None, new: Tensor) -> Tensor:
        if held is not None and held.shape[2] > self.length:
            return held
        grown = new.new_empty(*new.shape[:2], max(16, 2 * self.length), new.shape[2])
        if held is not None:
            grown[:, :, : self.length] = held[:, :, : self.length]
        return grown


@dataclass(frozen=True)
class Memory:
    """What a cross-attention reads: keys (B, G, S, K), values (B, G, S, V), once per source whatever the beam."""

    keys: Tensor
    values: Tensor
    bias: Tensor | None

    def select(self, sources: Tensor) -> "Memory":
        """Keep these sources, in this order."""
        bias = None if self.bias is None else self.bias.index_select(0, sources)
        return Memory(self.keys.index_select(0, sources), self.values.index_select(0, sources), bias)


class AttentionPositions(nn.Module):
    """Positions that act inside self-attention: turned or added to query, key and value, or a bias on the scores."""

    def __init__(
        self,
        scheme: AttentionScheme | VectorScheme,
        max_length: int,
        num_heads: int,
        d_k: int,
        d_v: int,
    ) -> None:
        super().__init__()
        self.scheme, self.num_heads = scheme, num_heads
        if scheme == "rotary" and d_k % 2:
            raise ValueError(f"rotary positions turn pairs of numbers: d_k must be even, found {d_k}")
        self.table = nn.Parameter(torch.zeros(2 * CLIP + 1, d_k)) if scheme == "relative" else None
        self.for_keys: PositionVectors | None = None
        self.for_values: PositionVectors | None = None
        if scheme not in get_args(AttentionScheme):
            self.for_keys = PositionVectors(scheme, max_length, d_k)  # type: ignore[arg-type]
            self.for_values = PositionVectors(scheme, max_length, d_v)  # type: ignore[arg-type]

    def apply_to(
        self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query (N, H, K), key (N, G, K) and value (N, G, V) with their positions in them."""
        if self.scheme == "rotary":
            return schemes.rotary(query, positions), schemes.rotary(key, positions), value
        if self.for_keys is None or self.for_values is None:
            return query, key, value
        shift = self.for_keys(positions, lengths)[:, None].to(query.dtype)  # (N, 1, K)
        return (
            query + shift,
            key + shift,
            value + self.for_values(positions, lengths)[:, None].to(value.dtype),
        )

    @property
    def bias(self) -> Bias | None:
        """The bias on the scores, for schemes that are one."""
        if self.scheme == "alibi":
            return lambda query, keys: schemes.alibi(self.num_heads, query.shape[2], keys, query.device)
        if self.table is not None:
            table = self.table
            return lambda query, keys: schemes.relative(query, table.to(query.dtype), keys)
        return None


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V); section 3.2.2.

    The number of heads and the widths d_k and d_v are free of d_model. With fewer key heads than query heads each
    serves a group of them (Ainslie et al. 2023).
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
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.d_k = d_k or d_model // num_heads
        self.d_v = d_v or self.d_k
        self.dropout, self.positions = dropout, positions
        self.query = nn.Linear(d_model, num_heads * self.d_k)
        self.key = nn.Linear(d_model, self.num_kv_heads * self.d_k)
        self.value = nn.Linear(d_model, self.num_kv_heads * self.d_v)
        self.output = nn.Linear(num_heads * self.d_v, d_model)

    def forward(
        self, x: Tensor, segments: Segments, causal: bool = False, weights: list[Tensor] | None = None
    ) -> Tensor:
        """Self-attention: each token of (N, D) over its own sequence, or over what came before it there.

        A list given as `weights` is handed the attention weights (B, H, T, S), recomputed by the plain formula.
        """
        lengths = segments.lengths[segments.sequence] if self.positions and not causal else None
        query, key, value = self._project(x, segments.positions, lengths)
        bias = self.positions.bias if self.positions else None
        return self._attend(query, key, value, segments, segments, causal, bias, weights)

    def cross(
        self,
        x: Tensor,
        segments: Segments,
        memory: Tensor,
        memory_segments: Segments,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Cross-attention: each token of (N, D) over the memory (M, D) of its own source."""
        query = self.query(x).unflatten(-1, (self.num_heads, self.d_k))  # (N, H, K)
        key, value = self._keys_and_values(memory)
        return self._attend(query, key, value, segments, memory_segments, False, None, weights)

    def step(self, x: Tensor, cache: KVCache) -> Tensor:
        """Causal self-attention of one new token a row: (R, D) -> (R, D); its key and value join the cache."""
        positions = torch.full((x.shape[0],), cache.length, device=x.device)
        query, key, value = self._project(x, positions, None)
        keys, values = cache.append(key, value)
        query = query.unsqueeze(2)  # (R, H, 1, K)
        bias = self.positions.bias if self.positions else None
        term = None if bias is None else bias(query, cache.length)
        return self.output(padded_attention(query, keys, values, term).flatten(1))  # (R, D)

    def remember(self, memory: Tensor, segments: Segments) -> Memory:
        """The keys and values of a source, once for the whole search: (M, D) -> Memory."""
        key, value = self._keys_and_values(memory)
        keys, values = (pad(part, segments).transpose(1, 2).contiguous() for part in (key, value))
        return Memory(keys, values, padding_bias(segments))

    def recall(self, x: Tensor, memory: Memory) -> Tensor:
        """Cross-attention of one new token a row: the rows of a source are its queries, (R, D) -> (R, D)."""
        sources = memory.keys.shape[0]
        query = self.query(x).view(sources, -1, self.num_heads, self.d_k).transpose(1, 2)  # (B, H, beam, K)
        heads = padded_attention(query, memory.keys, memory.values, memory.bias)  # (B, H, beam, V)
        return self.output(heads.transpose(1, 2).reshape(x.shape[0], -1))  # (R, D)

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = self.key(x).unflatten(-1, (self.num_kv_heads, self.d_k))  # (M, G, K)
        return key, self.value(x).unflatten(-1, (self.num_kv_heads, self.d_v))  # (M, G, V)

    def _project(self, x: Tensor, positions: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        query = self.query(x).unflatten(-1, (self.num_heads, self.d_k))  # (N, H, K)
        key, value = self._keys_and_values(x)
        if self.positions is None:
            return query, key, value
        if lengths is None:  # a decoder does not know its final length
            longest = self.positions.for_keys.max_length if self.positions.for_keys else 1
            lengths = torch.full_like(positions, longest)
        return self.positions.apply_to(query, key, value, positions, lengths)

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
        if weights is not None:
            weights.append(segment_weights(query, key, queries, keys, causal, bias))
        rate = self.dropout if self.training else 0.0
        heads = segment_attention(query, key, value, queries, keys, causal, bias, rate)  # (N, H, V)
        return self.output(heads.flatten(1))  # (N, D)
