"""The Triton kernel equals torch's cross-entropy and its gradient, on a GPU or in Triton's
interpreter."""

import pytest
import torch
from torch.nn import functional as F

from tests.kernels.on_triton import DEVICE, passes
from transduct.functional import losses
from transduct.kernels import triton_losses as ours

pytestmark = pytest.mark.gpu
TYPES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def example(count, size, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    logits = 3.0 * torch.randn(count, size, generator=generator)
    return logits.to(DEVICE, dtype), torch.randint(size, (count,), generator=generator).to(DEVICE)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("size", [1, 7, ours.BLOCK, 2 * ours.BLOCK + 5])
def test_losses_and_gradients_are_torchs(size, smoothing, dtype):
    logits, targets = example(4, size, dtype)
    shares = torch.tensor([1.0, 0.0, 1.0, 0.5], device=DEVICE)
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, targets, reduction="none", label_smoothing=smoothing) * shares
    plain = F.cross_entropy(exact, targets, reduction="none") * shares
    [grad] = torch.autograd.grad(expected.sum(), exact)
    found, nlls = ours.row_losses(logits, targets, smoothing, shares, True)
    torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(nlls.double(), plain.detach(), rtol=1e-5, atol=1e-5)
    assert not logits[1].any()
    assert float((logits.double() - grad).norm()) <= TYPES[dtype] * max(float(grad.norm()), 1.0)


def test_logits_whose_gradient_nobody_wants_stay_as_they_are():
    logits, targets = example(3, 50)
    before = logits.clone()
    found, nlls = ours.row_losses(logits, targets, 0.0, None, False)
    assert torch.equal(logits, before)
    assert torch.equal(found, nlls)
    torch.testing.assert_close(found, F.cross_entropy(before, targets, reduction="none"))


def test_large_logits_do_not_overflow():
    logits, targets = example(3, 50)
    expected = F.cross_entropy(100.0 * logits, targets, reduction="none")
    found, _ = ours.row_losses(100.0 * logits, targets, 0.0, None, True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("counted", [None, torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_projected_loss_is_the_same_by_it(monkeypatch, smoothing, counted):
    torch.manual_seed(1)
    hidden, weight = (torch.randn(n, 6, device=DEVICE, requires_grad=True) for n in (5, 7))
    targets, found = torch.randint(7, (5,), device=DEVICE), []
    counted = None if counted is None else counted.to(DEVICE)
    for fits in (False, True):
        monkeypatch.setattr(
            losses, "_fused", lambda _, fits=fits: ours.row_losses if fits else None
        )
        loss, nll = losses.projected_cross_entropy(hidden, weight, targets, smoothing, counted)
        found.append([loss, nll, *torch.autograd.grad(loss, (hidden, weight))])
    torch.testing.assert_close(found[1], found[0])


def test_without_smoothing_a_logit_may_be_minus_infinity():
    logits = torch.tensor([[0.5, float("-inf"), 2.0]], device=DEVICE)
    losses_, _ = ours.row_losses(logits.clone(), torch.tensor([0], device=DEVICE), 0.0, None, False)
    torch.testing.assert_close(
        losses_, torch.nn.functional.cross_entropy(logits, torch.tensor([0], device=DEVICE))[None]
    )


def test_the_operator_passes_opcheck():
    logits, targets = example(3, 50)
    tests = ("test_schema", "test_faketensor")
    given = (logits, targets, 0.1, None, True)
    torch.library.opcheck(torch.ops.transduct.row_losses.default, given, test_utils=tests)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_the_compiler_makes_one_graph_of_the_projected_loss(monkeypatch):
    monkeypatch.setattr(losses, "takes", lambda *_: True)
    torch._dynamo.reset()
    hidden, weight = (torch.randn(n, 6, device=DEVICE, requires_grad=True) for n in (5, 7))
    targets = torch.randint(7, (5,), device=DEVICE)
    compiled = torch.compile(
        losses.projected_cross_entropy, backend="aot_eager", fullgraph=True, dynamic=False
    )
    found = [
        function(hidden, weight, targets, 0.1)[0]
        for function in (losses.projected_cross_entropy, compiled)
    ]
    one, other = ([loss, *torch.autograd.grad(loss, (hidden, weight))] for loss in found)
    torch.testing.assert_close(one, other)


def test_the_trial_is_passed_and_notices_a_wrong_number(monkeypatch):
    assert passes(ours.trial(DEVICE, torch.float32))
    assert passes(ours.trial(DEVICE, torch.bfloat16))
    right = ours.row_losses
    monkeypatch.setattr(
        ours, "row_losses", lambda logits, *given: [1.001 * x for x in right(logits, *given)]
    )
    assert not passes(ours.trial(DEVICE, torch.float32))
    monkeypatch.setattr(ours, "row_losses", lambda logits, *given: right(logits.clone(), *given))
    assert not passes(ours.trial(DEVICE, torch.float32))  # the gradient is not in its place
