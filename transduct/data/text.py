"""Reads text corpora as streams of rows: aligned files, TSV, JSONL, Parquet and trees, plain or
compressed.

Only a line feed ends a line (a carriage return before it is dropped): U+2028, U+0085 and a lone
carriage return are text. Errors name the file and line; nothing is skipped silently. A row that is
wrong comes as its error, so that whoever measures can go on behind it.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa

from transduct.data.files import Refused, composed, kind_of, opened, readable
from transduct.data.places import path_of
from transduct.data.samples import Pair, generate
from transduct.data.sources import (
    DOCUMENTS,
    Replacement,
    TextSource,
    changed,
    changes_of,
    ending,
    listed,
    of_references,
)
from transduct.data.trees import read_tree
from transduct.errors import TransductError, require, rewording
from transduct.formats.kinds import START, refuse
from transduct.formats.kinds import kind_of as kind_of_document

Item = TypeVar("Item")
Row = Sequence[str]  # a text with its translations, label or tags

CHUNK = 2_000  # rows in a chunk: about 10 MB when encoded
CHARACTERS = 1_000_000  # characters at which a chunk of long texts ends earlier
ROWS = 200  # rows of a Parquet file read at a time
# what headers of tables call their columns, besides languages
TITLES = {
    *("source", "target", "src", "tgt", "trg", "text", "texts", "label", "labels", "class"),
    *("category", "sentence", "sentence1", "sentence2", "translation", "reference", "input"),
    *("output", "premise", "hypothesis", "question", "answer", "tag", "tags", "id", "review"),
    *("sentiment", "score", "original", "translated", "document", "title", "content"),
    *("sent", "sentences", "segment", "word", "words", "mt", "comment", "rating", "stars", "line"),
    *("quelle", "ziel", "satz", "klasse", "deutsch", "englisch", "français", "anglais", "español"),
    *(
        "inglés",
        "русский",
        "английский",
        "한국어",
        "영어",
        "원문",
        "번역",
        "번역문",
        "문장",
        "라벨",
    ),
    *("日本語", "英語", "原文", "訳文", "中文", "英文", "译文"),
}
ODD = re.compile(rb"[\x00-\x08\x0e-\x1f\x80-\xff]")  # only with these may bytes be no UTF-8
BLOCK = 1 << 20  # bytes read at a time
LONGEST_LINE = 1 << 22  # bytes; reading a token takes some hundred bytes, and a microsecond
MOST_DRIFT = 10  # lines; a larger difference has many causes and no single place
# standard deviations of the gain of a line by which a split must beat the end to be preferred
BY_CHANCE = 3.0


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


def in_utf8(
    rows: Iterable[Row | TransductError], name: str, before: int = 0
) -> Iterator[Row | TransductError]:
    """Rows that were read without `strict`, with an error for one that is not UTF-8.

    Args:
        before: the rows before them, of which the number in the error tells.
    """
    for number, row in enumerate(rows, before + 1):
        if isinstance(row, TransductError) or all(readable(text) == text for text in row):
            yield row
        else:
            problem = "not UTF-8; write it again in UTF-8"
            yield TransductError(problem, file=f"{name}, row {number}")


def _parsed(
    path: Path, records: Iterable[tuple[int, Item]], parse: Callable[[Item], Row]
) -> Iterator[Row | TransductError]:
    """The row that each numbered record holds, or what is wrong with it."""
    for number, record in records:
        try:
            yield parse(record)
        except TransductError as error:
            yield error.at(file=str(path), line=number)


def _rows_of_each(
    source: TextSource, root: Path, labelled: bool, strict: bool, spans: Sequence[Span]
) -> Iterator[Row | TransductError]:
    span, first = spans[0], spans[0].first + 1
    if source.generate is not None:
        yield from generate(source.generate, source.count, source.part)
    for left, right in zip(listed(source.source), listed(source.target)):
        yield from _aligned_rows(path_of(root, left), path_of(root, right), strict, spans)
    for name in listed(source.text):
        _refuse_documents(path_of(root, name))
        yield from ((line,) for line in read_lines(path_of(root, name), strict, span))
    keys = [str(column) for column in source.columns or ("source", "target")]
    label = keys[-1] if labelled else None
    for name in listed(source.trees):
        parse = partial(read_tree, views=keys if source.columns else ("words", "brackets"))
        trees = enumerate(read_lines(path_of(root, name), strict, span), first)
        yield from _parsed(path_of(root, name), trees, parse)
    for name in listed(source.pairs):
        match ending(name):
            case ((".tsv" | ".csv"), _):
                columns = source.columns or [0, 1]
                yield from tsv_rows(path_of(root, name), columns, source.alternatives, strict, span)
            case ".jsonl", _:
                parse_line = partial(_jsonl_row, keys=keys, label=label)
                lines = numbered(read_lines(path_of(root, name), strict, span), first)
                yield from _parsed(path_of(root, name), lines, parse_line)
            case kind, _ if kind in DOCUMENTS:
                # Here, because a translation needs none of it.
                from transduct.formats.memories import pairs_of

                with opened(path_of(root, name)) as file:
                    yield from pairs_of(kind, str(path_of(root, name)), file, source.columns)
            case _, compression:
                yield from _parquet_rows(path_of(root, name), keys, label, not compression, span)


def _refuse_documents(path: Path) -> None:
    if path.is_file():
        with opened(path) as stream:
            refuse(str(path), kind_of_document(path.name, stream.read(START)))


def _aligned_rows(source: Path, target: Path, strict: bool, spans: Sequence[Span]) -> Iterator[Row]:
    for path in (source, target):
        _refuse_documents(path)
    sides = [read_lines(path, strict, span) for path, span in zip((source, target), spans)]
    for number, row in enumerate(zip_longest(*sides), spans[0].first):
        if None in row:
            raise _misaligned(source, target, number)
        yield row


def tsv_rows(
    path: Path,
    columns: list[str] | list[int],
    alternatives: bool = False,
    strict: bool = True,
    span: Span = WHOLE,
) -> Iterator[Row | TransductError]:
    """The given columns, by name or number, of each row of a TSV or CSV file, or an error where it
    has too few; with `alternatives` also the non-empty cells after the last given column, unless
    they are given themselves.

    Raises:
        TransductError: the header lacks a name or has it twice.
    """
    alone = max((column for column in columns if isinstance(column, int)), default=1) == 0
    lines, first = read_lines(path, strict, span), span.first + 1
    counted = enumerate(lines, first) if alone else numbered(lines, first)
    rows: Iterator[tuple[int, list[str]]] = ((n, line.split("\t")) for n, line in counted)
    if ".csv" in path.name.lower():
        rows = csv_cells(path, lines)
    places = [column for column in columns if isinstance(column, int)]
    if not places:
        above = read_lines(path, strict) if span.first else ()  # of another part
        titles = next((line.split("\t") for line in above), None) or next(rows, (1, [""]))[1]
        header = [*map(composed, titles)]
        places = [column_of(header, str(name), file=str(path), line=1) for name in columns]
    between = "" if ".csv" in path.name.lower() else " with tabs between"
    expected = f"expected at least {max(places) + 1} columns{between}"

    def parse(cells: list[str]) -> Row:
        if len(cells) <= max(places):
            remedy = "fix it or set columns (numbers count from 0)"
            raise TransductError(f"found {len(cells)}, {expected}; {remedy}")
        rest = range(places[-1] + 1, len(cells)) if alternatives else ()
        references = [cells[n] for n in rest if cells[n] and n not in places]
        return [*(cells[place] for place in places), *references]

    yield from _parsed(path, rows, parse)


def csv_cells(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, separated by commas, semicolons or tabs, and the number of its last
    line; a cell may be on several lines."""
    first = next(lines, "")
    mark = max(",;\t", key=first.count)
    reader = csv.reader((f"{line}\n" for line in chain([first], lines)), delimiter=mark)
    try:
        for cells in filter(None, reader):
            yield reader.line_num, [cell.replace("\n", " ") for cell in cells]
    except csv.Error as error:
        problem = f"not CSV ({error}); fix it"
        raise TransductError(problem, file=str(path), line=reader.line_num) from error


def _jsonl_row(line: str, keys: Sequence[str], label: str | None) -> Row:
    expected = f"expected an object with {' and '.join(map(repr, keys))} on every line"
    # RecursionError: thousands of nested brackets
    with rewording((ValueError, RecursionError), f"not JSON ({{error}}); {expected}"):
        value = json.loads(line)
    require(isinstance(value, dict), f"found {line:.40}, {expected}")
    row = []
    for key in keys:
        field = _field(value, key)
        known = ", ".join(value)
        there = field is not None or key in value
        require(there, f"no key '{key}'; set columns to some of: {known}")
        row.append(_text(field, key, key == label))
    if "\\u" in line:
        check_text("".join(row))
    return row


def _field(value: dict[str, Any], key: str) -> object:
    """The value of a key, which may be that of a nested object: "translation.de"."""
    if key not in value and not key.isascii():
        value = {composed(name): each for name, each in value.items()}
        key = composed(key)
    if key in value or "." not in key:
        return value.get(key)
    first, rest = key.split(".", 1)
    inner = value.get(first)
    return _field(inner, rest) if isinstance(inner, dict) else None


def _parquet_rows(
    path: Path, keys: Sequence[str], label: str | None, seekable: bool, span: Span
) -> Iterator[Row | TransductError]:
    from pyarrow.parquet import ParquetFile

    number = span.first
    with opened(path) as stream:
        # A Parquet file is read from its end, so one that is compressed as a whole must be read
        # into memory.
        file = ParquetFile(stream if seekable else pa.BufferReader(stream.read()))
        names = _flat(file.schema_arrow.empty_table()).column_names
        # the names as the file has them
        wanted = [names[column_of(names, key, file=str(path))] for key in keys]
        groups = None if span.stop is None else range(span.start, span.stop)
        for batch in file.iter_batches(ROWS, groups, wanted):
            table = _flat(pa.Table.from_batches([batch]))
            first = f"{path}, rows {number + 1:,} and on"
            for row in zip(*(_listed_column(table, name, first) for name in wanted)):
                number += 1
                try:
                    yield [_text(text, key, key == label) for key, text in zip(keys, row)]
                except TransductError as error:
                    yield error.at(file=f"{path}, row {number}")


def column_of(names: Sequence[str], name: str, **facts: Any) -> int:
    """The place of a column by its name, in either form of Unicode."""
    forms, form = [composed(each) for each in names], composed(name)
    known = ", ".join(names)
    require(form in forms, f"no column '{name}'; set columns to some of: {known}", **facts)
    count = forms.count(form)
    require(count == 1, f"{count} columns are named '{name}'; give each its own name", **facts)
    return forms.index(form)


def _flat(table: pa.Table) -> pa.Table:
    """The table with each field of a struct, as in translation data of the Hugging Face hub, as its
    own column."""
    while any(pa.types.is_struct(column.type) for column in table.schema):
        table = table.flatten()
    return table


def _listed_column(table: pa.Table, key: str, place: str) -> list[object]:
    column = table.column(key)
    with (
        # a time that Python cannot represent
        rewording(
            (ValueError, OverflowError),
            f"found {column.type} for '{key}', expected text; fix it or set columns",
            file=place,
        ),
        rewording(
            UnicodeDecodeError,
            f"'{key}' holds bytes that are not UTF-8; write the file again",
            file=place,
        ),
    ):
        return list(column.to_pylist())


def _text(value: object, key: str, is_label: bool) -> str:
    """A value as one line of text; a label may be an integer."""
    if is_label and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        found = "nothing" if value is None else f"{value!r:.40}"
        raise TransductError(f"found {found} for '{key}', expected text; fix it or set columns")
    if (length := len(value)) > LONGEST_LINE:
        raise LongLine(
            f"found {length:,} characters for '{key}', at most {LONGEST_LINE:,} are read; cut the "
            "text"
        )
    return value.replace("\r\n", " ").replace("\n", " ")


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


def same_text(source: Path, target: Path) -> bool:
    """Whether two files hold the same lines, up to compression; a pipe cannot be read for this, nor
    can what is no text."""
    if not (source.is_file() and target.is_file()):
        return False
    lines = zip_longest(read_lines(source, strict=False), read_lines(target, strict=False))
    try:
        return all(left == right for left, right in lines)
    except TransductError:  # reported when it is read for its content
        return False


def suspicions(source: TextSource, root: Path, labelled: bool = False) -> Iterator[str]:
    """What looks like a mistake in a corpus: both sides are the same text (a model would copy),
    or the names of the columns are read as a row. `labelled` is as for `read_rows`."""
    source = source.expanded(root)
    for left, right in zip(listed(source.source), listed(source.target)):
        if same_text(root / left, root / right):
            files = f"{root / left} and {root / right}"
            yield f"{files} hold the same text; is one of them meant to be another?"
    columns, tables = source.columns or [], listed(source.pairs)
    if len({*columns}) < len(columns):
        names = ", ".join(tables or listed(source.trees))
        yield f"{names}: columns is {columns}, which takes one twice; is another meant?"
    if any(isinstance(column, str) for column in columns):
        return
    for name in tables:
        if ending(name)[0] in (".tsv", ".csv") and (root / name).is_file():
            rows = read_rows(replace(source, pairs=name), root, labelled, Refused("skip"))
            first = next(iter(rows))
            labels = Counter(row[-1] for row in rows) if labelled else Counter[str]()
            # of labels that come again and again, this one does not
            single = labels.total() > 2 * len(labels) > 0 and not labels[first[-1]]
            if single or all(map(_is_title, first)):
                yield (
                    f"{root / name}:1: the first row ({', '.join(first)}) looks like the names of "
                    f"the columns; if it is, read them by these: columns [{', '.join(first)}], on "
                    f"the command line --columns {','.join(first)}"
                )


def _is_title(text: str) -> bool:
    """Whether a text may be the name of a column: words such as those of "source_text" and "de"."""
    from transduct.data.languages import is_language  # who translates needs no list of languages

    words = re.split(r"[_.:/-]+", text.strip().lower())  # at blanks would cut "is it"
    return is_language(text) or all(word in TITLES or is_language(word) for word in words)


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
