"""Rows of tables: TSV, CSV, JSON lines, Parquet and documents of pairs.

A row that is wrong comes as its error, so that whoever measures can go on behind it.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from transduct.data.lines import (
    LONGEST_LINE,
    WHOLE,
    LongLine,
    Span,
    check_text,
    composed,
    numbered,
    opened,
    read_lines,
    readable,
)
from transduct.data.sources import DOCUMENTS, TextSource, ending
from transduct.errors import TransductError, require, rewording

Item = TypeVar("Item")
Row = Sequence[str]  # a text with its translations, label or tags
ROWS = 200  # rows of a Parquet file read at a time


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


def parsed(
    path: Path, records: Iterable[tuple[int, Item]], parse: Callable[[Item], Row]
) -> Iterator[Row | TransductError]:
    """The row that each numbered record holds, or what is wrong with it."""
    for number, record in records:
        try:
            yield parse(record)
        except TransductError as error:
            yield error.at(file=str(path), line=number)


def table_rows(
    path: Path, source: TextSource, labelled: bool, strict: bool, span: Span
) -> Iterator[Row | TransductError]:
    """The rows of a file of pairs, in the format that its ending names; see
    `text.rows_or_errors`."""
    keys = [str(column) for column in source.columns or ("source", "target")]
    label = keys[-1] if labelled else None
    kind, compression = ending(path.name)
    if kind in DOCUMENTS:
        # Here, because a translation needs none of it.
        from transduct.formats.memories import pairs_of

        with opened(path) as file:
            yield from pairs_of(kind, str(path), file, source.columns)
    elif kind == ".jsonl":
        lines = numbered(read_lines(path, strict, span), span.first + 1)
        yield from parsed(path, lines, partial(_jsonl_row, keys=keys, label=label))
    elif kind == ".parquet":
        yield from _parquet_rows(path, keys, label, not compression, span)
    else:
        columns = source.columns or [0, 1]
        yield from tsv_rows(path, columns, source.alternatives, strict, span)


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

    yield from parsed(path, rows, parse)


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
