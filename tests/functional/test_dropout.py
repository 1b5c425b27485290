"""Dropout drops at its rate, keeps the mean, and belongs to the seed."""

import pytest
import torch

from transduct.functional.dropout import dropout


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
def test_the_rate_and_the_scale_are_as_asked(rate):
    torch.manual_seed(1)
    x = torch.ones(1001, 401)
    dropped = dropout(x, rate)
    kept = dropped[dropped != 0]
    assert dropped.shape == x.shape
    deviation = (rate * (1 - rate) / x.numel()) ** 0.5
    assert abs(1 - kept.numel() / x.numel() - rate) < 4 * deviation + 1 / 65536
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-3, atol=0.0)
    assert abs(float(dropped.mean()) - 1) < 4 * deviation / (1 - rate)


def test_a_rate_next_to_one_leaves_something_to_scale():
    assert dropout(torch.ones(9), 0.999999).isfinite().all()


def test_elements_that_share_a_draw_are_dropped_independently():
    torch.manual_seed(1)
    gone = (dropout(torch.ones(100_000), 0.5) == 0).view(-1, 4).double()
    correlations = torch.corrcoef(gone.T) - torch.eye(4)
    assert float(correlations.abs().max()) < 0.03


def test_nothing_is_dropped_at_rate_zero_or_outside_training():
    x = torch.randn(5)
    assert dropout(x, 0.0) is x
    assert dropout(x, 0.5, training=False) is x


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 3, 7)])
def test_dropout_follows_the_seed_and_gradients_follow_dropout(shape):
    x = torch.ones(shape, requires_grad=True)
    torch.manual_seed(3)
    first = dropout(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x, 0.3))
    first.sum().backward()
    assert torch.equal(x.grad, first.detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dropout_keeps_the_dtype(dtype):
    assert dropout(torch.ones(8, dtype=dtype), 0.5).dtype == dtype
