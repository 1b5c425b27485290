"""Records: frozen dataclasses that are built from mappings, with their ranges as types.

`record` builds one and refuses unknown keys and wrong types, with the full name of the key. A
record is defined next to what it configures. `steps: Annotated[int, Range(1, 10**12)]` says which
values a field may have: a record that extends `Checked` refuses any other, and docs/recipes.md
shows the range.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from math import inf
from numbers import Number
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from transduct.errors import TransductError, UnknownKey, require

if TYPE_CHECKING:
    from pydantic import ValidationError

Record = TypeVar("Record")
# Types in pydantic's words, and in ours. If the first three are given as text, an error says so.
TYPES = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid list": "a list",
    "a valid dictionary": "a mapping of keys",
}
NOT_TEXT = [*TYPES.values()][:3]
# Keys of `model` that older versions wrote, each with the only value that is left.
RETIRED = {"scale": True, "residual": True, "feed_forward": True}


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


def record(
    cls: type[Record],
    values: Any,
    where: str,
    source: str | None = None,
    hidden: Collection[str] = (),
    hint: str = "",
) -> Record:
    """Build the frozen dataclass `cls` from a mapping.

    Args:
        where: the mapping's full name in the recipe.
        source: the file that the mapping comes from, or what stands for it; None for the recipe.
        hidden: fields a recipe cannot set, left out of error messages.
        hint: what to add to the error about an unknown key at the top, if no known one is near.

    Raises:
        TransductError: if a key is unknown (names the nearest known one) or missing, a value has
            the wrong type, or the record's own `__post_init__` rejects it.
    """
    require(
        isinstance(values, Mapping),
        f"{{key}} is {described(values)}, expected a mapping of keys",
        key=where,
        file=source,
    )
    prefix = f"{where}." if where else ""
    names = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    if where == "model":
        values = _without_retired(values, names, source)
    for key in values:
        if key in names:
            continue
        advice = did_you_mean(str(key), [name for name in names if name not in hidden])
        # A section may have the key that was written one level too high.
        inside = [f"'{prefix}{name}.{key}'" for name in names if holds(values, [name, str(key)])]
        if inside:
            advice = f"; did you mean {' or '.join(inside)}?"
        elif not where and "known are" in advice:
            advice += hint
        raise UnknownKey(f"unknown key '{{key}}'{advice}", key=f"{prefix}{key}", file=source)
    hints = _hints(cls)  # type: ignore[arg-type]
    built = {
        key: _value(hints[key], value, f"{prefix}{key}", source) for key, value in values.items()
    }
    for name, each in names.items():
        if name not in built and each.default is MISSING and each.default_factory is MISSING:
            raise TransductError("missing key '{key}'", key=f"{prefix}{name}", file=source)
    try:
        return cls(**built)
    except (ValueError, OverflowError) as error:  # OverflowError: infinity converted to an integer
        raise refusal(error, names, where, source) from error


def _without_retired(
    values: Mapping[str, Any], names: Collection[str], source: str | None
) -> Mapping[str, Any]:
    """The section `model` without the keys of `RETIRED` that its family has no longer.

    Raises:
        TransductError: one of them has another value than the one that is left.
    """
    retired = {key: values[key] for key in RETIRED if key in values and key not in names}
    if values.get("norm") == "none" and "norm" in names:
        retired["norm"] = "none"
    for key, value in retired.items():
        require(
            value == RETIRED.get(key),
            f"{{key}} is {str(value).lower()}; a model without that part is in the course "
            "alone (course/transduct_course/ablations.py); leave the key out",
            key=f"model.{key}",
            file=source,
        )
    return {key: value for key, value in values.items() if key not in retired}


def refusal(
    error: Exception, names: Collection[str], where: str, source: str | None
) -> TransductError:
    """The error for a ValueError of a record, whose sentence may begin with one of its fields; see
    `record`."""
    name, _, rest = str(error).partition(" ")
    key = ".".join(filter(None, (where, name if name in names else "")))
    if name in names and rest.startswith("is "):
        return TransductError(f"{{key}} {rest}", key=key, file=source)
    return TransductError(f"{where}: {error}" if where else str(error), key=key, file=source)


def in_our_words(expected: str) -> str:
    """What pydantic expects, without what it could not do."""
    expected = expected.partition(", unable to")[0]
    return TYPES.get(expected, expected)


def _expected(error: "ValidationError") -> tuple[str, str]:
    """What pydantic refuses: its place inside the value, and what is wrong."""
    first = error.errors()[0]
    place = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
    expected = in_our_words(first["msg"].removeprefix("Input should be "))
    text = "the text " if expected in NOT_TEXT and isinstance(first["input"], str) else ""
    return place, f"{{key}} is {text}{described(first['input'])}, expected {expected}"


def _value(hint: Any, value: Any, name: str, source: str | None) -> Any:
    """Convert `value` to the type `hint`: build records and lists of records, check everything else
    strictly."""
    arguments = get_args(hint)
    if isinstance(value, Number) and hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    if get_origin(hint) in (Union, UnionType) and any(is_dataclass(a) for a in arguments):
        if value is None and type(None) in arguments:
            return None
        hint = next(a for a in arguments if is_dataclass(a))
    if is_dataclass(hint):
        return record(hint, value, name, source)  # type: ignore[arg-type]
    if get_origin(hint) is list and is_dataclass(get_args(hint)[0]):
        require(
            isinstance(value, list),
            f"{{key}} is {described(value)}, expected a list",
            key=name,
            file=source,
        )
        return [
            record(get_args(hint)[0], item, f"{name}[{i}]", source) for i, item in enumerate(value)
        ]
    from pydantic import ValidationError

    words: list[Any] = []
    for argument in arguments:
        words += get_args(argument) if get_origin(argument) is Literal else []
    if words:
        others = [argument for argument in arguments if get_origin(argument) is not Literal]
        # A single Literal, so that an error lists all words.
        hint = Union[Literal[tuple(words)], *others]
    try:
        return _checker(hint).validate_python(value, strict=True)
    except ValidationError as error:
        place, found = _expected(error)
        raise TransductError(found, key=f"{name}{place}", file=source) from error


@cache
def _hints(cls: type) -> dict[str, Any]:
    """The types of a record's fields; cached because every call of a model builds a record."""
    return get_type_hints(cls)


@cache
def _checker(hint: Any) -> Any:
    """The pydantic validator of a type; building one takes a hundred times as long as using it."""
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


def holds(tree: Any, names: Sequence[str]) -> bool:
    """Whether a tree of mappings and lists has an entry of this full name."""
    for name in names:
        entries = numbered(tree) if isinstance(tree, list) else tree
        if not isinstance(entries, Mapping) or name not in entries:
            return False
        tree = entries[name]
    return True


def numbered(items: list[Any]) -> dict[str, Any]:
    """The items of a list by index, counted from 0."""
    return {str(place): item for place, item in enumerate(items)}


def did_you_mean(name: str, known: Collection[str]) -> str:
    """What an error about an unknown name adds: the nearest known one or, if none is near, all."""
    if not known:
        return "; there are none"
    names = [str(key) for key in known]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; known are: {', '.join(names)}"


def described(value: Any) -> str:
    """A short description of a value of the wrong type: the value itself, cut to 60 characters, or
    its kind."""
    if value is None:
        return "empty"
    if isinstance(value, dict | list):
        return {dict: "a mapping", list: "a list"}[type(value)]
    return f"{value!r:.60}"
