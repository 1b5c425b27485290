"""Ranges as types: `steps: Annotated[int, Range(1, 10**12)]` says which values a field may have.

A record that extends `Checked` refuses any other value, and docs/recipes.md shows the range.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """The numbers that a field may have; never NaN, and infinite only if `also` is.

    Attributes:
        least, most: the bounds, which belong to the range.
        above, below: bounds that do not.
        also: one more number, outside the bounds.
        why: what an error message adds: a reason or a remedy.
    """

    least: float = -inf
    most: float = inf
    above: float = -inf
    below: float = inf
    also: float | None = None
    why: str = ""

    def __contains__(self, value: float) -> bool:
        inside = self.least <= value <= self.most and self.above < value < self.below
        return inside or value == self.also

    def __str__(self) -> str:
        """The range in words, such as "at least 0 and below 1"."""
        bounds = {
            "above": (self.above, -inf),
            "at least": (self.least, -inf),
            "below": (self.below, inf),
            "at most": (self.most, inf),
        }
        words = [f"{word} {bound:,}" for word, (bound, none) in bounds.items() if bound != none]
        if self.least > -inf and self.most < inf:
            words = [f"from {self.least:,} to {self.most:,}"]
        either = f"{self.also:,}, or " if self.also is not None else ""
        return (either + " and ".join(words)).replace(".0 ", " ").removesuffix(".0")

    def check(self, name: str, value: float) -> None:
        """Raise ValueError if the field of this name may not have the value."""
        why = f"; {self.why}" if self.why else ""
        refuse_if(value not in self, f"{name} is {value}, must be {self}{why}")


Rate = Annotated[float, Range(0, below=1)]  # of dropout and the like: some, but not all
Probability = Annotated[float, Range(0, 1)]
NotNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(above=0)]
Count = Annotated[int, Range(0)]
AtLeastOne = Annotated[int, Range(1)]


class Checked:
    """A record whose fields keep to the `Range` in their types; in a list, each item does.

    Rules between fields stand in the `__post_init__` of a subclass, after the one here.
    """

    def __post_init__(self) -> None:
        for name, allowed in ranges_of(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            listed = isinstance(value, list)
            for place, each in enumerate(value if listed else [value]):
                if each is not None:
                    allowed.check(f"{name}[{place}]" if listed else name, each)


def refuse_if(wrong: object, message: str) -> None:
    """A rule of a record: raise ValueError with the message if what is given is true."""
    if wrong:
        raise ValueError(message)


@cache
def ranges_of(cls: type) -> dict[str, Range]:
    """The range of each field that has one, by name."""
    hints = get_type_hints(cls, include_extras=True)
    found = {name: next(_inside(hint), None) for name, hint in hints.items()}
    return {name: allowed for name, allowed in found.items() if allowed is not None}


def _inside(hint: Any) -> Iterator[Range]:
    """The ranges in a type, those in a union or a list included."""
    if get_origin(hint) is Annotated:
        yield from (each for each in hint.__metadata__ if isinstance(each, Range))
    for part in get_args(hint):
        yield from _inside(part)
