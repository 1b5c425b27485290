"""A packed model gives the same answers, keeps shared tables shared, and tabulates its
positions."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.changes import CHANGES
from tests.families import tiny_gpt
from tests.helpers import BEGIN, END, PLACES, randomise, tiny, tokens_of
from tests.models.test_bert import tiny as tiny_bert
from tests.models.test_vit import tiny as tiny_vit
from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.embeddings import PositionVectors
from transduct.devices import has_onednn
from transduct.functional.positions import LENGTH_DEPENDENT
from transduct.inference import engine, packed
from transduct.inference.packed import (
    JointAttention,
    PackedLinear,
    PackedTable,
    exchange,
    fuse_projections,
    pack_layers,
    packed_linear,
    remember_positions,
)
from transduct.inference.quantised import QuantisedLinear, quantise
from transduct.inference.settings import DecodingConfig
from transduct.kernels import cpu
from transduct.segments import Segments

NEAR = {"atol": 1e-5, "rtol": 1e-5}


def laid_out(model):
    other = copy.deepcopy(model)
    pack_layers(other)
    return other


def pairs(lengths=((5, 2, 9), (4, 6, 1))):
    return *tokens_of(lengths[0]), *tokens_of(lengths[1], 2)


def predictions(model, tokens, segments, target, target_segments):
    return model.logits(
        model.decode(target, target_segments, model.encode(tokens, segments), segments)
    )


def assert_all_laid_out(model):
    assert not [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert any(isinstance(module, PackedLinear) for module in model.modules())


# the families


@pytest.mark.parametrize(
    "lengths", [((5, 2, 9), (4, 6, 1)), ((2,), (1,))], ids=["many rows", "few rows"]
)
@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@torch.inference_mode()
def test_a_transformer_gives_the_same_answers(tie, lengths):
    model = tiny(tie=tie)
    other = laid_out(model)
    assert_all_laid_out(other)
    torch.testing.assert_close(
        predictions(other, *pairs(lengths)), predictions(model, *pairs(lengths)), **NEAR
    )


@pytest.mark.parametrize("scheme, mode", PLACES)
@torch.inference_mode()
def test_a_transformer_with_any_position_scheme_gives_the_same_answers(scheme, mode):
    model = tiny(positions=scheme, position_mode=mode)
    expected = predictions(model, *pairs())
    torch.testing.assert_close(predictions(laid_out(model), *pairs()), expected, **NEAR)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_search_finds_the_same(beam):
    model = tiny(tie="none", num_kv_heads=2)
    sources = [[3, 4, 5, END], [7, END], [8, 3, 9, 9, 4, END]]
    found = [
        engine.generate(each, sources, [8] * 3, DecodingConfig(beam=beam), BEGIN, END)
        for each in (model, laid_out(model))
    ]
    for one, other in zip(*found, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-4)


@pytest.mark.parametrize(
    "changes", [{}, {"tie": False, "positions": "sinusoidal"}, {"positions": "rotary"}], ids=str
)
@torch.inference_mode()
def test_a_gpt_gives_the_same_answers(changes):
    model = tiny_gpt(**changes)
    other = laid_out(model)
    assert_all_laid_out(other)
    for lengths in ([7, 3, 5], [2]):
        expected, found = (each.logits(each.hidden(*tokens_of(lengths))) for each in (model, other))
        torch.testing.assert_close(found, expected, **NEAR)


@pytest.mark.parametrize("head", ["masked", "pretraining", "sequence"])
@torch.inference_mode()
def test_a_bert_gives_the_same_answers(head):
    model = tiny_bert(head=head)
    other, (tokens, segments) = laid_out(model), tokens_of([7, 3, 5])
    assert_all_laid_out(other)
    hidden = [each.encode(tokens, torch.zeros_like(tokens), segments) for each in (model, other)]
    torch.testing.assert_close(*hidden, **NEAR)
    if head != "sequence":
        torch.testing.assert_close(
            *(each.masked_logits(x) for each, x in zip((model, other), hidden)), **NEAR
        )
    if head != "masked":
        scores = (each.pool(x, segments) for each, x in zip((model, other), hidden))
        torch.testing.assert_close(*scores, **NEAR)


@pytest.mark.parametrize(
    "changes", [{}, {"pool": "mean", "backbone": [4, 8], "positions": "none"}], ids=str
)
@torch.inference_mode()
def test_a_vit_gives_the_same_answers(changes):
    model = tiny_vit(**changes)
    other, pictures = laid_out(model), torch.randn(2, 3, 12, 12)
    assert_all_laid_out(other)
    expected, found = (each.classify(*each.encode(pictures)) for each in (model, other))
    torch.testing.assert_close(found, expected, **NEAR)


@torch.inference_mode()
def test_the_control_other_weights_give_other_answers():
    model = tiny()
    other = laid_out(model)
    model.decoder[0].feed_forward.inner.bias += 0.1
    expected = predictions(model, *pairs())
    assert not torch.allclose(predictions(other, *pairs()), expected, atol=1e-3)


# layers


@pytest.mark.parametrize("way", ["kernels", "oneDNN", "PyTorch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("small", [0, packed.SMALL])
@torch.inference_mode()
def test_a_packed_layer_gives_the_same_products(monkeypatch, way, dtype, bias, small):
    if way != "kernels":
        monkeypatch.setattr(cpu, "library", lambda: None)
    if way == "PyTorch":
        monkeypatch.setattr(packed, "has_onednn", lambda: False)
    monkeypatch.setattr(packed, "SMALL", small)
    layer = nn.Linear(48, 40, bias=bias).to(dtype)
    made, x = PackedLinear(layer), torch.randn(3, 30, 48).to(dtype)
    near = NEAR if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(made(x), layer(x), **near)
    for rows in (0, 1, 7, 8, 30):
        torch.testing.assert_close(made(x[0, :rows]), layer(x[0, :rows]), **near)
    if way == "PyTorch":
        assert torch.equal(made(x), layer(x))


def test_float32_goes_to_the_kernels_and_nothing_else_does():
    made = [
        packed_linear(torch.randn(4, 8, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)
    ]
    assert [isinstance(each, cpu.Packed) for each in made] == [cpu.library() is not None, False]


@pytest.mark.skipif(not has_onednn(), reason="PyTorch brings no oneDNN for this processor")
def test_bfloat16_without_support_by_onednn_uses_pytorch(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", None)  # not to be called
    weight, x = torch.randn(4, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    assert torch.equal(packed_linear(weight)(x), F.linear(x, weight))


@torch.inference_mode()
def test_a_table_gives_its_numbers_its_rows_and_its_products():
    table, tokens, hidden = (
        nn.Parameter(torch.randn(11, 16)),
        torch.tensor([3, 0, 3]),
        torch.randn(9, 16),
    )
    held = PackedTable(table)
    assert held.shape == (11, 16)
    assert torch.equal(held.numbers, table)
    assert torch.equal(held.rows(tokens), table[tokens])
    assert "packed" not in vars(held), "nothing was multiplied yet"
    for rows in (9, 1):
        torch.testing.assert_close(held(hidden[:rows]), hidden[:rows] @ table.T, **NEAR)


# what is exchanged


@pytest.mark.parametrize("tie, tables", [("all", 1), ("decoder", 2), ("none", 3)])
def test_tables_that_are_one_stay_one(tie, tables):
    other = laid_out(tiny(tie=tie))
    held = [other.source_embedding.table, other.target_embedding.table, other.output_table]
    assert {type(table) for table in held} == {PackedTable}
    assert len({id(table) for table in held}) == tables
    assert (held[1] is held[2]) == (tie != "none")


def test_a_tied_gpt_has_one_table():
    other = laid_out(tiny_gpt())
    assert other.embedding.table is other.output_table


@torch.no_grad()
def test_a_joint_projection_gives_the_same_results():
    attention = randomise(MultiHeadAttention(16, 4, 5, 7, 2)).eval()
    joint, x, segments = JointAttention(attention), torch.randn(7, 16), Segments.of([3, 4])
    assert [name for name, _ in joint.named_children()] == ["output", "joint"]
    assert not joint.training
    torch.testing.assert_close(joint(x, segments), attention(x, segments))


def joined(model):
    return [part.joint for part in model.modules() if isinstance(part, JointAttention)]


def test_only_self_attention_is_fused_and_only_once():
    model = tiny()
    for _ in range(2):
        exchange(model, lambda layer: layer, PackedTable)
        now = joined(model)
        assert len(now) == 4, "two layers of encoder and of decoder"
        assert all(type(layer.cross_attention) is MultiHeadAttention for layer in model.decoder)
    before = now
    pack_layers(model)
    assert [type(part) for part in joined(model)] == [PackedLinear] * 4
    assert [type(part) for part in before] == [type(before[0])] * 4


@torch.inference_mode()
def test_layers_of_torch_stay():
    """Some read the weights of their linear layers themselves."""
    torch.manual_seed(1)
    layer, x = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(), torch.randn(2, 3, 16)
    expected = layer(x)
    assert torch.equal(laid_out(layer)(x), expected)


def test_layers_that_are_quantised_already_stay():
    model = tiny()
    quantise(model)
    held, table = (
        [part for part in model.modules() if isinstance(part, QuantisedLinear)],
        model.output_table,
    )
    pack_layers(model)
    assert [part for part in model.modules() if isinstance(part, QuantisedLinear)] == held
    assert model.output_table is table


# fused projections and tabulated positions


def answers(model):
    """The logits of a few tokens over themselves."""
    tokens, segments = tokens_of([3, 5])
    return model.logits(model.decode(tokens, segments, model.encode(tokens, segments), segments))


def settle(model):
    """What `prepare` does for a GPU."""
    fuse_projections(model)
    remember_positions(model, torch.float32)


@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_fused_projections_change_no_answer_of_a_changed_model(name):
    model = tiny()
    CHANGES[name](model)
    before = answers(model)
    settle(model)
    torch.testing.assert_close(answers(model), before)


@pytest.mark.parametrize("scheme, mode", PLACES)
@torch.no_grad()
def test_tabulated_positions_change_no_answer(scheme, mode):
    """In the embeddings and inside attention: two in each of two layers on both sides."""
    model = tiny(positions=scheme, position_mode=mode, encoder_layers=2, decoder_layers=2)
    before = answers(model)
    for _ in range(2):
        settle(model)
        torch.testing.assert_close(answers(model), before)
    assert type(model.decoder[0].self_attention) is JointAttention
    vectors = [part for part in model.modules() if isinstance(part, PositionVectors)]
    inside = scheme not in ("none", "rotary", "alibi", "relative")
    assert len(vectors) == {"attention": 8}.get(mode, 2) * inside
    assert {part.table is None for part in vectors} <= {scheme in LENGTH_DEPENDENT}
