"""The C kernels of training equal the formulas, with gradients, for any lengths, widths and number
of threads."""

import ctypes
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import compiled, on_each_width
from transduct.functional import attention as formulas
from transduct.functional import positions
from transduct.functional.dropout import dropout
from transduct.functional.losses import label_smoothed_cross_entropy, symmetric_divergence
from transduct.kernels import cpu, cpu_training
from transduct.segments import Segments

pytestmark = compiled

LAYOUTS = [  # lengths of the queries' sequences and of the keys'
    ([3, 1, 4], [2, 5, 1]),
    ([2, 2], [3, 3]),
    ([1], [1]),
    ([0, 3, 1], [2, 1, 4]),
    ([2, 3, 1], [0, 4, 1]),
    ([0, 0], [1, 2]),
    ([17, 2, 33, 16], [16, 40, 1, 15]),
    ([5] * 20, [7] * 20),
]
WIDTHS = [(8, 8), (32, 32), (6, 3), (16, 40), (70, 17), (1, 1)]  # of a key and a value
NEAR = {torch.float32: {"atol": 2e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 3e-2, "rtol": 2e-2}}


@pytest.fixture
def threads():
    """Gives PyTorch its threads back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def our_threads():
    """Pretends that PyTorch has an OpenMP runtime other than GNU's."""
    cpu.library().share_threads(None)
    yield
    cpu.library.cache_clear()
    cpu.library()


@pytest.fixture
def without(monkeypatch):
    """Computes a function by the formulas only."""

    def compute(function):
        with monkeypatch.context() as patch:
            patch.setattr(cpu, "trainable", lambda *tensors: False)
            return function()

    return compute


def gradients(output, inputs):
    """Those of a projection that is the same in any precision."""
    torch.manual_seed(0)
    return torch.autograd.grad(
        output, inputs, torch.randn(output.shape).bfloat16().to(output.dtype)
    )


def drawn(queries, keys, heads=4, kv_heads=2, d_k=8, d_v=8, dtype=torch.float32):
    """Query, key and value, which require gradients, and their segments."""
    torch.manual_seed(1)
    shapes = (sum(queries), heads, d_k), (sum(keys), kv_heads, d_k), (sum(keys), kv_heads, d_v)
    tensors = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    return tensors, (Segments.of(queries), Segments.of(keys))


def by_the_formula(tensors, segments, causal, without):
    """The output and its gradients in double precision, of the same numbers."""
    exact = [x.detach().double().requires_grad_() for x in tensors]
    output = without(lambda: formulas.segment_attention(*exact, *segments, causal))
    return [output, *gradients(output, exact)]


def assert_close(found, expected, dtype):
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other.double(), **NEAR[dtype])


def attend(tensors, segments, causal=False):
    output = cpu_training.attention(*tensors, *segments, causal)
    return [output, *gradients(output, tensors)]


THREADS = """
import os
import torch
from transduct.kernels import cpu, cpu_training
if child := os.fork():
    os.waitpid(child, 0)
else:  # the first to print, with threads of ours
    cpu.library().share_threads(None)
torch.set_num_threads(2)
x = torch.full((1 << 20,), 1e-30)
x.exp()  # in as many threads as PyTorch has
before = len(os.listdir("/proc/self/task"))
cpu_training.dropped(x, 100)
print(len(os.listdir("/proc/self/task")) - before)

def numbers():
    print(int((x * 1e-10).count_nonzero()))

numbers()
torch.set_flush_denormal(True)
numbers()
cpu_training.dropped(x, 100)
numbers()
torch.set_flush_denormal(False)
cpu_training.dropped(x, 100)
numbers()
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "GOMP_parallel"), reason="PyTorch has another OpenMP than GNU's"
)
@pytest.mark.skipif(
    not os.path.exists("/proc/self/task"), reason="threads are counted as Linux tells them"
)
def test_pytorchs_threads_do_the_work_and_treat_denormals_as_their_caller_does():
    """Other threads would wait for their cores."""
    call = [sys.executable, "-c", THREADS]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True)
    found = [*map(int, done.stdout.split())]
    assert (found[0], len(found)) == (1, 10), "the control: a thread of ours"
    # what is said to one of two threads changes one half
    assert found[5:] == [0, 1 << 20, 1 << 19, 0, 1 << 20]


def test_many_threads_with_long_sequences_use_little_memory(monkeypatch, threads):
    made = []
    monkeypatch.setattr(
        cpu_training, "empty", lambda *shape: made.append(*shape) or cpu.empty(*shape)
    )
    threads(3)
    rooms = []
    with torch.no_grad():
        for length in (20, 300):
            tensors, segments = drawn([length] * 9, [length] * 9)
            cpu_training.attention(*tensors, *segments, False)
            alone, one = drawn([length], [length], heads=1, kv_heads=1)
            cpu_training.attention(*alone, *one, False)
            rooms.append(made[-2] // made[-1])
    assert rooms == [3 * cpu_training.SHARES, 3]


def test_several_python_threads_at_once_give_the_same_bits():
    expected = everything()[0]
    tensors, segments = drawn([9] * 30, [12] * 30)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: cpu_training.attention(*tensors, *segments, False), range(40))
        assert all(torch.equal(each, expected) for each in found)


# attention


@on_each_width
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("queries", "keys"), LAYOUTS, ids=str)
def test_attention_is_the_formula_for_any_lengths(queries, keys, kv_heads, dtype, without):
    tensors, segments = drawn(queries, keys, kv_heads=kv_heads, dtype=dtype)
    assert_close(
        attend(tensors, segments), by_the_formula(tensors, segments, False, without), dtype
    )


@on_each_width
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize(("d_k", "d_v"), WIDTHS, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_attention_is_the_formula_for_any_widths(d_k, d_v, causal, dtype, without):
    lengths = [3, 0, 18, 1, 5, 70]
    tensors, (layout, _) = drawn(lengths, lengths, d_k=d_k, d_v=d_v, dtype=dtype)
    found = attend(tensors, (layout, layout), causal)
    assert_close(found, by_the_formula(tensors, (layout, layout), causal, without), dtype)


@on_each_width
def test_the_future_is_hidden_to_the_bit():
    tensors, (layout, _) = drawn([5, 20], [5, 20])
    before = cpu_training.attention(*tensors, layout, layout, True)
    with torch.no_grad():
        for x in tensors[1:]:
            x[10:] += 1.0  # from the sixth token of the second sequence on
    after = cpu_training.attention(*tensors, layout, layout, True)
    assert torch.equal(before[:10], after[:10])
    assert not torch.isclose(before[10:], after[10:]).all(1).all(1).any()


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_sequences_see_neither_each_other_nor_what_memory_held_before(monkeypatch, causal):
    tensors, segments = drawn([3, 1, 4, 50], [2, 17, 1, 45])
    expected = attend(tensors, segments, causal)

    def full_of_nan(*shape, dtype=torch.float32):
        return torch.full(shape, float("nan") if dtype.is_floating_point else -1, dtype=dtype)

    monkeypatch.setattr(cpu_training, "empty", full_of_nan)
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, float("nan")))
    assert all(map(torch.equal, attend(tensors, segments, causal), expected))
    parts = [
        x.detach().split(segments[0 if n == 0 else 1].lengths.tolist())
        for n, x in enumerate(tensors)
    ]
    alone = [
        cpu_training.attention(
            *part, Segments.of([len(part[0])]), Segments.of([len(part[1])]), causal
        )
        for part in zip(*parts)
    ]
    assert torch.equal(torch.cat(alone), expected[0])


def test_strides_may_be_any():
    tensors, segments = drawn([3, 1, 4], [2, 5, 1])
    expected = attend(tensors, segments)
    turned = [
        x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in tensors
    ]
    assert not turned[0].is_contiguous()
    assert all(map(torch.equal, attend(turned, segments), expected))
    output = cpu_training.attention(*tensors, *segments, False)
    torch.manual_seed(0)  # as `gradients` draws, in another order in memory
    grad = (
        torch.randn(output.shape).bfloat16().float().permute(2, 0, 1).contiguous().permute(1, 2, 0)
    )
    assert all(map(torch.equal, torch.autograd.grad(output, tensors, grad), expected[1:]))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_any_number_of_threads_gives_the_same_bits(count, threads):
    results = []
    for each in (1, count):
        threads(each)
        results.append(everything())
    assert all(map(torch.equal, *results))


def test_threads_of_ours_give_the_same_bits(our_threads, threads):
    threads(1)
    expected = everything()
    threads(2)
    assert all(map(torch.equal, everything(), expected))


def everything():
    """Runs all kernels, on enough data for several parts."""
    tensors, segments = drawn([9] * 30, [12] * 30)
    found = attend(tensors, segments)
    torch.manual_seed(5)
    x = torch.linspace(-1.0, 1.0, 3 * 16384 + 70).requires_grad_()
    gone = cpu_training.dropped(x, 20000)
    logits = torch.randn(40, 100)
    losses = cpu_training.row_losses(logits, torch.arange(40), 0.1, None, True)
    turned = positions.rotary(tensors[0], torch.arange(len(tensors[0])))
    return [
        *found,
        gone,
        *gradients(gone, [x]),
        *losses,
        logits,
        turned,
        *gradients(turned, tensors[:1]),
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda query, key, value, queries, keys: (query[1:], key, value, queries, keys),
        lambda query, key, value, queries, keys: (query, key[:, :, 1:], value, queries, keys),
        lambda query, key, value, queries, keys: (query, key, value[:, 1:], queries, keys),
        lambda query, key, value, queries, keys: (query, key, value, queries, Segments.of([2, 3])),
        lambda query, key, value, queries, keys: (
            query,
            key,
            value,
            queries,
            Segments.of([2, 3, 0]),
        ),
        lambda query, key, value, queries, keys: (query[:, :3], key, value, queries, keys),
        lambda query, key, value, queries, keys: (query, key.bfloat16(), value, queries, keys),
    ],
    ids=["rows", "widths", "heads", "keys", "sequences", "groups", "types"],
)
def test_what_does_not_fit_together_is_refused_before_any_memory_is_read(change):
    tensors, segments = drawn([2, 3], [2, 4])
    with pytest.raises(ValueError, match=r"\d and \d sequences of 5 and \d tokens do not fit \(\("):
        cpu_training.attention(*change(*tensors, *segments), False)


def test_a_causal_query_past_the_last_key_sees_them_all():
    tensors, segments = drawn([9, 2], [4, 2])
    found = cpu_training.attention(*tensors, *segments, True)
    plain = cpu_training.attention(*tensors, *segments, False)
    assert torch.equal(found[3:9], plain[3:9])
    assert not torch.equal(found[:3], plain[:3])


def test_a_gradient_of_a_gradient_is_refused_instead_of_wrong():
    tensors, _ = drawn([3, 1], [2, 5])
    outputs = [
        cpu_training.dropped(tensors[0], 100),
        positions.rotary(tensors[0], torch.arange(4)),
    ]
    for output in outputs:
        [grad] = torch.autograd.grad(output.square().sum(), tensors[:1], create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward()


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.ones(2, dtype=torch.float64)],
        [torch.ones(2), torch.ones(2, dtype=torch.bfloat16)],
        [torch.ones(2, dtype=torch.float16)],
        [torch.ones(2, device="meta")],
    ],
    ids=["double", "mixed", "half", "elsewhere"],
)
def test_other_numbers_are_left_to_the_formulas(tensors):
    assert not cpu.trainable(*tensors)


def test_they_are_used_where_they_can_be(monkeypatch):
    numbers = [torch.ones(2), torch.ones(3)]
    assert cpu.trainable(*numbers)
    assert cpu.trainable(*(x.bfloat16() for x in numbers))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not cpu.trainable(*numbers)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
    monkeypatch.setattr(cpu, "library", lambda: None)
    assert not cpu.trainable(*numbers)


@pytest.mark.parametrize(
    "queries, keys, bias, rate, causal, taken",
    [
        (4, 4, None, 0.0, False, True),
        (4, 4, None, 0.5, False, False),
        (4, 4, lambda query, keys: torch.zeros(1), 0.0, False, False),
        (450, 450, None, 0.0, False, False),
        (450, 450, None, 0.0, True, True),
        (600, 600, None, 0.0, True, False),
        (4, 3000, None, 0.0, False, False),
    ],
)
def test_segments_are_attended_by_the_kernel_where_it_is_faster_and_knows_how(
    monkeypatch, queries, keys, bias, rate, causal, taken
):
    tensors, segments = drawn([queries, 2], [keys, 2])
    asked = []
    attention = cpu_training.attention
    monkeypatch.setattr(
        cpu_training, "attention", lambda *given: asked.append(given) or attention(*given)
    )
    formulas.segment_attention(*tensors, *segments, causal, bias, rate)
    assert bool(asked) is taken


def test_nothing_is_kept_where_no_gradient_is_wanted(monkeypatch):
    tensors, segments = drawn([30] * 9, [40] * 9)
    expected, made = attend(tensors, segments)[0], []
    monkeypatch.setattr(
        cpu_training, "empty", lambda *shape: made.append(shape) or cpu.empty(*shape)
    )
    with torch.no_grad():
        assert torch.equal(cpu_training.attention(*tensors, *segments, False), expected)
    assert len(made) == 1, "the room to work in"


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_some_gradients_equal_those_computed_together(wanted):
    tensors, segments = drawn([3, 1, 4], [2, 5, 1])
    expected = attend(tensors, segments)
    some = [x if number in wanted else x.detach() for number, x in enumerate(tensors)]
    output = cpu_training.attention(*some, *segments, False)
    found = gradients(output, [some[number] for number in wanted])
    assert all(map(torch.equal, found, [expected[1 + number] for number in wanted]))


@on_each_width
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("number", [0, 1, 2], ids=["query", "key", "value"])
def test_nan_and_infinity_spread_as_by_the_formula(number, value, without):
    tensors, segments = drawn([3, 2], [4, 2])
    with torch.no_grad():
        tensors[number][1, 0] = value
    found = cpu_training.attention(*tensors, *segments, False)
    expected = without(lambda: formulas.segment_attention(*tensors, *segments))
    assert torch.equal(found.isfinite(), expected.isfinite())
    assert not found.isfinite().all()


# dropout


def philox(counter, key, rounds):
    """Philox 4x32 by Python's own integers (Salmon et al. 2011, section 3.3)."""
    counter, key = list(counter), list(key)
    for _ in range(rounds):
        products = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        high, low = ([p >> 32 for p in products], [p & 0xFFFFFFFF for p in products])
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


@on_each_width
def test_the_draws_are_philoxs(monkeypatch):
    assert philox([0] * 4, [0] * 2, 10) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], (
        "as its authors publish"
    )
    seed, count, threshold = -(2**61) + 12345, 128 * 3 - 5, 40000
    monkeypatch.setattr(torch.Tensor, "random_", lambda x, *_: x.fill_(seed))
    kept = cpu_training.dropped(torch.ones(count), threshold) != 0
    key = seed % 2**64 & 0xFFFFFFFF, seed % 2**64 >> 32
    for number in (0, 1, 2, 31, 32, 63, 100, 127, 128, 300, count - 1):
        block, place = divmod(number, 128)
        word, lane = place // 32, place % 32 // 2
        draw = philox([lane, block, 0, 0], key, 7)[word] >> 16 * (place % 2) & 0xFFFF
        assert bool(kept[number]) is (draw >= threshold)


@on_each_width
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_what_is_kept_is_scaled_and_its_gradient_too(dtype):
    torch.manual_seed(2)
    x = torch.randn(300, 7).to(dtype).requires_grad_()
    output = cpu_training.dropped(x, 16384)
    [grad] = torch.autograd.grad(output, x, torch.full_like(x, 3.0))
    kept = output != 0
    assert 0.7 < kept.float().mean() < 0.8
    torch.testing.assert_close(output, torch.where(kept, x / 0.75, 0.0).to(dtype), **NEAR[dtype])
    assert torch.equal(grad, torch.where(kept, torch.full_like(x, 4.0), 0.0))


def test_a_seed_is_drawn_for_each_call():
    x = torch.ones(1000)
    torch.manual_seed(7)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    assert torch.equal(dropout(x, 0.5), first)
    assert torch.equal(dropout(x, 1e-6), x), "less than a draw of sixteen bits can tell"


# rotary positions


@on_each_width
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("width", [2, 6, 32, 40])
def test_rotary_positions_are_the_formula(width, dtype, without):
    torch.manual_seed(3)
    x = torch.randn(50, 3, width).to(dtype).requires_grad_()
    places = torch.randint(0, 999, (50,))
    exact = x.detach().double().requires_grad_()
    found = positions.rotary(x, places)
    expected = without(lambda: positions.rotary(exact, places))
    pairs = [found, *gradients(found, [x])], [expected, *gradients(expected, [exact])]
    assert_close(*pairs, dtype)


def test_a_table_made_in_inference_mode_serves_training():
    positions.turns.cache_clear()
    with torch.inference_mode():
        places = torch.arange(3)
        positions.rotary(torch.randn(3, 2, 8), places)
    x = torch.randn(3, 2, 8, requires_grad=True)
    assert positions.rotary(x, places).sum().backward() is None


@pytest.mark.parametrize(
    "places",
    [[-1, 3], [0, positions.LONGEST_TABLE], [0.5, 2.0], []],
    ids=["before", "beyond", "between", "none"],
)
def test_positions_outside_of_the_table_are_computed(monkeypatch, places):
    x = torch.randn(len(places), 2, 8)
    monkeypatch.setattr(cpu_training, "turned", None)  # not to be called
    assert positions.rotary(x, torch.tensor(places)).shape == x.shape


def test_one_position_serves_all_rows_as_by_the_formula(without):
    x, place = torch.randn(4, 2, 8), torch.tensor([3])
    torch.testing.assert_close(
        positions.rotary(x, place), without(lambda: positions.rotary(x, place))
    )


@pytest.mark.parametrize(
    "shape, places, table",
    [
        ((4, 2, 8), torch.arange(3), torch.zeros(4, 8)),
        ((4, 2, 8), torch.arange(4).int(), torch.zeros(4, 8)),
        ((4, 2, 8), torch.arange(4), torch.zeros(4, 6)),
        ((4, 2, 8), torch.arange(4), torch.zeros(4, 8).double()),
        ((4, 2, 7), torch.arange(4), torch.zeros(4, 7)),
    ],
    ids=["rows", "positions", "width", "table", "odd"],
)
def test_what_does_not_fit_together_is_not_turned(shape, places, table):
    with pytest.raises(ValueError, match=r"positions \(\d,\) do not fit \(4, 2, \d\)"):
        cpu_training.turned(torch.randn(shape), places, table)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_table_does_not_depend_on_the_default_dtype(default):
    x, places = torch.randn(9, 2, 8), torch.arange(9)
    expected = positions.rotary(x, places)
    positions.turns.cache_clear()
    torch.set_default_dtype(default)
    try:
        assert torch.equal(positions.rotary(x, places), expected)
    finally:
        torch.set_default_dtype(torch.float32)


# losses of rows


@pytest.mark.parametrize(
    "targets, counted",
    [([1], None), ([1, 2, 3], None), ([1, 2], [1.0])],
    ids=["few", "many", "shares"],
)
def test_each_row_has_a_target_and_a_weight(targets, counted):
    shares = None if counted is None else torch.tensor(counted)
    with pytest.raises(
        ValueError, match=r"2 rows of logits, \d targets; expected one target and one share per row"
    ):
        cpu_training.row_losses(torch.zeros(2, 5), torch.tensor(targets), 0.0, shares, False)


def test_targets_of_any_whole_numbers_are_read():
    logits, targets = torch.randn(3, 5), torch.tensor([0, 4, 2])
    expected = cpu_training.row_losses(logits, targets, 0.1, None, False)
    assert all(
        map(torch.equal, cpu_training.row_losses(logits, targets.int(), 0.1, None, False), expected)
    )


@on_each_width
def test_logits_that_are_all_large_lose_no_digits():
    logits, targets = torch.randn(50, 30), torch.arange(50) % 30
    far = (logits + 4096.0).requires_grad_()  # rounded here
    expected = label_smoothed_cross_entropy(far.double(), targets, 0.1)
    [grad] = torch.autograd.grad(expected.sum(), far)
    found = far.detach().clone()
    losses, _ = cpu_training.row_losses(found, targets, 0.1, None, True)
    torch.testing.assert_close(losses.double(), expected.detach(), atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(found, grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_target_that_is_none_of_the_logits_is_refused(wrong):
    with pytest.raises(IndexError, match=r"the targets range from -?\d to \d; expected 0 to 4"):
        cpu_training.row_losses(torch.zeros(2, 5), torch.tensor([2, wrong]), 0.0, None, False)


@on_each_width
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("size", [1, 5, 16, 33, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("counted", [False, True])
def test_losses_of_rows_and_their_gradients_are_the_formula(size, smoothing, counted, dtype):
    torch.manual_seed(4)
    logits, targets = (3 * torch.randn(20, size)).to(dtype), torch.randint(size, (20,))
    shares = torch.rand(20) if counted else None
    exact = logits.double().requires_grad_()
    weigh = 1.0 if shares is None else shares.double()
    expected = weigh * label_smoothed_cross_entropy(exact, targets, smoothing)
    [grad] = torch.autograd.grad(expected.sum(), exact)
    looked_at = cpu_training.row_losses(logits.clone(), targets, smoothing, shares, False)
    losses, nlls = cpu_training.row_losses(logits, targets, smoothing, shares, True)
    assert torch.equal(losses, looked_at[0])
    torch.testing.assert_close(losses.double(), expected.detach(), atol=1e-5, rtol=1e-5)
    plain = weigh * F.cross_entropy(exact.detach(), targets, reduction="none")
    torch.testing.assert_close(nlls.double(), plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        logits.double(), grad, atol=1e-6 if dtype == torch.float32 else 1e-2, rtol=1e-2
    )


@on_each_width
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("size", [1, 16, 1001])
@pytest.mark.parametrize("counted", [False, True])
def test_the_agreement_of_two_readings_and_its_gradients_are_the_formula(size, counted, dtype):
    torch.manual_seed(5)
    logits, targets = (3 * torch.randn(20, size)).to(dtype), torch.randint(size, (10,)).repeat(2)
    shares = torch.rand(10).repeat(2) if counted else None
    exact = logits.double().requires_grad_()
    weigh = 1.0 if shares is None else shares.double()
    expected = weigh * label_smoothed_cross_entropy(exact, targets, 0.1)
    expected[:10] += (
        (weigh if shares is None else weigh[:10]) * 3.0 * symmetric_divergence(*exact.chunk(2))
    )
    [grad] = torch.autograd.grad(expected.sum(), exact)
    looked_at = cpu_training.row_losses(logits.clone(), targets, 0.1, shares, False, 3.0)
    plain = cpu_training.row_losses(logits.clone(), targets, 0.1, shares, False)
    losses, nlls = cpu_training.row_losses(logits, targets, 0.1, shares, True, 3.0)
    assert torch.equal(losses, looked_at[0])
    assert torch.equal(nlls, plain[1])
    assert (size == 1) == torch.equal(losses, plain[0])
    torch.testing.assert_close(losses.double(), expected.detach(), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(
        logits.double(), grad, atol=1e-4 if dtype == torch.float32 else 0.1, rtol=1e-2
    )


@on_each_width
@pytest.mark.parametrize("size", [16, 17, 30])
def test_readings_whose_logits_are_all_low_agree_as_any(size):
    torch.manual_seed(6)
    logits, targets = torch.randn(8, size), torch.randint(size, (4,)).repeat(2)
    low = logits - 200.0
    expected = cpu_training.row_losses(logits, targets, 0.1, None, True, 5.0)
    found = cpu_training.row_losses(low, targets, 0.1, None, True, 5.0)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(low, logits, atol=1e-3, rtol=1e-3)


def test_a_reading_without_another_is_refused():
    with pytest.raises(
        ValueError, match=r"3 rows of logits; expected an even number, two readings of each token"
    ):
        cpu_training.row_losses(torch.zeros(3, 5), torch.tensor([1, 2, 3]), 0.1, None, False, 5.0)


def test_logits_stay_where_no_gradient_is_wanted():
    logits = torch.randn(3, 5)
    before = logits.clone()
    cpu_training.row_losses(logits, torch.tensor([0, 4, 2]), 0.1, None, False)
    assert torch.equal(logits, before)


@on_each_width
def test_a_row_of_nan_has_a_loss_of_nan():
    logits = torch.zeros(3, 20)
    logits[0, 3], logits[1, 19], logits[2, 0] = math.nan, math.inf, -math.inf
    losses, _ = cpu_training.row_losses(logits, torch.tensor([1, 1, 1]), 0.0, None, True)
    assert losses[:2].isnan().all()
    torch.testing.assert_close(losses[2], torch.tensor(math.log(19)))


def test_the_control_another_smoothing_differs():
    logits, targets = torch.randn(4, 9), torch.arange(4)
    losses, _ = cpu_training.row_losses(logits.clone(), targets, 0.2, None, False)
    assert not torch.allclose(losses, label_smoothed_cross_entropy(logits, targets, 0.1))
