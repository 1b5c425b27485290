"""A corpus without the pairs that its filters leave out, in files of the names and formats that
came, and a report of what was left out, where and why."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from transduct.bulk.engines import chosen
from transduct.bulk.shards import compressed
from transduct.data.duplicates import Hashed, Hashes, repeated
from transduct.data.files import Refused, in_words, require_files
from transduct.data.filters import Filters, Unfit, hashes_of_pairs, reasons_of, sides_of
from transduct.data.lines import ending_of, opened
from transduct.data.places import is_address, path_of
from transduct.data.replacements import changed
from transduct.data.samples import Pair
from transduct.data.sources import DataConfig, FiltersConfig, TextSource, listed
from transduct.data.splits import Split, splits_of
from transduct.data.text import nothing_in, read_part
from transduct.errors import require
from transduct.predictors.base import model_directory
from transduct.predictors.likelihood import DualCrossEntropy
from transduct.storage import new_directory, remove_leftovers, require_absent, require_folder

TABLES = (".tsv", ".csv", ".jsonl", ".parquet")
DROPPED, REPORTS = "dropped.jsonl", ("report.json", "report.html")
UNFIT, SIDES = "unfit", "sides"  # of the pairs of a part
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

    def add(self, data: DataConfig, split: Split, found: np.ndarray) -> None:
        """Count the pairs of a part by the reason of each; see `Filters.settle`."""
        reasons = reasons_of(data)
        self.read, self.kept = self.read + len(found), self.kept + int((found == 0).sum())
        asked: list[int] = []
        for number in dict.fromkeys(found[found > 0].tolist()):
            places = np.flatnonzero(found == number).tolist()
            asked += places[: SAMPLES - len(self.samples[reasons[number]])]
            self.dropped[reasons[number]] += len(places)
        pairs = chain.from_iterable(_pairs(data, split)) if asked else ()
        for place, pair in enumerate(pairs):
            if place in asked:
                self.samples[reasons[found[place]]].append(pair)

    def page(self) -> str:
        """The report as a page of HTML."""
        parts = []
        for reason, count in sorted(self.dropped.items(), key=lambda each: -each[1]):
            rows = "".join(
                f"<tr><td>{escape(one)}<td>{escape(other)}" for one, other in self.samples[reason]
            )
            parts.append(f"<h2>{reason.replace('_', ' ')}: {count:,}</h2><table>{rows}</table>")
        return PAGE.format(kept=self.kept, read=self.read, reasons="\n".join(parts))


class Look:
    """Looks at the pairs of a part of a corpus by themselves, and keeps what it finds in a folder:
    why each is unfit, the hashes of its sides, and what tells equal and similar pairs."""

    def __init__(self, data: DataConfig, folder: Path) -> None:
        models = data.filters.models
        judge = DualCrossEntropy(models) if models else None
        self.data, self.folder, self.unfit = data, folder, Unfit(data, judge)

    def __call__(self, split: Split) -> tuple[int, Hashed]:
        """Look at a part. Returns its number and its hashes."""
        unfit = [np.zeros(0, np.uint8)]
        hashed = [np.zeros((1 + sides_of(self.data), 0), np.uint64)]
        path = self.folder / str(split.number)
        with new_directory(path, replace=True) as folder:
            written = Hashes(folder, bool(self.data.filters.near_duplicates))
            for pairs in _pairs(self.data, split):
                tokens = np.ones(len(pairs), np.int64)  # they are not counted here
                unfit.append(self.unfit(pairs, tokens, tokens))
                hashed.append(hashes_of_pairs(pairs, sides_of(self.data)))
                written.add(pairs, hashed[-1][0], unfit[-1] == 0)
            (folder / UNFIT).write_bytes(np.concatenate(unfit).data)
            (folder / SIDES).write_bytes(np.concatenate(hashed, 1).data)
            return split.number, replace(written.finished(), folder=path)


def _pairs(data: DataConfig, split: Split) -> Iterator[list[Pair]]:
    """The pairs of a part, in chunks."""
    refused = Refused("stop", advise=False)
    for pairs in read_part(split.source, Path(data.root), refused, split.spans):
        yield changed(pairs, data.replace)


def filter_corpus(
    data: DataConfig,
    out: Path,
    report_only: bool,
    notify: Notify,
    workers: int = 1,
    ray: str | None = None,
) -> Report:
    """Write the training files of a corpus without the pairs that its filters leave out.

    `out` gets the files, `dropped.jsonl` with reason, file and line of each pair that is left out,
    `report.json` and `report.html`. It appears whole or not at all.

    Args:
        data: without filters of its own, all are used.
        report_only: whether to write the reports alone.
        workers: processes, or actors of Ray, which each look at some parts.
        ray: the address of a cluster, "auto" or "local".

    Raises:
        TransductError: a source is no aligned text and no table, or cannot be read; or broken rows
            are to be skipped, after which no line would be where it was.
    """
    require(workers > 0, f"--workers is {workers}, must be at least 1")
    data = _with_filters(data, notify)
    if ray is not None and not is_address(data.root):  # workers have folders of their own
        data = replace(data, root=str(Path(data.root).absolute()))
    require_files(data)
    # before the work, which may take hours
    require_folder(out)
    if not out.is_dir() or any(out.iterdir()):
        require_absent(out)
    remove_leftovers(out)
    made = [Path(name).name for source in data.train for name in source.files()]
    names = [DROPPED, *REPORTS, *(() if report_only else made)]
    for place, name in enumerate(names):
        both = name in names[:place]
        require(not both, f"{name}: two files have this name; give one another name")
    splits, root, report = splits_of(data.train, Path(data.root)), Path(data.root), Report()
    with (
        new_directory(out) as folder,
        TemporaryDirectory(prefix=".parts", dir=folder) as parts,
        (folder / DROPPED).open("w", encoding="utf-8") as log,
    ):
        folders, engine = Path(parts).absolute(), chosen(workers, ray)
        looked = dict(engine(partial(Look, data, folders), splits))
        hashes = [looked[split.number] for split in splits]
        equal = repeated(hashes, folders / "equal", engine)
        near, similarity = np.zeros(len(equal), bool), data.filters.near_duplicates
        if similarity:
            near = repeated(hashes, folders / "near", engine, similarity)
        filters, read = Filters(data, []), 0
        for names, of_file in groupby(splits, lambda split: split.source.files()):
            keep = [np.zeros(0, bool)]
            header = place = 0
            for split in of_file:
                header = int(ending_of(names[0]) in TABLES[:2] and _named(split.source))
                part = looked[split.number]
                unfit = np.fromfile(part.folder / UNFIT, np.uint8)
                hashed = np.fromfile(part.folder / SIDES, np.uint64)
                hashed = hashed.reshape(1 + sides_of(data), len(unfit))
                rows = slice(read, read := read + len(unfit))
                found = filters.settle(unfit, hashed, near[rows], equal[rows])
                report.add(data, split, found)
                for row in np.flatnonzero(found).tolist():
                    line = header + place + row + 1
                    about = {"reason": reasons_of(data)[found[row]], "file": names[0], "line": line}
                    log.write(json.dumps(about, ensure_ascii=False) + "\n")
                keep.append(found == 0)
                place += len(unfit)
            if not place:
                raise nothing_in(split.source, root, None)
            for name in () if report_only else names:
                _write(path_of(root, name), folder / Path(name).name, np.concatenate(keep), header)
        text = json.dumps(vars(report), ensure_ascii=False, indent=1)
        for name, content in zip(REPORTS, (text, report.page()), strict=True):
            (folder / name).write_text(content, encoding="utf-8")
    for warning in filters.leaks():
        notify(f"warning: {warning}")
    return report


def _with_filters(data: DataConfig, notify: Notify) -> DataConfig:
    """The corpus, with all filters that need no model if it has none of them."""
    require(
        data.broken == "stop",
        f"{{key}} is {data.broken}, but here every line counts; fix the rows that are named",
        key="data.broken",
    )
    data = replace(data, train=[source.expanded(Path(data.root)) for source in data.train])
    for source in data.train:
        tables = listed(source.pairs)
        right = (tables or source.source) and all(ending_of(name) in TABLES for name in tables)
        require(
            right,
            f"{', '.join(source.files()) or 'a generated corpus'}: cannot be filtered; give "
            f"aligned text or tables ({', '.join(TABLES)})",
        )
    if {*data.filters.names} <= {"unlikely"}:
        named, own = data.languages is not None, data.filters
        every = replace(FiltersConfig.all(), unlikely=own.unlikely, models=own.models)
        data = replace(data, filters=replace(every, language=named, swapped=named, script=named))
        if not named:
            notify("the languages are not known and not checked; name them with --from and --to")
    models = [str(model_directory(path).absolute()) for path in data.filters.models]
    return replace(data, filters=replace(data.filters, models=models))


def _named(source: TextSource) -> bool:
    """Whether the first row of its tables names the columns."""
    return any(isinstance(column, str) for column in source.columns or [])


def _write(path: Path, out: Path, keep: np.ndarray, header: int) -> None:
    """Copy the rows of a file that are kept.

    Raises:
        TransductError: a row is no line.
    """
    if ending_of(path.name) == ".parquet":
        pq.write_table(pq.read_table(path).filter(pa.array(keep)), out)
        return
    lines, rows = 0, iter(chain([True] * header, keep.tolist()))
    with opened(path) as stream, out.open("wb") as file, compressed(file, path.name) as target:
        for line in stream:
            kept = next(rows, None)
            lines += kept is not None or bool(line.strip())  # blank lines may follow a table
            if kept:
                target.write(line)
    require(
        lines == header + len(keep),
        f"holds {lines:,} lines, but {len(keep):,} pairs; write it in UTF-8 with a pair a line",
        file=str(path),
    )
