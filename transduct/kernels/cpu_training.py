"""Bindings to kernels_training.c, with gradients: the operations of a CPU training step besides its
matrix products.

The formulas in `functional.attention`, `functional.positions`, `functional.dropout` and
`functional.losses` define what is computed. They are the fallback where `supports` returns False.
Let N queries have H heads and M keys G heads, each of which serves H / G consecutive query heads; K
and V are the widths of a key and of a value.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduct.kernels import cpu
from transduct.kernels.cpu import NUMBER, POINTER, empty, first_only, pointer, structure
from transduct.segments import Segments

NARROW = torch.bfloat16
LANES, DRAWS = 16, 128  # elements of a vector; elements whose random bits are drawn together
SHARES = 4  # parts per thread, so that idle threads can take over work,
LARGE = 2**16  # unless a part needs scratch space for more numbers than this


# The structures of training.c.
_Attention = structure(
    (POINTER, "query key value grad output grad_query grad_key grad_value weights work"),
    (POINTER, "queries keys cells"),
    (NUMBER, "back sources heads groups dk dv causal narrow most_queries most_keys parts"),
)
_Dropout = structure(
    (POINTER, "x added out kept"),
    (ctypes.c_uint64, "seed"),
    (NUMBER, "count drawn relu threshold narrow"),
    (ctypes.c_double, "scale"),
)
_Rotary = structure((POINTER, "x out positions turns"), (NUMBER, "rows heads dk back narrow parts"))
_Losses = structure(
    (POINTER, "logits targets counted losses nlls"),
    (NUMBER, "rows size wanted narrow"),
    (ctypes.c_double, "smoothing agreement"),
)


def attention(
    query: Tensor, key: Tensor, value: Tensor, queries: Segments, keys: Segments, causal: bool
) -> Tensor:
    """Attention of each sequence's queries over its own keys: (N, H, K), (M, G, K), (M, G, V) ->
    (N, H, V).

    Raises:
        ValueError: if the shapes do not fit the sequences, so that the kernel would read foreign
            memory.
    """
    shapes = tuple(query.shape), tuple(key.shape), tuple(value.shape)
    (_, heads, d_k), groups = shapes[0], shapes[1][1]
    expected = (
        (queries.total, heads, d_k),
        (keys.total, groups, d_k),
        (keys.total, groups, value.shape[2]),
    )
    same_dtype = query.dtype == key.dtype == value.dtype
    if shapes != expected or not same_dtype or len(queries) != len(keys) or heads % groups:
        raise ValueError(
            f"{len(queries)} and {len(keys)} sequences of {queries.total} and {keys.total} tokens "
            f"do not fit {shapes}"
        )
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    return _SegmentsAttention.apply(query, key, value, queries, keys, causal, keep)


class _SegmentsAttention(torch.autograd.Function):
    """Keeps the attention weights for the backward pass; short sequences have few."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        queries: Segments,
        keys: Segments,
        causal: bool,
        keep: bool,
    ) -> Tensor:
        query, key, value = _row(query), _row(key), _row(value)
        output, cells, weights = query.new_empty(*query.shape[:2], value.shape[2]), None, None
        if keep:
            wide = (keys.lengths + (LANES - 1)) // LANES * LANES
            cells = torch.zeros_like(queries.offsets)
            torch.cumsum(queries.lengths * wide * query.shape[1], 0, out=cells[1:])
            weights = empty(int(cells[-1]))
            ctx.save_for_backward(query, key, value, weights)
        ctx.layout = queries, keys, cells, causal
        _attend(ctx.layout, query, key, value, weights, output=output)
        return output

    @staticmethod
    @first_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        gradients = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        named = dict(zip(("grad_query", "grad_key", "grad_value"), gradients))
        _attend(ctx.layout, query, key, value, weights, grad=_row(grads[0]), **named)
        return *gradients, None, None, None, None


def _attend(
    layout: Any, query: Tensor, key: Tensor, value: Tensor, weights: Tensor | None, **others: Tensor
) -> None:
    """Write the output or, from `grad`, the gradients into the tensors `others`."""
    (queries, keys, cells, causal), threads = layout, torch.get_num_threads()
    arguments = _Attention(
        *map(pointer, (query, key, value)),
        weights=pointer(weights),
        queries=pointer(queries.offsets),
        keys=pointer(keys.offsets),
        cells=pointer(cells),
        back="grad" in others,
        sources=len(queries),
        heads=query.shape[1],
        groups=key.shape[1],
        dk=key.shape[2],
        dv=value.shape[2],
        causal=causal,
        narrow=query.dtype == NARROW,
        most_queries=queries.longest,
        most_keys=keys.longest,
        **{name: pointer(tensor) for name, tensor in others.items()},
    )
    size = cpu.library().attention_room(ctypes.byref(arguments))
    arguments.parts = min(len(queries) * key.shape[1], threads * (SHARES if size <= LARGE else 1))
    work = empty(arguments.parts * size)
    arguments.work = pointer(work)
    cpu.library().segments_attention(ctypes.byref(arguments), threads)


def dropped(x: Tensor, threshold: int, relu: bool = False, added: Tensor | None = None) -> Tensor:
    """Zero each element with probability p = `threshold` / 65536 and scale the others by 1 / (1 -
    p), in one pass with a ReLU before it or the addition of a tensor of the same shape and dtype
    after it."""
    assert added is None or (added.shape, added.dtype) == (x.shape, x.dtype), (
        "the kernel would read foreign memory"
    )
    return _Dropped.apply(x, threshold, relu, added)


class _Dropped(torch.autograd.Function):
    """Keeps a bit per element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int, relu: bool, added: Tensor | None) -> Tensor:
        kept = empty(-(-x.numel() // DRAWS) * (DRAWS // 64), dtype=torch.int64)
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_(-(2**63), None)) % 2**64
        ctx.scale = 65536 / (65536 - threshold)
        ctx.save_for_backward(kept)
        return _keep(
            x, kept, ctx.scale, added, drawn=True, relu=relu, threshold=threshold, seed=seed
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, Tensor | None]:
        (kept,) = ctx.saved_tensors
        return (
            _keep(grads[0], kept, ctx.scale),
            None,
            None,
            grads[0] if ctx.needs_input_grad[3] else None,
        )


def _keep(
    x: Tensor, kept: Tensor, scale: float, added: Tensor | None = None, **draws: int
) -> Tensor:
    x, added = _row(x), None if added is None else _row(added)
    out = torch.empty_like(x)
    tensors = {"x": pointer(x), "added": pointer(added), "out": pointer(out), "kept": pointer(kept)}
    arguments = _Dropout(**tensors, count=x.numel(), narrow=x.dtype == NARROW, scale=scale, **draws)
    cpu.library().drop(ctypes.byref(arguments), torch.get_num_threads())
    return out


def turned(x: Tensor, positions: Tensor, turns: Tensor) -> Tensor:
    """Apply rotary positions (N,) to (N, H, K), by a table (positions, K) of sines followed by
    cosines.

    Raises:
        ValueError: if the shapes or dtypes do not fit, so that the kernel would read foreign
            memory.
    """
    rows, _, d_k = x.shape
    whole = positions.dtype == torch.int64 and turns.dtype == torch.float32 and d_k % 2 == 0
    if not whole or (len(positions), turns.shape[1]) != (rows, d_k):
        raise ValueError(
            f"{positions.dtype} positions {tuple(positions.shape)} do not fit {tuple(x.shape)}"
        )
    return _Turned.apply(x, positions.contiguous(), turns)


class _Turned(torch.autograd.Function):
    """The backward pass rotates the gradient by the opposite angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, turns: Tensor) -> Tensor:
        # not by save_for_backward, which refuses tensors made in inference mode
        ctx.places = (positions, turns)
        return _turn(x, positions, turns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _turn(grads[0], *ctx.places, back=True), None, None


def _turn(x: Tensor, positions: Tensor, turns: Tensor, *, back: bool = False) -> Tensor:
    x, threads = _row(x), torch.get_num_threads()
    (rows, heads, d_k), out = x.shape, torch.empty_like(x)
    arguments = _Rotary(
        *map(pointer, (x, out, positions, turns)),
        rows=rows,
        heads=heads,
        dk=d_k,
        back=back,
        narrow=x.dtype == NARROW,
        parts=min(rows, threads * SHARES),
    )
    cpu.library().turn_rows(ctypes.byref(arguments), threads)
    return out


def row_losses(
    logits: Tensor,
    targets: Tensor,
    smoothing: float,
    counted: Tensor | None,
    wanted: bool,
    agreement: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The smoothed loss and the negative log-likelihood of each row, (N,) and (N,); the logits (N,
    V) are overwritten with their gradient if `wanted`.

    Arguments as for `kernels.triton_losses`. With `agreement`, the second half of the rows holds
    second readings of the tokens of the first half, whose losses include `agreement` times the
    `symmetric_divergence` of the two.

    Raises:
        ValueError: if targets or shares do not match the rows, or if there is an odd number of rows
            to agree.
        IndexError: if a target is outside of the vocabulary.
    """
    (rows, size), targets = logits.shape, targets.long().contiguous()
    counted = None if counted is None else counted.float().contiguous()
    if any(len(each) != rows for each in (targets, counted) if each is not None):
        raise ValueError(
            f"{rows} rows of logits, {len(targets)} targets; expected one target and one share per "
            "row"
        )
    if agreement and rows % 2:
        raise ValueError(
            f"{rows} rows of logits; expected an even number, two readings of each token"
        )
    least, most = (int(targets.min()), int(targets.max())) if rows else (0, size - 1)
    if least < 0 or most >= size:
        raise IndexError(f"the targets range from {least} to {most}; expected 0 to {size - 1}")
    losses, nlls = empty(rows), empty(rows)
    tensors = map(pointer, (logits, targets, counted, losses, nlls))
    arguments = _Losses(
        *tensors,
        rows=rows,
        size=size,
        wanted=wanted,
        narrow=logits.dtype == NARROW,
        smoothing=smoothing,
        agreement=agreement,
    )
    cpu.library().row_losses(ctypes.byref(arguments), torch.get_num_threads())
    return losses, nlls


def _row(x: Tensor) -> Tensor:
    """The tensor as the kernels read it: contiguous, without a pending negation."""
    return x.resolve_neg().contiguous()
