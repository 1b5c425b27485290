"""The parts in which a corpus is prepared: each is a function of its files alone, so any number of
workers makes the same parts.

A part is some row groups of Parquet, a range of bytes that ends at a line (of two aligned files:
the same lines), a whole file that is compressed, a CSV or a document, or a generated corpus.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from transduct.data.lines import WHOLE, Span, opened
from transduct.data.places import path_of
from transduct.data.sources import COMPRESSIONS, TextSource, ending, listed

SIZE = 1 << 24  # bytes of a part, to the end of a line or of a row group
BLOCK = 1 << 20

Work = Callable[[Any], Any]  # does a part of a corpus, or a range of hashes
# Does all that it is given, by workers that it makes; results come as they are done.
Engine = Callable[[Callable[[], Work], Sequence[Any]], Iterator[Any]]


def in_this_process(make: Callable[[], Work], units: Sequence[Any]) -> Iterator[Any]:
    """Do all units in this process."""
    work = make()
    return map(work, units)


@dataclass(frozen=True)
class Split:
    """A part of a corpus.

    Attributes:
        number: of all parts, from 0.
        place: of its corpus among all, from 0.
        source: the files that it is a part of: two of aligned text, or one.
        spans: which part of each file it is.
        name: of what is made of it.
    """

    number: int
    place: int
    source: TextSource
    spans: tuple[Span, ...] = (WHOLE, WHOLE)
    name: str = ""


def splits_of(train: Sequence[TextSource], root: Path) -> list[Split]:
    """All parts of all corpora, in order."""
    found: list[Split] = []
    for place, source in enumerate(train):
        for files in _files_of(source.expanded(root)):
            for spans in _spans_of(files, root):
                found.append(Split(len(found), place, files, spans))
    return found


def _files_of(source: TextSource) -> Iterator[TextSource]:
    """A source for each file, or pair of aligned files, alone."""
    if source.generate is not None:
        yield source
    for left, right in zip(listed(source.source), listed(source.target)):
        yield replace(source, source=left, target=right)
    for kind in ("pairs", "text", "trees"):
        for name in listed(vars(source)[kind]):
            changes: dict[str, Any] = {kind: name}
            yield replace(source, **changes)


def _spans_of(source: TextSource, root: Path) -> Iterator[tuple[Span, ...]]:
    names = source.files()
    kind = ending(names[0])[0] if source.pairs else ".txt"
    packed = any(name.lower().endswith(COMPRESSIONS) for name in names)
    cut = names and kind in (".txt", ".tsv", ".jsonl", ".parquet") and not packed
    paths = [path_of(root, name) for name in names] if cut else []
    if all(path.stat().st_size <= SIZE for path in paths):
        yield WHOLE, WHOLE
    elif kind == ".parquet":
        yield from ((span, WHOLE) for span in _of_groups(paths[0]))
    else:
        cuts = _cuts(paths[0], blank=bool(source.pairs))
        each = [cuts, *(_same_lines(path, [line for _, line in cuts]) for path in paths[1:])]
        sides = [[Span(a, b, n) for (a, n), (b, _) in pairwise(side)] for side in each]
        yield from zip(*sides, *([[WHOLE] * len(sides[0])] if len(sides) == 1 else []))


def _of_groups(path: Path) -> Iterator[Span]:
    """Some row groups of a file of Parquet after the other."""
    from pyarrow.parquet import ParquetFile

    with opened(path) as stream:
        about = ParquetFile(stream).metadata
        start = rows = first = size = 0
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            rows, size = rows + group.num_rows, size + group.total_byte_size
            if size >= SIZE or number == about.num_row_groups - 1:
                yield Span(start, number + 1, first)
                start, first, size = number + 1, rows, 0


def _cuts(path: Path, blank: bool) -> list[tuple[int, int]]:
    """Where the parts of a file begin and the last one ends: the byte, and the lines before it.

    Args:
        blank: whether no part may end in a blank line, which is an error before a record, and none
            at the end of a file.
    """
    found = [(0, 0)]
    with path.open("rb") as stream:
        while block := stream.read(SIZE):
            line = block[block.rfind(b"\n", 0, len(block) - 1) + 1 :]
            lines = found[-1][1] + block.count(b"\n")
            while line and (not line.endswith(b"\n") or (blank and not line.strip())):
                line = (b"" if line.endswith(b"\n") else line) + (rest := stream.readline())
                lines += rest.count(b"\n")
                if not rest:
                    break
            found.append((stream.tell(), lines))
    return found


def _same_lines(path: Path, lines: Sequence[int]) -> list[tuple[int, int]]:
    """Like `_cuts`, where the parts have these lines; the last goes to the end of the file."""
    found, seen, position = [(0, 0)], 0, 0
    with path.open("rb") as stream:
        blocks = iter(partial(stream.read, BLOCK), b"")
        block = next(blocks, b"")
        for line in lines[1:-1]:
            while block and seen + (count := block.count(b"\n")) < line:
                seen, position, block = seen + count, position + len(block), next(blocks, b"")
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            length = int(ends[line - seen - 1]) + 1 if block else 0
            found.append((position + length, line))
    return [*found, (path.stat().st_size, lines[-1])]
