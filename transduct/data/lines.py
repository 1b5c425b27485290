"""Lines of text, of files and of streams, plain or compressed.

Only a line feed ends a line (a carriage return before it is dropped): U+2028, U+0085 and a lone
carriage return are text. Errors name the file and line.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from transduct.data.files import kind_of, opened
from transduct.errors import TransductError, rewording

ODD = re.compile(rb"[\x00-\x08\x0e-\x1f\x80-\xff]")  # only with these may bytes be no UTF-8
BLOCK = 1 << 20  # bytes read at a time
LONGEST_LINE = 1 << 22  # bytes; reading a token takes some hundred bytes, and a microsecond


@dataclass(frozen=True)
class Span:
    """A file, or a part of one that is not compressed.

    Attributes:
        start, stop: its bytes, which end at a line; or its row groups of Parquet; or no end.
        first: the lines or rows of the file before it.
    """

    start: int = 0
    stop: int | None = None
    first: int = 0


WHOLE = Span()


def check_text(text: str) -> None:
    """Raise TransductError if a text contains an unpaired surrogate, which JSON can spell."""
    with rewording(UnicodeEncodeError, "found an unpaired surrogate, expected text; fix the line"):
        text.encode()


class LongLine(TransductError):
    """A line is too long to be read as text."""


def read_lines(file: Path | BinaryIO, strict: bool = True, span: Span = WHOLE) -> Iterator[str]:
    """The lines of a file, of a part of it or of an open stream, without line ends and without a
    byte order mark at the start.

    Lines of a stream are yielded as soon as they arrive. Unless `strict`, bytes that are not UTF-8
    are escaped (PEP 383).

    Raises:
        TransductError: the file cannot be read, (`LongLine`) a line is too long, or (`strict`) a
            line is not UTF-8.
    """
    if isinstance(file, Path):
        with opened(file) as stream:
            read = partial(stream.read, BLOCK)
            if span.stop is not None:
                read = partial(_read_to, stream, span.stop)
                stream.seek(span.start)
            for lines in _split(read, str(file), strict, True, span.first + 1):
                yield from lines
    else:
        name = str(getattr(file, "name", "the input"))
        read = partial(getattr(file, "read1", file.read), BLOCK)
        for lines in _split(read, name, strict, whole=False):
            yield from lines


def _read_to(stream: BinaryIO, stop: int) -> bytes:
    return stream.read(min(BLOCK, stop - stream.tell()))


def _split(
    read: Callable[[], bytes], name: str, strict: bool, whole: bool, number: int = 1
) -> Iterator[list[str]]:
    """The lines of each block, of which the first has this number: decoding a block at once is much
    faster than line by line."""
    # who translates texts of a program reads no file
    from transduct.data.encodings import CONVERT, MARKS, judge, shifting, wide

    judged, utf8, blocks = False, False, _blocks(read, name, number)
    for data in blocks:
        marked = unmarked = ""
        if number == 1:
            if kind := kind_of(data):
                expected = "expected text, plain or compressed as its name says (.gz, .xz, .zst)"
                raise TransductError(f"found {kind[0]}, {expected}; {kind[1]}", file=name)
            marked = next((each for mark, each in MARKS if data.startswith(mark)), "")
            unmarked = "" if marked or not ODD.search(data) else wide(data)
        if unmarked:
            problem = f"found {unmarked[:6].upper()} without a mark; {CONVERT} {unmarked} -t utf-8"
            raise TransductError(problem, file=name, line=1)
        if b"\x1b" in data and (shift := shifting(data)):
            problem = f"found ISO 2022, expected UTF-8; {CONVERT} {shift[1]} -t utf-8"
            line = number + data.count(b"\n", 0, shift[0])
            raise TransductError(problem, file=name, line=line)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            if strict or not judged:
                judged = True
                rest = chain([data], blocks if strict else ())
                judge(error, number, rest, name, marked, utf8, strict, whole)
            text = data.decode(errors="surrogateescape")
        utf8 = utf8 or not text.isascii()
        if number == 1:
            text = text.removeprefix("\ufeff")
        lines = text.replace("\r\n", "\n").split("\n")
        if not lines[-1]:
            lines.pop()
        number += len(lines)
        yield lines


def _blocks(read: Callable[[], bytes], name: str, number: int) -> Iterator[bytes]:
    """Whole lines, as many as are read at once."""
    unfinished, block, size = [b""], b"\n", 0
    while block:
        block = read()
        end = block.rfind(b"\n") + 1
        size += block.find(b"\n") if end else len(block)
        if size > LONGEST_LINE:
            raise LongLine(
                f"found a line of more than {LONGEST_LINE:,} bytes, the most that is read; break "
                "it, for example with: fold -s -w 1000",
                file=name,
                line=number,
            )
        if block and not end:
            unfinished.append(block)
            continue
        data = b"".join([*unfinished, block[:end]])
        unfinished, size = [block[end:]], len(block) - end
        number += data.count(b"\n")
        yield data


def numbered(lines: Iterable[str], first: int = 1) -> Iterator[tuple[int, str]]:
    """Lines that hold a record each, with their numbers, but for blank ones at the end, as an
    editor or a script leaves them."""
    blank: list[tuple[int, str]] = []
    for number, line in enumerate(lines, first):
        if line.strip() or "\t" in line:  # a row of empty cells is one
            yield from blank
            blank.clear()
            yield number, line
        elif len(blank) < 2:  # the first is refused if a record follows
            blank.append((number, line))
