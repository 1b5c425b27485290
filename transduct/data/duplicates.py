"""Pairs that equal an earlier one, and near duplicates, in a corpus that no memory holds.

Each part of a corpus sorts its hashes on disk. Equal hashes of all parts are then found in ranges,
so that one range is in memory at once. Of equal hashes it has one of each sorted run. Near
duplicates have a band of their signatures in common (MinHash, Broder 1997), so each band has hashes
of its own.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree

import numpy as np

from transduct.data.quality import folded, points_of
from transduct.data.samples import Pair
from transduct.data.splits import Engine, in_this_process
from transduct.errors import needing

PERMUTATIONS, BANDS = 64, 16  # of a MinHash: 4 numbers a band find most pairs alike from 0.7 on
SHINGLE = 5  # characters
MIXER = np.uint64(0x9E3779B97F4A7C15)
EQUAL, ALIKE = ("pair",), tuple(f"band_{number:02}" for number in range(BANDS))  # kinds of hashes
HASHES, ORDER, SIGNATURES = "{}.uint64", "{}.uint32", "signatures"
RUN = 1 << 19  # rows of a part whose hashes are sorted at once
RANGE = 1 << 22  # different hashes of a range, which are in memory at once
COMPARED = 1 << 16  # signatures that are compared at once


@dataclass(frozen=True)
class Hashed:
    """The hashes of a part of a corpus.

    Attributes:
        folder: of their files.
        rows: of the part.
        runs: how many hashes each sorted run of a kind has.
    """

    folder: Path
    rows: int
    runs: Mapping[str, Sequence[int]]


class Hashes:
    """Writes the hashes of a part of a corpus to files of a folder, with their rows, in sorted
    runs; and the signatures, if near duplicates are to be found."""

    def __init__(self, folder: Path, near: bool) -> None:
        self.folder, self.near, self._rows, self._sorted = folder, near, 0, 0
        self._runs: dict[str, list[int]] = defaultdict(list)
        self._waiting: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)

    def add(self, pairs: Sequence[Pair], hashes: np.ndarray, fit: np.ndarray) -> None:
        """Add the next pairs of the part, with the hash of each; only those that are fit are
        compared with equal ones."""
        rows = np.arange(self._rows, self._rows + len(pairs), dtype=np.uint32)
        self._waiting[EQUAL[0]].append((hashes[fit], rows[fit]))
        if self.near:
            signatures = signatures_of(pairs)
            with (self.folder / SIGNATURES).open("ab") as file:
                file.write(signatures.data)
            bands = signatures.view(np.uint64).reshape(len(pairs), BANDS, 2)
            keys = bands[:, :, 0] * MIXER + bands[:, :, 1]
            for name, column in zip(ALIKE, keys.T):
                self._waiting[name].append((column, rows))
        self._rows += len(pairs)
        if self._rows - self._sorted >= RUN:
            self._sort()

    def finished(self) -> Hashed:
        """What was written."""
        self._sort()
        return Hashed(self.folder, self._rows, dict(self._runs))

    def _sort(self) -> None:
        for name, waiting in self._waiting.items():
            run, rows = map(np.concatenate, zip(*waiting))
            order = np.argsort(run, kind="stable")
            for file, column in ((HASHES, run), (ORDER, rows)):
                with (self.folder / file.format(name)).open("ab") as stream:
                    stream.write(column[order].data)
            self._runs[name].append(len(run))
        self._waiting.clear()
        self._sorted = self._rows


def signatures_of(pairs: Sequence[Pair]) -> np.ndarray:
    """The MinHash of each pair's shingles: runs of characters of both texts, up to case and white
    space."""
    with needing("filters", "rensa"):
        from rensa import RMinHash

    filled = (text.ljust(SHINGLE, "\0") for text in ("\n".join(map(folded, p)) for p in pairs))
    points, starts = points_of([*filled])
    runs = np.zeros(len(points), np.uint64)
    for place in range(SHINGLE):
        runs = runs * MIXER + np.append(points[place:], np.zeros(place, np.uint32))
    own = np.ones(len(points), bool)  # runs that do not go on into the next text
    for place in range(1, SHINGLE):
        own[starts[1:] - place] = False
    rows = starts - (SHINGLE - 1) * np.arange(len(starts))
    digests = RMinHash.digest_matrix_from_flat_token_hashes(
        runs[own] * MIXER, rows.astype(np.uint64), num_perm=PERMUTATIONS, seed=1
    )
    return np.array(digests.to_rows(), np.uint32).reshape(len(pairs), PERMUTATIONS)


class FindRepeated:
    """Finds the rows of a range of hashes that equal an earlier one, in a file for each range.

    Args:
        parts: all parts in order; rows are numbered through them all.
        ranges: of each kind of hash, all of the same size.
        similarity: rows are compared by this share of their signatures too, with the first row of
            an equal hash; 0 does not.
    """

    def __init__(
        self, parts: Sequence[Hashed], folder: Path, ranges: int, similarity: float
    ) -> None:
        self.parts, self.folder, self.ranges, self.similarity = parts, folder, ranges, similarity
        self._starts = np.cumsum([0, *(part.rows for part in parts)])

    def __call__(self, about: tuple[str, int]) -> None:
        """Find those of a kind of hashes, and of the range of this number."""
        kind, number = about
        hashes, firsts = self._firsts(kind, number)
        with (self.folder / f"{kind}_{number}").open("wb") as file:
            for run, rows in self._runs(kind, number):
                earliest = firsts[np.searchsorted(hashes, run)]
                later, earliest = rows[rows != earliest], earliest[rows != earliest]
                if self.similarity:
                    later = later[self._similar(later, earliest)]
                file.write(later.data)

    def _firsts(self, kind: str, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The hashes of a range, each once, and the first row of each. Of a run only the first of
        equals is in memory, for millions of pairs may be equal."""
        found, firsts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for run, rows in self._runs(kind, number):
            hashes, places = np.unique(run, return_index=True)
            found.append(hashes)
            firsts.append(rows[places])
        hashes, places = np.unique(np.concatenate(found), return_index=True)
        return hashes, np.concatenate(firsts)[places]

    def _runs(self, kind: str, number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The hashes of a range in each sorted run, and their rows; the earliest of equals is the
        first."""
        for first, part in zip(self._starts, self.parts):
            start = 0
            for count in part.runs.get(kind, ()):
                if count:
                    files = [part.folder / name.format(kind) for name in (HASHES, ORDER)]
                    run = np.memmap(files[0], np.uint64, "r", 8 * start, count)
                    inside = self._inside(run, number)
                    rows = np.memmap(files[1], np.uint32, "r", 4 * start, count)
                    yield np.array(run[inside]), rows[inside].astype(np.int64) + first
                start += count

    def _inside(self, hashes: np.ndarray, number: int) -> slice:
        """Where the hashes of a range are among sorted ones."""
        step, last = 2**64 // self.ranges, number + 1 == self.ranges
        start = np.searchsorted(hashes, np.uint64(number * step))
        stop = len(hashes) if last else np.searchsorted(hashes, np.uint64((number + 1) * step))
        return slice(int(start), int(stop))

    def _similar(self, later: np.ndarray, earliest: np.ndarray) -> np.ndarray:
        similar = np.zeros(len(later), bool)
        for start in range(0, len(later), COMPARED):
            some = slice(start, start + COMPARED)
            one, other = self._signatures(later[some]), self._signatures(earliest[some])
            similar[some] = (one == other).mean(1) >= self.similarity
        return similar

    def _signatures(self, rows: np.ndarray) -> np.ndarray:
        found = np.empty((len(rows), PERMUTATIONS), np.uint32)
        of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(of).tolist():
            part, here = self.parts[number], of == number
            shape = part.rows, PERMUTATIONS
            signatures = np.memmap(part.folder / SIGNATURES, np.uint32, "r", shape=shape)
            found[here] = signatures[rows[here] - self._starts[number]]
        return found


def repeated(
    parts: Sequence[Hashed], folder: Path, engine: Engine, similarity: float = 0.0
) -> np.ndarray:
    """Whether each row of all parts equals an earlier one, or is so similar to one. They are found
    by `engine`, and kept on disk in `folder`."""
    count = sum(part.rows for part in parts)
    ranges = count // RANGE + 1
    rmtree(folder, ignore_errors=True)
    folder.mkdir()
    find = partial(FindRepeated, parts, folder, ranges, similarity)
    work = [(kind, each) for kind in (ALIKE if similarity else EQUAL) for each in range(ranges)]
    for _ in (engine if ranges > 1 else in_this_process)(find, work):
        pass
    with (folder / "found").open("wb") as file:
        for _ in range(ranges):  # a disk that is full is an error here, and a signal later
            file.write(bytes(RANGE))
    found = np.memmap(folder / "found", bool, "r+")
    for kind, number in work:
        with (folder / f"{kind}_{number}").open("rb") as file:
            while len(rows := np.fromfile(file, np.int64, RUN)):
                found[rows] = True
    return found[:count]
