"""Impossible sizes are refused by the name of the field."""

import re
from types import SimpleNamespace

import pytest
import torch

from transduct.blocks.convolution import group_norm
from transduct.blocks.sizes import Headed, require_channels
from transduct.models import bert, dalle, gpt, speech, vit


@pytest.mark.parametrize("family", [bert, dalle, gpt, speech, vit], ids=lambda each: each.__name__)
def test_heads_share_the_width_evenly(family):
    sizes = [7, dalle.CodesConfig()] if family is dalle else [7]
    family.Config(*sizes, d_model=12, num_heads=3)
    assert issubclass(family.Config, Headed)
    with pytest.raises(ValueError, match=r"d_model is 12, must be a multiple of num_heads \(5\)"):
        family.Config(*sizes, d_model=12, num_heads=5)


@pytest.mark.parametrize("channels", [[8], [16, 40], [64, 128]])
def test_channels_fall_into_groups(channels):
    require_channels(SimpleNamespace(channels=channels), "channels")
    assert [
        group_norm(count)(torch.zeros(1, count, 2, 2)).shape[1] for count in channels
    ] == channels


@pytest.mark.parametrize("channels", [[], [0], [8, -3], [50], [100], [16 * 10**8]])
def test_channels_that_do_not_are_refused(channels):
    with pytest.raises(
        ValueError,
        match=re.escape(f"backbone is {channels}, must list channels such as 8, 16, 40 or 64"),
    ):
        require_channels(SimpleNamespace(backbone=channels), "backbone")
