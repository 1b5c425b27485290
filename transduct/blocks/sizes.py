"""Checks of model configurations."""

from typing import Any

GROUP = 16  # channels per group of group normalisation, approximately
DEEPEST = 1000  # layers; larger numbers would exhaust the memory while the model is built
# Positions of a sequence, whose tables are made before any weight is read, and pixels on a side.
MOST = {"max_length": 1 << 20, "side": 8192, "image_size": 8192, "picture_size": 8192}
LARGEST = 1 << 24  # for all other sizes


def require_size(least: int, config: Any, *names: str) -> None:
    """Raise ValueError for the first of these fields that is smaller than `least` or implausibly
    large; None is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}, must be at least {least}")
        most = DEEPEST if name.endswith("layers") else MOST.get(name, LARGEST)
        if value is not None and value > most:
            raise ValueError(f"{name} is {value}, must be at most {most}")


def require_rate(config: Any, *names: str) -> None:
    """Raise ValueError for the first of these fields that is not a dropout rate."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} is {getattr(config, name)}, must be in [0, 1)")


def require_heads(config: Any) -> None:
    """Raise ValueError if d_model is not a multiple of num_heads."""
    if config.d_model % config.num_heads:
        raise ValueError(
            f"d_model is {config.d_model}, must be a multiple of num_heads ({config.num_heads})"
        )


def require_shared(config: Any) -> None:
    """Raise ValueError if one table is shared by two vocabularies of different size."""
    if config.tie in ("all", "embeddings") and config.source_size != config.target_size:
        raise ValueError(
            f"tie '{config.tie}' needs one shared vocabulary, found {config.source_size} and "
            f"{config.target_size} entries; set tokenizer.shared=true or model.tie=decoder"
        )


def require_channels(config: Any, name: str) -> None:
    """Raise ValueError unless this field is a list of channel counts that group normalisation can
    divide evenly."""
    channels = getattr(config, name)
    if not channels or any(
        not 1 <= count <= LARGEST or count % max(1, count // GROUP) for count in channels
    ):
        raise ValueError(
            f"{name} is {channels}, must list channels such as 8, 16, 40 or 64 that divide into "
            f"groups of about {GROUP}"
        )
