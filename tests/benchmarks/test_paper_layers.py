import paper_layers as layers
import pytest
import torch
from paper_layers import KERNEL, KINDS, NEIGHBOURHOOD, REFERENCES, peak_memory, restricted_attention
from torch.utils.flop_counter import FlopCounterMode

from tests.helpers import gradients
from transduct.functional.attention import attention
from transduct.kernels import cpu, cpu_products


@pytest.mark.parametrize("length", [1, 7, 8, 9, 41])
@pytest.mark.parametrize("reach", [1, 4, 8, 64])
def test_restricted_attention_is_full_attention_within_a_band(length, reach):
    torch.manual_seed(1)
    inputs = [
        torch.randn(length, 2, width, dtype=torch.float64, requires_grad=True)
        for width in (6, 6, 5)
    ]
    places = torch.arange(length)
    band = torch.zeros(length, length).masked_fill(
        (places - places[:, None]).abs() > reach, float("-inf")
    )
    full = attention(*(x.transpose(0, 1) for x in inputs), bias=band).transpose(0, 1)
    restricted = restricted_attention(*inputs, reach)
    torch.testing.assert_close(restricted, full)
    torch.testing.assert_close(gradients(restricted, inputs), gradients(full, inputs))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("length", [1, 5, 130])
def test_each_layer_keeps_the_shape_and_mixes_tokens(kind, length):
    torch.manual_seed(1)
    x = torch.randn(length, 64, requires_grad=True)
    y = kind.build(64)(x)
    assert y.shape == (length, 64)
    [gradient] = torch.autograd.grad(y[-1].sum(), x)
    reached = gradient.abs().sum(1) > 0
    seen = {"convolutional": (KERNEL + 1) // 2, "restricted attention": NEIGHBOURHOOD // 2 + 1}.get(
        kind.name, length
    )
    assert int(reached.sum()) == min(length, seen)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_multiply_adds_are_those_that_torch_counts(kind, monkeypatch):
    # whose products torch does not count,
    monkeypatch.setattr(cpu_products, "_faster_than_mkl", lambda *_: None)
    monkeypatch.setattr(cpu, "trainable", lambda *_: False)  # nor those of these
    layer, x = kind.build(64), torch.randn(NEIGHBOURHOOD, 64)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        layer(x)
    # the far corners of its blocks
    spared = len(x) * NEIGHBOURHOOD * 64 if kind.name.startswith("restricted") else 0
    assert counter.get_total_flops() == 2 * (kind.multiply_adds(len(x), 64) + spared)


def test_a_time_is_the_median_of_three_runs_at_least(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 11.0, 20.0, 22.0])  # runs of 9, 1 and 2 seconds
    monkeypatch.setattr(layers.time, "perf_counter", lambda: next(clock))
    runs = []
    assert layers.milliseconds(lambda: runs.append(1), 0.0) == 2000
    assert len(runs) == 4  # the first warms up


@pytest.mark.slow
def test_the_highest_memory_of_a_run(monkeypatch):
    if REFERENCES.exists():
        assert peak_memory(lambda: torch.zeros(16 * 2**20).add_(1)) == pytest.approx(64, abs=4)
        x = torch.randn(4096, 1, 8)
        blocks = peak_memory(lambda: restricted_attention(x, x, x, 16))
        assert blocks < 8 < 60 < peak_memory(lambda: attention(x[:, 0], x[:, 0], x[:, 0]))
    monkeypatch.setattr(layers, "REFERENCES", REFERENCES / "nowhere")
    assert peak_memory(lambda: None) is None


def test_the_width_that_comes_nearest():
    def build(width):
        return torch.nn.Linear(width, 1, bias=False)

    assert [layers.nearest_width(build, wanted) for wanted in (1, 8, 11, 13, 400)] == [
        8,
        8,
        8,
        16,
        400,
    ]


def test_models_of_equal_size_are_trained_on_equal_batches():
    models = layers.equal_models(50, "tiny", 16)
    assert list(models) == [
        "Transformer",
        "GRU, attention: none",
        "GRU, attention: general",
        "GRU, attention: additive",
    ]
    sizes = [sum(p.numel() for p in model.parameters()) for model in models.values()]
    assert sizes == pytest.approx([sizes[0]] * 4, rel=0.05)
    rates = list(layers.training_rates([4, 8], 32, 50, "tiny", 0.0))
    assert [(rate.model, rate.length) for rate in rates] == [
        (name, n) for name in models for n in (4, 8)
    ]
    assert all(rate.tokens_per_second > 0 for rate in rates)


def test_batches_are_full_of_whole_sentences():
    batch = layers.generated_batch(8, 3, 50)
    assert (
        batch.source_segments.lengths.tolist()
        == batch.target_segments.lengths.tolist()
        == [8, 8, 8]
    )
    assert torch.equal(layers.generated_batch(8, 3, 50).source, batch.source)
    assert layers.generated_batch(8, 0, 50).target_segments.total == 8
