"""A model without a part lacks that part and no other, starts from the weights of the whole one,
and runs the same however it is run."""

from dataclasses import replace

import pytest
import torch
from transduct_course.ablations import (
    BareSublayer,
    Nothing,
    Unscaled,
    WithoutFeedForward,
    WithoutMask,
    WithoutNorms,
    WithoutResiduals,
)

from tests.helpers import tiny, tokens_of
from tests.models.test_transformer import SOURCES, run
from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.embeddings import embedding_table
from transduct.blocks.transformer import EncoderLayer, LayerShape
from transduct.inference.fused import fuse
from transduct.inference.packed import pack_layers
from transduct.models.transformer import Transformer
from transduct.segments import Segments

KINDS = [Unscaled, WithoutResiduals, WithoutNorms, WithoutFeedForward]


def without(kind):
    """A small model of a kind, on weights of one seed."""
    config = replace(tiny().config, norm="post" if kind is WithoutNorms else "pre")
    torch.manual_seed(1)
    return kind(config)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_model_without_a_part_runs_the_same_packed_quantised_and_step_by_step(kind):
    """No faster layer stands in for what is left out."""
    model = without(kind).eval()
    whole = run(model)
    assert not torch.allclose(whole, run(without(Transformer).eval()), atol=1e-3)
    source, segments = tokens_of(SOURCES, 1)
    target, targets = tokens_of([3, 3, 3], 2)
    memory = model.encode(source, segments)
    forced = model.logits(model.decode(target, targets, memory, segments)).view(3, 3, -1)
    state = model.start(memory, segments, 1)
    for place in range(3):
        logits, state = model.step(target.view(3, 3)[:, place], state)
        torch.testing.assert_close(logits, forced[:, place], atol=1e-4, rtol=1e-4)
    pack_layers(model)
    fuse(model)
    torch.testing.assert_close(run(model), whole, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_without_the_scale_scores_are_sqrt_d_k_times_as_large():
    """A model whose queries are that much longer is the same."""
    plain, unscaled = without(Transformer).eval(), without(Unscaled).eval()
    unscaled.load_state_dict(plain.state_dict())
    for module in unscaled.modules():
        if isinstance(module, MultiHeadAttention):
            module.query.weight /= module.d_k**0.5
            module.query.bias /= module.d_k**0.5
    torch.testing.assert_close(run(unscaled), run(plain), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_without_the_mask_a_place_sees_those_after_it():
    whole, open_eyed = (without(kind).eval() for kind in (Transformer, WithoutMask))
    source, segments = tokens_of(SOURCES, 1)
    target, targets = tokens_of([3, 3, 3], 2)
    changed = target.clone()
    changed[2] = (changed[2] + 1) % 5  # the last token of the first row
    for model, sees in ((whole, False), (open_eyed, True)):
        memory = model.encode(source, segments)
        one, other = (model.decode(each, targets, memory, segments) for each in (target, changed))
        assert torch.equal(one[:2], other[:2]) is not sees
    assert open_eyed.state_dict().keys() == whole.state_dict().keys()


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_parts_start_as_in_a_whole_model(kind):
    bare = without(kind)
    torch.manual_seed(1)
    own, whole = dict(bare.named_parameters()), dict(Transformer(bare.config).named_parameters())
    lacks = {WithoutNorms: ".norm.", WithoutFeedForward: ".feed_forward."}.get(kind, "none")
    assert own.keys() == {name for name in whole if lacks not in name}
    if kind is WithoutFeedForward:  # what is drawn after a network that is not there differs
        torch.manual_seed(1)
        whole = {**own, "output_table": embedding_table(*own["output_table"].shape)}
    assert all(torch.equal(weight, whole[name]) for name, weight in own.items())
    for name, weight in own.items():
        if weight.ndim == 2 and name != "output_table":
            bound = (6 / sum(weight.shape)) ** 0.5
            assert 0.8 * bound < float(weight.detach().abs().max()) <= bound


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_without_residuals_or_feed_forward_the_rest_of_a_layer_stays(norm):
    """What is left out adds nothing; what is kept computes the same."""
    shape = LayerShape(8, 16, 0.0, "relu", norm, "layer")
    layer, x, segments = (
        EncoderLayer(shape, MultiHeadAttention(8, 2)),
        torch.randn(5, 8),
        Segments.of([2, 3]),
    )
    norms = layer.around_attention.norm, layer.around_feed_forward.norm
    seen = layer.self_attention(norms[0](x) if norm == "pre" else x, segments)
    network, around = layer.feed_forward, (layer.around_attention, layer.around_feed_forward)

    layer.around_attention, layer.around_feed_forward = BareSublayer(shape), BareSublayer(shape)
    middle = seen if norm == "pre" else norms[0](seen)
    inner = network(norms[1](middle) if norm == "pre" else middle)
    expected = inner if norm == "pre" else norms[1](inner)
    torch.testing.assert_close(layer(x, segments), expected)

    layer.around_attention, layer.around_feed_forward = around
    layer.feed_forward, total = Nothing(), x + seen
    expected = total if norm == "pre" else norms[1](norms[0](total))
    torch.testing.assert_close(layer(x, segments), expected)
