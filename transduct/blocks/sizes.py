"""Checks that the configurations of all models share."""

from typing import Any

GROUP = 16  # channels that are normalised together, about
DEEPEST = 1000  # layers; each is made before it is known what all of them take
# Places in a sequence, of which tables are made before any weight is read, and pixels on a side.
MOST = {"max_length": 1 << 20, "side": 8192, "image_size": 8192, "picture_size": 8192}
LARGEST = 1 << 24  # of anything else


def require_size(least: int, config: Any, *names: str) -> None:
    """Raises ValueError for the first of these fields that is smaller than `least`, or larger than any model's is; one
    that is not set is passed over."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}, must be at least {least}")
        most = DEEPEST if name.endswith("layers") else MOST.get(name, LARGEST)
        if value is not None and value > most:
            raise ValueError(f"{name} is {value}, must be at most {most}")


def require_rate(config: Any, *names: str) -> None:
    """Raises ValueError for the first of these fields that is no share of what may be dropped."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} is {getattr(config, name)}, must be in [0, 1)")


def require_heads(config: Any) -> None:
    """Raises ValueError if the heads do not share the width of the model evenly."""
    if config.d_model % config.num_heads:
        raise ValueError(f"d_model is {config.d_model}, must be a multiple of num_heads ({config.num_heads})")


def require_shared(config: Any) -> None:
    """Raises ValueError if one table is to serve two vocabularies."""
    if config.tie == "all" and config.source_size != config.target_size:
        raise ValueError(
            f"tie 'all' needs one shared vocabulary, found {config.source_size} and {config.target_size} entries; "
            "set tokenizer.shared=true or model.tie=decoder"
        )


def require_channels(config: Any, name: str) -> None:
    """Raises ValueError unless this field is a list of channels, each of which falls into groups of equal size."""
    channels = getattr(config, name)
    if not channels or any(not 1 <= count <= LARGEST or count % max(1, count // GROUP) for count in channels):
        raise ValueError(
            f"{name} is {channels}, must name numbers such as 8, 16, 40 or 64, which groups of {GROUP} share"
        )
