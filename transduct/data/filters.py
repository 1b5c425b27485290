"""Which pairs of texts are trained on.

The filters drop pairs that are held out, empty, too long, of too unequal lengths, or duplicates.

Texts that differ only in their white space or in their Unicode form count as equal: most tokenizers
read them alike.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np

from transduct.data.files import Refused
from transduct.data.quality import Judge, Quality
from transduct.data.replacements import changed
from transduct.data.samples import Pair
from transduct.data.sources import DataConfig
from transduct.data.text import read_pairs
from transduct.data.tokenizer_file import tidied


def hashes(texts: Iterable[str]) -> np.ndarray:
    """A 64-bit hash of each text."""
    return hashes_of_rows((text,) for text in texts)


def hashes_of_rows(rows: Iterable[Sequence[str]]) -> np.ndarray:
    """A 64-bit hash of each row of texts."""
    return _digests("\n".join(map(tidied, row)) for row in rows)


def _digests(texts: Iterable[str]) -> np.ndarray:
    digests = (blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8")


RANGES = 16  # of hashes in `Seen`, by their first bits
TAKE_OUT = "take them out of data.train"
DROPPED = "data.drop_validation=true leaves them out of training"


def leaked(texts: Sequence[str], trained: Iterable[str], what: str, remedy: str = DROPPED) -> str:
    """What to report of texts to evaluate on that are among those trained on; "" if there are
    none."""
    found = int(np.isin(hashes(texts), hashes(trained)).sum())
    return leak_report(found, len(texts), what, remedy)


def leak_report(found: int, of: int, what: str, remedy: str = TAKE_OUT) -> str:
    """What to report of so many examples to evaluate on that are trained on; "" if it is none."""
    report = f"warning: {found:,} of {of:,} {what} are in training: scores may be too good; "
    return report + remedy if found else ""


def hashes_of_pairs(pairs: Sequence[Pair], sides: int) -> np.ndarray:
    """A 64-bit hash of each pair, then of its source and its target if that many sides are asked
    for: (1 + sides, pairs)."""
    tidy = [[tidied(text) for text in side] for side in zip(*pairs)]
    whole = _digests(map("\n".join, zip(*tidy)))
    return np.stack([whole, *map(_digests, tidy[:sides])])


def reasons_of(data: DataConfig) -> list[str]:
    """Why a pair may be left out, the first reason that applies first; "" for one that is kept."""
    found = ["", "held_out", "empty", "too_long", "length_ratio", *data.filters.names, "duplicate"]
    return [*dict.fromkeys(found)]


class Unfit:
    """Says of pairs why they are left out, whatever else is in the corpus: by the place of the
    reason in `reasons_of`, which is 0 for none."""

    def __init__(self, data: DataConfig, judge: Judge | None = None) -> None:
        self._data, self._reasons = data, reasons_of(data)
        languages = data.languages if data.filters.names else None
        self._quality = Quality(data.filters, languages, judge)

    def __call__(self, pairs: Sequence[Pair], source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The reason of each pair, given the lengths of its sides in tokens."""
        data, found = self._data, np.zeros(len(pairs), np.uint8)
        if data.filters.names:
            reasons = map(self._reasons.index, self._quality.reasons(pairs))
            found = np.fromiter(reasons, np.uint8, len(pairs))
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        blank = (not (one.strip() and other.strip()) for one, other in pairs)
        dropped = {
            "length_ratio": (longer > data.max_ratio * shorter) & (data.max_ratio > 0),
            "too_long": longer + 1 > data.max_length,
            "empty": np.fromiter(blank, bool, len(pairs)) | (shorter == 0),
        }
        for reason, some in dropped.items():  # the last has the last word
            found[some] = self._reasons.index(reason)
        return found


class Filters:
    """Decides which pairs are trained on; `dropped` counts the others by the first reason that
    applies.

    A pair that shares a text with one of `held` is dropped as held out: other translations of a
    source leak into validation.

    Attributes:
        sides: the sides of pairs of which it needs the hashes: none, the source or both.
    """

    def __init__(self, data: DataConfig, held: list[Pair]) -> None:
        self._data, self._reasons = data, reasons_of(data)
        self.dropped = dict.fromkeys(self._reasons[1:], 0)
        scored = {name: evaluated(data, name) for name in ("valid", "test")}
        if data.drop_validation:
            held = [*held, *chain.from_iterable(scored.values())]
            scored = {}
        self._leaks = [_Leak(name, pairs) for name, pairs in scored.items() if pairs]
        self.sides = 2 if held else sides_of(data)
        # Hashes of the sources, and of the targets.
        self._held = [np.sort(hashes(texts)) for texts in zip(*changed(held, data.replace))]

    def settle(
        self, unfit: np.ndarray, hashes: np.ndarray, near: np.ndarray, repeated: np.ndarray
    ) -> np.ndarray:
        """The reason of each pair, as its place in `reasons_of`, once the others are known.

        Args:
            unfit: by the pair itself, see `Unfit`.
            hashes: see `hashes_of_pairs`.
            near: which are near duplicates of earlier ones.
            repeated: which equal an earlier one that is not unfit.
        """
        found = unfit.copy()
        for side, held in zip(hashes[1:], self._held):
            found[_among(side, held)] = self._reasons.index("held_out")
        if near.any():
            found[near & (found == 0)] = self._reasons.index("near_duplicates")
        for leak in self._leaks:
            leak.look(*hashes[:2, found == 0])
        if self._data.drop_duplicates:
            found[repeated & (found == 0)] = self._reasons.index("duplicate")
        for place, count in enumerate(np.bincount(found, minlength=len(self._reasons)).tolist()):
            if place:
                self.dropped[self._reasons[place]] += count
        return found

    def leaks(self) -> list[str]:
        """What to report of validation and test pairs that are trained on."""
        return [*filter(None, map(str, self._leaks))]


def sides_of(data: DataConfig) -> int:
    """The sides of pairs whose hashes `Filters` needs."""
    return 2 if data.held_out or data.drop_validation else int(bool(data.valid or data.test))


def evaluated(data: DataConfig, name: str) -> list[Pair]:
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
            f"sources: scores may be too good; {DROPPED}"
        )
        return report if sources else ""


def _among(found: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether each hash is among the known ones, which are sorted and not empty."""
    return known.take(np.searchsorted(known, found), mode="clip") == found


class Seen:
    """A set of 64-bit hashes at little more than 8 bytes each.

    Each range of hashes is a list of sorted arrays, each at least twice as long as the next, merged
    as they grow. One range is merged at a time, so little is in memory twice.
    """

    def __init__(self) -> None:
        self._ranges: list[list[np.ndarray]] = [[] for _ in range(RANGES)]

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Add the hashes; return whether each was new (of equal ones, the first is)."""
        ordered, places = np.unique(hashes, return_index=True)
        unknown = np.ones(len(ordered), bool)
        starts = np.arange(RANGES, dtype=np.uint64) << np.uint64(64 - RANGES.bit_length() + 1)
        cuts = np.searchsorted(ordered, starts).tolist()
        for runs, start, stop in zip(self._ranges, cuts, [*cuts[1:], len(ordered)]):
            inside, fresh = ordered[start:stop], unknown[start:stop]
            for run in runs:
                fresh &= ~_among(inside, run)
            if fresh.any():
                runs.append(inside[fresh])
            while len(runs) > 1 and len(runs[-2]) < 2 * len(runs[-1]):
                runs.append(np.concatenate([runs.pop(), runs.pop()]))
                runs[-1].sort(kind="stable")
        new = np.zeros(len(hashes), bool)
        new[places[unknown]] = True
        return new
