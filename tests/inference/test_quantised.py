"""A quantised model is close to the original; all matrices are quantised, and shared tables stay
shared."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import BEGIN, END, compiled, tiny, tokens_of
from transduct.inference import engine
from transduct.inference import quantised as quantised_module
from transduct.inference.quantised import (
    STEPS,
    QuantisedLinear,
    QuantisedTable,
    int8_linear,
    integer_product,
    pack_quantised,
    quantise,
    quantise_rows,
    use_int_mm,
)
from transduct.inference.settings import DecodingConfig


def quantised(**changes):
    model = tiny(**changes)
    other = copy.deepcopy(model)
    quantise(other)
    return model, other


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@torch.inference_mode()
def test_its_logits_are_close(tie):
    model, other = quantised(tie=tie)
    tokens, segments = tokens_of([5, 2, 9])
    target, target_segments = tokens_of([4, 6, 1], 2)
    exact, near = (
        each.logits(each.decode(target, target_segments, each.encode(tokens, segments), segments))
        for each in (model, other)
    )
    assert (near - exact).norm() < 0.05 * exact.norm()
    assert not torch.equal(near, exact)


def test_every_matrix_is_of_integers_and_tied_tables_stay_one():
    _, other = quantised(norm_kind="rms")
    assert not [module for module in other.modules() if isinstance(module, nn.Linear)]
    assert any(isinstance(module, QuantisedLinear) for module in other.modules())
    assert isinstance(other.output_table, QuantisedTable)
    assert other.output_table is other.source_embedding.table is other.target_embedding.table
    matrices = [p for p in other.parameters() if p.ndim > 1]
    assert {p.dtype for p in matrices} == {torch.int8}
    assert not any(p.requires_grad for p in matrices)
    held = sum(p.numel() * p.element_size() for p in other.parameters())
    assert held < 0.4 * sum(4 * p.numel() for p in tiny(norm_kind="rms").parameters())


def test_a_table_gives_its_rows_and_its_products():
    torch.manual_seed(1)
    table = torch.randn(11, 16)
    held, tokens = QuantisedTable(table), torch.tensor([3, 0, 3])
    assert held.shape == table.shape
    torch.testing.assert_close(held.rows(tokens), table[tokens], atol=0.02, rtol=0)
    torch.testing.assert_close(held(table[:2]), table[:2] @ table.T, atol=0.5, rtol=0.02)


def test_a_layer_without_a_bias_has_none():
    layer = nn.Linear(16, 4, bias=False)
    assert QuantisedLinear(layer.weight).bias is None


@pytest.mark.parametrize("beam", [1, 3])
def test_a_sentence_is_the_same_alone_and_in_any_batch(beam):
    _, other = quantised()
    sources = [[3, 4, 5, END], [7, END], [8, 3, 9, 9, 4, END]]
    config, limits = DecodingConfig(beam=beam), [8] * 3
    together = engine.generate(other, sources, limits, config, BEGIN, END)
    alone = [engine.generate(other, [source], [8], config, BEGIN, END)[0] for source in sources]
    for one, two in zip(together, alone, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in two]
        assert [h.score for h in one] == pytest.approx([h.score for h in two], abs=1e-5)


# laid out for the processor


@compiled
def test_every_matrix_is_packed():
    _, model = quantised()
    pack_quantised(model)
    held = [part for part in model.modules() if isinstance(part, QuantisedLinear)]
    assert held
    assert all(part.packed is not None for part in held)


@compiled
def test_a_table_that_is_only_looked_up_in_is_not_packed():
    _, model = quantised(tie="decoder")
    pack_quantised(model)
    assert model.output_table.packed is not None
    assert model.source_embedding.table.packed is None


def test_a_model_that_is_not_quantised_has_nothing_to_pack():
    model = tiny()
    pack_quantised(model)
    assert not [part for part in model.modules() if isinstance(part, QuantisedLinear)]


def test_bfloat16_has_no_kernel():
    held = QuantisedLinear(torch.randn(4, 16)).bfloat16()
    held.pack()
    assert held.packed is None


@pytest.mark.parametrize("kind", [QuantisedLinear, QuantisedTable])
def test_a_blank_layer_has_the_shapes_of_a_full_one(kind):
    weight, bias = torch.randn(4, 16), torch.randn(4)
    with torch.device("meta"):
        blank = kind(torch.empty(4, 16), torch.empty(4))
    full = kind(weight, bias)
    shapes = [
        {name: (p.shape, p.dtype) for name, p in each.named_parameters()} for each in (blank, full)
    ]
    assert shapes[0] == shapes[1]
    assert all(p.is_meta for p in blank.parameters())


@compiled
@torch.inference_mode()
def test_caches_of_a_decoder_over_a_memory_are_float16():
    tokens, segments = tokens_of([5, 2])
    for model, expected in zip(quantised(), (torch.float32, torch.float16), strict=True):
        state = model.start(model.encode(tokens, segments), segments, 2)
        _, state = model.step(torch.tensor([BEGIN] * 4), state)
        for cache, memory in zip(state.caches, state.memories, strict=True):
            assert {x.dtype for x in (*cache.buffers, memory.keys, memory.values)} == {expected}
        assert model.encoder[0].self_attention.cache_dtype == torch.float32


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


def extreme_bytes(count: int, width: int) -> torch.Tensor:
    """Rows of random bytes, and rows whose sums of products are the largest and the smallest."""
    rows = torch.randint(-STEPS, STEPS + 1, (count, width), dtype=torch.int8)
    rows[0], rows[1], rows[2, ::2] = STEPS, -STEPS, 0
    return rows


@pytest.mark.parametrize("int_mm", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("width", [1, 2, 33, 1040, 1041, 2500])
def test_the_product_is_that_of_the_integers_exactly(monkeypatch, width, rows, int_mm):
    if int_mm and not use_int_mm():
        pytest.skip("PyTorch's int8 product is slow or not exact on this processor")
    monkeypatch.setattr(quantised_module, "use_int_mm", lambda: int_mm)
    monkeypatch.setattr(quantised_module, "WIDENED", 2000)
    torch.manual_seed(1)
    x, weight = extreme_bytes(7, width)[:rows], extreme_bytes(9, width)
    exact = (x.long()[:, None] * weight.long()).sum(-1)
    found = integer_product(x, weight)
    assert found.dtype == torch.int32
    assert torch.equal(found.long(), exact)


@pytest.mark.parametrize(("vnni", "most", "used"), [(1, 2**20, 1), (1, 2**15, 0), (0, 2**20, 0)])
def test_a_product_that_saturates_or_is_slow_is_not_used(monkeypatch, vnni, most, used):
    def product(a, b):
        return (a.int() @ b.int()).clamp(max=most)

    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: bool(vnni))
    monkeypatch.setattr(torch, "_int_mm", product)
    assert use_int_mm.__wrapped__() == bool(used)


@pytest.mark.parametrize("precision", ["medium", "high", "highest"])
def test_a_reduced_precision_does_not_reach_the_integers(monkeypatch, precision):
    monkeypatch.setattr(quantised_module, "use_int_mm", lambda: False)
    torch.manual_seed(1)
    x, weight = extreme_bytes(40, 1030), extreme_bytes(70, 1030)
    exact, before = (x.long() @ weight.long().T), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(integer_product(x, weight).long(), exact)
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_control_sums_above_2_to_the_24_would_be_rounded(monkeypatch):
    monkeypatch.setattr(quantised_module, "use_int_mm", lambda: False)
    monkeypatch.setattr(quantised_module, "EXACT", 4096)
    x = torch.full((2, 2500), STEPS, dtype=torch.int8)
    x[1, 0] = 1
    exact = x.long() @ x.long().T
    assert not torch.equal(integer_product(x, x).long(), exact)


def test_a_product_is_scaled_by_both_steps():
    torch.manual_seed(1)
    x, weight = torch.randn(7, 33), torch.randn(9, 33)
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
