"""Text line by line: from a file or stdin in chunks, or from whoever sits at a terminal."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from transduct.tasks.base import readable_lines

LINES_AT_ONCE = 4096


def chunks(model: str, file: Path | None) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, some lines) of a file or of stdin; says on stderr how many lines were not UTF-8."""
    broken: list[int] = []
    lines = readable_lines(model, file or sys.stdin.buffer, broken)
    number = 0
    while chunk := list(islice(lines, LINES_AT_ONCE)):
        yield number, chunk
        number += len(chunk)
    if broken:
        rest = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        print(
            f"transduct: {file or 'stdin'}:{broken[0]}: not UTF-8{rest}; such bytes were read as U+FFFD",
            file=sys.stderr,
        )


def interactive(translator: Any, options: dict[str, Any]) -> None:
    """A line in, a line out, until the end of input."""
    print("Write a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            print("> ", end="", file=sys.stderr, flush=True)
            line = input()
        except EOFError:
            return
        print(translator.translate([line], **options)[0].text)
