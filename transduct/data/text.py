"""Reads text corpora as streams of rows: aligned files, tables, plain text and trees.

Errors name the file and line; nothing is skipped silently. A row that is wrong comes as its error,
so that whoever measures can go on behind it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import TypeVar

import numpy as np

from transduct.data.files import Refused
from transduct.data.lines import START, WHOLE, Span, kind_of, opened, read_lines, refuse
from transduct.data.places import path_of
from transduct.data.replacements import Replacement, changed, changes_of, of_references
from transduct.data.samples import Pair, generate
from transduct.data.sources import DOCUMENTS, TextSource, ending, listed
from transduct.data.tables import Row, in_utf8, parsed, table_rows
from transduct.data.trees import read_tree
from transduct.errors import TransductError

Item = TypeVar("Item")

CHUNK = 2_000  # rows in a chunk: about 10 MB when encoded
CHARACTERS = 1_000_000  # characters at which a chunk of long texts ends earlier
MOST_DRIFT = 10  # lines; a larger difference has many causes and no single place
# standard deviations of the gain of a line by which a split must beat the end to be preferred
BY_CHANCE = 3.0


def read_pairs(
    source: TextSource,
    root: Path,
    replace: Sequence[Replacement] = (),
    refused: Refused | None = None,
) -> Iterator[list[Pair]]:
    """Read the pairs of a corpus in chunks (see `in_chunks`), in constant memory.

    Args:
        refused: as for `read_rows`.

    Raises:
        TransductError: the corpus is empty, or one of its files is missing, damaged, not UTF-8, not
            in its format, or not aligned with its counterpart.
    """
    for pairs in _pairs_of(read_rows(source, root, False, refused)):
        yield changed(pairs, replace)


def read_part(
    source: TextSource, root: Path, refused: Refused, spans: Sequence[Span]
) -> Iterator[list[Pair]]:
    """Read the pairs of a part of a corpus in chunks, which may be none; raises like
    `read_pairs`."""
    strict = refused.policy == "stop"
    yield from _pairs_of(
        _without_errors(rows_or_errors(source, root, False, strict, spans), refused)
    )


def _pairs_of(rows: Iterable[Row]) -> Iterator[list[Pair]]:
    for chunk in in_chunks(rows, lambda row: sum(map(len, row))):
        yield [(row[0], row[1]) for row in chunk]


def in_chunks(
    items: Iterable[Item], measure: Callable[[Item], int], most: int | None = None
) -> Iterator[list[Item]]:
    """Group items into lists that end after `CHUNK` items, or once their sizes, as given by
    `measure`, add up to `most` (default `CHARACTERS`)."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += measure(item)
        if len(chunk) >= CHUNK or size >= (most or CHARACTERS):
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def read_examples(
    source: TextSource,
    root: Path,
    replace: Sequence[Replacement] = (),
    refused: Refused | None = None,
    more: Sequence[TextSource] = (),
) -> tuple[list[str], list[list[str]]]:
    """Read the sources of a corpus and the references of each, at least one; raises like
    `read_pairs`.

    Args:
        replace: is applied to the references only: the model applies it to its inputs itself.
            Placeholders that translations have no more are left out.
        refused, more: as for `read_rows`.
    """
    source = source.expanded(root)
    change_target = changes_of("target", of_references(replace))
    sources, references = [], []
    documents = any(ending(name)[0] in DOCUMENTS for name in listed(source.pairs))
    for row in read_rows(source, root, False, refused, more):
        if documents and not row[1]:  # nobody has translated it yet
            continue
        sources.append(row[0])
        references.append([change_target(text) for text in row[1:]])
    return sources, references


def read_rows(
    source: TextSource,
    root: Path,
    labelled: bool = False,
    refused: Refused | None = None,
    more: Sequence[TextSource] = (),
) -> Iterator[Row]:
    """Read the rows of a corpus, the source first, in constant memory; raises like `read_pairs`.

    Args:
        labelled: whether the last text of a row is a label, which may be an integer in JSON and
            Parquet.
        refused: takes the rows that are wrong, so that the others are read; or stops at the first.
        more: corpora with the same first texts, whose other texts are appended to each row.
    """
    strict = refused is None or refused.policy == "stop"
    every = [rows_or_errors(each, root, labelled, strict) for each in (source, *more)]
    rows = _without_errors(map(_merged, *every), refused)
    first = next(rows, None)
    if first is None:
        raise nothing_in(source, root, refused)
    return chain([first], rows)


def nothing_in(source: TextSource, root: Path, refused: Refused | None) -> TransductError:
    """The error for a corpus without a row that could be read."""
    names = ", ".join(str(root / name) for name in source.files())
    if refused is not None and refused.errors:
        return TransductError(f"no row is right ({refused.summary()}); fix them", file=names)
    return TransductError("nothing in it; name files that hold text", file=names)


def _merged(*rows: Row | TransductError) -> Row | TransductError:
    """The first row with the further texts of the others, or the error of one of them."""
    texts: list[str] = []
    for row in rows:
        if isinstance(row, TransductError):
            return row
        texts += row[1:] if texts else row
    return texts


def _without_errors(rows: Iterable[Row | TransductError], refused: Refused | None) -> Iterator[Row]:
    try:
        for row in rows:
            if not isinstance(row, TransductError):
                yield row
            elif refused is None:
                raise row.at(skippable=True)
            else:
                with refused.each():
                    raise row
    except TransductError as error:
        if refused is None or not error.skippable:  # else at the first line that is not UTF-8
            raise
        with refused.each():
            raise error from error.__cause__


def texts_of(
    sources: Iterable[TextSource], root: Path, refused: Refused | None = None
) -> Iterator[str]:
    """The first text of each row, blank or not, of all corpora in turn; raises like
    `read_pairs`."""
    return (row[0] for source in sources for row in read_rows(source, root, refused=refused))


def rows_or_errors(
    source: TextSource,
    root: Path,
    labelled: bool = False,
    strict: bool = False,
    spans: Sequence[Span] = (WHOLE, WHOLE),
) -> Iterator[Row | TransductError]:
    """The rows of a corpus, and what is wrong with those that are: item i is row i.

    Args:
        labelled: as for `read_rows`.
        strict: whether to raise at a line that is not UTF-8, in words that say its place.
        spans: the parts to read of each file, or of each pair of aligned files.

    Raises:
        TransductError: a file is missing, damaged, or not aligned with its counterpart.
    """
    rows = _rows_of_each(source.expanded(root), root, labelled, strict, spans)
    if strict:
        return rows
    return in_utf8(rows, ", ".join(str(root / n) for n in source.files()), spans[0].first)


def _rows_of_each(
    source: TextSource, root: Path, labelled: bool, strict: bool, spans: Sequence[Span]
) -> Iterator[Row | TransductError]:
    span = spans[0]
    if source.generate is not None:
        yield from generate(source.generate, source.count, source.part)
    for left, right in zip(listed(source.source), listed(source.target)):
        yield from _aligned_rows(path_of(root, left), path_of(root, right), strict, spans)
    for name in listed(source.text):
        path = path_of(root, name)
        _refuse_documents(path)
        yield from ((line,) for line in read_lines(path, strict, span))
    for name in listed(source.trees):
        path = path_of(root, name)
        parse = partial(read_tree, views=[*map(str, source.columns or ("words", "brackets"))])
        lines = enumerate(read_lines(path, strict, span), span.first + 1)
        yield from parsed(path, lines, parse)
    for name in listed(source.pairs):
        yield from table_rows(path_of(root, name), source, labelled, strict, span)


def _refuse_documents(path: Path) -> None:
    """Raise TransductError for a file with a structure, such as JSON, where plain text is read."""
    if path.is_file():
        with opened(path) as stream:
            refuse(str(path), kind_of(path.name, stream.read(START)))


def _aligned_rows(source: Path, target: Path, strict: bool, spans: Sequence[Span]) -> Iterator[Row]:
    """The pairs of lines of two files, or of a part of each.

    Raises:
        TransductError: one has more lines, or is no plain text.
    """
    for path in (source, target):
        _refuse_documents(path)
    sides = [read_lines(path, strict, span) for path, span in zip((source, target), spans)]
    for number, row in enumerate(zip_longest(*sides), spans[0].first):
        if None in row:
            raise _misaligned(source, target, number)
        yield row


def _misaligned(source: Path, target: Path, lines: int) -> TransductError:
    """The error of files of unequal length: their line counts and, if it can be found, where they
    diverge; `lines` is the length of the shorter one."""
    found = f"one of {source} and {target} ends after {lines:,} lines, the other goes on"
    if source.is_file() and target.is_file():  # a pipe cannot be read again
        lengths = [np.fromiter(map(len, read_lines(path)), np.int64) for path in (source, target)]
        line = drift(*lengths)
        place = f" (they seem to differ from line {line:,} on)" if line is not None else ""
        left, right = map(len, lengths)
        found = f"{source} has {left:,} lines and {target} has {right:,}{place}"
    expected = "expected line i of the one to translate line i of the other"
    return TransductError(f"{found}; {expected}; align them again")


def drift(source: np.ndarray, target: np.ndarray) -> int | None:
    """The line (from 1) at which the longer text has extra lines, estimated from the lengths of all
    lines; None if unclear.

    A line and its translation have lengths in a steady ratio. `kept` and `moved` are the log ratios
    of the lines paired as they are and paired after a shift by the difference of the counts: `kept`
    is closer to the usual ratio before the extra lines, `moved` after them. By chance alone, the
    strength of the best split is distributed like the distance of a three-dimensional Brownian
    motion from its start (Pitman 1975), which exceeds 5 in one of 60,000 cases.
    """
    short, long = sorted((np.log1p(source), np.log1p(target)), key=len)
    extra = len(long) - len(short)
    if extra > MOST_DRIFT or not len(short):
        return None
    kept, moved = long[: len(short)] - short, long[extra:] - short
    ratio = np.median(kept)
    gain = np.abs(moved - ratio) - np.abs(kept - ratio)
    before = np.concatenate([[0.0], np.cumsum(gain)])  # the gain of keeping the first k pairings
    split = int(np.argmax(before))
    # the lines may as well be missing at the end
    if before[split] - before[-1] < BY_CHANCE * gain.std():
        split = len(short)
    strength = (2 * before[split] - before[-1]) / (np.linalg.norm(gain) or 1.0)
    return split + 1 if strength > 5 else None
