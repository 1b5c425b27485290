"""Multi-head attention over segments, for whole sequences and for one token at a time.

Let R be the rows of a running search, `beam` for each of B sources.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from transduct.blocks.caches import KVCache, Lineage, Memory
from transduct.blocks.embeddings import PositionVectors, VectorScheme
from transduct.blocks.linear import Linear
from transduct.blocks.plain import plain
from transduct.functional import positions as schemes
from transduct.functional.attention import (
    Bias,
    hiding,
    padded_attention,
    padding_bias,
    segment_attention,
    segment_weights,
)
from transduct.kernels import cpu
from transduct.segments import Segments, pad

AttentionScheme = Literal["rotary", "alibi", "relative"]
CLIP = (
    16  # farther distances share a vector; Shaw et al. 2018 found no difference between 2 and 256
)


def split_scheme(
    positions: Literal["none"] | VectorScheme | AttentionScheme,
) -> tuple[VectorScheme | None, AttentionScheme | None]:
    """Split a position scheme into that of the embedding and that inside attention; at least one is
    None."""
    match positions:
        case "none":
            return None, None
        case "rotary" | "alibi" | "relative":
            return None, positions
        case _:
            return positions, None


class AttentionPositions(nn.Module):
    """Positions inside self-attention: they rotate or are added to query, key and value, or bias
    the scores."""

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
            raise ValueError(
                f"rotary positions turn pairs of numbers: d_k must be even, found {d_k}"
            )
        self.table = nn.Parameter(torch.zeros(2 * CLIP + 1, d_k)) if scheme == "relative" else None
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
            return lambda query, keys: schemes.relative(query, table.to(query.dtype), keys)
        return None


def attention_over_past(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    prompt: Memory | None = None,
    bias: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """Attention of each row over the prompt of its source, if there is one, and over its own past,
    in one softmax.

    Args:
        query: (R, H, 1, K), with the R / B rows of a source side by side.
        keys, values: (B, G, n, K) and (B, G, n, V), of the n = t * beam tokens that the rows of a
            source have written.
        bias: added to the scaled scores; broadcasts to (R, H, 1, S + n).
        seen: added to the scores of the past, to hide tokens of other rows; broadcasts to (R, H, 1,
            n).

    Returns:
        (R, H, 1, V).
    """
    query = query * query.shape[-1] ** -0.5
    keys, values = keys.to(query.dtype), values.to(query.dtype)
    scores = _per_source(query, keys.transpose(-2, -1))  # (R, H, 1, n)
    if seen is not None:
        scores = scores.add_(seen)
    if prompt is not None:
        prompt_scores = _per_source(query, prompt.keys.transpose(-2, -1))  # (R, H, 1, S)
        if prompt.bias is not None:
            beam = len(query) // len(prompt.bias)
            prompt_scores = prompt_scores + prompt.bias.to(scores.dtype).repeat_interleave(
                beam, 0
            )  # (R, H, 1, S)
        scores = torch.cat((prompt_scores, scores), -1)  # (R, H, 1, S + n)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    weights = scores.softmax(-1)
    if prompt is None:
        return _per_source(weights, values)
    longest = prompt.keys.shape[2]
    return _per_source(weights[..., :longest], prompt.values) + _per_source(
        weights[..., longest:], values
    )


def _per_source(rows: Tensor, matrices: Tensor) -> Tensor:
    """Each head of each row times the matrix of its source and group: (R, H, 1, m), (B, G, m, n) ->
    (R, H, 1, n)."""
    (sources, groups, m, n), heads = matrices.shape, rows.shape[1]
    shape = (sources, len(rows) // sources, groups, heads // groups)
    grouped = rows.view(*shape, m).transpose(1, 2)  # (B, G, beam, H / G, m)
    product = (grouped.flatten(2, 3) @ matrices).view(
        *grouped.shape[:4], n
    )  # (B, G, beam, H / G, n)
    return product.transpose(1, 2).reshape(len(rows), heads, 1, n)  # (R, H, 1, n)


def _pad_before(flat: Tensor, segments: Segments) -> Tensor:
    """`pad` with the zeros before each sequence: (N, ...) -> (B, L, ...)."""
    padding = segments.longest - segments.lengths
    slots = segments.slots + padding.index_select(0, segments.sequence)  # (N,)
    empty = flat.new_zeros(len(segments) * segments.longest, *flat.shape[1:])
    return empty.index_copy(0, slots, flat).view(
        len(segments), segments.longest, *flat.shape[1:]
    )  # (B, L, ...)


class UnscaledQuery(Linear):
    """The queries of attention without 1 / sqrt(d_k): times the sqrt(d_k) that kernels divide by.

    As it is no plain `Linear`, faster layers leave the attention around it as it is.
    """

    def __init__(self, d_model: int, num_heads: int, d_k: int) -> None:
        super().__init__(d_model, num_heads * d_k)
        self.factor = d_k**0.5

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, H * K)."""
        return super().forward(x) * self.factor


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
        scale: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.d_k = d_k or d_model // num_heads
        self.d_v = d_v or self.d_k
        self.dropout, self.positions = dropout, positions
        self.query: Any = (
            Linear(d_model, num_heads * self.d_k)
            if scale
            else UnscaledQuery(d_model, num_heads, self.d_k)
        )
        self.key: Any = Linear(d_model, self.num_kv_heads * self.d_k)
        self.value: Any = Linear(d_model, self.num_kv_heads * self.d_v)
        self.output: nn.Module = Linear(num_heads * self.d_v, d_model)
        self.joint: nn.Module | None = None
        self.cache_dtype = torch.float32  # of cached keys and values, where the kernels read them

    def join(self) -> None:
        """Fuse the projections of query, key and value into one, for inference."""
        parts = (self.query, self.key, self.value)
        with torch.device("meta"):
            joint = Linear(self.query.in_features, sum(part.out_features for part in parts))
        if not self.query.weight.is_meta:  # else the weights are loaded later
            joint.weight, joint.bias = (
                nn.Parameter(
                    torch.cat([getattr(part, name).detach() for part in parts]), requires_grad=False
                )
                for name in ("weight", "bias")
            )
        self.joint = joint
        self.query = self.key = self.value = None

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
        lengths = segments.lengths[segments.sequence] if self.positions and not causal else None
        query, key, value = self.project(x, segments.positions, lengths)
        position_bias = self.positions.bias if self.positions else None
        term = position_bias if bias is None else lambda *_: bias
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
        """Cross-attention of each token of (N, D) over the memory (M, D) of its own source.

        `weights` as in `forward`; `bias` (B, H, T, S) is added to the scaled scores.
        """
        query = self.query(x).unflatten(-1, (self.num_heads, self.d_k))  # (N, H, K)
        key, value = self._keys_and_values(memory)
        term = None if bias is None else lambda *_: bias
        return self._attend(query, key, value, segments, memory_segments, False, term, weights)

    def step(
        self,
        x: Tensor,
        cache: KVCache,
        prompt: Memory | None = None,
        positions: Tensor | None = None,
        lineage: Lineage | None = None,
    ) -> Tensor:
        """Causal self-attention of one new token per row, whose key and value are added to the
        cache: (R, D) -> (R, D).

        Args:
            prompt: keys and values before those of the cache, as returned by `remember_prompt`.
            positions: (R,) of the new tokens; by default they follow the tokens of the cache.
            lineage: whose tokens each row sees, including the new one; needed if a source has
                several rows.
        """
        if positions is None and self.positions is not None:
            positions = cache.positions(len(x), x.device)
        query, key, value = self.project(x, positions, None)
        cache.append(*self._cached(key, value))
        lineage = lineage or Lineage()
        bias = self.positions.bias if self.positions else None
        if prompt is None and bias is None and cache.clock is not None and lineage.seen is not None:
            seen = lineage.seen.view(
                -1, 1, cache.beam, lineage.seen.shape[3]
            )  # (B, 1, beam, t * beam)
            return self._read(query, *cache.held(), seen)
        if prompt is None and bias is None and cpu.usable(query, caches=cache.buffers):
            heads = cpu.rows_attention(
                query, *cache.buffers, cache.length, slots=lineage.slots
            )  # (R, H, V)
            return self.output(heads.flatten(1))  # (R, D)
        query = query.unsqueeze(2)  # (R, H, 1, K)
        before = 0 if prompt is None else prompt.keys.shape[2]
        term = None if bias is None else bias(query, before + cache.times)  # (R, H, 1, S + t)
        if term is not None and cache.clock is not None:
            term = cache.clock.turned(term)
        if term is not None and cache.beam > 1:  # the same for the tokens of all rows of a source
            own = term[..., before:].repeat_interleave(cache.beam, -1)  # (R, H, 1, t * beam)
            term = torch.cat((term[..., :before], own), -1)  # (R, H, 1, S + t * beam)
        heads = attention_over_past(query, *cache.held(), prompt, term, lineage.seen)
        return self.output(heads.flatten(1))  # (R, D)

    def remember_prompt(self, x: Tensor, segments: Segments) -> Memory:
        """The keys and values of prompts that `step` continues: (N, D) -> Memory.

        Prompts are padded on the left, so that their distances to the tokens after them are right.
        """
        _, key, value = self.project(x, segments.positions, None)
        keys, values = (
            _pad_before(part, segments).transpose(1, 2).contiguous() for part in (key, value)
        )
        bias = (
            None if segments.equal else hiding(~segments.mask.flip(1))[:, None, None]
        )  # (B, 1, 1, S)
        return Memory(keys, values, bias)

    def remember(self, memory: Tensor, segments: Segments) -> Memory:
        """The keys and values of the sources, computed once for a whole search: (M, D) ->
        Memory."""
        packed = getattr(self.key, "packed", None), getattr(self.value, "packed", None)
        known = plain(self, MultiHeadAttention) and all(
            plain(part, type(part)) for part in (self.key, self.value)
        )
        if known and isinstance(packed[0], cpu.Packed) and isinstance(packed[1], cpu.Packed):
            layout = segments.offsets, segments.longest, self.num_kv_heads, self.cache_dtype
            keys, values = cpu.remember(packed[0], packed[1], memory, *layout)
        else:
            key, value = self._cached(*self._keys_and_values(memory))
            keys, values = (
                pad(part, segments).transpose(1, 2).contiguous() for part in (key, value)
            )  # (B, G, S, ..)
        return Memory(keys, values, padding_bias(segments), segments.lengths)

    def recall(self, x: Tensor, memory: Memory) -> Tensor:
        """Cross-attention of one new token per row over the memory of its source: (R, D) -> (R,
        D)."""
        query, whole = self.query(x), memory.bias is None or memory.lengths is not None
        if whole and cpu.usable(query, caches=(memory.keys, memory.values)):
            query, times = (
                query.view(len(x), self.num_heads, self.d_k),
                memory.keys.shape[2],
            )  # (R, H, K)
            keys, values = memory.keys.unsqueeze(3), memory.values.unsqueeze(3)  # (B, G, S, 1, K)
            return self.output(
                cpu.rows_attention(query, keys, values, times, memory.lengths).flatten(1)
            )  # (R, D)
        return self._read(query, memory.keys, memory.values, memory.bias)

    def project(
        self, x: Tensor, positions: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project (N, D) to query (N, H, K), key (N, G, K) and value (N, G, V), with positions
        applied.

        Args:
            lengths: (N,) the length of each token's sequence, if known.
        """
        if self.joint is not None:
            widths = [
                self.num_heads * self.d_k,
                self.num_kv_heads * self.d_k,
                self.num_kv_heads * self.d_v,
            ]
            parts = self.joint(x).split(widths, -1)  # (N, H * K), (N, G * K), (N, G * V)
            heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
            query, key, value = (
                part.unflatten(-1, (h, -1)) for part, h in zip(parts, heads, strict=True)
            )
        else:
            query = self.query(x).unflatten(-1, (self.num_heads, self.d_k))  # (N, H, K)
            key, value = self._keys_and_values(x)
        if self.positions is None or positions is None:
            return query, key, value
        if lengths is None:  # a decoder does not know its final length
            max_length = self.positions.for_keys.max_length if self.positions.for_keys else 1
            lengths = torch.full_like(positions, max_length)
        return self.positions.apply_to(query, key, value, positions, lengths)

    def _read(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Attention of all rows of a source over the same keys: (R, H * K) -> (R, D)."""
        rows = query.shape[0]
        keys, values = keys.to(query.dtype), values.to(query.dtype)
        bias = None if bias is None else bias.to(query.dtype)
        query = query.reshape(keys.shape[0], -1, self.num_heads, self.d_k).transpose(
            1, 2
        )  # (B, H, beam, K)
        heads = padded_attention(query, keys, values, bias)  # (B, H, beam, V)
        return self.output(heads.transpose(1, 2).reshape(rows, -1))  # (R, D)

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = self.key(x).unflatten(-1, (self.num_kv_heads, self.d_k))  # (M, G, K)
        return key, self.value(x).unflatten(-1, (self.num_kv_heads, self.d_v))  # (M, G, V)

    def _cached(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Round as the kernels do what they will read; others would convert it back in each
        step."""
        if self.cache_dtype != torch.float16 or cpu.library() is None or not key.is_cpu:
            return key, value
        largest = torch.finfo(torch.float16).max
        return key.clamp(-largest, largest).half(), value.clamp(-largest, largest).half()

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


def self_attention(
    d_model: int,
    num_heads: int,
    positions: Literal["none"] | VectorScheme | AttentionScheme,
    max_length: int,
    scale: bool = True,
) -> MultiHeadAttention:
    """Self-attention whose heads share d_model evenly, with the positions inside it if they are of
    that kind."""
    _, scheme = split_scheme(positions)
    d_k = d_model // num_heads
    inside = scheme and AttentionPositions(scheme, max_length, num_heads, d_k, d_k)
    return MultiHeadAttention(d_model, num_heads, positions=inside, scale=scale)
