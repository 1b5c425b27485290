"""Equal and similar pairs are found as plain Python would find them, whatever fits into memory."""

import random
import tracemalloc

import numpy as np
import pytest

from transduct.data import duplicates
from transduct.data.duplicates import FindRepeated, Hashes, repeated
from transduct.data.filters import hashes_of_rows
from transduct.data.splits import in_this_process


@pytest.fixture(params=[False, True], ids=["in memory", "on disk"])
def on_disk(request, monkeypatch):
    """Whether runs, ranges and comparisons are so small that all has many of them."""
    for name, size in {"RUN": 10, "RANGE": 20, "COMPARED": 3}.items() if request.param else ():
        monkeypatch.setattr(duplicates, name, size)
    return request.param


def found_in(chunks, folder, similarity=0.0, unfit=()):
    """Which pairs are found, each chunk being a part; the third is without pairs."""
    parts = []
    for number, pairs in enumerate([*chunks[:2], [], *chunks[2:]]):
        (folder / str(number)).mkdir(parents=True)
        written = Hashes(folder / str(number), similarity > 0)
        for start in range(0, len(pairs), 4):
            some = pairs[start : start + 4]
            fit = np.array([pair not in unfit for pair in some])
            written.add(some, hashes_of_rows(some), fit)
        parts.append(written.finished())
    return repeated(parts, folder / "found", in_this_process, similarity).tolist()


def cut(pairs, size):
    return [pairs[at : at + size] for at in range(0, len(pairs), size)]


@pytest.mark.usefixtures("on_disk")
def test_equal_pairs_are_those_that_plain_python_finds(tmp_path):
    draw = random.Random(1)
    pairs = [(f"a {draw.randrange(99)}", "b") for _ in range(200)]
    unfit = {pairs[3], pairs[50]}
    expected = [pair in pairs[:place] and pair not in unfit for place, pair in enumerate(pairs)]
    assert 50 < sum(expected) < 150
    for size in (30, 200):
        assert found_in(cut(pairs, size), tmp_path / str(size), unfit=unfit) == expected
    assert found_in([], tmp_path / "none") == []


def test_near_duplicates_of_earlier_pairs_are_found_whatever_the_parts(tmp_path, on_disk):
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghij", k=6)) for _ in range(2020)]
    pairs = [(" ".join(words[i * 20 : i * 20 + 20]), f"text {i} of many") for i in range(100)]
    pairs += [(one.replace(words[i * 20 + 10], "new"), two) for i, (one, two) in enumerate(pairs)]
    pairs += [pairs[7], (" ".join(words[2000:2020]), "other words")]
    expected = [*[False] * 100, *[True] * 101, False]
    sizes, inside = [], FindRepeated._inside

    def counted(self, hashes, number):
        found = inside(self, hashes, number)
        sizes.append(found.stop - found.start)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FindRepeated, "_inside", counted)
        assert found_in([pairs], tmp_path / "a", 0.7) == expected
    assert max(sizes) < (12 if on_disk else 203)  # hashes that are in memory of one run
    assert found_in(cut(pairs, 7), tmp_path / "b", 0.7) == expected
    assert found_in([pairs], tmp_path / "c", 1.0) == [*[False] * 200, True, False]
    short = [("a", "b"), ("A ", "b"), ("a", "c"), ("", "")]
    assert found_in([short], tmp_path / "d", 0.8) == [False, True, False, False]


def test_a_range_that_is_left_out_would_be_seen(tmp_path, monkeypatch):
    """A control: all are needed for the whole answer."""
    monkeypatch.setattr(duplicates, "RANGE", 20)
    pairs = [(f"a {number % 50}", "b") for number in range(100)]
    assert sum(found_in([pairs], tmp_path / "a")) == 50
    inside = FindRepeated._inside

    def some(self, hashes, number):
        return slice(0) if number == 2 else inside(self, hashes, number)

    monkeypatch.setattr(FindRepeated, "_inside", some)
    assert 0 < sum(found_in([pairs], tmp_path / "b")) < 50


def test_of_many_equal_pairs_few_are_in_memory(tmp_path, monkeypatch):
    """A range has all of them, which are equal; memory is that of a run. With one run for all it is
    that of all: the control."""
    count, peaks = 100_000, []
    hashes = np.full(count, 7, np.uint64)
    for run in (1_000, count):
        monkeypatch.setattr(duplicates, "RUN", run)
        (tmp_path / str(run) / "out").mkdir(parents=True)
        written = Hashes(tmp_path / str(run), False)
        for start in range(0, count, 500):
            some = hashes[start : start + 500]
            written.add([("a", "b")] * len(some), some, np.ones(len(some), bool))
        find = FindRepeated([written.finished()], tmp_path / str(run) / "out", 1, 0.0)
        tracemalloc.start()
        find(("pair", 0))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        found = np.fromfile(tmp_path / str(run) / "out" / "pair_0", np.int64)
        assert found.tolist() == [*range(1, count)]
    assert peaks[0] < 2 * count < 8 * count < peaks[1]
