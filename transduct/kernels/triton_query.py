"""Attention of one query a row over cached keys in Triton, for search in captured graphs.

PyTorch's attention reads as many keys as the buffers hold, and a mask to hide the rest. Here each
row reads its own keys to its own length; the rows of a source share those of its memory, which are
read once; and the newest key and value are written on the way. Let B be sources, R = B * beam rows,
H heads and G of them with keys of their own.

A program takes one source and one of its G heads. It holds the products of its `beam * H / G`
queries with a block of keys in registers: at most `HELD` numbers, 32 to a thread.
"""

import math
from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from transduct.kernels.triton import Pair, waves

HELD, WARPS, LONGEST = 4096, 4, 32  # products in a program, its warps, the most keys in a block


def over_memory(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """Attention of all rows of a source over the same keys: (R, H, K) -> (R, H, V).

    Args:
        keys, values: (B, G, S, K) and (B, G, S, V), contiguous.
        lengths: (B,) the number of keys of each source, at least 1.
    """
    beam = len(query) // len(keys)
    return _launched(query, keys, values, lengths, beam, None, None)


def over_past(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    now: Tensor,
    writers: Tensor,
    newest: tuple[Tensor, Tensor],
) -> Tensor:
    """Attention of each row over its own tokens, the newest included, which is written at `now`.

    Args:
        keys, values: (B, G, capacity, beam, K) and (B, G, capacity, beam, V), contiguous.
        now: (1,) the number of tokens before the newest.
        writers: (R, t) int32, which row of the source wrote each of them.
        newest: (R, G, K) and (R, G, V).
    """
    return _launched(query, keys, values, now, keys.shape[3], writers, newest)


def _launched(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    beam: int,
    writers: Tensor | None,
    newest: tuple[Tensor, Tensor] | None,
) -> Tensor:
    (rows, heads, width), groups = query.shape, keys.shape[1]
    depth, queries = values.shape[-1], beam * heads // groups
    query = query.contiguous()
    out = query.new_empty(rows, heads, depth)
    key, value = (query, query) if newest is None else (x.contiguous() for x in newest)
    padded = triton.next_power_of_2(queries)
    widest = triton.next_power_of_2(max(width, depth))
    block = max(1, min(LONGEST, triton.next_power_of_2(HELD // (padded * widest))))
    with torch.cuda.device_of(query):  # Triton launches on the current device
        _kernel[(rows // beam, groups)](
            query,
            keys,
            values,
            out,
            lengths,
            query if writers is None else writers,
            key,
            value,
            math.prod(keys.shape[2:-1]),
            0 if writers is None else writers.stride(0),
            1.0 / math.sqrt(width),
            GROUPS=groups,
            BEAM=beam,
            SHARING=heads // groups,
            QUERIES=padded,
            WIDTH=width,
            WIDTHS=triton.next_power_of_2(width),
            DEPTH=depth,
            DEPTHS=triton.next_power_of_2(depth),
            BLOCK=block,
            PAST=writers is not None,
            num_warps=WARPS,
        )
    return out


def trial(device: torch.device, dtype: torch.dtype) -> Iterator[Pair]:
    """Both kinds of attention, and their formulas."""
    shapes = (6, 4, 8), (2, 2, 5, 8), (2, 2, 4, 3, 8), (6, 2, 8)
    query, memory, past, newest = (waves(device, dtype, *shape) for shape in shapes)
    lengths, now = torch.tensor([5, 2], device=device), torch.tensor([2], device=device)
    writers = (torch.arange(24, device=device, dtype=torch.int32).view(6, 4) * 5) % 3
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    expected = formula(query, memory[:, :, :, None], memory[:, :, :, None], lengths, None)
    yield over_memory(query, memory, memory, lengths), expected, tolerance
    found = over_past(query, past, past.clone(), now, writers, (newest, newest))
    yield past[:, :, 2].transpose(1, 2).reshape(6, 2, 8), newest, 0.0  # it is written
    writers[:, 2] = torch.arange(6, device=device) % 3
    yield found, formula(query, past, past, now.expand(2) + 1, writers), tolerance


def formula(
    query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, writers: Tensor | None
) -> Tensor:
    """What the kernel computes, in float64, once the newest keys and values are written.

    Args:
        keys, values: (B, G, T, beam, K) and (B, G, T, beam, V), of a memory with a beam of 1.
        lengths: (B,) the number of keys that the rows of each source see.
        writers: (R, T) whose key each row sees; None for the first.
    """
    (rows, times), beam = (len(query), keys.shape[2]), len(query) // len(keys)
    slots = query.new_zeros(rows, times).long() if writers is None else writers.long()
    seen = [
        x.double().repeat_interleave(beam, 0).take_along_dim(slots[:, None, :, None, None], 3)
        for x in (keys, values)
    ]  # (R, G, T, 1, ..)
    visible = torch.arange(times, device=query.device) < lengths.repeat_interleave(beam)[:, None]
    key, value = (x.squeeze(3) for x in seen)
    mask, newest = visible[:, None, None], query.double()[:, :, None]
    return scaled_dot_product_attention(newest, key, value, mask, enable_gqa=True).squeeze(2)


@triton.jit
def _kernel(
    query, keys, values, out, lengths, writers, key, value, slots, written, scale,
    GROUPS: tl.constexpr, BEAM: tl.constexpr, SHARING: tl.constexpr, QUERIES: tl.constexpr,
    WIDTH: tl.constexpr, WIDTHS: tl.constexpr, DEPTH: tl.constexpr, DEPTHS: tl.constexpr,
    BLOCK: tl.constexpr, PAST: tl.constexpr,
):  # fmt: skip
    """One source and one head with keys of its own: all queries that read them."""
    source, group = tl.program_id(0), tl.program_id(1)
    number, k, v = tl.arange(0, QUERIES), tl.arange(0, WIDTHS), tl.arange(0, DEPTHS)
    row, real = number // SHARING, number < BEAM * SHARING
    rows = source * BEAM + row  # (Q,)
    place = rows * GROUPS * SHARING + group * SHARING + number % SHARING
    here = (source.to(tl.int64) * GROUPS + group) * slots
    keys += here * WIDTH
    values += here * DEPTH
    wide, deep = k < WIDTH, v < DEPTH
    mask = real[:, None] & wide[None, :]
    q = tl.load(query + place[:, None] * WIDTH + k[None, :], mask=mask, other=0.0)
    q = q.to(tl.float32) * scale  # (Q, K)
    if PAST:
        count = tl.load(lengths).to(tl.int32)
        own = rows * GROUPS + group
        new_key = tl.load(key + own[:, None] * WIDTH + k[None, :], mask=mask, other=0.0)
        deeply = real[:, None] & deep[None, :]
        new_value = tl.load(value + own[:, None] * DEPTH + v[None, :], mask=deeply, other=0.0)
        first = (number % SHARING == 0)[:, None]
        end = count * BEAM + row
        tl.store(keys + end[:, None] * WIDTH + k[None, :], new_key, mask=mask & first)
        tl.store(values + end[:, None] * DEPTH + v[None, :], new_value, mask=deeply & first)
        top = tl.sum(q * new_key.to(tl.float32), 1)
        mass = tl.full([QUERIES], 1.0, tl.float32)
        total = new_value.to(tl.float32)  # (Q, V)
    else:
        count = tl.load(lengths + source).to(tl.int32)
        top = tl.full([QUERIES], float("-inf"), tl.float32)
        mass = tl.zeros([QUERIES], tl.float32)
        total = tl.zeros([QUERIES, DEPTHS], tl.float32)
    for start in range(0, count, BLOCK):
        t = start + tl.arange(0, BLOCK)
        seen = t < count
        if PAST:
            mine = real[:, None] & seen[None, :]
            writer = tl.load(writers + rows[:, None] * written + t[None, :], mask=mine, other=0)
            slot = t[None, :] * BEAM + writer  # (Q, T)
            mine = mine[:, :, None]
        else:
            slot = t[None, :]  # (1, T): all queries read the same
            mine = seen[None, :, None]
        x = tl.load(
            keys + slot[:, :, None] * WIDTH + k[None, None, :],
            mask=mine & wide[None, None, :],
            other=0.0,
        )
        scores = tl.sum(q[:, None, :] * x.to(tl.float32), 2)  # (Q, T)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fading = tl.exp(top - higher)
        mass = mass * fading + tl.sum(weights, 1)
        y = tl.load(
            values + slot[:, :, None] * DEPTH + v[None, None, :],
            mask=mine & deep[None, None, :],
            other=0.0,
        )
        total = total * fading[:, None] + tl.sum(weights[:, :, None] * y.to(tl.float32), 1)
        top = higher
    found = (total / mass[:, None]).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * DEPTH + v[None, :], found, mask=real[:, None] & deep[None, :])
