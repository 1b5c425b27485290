"""A corpus without the pairs that its filters leave out, in files of the names and formats that
came, and a report of what was left out, where and why."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from html import escape
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from transduct.bulk.shards import compressed
from transduct.data.files import Refused, in_words, opened
from transduct.data.filters import InOrder, near_pairs
from transduct.data.places import path_of
from transduct.data.samples import Pair
from transduct.data.sources import DataConfig, FiltersConfig, TextSource, listed
from transduct.data.text import read_pairs
from transduct.errors import require
from transduct.formats.kinds import ending_of
from transduct.storage import new_directory

TABLES = (".tsv", ".csv", ".jsonl", ".parquet")
DROPPED = "dropped.jsonl"
SAMPLES = 8  # pairs shown of each reason
Notify = Callable[[str], None]
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Filtered pairs</title>
<style>body{{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}}
td,th{{text-align:left;vertical-align:top;padding:.2rem 1rem .2rem 0}}</style>
<h1>Filtered pairs</h1><p>{kept:,} of {read:,} pairs are kept.</p>{reasons}</html>
"""


@dataclass
class Report:
    """What became of the pairs: how many were read and kept, and of each reason how many were left
    out, with some of them."""

    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    samples: dict[str, list[Pair]] = field(default_factory=lambda: defaultdict(list))

    def __str__(self) -> str:
        counts = in_words(self.dropped)
        left_out = f"; left out: {counts}" if counts else ""
        return f"kept {self.kept:,} of {self.read:,} pairs{left_out}"

    def page(self) -> str:
        """The report as a page of HTML."""
        parts = []
        for reason, count in sorted(self.dropped.items(), key=lambda each: -each[1]):
            rows = "".join(
                f"<tr><td>{escape(one)}<td>{escape(other)}" for one, other in self.samples[reason]
            )
            parts.append(f"<h2>{reason.replace('_', ' ')}: {count:,}</h2><table>{rows}</table>")
        return PAGE.format(kept=self.kept, read=self.read, reasons="\n".join(parts))


def filter_corpus(data: DataConfig, out: Path, report_only: bool, notify: Notify) -> Report:
    """Write the training files of a corpus without the pairs that its filters leave out.

    `out` gets the files, `dropped.jsonl` with reason, file and line of each pair that is left out,
    `report.json` and `report.html`. It appears whole or not at all.

    Args:
        data: without filters of its own, all are used.
        report_only: whether to write the reports alone.

    Raises:
        TransductError: a source is no aligned text and no table, or cannot be read; or broken rows
            are to be skipped, after which no line would be where it was.
    """
    require(
        data.broken == "stop",
        f"{{key}} is {data.broken}, but here every line counts; fix the rows that are named",
        key="data.broken",
    )
    if not data.filters.names:
        every, named = FiltersConfig.all(), data.languages is not None
        data = replace(data, filters=replace(every, language=named, swapped=named, script=named))
        if not named:
            notify("the languages are not known and not checked; name them with --from and --to")
    report, root = Report(), Path(data.root)
    sources = [source.expanded(root) for source in data.train]
    units = [(source, names) for source in sources for names in _units(source)]
    with (
        new_directory(out) as folder,
        (folder / DROPPED).open("w", encoding="utf-8") as log,
    ):
        filters = InOrder(data, [], near_pairs(data, folder))
        for source, names in units:
            keep = [np.zeros(0, bool)]
            header = int(ending_of(names[0]) in TABLES[:2] and _named(source))
            place = header
            for pairs in read_pairs(
                _only(source, names), root, data.replace, Refused("stop", advise=False)
            ):
                some = np.ones(len(pairs), np.int64)  # tokens are not counted here
                reasons = filters.reasons(pairs, some, some)
                keep.append(np.array([not reason for reason in reasons]))
                for pair, reason in zip(pairs, reasons):
                    place += 1
                    if reason:
                        about = {"reason": reason, "file": names[0], "line": place}
                        log.write(json.dumps(about, ensure_ascii=False) + "\n")
                        report.dropped[reason] += 1
                        if len(report.samples[reason]) < SAMPLES:
                            report.samples[reason].append(pair)
            kept = np.concatenate(keep)
            report.read, report.kept = report.read + len(kept), report.kept + int(kept.sum())
            for name in () if report_only else names:
                _write(path_of(root, name), folder / Path(name).name, kept, header)
        text = json.dumps(vars(report), ensure_ascii=False, indent=1)
        (folder / "report.json").write_text(text, encoding="utf-8")
        (folder / "report.html").write_text(report.page(), encoding="utf-8")
    for warning in filters.leaks():
        notify(f"warning: {warning}")
    return report


def _named(source: TextSource) -> bool:
    """Whether the first row of its tables names the columns."""
    return any(isinstance(column, str) for column in source.columns or [])


def _units(source: TextSource) -> Iterator[list[str]]:
    """The files of a source that are read together: two of aligned text, or a table.

    Raises:
        TransductError: it has others.
    """
    tables = listed(source.pairs)
    right = (tables or source.source) and all(ending_of(name) in TABLES for name in tables)
    require(
        right,
        f"{', '.join(source.files()) or 'a generated corpus'}: cannot be filtered; give aligned "
        f"text or tables ({', '.join(TABLES)})",
    )
    yield from ([name] for name in tables)
    yield from (list(pair) for pair in zip(listed(source.source), listed(source.target)))


def _only(source: TextSource, names: list[str]) -> TextSource:
    """A source of these files alone."""
    if source.pairs:
        return replace(source, pairs=names[0])
    return replace(source, source=names[0], target=names[1])


def _write(path: Path, out: Path, keep: np.ndarray, header: int) -> None:
    """Copy the rows of a file that are kept.

    Raises:
        TransductError: a file of the same name has been written, or a row is no line.
    """
    require(not out.exists(), f"{out.name}: two files have this name; give one another name")
    if ending_of(path.name) == ".parquet":
        pq.write_table(pq.read_table(path).filter(pa.array(keep)), out)
        return
    lines, rows = 0, iter(chain([True] * header, keep.tolist()))
    with opened(path) as stream, out.open("wb") as file, compressed(file, path.name) as target:
        for line in stream:
            lines += 1
            if next(rows, False):
                target.write(line)
    require(
        lines == header + len(keep),
        f"holds {lines:,} lines, but {len(keep):,} pairs; write it in UTF-8 with a pair a line",
        file=str(path),
    )
