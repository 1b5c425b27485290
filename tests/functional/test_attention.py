"""Attention over segments equals the formula for each sequence, by every kernel."""

import math

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import gradients
from transduct.functional import attention as ours
from transduct.functional import positions
from transduct.kernels import triton
from transduct.segments import Segments

LAYOUTS = [  # lengths of the queries' sequences and of the keys'
    ([3, 1, 4], [2, 5, 1]),
    ([2, 2], [3, 3]),
    ([1], [1]),
    ([0, 3, 1], [2, 1, 4]),
    ([2, 3, 1], [0, 4, 1]),
    ([2, 1], [0, 0]),
    ([0, 0], [0, 0]),
    ([5], [7]),
]
KERNELS = {"explicit": ours.LARGEST_EXPLICIT, "fused": -1}
HEADS, D_K, D_V = 4, 6, 3


def alibi(query, keys):
    return positions.alibi(HEADS, query.shape[2], keys)


def relative(query, keys):
    table = torch.linspace(-1.0, 1.0, 5 * D_K, dtype=query.dtype).view(5, D_K)
    return positions.relative(query, table, keys)


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch):
    monkeypatch.setattr(ours, "LARGEST_EXPLICIT", KERNELS[request.param])


def make(queries, keys, kv_heads):
    torch.manual_seed(1)
    shapes = (sum(queries), HEADS, D_K), (sum(keys), kv_heads, D_K), (sum(keys), kv_heads, D_V)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def by_the_formula(query, key, value, queries, keys, causal, bias):
    """softmax(Q K^T / sqrt(d_k) + bias) V, sequence by sequence and head by head."""
    rows = []
    for q, k, v in zip(query.split(queries), key.split(keys), value.split(keys)):
        repeats = HEADS // k.shape[1] if len(k) else 1
        heads = []
        for head in range(HEADS):
            scores = q[:, head] @ k[:, head // repeats].T / math.sqrt(D_K) if len(k) else None
            if scores is None:
                heads.append(q.new_zeros(len(q), D_V))
                continue
            if bias is not None:
                scores = (
                    scores + bias(q.transpose(0, 1)[None], len(k)).expand(1, HEADS, -1, -1)[0, head]
                )
            if causal:
                scores = scores + torch.full(scores.shape, -math.inf).triu(1)
            heads.append(scores.softmax(-1) @ v[:, head // repeats])
        rows.append(torch.stack(heads, 1))
    return torch.cat(rows)


def check(queries, keys, causal=False, bias=None, kv_heads=HEADS):
    inputs = make(queries, keys, kv_heads)
    expected = by_the_formula(*inputs, queries, keys, causal, bias)
    found = ours.segment_attention(*inputs, Segments.of(queries), Segments.of(keys), causal, bias)
    assert found.shape == expected.shape == (sum(queries), HEADS, D_V)
    torch.testing.assert_close(found, expected)
    if sum(queries) and sum(keys):
        for mine, reference in zip(
            gradients(found, inputs), gradients(expected, inputs), strict=True
        ):
            torch.testing.assert_close(mine, reference)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
@pytest.mark.parametrize(("queries", "keys"), LAYOUTS, ids=str)
def test_cross_attention_is_the_formula(queries, keys, kv_heads):
    check(queries, keys, kv_heads=kv_heads)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("bias", [None, alibi, relative], ids=["plain", "alibi", "relative"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("lengths", [[3, 1, 4], [2, 2], [1], [0, 5, 1, 0], [7]], ids=str)
def test_self_attention_is_the_formula(lengths, causal, bias):
    check(lengths, lengths, causal, bias, kv_heads=2)


@pytest.mark.parametrize("bias", [None, alibi, relative], ids=["plain", "alibi", "relative"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_the_weights_are_those_of_the_fast_form(causal, bias):
    lengths = [3, 0, 4]
    query, key, value = make(lengths, lengths, 2)
    segments = Segments.of(lengths)
    weights = ours.segment_weights(query, key, segments, segments, causal, bias)  # (B, H, T, S)
    assert weights.shape == (3, HEADS, 4, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, HEADS, 4, dtype=torch.float64))
    assert not weights[0, :, :3, 3].any()  # nobody looks at padding
    if causal:
        assert torch.equal(weights, weights.tril())
    values = F.pad(value[:3], (0, 0, 0, 0, 0, 1)), value.new_zeros(4, 2, D_V), value[3:]
    dense = torch.stack(values).transpose(1, 2).repeat_interleave(2, 1)  # (B, H, S, V)
    found = torch.cat([(w @ v).transpose(0, 1)[:n] for w, v, n in zip(weights, dense, lengths)])
    torch.testing.assert_close(
        found, ours.segment_attention(query, key, value, segments, segments, causal, bias)
    )


@pytest.mark.usefixtures("kernel")
def test_one_sequence_does_not_see_another():
    query, key, value = make([3, 2], [2, 4], HEADS)
    queries, keys = Segments.of([3, 2]), Segments.of([2, 4])
    before = ours.segment_attention(query, key, value, queries, keys)
    changed = [torch.cat((x[:2], torch.randn_like(x[2:]))) for x in (key, value)]
    after = ours.segment_attention(query, *changed, queries, keys)
    assert torch.equal(before[:3], after[:3])
    assert not torch.isclose(before[3:], after[3:]).any()


class OnCuda:
    """The attributes of a tensor that decide about the kernel."""

    def __init__(self, d_k, dtype=torch.bfloat16, device="cuda"):
        self.shape, self.dtype, self.device = (5, HEADS, d_k), dtype, torch.device(device)


@pytest.mark.parametrize(
    ("d_k", "d_v", "longest", "dtype", "device", "fits"),
    [
        (64, 64, 40, torch.bfloat16, "cuda", True),
        (16, 256, 1024, torch.float32, "cuda", True),
        (64, 64, 40, torch.bfloat16, "cpu", False),
        (64, 64, 40, torch.float64, "cuda", False),
        (48, 64, 40, torch.bfloat16, "cuda", False),
        (64, 8, 40, torch.bfloat16, "cuda", False),
        (64, 512, 40, torch.bfloat16, "cuda", False),
        (64, 64, 1025, torch.bfloat16, "cuda", False),
    ],
)
def test_the_kernel_for_short_sequences_is_taken_where_it_fits(
    monkeypatch, d_k, d_v, longest, dtype, device, fits
):
    monkeypatch.setattr(triton, "TRITON", True)
    keys = Segments.of([3, longest])
    for passed in (True, False):
        monkeypatch.setattr(triton, "_passes", lambda *about, passed=passed: passed)
        assert ours._fits(OnCuda(d_k, dtype, device), OnCuda(d_v, dtype, device), keys) == (
            fits and passed
        )


def test_the_equations_agree_with_torch():
    query, key, value = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 3)
    bias = torch.randn(5, 7)
    expected = F.scaled_dot_product_attention(query, key, value, bias)
    torch.testing.assert_close(ours.attention(query, key, value, bias=bias), expected)
    unscaled = F.scaled_dot_product_attention(query, key, value, scale=1.0)
    torch.testing.assert_close(ours.attention(query, key, value, scale=1.0), unscaled)
    torch.testing.assert_close(ours.attention_weights(query, key).sum(-1), torch.ones(2, 5))


def test_attention_without_projections_weighs_by_dot_products():
    x = torch.randn(4, 8, dtype=torch.float64)
    exponentials = [[math.exp(float(a @ b)) for b in x] for a in x]
    rows = [sum(w * b for w, b in zip(row, x)) / sum(row) for row in exponentials]
    torch.testing.assert_close(ours.attention_without_projections(x), torch.stack(rows))


def test_the_last_query_of_a_causal_bias_stands_at_the_last_key():
    seen = ours.causal_bias(2, 4).isfinite()
    assert seen.tolist() == [[True, True, True, False], [True, True, True, True]]


def test_padding_is_hidden_and_equal_lengths_need_no_bias():
    assert ours.padding_bias(Segments.of([3, 3])) is None
    hidden = ours.padding_bias(Segments.of([1, 3]))
    assert hidden.shape == (2, 1, 1, 3)
    assert hidden[0, 0, 0].tolist() == [0.0, -math.inf, -math.inf]


def test_dropout_drops_weights_and_scales_the_rest():
    torch.manual_seed(1)
    segments = Segments.of([30, 34])
    query, key = torch.randn(64, 2, 8), torch.randn(64, 2, 8)
    # so that the output is the weights
    value = torch.eye(34)[segments.positions][:, None].expand(-1, 2, -1)
    kept, dropped = (
        ours.segment_attention(query, key, value, segments, segments, dropout=rate)
        for rate in (0.0, 0.25)
    )
    gone = (dropped == 0) & (kept > 0)
    assert 0.2 < float(gone.sum() / (kept > 0).sum()) < 0.3
    torch.testing.assert_close(dropped[~gone], kept[~gone] / 0.75)


def make_scored():
    """A query of three, a key of four, and the parameters of every score function, all learnt."""
    torch.manual_seed(1)
    shapes = {
        "query": (2, 3, 5),
        "key": (2, 4, 6),
        "weight": (5, 6),
        "w": (7, 5),
        "u": (7, 6),
        "v": (7,),
    }
    return {
        name: torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for name, shape in shapes.items()
    }


def one_by_one(score, query, key):
    """(B, T, S) from a function of one query and one key."""
    return torch.stack(
        [
            torch.stack([torch.stack([score(q, k) for k in ks]) for q in qs])
            for qs, ks in zip(query, key)
        ]
    )


def test_scores_are_their_formulas():
    given = make_scored()
    query, key, weight, w, u, v = given.values()
    short = query @ weight  # as wide as the keys
    joined = torch.cat((w, u), 1)
    cases = [
        (ours.dot_scores(short, key), one_by_one(lambda q, k: q.dot(k), short, key)),
        (
            ours.general_scores(query, key, weight),
            one_by_one(lambda q, k: q @ weight @ k, query, key),
        ),
        (
            ours.concat_scores(query, key, w, u, v),
            one_by_one(lambda q, k: v.dot((joined @ torch.cat((q, k))).tanh()), query, key),
        ),
        (
            ours.additive_scores(query @ w.T, key @ u.T, v),
            one_by_one(lambda q, k: v.dot((w @ q + u @ k).tanh()), query, key),
        ),
    ]
    for found, expected in cases:
        assert found.shape == (2, 3, 4)
        torch.testing.assert_close(found, expected)
        for one, other in zip(
            torch.autograd.grad(
                found.square().sum(), list(given.values()), retain_graph=True, allow_unused=True
            ),
            torch.autograd.grad(
                expected.square().sum(), list(given.values()), retain_graph=True, allow_unused=True
            ),
            strict=True,
        ):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)
