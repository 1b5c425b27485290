"""Dropout, residual and norm in one Triton kernel equal their formula, given the mask, on a GPU or
in Triton's interpreter."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import randomise
from tests.kernels.on_triton import DEVICE, passes
from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.transformer import DecoderLayer, Encoder, EncoderLayer, LayerShape
from transduct.functional import dropout
from transduct.kernels import cpu, triton_dropout
from transduct.kernels import triton_norms as ours
from transduct.segments import Segments
from transduct.training import fused
from transduct.training.fused import fuse_passes

pytestmark = pytest.mark.gpu
TYPES = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
RATE, EPSILON = 0.3, 1e-5


def drawn(*shape, seed=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def close(found, expected, tolerance):
    assert found.shape == expected.shape
    found, expected = found.detach().double(), expected.detach()
    assert float((found - expected).norm()) <= tolerance * float(expected.norm())


def both(residual, x, parameters, rate, rms, dtype):
    """s and y by the kernel and by the formula in float64, each with its leaves."""
    given = [residual, x, *parameters]
    leaves, exact = ([each.detach().clone() for each in given] for _ in range(2))
    leaves = [each.requires_grad_() for each in leaves]
    exact = [each.double().requires_grad_() for each in exact]
    torch.manual_seed(3)
    mask = triton_dropout.dropped(torch.ones(x.shape, device=DEVICE), rate) != 0
    torch.manual_seed(3)
    weight, shift = (*leaves[2:], None)[:2]
    found = ours.sum_and_norm(*leaves[:2], rate, weight, shift, EPSILON, rms, dtype)
    scale = 65536 / (65536 - cpu.threshold(rate))
    s = exact[0] + exact[1] * mask * scale
    norm = F.rms_norm if rms else F.layer_norm
    return found, (s, norm(s, s.shape[1:], *exact[2:], eps=EPSILON)), leaves, exact


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("shape", [(1, 8), (35, 40), (17, 300)], ids=str)
def test_sums_norms_and_gradients_are_the_formulas(shape, rms, dtype):
    residual, x = drawn(*shape), drawn(*shape, seed=2, dtype=dtype)
    parameters = [drawn(shape[1], seed=n) for n in range(3, 4 if rms else 5)]
    found, expected, leaves, exact = both(residual, x, parameters, RATE, rms, dtype)
    assert [each.dtype for each in found] == [torch.float32, dtype]
    pulls = drawn(*shape, seed=7), drawn(*shape, seed=8, dtype=dtype)
    for one, other in zip(found, expected, strict=True):
        close(one, other, TYPES[dtype])
    gradients = torch.autograd.grad(found, leaves, pulls)
    wanted = torch.autograd.grad(expected, exact, [each.double() for each in pulls])
    for one, other, leaf in zip(gradients, wanted, leaves, strict=True):
        assert one.dtype == leaf.dtype
        close(one, other, TYPES[dtype])


def test_a_sum_in_bfloat16_is_normed_as_it_is_stored():
    residual, x = (drawn(9, 40, seed=n, dtype=torch.bfloat16) for n in (1, 2))
    weight = torch.ones(40, device=DEVICE)
    s, y = ours.sum_and_norm(residual, x, 0.0, weight, None, EPSILON, False, torch.float32)
    assert s.dtype == torch.bfloat16
    close(y, F.layer_norm(s.double(), (40,), eps=EPSILON), 1e-6)


@pytest.mark.parametrize("read", [True, False])
def test_gradients_of_one_result_alone(read):
    residual, x, parameters = (
        drawn(5, 40),
        drawn(5, 40, seed=2),
        [drawn(40, seed=n) for n in (3, 4)],
    )
    found, expected, leaves, exact = both(residual, x, parameters, RATE, False, torch.float32)
    gradients = torch.autograd.grad(found[read].square().sum(), leaves, allow_unused=True)
    wanted = torch.autograd.grad(expected[read].square().sum(), exact, allow_unused=True)
    for one, other in zip(gradients, wanted, strict=True):
        close(one, torch.zeros_like(one).double() if other is None else other, 1e-5)


def test_sums_of_gradients_do_not_hang_on_the_device():
    assert {ours.stretch(count, 512) % ours.tile(512)[0] for count in (1, 999, 10**5)} == {0}
    assert ours.stretch(1, 512) == ours.FEWEST
    assert ours.stretch(10**6, 512) * ours.PROGRAMS // ours.tile(512)[2] >= 10**6


def layer_shape(norm, kind):
    return LayerShape(16, 32, RATE, "relu", norm, kind)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_stacks_compute_the_same_with_the_kernel(monkeypatch, norm, kind):
    """The masks agree, because dropout on its own draws as the kernel does."""
    monkeypatch.setattr(dropout, "_at_once", lambda *_: True)
    torch.manual_seed(1)
    layers = (EncoderLayer(layer_shape(norm, kind), MultiHeadAttention(16, 4)) for _ in range(2))
    encoder = randomise(Encoder(layers)).to(DEVICE).train()
    attentions = (MultiHeadAttention(16, 4) for _ in range(2))
    decoder = randomise(DecoderLayer(layer_shape(norm, kind), *attentions)).to(DEVICE).train()
    segments, x = Segments.of([3, 5], DEVICE), drawn(8, 16)
    results, calls = [], []
    kernel = ours.sum_and_norm
    monkeypatch.setattr(ours, "sum_and_norm", lambda *given: calls.append(0) or kernel(*given))
    changed = [*fuse_passes(encoder), *fuse_passes(nn.ModuleList([decoder]))]
    assert len(changed) == 2 * (2 + 1) + (3 + 1)  # connections and feed-forward networks
    for fits in (False, True):
        monkeypatch.setattr(fused, "takes", lambda *_, fits=fits: fits)
        torch.manual_seed(3)
        memory = encoder(x, segments)
        found = decoder(x, segments, memory, segments)
        parameters = [*encoder.parameters(), *decoder.parameters()]
        results.append([found, *torch.autograd.grad(found.square().sum(), parameters)])
        assert len(calls) == fits * (5 if norm == "pre" else 7)
    # all together: the gradient of a key's bias is zero but for rounding
    close(*(torch.cat([each.flatten() for each in result]).double() for result in results), 1e-5)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="a CPU has no autocast of a GPU")
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_under_autocast_sums_stay_in_float32(monkeypatch, norm):
    torch.manual_seed(1)
    layers = (EncoderLayer(layer_shape(norm, "layer"), MultiHeadAttention(16, 4)) for _ in range(2))
    encoder = randomise(Encoder(layers)).to(DEVICE).train()
    segments, x, results = Segments.of([3, 5], DEVICE), drawn(8, 16), []
    fuse_passes(encoder)
    for fits in (False, True):
        monkeypatch.setattr(fused, "takes", lambda *_, fits=fits: fits)
        torch.manual_seed(3)
        with torch.autocast("cuda", torch.bfloat16):
            found = encoder(x, segments)
        assert found.dtype == torch.float32
        results.append([found, *torch.autograd.grad(found.square().sum(), encoder.parameters())])
    close(*(torch.cat([each.flatten() for each in result]).double() for result in results), 3e-2)


def test_what_the_kernel_cannot_take_is_left_to_the_formula(monkeypatch):
    monkeypatch.setattr(fused, "takes", lambda *_: True)
    x = drawn(3, 16)
    hooked = nn.LayerNorm(16)
    hooked.register_forward_hook(lambda module, given, found: None)
    others = [nn.Identity(), nn.GroupNorm(4, 16), nn.RMSNorm(16), nn.LayerNorm((3, 16)), hooked]
    assert not any(fused.takes_norm(x, norm) for norm in others)  # an RMS norm without an epsilon
    assert fused.takes_norm(x, nn.LayerNorm(16))
    narrow, norm = drawn(3, 16, dtype=torch.bfloat16), nn.LayerNorm(16).to(DEVICE)
    s, y = fused.add_norm(narrow, x, 0.0, norm, False)
    assert s.dtype == y.dtype == torch.float32  # the wider of both


def test_the_operators_pass_opcheck():
    x, other = drawn(3, 24).requires_grad_(), drawn(3, 24, seed=2).requires_grad_()
    weight = drawn(24, seed=3).requires_grad_()
    given = (x, other, weight, weight, torch.tensor([5], device=DEVICE))
    given += (cpu.threshold(RATE), EPSILON, False, torch.float32)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.transduct.sum_and_norm.default, given, test_utils=tests)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_compiler_makes_one_graph_of_a_stack(monkeypatch, norm):
    monkeypatch.setattr(dropout, "_at_once", lambda *_: True)
    monkeypatch.setattr(fused, "takes", lambda *_: True)
    torch._dynamo.reset()
    torch.manual_seed(1)
    layers = (EncoderLayer(layer_shape(norm, "layer"), MultiHeadAttention(16, 4)) for _ in range(2))
    encoder, x = randomise(Encoder(layers)).to(DEVICE).train(), drawn(8, 16)
    segments = Segments.of([4, 4], DEVICE)
    fuse_passes(encoder)
    compiled = torch.compile(
        lambda x: encoder(x, segments), backend="aot_eager", fullgraph=True, dynamic=False
    )
    results = []
    for function in (lambda x: encoder(x, segments), compiled):
        torch.manual_seed(3)
        found = function(x)
        results.append([found, *torch.autograd.grad(found.square().sum(), encoder.parameters())])
    # all together: the gradient of a key's bias is zero but for rounding
    close(*(torch.cat([each.flatten() for each in result]).double() for result in results), 1e-5)


@pytest.mark.parametrize("rms", [False, True])
def test_the_trial_is_passed_and_notices_a_wrong_number(monkeypatch, rms):
    for dtype in TYPES:
        assert passes(ours.trial(DEVICE, dtype, 40, rms))
    right = ours._sum_and_norm
    monkeypatch.setattr(
        ours, "_sum_and_norm", lambda *given: [1.001 * each for each in right(*given)]
    )
    assert not passes(ours.trial(DEVICE, torch.float32, 40, rms))
