"""Dropout in Triton equals its formula, given the mask, on a GPU or in Triton's interpreter."""

import pytest
import torch

from tests.helpers import randomise
from tests.kernels.on_triton import DEVICE, passes
from transduct.blocks.transformer import FeedForward
from transduct.functional import dropout
from transduct.kernels import triton_dropout as ours
from transduct.kernels.cuda_graphs import Replay
from transduct.training import fused

pytestmark = pytest.mark.gpu
TYPES = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
RATE = 0.3
SCALE = 65536 / (65536 - ours.threshold(RATE))


def drawn(*shape, seed=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def seeded(*given, **named):
    torch.manual_seed(3)
    return ours.dropped(*given, **named)


def close(found, expected, tolerance):
    assert found.shape == expected.shape
    found, expected = found.detach().double(), expected.detach()
    assert float((found - expected).norm()) <= tolerance * float(expected.norm())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "activation, biased",
    [("none", False), ("relu", True), ("relu", False), ("gelu", True), ("gelu_tanh", True)],
)
def test_results_and_gradients_are_the_formulas(activation, biased, dtype):
    shape = ours.STRETCH + 3, ours.COLUMNS + 13
    x, bias, grad = drawn(*shape, dtype=dtype), drawn(shape[1], seed=2), drawn(*shape, seed=4)
    mask = seeded(torch.ones(shape, device=DEVICE), RATE) != 0
    leaves = [each.requires_grad_() for each in ([x, bias] if biased else [x])]
    exact = [each.detach().double().requires_grad_() for each in leaves]
    found = seeded(x, RATE, activation, bias if biased else None)
    expected = ours.FORMULAS[activation](sum(exact)) * mask * SCALE
    assert found.dtype == dtype
    close(found, expected, TYPES[dtype])
    gradients = torch.autograd.grad(found, leaves, grad.to(dtype))
    wanted = torch.autograd.grad(expected, exact, grad.double())
    for one, other, leaf in zip(gradients, wanted, leaves, strict=True):
        assert one.dtype == leaf.dtype
        close(one, other, 2 * TYPES[dtype])


def test_a_residual_keeps_its_dtype():
    x, added = drawn(5, 21, dtype=torch.bfloat16), drawn(5, 21, seed=2)
    leaves = [x.requires_grad_(), added.requires_grad_()]
    mask = seeded(torch.ones(5, 21, device=DEVICE), RATE) != 0
    found = seeded(x, RATE, added=added)
    torch.testing.assert_close(found, added + x.float() * mask * SCALE)
    grad = drawn(5, 21, seed=3)
    of_x, of_added = torch.autograd.grad(found, leaves, grad)
    assert torch.equal(of_added, grad)
    assert of_x.dtype == torch.bfloat16
    close(of_x, (grad * mask * SCALE).double(), TYPES[torch.bfloat16])
    with pytest.raises(AssertionError, match="the backward pass needs what came of the ReLU"):
        ours.dropped(x, RATE, "relu", added=added)


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
def test_each_element_is_dropped_at_its_rate_and_by_itself(rate):
    gone = (seeded(torch.ones(160, 1001, device=DEVICE), rate) == 0).double()
    deviation = (rate * (1 - rate)) ** 0.5
    assert abs(float(gone.mean()) - rate) < 4 * deviation / gone.numel() ** 0.5 + 1 / 65536
    for axis in (0, 1):  # neither a row nor a column is drawn for all
        means = gone.mean(axis)
        assert float((means - rate).abs().max()) < 6 * deviation / gone.shape[axis] ** 0.5 + 0.01
    sharing = gone[:, :1000].reshape(-1, 8)  # eight elements share a draw
    if rate > 0.01:
        correlations = torch.corrcoef(sharing.T) - torch.eye(8, device=DEVICE)
        assert float(correlations.abs().max()) < 5 / len(sharing) ** 0.5


def test_the_mask_follows_the_seed_and_no_tile():
    ones = torch.ones(40, 600, device=DEVICE)
    first = seeded(ones, RATE)
    assert torch.equal(first, seeded(ones, RATE))
    assert not torch.equal(first, ours.dropped(ones, RATE))  # the next draw of the same generator
    assert torch.equal(first[:7], seeded(ones[:7], RATE))


def test_at_rate_zero_everything_is_kept_and_next_to_one_something_is_left_to_scale():
    x = drawn(3, 9)
    assert torch.equal(seeded(x, 0.0, "relu"), x.relu())
    assert seeded(x, 0.999999).isfinite().all()
    assert seeded(x[:0], RATE).shape == (0, 9)


def test_relu_keeps_nan_and_its_gradient():
    x = torch.full((1, 64), float("nan"), device=DEVICE, requires_grad=True)
    found = seeded(x, 0.5, "relu")
    [grad] = torch.autograd.grad(found.sum(), x)
    assert found.isnan().any()
    assert not found.isnan().all()
    assert grad.isfinite().all()


def test_formulas_use_it_on_a_gpu(monkeypatch):
    """On a GPU they do so by themselves; here the question is answered for them."""
    monkeypatch.setattr(dropout, "_at_once", lambda *_: True)
    x, residual = drawn(5, 20), drawn(5, 20, seed=2)
    calls = {
        "alone": (lambda: dropout.dropout(x.view(5, 4, 5), RATE), seeded(x.view(20, 5), RATE)),
        "added": (lambda: dropout.add_dropout(residual, x, RATE), seeded(x, RATE, added=residual)),
    }
    for function, expected in calls.values():
        torch.manual_seed(3)
        assert torch.equal(function().reshape(expected.shape), expected)


def test_a_feed_forward_network_takes_its_bias_and_activation_along(monkeypatch):
    monkeypatch.setattr(fused, "takes", lambda *_: True)
    x, network = drawn(5, 20), FeedForward(20, 30, 0.0, "relu").to(DEVICE)
    randomise(network.inner)
    assert fused.fuse_passes(network) == [network]
    expected = network.eval()(x)
    torch.testing.assert_close(network.train()(x), expected)
    [of_bias] = torch.autograd.grad(network(x).square().sum(), network.inner.bias)
    [wanted] = torch.autograd.grad(network.eval()(x).square().sum(), network.inner.bias)
    torch.testing.assert_close(of_bias, wanted, rtol=1e-4, atol=1e-4)


def test_the_operators_pass_opcheck():
    x, bias = drawn(3, 20).requires_grad_(), drawn(20, seed=2).requires_grad_()
    seed = torch.tensor([5], device=DEVICE)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    for added, activation in ((None, "gelu"), (drawn(3, 20), "none")):
        given = (x, bias, added, seed, ours.threshold(RATE), activation)
        torch.library.opcheck(torch.ops.transduct.dropped.default, given, test_utils=tests)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_the_compiler_makes_one_graph_of_it():
    torch._dynamo.reset()
    x, bias = drawn(3, 20).requires_grad_(), drawn(20, seed=2).requires_grad_()
    compiled = torch.compile(ours.dropped, backend="aot_eager", fullgraph=True, dynamic=False)
    results = []
    for function in (ours.dropped, compiled):
        torch.manual_seed(3)
        found = function(x, RATE, "gelu", bias)
        results.append([found, *torch.autograd.grad(found.sum(), (x, bias))])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("activation", ours.FORMULAS)
def test_the_trial_is_passed_and_notices_a_wrong_number(monkeypatch, activation):
    for dtype in TYPES:
        assert passes(ours.trial(DEVICE, dtype, activation))
    right = ours._dropped
    monkeypatch.setattr(ours, "_dropped", lambda *given: 1.001 * right(*given))
    assert not passes(ours.trial(DEVICE, torch.float32, activation))
    monkeypatch.setattr(ours, "_dropped", lambda *given: torch.ones_like(given[0]))
    assert not passes(ours.trial(DEVICE, torch.float32, activation))  # nothing is dropped


@pytest.mark.skipif(DEVICE.type != "cuda", reason="graphs need a CUDA device")
def test_a_captured_graph_draws_anew_as_its_seed_says():
    captured = Replay(lambda x: ours.dropped(x, RATE), DEVICE, True)
    ones, results = torch.ones(40, 600), []
    for seed in (1, 1, 2, 1):  # the first call runs, the second is captured, and both are replayed
        torch.manual_seed(seed)
        results.append(captured(ones))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[1], results[3])
    assert not torch.equal(results[1], results[2])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.skipif(DEVICE.type != "cuda", reason="as long as compilers take on a CPU")
def test_compiled_too_the_backward_pass_draws_what_the_forward_pass_drew():
    torch._dynamo.reset()
    compiled, results = torch.compile(ours.dropped, dynamic=False), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        ones = torch.ones(40, 600, device=DEVICE, requires_grad=True)
        found = compiled(ones, RATE)
        results.append(found)
        assert torch.equal(torch.autograd.grad(found.sum(), ones)[0], found)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[1], results[2])
