"""The layer equals torch's: its parameters, outputs and gradients. Changed modules are told."""

import pytest
import torch
from torch import nn

from tests.helpers import gradients
from transduct.blocks.linear import Linear, is_exactly


@pytest.mark.parametrize("size", [(3,), (100,), (2, 50), (0,)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_the_layer_is_torchs(size, bias):
    ours, theirs = Linear(70, 80, bias=bias), nn.Linear(70, 80, bias=bias)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(*size, 70, requires_grad=True)
    found, expected = ours(x), theirs(x)
    torch.testing.assert_close(found, expected)
    inputs = (gradients(each(x), [x, *each.parameters()]) for each in (ours, theirs))
    for one, other in zip(*inputs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_initial_weights_are_those_of_torch():
    torch.manual_seed(1)
    ours = Linear(7, 8)
    torch.manual_seed(1)
    theirs = nn.Linear(7, 8)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    assert isinstance(ours, nn.Linear)


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
