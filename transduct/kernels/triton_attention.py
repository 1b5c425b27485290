"""Attention over flat batches of short sequences in Triton: several sequences share a tile.

Every query sees one contiguous run of keys, so every key is seen by one contiguous run of queries.
These runs are the only masks of the kernel; they express segments, causality and cross-attention
alike. A tile of queries passes over the tiles of keys from the first that any of its queries sees
to the last. The softmax is computed online, and its log-sum-exp kept for the backward pass (Dao et
al. 2022). That runs one kernel over the queries for their gradients and one over the keys for
theirs, so that every number has one writer and the result is deterministic.

Let N queries have H heads and M keys G heads, each of which serves H / G consecutive query heads; K
and V are the widths of a key and of a value.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from transduct.kernels.triton import Pair, compared, waves
from transduct.segments import Segments

TILE = 64  # queries, and keys, per tile: two or three sentences of news text
WARPS = 4
# pipeline stages of the backward kernels: a sentence spans one or two tiles; a third spills (sm_90)
STAGES = 2
# arguments for whose values Triton must not compile the kernel anew
SIZES = ["count", "keys", "heads", "groups"]
LOG2_E = 1.4426950408889634
TRIAL = [3, TILE + 6, 1]  # sequence lengths of the trial


def short_attention(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, seen_by: Tensor
) -> Tensor:
    """Attention of each query over the keys it sees; zeros for a query that sees none.

    Args:
        query: (N, H, K), float32, bfloat16 or float16; K and V are powers of two, at least 16.
        key: (M, G, K).
        value: (M, G, V).
        seen: (2, N) int32, the run of keys that each query sees: its begin, and its end
            (exclusive).
        seen_by: (2, M) int32, the run of queries that see each key.

    Returns:
        (N, H, V).
    """
    output, _ = _attend(query, key.to(query.dtype), value.to(query.dtype), seen, seen_by)
    return output


def trial(
    device: torch.device, dtype: torch.dtype, d_k: int, d_v: int, trained: bool
) -> Iterator[Pair]:
    """The output and, if `trained`, the gradients, and PyTorch's, for two heads that share their
    keys. Each kernel takes seconds to compile, and search does not need those for gradients."""
    layout, count = Segments.of(TRIAL, device), sum(TRIAL)
    # (N,), (N, 1), (N, 1)
    numbers, (first, last) = torch.arange(count, device=device), layout.past[..., None]
    visible = (numbers >= first) & (numbers < last)  # (N, N)

    def formula(*given: Tensor) -> Tensor:  # (N, 2, K), (N, 1, K), (N, 1, V) -> (N, 2, V)
        q, k, v = (x.transpose(0, 1) for x in given)
        return scaled_dot_product_attention(q, k, v, visible, enable_gqa=True).transpose(0, 1)

    shapes = (count, 2, d_k), (count, 1, d_k), (count, 1, d_v), (count, 2, d_v)
    *given, pull = (waves(device, dtype, *shape) for shape in shapes)
    return compared(
        lambda q, k, v: short_attention(q, k, v, layout.past, layout.future),
        formula,
        given,
        pull if trained else None,
        1e-4 if dtype == torch.float32 else 5e-2,
    )


def tile_size(query: Tensor, value: Tensor) -> int:
    """Rows per tile, few enough for the backward pass to fit into the shared memory of every GPU
    since 2020."""
    widest = max(query.shape[2], value.shape[2]) * query.element_size()  # bytes of a row
    if widest <= 128 and query.element_size() < 4:  # float32 would need too many registers
        return TILE
    return TILE // 2 if widest <= 256 else TILE // 4


@torch.library.custom_op("transduct::short_attention", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, seen_by: Tensor
) -> tuple[Tensor, Tensor]:
    """The output (N, H, V), and the base-2 log-sum-exp of each query's scores (H, N)."""
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    (count, heads, d_k), d_v = query.shape, value.shape[2]
    output = query.new_empty(count, heads, d_v)
    mass = query.new_empty(heads, count, dtype=torch.float32)
    tile = tile_size(query, value)
    if count:
        with torch.cuda.device_of(query):  # Triton launches on the current device
            _forward_kernel[(triton.cdiv(count, tile), heads)](
                query,
                key,
                value,
                seen,
                output,
                mass,
                count,
                len(key),
                heads,
                key.shape[1],
                d_k**-0.5 * LOG2_E,
                K=d_k,
                V=d_v,
                QUERIES=tile,
                KEYS=tile,
                num_warps=WARPS,
            )
    return output, mass


@_attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, seen_by: Tensor
) -> tuple[Tensor, Tensor]:
    count, heads, _ = query.shape
    output = query.new_empty(count, heads, value.shape[2])
    return output, query.new_empty(heads, count, dtype=torch.float32)


@torch.library.custom_op("transduct::short_attention_backward", mutates_args=())
def _gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    mass: Tensor,
    seen: Tensor,
    seen_by: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    grad, query, key, value = (x.contiguous() for x in (grad, query, key, value))
    (count, heads, d_k), (keys, groups, d_v) = query.shape, value.shape
    grad_query, grad_key, grad_value = (torch.empty_like(x) for x in (query, key, value))
    # (H, N), sum of grad * output: subtracted in the gradient of the softmax
    inner = torch.empty_like(mass)
    sizes = (count, keys, heads, groups, d_k**-0.5, d_k**-0.5 * LOG2_E)
    tile = tile_size(query, value)
    tiles = {
        "K": d_k,
        "V": d_v,
        "QUERIES": tile,
        "KEYS": tile,
        "num_warps": WARPS,
        "num_stages": STAGES,
    }
    with torch.cuda.device_of(query):
        if count:
            _query_kernel[(triton.cdiv(count, tile), heads)](
                query, key, value, seen, output, mass, grad, inner, grad_query, *sizes, **tiles
            )
        if keys:
            _key_kernel[(triton.cdiv(keys, tile), groups)](
                query, key, value, seen_by, mass, grad, inner, grad_key, grad_value, *sizes, **tiles
            )
    return grad_query, grad_key, grad_value


@_gradients.register_fake
def _(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    mass: Tensor,
    seen: Tensor,
    seen_by: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _remember(ctx, inputs, output):
    query, key, value, seen, seen_by = inputs
    ctx.save_for_backward(query, key, value, *output, seen, seen_by)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad, _):
    return *_gradients(grad, *ctx.saved_tensors), None, None


_attend.register_autograd(_backward, setup_context=_remember)


@triton.jit
def _tile(pointer, rows, inside, heads, head, WIDTH: tl.constexpr):
    """Load rows of one head of a tensor (rows, heads, WIDTH), zeros outside of it."""
    columns = tl.arange(0, WIDTH)
    places = (rows.to(tl.int64) * heads + head)[:, None] * WIDTH + columns[None, :]
    return tl.load(pointer + places, mask=inside[:, None], other=0.0)


@triton.jit
def _write(pointer, tile, rows, inside, heads, head, WIDTH: tl.constexpr):
    columns = tl.arange(0, WIDTH)
    places = (rows.to(tl.int64) * heads + head)[:, None] * WIDTH + columns[None, :]
    tl.store(pointer + places, tile.to(pointer.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _runs(pointer, rows, inside, count, others):
    """Where the run of each row begins and ends, and the range that covers all of them."""
    first = tl.load(pointer + rows, mask=inside, other=0)
    last = tl.load(pointer + count + rows, mask=inside, other=0)
    begin = tl.min(tl.where(last > first, first, others), 0)
    return first, last, begin, tl.max(tl.where(last > first, last, 0), 0)


@triton.jit(do_not_specialize=SIZES)
def _forward_kernel(
    query, key, value, seen, output, mass, count, keys, heads, groups, scale,
    K: tl.constexpr, V: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head."""
    head = tl.program_id(1)
    group = head // (heads // groups)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    inside = rows < count
    first, last, begin, end = _runs(seen, rows, inside, count, keys)
    q = _tile(query, rows, inside, heads, head, K)
    highest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, V], tl.float32)
    for start in range(begin, end, KEYS):
        columns = start + tl.arange(0, KEYS)
        k = _tile(key, columns, columns < keys, groups, group, K)
        visible = (columns[None, :] >= first[:, None]) & (columns[None, :] < last[:, None])
        scores = tl.where(
            visible, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf")
        )
        higher = tl.maximum(highest, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # no visible key so far
        weights = tl.exp2(scores - level[:, None])
        shrink = tl.exp2(highest - level)
        v = _tile(value, columns, columns < keys, groups, group, V)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        highest = higher
    sees = total > 0.0
    total = tl.where(sees, total, 1.0)
    _write(output, mixed / total[:, None], rows, inside, heads, head, V)
    tl.store(mass + head * count + rows, tl.where(sees, highest, 0.0) + tl.log2(total), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def _query_kernel(
    query,
    key,
    value,
    seen,
    output,
    mass,
    grad,
    inner,
    grad_query,
    count,
    keys,
    heads,
    groups,
    scale,
    scale2,
    K: tl.constexpr,
    V: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """The gradients of one tile of queries of one head, and `inner`."""
    head = tl.program_id(1)
    group = head // (heads // groups)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    inside = rows < count
    first, last, begin, end = _runs(seen, rows, inside, count, keys)
    q = _tile(query, rows, inside, heads, head, K)
    out = _tile(output, rows, inside, heads, head, V)
    g = _tile(grad, rows, inside, heads, head, V)
    off = tl.sum(out.to(tl.float32) * g.to(tl.float32), 1)
    tl.store(inner + head * count + rows, off, mask=inside)
    logarithm = tl.load(mass + head * count + rows, mask=inside, other=0.0)
    of_query = tl.zeros([QUERIES, K], tl.float32)
    for start in range(begin, end, KEYS):
        columns = start + tl.arange(0, KEYS)
        k = _tile(key, columns, columns < keys, groups, group, K)
        v = _tile(value, columns, columns < keys, groups, group, V)
        visible = (columns[None, :] >= first[:, None]) & (columns[None, :] < last[:, None])
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale2 - logarithm[:, None]
        weights = tl.exp2(tl.where(visible, scores, float("-inf")))
        of_weights = tl.dot(g, tl.trans(v), input_precision="ieee")
        of_scores = weights * (of_weights - off[:, None])
        of_query += tl.dot(of_scores.to(k.dtype), k, input_precision="ieee")
    _write(grad_query, of_query * scale, rows, inside, heads, head, K)


@triton.jit(do_not_specialize=SIZES)
def _key_kernel(
    query,
    key,
    value,
    seen_by,
    mass,
    grad,
    inner,
    grad_key,
    grad_value,
    count,
    keys,
    heads,
    groups,
    scale,
    scale2,
    K: tl.constexpr,
    V: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """The gradients of one tile of keys and values of one key head, summed over the query heads
    that it serves."""
    group = tl.program_id(1)
    columns = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    within = columns < keys
    first, last, begin, end = _runs(seen_by, columns, within, keys, count)
    k = _tile(key, columns, within, groups, group, K)
    v = _tile(value, columns, within, groups, group, V)
    of_key = tl.zeros([KEYS, K], tl.float32)
    of_value = tl.zeros([KEYS, V], tl.float32)
    for head in range(group * (heads // groups), (group + 1) * (heads // groups)):
        for start in range(begin, end, QUERIES):
            rows = start + tl.arange(0, QUERIES)
            inside = rows < count
            q = _tile(query, rows, inside, heads, head, K)
            g = _tile(grad, rows, inside, heads, head, V)
            logarithm = tl.load(mass + head * count + rows, mask=inside, other=0.0)
            off = tl.load(inner + head * count + rows, mask=inside, other=0.0)
            visible = (rows[None, :] >= first[:, None]) & (rows[None, :] < last[:, None])
            scores = tl.dot(k, tl.trans(q), input_precision="ieee") * scale2 - logarithm[None, :]
            weights = tl.exp2(tl.where(visible, scores, float("-inf")))  # (KEYS, QUERIES)
            of_value += tl.dot(weights.to(g.dtype), g, input_precision="ieee")
            of_weights = tl.dot(v, tl.trans(g), input_precision="ieee")
            of_scores = weights * (of_weights - off[None, :])
            of_key += tl.dot(of_scores.to(q.dtype), q, input_precision="ieee")
    _write(grad_key, of_key * scale, columns, within, groups, group, K)
    _write(grad_value, of_value, columns, within, groups, group, V)
