"""What of a corpus is not trained on: pairs held out, empty, too long, too unlike in length, or there already."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np

from transduct.data.samples import Pair
from transduct.data.sources import DataConfig, changed
from transduct.data.text import read_pairs

BUCKETS = 64


def hashes(texts: Iterable[str]) -> np.ndarray:
    """8 bytes that stand for each text."""
    digests = [blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<u8")


def _hashes_of_pairs(pairs: Iterable[Pair]) -> np.ndarray:
    """8 bytes that stand for both texts of each pair."""
    return hashes(f"{source}\n{target}" for source, target in pairs)


def hold_out(data: DataConfig) -> list[Pair]:
    """Pairs, as they are in the files, of the sources with the smallest hashes of what is made of them: as good as
    drawn by lot. Of the translations of one source it is that with the smallest hash."""
    held: dict[int, tuple[int, Pair]] = {}  # by the hash of the source: that of the pair, and the pair
    if not data.held_out:
        return []
    largest = 1 << 64
    for pairs in chain.from_iterable(read_pairs(corpus, Path(data.root)) for corpus in data.train):
        made = changed(pairs, data.replace)
        sources = hashes(source for source, _ in made)
        for source, key, pair in zip(sources.tolist(), _hashes_of_pairs(made).tolist(), pairs):
            if source <= largest and pair[0].strip() and pair[1].strip():
                held[source] = min(held.get(source, (key, pair)), (key, pair))
        if len(held) > 2 * data.held_out:  # seldom, for they are sorted
            held = dict(sorted(held.items())[: data.held_out])
            largest = max(held)
    return [pair for _, (_, pair) in sorted(held.items())[: data.held_out]]


class Filters:
    """What leaves a pair out of training; `dropped` counts, by the first reason that applies.

    Held out is every pair with a text of a pair in `held`: another translation of its source would tell too much of it.
    """

    def __init__(self, data: DataConfig, held: list[Pair]) -> None:
        self.dropped = dict.fromkeys(("held_out", "empty", "too_long", "length_ratio", "duplicate"), 0)
        self._data = data
        # Of the sources, and of the targets.
        self._held = [np.sort(hashes(texts)) for texts in zip(*changed(held, data.replace))]
        self._seen = Seen()

    def keep(self, pairs: Sequence[Pair], source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Whether each pair, whose lengths in tokens are given too, is trained on."""
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        keep = np.ones(len(pairs), bool)
        for texts, held in zip(zip(*pairs), self._held):
            self._leave_out("held_out", keep, _among(hashes(texts), held))
        blank = np.fromiter((not (one.strip() and other.strip()) for one, other in pairs), bool, len(pairs))
        self._leave_out("empty", keep, blank | (shorter == 0))
        self._leave_out("too_long", keep, longer + 1 > self._data.max_length)
        if self._data.max_ratio:
            self._leave_out("length_ratio", keep, longer > self._data.max_ratio * shorter)
        if self._data.drop_duplicates:
            known = np.zeros(len(pairs), bool)
            known[keep] = ~self._seen.add(_hashes_of_pairs(pairs)[keep])
            self._leave_out("duplicate", keep, known)
        return keep

    def _leave_out(self, reason: str, keep: np.ndarray, those: np.ndarray) -> None:
        self.dropped[reason] += int(np.sum(keep & those))
        keep &= ~those


def _among(those: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether each of those is among known ones, which are sorted and at least one."""
    found: np.ndarray = known.take(np.searchsorted(known, those), mode="clip") == those
    return found


class Seen:
    """A set of 64-bit hashes at little more than 8 bytes each.

    Sorted arrays, each at least twice as long as the next, are merged as they grow. They are kept apart by the first
    bits of the hash, so that the old and the new copy of only one bucket are in memory together.
    """

    def __init__(self) -> None:
        self._buckets: list[list[np.ndarray]] = [[] for _ in range(BUCKETS)]
        self._bounds = np.arange(1, BUCKETS, dtype=np.uint64) * np.uint64(2**64 // BUCKETS)

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Remember the hashes; whether each was new, the first of equal ones being so."""
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
