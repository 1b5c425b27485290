"""A module that may compute something else than its class is not plain."""

import torch
from torch import nn

from transduct.blocks.linear import Linear
from transduct.blocks.plain import plain


def test_plain_is_what_computes_what_its_class_says():
    assert plain(Linear(2, 2), nn.LayerNorm, Linear)
    assert not plain(Linear(2, 2), nn.Linear), "a subclass"
    assert not plain(None, Linear)
    changed = [Linear(2, 2) for _ in range(4)]
    changed[0].register_forward_hook(lambda *_: None)
    changed[1].register_forward_pre_hook(lambda *_: None)
    changed[2].forward = torch.tanh
    nn.utils.parametrize.register_parametrization(changed[3], "weight", nn.Identity())
    assert not any(plain(each, Linear) for each in changed)
