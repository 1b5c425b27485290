"""Text line by line: from a file or stdin in chunks, or from whoever sits at a terminal; scores as a table."""

import re
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO, cast

from transduct.errors import TransductError
from transduct.tasks.base import Report, readable_lines
from transduct.tasks.showing import typed_text

LINES_AT_ONCE = 4096


class Piped:
    """A stream that knows whether a line of it is there, so that whoever writes one and waits is answered.

    Attributes:
        lines: how many have come.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.name, self.lines, self.ended = stream, "stdin", 0, False

    def read(self, size: int) -> bytes:
        """What is there, after waiting for something; nothing at the end."""
        content: bytes = getattr(self.stream, "read1", self.stream.read)(size)
        self.lines, self.ended = self.lines + content.count(b"\n"), not content
        return content

    def has(self, line: int) -> bool:
        """Whether the line of this number, or the end, need not be waited for."""
        if line < self.lines or self.ended:
            return True
        try:
            return bool(select.select([self.stream], [], [], 0)[0])
        except (OSError, ValueError):  # a stream that is no file
            return True


def require_text(file: Path | None) -> None:
    """Refuse, before a model is loaded for it, what no lines can be read of.

    Raises:
        TransductError: it is a folder or not there.
    """
    if file is not None and (file.is_dir() or not file.exists()):
        what = "a folder" if file.is_dir() else "no such file"
        raise TransductError(f"{file}: {what}; give a text file, or none for stdin")


def chunks(
    model: str, file: Path | None, prefixes: Path | None = None
) -> Iterator[tuple[int, list[str], list[str] | None]]:
    """(number of the first line, some lines, as many of `prefixes`) of a file or of stdin, from which lines are taken
    as they come; says on stderr how many were not UTF-8.

    Raises:
        TransductError: a file cannot be read, or `prefixes` has more lines or fewer.
    """
    broken: list[int] = []
    broken_prefixes: list[int] = []
    piped = Piped(sys.stdin.buffer) if file is None else None
    lines = readable_lines(model, file or cast(BinaryIO, piped), broken)
    begun = None if prefixes is None else list(readable_lines(model, prefixes, broken_prefixes))
    number = 0
    while chunk := list(_at_once(lines, number, piped)):
        starts = None if begun is None else begun[number : number + len(chunk)]
        number += len(chunk)
        if begun is not None and number > len(begun):
            raise TransductError(f"{prefixes}: {_one_each(len(begun), 'more')}")
        yield number - len(chunk), chunk, starts
    if begun is not None and number < len(begun):
        raise TransductError(f"{prefixes}: {_one_each(len(begun), str(number))}")
    for name, those in ((prefixes, broken_prefixes), (file or "stdin", broken)):
        if those:
            rest = f" and {len(those) - 1} more" if len(those) > 1 else ""
            print(f"transduct: {name}:{those[0]}: not UTF-8{rest}; such bytes were read as U+FFFD", file=sys.stderr)


def _at_once(lines: Iterator[str], number: int, piped: Piped | None) -> Iterator[str]:
    """The next lines, as many as are translated at once, or as many as are there."""
    for taken, line in zip(range(1, LINES_AT_ONCE + 1), lines):
        yield line
        if piped and not piped.has(number + taken):
            return


@contextmanager
def naming_lines(prefixes: Path | None, first: int) -> Iterator[None]:
    """Around what is done with some lines of `prefixes`, after the `first` so many: an error that counts from there
    becomes one of a line of that file."""
    try:
        yield
    except TransductError as error:
        if prefixes is None or (place := re.match(r"prefix (\d+): ", str(error))) is None:
            raise
        raise TransductError(f"{prefixes}:{first + int(place[1])}: {str(error)[place.end() :]}") from error


def _one_each(found: int, expected: str) -> str:
    return f"found {found} lines, the text has {expected}; give a line for each, empty where anything may come"


def table(report: Report) -> Iterator[str]:
    """A line for each score, with its interval, the other model's and the chance that they differ by chance."""
    p_values, others = report.details.get("p_values", {}), report.details.get("against", {})
    for name, value in report.scores.items():
        about = report.details.get(name, {})
        interval = "  [{}, {}]".format(*map(_digits, about["interval"])) if "interval" in about else ""
        rest = f"  against {_digits(others[name])}" if name in others else ""
        rest += f"  p = {p_values[name]:.4f}" if name in p_values else ""
        yield f"{name:18} {_digits(value):>7}{interval}{rest}  {about.get('signature', '')}".rstrip()


def _digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def typed() -> Iterator[tuple[int, list[str], None]]:
    """As `chunks`, line by line from whoever sits at a terminal, until the end of input."""
    print("Write a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
    for number in count():
        try:
            print("> ", end="", file=sys.stderr, flush=True)
            line = input()
            if (text := typed_text(line)) != line:
                print("transduct: not UTF-8; such bytes were read as U+FFFD", file=sys.stderr)
            yield number, [text], None
        except EOFError:
            return
