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
    """What all rows of a source read: keys (B, G, S, K), values (B, G, S, V), kept once whatever the beam.

    It is the source of a cross-attention, or the prompt that a decoder's rows go on from. The bias (B, 1, 1, S) hides
    the places without a token.
    """

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


def prompted_attention(query: Tensor, key: Tensor, value: Tensor, prompt: Memory, bias: Tensor | None = None) -> Tensor:
    """Attention of each row over the prompt of its source and then over its own past, in one softmax.

    Args:
        query: (R, H, 1, K), the R / B rows of a source side by side.
        key, value: (R, G, t, K) and (R, G, t, V).
        bias: added to the scaled scores; broadcasts to (R, H, 1, S + t).

    Returns:
        (R, H, 1, V).
    """
    query = query * query.shape[-1] ** -0.5
    of_prompt = _of_source(query, prompt.keys.transpose(-2, -1))  # (R, H, 1, S)
    if prompt.bias is not None:
        beam = len(query) // len(prompt.bias)
        of_prompt = of_prompt + prompt.bias.to(of_prompt.dtype).repeat_interleave(beam, 0)
    scores = torch.cat((of_prompt, _of_source(query, key.transpose(-2, -1))), -1)  # (R, H, 1, S + t)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    weights, longest = scores.softmax(-1), of_prompt.shape[-1]
    return _of_source(weights[..., :longest], prompt.values) + _of_source(weights[..., longest:], value)


def _of_source(rows: Tensor, matrices: Tensor) -> Tensor:
    """Each head of each row times the matrix of its source and group: (R, H, 1, m), (B, G, m, n) -> (R, H, 1, n)."""
    (sources, groups, m, n), heads = matrices.shape, rows.shape[1]
    shape = (sources, len(rows) // sources, groups, heads // groups)
    grouped = rows.view(*shape, m).transpose(1, 2)  # (B, G, beam, H / G, m)
    product = (grouped.flatten(2, 3) @ matrices).view(*grouped.shape[:4], n)  # (B, G, beam, H / G, n)
    return product.transpose(1, 2).reshape(len(rows), heads, 1, n)  # (R, H, 1, n)


def _pad_before(flat: Tensor, segments: Segments) -> Tensor:
    """(N, ...) -> (B, L, ...), each sequence at the end of its row and zeros before it."""
    gaps = segments.longest - segments.lengths
    slots = segments.slots + gaps.index_select(0, segments.sequence)  # (N,)
    empty = flat.new_zeros(len(segments) * segments.longest, *flat.shape[1:])
    return empty.index_copy(0, slots, flat).view(len(segments), segments.longest, *flat.shape[1:])  # (B, L, ...)


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
        self,
        x: Tensor,
        segments: Segments,
        causal: bool = False,
        weights: list[Tensor] | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Self-attention: each token of (N, D) over its own sequence, or over what came before it there.

        A list given as `weights` is handed the attention weights (B, H, T, S), recomputed by the plain formula. A bias
        (B, H, T, S) is added to the scaled scores, in place of that of the positions.
        """
        lengths = segments.lengths[segments.sequence] if self.positions and not causal else None
        query, key, value = self._project(x, segments.positions, lengths)
        of_positions = self.positions.bias if self.positions else None
        term = of_positions if bias is None else lambda *_: bias
        return self._attend(query, key, value, segments, segments, causal, term, weights)

    def cross(
        self,
        x: Tensor,
        segments: Segments,
        memory: Tensor,
        memory_segments: Segments,
        weights: list[Tensor] | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Cross-attention: each token of (N, D) over the memory (M, D) of its own source.

        A bias (B, H, T, S) is added to the scaled scores.
        """
        query = self.query(x).unflatten(-1, (self.num_heads, self.d_k))  # (N, H, K)
        key, value = self._keys_and_values(memory)
        term = None if bias is None else lambda *_: bias
        return self._attend(query, key, value, segments, memory_segments, False, term, weights)

    def step(self, x: Tensor, cache: KVCache, prompt: Memory | None = None, positions: Tensor | None = None) -> Tensor:
        """Causal self-attention of one new token a row: (R, D) -> (R, D); its key and value join the cache.

        Args:
            prompt: what stands before the first token of the cache, for each source, as `remember_prompt` gives it.
            positions: (R,) where the new tokens stand; after the tokens of the cache, if not given.
        """
        if positions is None:
            positions = torch.full((x.shape[0],), cache.length, device=x.device)
        query, key, value = self._project(x, positions, None)
        keys, values = cache.append(key, value)
        query = query.unsqueeze(2)  # (R, H, 1, K)
        before = 0 if prompt is None else prompt.keys.shape[2]
        bias = self.positions.bias if self.positions else None
        term = None if bias is None else bias(query, before + cache.length)  # (R, H, 1, S + t)
        if prompt is None:
            heads = padded_attention(query, keys, values, term)  # (R, H, 1, V)
        else:
            heads = prompted_attention(query, keys, values, prompt, term)  # (R, H, 1, V)
        return self.output(heads.flatten(1))  # (R, D)

    def remember_prompt(self, x: Tensor, segments: Segments) -> Memory:
        """The keys and values of the start of a sequence, to be gone on from by `step`: (N, D) -> Memory.

        Each prompt stands at the end of its row, so that whatever follows stands at the right distance.
        """
        _, key, value = self._project(x, segments.positions, None)
        keys, values = (_pad_before(part, segments).transpose(1, 2).contiguous() for part in (key, value))
        bias: Tensor | None = None
        if not segments.equal:
            empty = ~segments.mask.flip(1)  # (B, S)
            bias = torch.zeros(empty.shape, device=x.device).masked_fill(empty, float("-inf"))[:, None, None]
        return Memory(keys, values, bias)

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
