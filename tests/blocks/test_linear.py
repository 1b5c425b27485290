"""The layer equals torch's: its parameters, outputs and gradients."""

import pytest
import torch
from torch import nn

from tests.helpers import gradients
from transduct.blocks.linear import Linear


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
