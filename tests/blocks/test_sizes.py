"""Impossible sizes are refused by the name of the field."""

import re
from types import SimpleNamespace

import pytest
import torch

from transduct.blocks.convolution import group_norm
from transduct.blocks.sizes import require_channels, require_heads, require_rate, require_size


def test_a_size_is_at_least_what_it_must_be():
    config = SimpleNamespace(layers=1, width=0, unset=None)
    require_size(1, config, "layers", "unset")
    require_size(0, config, "width")
    with pytest.raises(ValueError, match="width is 0, must be at least 1"):
        require_size(1, config, "layers", "width")


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_drops_some_but_not_all(rate):
    require_rate(SimpleNamespace(dropout=0.0), "dropout")
    with pytest.raises(ValueError, match=r"dropout is .*, must be in \[0, 1\)"):
        require_rate(SimpleNamespace(dropout=rate), "dropout")


def test_heads_share_the_width_evenly():
    require_heads(SimpleNamespace(d_model=12, num_heads=3))
    with pytest.raises(ValueError, match=r"d_model is 12, must be a multiple of num_heads \(5\)"):
        require_heads(SimpleNamespace(d_model=12, num_heads=5))


def test_nothing_is_too_large():
    require_size(1, SimpleNamespace(layers=1000, width=1 << 24), "layers", "width")
    with pytest.raises(ValueError, match="decoder_layers is 1001, must be at most 1000"):
        require_size(1, SimpleNamespace(decoder_layers=1001), "decoder_layers")
    with pytest.raises(ValueError, match="width is 1000000000, must be at most 16777216"):
        require_size(1, SimpleNamespace(width=10**9), "width")
    with pytest.raises(ValueError, match="max_length is 1048577, must be at most 1048576"):
        require_size(1, SimpleNamespace(max_length=(1 << 20) + 1), "max_length")


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
