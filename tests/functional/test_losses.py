"""The fused loss is torch's cross-entropy, however it is cut into pieces."""

import pytest
import torch
from torch.nn import functional as F

from transduct.functional import losses


@pytest.fixture
def example():
    torch.manual_seed(1)
    return torch.randn(10, 6), torch.randn(7, 6), torch.randint(7, (10,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_label_smoothing_is_torchs(example, smoothing):
    hidden, weight, targets = example
    logits = hidden @ weight.T
    expected = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(losses.label_smoothed_cross_entropy(logits, targets, smoothing), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("chunk", [1, 7 * 3, 7 * 10, losses.CHUNK])
def test_the_projected_loss_and_its_gradients_are_torchs_in_any_pieces(example, monkeypatch, chunk, smoothing):
    monkeypatch.setattr(losses, "CHUNK", chunk)
    hidden, weight, targets = (x.requires_grad_(x.is_floating_point()) for x in example)
    loss, nll = losses.projected_cross_entropy(hidden, weight, targets, smoothing)
    logits = F.linear(hidden, weight)
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, F.cross_entropy(logits, targets, reduction="sum"))
    assert not nll.requires_grad
    found = torch.autograd.grad(3.0 * loss, (hidden, weight))  # an average or a scale comes after
    for mine, reference in zip(found, torch.autograd.grad(3.0 * expected, (hidden, weight))):
        torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("frozen", ["hidden", "weight", "both"])
def test_what_needs_no_gradient_changes_no_number(example, frozen):
    hidden, weight, targets = example
    expected = losses.projected_cross_entropy(hidden.clone().requires_grad_(), weight, targets, 0.1)[0]
    hidden.requires_grad_(frozen == "weight")
    weight.requires_grad_(frozen == "hidden")
    loss, _ = losses.projected_cross_entropy(hidden, weight, targets, 0.1)
    assert loss.requires_grad == (frozen != "both")
    assert torch.equal(loss, expected)


def test_an_empty_batch_loses_nothing():
    hidden = torch.empty(0, 6, requires_grad=True)
    loss, nll = losses.projected_cross_entropy(hidden, torch.randn(7, 6), torch.empty(0, dtype=torch.int64))
    loss.backward()
    assert (loss.item(), nll.item(), hidden.grad.shape) == (0.0, 0.0, (0, 6))


def test_under_autocast_the_projection_alone_is_rounded(example):
    hidden, weight, targets = (x.requires_grad_(x.is_floating_point()) for x in example)
    expected, _ = losses.projected_cross_entropy(hidden, weight, targets, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss, nll = losses.projected_cross_entropy(hidden, weight, targets, 0.1)
    assert loss.dtype == nll.dtype == torch.float32
    assert not torch.equal(loss, expected)
    torch.testing.assert_close(loss, expected, rtol=0.01, atol=0.0)
    for mine, reference in zip(*(torch.autograd.grad(x, (hidden, weight)) for x in (loss, expected))):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, reference, rtol=0.05, atol=0.05)
