"""The Triton kernel equals the formula for any layout, on a GPU or in Triton's interpreter."""

import pytest
import torch

from tests.helpers import SIZE, tiny
from tests.kernels.on_triton import DEVICE, INTERPRETED, passes
from transduct.functional import attention as plain
from transduct.kernels import triton_attention as ours
from transduct.segments import Segments

pytestmark = pytest.mark.gpu
LONG = 2 * ours.TILE + 3
LAYOUTS = [  # lengths of the queries' sequences and of the keys'
    ([3, 1, 4], [2, 5, 1]),
    ([1], [1]),
    ([0, 3, 1], [2, 1, 4]),
    ([2, 3, 1], [0, 4, 1]),
    ([2, 1], [0, 0]),
    ([ours.TILE, ours.TILE], [ours.TILE, ours.TILE]),
    ([LONG], [2 * LONG]),
    ([5] * 40, [7] * 40),
    ([9, 0, 2, LONG, 1], [1, 0, LONG, 3, 2]),
    ([7, 3, 6, 6, 0, 0], [4, 8, 2, 0, 0, 0]),  # filler and empty sequences at the end
]
# Triton's interpreter multiplies the bits of bfloat16 as if they were whole numbers.
TYPES = {torch.float32: 1e-6, torch.float16: 2e-3} | ({} if INTERPRETED else {torch.bfloat16: 1e-2})


def make(queries, keys, heads, groups, d_k, d_v, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    shapes = (sum(queries), heads, d_k), (sum(keys), groups, d_k), (sum(keys), groups, d_v)
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return [x.to(DEVICE, dtype).requires_grad_() for x in drawn]


def check(queries, keys, causal=False, heads=2, groups=2, d_k=16, d_v=16, dtype=torch.float32):
    """Outputs and gradients against the formula in 64 bits, relative to their size."""
    inputs = make(queries, keys, heads, groups, d_k, d_v, dtype)
    layout = Segments.of(queries, DEVICE), Segments.of(keys, DEVICE)
    found = plain._short_attention(*inputs, *layout, causal)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = plain.segment_attention(*exact, *layout, causal)
    assert (found.shape, found.dtype) == (expected.shape, dtype)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE, dtype)
    mine = [found, *torch.autograd.grad(found, inputs, weights)]
    reference = [
        expected,
        *torch.autograd.grad(expected, exact, weights.double(), materialize_grads=True),
    ]
    for one, other in zip(mine, reference, strict=True):
        assert one.isfinite().all()
        # of one key the gradient is nothing
        scale = max(float(other.detach().norm()), other.numel() ** 0.5)
        assert float((one.double() - other).detach().norm()) <= TYPES[dtype] * scale


@pytest.mark.parametrize(("queries", "keys"), LAYOUTS, ids=str)
def test_cross_attention_is_the_formula(queries, keys):
    check(queries, keys)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(
    "lengths", [[3, 1, 4], [1], [0, 5, 1, 0], [LONG, 2], [6] * 30, [1] * 70], ids=str
)
def test_self_attention_is_the_formula(lengths, causal):
    check(lengths, lengths, causal)


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize(("d_k", "d_v"), [(16, 32), (32, 16), (64, 64), (128, 16)])
def test_key_heads_serve_groups_and_widths_may_differ(groups, d_k, d_v):
    check([9, 2, 30], [12, 1, 25], heads=4, groups=groups, d_k=d_k, d_v=d_v)


def test_wide_heads_take_small_tiles():
    sizes = [
        (64, torch.bfloat16),
        (16, torch.float32),
        (128, torch.float16),
        (64, torch.float32),
        (256, torch.float16),
    ]
    found = [
        ours.tile_size(*(torch.empty(1, 1, width, dtype=dtype) for width in (w, 16)))
        for w, dtype in sizes
    ]
    assert found == [64, 32, 32, 32, 16]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_every_type_is_as_exact_as_it_can_be(dtype, causal):
    check([20, 1, 33], [20, 1, 33], causal, heads=4, groups=2, dtype=dtype)


def test_a_query_without_keys_gives_zeros_and_gets_none():
    query, key, value = make([2, 3], [0, 4], 2, 2, 16, 16)
    layout = Segments.of([2, 3], DEVICE), Segments.of([0, 4], DEVICE)
    found = plain._short_attention(query, key, value, *layout, False)
    assert not found[:2].any()
    assert found[2:].all()
    assert not torch.autograd.grad(found.sum(), query)[0][:2].any()


def test_scores_of_any_size_are_taken():
    """Scores that would overflow without the running maximum."""
    query, key, value = make([40], [70], 2, 2, 16, 16)
    layout = Segments.of([40], DEVICE), Segments.of([70], DEVICE)
    found = plain._short_attention(query * 300.0, key, value, *layout, False)
    expected = plain.segment_attention(
        (query * 300.0).double(), key.double(), value.double(), *layout
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_it_is_the_same_to_the_bit_each_time():
    inputs = make([30, 50, 7], [30, 50, 7], 4, 2, 16, 16)
    layout = [Segments.of([30, 50, 7], DEVICE)] * 2
    runs = [plain._short_attention(*inputs, *layout, True) for _ in range(2)]
    one, other = ([found, *torch.autograd.grad(found.square().sum(), inputs)] for found in runs)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("lengths", [([3, 5, 1], [4, 2, 6]), ([5, 5], [2, 2])], ids=str)
def test_a_transformer_learns_the_same_with_the_kernel(monkeypatch, lengths):
    """Encoder, decoder and cross-attention in groups, loss and gradients."""
    found = []
    model = tiny(num_kv_heads=2).to(DEVICE)
    source, target = (Segments.of(each, DEVICE) for each in lengths)
    tokens = [torch.arange(each.total, device=DEVICE) % SIZE for each in (source, target)]
    for fits in (False, True):
        monkeypatch.setattr(plain, "_fits", lambda *_, fits=fits: fits)
        hidden = model.decode(tokens[1], target, model.encode(tokens[0], source), source)
        loss = model.logits(hidden).logsumexp(-1).sum()
        found.append(
            [loss, *torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])]
        )
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_the_operator_passes_opcheck():
    """Shapes without numbers, and gradients, as the compiler asks for them."""
    inputs = make([5, 2], [3, 4], 2, 1, 16, 32)
    queries, keys = Segments.of([5, 2], DEVICE), Segments.of([3, 4], DEVICE)
    runs = keys.runs_of(queries), queries.runs_of(keys)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        torch.ops.transduct.short_attention.default, (*inputs, *runs), test_utils=tests
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_the_compiler_makes_one_graph_of_it():
    """Tracing only: the kernel is opaque to it."""
    torch._dynamo.reset()
    inputs = make([5, 2], [3, 4], 2, 1, 16, 32)
    layout = Segments.of([5, 2], DEVICE), Segments.of([3, 4], DEVICE)
    compiled = torch.compile(
        plain._short_attention, backend="aot_eager", fullgraph=True, dynamic=False
    )
    found = [function(*inputs, *layout, False) for function in (plain._short_attention, compiled)]
    one, other = ([output, *torch.autograd.grad(output.square().sum(), inputs)] for output in found)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_trial_is_passed_and_notices_a_wrong_number(monkeypatch, dtype):
    assert passes(ours.trial(DEVICE, dtype, 32, 16, True))
    right = ours._gradients

    def half(grad, *given):
        return tuple(0.9 * x for x in right(grad, *given))

    monkeypatch.setattr(ours, "_gradients", half)
    assert not passes(ours.trial(DEVICE, dtype, 32, 16, True))
    assert passes(ours.trial(DEVICE, dtype, 32, 16, False)), "a search has no use for gradients"
    monkeypatch.setattr(ours, "_gradients", right)
    attend = ours.short_attention
    monkeypatch.setattr(ours, "short_attention", lambda *given: 0.9 * attend(*given))
    assert not passes(ours.trial(DEVICE, dtype, 32, 16, True))
    assert not passes(ours.trial(DEVICE, dtype, 32, 16, False))
