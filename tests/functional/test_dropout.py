"""Dropout drops at its rate, keeps the mean, and belongs to the seed; one pass with its neighbours
changes nothing."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import compiled
from transduct.functional.dropout import activation_dropout, add_dropout, dropout
from transduct.kernels import cpu, cpu_training


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


def seeded(function, *tensors):
    """The output of a function for leaves with these values, and their gradients for a weighted
    sum."""
    torch.manual_seed(3)
    leaves = [x.clone().requires_grad_() for x in tensors]
    output = function(*leaves)
    (output.float() * torch.linspace(-1.0, 1.0, output.numel()).view(output.shape)).sum().backward()
    return [output.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize(
    "library", [pytest.param(True, marks=compiled), False], ids=["kernel", "formula"]
)
@pytest.mark.parametrize("shape", [(0,), (3, 5), (9, 200)])
@pytest.mark.parametrize("rate", [0.3, 0.0])
def test_one_pass_gives_what_its_parts_give(monkeypatch, library, shape, rate):
    if not library:
        monkeypatch.setattr(cpu, "library", lambda: None)
    torch.manual_seed(1)
    x, residual = torch.randn(shape), torch.randn(shape)
    one = seeded(lambda x: activation_dropout(x, F.relu, rate), x)
    assert_equal(one, seeded(lambda x: dropout(F.relu(x), rate), x))
    one = seeded(lambda residual, x: add_dropout(residual, x, rate), residual, x)
    assert_equal(one, seeded(lambda residual, x: residual + dropout(x, rate), residual, x))


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@compiled
def test_one_pass_in_bfloat16_rounds_once():
    torch.manual_seed(1)
    x, residual = (torch.randn(40, 30).bfloat16() for _ in range(2))
    exact = seeded(
        lambda residual, x: (residual.float() + dropout(x.float(), 0.25)).bfloat16(), residual, x
    )
    assert_equal(seeded(lambda residual, x: add_dropout(residual, x, 0.25), residual, x), exact)


@compiled
def test_a_relu_before_dropout_keeps_nan():
    x = torch.full((1, 64), float("nan"))
    assert activation_dropout(x, F.relu, 0.5).isnan().any()
    assert activation_dropout(-x.nan_to_num(1.0), F.relu, 0.5).eq(0.0).all()


@compiled
def test_operands_of_other_shapes_and_dtypes_are_added_by_the_formula():
    torch.manual_seed(1)
    for residual in (torch.randn(5), torch.randn(3, 5).double()):
        found = add_dropout(residual, torch.ones(3, 5), 0.5)
        assert found.dtype == residual.dtype
        assert set((found - residual).flatten().round(decimals=4).tolist()) <= {0.0, 2.0}
    with pytest.raises(AssertionError, match="the kernel would read foreign memory"):
        cpu_training.dropped(torch.ones(3, 5), 9, added=torch.ones(5))
