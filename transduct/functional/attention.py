"""Attention: the formula, and attention over segments by the fastest kernel of the device.

Let T and S be the numbers of queries and keys of a sequence, H the query heads, G the key heads, K
and V the widths of a key and of a value. Vaswani et al. 2017, section 3.2.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from transduct.functional.dropout import dropout as drop
from transduct.functional.fast import (
    cpu,
    cpu_training,
    short_attention,
    takes,
)
from transduct.segments import Segments, flatten, pad

# A bias on the attention scores, such as ALiBi. It is called with the padded queries (B, H, T, K)
# and the number of keys S, and returns a tensor that broadcasts to (B, H, T, S).
Bias = Callable[[Tensor, int], Tensor]

# On a CPU, two matrix products and a softmax beat PyTorch's fused kernel until the scores of one
# head, T * S, outgrow the cache (benchmarks/results/cpu_202611.md).
LARGEST_EXPLICIT = 128 * 128
# Our training kernel, which keeps the attention weights, is faster than both up to this many
# unmasked scores per head,
MOST_KEPT, LONGEST_KEPT = 384 * 384, 2048  # if neither T nor S exceeds the second number.

# On a GPU, our kernel for short sequences serves up to this many keys; with longer sequences
# padding wastes little.
LONGEST_SHORT = 1024


def attention_weights(
    query: Tensor, key: Tensor, scale: float | None = None, bias: Tensor | None = None
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)), equation 1 without the values.

    Args:
        query: (..., T, K).
        key: (..., S, K).
        scale: factor of the scores; 1 / sqrt(K) by default, 1.0 for the unscaled form.
        bias: added to the scaled scores, minus infinity for masked keys; broadcasts to (..., T, S).

    Returns:
        (..., T, S): rows that sum to one.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * scale) @ key.transpose(-2, -1)  # (..., T, S)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    return scores.softmax(-1)  # (..., T, S)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V, equation 1: (..., T, K), (..., S, K), (..., S, V) -> (..., T,
    V)."""
    return attention_weights(query, key, scale, bias) @ value  # (..., T, V)


def attention_without_projections(x: Tensor) -> Tensor:
    """Self-attention without parameters, y_i = sum_j a_ij x_j with a = softmax(x x^T): (..., T, D)
    -> (..., T, D)."""
    return attention(x, x, x, scale=1.0)


def dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """q^T k (Luong et al. 2015, section 3.1), unscaled: (..., T, K), (..., S, K) -> (..., T, S)."""
    return query @ key.transpose(-2, -1)  # (..., T, S)


def general_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """q^T W k (Luong et al. 2015, section 3.1): (..., T, D), (..., S, K), W (D, K) -> (..., T,
    S)."""
    return dot_scores(query @ weight, key)


def concat_scores(
    query: Tensor, key: Tensor, weight_query: Tensor, weight_key: Tensor, vector: Tensor
) -> Tensor:
    """v^T tanh(W [q; k]) (Luong et al. 2015, section 3.1), with W given as its two halves.

    The score of Bahdanau et al. 2015 (appendix A.1.2), v^T tanh(W s + U h), has the same form;
    there the query is the decoder's state before the token.

    Args:
        query: (..., T, D).
        key: (..., S, K).
        weight_query, weight_key: (A, D) and (A, K).
        vector: (A,).

    Returns:
        (..., T, S).
    """
    return additive_scores(query @ weight_query.T, key @ weight_key.T, vector)


def additive_scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """v^T tanh(q + k), which is `concat_scores` of projected queries and keys: (..., T, A), (...,
    S, A), (A,) -> (..., T, S). Keys that are used at every step need to be projected only once."""
    return (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh() @ vector  # (..., T, S)


def hiding(hidden: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an additive mask: minus infinity where `hidden` is True, zero elsewhere."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(
        hidden, float("-inf")
    )


def causal_bias(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """The causal mask (T, S): minus infinity above the diagonal. The last query is aligned with the
    last key, as when a cache holds the keys before it."""
    return hiding(
        torch.ones(queries, keys, dtype=torch.bool, device=device).triu(keys - queries + 1)
    )


def padding_bias(segments: Segments) -> Tensor | None:
    """The padding mask (B, 1, 1, L): minus infinity at padding; None if there is no padding.

    The first place of an empty sequence stays visible: its value is zero, so attention over an
    empty sequence is zero.
    """
    if segments.equal:
        return None
    visible = segments.mask.clone()
    visible[:, 0] = True
    return hiding(~visible)[:, None, None]


def segment_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Segments,
    keys: Segments,
    causal: bool = False,
    bias: Bias | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of each sequence's queries over its own keys.

    Args:
        query: (N, H, K), laid out by `queries`.
        key: (M, G, K), laid out by `keys`; each key head serves H / G consecutive query heads
            (Ainslie et al. 2023).
        value: (M, G, V).
        causal: masks the keys after each query; needs queries and keys of the same lengths.
        bias: added to the scores of each head.
        dropout: rate of dropout on the attention weights; above zero the plain formula is used.

    Returns:
        (N, H, V); zeros for a sequence without keys.
    """
    # A sum of zero times the query keeps the gradient defined where there is nothing to attend to.
    if keys.longest == 0:
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2]) + 0.0 * query.sum()
    # From the most special to the most general: the kernels know no bias and no dropout.
    if bias is None and dropout == 0.0 and _fits(query, value, keys):
        return _short_attention(query, key, value, queries, keys, causal)
    longest = queries.longest, keys.longest
    few = longest[0] * longest[1] // (1 + causal) <= MOST_KEPT and max(longest) <= LONGEST_KEPT
    if few and bias is None and dropout == 0.0 and cpu.trainable(query, key, value):
        return cpu_training.attention(query, key, value, queries, keys, causal)
    padded = pad(query, queries).transpose(1, 2)  # (B, H, T, K)
    # then `padded_attention` masks the future, without a mask made here
    standard = causal and bias is None
    term = None if standard else _scores_bias(padded, keys, causal, bias)
    dense_keys, dense_values = pad(key, keys).transpose(1, 2), pad(value, keys).transpose(1, 2)
    # (B, H, T, V)
    output = padded_attention(padded, dense_keys, dense_values, term, dropout, standard)
    return flatten(output.transpose(1, 2), queries)  # (N, H, V)


def _fits(query: Tensor, value: Tensor, keys: Segments) -> bool:
    """Whether the kernel for short sequences supports this device, dtype, head widths and
    lengths."""
    widths = query.shape[2], value.shape[2]
    return (
        query.device.type == "cuda"
        and keys.longest <= LONGEST_SHORT
        and all(16 <= width <= 256 and width & (width - 1) == 0 for width in widths)
        and takes("triton_attention", query, *widths, torch.is_grad_enabled())
    )


def _short_attention(
    query: Tensor, key: Tensor, value: Tensor, queries: Segments, keys: Segments, causal: bool
) -> Tensor:
    """`segment_attention` by the kernel for short sequences, whose masks are runs of keys and of
    queries."""
    seen = queries.past if causal else keys.runs_of(queries)  # (2, N)
    seen_by = keys.future if causal else queries.runs_of(keys)  # (2, M)
    return short_attention(query, key, value, seen, seen_by)


def segment_weights(
    query: Tensor,
    key: Tensor,
    queries: Segments,
    keys: Segments,
    causal: bool = False,
    bias: Bias | None = None,
) -> Tensor:
    """The attention weights of `segment_attention`, computed by the plain formula and padded: (B,
    H, T, S)."""
    padded = pad(query, queries).transpose(1, 2)  # (B, H, T, K)
    # (B, H, S, K)
    dense = pad(key, keys).transpose(1, 2).repeat_interleave(query.shape[1] // key.shape[1], 1)
    return attention_weights(padded, dense, None, _scores_bias(padded, keys, causal, bias))


def _scores_bias(query: Tensor, keys: Segments, causal: bool, bias: Bias | None) -> Tensor | None:
    """The bias on the scores of padded queries (B, H, T, K): the causal or padding mask, plus
    `bias`."""
    mask = causal_bias(query.shape[2], keys.longest, query.device) if causal else padding_bias(keys)
    if bias is None:
        return mask
    term = bias(query, keys.longest)  # (B, H, T, S)
    return term if mask is None else term + mask


def padded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    """Attention over dense arrays by the fastest kernel: (B, H, T, K), (B, G, S, K), (B, G, S, V)
    -> (B, H, T, V).

    With `causal`, T must equal S and `bias` must be None.
    """
    if key.shape[1] != query.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    explicit = query.device.type == "cpu" and query.shape[2] * key.shape[2] <= LARGEST_EXPLICIT
    if causal and (explicit or dropout > 0.0):
        bias = causal_bias(query.shape[2], key.shape[2], query.device)
    if dropout > 0.0:
        return drop(attention_weights(query, key, None, bias), dropout) @ value  # (B, H, T, V)
    if explicit:
        return attention(query, key, value, None, bias)
    if bias is not None:
        bias = bias.to(query.dtype).expand(*query.shape[:3], key.shape[2])  # (B, H, T, S)
    return F.scaled_dot_product_attention(query, key, value, bias, is_causal=causal)


def newest_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    times: int,
    writers: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Attention of the newest token of each row over its own past, by the fastest kernel: (R, H, K)
    -> (R, H, V).

    Args:
        keys, values: (B, G, capacity, beam, K) and (B, G, capacity, beam, V): at each time those of
            all rows of a source.
        times: t, the number of times that are filled.
        writers: (R, t) whose key each row sees at each time, by its number within the source;
            needed if a source has several rows.
        mask: the same as numbers to add to the scores, (R, 1, 1, t * beam).
    """
    if cpu.supports(query, caches=(keys, values)):
        return cpu.rows_attention(query, keys, values, times, slots=writers)
    keys, values = (x[:, :, :times].flatten(2, 3) for x in (keys, values))  # (B, G, t * beam, ..)
    return attention_over_past(query, keys, values, mask=mask)


def attention_over_past(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    prompt: tuple[Tensor, Tensor, Tensor | None] | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Attention of each row over the prompt of its source, if there is one, and over its own past,
    in one softmax.

    Args:
        query: (R, H, K), with the R / B rows of a source side by side.
        keys, values: (B, G, n, K) and (B, G, n, V), of the n = t * beam tokens that the rows of a
            source have written.
        prompt: its keys (B, G, S, K), values (B, G, S, V) and, if it is padded, mask (B, 1, 1, S).
        bias: added to the scaled scores; broadcasts to (R, H, 1, S + n).
        mask: added to the scores of the past, to hide tokens of other rows; broadcasts to (R, H, 1,
            n).

    Returns:
        (R, H, V).
    """
    query = query.unsqueeze(2) * query.shape[-1] ** -0.5  # (R, H, 1, K)
    keys, values = keys.to(query.dtype), values.to(query.dtype)
    scores = _per_source(query, keys.transpose(-2, -1))  # (R, H, 1, n)
    if mask is not None:
        scores = scores.add_(mask)
    if prompt is not None:
        prompt_keys, prompt_values, padding = prompt
        prompt_scores = _per_source(query, prompt_keys.transpose(-2, -1))  # (R, H, 1, S)
        if padding is not None:
            beam = len(query) // len(padding)
            padding = padding.to(scores.dtype).repeat_interleave(beam, 0)  # (R, 1, 1, S)
            prompt_scores = prompt_scores + padding
        scores = torch.cat((prompt_scores, scores), -1)  # (R, H, 1, S + n)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    weights = scores.softmax(-1)
    if prompt is None:
        return _per_source(weights, values).squeeze(2)
    longest = prompt_keys.shape[2]
    of_prompt = _per_source(weights[..., :longest], prompt_values)
    return (of_prompt + _per_source(weights[..., longest:], values)).squeeze(2)


def _per_source(rows: Tensor, matrices: Tensor) -> Tensor:
    """Each head of each row times the matrix of its source and group: (R, H, 1, m), (B, G, m, n) ->
    (R, H, 1, n)."""
    (sources, groups, m, n), heads = matrices.shape, rows.shape[1]
    shape = (sources, len(rows) // sources, groups, heads // groups)
    grouped = rows.view(*shape, m).transpose(1, 2)  # (B, G, beam, H / G, m)
    product = grouped.flatten(2, 3) @ matrices  # (B, G, beam * H / G, n)
    product = product.view(*grouped.shape[:4], n)  # (B, G, beam, H / G, n)
    return product.transpose(1, 2).reshape(len(rows), heads, 1, n)  # (R, H, 1, n)


def memory_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Attention of all rows of a source over the same keys, by the fastest kernel: (R, H, K) -> (R,
    H, V).

    Args:
        keys, values: (B, G, S, K) and (B, G, S, V).
        bias: added to the scores; broadcasts to (B, H, beam, S).
        lengths: (B,) the number of keys of each source, if the bias only masks the others.
    """
    rows, heads, width = query.shape
    whole = bias is None or lengths is not None
    if whole and cpu.supports(query, caches=(keys, values)):
        alone = keys.unsqueeze(3), values.unsqueeze(3)  # (B, G, S, 1, ..)
        return cpu.rows_attention(query, *alone, keys.shape[2], lengths)
    keys, values = keys.to(query.dtype), values.to(query.dtype)
    bias = None if bias is None else bias.to(query.dtype)
    query = query.reshape(keys.shape[0], -1, heads, width).transpose(1, 2)  # (B, H, beam, K)
    found = padded_attention(query, keys, values, bias)  # (B, H, beam, V)
    return found.transpose(1, 2).reshape(rows, heads, -1)  # (R, H, V)


def for_cache(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values as a cache of this dtype holds them. Rounded only where our kernels read them:
    other operations would convert them back in each step."""
    if dtype != torch.float16 or cpu.library() is None or not x.is_cpu:
        return x
    largest = torch.finfo(torch.float16).max
    return x.clamp(-largest, largest).half()
