"""Types and checks of model configurations."""

from dataclasses import dataclass
from typing import Annotated, Any

from transduct.records import Checked, Range, refuse_if

GROUP = 16  # channels per group of group normalisation, approximately
LARGEST = 1 << 24  # for sizes that have no bound of their own
Size = Annotated[int, Range(1, LARGEST)]
# More layers would exhaust the memory while the model is built.
Layers = Annotated[int, Range(1, 1000)]
LayersOrNone = Annotated[int, Range(0, 1000)]
Side = Annotated[int, Range(1, 8192)]  # of a picture, in pixels
# Positions of a sequence, whose tables are made before any weight is read.
LONGEST = 1 << 20
Length = Annotated[int, Range(2, LONGEST, why="a token and the end")]


@dataclass(frozen=True)
class Headed(Checked):
    """A configuration whose attention heads divide d_model evenly."""

    def __post_init__(self) -> None:
        super().__post_init__()
        config: Any = self  # whose subclass has the two fields
        refuse_if(
            config.d_model % config.num_heads,
            f"d_model is {config.d_model}, must be a multiple of num_heads ({config.num_heads})",
        )


def require_channels(config: Any, name: str) -> None:
    """Raise ValueError unless this field is a list of channel counts that group normalisation can
    divide evenly."""
    channels = getattr(config, name)
    refuse_if(
        not channels
        or any(not 1 <= count <= LARGEST or count % max(1, count // GROUP) for count in channels),
        f"{name} is {channels}, must list channels such as 8, 16, 40 or 64 that divide into "
        f"groups of about {GROUP}",
    )
