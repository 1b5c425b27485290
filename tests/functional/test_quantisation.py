"""Quantised rows err by at most half a step, and no row depends on another."""

import pytest
import torch
from torch.nn import functional as F

from transduct.functional.quantisation import STEPS, int8_linear, quantise_rows


def test_quantisation_errs_by_at_most_half_a_step():
    torch.manual_seed(1)
    x = torch.randn(5, 64) * torch.tensor([0.0, 1e-6, 1.0, 30.0, 1e6])[:, None]
    values, steps = quantise_rows(x)
    assert values.dtype == torch.int8
    assert values[1:].abs().amax(1).tolist() == [STEPS] * 4
    assert ((values * steps[:, None] - x).abs() <= 0.5001 * steps[:, None]).all()


@pytest.mark.parametrize("rows", [0, 1, 3, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_near_the_product_of_numbers(rows, bias):
    torch.manual_seed(1)
    x, weight = torch.randn(rows, 96), torch.randn(50, 96)
    b = torch.randn(50) if bias else None
    found = int8_linear(x, *quantise_rows(weight), b)
    expected = F.linear(x, weight, b)
    assert found.shape == expected.shape
    if rows:
        assert (found - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("width", [1, 2, 33])
def test_the_product_is_that_of_the_integers_exactly(width):
    torch.manual_seed(1)
    x, weight = torch.randn(7, width), torch.randn(9, width)
    (rows, of_rows), (values, steps) = quantise_rows(x), quantise_rows(weight)
    exact = (rows.double() @ values.double().T) * of_rows[:, None].double() * steps.double()
    torch.testing.assert_close(int8_linear(x, values, steps).double(), exact, rtol=1e-6, atol=1e-6)


def test_rows_may_lie_in_any_shape():
    torch.manual_seed(1)
    x, weight = torch.randn(2, 3, 4, 33), quantise_rows(torch.randn(9, 33))
    found = int8_linear(x, *weight)
    assert torch.equal(found.flatten(0, 2), int8_linear(x.flatten(0, 2), *weight))
    assert found.shape == (2, 3, 4, 9)


def test_no_row_depends_on_its_neighbours():
    torch.manual_seed(1)
    x, held = torch.randn(6, 64), quantise_rows(torch.randn(20, 64))
    together = int8_linear(x, *held)
    alone = torch.cat([int8_linear(row[None], *held) for row in x])
    assert torch.equal(together, alone)
    x[1:] *= 1000.0
    assert torch.equal(int8_linear(x, *held)[0], together[0])


def test_the_control_one_step_for_all_rows_would_not_do():
    torch.manual_seed(1)
    x = torch.randn(6, 64)
    step = x.abs().max() / STEPS
    louder = torch.cat((x[:1], 1000.0 * x[1:]))
    assert not torch.equal(
        (x[0] / step).round() * step, (louder[0] / (louder.abs().max() / STEPS)).round()
    )
