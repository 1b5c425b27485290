"""The Triton kernels sum what PyTorch sums, on a GPU or in Triton's interpreter."""

import pytest
import torch

from tests.kernels.on_triton import DEVICE, passes
from transduct.functional import lookup
from transduct.kernels import triton_rows as ours

pytestmark = pytest.mark.gpu
TYPES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
CHUNK = ours.CHUNK


def gradient(count, size, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, size, generator=generator).to(DEVICE, dtype)


def check(grad, index, count):
    expected = torch.zeros(count, grad.shape[1], dtype=torch.float64, device=DEVICE)
    expected.index_add_(0, index, grad.double())
    found = ours.row_sums(grad, index, count)
    assert found.dtype == grad.dtype
    assert not found[expected.abs().sum(1) == 0].any()
    error = float((found.double() - expected).norm())
    assert error <= TYPES[grad.dtype] * float(expected.norm())


def ids(kind):
    """Ids of each length and place of runs that the kernels tell apart."""
    generator = torch.Generator().manual_seed(2)
    found = {
        "none": [],
        "one": [3],
        "all equal": [5] * (3 * CHUNK + 1),
        "all different": list(range(9)),
        "runs that end with a chunk": [1] * CHUNK + [2] * 2 * CHUNK + [3] * CHUNK,
        "runs within a chunk": [1] * (CHUNK - 1) + [2] * 2 + [4] * (2 * CHUNK - 1) + [8] * 3,
        "drawn": torch.randint(3, (5 * CHUNK,), generator=generator).square().tolist(),
    }[kind]
    order = torch.randperm(len(found), generator=generator)
    return torch.tensor(found, dtype=torch.int64)[order].to(DEVICE)


@pytest.mark.parametrize(
    "kind",
    [
        *("none", "one", "all equal", "all different"),
        *("runs that end with a chunk", "runs within a chunk", "drawn"),
    ],
)
def test_each_row_gets_the_sum_of_its_copies(kind):
    index = ids(kind)
    check(gradient(len(index), 20), index, 10)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("size", [1, 24, ours.COLUMNS + 3])
def test_rows_of_any_width_and_type(size, dtype):
    index = ids("drawn")
    check(gradient(len(index), size, dtype), index, 5)


@pytest.mark.parametrize("count", [2**15 - 1, 2**15])
def test_ids_are_as_wide_as_they_must_be(count):
    index = torch.tensor([count - 1, 0, count - 1], device=DEVICE)
    found = ours.row_sums(torch.ones(3, 1, device=DEVICE), index[:0], 1)
    assert found.tolist() == [[0.0]]
    if DEVICE.type == "cuda":  # Triton's interpreter would run a program for each row of the table
        check(gradient(3, 2), index, count)


def test_copies_are_summed_in_the_order_of_the_batch():
    """Which shows in the last digits."""
    grad, index = gradient(CHUNK // 2, 8), torch.zeros(CHUNK // 2, dtype=torch.int64, device=DEVICE)
    expected = torch.zeros(8, device=DEVICE)
    for rows in grad.split(ours.ROWS):
        expected = expected + rows.double().sum(0)
    found = ours.row_sums(grad, index, 1)[0]
    torch.testing.assert_close(found, expected.float())
    assert torch.equal(found, ours.row_sums(grad, index, 1)[0])


def test_lookup_uses_these_sums_for_its_gradient(monkeypatch):
    monkeypatch.setattr(lookup, "takes", lambda *_: True)
    calls, kernel = [], lookup.row_sums
    monkeypatch.setattr(lookup, "row_sums", lambda *given: calls.append(0) or kernel(*given))
    table = gradient(10, 8).requires_grad_()
    index, pull = ids("all different"), gradient(9, 8)
    [found] = torch.autograd.grad(lookup.rows(table, index), table, pull)
    [expected] = torch.autograd.grad(table.index_select(0, index), table, pull)
    torch.testing.assert_close(found, expected)
    assert calls == [0]


def test_the_trial_is_passed_and_notices_a_wrong_number(monkeypatch):
    for dtype in TYPES:
        assert passes(ours.trial(DEVICE, dtype))
    right = ours.row_sums
    monkeypatch.setattr(ours, "row_sums", lambda *given: 1.001 * right(*given))
    assert not passes(ours.trial(DEVICE, torch.float32))
