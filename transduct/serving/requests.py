"""Validation of requests to the server."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from transduct.config import parse_override
from transduct.errors import TransductError, require

# the largest values of these options; the least is 1
MOST = {"beam": 16, "n_best": 16, "samples": 16, "length": 2_000, "max_length": 2_000}
STEEPEST = 100.0  # the largest absolute value of other numbers, except seed and top_k
# Options reserved for the server's operator.
OURS = ("workers", "batch_tokens", "captured", "validation_beam", "expansion")
# Parameters that are not options.
TAKEN = (
    *("self", "inputs", "texts", "data", "path", "files", "against", "device", "precision"),
    "skip_errors",
)
LONGEST_WORD, MOST_OPTIONS = 40, 50
LANGUAGES = {"from": "source_language", "to": "target_language"}  # in a request, in Python
CHARSET = re.compile(r"charset\s*=\s*\"?([^\s;\"]+)", re.IGNORECASE)


class Problem(Exception):
    """An error answer.

    Attributes:
        status: of HTTP; 456 for a quota that is used up, which most APIs call 429.
        param: the field of the request that is wrong.
        seconds: when to come back.
        close: whether the rest of the request is left unread.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        seconds: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.seconds, self.close = status, param, seconds, close


def expect(right: object, status: int, message: str, *about: Any, **more: Any) -> None:
    """Raise Problem with these unless what is given is true."""
    if not right:
        raise Problem(status, message, *about, **more)


def media_type(header: str) -> tuple[str, str]:
    """The type in a Content-Type, and its charset, or ""."""
    kind, _, rest = header.partition(";")
    found = CHARSET.search(rest)
    return kind.strip().lower(), found[1].lower() if found else ""


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number")


DECODER = json.JSONDecoder(parse_constant=_refuse)


def read(content: bytes) -> Any:
    """Parse JSON, rejecting NaN and infinity."""
    return DECODER.decode(content.decode(json.detect_encoding(content)))


def value_of(text: str) -> Any:
    """The value of an option in a query string: parsed as JSON if valid, otherwise text."""
    try:
        return read(text.encode())
    except (ValueError, RecursionError):
        return text


def parsed_options(words: Sequence[str]) -> dict[str, Any]:
    """Parse options from the command line, such as beam=1."""
    options: dict[str, Any] = {}
    for word in words:
        options |= parse_override(word)
    _check_names(options)
    return options


def _check_names(options: Iterable[str]) -> None:
    """Reject options named like parameters of the methods they are passed to."""
    for name in options:
        require(name not in TAKEN, f"'{name}' is not an option; leave it out")


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Check the options of a request: only numbers and short words, within limits that protect the
    server."""
    # the cost of every input is computed with them
    require(
        len(options) <= MOST_OPTIONS,
        f"found {len(options)} options, more than there are; leave out those that do not exist",
    )
    _check_names(options)
    options = {LANGUAGES.get(name, name): value for name, value in options.items()}
    for name, value in options.items():
        require(
            isinstance(value, str) or name not in LANGUAGES.values(),
            f"{name} is {value!r:.40}, expected a code or name of a language",
        )
        require(name not in OURS, f"'{name}' is reserved for the server's operator; leave it out")
        require(
            isinstance(value, str | int | float | None) and len(str(value)) <= LONGEST_WORD,
            f"{name:.40} is {value!r:.40}, expected a number or a short word",
        )
        if name in MOST and (not isinstance(value, int) or isinstance(value, bool)):
            found = f"the text '{value}'" if isinstance(value, str) else repr(value)
            raise TransductError(f"{name} is {found}, expected a whole number, without quotes")
        if name in MOST and isinstance(value, int) and not 1 <= value <= MOST[name]:
            raise TransductError(f"{name} is {value!r}, must be from 1 to {MOST[name]}")
        if (
            isinstance(value, int | float)
            and name not in (*MOST, "seed", "top_k")
            and abs(value) > STEEPEST
        ):
            raise TransductError(f"{name} is {value}, must be between -{STEEPEST} and {STEEPEST}")
    return options
