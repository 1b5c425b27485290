"""Reading text line by line from a file, stdin or a terminal; printing scores as a table; where
pictures of answers go.

Importing this does not import torch: `interfaces.process.load` does so faster.
"""

import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from transduct.errors import TransductError

if TYPE_CHECKING:
    from transduct.predictors.base import Predictor, Report

LINES_AT_ONCE = 4096


class Piped:
    """A stream that knows whether a line is available, so that a program that writes one line and
    waits is answered.

    Attributes:
        lines: how many lines have been read.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.name, self.lines, self.ended = stream, "stdin", 0, False

    def read(self, size: int) -> bytes:
        """Wait for input and return what is available, at most `size` bytes; empty at the end."""
        content: bytes = getattr(self.stream, "read1", self.stream.read)(size)
        self.lines, self.ended = self.lines + content.count(b"\n"), not content
        return content

    def has(self, line: int) -> bool:
        """Whether the line of this number, counted from 0, or the end of the stream is available
        without waiting."""
        if line < self.lines or self.ended:
            return True
        try:
            return bool(select.select([self.stream], [], [], 0)[0])
        except (OSError, ValueError):  # the stream has no file descriptor
            return True


def require_text(file: Path | None) -> Path | None:
    """Check that a text file can be read, before a model is loaded for it; returns None for stdin,
    which "-" names too.

    Raises:
        TransductError: if it is a folder or does not exist.
    """
    if file is None or str(file) == "-":
        return None
    if file.is_dir() or not file.exists():
        what = "a folder" if file.is_dir() else "no such file"
        raise TransductError(f"{file}: {what}; give a text file, or none for stdin")
    return file


def chunks(
    model: str, file: Path | None, prefixes: Path | None = None
) -> Iterator[tuple[int, list[str], list[str] | None]]:
    """Read a file, or stdin as lines arrive, in chunks: (index of the first line, lines, their
    lines of `prefixes`).

    Reports on stderr how many lines were not UTF-8.

    Raises:
        TransductError: if a file cannot be read, or `prefixes` does not have as many lines as the
            text.
    """
    from transduct.predictors.base import predictor_class

    broken: list[int] = []
    broken_prefixes: list[int] = []
    piped = Piped(sys.stdin.buffer) if file is None else None
    read = predictor_class(model).readable_lines
    lines = read(file or cast(BinaryIO, piped), broken)
    begun = None if prefixes is None else list(read(prefixes, broken_prefixes))
    number = 0
    unreadable: TransductError | None = None
    while unreadable is None:
        chunk: list[str] = []
        try:
            chunk.extend(_at_once(lines, number, piped))
        except TransductError as error:
            # raised once what came before it is answered
            unreadable = error
        if not chunk:
            break
        starts = None if begun is None else begun[number : number + len(chunk)]
        number += len(chunk)
        if begun is not None and number > len(begun):
            raise TransductError(f"{prefixes}: {_one_each(len(begun), 'more')}")
        yield number - len(chunk), chunk, starts
    if unreadable is not None:
        raise unreadable
    if begun is not None and number < len(begun):
        raise TransductError(f"{prefixes}: {_one_each(len(begun), str(number))}")
    for name, numbers in ((prefixes, broken_prefixes), (file or "stdin", broken)):
        if numbers:
            rest = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
            print(
                f"transduct: {name}:{numbers[0]}: not UTF-8{rest}; such bytes were read as U+FFFD",
                file=sys.stderr,
            )


def _at_once(lines: Iterator[str], number: int, piped: Piped | None) -> Iterator[str]:
    """The next lines: up to `LINES_AT_ONCE`, or those available without waiting."""
    for taken, line in zip(range(1, LINES_AT_ONCE + 1), lines):
        yield line
        if piped and not piped.has(number + taken):
            return


@contextmanager
def naming_lines(prefixes: Path | None, first: int) -> Iterator[None]:
    """Context manager that turns an error about "prefix N" of a chunk into one with the file and
    line number; `first` lines come before the chunk."""
    try:
        yield
    except TransductError as error:
        if prefixes is None or (place := re.match(r"prefix (\d+): ", str(error))) is None:
            raise
        raise TransductError(
            f"{prefixes}:{first + int(place[1])}: {str(error)[place.end() :]}"
        ) from error


def _one_each(found: int, expected: str) -> str:
    return (
        f"found {found} lines, the text has {expected}; give a line for each, empty where "
        "anything may come"
    )


def rows(translations: Sequence[Any], first: int, n_best: int, scores: bool) -> Iterator[str]:
    """The lines to print for the translations of some lines, of which the first has the number
    `first`, from 0."""
    for number, found in enumerate(translations, first + 1):
        if n_best > 1:
            yield from (f"{number}\t{each.score:.6f}\t{each.text}" for each in found.alternatives)
        else:
            yield f"{found.score:.6f}\t{found.text}" if scores else found.text


@contextmanager
def counting(wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Context manager that shows on stderr how many lines are done, if stderr is a terminal and
    stdout is not. Yields the function to call with the number of lines done since its last call."""
    if not wanted or sys.stdout.isatty() or not sys.stderr.isatty():
        yield lambda _: None
        return
    from transduct.interfaces.progress import count_lines

    with count_lines() as done:
        yield done


def require_folders(*paths: Path | None) -> None:
    """Raise TransductError if the parent folder of a given path does not exist."""
    for path in filter(None, paths):
        if not path.parent.is_dir():
            raise TransductError(
                f"{path}: there is no folder {path.parent}; make it, or give another file"
            )


def check_output(path: Path | None, inputs: Iterable[str | None] = ()) -> None:
    """Check, before the work, that its output can be written to a file.

    Raises:
        TransductError: there is no folder for it, it is a folder, a pipe or a device, or one of the
            inputs.
    """
    if path is not None and os.path.realpath(path) in {
        os.path.realpath(each) for each in inputs if each
    }:
        raise TransductError(f"{path}: this is an input; write to another file")
    require_folders(path)
    if path is not None and path.exists() and not path.is_file():
        raise TransductError(f"{path}: not a regular file; give another")


def check_drawable(
    model: "Predictor", name: str, path: Path | None, attention: Path | None = None
) -> None:
    """Check, before a model answers, that its pictures can be written to `path` and `attention`.

    Raises:
        TransductError: there is a path but the model answers in text, there is none but it answers
            in pictures, the path does not end in a picture format, or its attention is asked for
            but it has none.
    """
    if attention is not None and not model.attention_names:
        raise TransductError(f"{name}: this model has no attention to show; omit --attention")
    if path is None:
        if model.paints:
            raise TransductError(
                f"{name}: this model answers with pictures; say where to draw them with --out "
                "FILE.png"
            )
        return
    if "picture" not in model.verbs:
        raise TransductError(
            f"{name}: this model answers in text, which has no picture; omit --out"
        )
    from transduct.data.images import check_ending

    check_ending(path)


def places(
    model: "Predictor", inputs: Sequence[str], out: Path | None, attention: Path | None
) -> list[Path]:
    """The paths of the pictures of all answers: `out`, numbered if there are several inputs.

    Raises:
        TransductError: one of them, or `attention`, is an input file or used twice.
    """
    numbered = (
        [out.with_stem(f"{out.stem}_{number}") for number in range(1, len(inputs) + 1)]
        if out
        else []
    )
    drawn = [out] if out and len(inputs) == 1 else numbered
    taken = {os.path.realpath(given) for given in inputs if model.reads != "text"}
    for path in [*drawn, *([attention] if attention else [])]:
        if (place := os.path.realpath(path)) in taken:
            raise TransductError(
                f"{path}: this is an input, or another picture's place; draw to another"
            )
        taken.add(place)
    return drawn


def read_once(model: "Predictor", given: str) -> Any:
    """Turn a command-line argument into a model's input: a text, a file name, or the content of a
    pipe.

    A pipe can be read only once, but drawing the answer or the attention reads the input again.
    """
    from transduct.data.files import readable

    if model.reads == "text":
        return readable(given)
    try:
        return Path(given).read_bytes() if Path(given).is_fifo() else given
    except OSError:  # reported when the model reads it
        return given


def write_outputs(outputs: Iterable[object], path: Path) -> None:
    """Write a model's answers to a file, one per line.

    Raises:
        TransductError: there are none that are text, or the file cannot be written.
    """
    from transduct.storage import write_file

    lines = [str(output).replace("\n", " ") for output in outputs]
    if not lines:
        raise TransductError(
            f"{path}: this model gives no answers as text to write; leave --out out"
        )
    write_file(path, "".join(f"{line}\n" for line in lines).encode())


def table(report: "Report") -> Iterator[str]:
    """One line per score, with its interval, the other model's score, the p-value and the signature
    where known."""
    p_values, others = report.details.get("p_values", {}), report.details.get("against", {})
    for name, value in report.scores.items():
        details = report.details.get(name, {})
        interval = (
            "  [{}, {}]".format(*map(_digits, details["interval"])) if "interval" in details else ""
        )
        rest = f"  against {_digits(others[name])}" if name in others else ""
        rest += f"  p = {p_values[name]:.4f}" if name in p_values else ""
        yield (
            f"{name:18} {_digits(value):>7}{interval}{rest}  {details.get('signature', '')}"
        ).rstrip()


def _digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def typed() -> Iterator[tuple[int, list[str], None]]:
    """Like `chunks`, one line at a time from a terminal."""
    from transduct.data.files import readable

    print("Write a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
    edited = sys.stdin.isatty() and sys.stdout.isatty()  # else `input` knows no arrow keys
    if edited:
        with suppress(ImportError):  # not everywhere
            import readline  # noqa: F401 (changes `input`)
    for number in count():
        try:
            if not edited:
                print("> ", end="", file=sys.stderr, flush=True)
            line = input("> " if edited else "")
            if (text := readable(line)) != line:
                print("transduct: not UTF-8; such bytes were read as U+FFFD", file=sys.stderr)
            yield number, [text], None
        except EOFError:
            return
