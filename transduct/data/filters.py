"""Pairs of texts as a corpus: read, encoded and filtered, with some held out for validation.

The filters drop pairs that are held out, empty, too long, of too unequal lengths, or duplicates.

Texts that differ only in their white space or in their Unicode form count as equal: most tokenizers
read them alike.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from transduct.data.corpus import RETIRED, Corpus, Ragged, build, inputs_of, ragged, write_rows
from transduct.data.files import Notify, Refused, in_words, names_of
from transduct.data.quality import Quality, near_duplicates
from transduct.data.samples import Pair
from transduct.data.sources import DataConfig, TextSource, changed
from transduct.data.text import read_pairs
from transduct.data.text_warnings import Preprocessed, UnknownRate
from transduct.data.tokenizer import Tokenizer
from transduct.data.vocabulary import tidied
from transduct.errors import require

BUCKETS = 64


def hashes(texts: Iterable[str]) -> np.ndarray:
    """A 64-bit hash of each text."""
    return hashes_of_rows((text,) for text in texts)


def hashes_of_rows(rows: Iterable[Sequence[str]]) -> np.ndarray:
    """A 64-bit hash of each row of texts."""
    texts = ("\n".join(map(tidied, row)).encode() for row in rows)
    digests = (blake2b(row, digest_size=8).digest() for row in texts)
    return np.frombuffer(b"".join(digests), "<u8")


def leaked(texts: Sequence[str], trained: Iterable[str], name: str) -> str:
    """What to report of the texts of `name` that are among those trained on; "" if there are
    none."""
    found = int(np.isin(hashes(texts), hashes(trained)).sum())
    report = f"{found:,} of {len(texts):,} {name} texts are in training: scores may be too good; "
    report += "data.drop_validation=true leaves them out of training"
    return report if found else ""


def hold_out(data: DataConfig) -> list[Pair]:
    """Choose `data.held_out` pairs with distinct sources for validation, unchanged from the files.

    They are those whose sources, after `data.replace`, have the smallest hashes: as good as random,
    and the same in every run. Of several translations of a source, the pair with the smallest hash
    is taken.
    """
    chosen: dict[int, tuple[int, Pair]] = {}  # hash of the source -> hash of the pair, pair
    if not data.held_out:
        return []
    largest = 1 << 64
    root, refused = Path(data.root), Refused(data.broken)  # reported when the corpus is prepared
    for pairs in chain.from_iterable(read_pairs(each, root, (), refused) for each in data.train):
        made = changed(pairs, data.replace)
        sources = hashes(source for source, _ in made)
        for source, key, pair in zip(sources.tolist(), hashes_of_rows(made).tolist(), pairs):
            if source <= largest and pair[0].strip() and pair[1].strip():
                chosen[source] = min(chosen.get(source, (key, pair)), (key, pair))
        if len(chosen) > 2 * data.held_out:  # rarely, for this sorts them
            chosen = dict(sorted(chosen.items())[: data.held_out])
            largest = max(chosen)
    return [pair for _, (_, pair) in sorted(chosen.items())[: data.held_out]]


class Filters:
    """Decides which pairs are trained on; `dropped` counts the others by the first reason that
    applies.

    A pair that shares a text with one of `held` is dropped as held out: other translations of a
    source leak into validation.

    Args:
        near: which pairs of the corpus, in its order, are near duplicates.
    """

    def __init__(self, data: DataConfig, held: list[Pair], near: np.ndarray | None = None) -> None:
        self.dropped = dict.fromkeys(
            ("held_out", "empty", "too_long", "length_ratio", "duplicate"), 0
        )
        self._data = data
        evaluated = {name: _evaluated(data, name) for name in ("valid", "test")}
        if data.drop_validation:
            held = [*held, *chain.from_iterable(evaluated.values())]
            evaluated = {}
        self._leaks = [_Leak(name, pairs) for name, pairs in evaluated.items() if pairs]
        # Hashes of the sources, and of the targets.
        self._quality = Quality(data.filters, data.languages if data.filters.names else None)
        self.dropped |= dict.fromkeys(data.filters.names, 0)
        self._near, self._read = near, 0
        self._held = [np.sort(hashes(texts)) for texts in zip(*changed(held, data.replace))]
        self._seen = Seen()

    def keep(self, pairs: Sequence[Pair], source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Whether each pair is kept, given the lengths of its source and its target in tokens."""
        kept: np.ndarray = self.reasons(pairs, source, target) == ""
        return kept

    def reasons(self, pairs: Sequence[Pair], source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The reason to drop each pair, "" for none, given the lengths of its sides in tokens."""
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        reasons = np.full(len(pairs), "", object)
        for texts, held_out in zip(zip(*pairs), self._held):
            self._drop("held_out", reasons, _among(hashes(texts), held_out))
        blank = np.fromiter(
            (not (one.strip() and other.strip()) for one, other in pairs), bool, len(pairs)
        )
        self._drop("empty", reasons, blank | (shorter == 0))
        self._drop("too_long", reasons, longer + 1 > self._data.max_length)
        if self._data.max_ratio:
            self._drop("length_ratio", reasons, longer > self._data.max_ratio * shorter)
        for name, dropped in self._unfit(pairs).items():
            self._drop(name, reasons, dropped)
        rows, keep = hashes_of_rows(pairs), reasons == ""
        for leak in self._leaks:
            leak.look(rows[keep], hashes(source for source, _ in pairs)[keep])
        if self._data.drop_duplicates:
            known = np.zeros(len(pairs), bool)
            known[keep] = ~self._seen.add(rows[keep])
            self._drop("duplicate", reasons, known)
        return reasons

    def _unfit(self, pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
        """Which pairs each of `data.filters` leaves out."""
        names = self._data.filters.names
        reasons = np.array(self._quality.reasons(pairs) if names else [], object)
        found: dict[str, np.ndarray] = {name: reasons == name for name in names}
        if self._near is not None:
            found["near_duplicates"] = self._near[self._read : self._read + len(pairs)]
            self._read += len(pairs)
        return found

    def leaks(self) -> list[str]:
        """What to report of validation and test pairs that are trained on."""
        return [*filter(None, map(str, self._leaks))]

    def _drop(self, reason: str, reasons: np.ndarray, dropped: np.ndarray) -> None:
        first = (reasons == "") & dropped
        self.dropped[reason] += int(first.sum())
        reasons[first] = reason


def _evaluated(data: DataConfig, name: str) -> list[Pair]:
    """The pairs of `valid` or `test`, as training pairs are read; none if they are generated."""
    corpus = getattr(data, name)
    if corpus is None or corpus.generate is not None:
        return []
    chunks = read_pairs(corpus, Path(data.root), data.replace, Refused("skip"))
    return [(source, target) for source, target, *_ in chain.from_iterable(chunks)]


class _Leak:
    """Counts the pairs of a validation or test set that are in training, and those whose source
    is."""

    def __init__(self, name: str, pairs: Sequence[Pair]) -> None:
        self.name = {"valid": "validation", "test": "test"}[name]
        self.known = hashes_of_rows(pairs), hashes(source for source, _ in pairs)
        self.found = [np.zeros(len(pairs), bool) for _ in self.known]

    def look(self, *trained: np.ndarray) -> None:
        """Take note of training pairs, by the hashes of the pairs and of their sources."""
        for found, known, hashes in zip(self.found, self.known, trained):
            found |= np.isin(known, hashes)

    def __str__(self) -> str:
        """The report; "" if there is nothing to report."""
        (pairs, sources), count = (int(found.sum()) for found in self.found), len(self.known[0])
        report = (
            f"{pairs:,} of {count:,} {self.name} pairs are in training, and {sources:,} of its "
            "sources: scores may be too good; data.drop_validation=true leaves them out of training"
        )
        return report if sources else ""


def _among(found: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether each hash is among the known ones, which are sorted and not empty."""
    return known.take(np.searchsorted(known, found), mode="clip") == found


class Seen:
    """A set of 64-bit hashes at little more than 8 bytes each.

    Hashes are put into buckets by their first bits. A bucket is a list of sorted arrays, each at
    least twice as long as the next, merged as they grow; so merging needs a second copy of one
    bucket only.
    """

    def __init__(self) -> None:
        self._buckets: list[list[np.ndarray]] = [[] for _ in range(BUCKETS)]
        self._bounds = np.arange(1, BUCKETS, dtype=np.uint64) * np.uint64(2**64 // BUCKETS)

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Add the hashes; return whether each was new (of equal ones, the first is)."""
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        new = np.ones(len(hashes), bool)
        new[1:] = ordered[1:] != ordered[:-1]
        edges = [0, *np.searchsorted(ordered, self._bounds), len(ordered)]
        for bucket, start, stop in zip(self._buckets, edges, edges[1:]):
            part, new_part = ordered[start:stop], new[start:stop]
            for known in bucket:
                new_part &= ~_among(part, known)
            if new_part.any():
                bucket.append(part[new_part])
            while len(bucket) > 1 and len(bucket[-2]) < 2 * len(bucket[-1]):
                bucket.append(np.sort(np.concatenate([bucket.pop(), bucket.pop()]), kind="stable"))
        result = np.empty_like(new)
        result[order] = new
        return result


HELD_OUT = "held_out.jsonl"  # beside the shards of the corpus
PROGRESS = 1_000_000  # pairs read between two progress messages


def prepare(
    data: DataConfig,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    directory: Path,
    notify: Notify,
) -> Corpus:
    """Prepare the training pairs as a corpus of two columns: read, encode and filter them, unless
    nothing has changed.

    Raises:
        TransductError: a file cannot be read, no pair is left, or as in `corpus.build`.
    """
    tokenizers = (source_tokenizer, target_tokenizer)

    def fill(folder: Path) -> dict[str, Any]:
        held_out = hold_out(data)
        if held_out:
            lines = [json.dumps({"source": one, "target": other}) for one, other in held_out]
            (folder / HELD_OUT).write_text("\n".join([*lines, ""]), encoding="utf-8")
        filters, refused = Filters(data, held_out, near_pairs(data, folder)), Refused(data.broken)
        unknown = UnknownRate("source lines"), UnknownRate("target lines")
        preprocessed = Preprocessed("source texts"), Preprocessed("target texts")
        read = 0

        def chunks(source: TextSource) -> Iterator[list[Ragged]]:
            """The encoded pairs of a source that pass the filters."""
            nonlocal read
            for pairs in read_pairs(source, Path(data.root), data.replace, refused):
                sides = [*zip(*pairs)]
                encoded = [each.encode(texts) for texts, each in zip(sides, tokenizers)]
                for rate, rows in zip(unknown, encoded, strict=True):
                    rate.add(rows)
                if source.source or source.pairs:  # the words of trees are cut for good
                    for count, texts in zip(preprocessed, sides, strict=True):
                        count.add(texts)
                columns = [*map(ragged, encoded)]
                keep = filters.keep(pairs, *(lengths for _, lengths in columns))
                if keep.any():
                    yield [
                        (flat[np.repeat(keep, lengths)], lengths[keep]) for flat, lengths in columns
                    ]
                read += len(pairs)
                if read // PROGRESS > (read - len(pairs)) // PROGRESS:
                    notify(f"preparing the corpus: {read:,} pairs read")

        manifest = write_rows(folder, 2, ((each.weight, chunks(each)) for each in data.train))
        refused.report(notify)
        filters.dropped |= {name: count for name, count in refused.dropped.items() if count}
        counts = in_words(filters.dropped)
        left_out = f" (left out: {counts})" if counts else ""
        remedy = f"check {', '.join(names_of(data.train)) or 'data.train'} and the filters"
        # most share a text with one of them
        if 2 * filters.dropped["held_out"] > sum(filters.dropped.values()):
            remedy = "set data.held_out to 0, and validate on files of their own or on nothing"
        require(manifest["rows"], f"no pair is left to train on{left_out}; {remedy}")
        marked = chain.from_iterable(each.warnings() for each in preprocessed)
        for warning in chain(marked, filters.leaks()):
            notify(f"warning: {warning}")
        notify(f"corpus prepared: {manifest['rows']:,} pairs{left_out}{unknown[0]}{unknown[1]}")
        return manifest | {"dropped": filters.dropped}

    named = {f"the {side} tokenizer": each for side, each in zip(("source", "target"), tokenizers)}
    # As before there was this key, so that older corpora are still those of their runs.
    ignored = [*RETIRED, *([] if data.drop_validation else ["drop_validation"])]
    ignored += [] if data.filters.names else ["filters"]
    inputs = inputs_of(data, named, ignored)
    for name in ("valid", "test") if data.drop_validation else ():
        rows = hashes_of_rows(_evaluated(data, name)).tobytes()
        inputs[f"the texts of {name}"] = blake2b(rows, digest_size=16).hexdigest()
    return build(directory, inputs, fill, notify)


def near_pairs(data: DataConfig, folder: Path) -> np.ndarray | None:
    """Which pairs of a corpus are near duplicates of earlier ones, if that is asked."""
    if not data.filters.near_duplicates:
        return None
    root, refused = Path(data.root), Refused(data.broken)  # reported when the corpus is prepared
    chunks = (read_pairs(each, root, data.replace, refused) for each in data.train)
    return near_duplicates(chain.from_iterable(chunks), data.filters.near_duplicates, folder)


def held_out_of(corpus: Corpus) -> TextSource | None:
    """The pairs held out for validation, unchanged from the files, as a source for
    `read_examples`."""
    path = corpus.directory / HELD_OUT
    return TextSource(pairs=str(path)) if path.exists() else None
