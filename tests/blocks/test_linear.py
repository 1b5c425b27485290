"""The layer equals torch's: its parameters, outputs and gradients."""

import pytest
import torch
from torch import nn

from tests.helpers import gradients
from transduct.blocks.linear import Linear, apart


class Other(Linear):
    def forward(self, input):
        return super().forward(input) + 1.0


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


def test_it_is_drawn_as_torchs_is():
    torch.manual_seed(1)
    ours = Linear(7, 8)
    torch.manual_seed(1)
    theirs = nn.Linear(7, 8)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    assert isinstance(ours, nn.Linear)


def test_only_a_plain_layer_is_taken_apart():
    x, plain, changed = torch.randn(3, 4), Linear(4, 5), Other(4, 5)
    product, bias = apart(plain, x, True)
    assert bias is plain.bias
    torch.testing.assert_close(product + bias, plain(x))
    for layer, wanted in ((plain, False), (changed, True)):
        product, bias = apart(layer, x, wanted)
        assert bias is None
        assert torch.equal(product, layer(x))
    plain.register_forward_hook(lambda module, given, found: 2.0 * found)
    assert torch.equal(apart(plain, x, True)[0], plain(x))
