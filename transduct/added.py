"""What other packages add by entry points: commands, tasks, predictors and generated corpora."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

Group = Literal["commands", "corpora", "predictors", "tasks"]


@cache
def added(group: Group) -> dict[str, EntryPoint]:
    """The entry points `transduct.GROUP` of all installed packages by name; none is loaded."""
    return {entry.name: entry for entry in entry_points(group=f"transduct.{group}")}
