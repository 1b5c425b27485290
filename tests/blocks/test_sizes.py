"""Impossible sizes are refused by the name of the field."""

from types import SimpleNamespace

import pytest

from transduct.blocks.sizes import require_at_least, require_heads, require_rate


def test_a_size_is_at_least_what_it_must_be():
    config = SimpleNamespace(layers=1, width=0, unset=None)
    require_at_least(1, config, "layers", "unset")
    require_at_least(0, config, "width")
    with pytest.raises(ValueError, match="width is 0, must be at least 1"):
        require_at_least(1, config, "layers", "width")


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_drops_some_but_not_all(rate):
    require_rate(SimpleNamespace(dropout=0.0), "dropout")
    with pytest.raises(ValueError, match=r"dropout is .*, must be in \[0, 1\)"):
        require_rate(SimpleNamespace(dropout=rate), "dropout")


def test_heads_share_the_width_evenly():
    require_heads(SimpleNamespace(d_model=12, num_heads=3))
    with pytest.raises(ValueError, match=r"d_model is 12, must be a multiple of num_heads \(5\)"):
        require_heads(SimpleNamespace(d_model=12, num_heads=5))
