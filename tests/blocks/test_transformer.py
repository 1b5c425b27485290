"""Encoder and decoder layers equal torch's, in pre-norm and post-norm."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.blocks.test_attention import copied
from tests.helpers import gradients, randomise
from transduct.blocks.attention import Ancestry, KVCache, MultiHeadAttention
from transduct.blocks.linear import Linear
from transduct.blocks.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    LayerShape,
    Residual,
    final_norm,
    initialise,
    is_exactly,
    make_norm,
)
from transduct.segments import Segments, flatten, pad

D, HEADS, D_FF = 16, 4, 32


def shape_of(norm="pre", rate=0.0, activation="relu", norm_kind="layer"):
    return LayerShape(D, D_FF, rate, activation, norm, norm_kind)


def copy(ours, theirs):
    """Fill our layer with torch's weights; torch numbers its norms in the order of the
    sublayers."""
    ours.feed_forward.inner.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.outer.load_state_dict(theirs.linear2.state_dict())
    residuals = [part for part in ours.children() if isinstance(part, Residual)]
    for number, residual in enumerate(residuals, 1):
        residual.norm.load_state_dict(getattr(theirs, f"norm{number}").state_dict())
    return ours


def check(found, expected, ours, theirs, inputs):
    """Equal outputs, and equal gradients of the inputs and of what is below everything else."""
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    mine = gradients(
        found, [*inputs, ours.self_attention.output.weight, ours.feed_forward.inner.weight]
    )
    reference = gradients(
        expected, [*inputs, theirs.self_attn.out_proj.weight, theirs.linear1.weight]
    )
    for one, other in zip(mine, reference, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


in_both_orders = pytest.mark.parametrize("norm", ["pre", "post"])


@in_both_orders
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_is_torchs(norm, activation):
    theirs = nn.TransformerEncoderLayer(
        D, HEADS, D_FF, 0.0, activation, batch_first=True, norm_first=norm == "pre"
    )
    randomise(theirs)
    ours = copy(
        EncoderLayer(shape_of(norm, activation=activation), copied(theirs.self_attn)), theirs
    )
    segments = Segments.of([3, 1, 5])
    x = torch.randn(segments.total, D, requires_grad=True)
    expected = flatten(theirs(pad(x, segments), src_key_padding_mask=~segments.mask), segments)
    check(ours(x, segments), expected, ours, theirs, [x])


@in_both_orders
@torch.no_grad()
def test_an_encoder_layer_steps_on_from_prompts_as_if_it_had_read_all_at_once(norm):
    layer = randomise(EncoderLayer(shape_of(norm), MultiHeadAttention(D, HEADS)))
    lengths, count = [3, 0, 5], 4
    prompts, rows = torch.randn(8, D).split(lengths), torch.randn(3, count, D)
    prompt, cache = layer.remember_prompt(torch.cat(prompts), Segments.of(lengths)), KVCache()
    steps = [
        layer.step(x, torch.tensor(lengths) + t, cache, prompt, Ancestry())
        for t, x in enumerate(rows.unbind(1))
    ]
    wholes = [torch.cat(pair) for pair in zip(prompts, rows, strict=True)]
    expected = layer(torch.cat(wholes), Segments.of(list(map(len, wholes))), causal=True).split(
        list(map(len, wholes))
    )
    for found, whole in zip(torch.stack(steps, 1), expected, strict=True):
        torch.testing.assert_close(found, whole[-count:], atol=1e-5, rtol=1e-5)


@in_both_orders
def test_a_decoder_layer_is_torchs(norm):
    theirs = nn.TransformerDecoderLayer(
        D, HEADS, D_FF, 0.0, batch_first=True, norm_first=norm == "pre"
    )
    randomise(theirs)
    ours = copy(
        DecoderLayer(shape_of(norm), copied(theirs.self_attn), copied(theirs.multihead_attn)),
        theirs,
    )
    segments, memory_segments = Segments.of([3, 1, 5]), Segments.of([2, 4, 1])
    x, memory = (torch.randn(s.total, D, requires_grad=True) for s in (segments, memory_segments))
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    dense = theirs(
        pad(x, segments), pad(memory, memory_segments), future, None, None, ~memory_segments.mask
    )
    found = ours(x, segments, memory, memory_segments)
    check(found, flatten(dense, segments), ours, theirs, [x, memory])


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_feed_forward_is_two_layers_with_an_activation_between(activation):
    network, x = randomise(FeedForward(D, D_FF, 0.0, activation)), torch.randn(5, D)
    inner = getattr(F, activation)(x @ network.inner.weight.T + network.inner.bias)
    torch.testing.assert_close(network(x), inner @ network.outer.weight.T + network.outer.bias)


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_dropout_falls_within_the_feed_forward_layer(activation):
    network, x = randomise(FeedForward(D, D_FF, 0.5, activation)).train(), torch.randn(5, D)
    assert not torch.equal(network(x), network(x))
    assert torch.equal(network.eval()(x), network(x))


def test_gpt_2s_activation_is_gelu_by_tanh():
    network, x = randomise(FeedForward(D, D_FF, 0.0, "gelu_tanh")), torch.randn(5, D)
    inner = network.inner(x)
    curve = 0.5 * (1.0 + ((2.0 / torch.pi) ** 0.5 * (inner + 0.044715 * inner**3)).tanh())
    torch.testing.assert_close(network(x), network.outer(inner * curve))


def test_swiglu_multiplies_by_a_gate():
    network, x = randomise(FeedForward(D, D_FF, 0.0, "swiglu")), torch.randn(5, D)
    torch.testing.assert_close(
        network(x), network.outer(F.silu(network.inner(x)) * network.gate(x))
    )


def test_norms_are_their_formulas():
    x = torch.randn(5, D)
    layer, rms = make_norm(shape_of()), make_norm(shape_of(norm_kind="rms"))
    centred = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(
        layer(x), centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    )
    torch.testing.assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())


def test_only_pre_norm_layers_need_a_norm_after_them():
    assert isinstance(final_norm(shape_of("pre")), nn.LayerNorm)
    assert isinstance(final_norm(shape_of("pre", norm_kind="rms")), nn.RMSNorm)
    assert isinstance(final_norm(shape_of("post")), nn.Identity)


@in_both_orders
def test_dropout_falls_on_what_a_sublayer_adds(norm):
    residual, x = Residual(shape_of(norm, rate=0.5)), torch.randn(50, D)
    torch.manual_seed(1)
    found = residual(x, lambda y: torch.ones_like(y))
    if norm == "pre":
        assert sorted({round(value, 3) for value in (found - x).flatten().tolist()}) == [0.0, 2.0]
    residual.eval()
    added = x + 1.0
    torch.testing.assert_close(
        residual(x, torch.ones_like), added if norm == "pre" else residual.norm(added)
    )
    assert not torch.allclose(found, residual(x, torch.ones_like))


def test_initialise_draws_matrices_by_xavier_and_zeroes_biases():
    layer = EncoderLayer(shape_of(), MultiHeadAttention(D, HEADS))
    initialise(layer)
    for part in layer.modules():
        if isinstance(part, nn.Linear):
            bound = (6 / sum(part.weight.shape)) ** 0.5
            assert 0.8 * bound < float(part.weight.detach().abs().max()) <= bound
            assert not part.bias.any()


def test_a_module_with_hooks_or_methods_of_its_own_is_not_exactly_its_class():
    assert is_exactly(Linear(2, 2), nn.LayerNorm, Linear)
    assert not is_exactly(Linear(2, 2), nn.Linear), "a subclass"
    assert not is_exactly(None, Linear)
    changed = [Linear(2, 2) for _ in range(4)]
    changed[0].register_forward_hook(lambda *_: None)
    changed[1].register_forward_pre_hook(lambda *_: None)
    changed[2].forward = torch.tanh
    nn.utils.parametrize.register_parametrization(changed[3], "weight", nn.Identity())
    assert not any(is_exactly(each, Linear) for each in changed)
