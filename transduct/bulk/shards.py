"""Shards: which rows of which file are one unit of work, and how their results become a file.

A shard is a function of its file alone: some row groups of Parquet, a range of bytes that ends at a
line of text, or a whole file that is compressed or a CSV. No worker decides it, so any number of
workers writes the same bytes.
"""

import csv
import glob
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from transduct.data.lines import PACKED, TRANSLATED, ending_of, named_kind, opened, read_lines
from transduct.data.sources import COMPRESSIONS
from transduct.errors import TransductError, disk_error, require, rewording
from transduct.formats import documents
from transduct.storage import remove, sync

SIZE = 4 << 20  # bytes of text in a shard, to the end of a line
GROUP = 1 << 16  # rows of a Parquet group that is written

SCORED = pa.struct([("text", pa.string()), ("score", pa.float64())])
TYPES = {  # of new columns in Parquet: the same in each part, whatever the answers are
    "score": pa.float64(),
    "translation": pa.string(),
    "alternatives": pa.list_(SCORED),
    "prediction": pa.string(),
}
Results = Mapping[str, list[Any]]  # new column -> its cell in each row


@dataclass(frozen=True)
class Shard:
    """A part of a file.

    Attributes:
        name: the file, below the folder that all inputs share.
        place, number: of this shard in its file, and of all shards, from 0.
        start, stop: its bytes, or its row groups; of a compressed file all bytes.
    """

    file: Path
    name: str
    place: int
    number: int
    start: int
    stop: int


class Lines:
    """Text: the answer to a line is a line.

    Attributes:
        columns: whether a row is a dictionary of columns.
        marked: whether it is a segment, with marks for what stands in the text.
    """

    columns = marked = False

    def cuts(self, file: Path) -> list[int]:
        """Where the shards of a file begin, and the end of the last."""
        size = file.stat().st_size
        found = [0]
        with file.open("rb") as stream:
            while not _compression(file.name) and found[-1] + SIZE < size:
                stream.seek(found[-1] + SIZE)
                stream.readline()
                found.append(stream.tell())
        return found if 0 < found[-1] == size else [*found, size]

    def rows(self, shard: Shard) -> list[Any]:
        """The rows of a shard."""
        return list(self._lines(shard))

    def line(self, shard: Shard, index: int) -> int:
        """The number of a row of a shard in its file, from 1."""
        if _compression(shard.name) or not shard.start:
            return index + 1
        with shard.file.open("rb") as stream:
            blocks = iter(lambda: stream.read(min(SIZE, shard.start - stream.tell())), b"")
            return sum(block.count(b"\n") for block in blocks) + index + 1

    def part(self, shard: Shard, rows: list[Any], results: Results) -> bytes:  # noqa: ARG002
        """A shard's rows with their results, as a part of the new file.

        Raises:
            TransductError: a line cannot hold a result, which has line breaks.
        """
        return self._rows_of_cells(shard, zip(*results.values())).encode()

    def join(self, parts: Iterable[BinaryIO], out: BinaryIO) -> None:
        """Write the file of which these are the parts."""
        for part in parts:
            out.write(part.read())

    def _rows_of_cells(self, shard: Shard, rows: Iterable[Sequence[Any]]) -> str:
        lines, end = [], self._end(shard)
        for index, cells in enumerate(rows):
            line = "\t".join(map(_spelt, cells))
            if "\n" in line or (self.columns and line.count("\t") >= len(cells)):
                raise TransductError(
                    "an answer has a line break or a tab, which cannot stand here; give JSON lines "
                    "or Parquet",
                    file=shard.name,
                    line=Lines.line(self, shard, index),
                )
            lines.append(line + end)
        return "".join(lines)

    def _end(self, shard: Shard) -> str:
        """What ends a line of the file, as it does the first."""
        with opened(shard.file) as stream:
            return "\r\n" if stream.readline().endswith(b"\r\n") else "\n"

    def _lines(self, shard: Shard) -> Iterator[str]:
        if _compression(shard.name):
            yield from read_lines(shard.file)
            return
        with shard.file.open("rb") as stream:
            stream.seek(shard.start)
            content = io.BytesIO(stream.read(shard.stop - shard.start))
        try:
            yield from read_lines(content)
        except TransductError as error:
            line = None if error.line is None else self.line(shard, error.line - 1)
            raise error.at(file=shard.name, line=line) from error


class JsonLines(Lines):
    """One object of JSON a line; results are further keys."""

    columns = True

    def rows(self, shard: Shard) -> list[Any]:
        rows = []
        for index, line in enumerate(self._lines(shard)):
            with suppress(ValueError):
                rows.append(json.loads(line))
            if len(rows) == index or not isinstance(rows[index], dict):
                problem = "found no object of JSON; fix the line"
                raise TransductError(problem, file=shard.name, line=self.line(shard, index))
        return rows

    def part(self, shard: Shard, rows: list[Any], results: Results) -> bytes:
        new = (dict(zip(results, cells)) for cells in zip(*results.values(), strict=True))
        end = self._end(shard)
        # The rest of a line keeps its spelling. Python would change numbers of many digits, keys
        # that come twice and unpaired surrogates.
        lines = (
            f"{line.rstrip()[:-1]}{', ' * bool(row)}{json.dumps(each, ensure_ascii=False)[1:]}{end}"
            for line, row, each in zip(self._lines(shard), rows, new, strict=True)
        )
        return "".join(lines).encode()


@dataclass(frozen=True)
class Table(Lines):
    """Cells below a row of names, between tabs, or (`quoted`) between commas, semicolons or tabs
    and perhaps in quotes; results are further columns."""

    quoted: bool
    columns = True

    def cuts(self, file: Path) -> list[int]:
        # a quoted cell may hold the end of a line
        return [0, file.stat().st_size] if self.quoted else super().cuts(file)

    def rows(self, shard: Shard) -> list[Any]:
        names, rows = self._names(shard), list[Any]()
        if twice := [name for name in names if names.count(name) > 1]:
            raise TransductError(f"has two columns '{twice[0]}'; rename one", file=shard.name)
        with rewording(csv.Error, "damaged ({error}); write it again", file=shard.name):
            for cells in self._cells(shard, self._lines(shard)):
                if len(cells) != len(names):
                    raise TransductError(
                        f"found {len(cells)} cells, the first row has {len(names)}; fix the row",
                        file=shard.name,
                        line=self.line(shard, len(rows) - (shard.place == 0)),
                    )
                rows.append(dict(zip(names, cells)))
        return rows[1:] if shard.place == 0 else rows

    def line(self, shard: Shard, index: int) -> int:
        row = index + (shard.place == 0)
        if not self.quoted:
            return super().line(shard, row)
        reader = self._cells(shard, self._lines(shard))
        return [reader.line_num for _ in islice(reader, row + 1)][-1]

    def part(self, shard: Shard, rows: list[Any], results: Results) -> bytes:
        new = zip(*results.values(), strict=True)
        table = [[*row.values(), *cells] for row, cells in zip(rows, new)]
        if shard.place == 0 and self._first(shard):  # an empty file stays empty
            table.insert(0, [*self._names(shard), *results])
        if not self.quoted:
            return self._rows_of_cells(shard, table).encode()
        text = io.StringIO()
        writer = csv.writer(text, delimiter=self._mark(shard), lineterminator=self._end(shard))
        writer.writerows(map(_spelt, cells) for cells in table)
        return text.getvalue().encode()

    def _first(self, shard: Shard) -> str:
        with opened(shard.file) as stream:
            return stream.readline().decode(errors="replace").lstrip("\ufeff").rstrip("\r\n")

    def _names(self, shard: Shard) -> list[str]:
        return next(self._cells(shard, [self._first(shard)]), [])

    def _mark(self, shard: Shard) -> str:
        return max(",;\t", key=self._first(shard).count)

    def _cells(self, shard: Shard, lines: Iterable[str]) -> Any:
        if not self.quoted:
            return (line.split("\t") for line in lines)
        return csv.reader((f"{line}\n" for line in lines), delimiter=self._mark(shard), strict=True)


class Document(Lines):
    """A document, which comes back whole: a row is a segment of it."""

    marked = True

    def cuts(self, file: Path) -> list[int]:
        return [0, file.stat().st_size]

    def rows(self, shard: Shard) -> list[Any]:
        return self._read(shard).segments

    def part(self, shard: Shard, rows: list[Any], results: Results) -> bytes:
        found = zip(results["translation"], rows, strict=True)
        return self._read(shard).translated(new or old for new, old in found)

    def _read(self, shard: Shard) -> documents.Document:
        kind = named_kind(shard.name)
        with shard.file.open("rb") if kind in PACKED else opened(shard.file) as stream:
            return documents.Document(kind, shard.name, stream.read())


class Parquet(Lines):
    """Row groups; results are further columns."""

    columns = True

    def cuts(self, file: Path) -> list[int]:
        with _damaged(file.name):
            groups = pq.ParquetFile(file).num_row_groups
        return [*range(groups), groups] if groups else [0, 0]

    def rows(self, shard: Shard) -> list[Any]:
        return self._read(shard).to_pylist()

    def line(self, shard: Shard, index: int) -> int:
        groups = pq.ParquetFile(shard.file).metadata
        return sum(groups.row_group(i).num_rows for i in range(shard.start)) + index + 1

    def part(self, shard: Shard, rows: list[Any], results: Results) -> bytes:  # noqa: ARG002
        table = self._read(shard)
        for name, cells in results.items():
            table = table.append_column(name, pa.array(cells, TYPES[name]))
        out = io.BytesIO()
        pq.write_table(table, out, row_group_size=GROUP)
        return out.getvalue()

    def join(self, parts: Iterable[BinaryIO], out: BinaryIO) -> None:
        tables = (pq.read_table(part) for part in parts)
        first = next(tables)
        with pq.ParquetWriter(out, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table, GROUP)

    def _read(self, shard: Shard) -> pa.Table:
        with _damaged(shard.name):
            return pq.ParquetFile(shard.file).read_row_groups([*range(shard.start, shard.stop)])


FORMATS: dict[str, Lines] = {
    **dict.fromkeys(TRANSLATED, Document()),
    ".parquet": Parquet(),
    ".jsonl": JsonLines(),
    ".ndjson": JsonLines(),
    ".tsv": Table(quoted=False),
    ".csv": Table(quoted=True),
}


def format_of(name: str) -> Lines:
    """How a file is read and written, by its ending before that of a compression."""
    return FORMATS.get(ending_of(name), Lines())


def files_of(inputs: Sequence[str]) -> dict[str, Path]:
    """The files that paths, folders and patterns name: their names in the output -> where they are.

    Raises:
        TransductError: there is none.
    """
    require(inputs, "found no input; give files, folders or patterns such as 'in/*.txt'")
    found: list[Path] = []
    for given in inputs:
        path = Path(given)
        if path.is_dir():
            every = [Path(each) for each in glob.glob(f"{glob.escape(given)}/**", recursive=True)]
        else:
            every = [path] if path.exists() else [Path(p) for p in glob.glob(given, recursive=True)]
        files = sorted(each for each in every if each.is_file())
        require(
            files, f"{given}: found no file; give files, folders or patterns such as 'in/*.txt'"
        )
        found += files
    absolute = list(dict.fromkeys(each.absolute() for each in found))
    shared = Path(os.path.commonpath([each.parent for each in absolute]))
    return {each.relative_to(shared).as_posix(): each for each in absolute}


def shards_of(files: Mapping[str, Path]) -> list[Shard]:
    """All shards of all files, in order."""
    parts = (
        (file, name, place, start, stop)
        for name, file in files.items()
        for place, (start, stop) in enumerate(pairwise(format_of(name).cuts(file)))
    )
    return [
        Shard(file, name, place, number, start, stop)
        for number, (file, name, place, start, stop) in enumerate(parts)
    ]


def texts_of(shard: Shard, rows: Sequence[Any], column: str) -> list[str | TransductError]:
    """What the rows of a shard have in a column: a text, or the error that there is none.

    Raises:
        TransductError: the file has no such column.
    """
    kind = format_of(shard.name)
    if not kind.columns:
        return list(rows)
    if rows and not any(column in row for row in rows):
        known = ", ".join(map(str, rows[0]))
        has = f"it has {known}; name one with --column" if known else "a row is empty; fix it"
        raise TransductError(f"found no column '{column}', {has}", file=shard.name)
    texts: list[str | TransductError] = []
    for row in rows:
        value = row.get(column)
        found = type(value).__name__ if column in row else "nothing"
        problem = f"found {found} in column '{column}', expected text; fix the row"
        texts.append(value if isinstance(value, str) else TransductError(problem))
    return texts


def join(name: str, parts: Sequence[Path], out: Path) -> None:
    """Write a file of its parts, whole or not at all."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file, compressed(file, name) as stream:
            format_of(name).join((io.BytesIO(part.read_bytes()) for part in parts), stream)
        sync(temporary)
        temporary.replace(out)
    except FileNotFoundError:  # another process has joined them
        if not out.exists():
            raise
    except OSError as error:
        raise disk_error(out, error) from error
    finally:
        remove(temporary)


def _compression(name: str) -> str:
    ending = Path(name).suffix.lower()
    return ending if ending in COMPRESSIONS else ""


def compressed(file: BinaryIO, name: str) -> AbstractContextManager[Any]:
    """A stream into a file that compresses as the file's name says."""
    kinds: dict[str, Callable[[BinaryIO], AbstractContextManager[Any]]] = {
        ".gz": lambda file: gzip.GzipFile("", "wb", fileobj=file, mtime=0),
        ".xz": partial(lzma.LZMAFile, mode="wb"),
        ".zst": lambda file: pa.CompressedOutputStream(file, "zstd"),
    }
    return kinds.get(_compression(name), nullcontext)(file)


def _damaged(name: str) -> Any:
    return rewording((pa.ArrowException, OSError), "damaged ({error}); copy it again", file=name)


def _spelt(value: Any) -> str:
    whole = isinstance(value, str | int | float)
    return str(value) if whole else json.dumps(value, ensure_ascii=False)
