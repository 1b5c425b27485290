"""A prepared corpus: token ids in Arrow files that are mapped into memory, described by manifest.json.

`Corpus`, `build` and `write_rows` know only rows of integer lists, any number of columns wide; `prepare` makes two
columns of texts and their translations, and other tasks may make theirs of labels or codes.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from hashlib import blake2b, file_digest
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from transduct.data.files import counted, files_below, names_of
from transduct.data.filters import Filters, hold_out
from transduct.data.sources import DataConfig, TextSource
from transduct.data.text import read_pairs
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError

Ragged = tuple[np.ndarray, np.ndarray]  # lists of integers end to end, and the length of each
Notify = Callable[[str], None]

FORMAT = 1
MANIFEST, LENGTHS, HELD_OUT, SHARD = "manifest.json", "lengths.int32", "held_out.jsonl", "shard_{:05}.arrow"
RETIRED = {"metrics", "bleu_tokenize"}  # what old manifests hold among their inputs, and decides nothing
SHARD_TOKENS = 1 << 28  # 1 GiB of ids
MADE_ELSEWHERE = ContextVar("MADE_ELSEWHERE", default=False)
PROGRESS = 1_000_000  # pairs read from one word of progress to the next


class Corpus:
    """Rows of integer lists, one list a column, opened read-only; pickled as its directory.

    `lengths` (rows, columns) counts the tokens, without begin or end, and stays on disk until read. `weights` says
    how often an epoch shows the rows from start to stop, `dropped` what the filters left out, by reason.

    Raises:
        TransductError: the directory holds no corpus, or a damaged one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        try:
            manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
            shape = (manifest["rows"], manifest["columns"])
            self.weights: list[tuple[int, int, float]] = [tuple(span) for span in manifest["weights"]]
            self.dropped: dict[str, int] = manifest["dropped"]
            self.lengths: np.ndarray = np.memmap(directory / LENGTHS, np.int32, "r", shape=shape)
            shards = [name for name in sorted(manifest["files"]) if name.endswith(".arrow")]
            self._shards = [_Shard(directory / name) for name in shards]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TransductError(f"{directory}: not a prepared corpus ({error}); prepare it again") from error
        self._starts = np.cumsum([0, *(shard.rows for shard in self._shards)])
        if self._starts[-1] != len(self):
            raise TransductError(f"{directory}: holds {self._starts[-1]} of {len(self)} rows; prepare it again")

    def __len__(self) -> int:
        return len(self.lengths)

    def __reduce__(self) -> tuple[type["Corpus"], tuple[Path]]:
        return Corpus, (self.directory,)

    @property
    def held_out(self) -> TextSource | None:
        """The pairs taken out of training, as they were in the files, for `read_examples`."""
        path = self.directory / HELD_OUT
        return TextSource(pairs=str(path)) if path.exists() else None

    def columns(self, indices: np.ndarray) -> list[Ragged]:
        """The rows asked for, in that order: of each column the ids end to end and the lengths, both int64."""
        lengths = np.ascontiguousarray(self.lengths[indices].T, np.int64)  # (columns, rows)
        starts = np.cumsum(lengths, axis=1) - lengths
        ids = [np.empty(total, np.int64) for total in lengths.sum(axis=1)]
        shards = np.searchsorted(self._starts, indices, side="right") - 1
        for number in np.unique(shards):
            shard, rows = self._shards[number], np.flatnonzero(shards == number)
            places = shard.places(indices[rows] - self._starts[number])  # (columns, rows)
            for column, flat in enumerate(ids):
                length = lengths[column, rows]
                flat[_spans(starts[column, rows], length)] = shard.words[_spans(places[column], length)]
        return list(zip(ids, lengths))


class _Shard:
    """One Arrow file, seen as one run of 32-bit words, so that rows from all its batches come in one go."""

    def __init__(self, path: Path) -> None:
        whole = pa.memory_map(str(path)).read_buffer()
        self.words = np.frombuffer(whole, np.int32, len(whole) // 4)
        file = pa.ipc.open_file(whole)
        batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        self.rows = int(self._starts[-1])

        def word(array: pa.Array) -> int:
            """Where the numbers of an array start."""
            return (array.buffers()[1].address - whole.address) // 4

        # An Arrow list array is its values and, one more than rows, the offsets of the lists in them.
        self._offsets = np.array([[word(column.offsets) for column in batch.columns] for batch in batches])
        self._values = np.array([[word(column.values) for column in batch.columns] for batch in batches])

    def places(self, rows: np.ndarray) -> np.ndarray:
        """The words at which the lists of the rows start."""  # (columns, rows)
        batch = np.searchsorted(self._starts, rows, side="right") - 1
        offsets = self._offsets[batch].T + (rows - self._starts[batch])
        return self._values[batch].T + self.words[offsets]


def _spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, ... of each span, end to end."""
    return np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())


def build(directory: Path, inputs: dict[str, Any], fill: Callable[[Path], dict[str, Any]], notify: Notify) -> Corpus:
    """The corpus in `directory`; unless made of the same inputs before, `fill` writes it and returns its manifest.

    It is written beside and renamed, so a run that is killed leaves nothing that looks complete. One process at a
    time may build in a directory; what is `made_elsewhere` is only opened.

    Raises:
        TransductError: the disk is full, or the directory holds something else.
    """
    if MADE_ELSEWHERE.get():
        return Corpus(directory)
    inputs, begun, reason = json.loads(json.dumps({"format": FORMAT, **inputs})), _begun_with(directory), None
    if directory.exists():
        if directory.is_file() or (any(directory.iterdir()) and not (directory / MANIFEST).exists()):
            raise TransductError(f"{directory}: exists and is no corpus; choose a new folder, or empty this one")
        reason = _reason_to_rebuild(directory, inputs)
        if reason is None:
            corpus = Corpus(directory)
            notify(f"corpus unchanged: reused {len(corpus):,} rows")
            return corpus
        notify(f"corpus prepared again: {reason}")
    with _replacement(directory) as folder:
        manifest = fill(folder)
        files = {path.name: _digest(path) for path in folder.iterdir()}
        if begun and begun != files:  # what has been trained is part of another order of other examples
            found = f"{directory.parent}: {reason or 'what its corpus is made of has changed'} since its run began"
            raise TransductError(f"{found}; put back what was there or choose another --out")
        text = json.dumps({"inputs": inputs, "files": files, **manifest}, indent=1, ensure_ascii=False)
        (folder / MANIFEST).write_text(text, encoding="utf-8")
        if not begun:
            _begun(directory).write_text(json.dumps({"files": files}), encoding="utf-8")
    return Corpus(directory)


@contextmanager
def made_elsewhere() -> Iterator[None]:
    """Within this, every corpus is one that another process has just built, whatever its inputs look like from here."""
    before = MADE_ELSEWHERE.set(True)
    try:
        yield
    finally:
        MADE_ELSEWHERE.reset(before)


def _begun_with(directory: Path) -> dict[str, Any] | None:
    """The digests of the corpus with which the run that a directory belongs to has begun, if it has and they are known.

    Its first weights, and its tokenizer, are made for what the corpus then held."""
    if not any((directory.parent / "checkpoints").glob("step_*")):
        return None
    for path in (_begun(directory), directory / MANIFEST):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return dict(json.loads(path.read_text(encoding="utf-8"))["files"])
    return None


def _begun(directory: Path) -> Path:
    """A file beside a corpus that says what it held before any step: whoever is short of room removes the corpus."""
    return directory.with_name(f"{directory.name}.json")


def _reason_to_rebuild(directory: Path, inputs: dict[str, Any]) -> str | None:
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        before, files = dict(manifest["inputs"]), dict(manifest["files"])
        differing = [
            key for key in sorted((before.keys() | inputs.keys()) - RETIRED) if before.get(key) != inputs.get(key)
        ]
        if differing:
            return f"{', '.join(differing)} changed"
        damaged = [name for name, digest in files.items() if _digest(directory / name) != digest]
        Corpus(directory)
    except (OSError, ValueError, KeyError, TypeError, TransductError) as error:
        return f"it is damaged ({error})"
    return f"{damaged[0]} is damaged" if damaged else None


@contextmanager
def _replacement(directory: Path) -> Iterator[Path]:
    """A new folder that takes the place of the directory if all goes well, and otherwise leaves no trace."""
    directory = directory.resolve()  # a link goes on to lead where it led
    fresh, old = (directory.with_name(f"{directory.name}.{state}") for state in ("partial", "old"))
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        yield fresh
        if directory.exists():
            directory.rename(old)
        fresh.rename(directory)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise TransductError(f"{directory}: the disk is full; make room or choose another folder") from error
    finally:
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)


def ragged(rows: Sequence[np.ndarray] | Sequence[Sequence[int]]) -> Ragged:
    """Lists of integers, or arrays of them, as a column: end to end, and the length of each."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    if len(rows) and isinstance(rows[0], np.ndarray):
        return np.concatenate(rows), lengths
    return np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths


def lists_of(column: Ragged) -> list[np.ndarray]:
    """The lists of a column, the inverse of `ragged`."""
    flat, lengths = column
    return np.split(flat, np.cumsum(lengths))[:-1]


def write_rows(
    folder: Path, columns: int, sources: Iterable[tuple[float, Iterable[Sequence[Ragged]]]]
) -> dict[str, Any]:
    """Write the rows of sources, chunk by chunk, as Arrow shards and a file of lengths.

    Args:
        sources: of each how often an epoch shows its rows, and these.

    Returns:
        What the manifest must say of them: see `weights` of `Corpus`.
    """
    rows, weights = 0, []

    def chunks() -> Iterator[Sequence[Ragged]]:
        for weight, those in sources:
            start = rows
            yield from those
            weights.append((start, rows, weight))

    schema = pa.schema([(f"column_{number}", pa.list_(pa.int32())) for number in range(columns)])
    rest, shards = chunks(), 0
    with (folder / LENGTHS).open("wb") as lengths_file:
        while (first := next(rest, None)) is not None:
            tokens = 0
            with (folder / SHARD.format(shards)).open("wb") as file, pa.ipc.new_file(file, schema) as writer:
                for chunk in chain([first], rest):
                    writer.write_batch(pa.record_batch([_list_array(*column) for column in chunk], schema=schema))
                    lengths = np.stack([lengths for _, lengths in chunk], axis=1)
                    lengths_file.write(lengths.astype(np.int32).tobytes())
                    rows += len(lengths)
                    tokens += int(lengths.sum())
                    if tokens >= SHARD_TOKENS:
                        break
            shards += 1
    return {"rows": rows, "columns": columns, "weights": weights, "dropped": {}}


def _list_array(flat: np.ndarray, lengths: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] >= 2**31:
        raise ValueError(f"{offsets[-1]:,} words at once, at most {2**31 - 1:,} have places in one batch of Arrow's")
    return pa.ListArray.from_arrays(offsets.astype(np.int32), pa.array(flat.astype(np.int32, copy=False)))


def _digest(path: Path) -> dict[str, Any]:
    """What tells a file from another; of a folder, from which pictures or sounds are read, when its files changed.

    What is no file, such as a link that leads nowhere, counts by its name alone.
    """
    if path.is_dir():
        held = [(file, file.stat() if os.path.isfile(file) else None) for file in files_below(path)]
        listing = [
            (file.relative_to(path).as_posix(), *((stat.st_size, stat.st_mtime_ns) if stat else ()))
            for file, stat in held
        ]
        return {"files": len(listing), "listing": blake2b(repr(listing).encode()).hexdigest()}
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": file_digest(file, "sha256").hexdigest()}


def inputs_of(data: Any, tokenizers: Mapping[str, Tokenizer], apart: Sequence[str] = ()) -> dict[str, Any]:
    """All that decides what a corpus holds, by the name a message can use.

    Args:
        data: a `data` section, with `train`, a list of text sources, and `root`.
        apart: its fields, besides the usual ones, that decide nothing.

    Raises:
        TransductError: a file of the corpus cannot be read.
    """
    nothing = {"valid", "test", "root", "workers", *apart}
    inputs = {name: value for name, value in asdict(data).items() if name not in nothing}
    inputs |= {name: tokenizer.digest for name, tokenizer in tokenizers.items()}
    for name in names_of(data.train):
        path = Path(data.root) / name
        try:
            inputs[f"file {name}"] = _digest(path)
        except OSError as error:
            file, reason = error.filename or path, error.strerror
            raise TransductError(f"{file}: cannot be read ({reason}); correct data.train or data.root") from error
    return inputs


def prepare(
    data: DataConfig, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, directory: Path, notify: Notify
) -> Corpus:
    """The training pairs as a corpus of two columns: read, encoded, filtered, or reused where nothing has changed.

    Raises:
        TransductError: a file cannot be read, no pair is left, the disk is full, or the directory is not a corpus's.
    """
    tokenizers = (source_tokenizer, target_tokenizer)

    def fill(folder: Path) -> dict[str, Any]:
        held = hold_out(data)
        if held:
            lines = (json.dumps({"source": source, "target": target}) + "\n" for source, target in held)
            (folder / HELD_OUT).write_text("".join(lines), encoding="utf-8")
        filters = Filters(data, held)
        manifest = write_rows(folder, 2, _kept_columns(data, tokenizers, filters, notify))
        counts = counted(filters.dropped)
        left_out = f" (left out: {counts})" if counts else ""
        if not manifest["rows"]:
            remedy = f"check {', '.join(names_of(data.train)) or 'data.train'} and the filters"
            if 2 * filters.dropped["held_out"] > sum(filters.dropped.values()):  # most share a text with one that is
                remedy = "set data.held_out to 0, and validate on files of their own or on nothing"
            raise TransductError(f"no pair is left to train on{left_out}; {remedy}")
        notify(f"corpus prepared: {manifest['rows']:,} pairs{left_out}")
        return manifest | {"dropped": filters.dropped}

    named = {f"the {side} tokenizer": each for side, each in zip(("source", "target"), tokenizers)}
    inputs = inputs_of(data, named, apart=tuple(RETIRED))
    return build(directory, inputs, fill, notify)


def _kept_columns(
    data: DataConfig, tokenizers: Sequence[Tokenizer], filters: "Filters", notify: Notify
) -> Iterator[tuple[float, Iterator[list[Ragged]]]]:
    """Of each corpus its weight and the encoded pairs that pass the filters, chunk by chunk."""
    read = 0

    def chunks(source: TextSource) -> Iterator[list[Ragged]]:
        nonlocal read
        for pairs in read_pairs(source, Path(data.root), data.replace):
            columns = [ragged(tokenizer.encode(texts)) for texts, tokenizer in zip(zip(*pairs), tokenizers)]
            keep = filters.keep(pairs, *(lengths for _, lengths in columns))
            if keep.any():
                yield [(flat[np.repeat(keep, lengths)], lengths[keep]) for flat, lengths in columns]
            read += len(pairs)
            if read // PROGRESS > (read - len(pairs)) // PROGRESS:
                notify(f"preparing the corpus: {read:,} pairs read")

    for source in data.train:
        yield source.weight, chunks(source)
