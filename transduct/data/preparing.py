"""Pairs of texts as a corpus: read, encoded and filtered, with some held out for validation.

A corpus is made in three steps. Parts of it are read, encoded and filtered, each by itself. Equal
pairs are then found in ranges of their hashes. At last the pairs that are kept are written. The
first two steps may be done by many workers; the parts, and so the corpus, do not depend on them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from transduct.data.corpus import (
    RETIRED,
    Corpus,
    Ragged,
    build,
    digest_of,
    inputs_of,
    list_array,
    ragged,
    settings_of,
    write_rows,
)
from transduct.data.duplicates import Hashed, Hashes, repeated
from transduct.data.files import Notify, Refused, in_words, names_of
from transduct.data.filters import (
    Filters,
    Unfit,
    evaluated,
    hashes_of_pairs,
    hashes_of_rows,
    sides_of,
)
from transduct.data.quality import Judge
from transduct.data.replacements import changed
from transduct.data.samples import Pair
from transduct.data.sources import DataConfig, TextSource
from transduct.data.splits import Engine, Split, Work, in_this_process, splits_of
from transduct.data.text import nothing_in, read_part
from transduct.data.text_warnings import Preprocessed, UnknownRate
from transduct.data.tokenizer import Tokenizer
from transduct.errors import require
from transduct.storage import WEIGHTS, new_directory

# what `transduct prepare` makes: a corpus, its parts, and what they were asked to be
CORPUS, PARTS, JOB = "corpus", "parts", "job.json"
HELD_OUT = "held_out.jsonl"  # beside the shards of the corpus
PROGRESS = 1_000_000  # pairs read between two progress messages
FORMAT = 2  # of parts
ROWS, FACTS = "rows.arrow", "facts.json"


class HeldOut:
    """Chooses pairs with distinct sources for validation.

    They are those whose sources, after `data.replace`, have the smallest hashes: as good as random,
    and the same in every run. Of several translations of a source, the pair with the smallest hash
    is taken.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        # hash of the source -> hash of the pair, pair
        self.chosen: dict[int, tuple[int, Pair]] = {}
        self._largest = 1 << 64

    def add(self, sources: Iterable[int], keys: Iterable[int], pairs: Iterable[Pair]) -> None:
        """Consider pairs as they are in the files, with their hashes after `data.replace`."""
        for source, key, pair in zip(sources, keys, pairs):
            if source <= self._largest and pair[0].strip() and pair[1].strip():
                before = self.chosen.get(source, (key, pair))
                self.chosen[source] = min(before, (key, pair))
        if len(self.chosen) > 2 * self.count:  # rarely, for this sorts them
            self.shorten()

    def shorten(self) -> None:
        """Forget the pairs that are not held out."""
        if len(self.chosen) > self.count:
            self.chosen = dict(sorted(self.chosen.items())[: self.count])
            self._largest = max(self.chosen)

    @property
    def pairs(self) -> list[Pair]:
        """The pairs that are held out."""
        self.shorten()
        return [pair for _, (_, pair) in sorted(self.chosen.items())]


class MakePart:
    """Reads, encodes and filters a part of the corpus by itself.

    A part is a folder, which appears whole. It has a row for each pair that was read: the tokens,
    unless it is unfit, why it is, and its hashes; the hashes of those that are fit, sorted, with
    their rows; and what is to be counted.
    """

    def __init__(
        self,
        data: DataConfig,
        tokenizers: tuple[Tokenizer, Tokenizer],
        folder: Path,
        judge: Callable[[], Judge] | None = None,
    ) -> None:
        self.data, self.tokenizers, self.folder = data, tokenizers, folder
        self.unfit, self.sides = Unfit(data, judge and judge()), sides_of(data)

    def __call__(self, split: Split) -> int:
        """Make a part, and return how many pairs it has."""
        # without its parents: where a disk went away, nothing is written in its place
        with new_directory(self.folder / split.name, replace=True, parents=False) as folder:
            facts = self._write(split, folder)
            made = {path.name: digest_of(path) for path in sorted(folder.iterdir())}
            text = json.dumps({**facts, "files": made})
            (folder / FACTS).write_text(text, encoding="utf-8")
        return int(facts["read"])

    def _write(self, split: Split, folder: Path) -> dict[str, Any]:
        refused, held_out = Refused(self.data.broken), HeldOut(self.data.held_out)
        unknown = [UnknownRate(""), UnknownRate("")]
        preprocessed = [Preprocessed(""), Preprocessed("")]
        schema = pa.schema(
            [
                *((name, pa.list_(pa.int32())) for name in ("source", "target")),
                ("unfit", pa.uint8()),
                *((f"hash_{side}", pa.uint64()) for side in range(1 + self.sides)),
            ]
        )
        written = Hashes(folder, bool(self.data.filters.near_duplicates))
        with (folder / ROWS).open("wb") as file, pa.ipc.new_file(file, schema) as writer:
            for pairs in read_part(split.source, Path(self.data.root), refused, split.spans):
                made = changed(pairs, self.data.replace)
                sides = [*zip(*made)]
                encoded = [each.encode(texts) for texts, each in zip(sides, self.tokenizers)]
                for rate, rows in zip(unknown, encoded, strict=True):
                    rate.add(rows)
                if split.source.source or split.source.pairs:  # words of trees are cut for good
                    for count, texts in zip(preprocessed, sides, strict=True):
                        count.add(texts)
                columns = [*map(ragged, encoded)]
                unfit = self.unfit(made, *(lengths for _, lengths in columns))
                hashed, fit = hashes_of_pairs(made, self.sides), unfit == 0
                lists = [
                    list_array(flat[np.repeat(fit, lengths)], lengths * fit)
                    for flat, lengths in columns
                ]
                arrays = [*lists, *map(pa.array, (unfit, *hashed))]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
                written.add(made, hashed[0], fit)
                if held_out.count:
                    held_out.add(hashed[1].tolist(), hashed[0].tolist(), pairs)
        held_out.shorten()
        hashes = written.finished()
        return {
            "read": hashes.rows,
            "runs": hashes.runs,
            "errors": refused.errors,
            "unknown": [(rate.read, rate.found) for rate in unknown],
            "preprocessed": [(count.read, count.found) for count in preprocessed],
            "held_out": [(source, *found) for source, found in held_out.chosen.items()],
        }


class Parts:
    """All parts of a corpus, and what they say together.

    Raises:
        TransductError: a corpus has no pair.
    """

    def __init__(self, data: DataConfig, splits: Sequence[Split], folder: Path) -> None:
        self.data, self.splits, self.folder = data, splits, folder
        self.held_out = HeldOut(data.held_out)
        self.refused = [Refused(data.broken) for _ in data.train]  # of each corpus
        self.unknown = UnknownRate("source lines"), UnknownRate("target lines")
        self.preprocessed = Preprocessed("source texts"), Preprocessed("target texts")
        self.hashed: list[Hashed] = []
        for split in splits:
            path = folder / split.name
            facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
            self.hashed.append(Hashed(path, facts["read"], facts["runs"]))
            self.refused[split.place].errors += facts["errors"]
            for source, key, pair in facts["held_out"]:
                self.held_out.add([source], [key], [tuple(pair)])
            for rate, (read, found) in zip(self.unknown, facts["unknown"], strict=True):
                rate.read, rate.found = rate.read + read, rate.found + found
            for count, (read, texts) in zip(self.preprocessed, facts["preprocessed"], strict=True):
                count.read += read
                for done, (number, shown) in texts.items():
                    before, first = count.found.get(done, (0, shown))
                    count.found[done] = before + number, first
        read_of: dict[tuple[int, str], int] = {}  # of each file, or pair of files
        for split, part in zip(splits, self.hashed):
            about = split.place, ", ".join(split.source.files())
            read_of[about] = read_of.get(about, 0) + part.rows
        for split in splits:
            refused = self.refused[split.place]
            if not read_of[split.place, ", ".join(split.source.files())] and not refused.errors:
                raise nothing_in(split.source, Path(data.root), None)
        for place, source in enumerate(data.train):
            if not sum(read for (of, _), read in read_of.items() if of == place):
                raise nothing_in(source, Path(data.root), self.refused[place])

    def write(self, folder: Path, filters: Filters, engine: Engine) -> dict[str, Any]:
        """Write the pairs that are kept; returns what the manifest says of them."""
        equal = repeated(self.hashed, self.folder / ".equal", engine)
        near, similarity = np.zeros(len(equal), bool), self.data.filters.near_duplicates
        if similarity:
            near = repeated(self.hashed, self.folder / ".near", engine, similarity)

        def kept(place: int) -> Iterator[list[Ragged]]:
            before = 0
            for split, part in zip(self.splits, self.hashed):
                rows = slice(before, before := before + part.rows)
                if split.place == place:
                    yield from _kept(part.folder / ROWS, filters, near[rows], equal[rows])

        train = self.data.train
        return write_rows(folder, 2, ((each.weight, kept(n)) for n, each in enumerate(train)))

    def report(self, filters: Filters, rows: int, notify: Notify) -> None:
        """Say what has been left out, and what looks wrong.

        Raises:
            TransductError: no row is left.
        """
        refused = Refused(self.data.broken)
        refused.errors += chain.from_iterable(each.errors for each in self.refused)
        refused.report(notify)
        filters.dropped |= {name: count for name, count in refused.dropped.items() if count}
        counts = in_words(filters.dropped)
        left_out = f" (left out: {counts})" if counts else ""
        remedy = f"check {', '.join(names_of(self.data.train)) or 'data.train'} and the filters"
        # most share a text with one of them
        if 2 * filters.dropped["held_out"] > sum(filters.dropped.values()):
            remedy = "set data.held_out to 0, and validate on files of their own or on nothing"
        require(rows, f"no pair is left to train on{left_out}; {remedy}")
        marked = chain.from_iterable(each.warnings() for each in self.preprocessed)
        for warning in chain(marked, filters.leaks()):
            notify(f"warning: {warning}")
        notify(f"corpus prepared: {rows:,} pairs{left_out}{self.unknown[0]}{self.unknown[1]}")


def _kept(
    path: Path, filters: Filters, near: np.ndarray, repeated: np.ndarray
) -> Iterator[list[Ragged]]:
    """The encoded pairs of a part that are trained on."""
    with pa.memory_map(str(path)) as file:
        reader, start = pa.ipc.open_file(file), 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            rows = slice(start, start := start + batch.num_rows)
            unfit, *hashed = (each.to_numpy() for each in batch.columns[2:])
            reasons = filters.settle(unfit, np.stack(hashed), near[rows], repeated[rows])
            if (keep := reasons == 0).any():
                columns = map(_ragged_of, batch.columns[:2])
                yield [(flat[np.repeat(keep, counts)], counts[keep]) for flat, counts in columns]


def _ragged_of(column: Any) -> Ragged:
    offsets = column.offsets.to_numpy()
    return column.values.to_numpy()[offsets[0] : offsets[-1]], np.diff(offsets)


def prepare(
    data: DataConfig,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    directory: Path,
    notify: Notify,
    engine: Engine = in_this_process,
    parts: Path | None = None,
    judge: Callable[[], Judge] | None = None,
) -> Corpus:
    """Prepare the training pairs as a corpus of two columns: read, encode and filter them, unless
    nothing has changed.

    Args:
        engine: does the parts.
        parts: a folder that keeps them, so that only those of changed files are made anew; by
            default they are removed in the end.
        judge: makes what `data.filters.unlikely` asks.

    Raises:
        TransductError: a file cannot be read, no pair is left, or as in `corpus.build`.
    """
    tokenizers = (source_tokenizer, target_tokenizer)
    inputs = inputs_for(data, tokenizers)

    def fill(folder: Path) -> dict[str, Any]:
        place = parts or folder / "parts"
        place.mkdir(exist_ok=True)
        splits = _named(splits_of(data.train, Path(data.root)), data, inputs)
        _make(splits, partial(MakePart, data, tokenizers, place, judge), place, engine, notify)
        made = Parts(data, splits, place)
        if made.held_out.pairs:
            lines = [json.dumps({"source": a, "target": b}) for a, b in made.held_out.pairs]
            (folder / HELD_OUT).write_text("\n".join([*lines, ""]), encoding="utf-8")
        filters = Filters(data, made.held_out.pairs)
        manifest = made.write(folder, filters, engine)
        for path in place.iterdir():
            if path.name not in {split.name for split in splits}:
                rmtree(path, ignore_errors=True)
        if parts is None:
            rmtree(place)
        made.report(filters, manifest["rows"], notify)
        return manifest | {"dropped": filters.dropped}

    return build(directory, inputs, fill, notify)


def inputs_for(
    data: DataConfig, tokenizers: Sequence[Tokenizer], content: bool = True
) -> dict[str, Any]:
    """Everything that determines a corpus of pairs, with the content of its files or without."""
    named = {f"the {side} tokenizer": each for side, each in zip(("source", "target"), tokenizers)}
    # As before there was this key, so that older corpora are still those of their runs.
    ignored = [*RETIRED, *([] if data.drop_validation else ["drop_validation"])]
    ignored += [] if data.filters.names else ["filters"]
    if content:
        files = names_of(each.expanded(Path(data.root)) for each in data.train)
        inputs = inputs_of(data, named, ignored, files)
    else:
        inputs = settings_of(data, named, ignored)
    for path in data.filters.models:
        inputs[f"the weights of {path}"] = digest_of(Path(path) / WEIGHTS)
    for name in ("valid", "test") if data.drop_validation else ():
        rows = hashes_of_rows(evaluated(data, name)).tobytes()
        inputs[f"the texts of {name}"] = blake2b(rows, digest_size=16).hexdigest()
    return inputs


def _named(splits: Sequence[Split], data: DataConfig, inputs: Mapping[str, Any]) -> list[Split]:
    """The splits, each with a name that says all that its part is made of."""
    whole = ("train", "drop_duplicates", "drop_validation")
    settings = {
        key: value
        for key, value in inputs.items()
        if key not in whole and not key.startswith(("file ", "the texts of "))
    }
    settings |= {"parts": FORMAT, "sides": sides_of(data)}
    settings["languages"] = data.languages if data.filters.names else None
    named = []
    for split in splits:
        files = [inputs[f"file {name}"] for name in split.source.files()]
        about = [settings, asdict(replace(split.source, weight=1.0)), files, split.spans]
        text = json.dumps(about, default=asdict, sort_keys=True)
        name = blake2b(text.encode(), digest_size=16).hexdigest()
        named.append(replace(split, name=name))
    return named


def _make(
    splits: Sequence[Split], make: Callable[[], Work], folder: Path, engine: Engine, notify: Notify
) -> None:
    """Make the parts that are not there yet."""
    for leftover in folder.glob(".*"):
        rmtree(leftover, ignore_errors=True)
    waiting = {each.name: each for each in splits if not _is_whole(folder / each.name)}
    if len(waiting) < len({each.name for each in splits}):
        notify(
            f"{len(waiting):,} of {len(splits):,} parts of the corpus are made, others are there"
        )
    read = 0
    for count in engine(make, [*waiting.values()]) if waiting else ():
        read += count
        if read // PROGRESS > (read - count) // PROGRESS:
            notify(f"preparing the corpus: {read:,} pairs read")


def _is_whole(part: Path) -> bool:
    """Whether a part is there as it was written; a damaged one is removed."""
    if not part.exists():
        return False
    try:
        facts = json.loads((part / FACTS).read_text(encoding="utf-8"))
        if all(digest_of(part / name) == digest for name, digest in facts["files"].items()):
            return True
    except (OSError, ValueError, KeyError, TypeError):
        pass
    rmtree(part)
    return False


def held_out_of(corpus: Corpus) -> TextSource | None:
    """The pairs held out for validation, unchanged from the files, as a source for
    `read_examples`."""
    path = corpus.directory / HELD_OUT
    return TextSource(pairs=str(path)) if path.exists() else None
