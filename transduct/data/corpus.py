"""A prepared corpus: token ids in memory-mapped Arrow files, described by a manifest.json.

`Corpus`, `build` and `write_rows` work on rows of integer lists with any number of columns: the
tokens of a pair in two of them, or labels, codes, pictures, sounds.
"""

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
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from transduct.data.files import Notify, files_below, names_of
from transduct.data.places import identity, is_address, matching
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError, require, rewording
from transduct.records import refuse_if
from transduct.storage import new_directory

HASHED = 64  # rows that are hashed at a time
SAMPLED = 1000  # rows in the sample that tells how much BPE dropout lengthens texts


Ragged = tuple[np.ndarray, np.ndarray]  # concatenated lists of integers, and the length of each

FORMAT = 1
MANIFEST, LENGTHS, SHARD = "manifest.json", "lengths.int32", "shard_{:05}.arrow"
RETIRED = {"metrics", "bleu_tokenize"}  # inputs in old manifests that have no effect on the corpus
SHARD_TOKENS = 1 << 28  # 1 GiB of ids
MADE_ELSEWHERE = ContextVar("MADE_ELSEWHERE", default=False)


class Corpus:
    """A read-only table of integer lists, memory-mapped; pickled as its directory.

    Attributes:
        lengths: (rows, columns) the length of each list, memory-mapped too.
        weights: (start, stop, weight) of runs of rows: how often an epoch shows them.
        dropped: how many examples were left out, by reason.

    Raises:
        TransductError: the directory holds no corpus, or a damaged one.
    """

    def __init__(self, directory: Path) -> None:
        # Resolved, because a worker process may have another working directory.
        self.directory = directory.resolve()
        try:
            manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
            shape = (manifest["rows"], manifest["columns"])
            self.weights: list[tuple[int, int, float]] = [
                tuple(span) for span in manifest["weights"]
            ]
            self.dropped: dict[str, int] = manifest["dropped"]
            self.lengths: np.ndarray = np.memmap(directory / LENGTHS, np.int32, "r", shape=shape)
            shards = [name for name in sorted(manifest["files"]) if name.endswith(".arrow")]
            self._shards = [_Shard(directory / name) for name in shards]
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"not a prepared corpus ({error}); prepare it again"
            raise TransductError(problem, file=str(directory)) from error
        # Row n lies in the last shard that starts at or before n.
        self._starts = np.cumsum([0, *(shard.rows for shard in self._shards)])
        require(
            self._starts[-1] == len(self),
            f"holds {self._starts[-1]} of {len(self)} rows; prepare it again",
            file=str(directory),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __reduce__(self) -> tuple[type["Corpus"], tuple[Path]]:
        # A path is small; a memory map cannot be sent, and the process would copy it.
        return Corpus, (self.directory,)

    def columns(self, indices: np.ndarray) -> list[Ragged]:
        """Gather rows, in the order of `indices`: the concatenated ids and the lengths of each
        column, all int64."""
        lengths = np.ascontiguousarray(self.lengths[indices].T, np.int64)  # (columns, rows)
        # No loop over rows: where each list goes is known from the lengths alone.
        starts = np.cumsum(lengths, axis=1) - lengths
        ids = [np.empty(total, np.int64) for total in lengths.sum(axis=1)]
        shards = np.searchsorted(self._starts, indices, side="right") - 1
        # A batch of a shuffled epoch touches few shards: one gather for each.
        for number in np.unique(shards):
            shard, rows = self._shards[number], np.flatnonzero(shards == number)
            places = shard.places(indices[rows] - self._starts[number])  # (columns, rows)
            for column, flat in enumerate(ids):
                length = lengths[column, rows]
                flat[_spans(starts[column, rows], length)] = shard.words[
                    _spans(places[column], length)
                ]
        return list(zip(ids, lengths))

    def hashes(self, *columns: int) -> set[bytes]:
        """The hash of what each row to train on has in these columns."""
        found = set[bytes]()
        for start, stop, weight in self.weights:
            for first in range(start, stop if weight else start, HASHED):
                rows = self.columns(np.arange(first, min(first + HASHED, stop)))
                found.update(map(hash_of, zip(*(lists_of(rows[each]) for each in columns))))
        return found


class _Shard:
    """One Arrow file viewed as an array of 32-bit words, so that rows from all its batches are
    gathered at once."""

    def __init__(self, path: Path) -> None:
        # Nothing is read yet: the pages come from disk when rows are gathered.
        whole = pa.memory_map(str(path)).read_buffer()
        self.words = np.frombuffer(whole, np.int32, len(whole) // 4)
        file = pa.ipc.open_file(whole)
        batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        self.rows = int(self._starts[-1])

        def word(array: pa.Array) -> int:
            """The word at which the values of an array start."""
            return (array.buffers()[1].address - whole.address) // 4

        # An Arrow list array consists of its values and the (rows + 1) offsets of the lists in
        # them.
        self._offsets = np.array(
            [[word(column.offsets) for column in batch.columns] for batch in batches]
        )
        self._values = np.array(
            [[word(column.values) for column in batch.columns] for batch in batches]
        )

    def places(self, rows: np.ndarray) -> np.ndarray:
        """The words at which the lists of the given rows start: (columns, rows)."""
        batch = np.searchsorted(self._starts, rows, side="right") - 1
        offsets = self._offsets[batch].T + (rows - self._starts[batch])
        return self._values[batch].T + self.words[offsets]


def _spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The indices start, start + 1, ... of each span, concatenated."""
    return np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())


def build(
    directory: Path, inputs: dict[str, Any], fill: Callable[[Path], dict[str, Any]], notify: Notify
) -> Corpus:
    """Open the corpus in `directory`; if its inputs have changed or it is missing or damaged, write
    it anew first.

    `fill` writes the files into the folder it is given and returns what the manifest says of them.
    They replace the old ones by a rename at the end, so a killed run leaves no corpus that looks
    complete. Only one process at a time may build in a directory; within `made_elsewhere` it is
    only opened.

    Raises:
        TransductError: the disk is full, the directory holds something else, or a run begun with
            this corpus would go on with another one.
    """
    if MADE_ELSEWHERE.get():
        return Corpus(directory)
    folder = directory.resolve()  # a link stays, and the folder that it leads to is replaced
    for leftover in folder.parent.glob(f".{folder.name}.*.part"):
        shutil.rmtree(leftover, ignore_errors=True)  # of a process that was killed
    # By way of JSON, so that a tuple equals the list that it is in the manifest.
    inputs = json.loads(json.dumps({"format": FORMAT, **inputs}))
    begun, reason = _begun_with(directory), None
    if directory.exists():
        # Somebody's own folder is never emptied.
        require(
            directory.is_dir()
            and ((directory / MANIFEST).exists() or not any(directory.iterdir())),
            "exists and is not a corpus; choose a new folder, or empty this one",
            file=str(directory),
        )
        reason = _reason_to_rebuild(directory, inputs)
        if reason is None:
            corpus = Corpus(directory)
            notify(f"corpus unchanged: reused {len(corpus):,} rows")
            return corpus
        notify(f"corpus prepared again: {reason}")
    # Whatever happens within, the old corpus stays until the new one is whole.
    with new_directory(folder, replace=True) as new:
        manifest = fill(new)
        files = {path.name: digest_of(path) for path in sorted(new.iterdir())}
        # the steps trained so far belong to other examples in another order
        changed = f"{reason or 'what its corpus is made of has changed'} since its run began"
        require(
            not begun or begun == files,
            f"{changed}; put back what was there or choose another --out",
            file=str(directory.parent),
        )
        # The manifest is written last: without it a folder is no corpus.
        text = json.dumps(
            {"inputs": inputs, "files": files, **manifest}, indent=1, ensure_ascii=False
        )
        (new / MANIFEST).write_text(text, encoding="utf-8")
        if not begun:
            _begun(directory).write_text(json.dumps({"files": files}), encoding="utf-8")
    return Corpus(directory)


def opened_for(run: Path, directory: Path, settings: Mapping[str, Any]) -> Corpus:
    """Open a corpus that was prepared for several runs, for one whose own would be in the folder
    `run`.

    Args:
        settings: of the run's recipe; see `settings_of`.

    Raises:
        TransductError: it was prepared by another recipe, is damaged, or is not the one with which
            the run began.
    """
    if MADE_ELSEWHERE.get():
        return Corpus(directory)
    remedy = "name one that transduct prepare has made, or prepare it again"
    with rewording(
        (OSError, ValueError, KeyError, TypeError),
        f"not a prepared corpus ({{error}}); {remedy}",
        file=str(directory),
    ):
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        made, files = dict(manifest["inputs"]), dict(manifest["files"])
    asked = json.loads(json.dumps({"format": FORMAT, **settings}))
    differing = [key for key in asked if made.get(key) != asked[key]]
    require(
        not differing,
        f"was prepared by another recipe: {', '.join(differing)} differ; correct the recipe, or "
        "prepare another corpus",
        file=str(directory),
    )
    with rewording(OSError, f"damaged ({{error}}); {remedy}", file=str(directory)):
        damaged = [name for name, digest in files.items() if digest_of(directory / name) != digest]
    for name in damaged:
        remedy = "prepare the corpus again, or remove it if it is a copy"
        raise TransductError(f"is damaged; {remedy}", file=str(directory / name))
    begun = _begun_with(run)
    require(
        begun in (None, files),
        f"the corpus in {directory} is not the one with which this run began; give that one, or "
        "choose another --out",
        file=str(run.parent),
    )
    if begun is None:
        _begun(run).write_text(json.dumps({"files": files}), encoding="utf-8")
    return Corpus(directory)


@contextmanager
def made_elsewhere() -> Iterator[None]:
    """Within this, `build` only opens the corpus, which another process has just built, without
    checking its inputs."""
    before = MADE_ELSEWHERE.set(True)
    try:
        yield
    finally:
        MADE_ELSEWHERE.reset(before)


def _begun_with(directory: Path) -> dict[str, Any] | None:
    """The digests of the corpus files with which the run of a directory began; None without
    checkpoints, or if they are unknown."""
    if not any((directory.parent / "checkpoints").glob("step_*")):
        return None
    # The file beside it first: a corpus that was prepared again has a manifest of its own.
    for path in (_begun(directory), directory / MANIFEST):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return dict(json.loads(path.read_text(encoding="utf-8"))["files"])
    return None


def _begun(directory: Path) -> Path:
    """The file beside a corpus that keeps its first digests, in case the corpus is deleted to save
    space."""
    return directory.with_name(f"{directory.name}.json")


def _reason_to_rebuild(directory: Path, inputs: dict[str, Any]) -> str | None:
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        before, files = dict(manifest["inputs"]), dict(manifest["files"])
        if "broken" in inputs:  # corpora of text have had this setting since version 0.1.0
            before.setdefault("broken", "stop")
        differing = [
            key
            for key in sorted((before.keys() | inputs.keys()) - RETIRED)
            if before.get(key) != inputs.get(key)
        ]
        if differing:
            return f"{', '.join(differing)} changed"
        # Reads all of it: a flipped bit in the ids would train on other words without a sound.
        damaged = [name for name, digest in files.items() if digest_of(directory / name) != digest]
        Corpus(directory)
    except (OSError, ValueError, KeyError, TypeError, TransductError) as error:
        return f"it is damaged ({error})"
    return f"{damaged[0]} is damaged" if damaged else None


def hash_of(row: Iterable[np.ndarray]) -> bytes:
    """A hash of lists of integers."""
    parts = (np.asarray(each, np.int32).tobytes() for each in row)
    return blake2b(b"".join(parts), digest_size=8).digest()


def ragged(rows: Sequence[np.ndarray] | Sequence[Sequence[int]]) -> Ragged:
    """Concatenate lists or arrays of integers into a column."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    if len(rows) and isinstance(rows[0], np.ndarray):
        return np.concatenate(rows), lengths
    return np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths


def lists_of(column: Ragged) -> list[np.ndarray]:
    """Split a column into its lists: the inverse of `ragged`."""
    flat, lengths = column
    return np.split(flat, np.cumsum(lengths))[:-1]


def write_rows(
    folder: Path, columns: int, sources: Iterable[tuple[float, Iterable[Sequence[Ragged]]]]
) -> dict[str, Any]:
    """Write rows, chunk by chunk, as Arrow shards and a file of lengths.

    Args:
        sources: the weight and the chunks of rows of each source.

    Returns:
        The entries of the manifest that describe them; see `Corpus`.
    """
    rows, weights = 0, []

    def chunks() -> Iterator[Sequence[Ragged]]:
        for weight, source in sources:
            start = rows
            yield from source
            weights.append((start, rows, weight))

    # One chunk is in memory at a time, so a corpus may be larger than memory.
    schema = pa.schema([(f"column_{number}", pa.list_(pa.int32())) for number in range(columns)])
    rest, shards = chunks(), 0
    with (folder / LENGTHS).open("wb") as lengths_file:
        while (first := next(rest, None)) is not None:
            tokens = 0
            with (
                (folder / SHARD.format(shards)).open("wb") as file,
                pa.ipc.new_file(file, schema) as writer,
            ):
                for chunk in chain([first], rest):
                    writer.write_batch(
                        pa.record_batch([list_array(*column) for column in chunk], schema=schema)
                    )
                    lengths = np.stack([lengths for _, lengths in chunk], axis=1)
                    lengths_file.write(lengths.astype(np.int32).tobytes())
                    rows += len(lengths)
                    tokens += int(lengths.sum())
                    if tokens >= SHARD_TOKENS:
                        break
            shards += 1
    return {"rows": rows, "columns": columns, "weights": weights, "dropped": {}}


def list_array(flat: np.ndarray, lengths: np.ndarray) -> pa.Array:
    # Arrow's offsets are 32 bits wide.
    offsets, most = np.concatenate([[0], np.cumsum(lengths)]), 2**31 - 1
    refuse_if(offsets[-1] > most, f"{offsets[-1]:,} words in a batch of Arrow's, at most {most:,}")
    values = pa.array(flat.astype(np.int32, copy=False))
    return pa.ListArray.from_arrays(offsets.astype(np.int32), values)


def validation_digest(data: Any) -> str:
    """A digest of the files that a `data` section validates on; empty if there are none.

    Of folders it holds names and sizes alone, for in a copy the times differ.
    """
    names, root = names_of(filter(None, [data.valid])), Path(data.root)
    digests = [
        identity(each) if is_address(each) else digest_of(root / each, times=False)
        for name in names
        for each in matching(root, name)
    ]
    return blake2b(repr(digests).encode(), digest_size=16).hexdigest() if digests else ""


def digest_of(path: Path, times: bool = True) -> dict[str, Any]:
    """The size and hash of a file; for a folder, a hash of the names, sizes and, if asked for,
    times of its files.

    Anything in a folder that is not a file, such as a dangling link, counts by its name alone.
    """
    if path.is_dir():
        listing = []
        for entry in files_below(path):
            stat = entry.stat() if os.path.isfile(entry) else None
            facts = (stat.st_size, stat.st_mtime_ns)[: 1 + times] if stat else ()
            listing.append((entry.relative_to(path).as_posix(), *facts))
        return {"files": len(listing), "listing": blake2b(repr(listing).encode()).hexdigest()}
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": file_digest(file, "sha256").hexdigest()}


def inputs_of(
    data: Any,
    tokenizers: Mapping[str, Tokenizer],
    ignored: Sequence[str] = (),
    files: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Everything that determines the content of a corpus, under names for use in messages.

    Args:
        data: a `data` section with `train`, a list of sources, and `root`.
        ignored: further fields of it that do not affect the corpus.
        files: of `train`, where patterns name some.

    Raises:
        TransductError: a file of the corpus cannot be read.
    """
    inputs = settings_of(data, tokenizers, ignored)
    for name in names_of(data.train) if files is None else files:
        if is_address(name):
            inputs[f"file {name}"] = identity(name)
            continue
        path = Path(data.root) / name
        with rewording(
            OSError, "cannot be read ({error}); correct data.train or data.root", file=str(path)
        ):
            inputs[f"file {name}"] = digest_of(path)
    return inputs


def settings_of(
    data: Any, tokenizers: Mapping[str, Tokenizer], ignored: Sequence[str] = ()
) -> dict[str, Any]:
    """Like `inputs_of`, without the content of the files."""
    ignored = ("valid", "test", "root", "workers", "corpus", *ignored)
    settings = {name: value for name, value in asdict(data).items() if name not in ignored}
    return settings | {name: tokenizer.digest for name, tokenizer in tokenizers.items()}


def growth(
    corpus: Corpus, columns: Sequence[int], added: int, tokenizer: Tokenizer, dropout: float
) -> float:
    """Estimate the factor by which BPE dropout lengthens rows, on a sample of the corpus.

    Args:
        columns: the columns that make up a row.
        added: the number of tokens that are added to each row, such as the end of sentence.
    """
    count = min(len(corpus.lengths), SAMPLED)
    if not dropout or not count:
        return 1.0
    # Evenly over the corpus: files differ, and the first may be the easiest.
    sampled = corpus.columns(np.linspace(0, len(corpus.lengths) - 1, count).astype(np.int64))
    random, rows = Random(0), [row.tolist() for n in columns for row in lists_of(sampled[n])]
    before = added * count + sum(map(len, rows))
    after = added * count + sum(len(tokenizer.resegment(row, dropout, random)) for row in rows)
    return after / before if before else 1.0
