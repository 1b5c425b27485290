"""Joined layers compute what readable ones do, and what somebody has changed is left alone. With
the kernels they are tested in tests/kernels."""

import pytest
import torch
from torch import nn

from tests.helpers import tiny
from transduct.blocks.transformer import EncoderLayer, FeedForward
from transduct.errors import TransductError
from transduct.functional.dropout import add_dropout
from transduct.segments import Segments
from transduct.training import fused
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks
from transduct.training.fused import (
    add_norm,
    feed_forward,
    fuse_passes,
    recompute_layers,
    restore_layers,
    takes_norm,
)
from transduct.training.step import Stepper


def trained_once(model):
    """What a model of sources and targets computes with dropout, and its gradients."""
    torch.manual_seed(3)
    sources, targets = Segments.of([3, 5]), Segments.of([2, 4])
    memory = model.encode(torch.arange(8), sources)
    found = model.decode(torch.arange(6), targets, memory, sources)
    return [found, *torch.autograd.grad(found.square().sum(), [*model.parameters()], None, True,
                                        allow_unused=True)]  # fmt: skip


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_fused_passes_compute_the_same_and_can_be_restored(monkeypatch, norm, activation):
    model = tiny(norm=norm, activation=activation, dropout=0.3, encoder_layers=2).train()
    expected, calls = trained_once(model), []
    monkeypatch.setattr(fused, "add_norm", lambda *given: calls.append(given) or add_norm(*given))
    changed = fuse_passes(model)
    connections = 2 * 2 + 3 * len(model.decoder)
    networks = (2 + len(model.decoder)) * (activation != "swiglu")
    assert len(changed) == connections + networks
    for one, other in zip(trained_once(model), expected, strict=True):
        assert one is other is None or torch.equal(one, other)
    # the last sum of a stack meets another norm, which is not that of a sublayer
    assert len(calls) == connections - 2 * (norm == "pre")
    assert not fuse_passes(model), "it is changed already"
    restore_layers(changed)
    assert not any("forward" in vars(module) for module in model.modules())


def test_each_norm_is_taken_once_and_read_where_it_was_taken(monkeypatch):
    model, taken = tiny(norm="pre", encoder_layers=3).train(), []
    for layer in model.encoder:
        for norm in (layer.around_attention.norm, layer.around_feed_forward.norm):
            norm.register_forward_hook(lambda norm, *_: taken.append(norm))
    fuse_passes(model)
    model.encode(torch.arange(4), Segments.of([4]))
    assert len(taken) == len({*taken}) == 6


def test_between_sublayers_anything_may_change_the_sum():
    model = tiny(norm="pre", encoder_layers=2).train()
    model.encoder[0].register_forward_hook(lambda layer, given, x: 2.0 * x)
    expected = model.encode(torch.arange(4), Segments.of([4]))
    fuse_passes(model)
    assert torch.equal(model.encode(torch.arange(4), Segments.of([4])), expected)


def test_what_somebody_has_changed_is_left_alone():
    model = tiny(norm="pre", encoder_layers=2, decoder_layers=1)
    first, second = model.encoder
    first.around_attention.read = torch.tanh
    first.feed_forward.register_forward_hook(lambda *_: None)
    second.feed_forward.inner.register_forward_pre_hook(lambda *_: None)
    changed = fuse_passes(model)
    for module in (first.around_attention, first.feed_forward, second.feed_forward):
        assert module not in changed
    assert first.around_feed_forward in changed
    assert first.around_feed_forward.forward.following is second.around_attention.forward


def test_in_evaluation_the_readable_layers_compute():
    model = tiny(norm="post", encoder_layers=2).eval()
    expected = model.encode(torch.arange(4), Segments.of([4]))
    fuse_passes(model)
    assert torch.equal(model.encode(torch.arange(4), Segments.of([4])), expected)
    network = FeedForward(4, 8, 0.5, "relu").eval()
    x = torch.randn(3, 4)
    assert torch.equal(feed_forward(network, x), network(x))


@pytest.mark.parametrize("norm", [nn.LayerNorm(20), nn.RMSNorm(20, 1e-6), nn.Identity()], ids=repr)
def test_on_a_cpu_a_sum_and_its_norm_are_taken_one_after_the_other(norm):
    residual, x = torch.randn(2, 7, 20)
    assert not takes_norm(x, norm)
    torch.manual_seed(1)
    s, y = add_norm(residual, x, 0.3, norm, True)
    torch.manual_seed(1)
    expected = add_dropout(residual, x, 0.3)
    assert torch.equal(s, expected)
    assert torch.equal(y, norm(expected))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_compiler_makes_one_graph_of_fused_passes(norm):
    torch._dynamo.reset()
    model = tiny(norm=norm, encoder_layers=2, dropout=0.0).train()
    segments, tokens = Segments.of([4, 4]), torch.arange(8)
    expected = model.encode(tokens, segments)
    fuse_passes(model)
    encode = torch.compile(
        lambda tokens: model.encode(tokens, segments), backend="eager", fullgraph=True,
        dynamic=False,
    )  # fmt: skip
    torch.testing.assert_close(encode(tokens), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="layers are fused on a CUDA device")
def test_a_step_on_a_gpu_joins_them_and_gives_them_back():
    model = tiny(norm="pre").cuda()
    stepper = Stepper(model, TrainingConfig(), lambda model, batch: {}, Ranks())
    assert len(stepper.fused) == 2 * 2 + 2 * 3 + 4
    stepper.release()
    assert not any("forward" in vars(module) for module in model.modules())


def test_recomputed_layers_compute_the_same_and_are_computed_twice(monkeypatch):
    model = tiny(dropout=0.3, encoder_layers=2).train()
    expected, calls, forward = trained_once(model), [], EncoderLayer.forward
    monkeypatch.setattr(
        EncoderLayer,
        "forward",
        lambda *given, **named: calls.append(1) or forward(*given, **named),
    )
    changed = recompute_layers(model)
    assert changed == [*model.encoder, *model.decoder]
    for one, other in zip(trained_once(model), expected, strict=True):
        assert one is other is None or torch.equal(one, other)
    assert len(calls) == 2 * 2
    restore_layers(changed)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_model_without_layers_has_nothing_to_recompute():
    with pytest.raises(TransductError, match="recompute is true, this model has no Transformer la"):
        recompute_layers(nn.Linear(1, 1))
