"""What a request to the server may say, and what is answered to one that says something else."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transduct.config import parse_override
from transduct.errors import TransductError

MOST = {"beam": 16, "n_best": 16, "samples": 16, "length": 2_000}  # what an option may ask for, 1 at least
STEEPEST = 100.0  # the largest number of the others, seeds and counts of tokens aside
OURS = ("workers", "batch_tokens", "captured", "validation_beam")  # options that are for whoever runs the server
LONGEST_WORD, MOST_OPTIONS = 40, 50
HALVES = re.compile("[\ud800-\udfff]")  # JSON can say them, UTF-8 cannot


@dataclass(frozen=True)
class Predict:
    """The body of POST /predict."""

    inputs: list[str]
    options: dict[str, Any] | None = None


@dataclass(frozen=True)
class Score:
    """The body of POST /score."""

    sources: list[str]
    targets: list[str]


@dataclass(frozen=True)
class Attention:
    """The body of POST /attention: a text, a translation of it if not the model's own, the weights that are wanted."""

    text: str
    target: str | None = None
    name: str | None = None


class Problem(Exception):
    """What is answered instead: a status and one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def is_json(kind: str) -> bool:
    """Whether a type of content is JSON's."""
    return kind.partition(";")[0].strip().lower() == "application/json"


def read(content: bytes) -> Any:
    """JSON, in which NaN and infinity have no place."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number")

    return json.loads(content, parse_constant=refuse)


def value_of(text: str) -> Any:
    """An option in a query: a number, true, false or null as JSON writes it, else text."""
    try:
        return read(text.encode())
    except (ValueError, RecursionError):
        return text


def texts_of(values: Any, name: str) -> list[str]:
    """What should be a list of texts."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TransductError(f"the request: '{name}' must be a list of texts")
    if any(map(HALVES.search, values)):
        raise TransductError(f"the request: '{name}' holds half a character, a surrogate without its other half")
    return values


def options_said(words: Sequence[str]) -> dict[str, Any]:
    """Options as a command says them: beam=1."""
    given: dict[str, Any] = {}
    for word in words:
        given |= parse_override(word)
    _check_names(given)
    return given


def _check_names(options: Iterable[str]) -> None:
    """Refuse options that have the name of what they go with."""
    for name in options:
        if name in ("self", "inputs", "texts"):
            raise TransductError(f"'{name}' is no option; leave it out")


def options_of(given: dict[str, Any]) -> dict[str, Any]:
    """Options that anyone may set, as far as anyone may: single numbers and words that cannot ask for too much."""
    if len(given) > MOST_OPTIONS:  # each input of the request is asked what it costs with them
        raise TransductError(f"found {len(given)} options, more than there are; leave out what is none")
    _check_names(given)
    for name, value in given.items():
        if name in OURS:
            raise TransductError(f"'{name}' is set by whoever runs the server; leave it out")
        if not isinstance(value, str | int | float | None) or len(str(value)) > LONGEST_WORD:
            raise TransductError(f"{name:.40} is a {type(value).__name__}, expected a number or a short word")
        if name in MOST and (type(value) is not int or not 1 <= value <= MOST[name]):
            raise TransductError(f"{name} is {value!r}, must be from 1 to {MOST[name]}")
        if isinstance(value, int | float) and name not in (*MOST, "seed", "top_k") and abs(value) > STEEPEST:
            raise TransductError(f"{name} is {value}, must be between -{STEEPEST} and {STEEPEST}")
    return given
