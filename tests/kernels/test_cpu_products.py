"""Products by oneDNN and by our kernel equal PyTorch's, including gradients; without either,
PyTorch's are used."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import gradients
from transduct import devices
from transduct.kernels import cpu, cpu_products
from transduct.kernels.cpu_products import FEWEST, add_product, linear, product

NEAR = {"atol": 1e-5, "rtol": 1e-5}
FASTER, SPLITS = cpu_products._faster.__wrapped__, cpu_products._splits
amx = pytest.mark.skipif(
    not SPLITS(), reason="the processor has no AMX for bfloat16, or the kernel is not compiled"
)
onednn = pytest.mark.skipif(
    not devices.has_onednn(), reason="PyTorch brings no oneDNN for this processor"
)
SHAPES = [
    (0, 16, 8),
    (1, 16, 8),
    (FEWEST - 1, 48, 40),
    (FEWEST, 48, 40),
    (FEWEST, 1, 1),
    (FEWEST + 37, 70, 130),  # the backward products are above the threshold too
    ((3, 5), 16, 8),
    ((4, 30), 80, 65),
    ((2, 3, 40), 80, 65),
]


@pytest.fixture(autouse=True)
def preferred(monkeypatch):
    """Tests oneDNN whatever the processor."""
    monkeypatch.setattr(cpu_products, "_faster", devices.has_onednn)
    monkeypatch.setattr(cpu_products, "_splits", lambda: False)


@pytest.fixture
def splits(monkeypatch):
    """Tests our kernel, and refuses oneDNN."""
    monkeypatch.setattr(cpu_products, "_faster", lambda: False)
    monkeypatch.setattr(cpu_products, "_splits", lambda: True)


@pytest.fixture
def without_onednn(monkeypatch):
    monkeypatch.setattr(cpu_products, "_faster", lambda: False)
    monkeypatch.setattr(cpu, "library", lambda: None)


@pytest.fixture
def calls(monkeypatch):
    """Records the calls of oneDNN."""
    made = []
    ask = torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda *given: made.append(given) or ask(*given)
    )
    return made


def tensors(rows, width, outputs, bias=True, dtype=torch.float32):
    """x, weight and bias, which require gradients."""
    torch.manual_seed(1)
    size = (rows,) if isinstance(rows, int) else rows
    x, weight = (
        torch.randn(*size, width, dtype=dtype),
        torch.randn(outputs, width, dtype=dtype) / width**0.5,
    )
    return [
        t.requires_grad_()
        for t in (x, weight, *([torch.randn(outputs, dtype=dtype)] if bias else []))
    ]


def assert_same(found, expected, inputs, other=None, **near):
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    torch.testing.assert_close(found, expected, **near)
    for one, two in zip(
        gradients(found, inputs), gradients(expected, other or inputs), strict=True
    ):
        torch.testing.assert_close(one, two, **near)


@pytest.mark.parametrize("rows, width, outputs", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_and_its_gradients_are_torchs(rows, width, outputs, bias):
    given = tensors(rows, width, outputs, bias)
    assert_same(linear(*given), F.linear(*given), given, **NEAR)


@pytest.mark.parametrize("rows, width, outputs", SHAPES, ids=str)
def test_without_the_library_all_is_torchs(without_onednn, calls, rows, width, outputs):
    given = tensors(rows, width, outputs)
    assert_same(linear(*given), F.linear(*given), given, atol=0.0, rtol=0.0)
    if isinstance(rows, int):
        assert torch.equal(product(*given[:2]), F.linear(*given[:2]))
    assert not calls


@onednn
def test_many_rows_use_onednn_and_few_do_not(calls):
    few, many = tensors(FEWEST - 1, 70, 80), tensors(FEWEST, 70, 80)
    gradients(linear(*few), few)
    assert not calls
    gradients(linear(*many), many)
    assert len(calls) == 3, "forward, the gradient of x and that of the weight"


@pytest.mark.parametrize("turned", ["x", "weight", "both"])
def test_strides_may_be_any(turned):
    x, weight = torch.randn(90, 200)[:, ::2], torch.randn(300, 100)[::3]
    if turned != "weight":
        x = x.T.contiguous().T
    if turned != "x":
        weight = weight.T.contiguous().T
    given = [t.requires_grad_() for t in (x, weight, torch.randn(100))]
    assert_same(linear(*given), F.linear(*given), given, atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(product(x, weight), x @ weight.T, atol=5e-5, rtol=1e-5)
    row = given[0][:1].expand(90, -1)  # of which there is one
    torch.testing.assert_close(
        linear(row, *given[1:]), F.linear(row, *given[1:]), atol=5e-5, rtol=1e-5
    )


def test_a_gradient_may_have_any_strides():
    given = tensors(70, 80, 90)
    for turn in (
        lambda y: y.T.contiguous().T,
        lambda y: y.sum() * torch.ones(70, 90),
        lambda y: y[:, ::2],
    ):
        assert_same(turn(linear(*given)), turn(F.linear(*given)), given, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize(
    "rows, width, outputs",
    [(70, 80, 90), (3, 80, 90), (70, 3, 90), (70, 80, 3), (0, 4, 4)],
    ids=str,
)
def test_a_product_is_torchs(rows, width, outputs):
    a, b = torch.randn(rows, width), torch.randn(outputs, width)
    torch.testing.assert_close(product(a, b), a @ b.T, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_under_autocast_it_is_torchs(calls, bias):
    given = tensors(70, 80, 90, bias)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = linear(*given), F.linear(*given)
    assert found.dtype == torch.bfloat16
    assert_same(found, expected, given, atol=0.0, rtol=0.0)
    assert not calls


@onednn
def test_a_backward_pass_outside_of_autocast_goes_the_way_of_its_forward_pass(calls):
    given = tensors(70, 80, 90)
    found = linear(*given)
    with torch.autocast("cpu", torch.bfloat16):
        grads = gradients(found, given)
    assert {grad.dtype for grad in grads} == {torch.float32}
    for one, two in zip(grads, gradients(F.linear(*given), given), strict=True):
        torch.testing.assert_close(one, two, **NEAR)
    assert len(calls) == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_take_the_plain_path(calls, dtype):
    given = tensors(70, 80, 90, dtype=dtype)
    assert_same(linear(*given), F.linear(*given), given, atol=0.0, rtol=0.0)
    assert torch.equal(product(*given[:2]), F.linear(*given[:2]))
    assert not calls


@onednn
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2)], ids=str)
def test_only_gradients_that_are_needed_are_computed(calls, wanted):
    given = [t.detach() for t in tensors(70, 80, 90)]
    for number in wanted:
        given[number].requires_grad_()
    inputs = [given[number] for number in wanted]
    assert_same(linear(*given), F.linear(*given), inputs, **NEAR)
    assert len(calls) == 1 + (0 in wanted) + (1 in wanted)


@pytest.mark.parametrize(
    "maker, faster", [("GenuineIntel", False), ("AuthenticAMD", True), (None, True)]
)
def test_onednn_is_preferred_where_it_is_faster(monkeypatch, tmp_path, maker, faster):
    about = tmp_path / "cpuinfo"
    if maker:
        about.write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
    monkeypatch.setattr(devices, "PROCESSOR", about)
    assert devices.made_by_intel.__wrapped__() is (maker == "GenuineIntel")
    monkeypatch.setattr(cpu_products, "made_by_intel", devices.made_by_intel.__wrapped__)
    assert FASTER() is (faster and devices.has_onednn())


# our kernel


@amx
@pytest.mark.parametrize(
    "rows, width, outputs", [*SHAPES, (1030, 64, 1100), (70, 2100, 96)], ids=str
)
@pytest.mark.parametrize("bias", [False, True])
def test_split_products_give_a_layer_and_its_gradients(splits, rows, width, outputs, bias):
    given = tensors(rows, width, outputs, bias)
    assert_same(linear(*given), F.linear(*given), given, atol=1e-4, rtol=1e-5)


@amx
@pytest.mark.parametrize("turned", ["neither", "a", "b", "both"])
@pytest.mark.parametrize(
    "rows, width, outputs", [(64, 64, 64), (65, 97, 130), (130, 1057, 66)], ids=str
)
def test_split_products_are_as_exact_as_float32(splits, turned, rows, width, outputs):
    torch.manual_seed(2)
    a, b = torch.randn(rows, width), torch.randn(outputs, width)
    a, b = (
        x.T.contiguous().T if turned in ("both", name) else x for x, name in ((a, "a"), (b, "b"))
    )
    exact = a.double() @ b.double().T
    errors = [(found.double() - exact).norm() / exact.norm() for found in (product(a, b), a @ b.T)]
    assert errors[0] < 1.5 * errors[1] < 1e-6
    assert (
        product(a.bfloat16().float(), b.bfloat16().float()) - exact
    ).norm() / exact.norm() > 1e-4  # one part is not


@amx
def test_all_24_bits_of_a_number_are_kept(splits):
    x = torch.randn(70, 96) * 10.0 ** torch.randint(-20, 20, (70, 96))
    assert torch.equal(product(x, torch.eye(96)), x)
    assert torch.equal(product(torch.eye(96), x), x.T)


@amx
@pytest.mark.parametrize("bits", [0x7FC00000, -1, 0x7F800001, -0x7FFFFF])
@pytest.mark.parametrize("side", [0, 1])
def test_nan_stays_nan_in_split_products(splits, bits, side):
    a, b = torch.zeros(70, 80), torch.zeros(90, 80)
    (a, b)[side][7, 5] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    found = product(a, b).isnan()
    assert found.select(side, 7).all()
    assert found.sum() == found.shape[1 - side]


@amx
def test_split_products_do_not_depend_on_other_rows_or_the_number_of_threads(splits):
    a, b = torch.randn(300, 200), torch.randn(150, 200)
    whole = product(a, b)
    assert torch.equal(product(a[30:110], b), whole[30:110])
    assert torch.equal(product(a, b[20:90]), whole[:, 20:90])
    torch.set_num_threads(3)
    try:
        assert torch.equal(product(a, b), whole)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("kernel", [pytest.param(True, marks=amx), False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows, width, outputs", [(70, 80, 90), (3, 80, 90)], ids=str)
def test_a_product_is_added(monkeypatch, kernel, dtype, rows, width, outputs):
    monkeypatch.setattr(cpu_products, "_splits", lambda: kernel)
    a, b, out = (
        torch.randn(rows, width),
        torch.randn(outputs, width),
        torch.randn(rows, outputs, dtype=dtype),
    )
    expected = out + (a @ b.T)
    add_product(out, a, b)
    torch.testing.assert_close(out, expected, atol=5e-5, rtol=1e-5)


@amx
def test_views_are_read_as_they_are(splits):
    a, b = torch.randn(70, 160)[:, ::2], torch.randn(90, 80)
    for x in (
        a,
        a[:1].expand(70, -1),
        torch.randn(80, 1).expand(80, 70).T,
        torch._neg_view(torch.randn(70, 80)),
    ):
        torch.testing.assert_close(product(x, b), x @ b.T, atol=5e-5, rtol=1e-5)
    out = torch.randn(90, 70).T  # not contiguous
    expected = out + a @ b.T
    add_product(out, a, b)
    torch.testing.assert_close(out, expected, atol=5e-5, rtol=1e-5)


@amx
def test_what_does_not_fit_is_refused_by_torch(splits):
    x, weight = torch.randn(70, 80), torch.randn(90, 80)
    for wrong in (
        (x, weight[:, :70]),
        (x[:, :70], weight),
        (x, weight, torch.randn(80)),
        (x, weight.double()),
    ):
        with pytest.raises(RuntimeError):
            linear(*wrong)
    torch.testing.assert_close(
        linear(x, weight, torch.ones(1)), F.linear(x, weight) + 1, atol=5e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    "library, answer, known", [(None, None, False), (True, 0, False), (True, 1, True)]
)
def test_our_kernel_is_used_where_the_processor_has_amx(monkeypatch, library, answer, known):
    native = SimpleNamespace(splits=lambda: answer)
    monkeypatch.setattr(cpu, "library", lambda: native if library else None)
    assert SPLITS.__wrapped__() is known
