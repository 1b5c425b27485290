"""What the sizes of any model must be."""

from typing import Any


def require_at_least(least: int, config: Any, *names: str) -> None:
    """Raises ValueError for the first of these fields that is smaller; one that is not set is passed over."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}, must be at least {least}")


def require_rate(config: Any, *names: str) -> None:
    """Raises ValueError for the first of these fields that is no share of what may be dropped."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} is {getattr(config, name)}, must be in [0, 1)")


def require_heads(config: Any) -> None:
    """Raises ValueError if the heads do not share the width of the model evenly."""
    if config.d_model % config.num_heads:
        raise ValueError(f"d_model is {config.d_model}, must be a multiple of num_heads ({config.num_heads})")
