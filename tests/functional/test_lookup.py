"""Table look-up equals `index_select`, with its gradient, compiled or not."""

import pytest
import torch

from transduct.functional.lookup import lookup, rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compiled", [False, True])
def test_rows_and_their_derivative_are_those_of_a_selection(compiled, dtype):
    torch.manual_seed(1)
    table, index = torch.randn(5, 3).to(dtype).requires_grad_(), torch.tensor([4, 0, 0, 0, 2, 4])
    weight = torch.randn(6, 3).to(dtype)
    take = torch.compile(rows, dynamic=False, backend="aot_eager") if compiled else rows
    found = take(table, index)
    assert torch.equal(found, table[index])
    [grad] = torch.autograd.grad((found * weight).sum(), table)
    expected = torch.zeros(5, 3).index_add(0, index, weight.float()).to(dtype)
    torch.testing.assert_close(grad, expected)
    assert not grad[[1, 3]].any()


def test_the_operators_pass_opcheck():
    table, index = torch.randn(5, 3, requires_grad=True), torch.tensor([4, 0, 0])
    torch.library.opcheck(rows, (table, index))


def test_no_rows():
    assert lookup(torch.zeros(2, 3), torch.tensor([], dtype=torch.int64)).shape == (0, 3)


def test_on_a_cpu_it_is_a_selection():
    table = torch.randn(4, 2, requires_grad=True)
    assert lookup(table, torch.tensor([1])).grad_fn.name() == "IndexSelectBackward0"
