"""The order of data is a pure function that loses nothing, repeats nothing and fills its
batches."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from itertools import combinations, islice

import numpy as np
import pytest

from tests.refusals import refusal
from transduct.data import batching
from transduct.data.batching import (
    load,
    naming_killed_workers,
    philox,
    plan,
    random_of,
    windows,
)
from transduct.errors import TrainingFailed, TransductError
from transduct.segments import Filler

RANDOM = np.random.default_rng(1)
# Sentence lengths as corpora have them: log-normal, about 25 tokens, both sides alike.
SOURCE = np.clip(np.exp(RANDOM.normal(3.1, 0.55, 20_000)), 1, 200)
LENGTHS = np.stack((SOURCE, np.clip(SOURCE * RANDOM.normal(1.1, 0.2, 20_000), 1, 250)), 1).astype(
    np.int32
)
FEW = LENGTHS[:500]


def same(one, other):
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other))


def counts(batches, size=500):
    return np.bincount(np.concatenate(batches), minlength=size)


def fuller_side(batch, lengths):
    return lengths[batch].sum(0).max()


def test_a_plan_depends_on_its_arguments_alone():
    first = plan(FEW, 1, 2, 1000)
    assert same(first, plan(FEW.copy(), 1, 2, 1000))
    assert not same(first, plan(FEW, 1, 3, 1000))
    assert not same(first, plan(FEW, 2, 2, 1000))


def test_seeds_below_zero_are_seeds_like_others():
    plans = [
        [batch.tolist() for batch in plan(np.ones(50, int), seed, 0, 8)]
        for seed in (-1, -2, 2**63, 1, -1)
    ]
    assert plans[0] == plans[4]
    assert all(one != other for one, other in combinations(plans[:4], 2))
    # as it always was
    drawn = np.random.Generator(np.random.Philox(key=[7, 3])).integers(1 << 60, size=9)
    assert np.random.Generator(philox(7, 3)).integers(1 << 60, size=9).tolist() == drawn.tolist()


def test_what_is_drawn_for_an_example_depends_on_all_its_numbers_alone():
    drawn = {
        key: random_of(*key).random()
        for key in [(1, 2, 3), (1, 2, 4), (1, 3, 2), (2, 1, 3), (1, 2, 3, 0)]
    }
    assert len({*drawn.values()}) == len(drawn)
    assert all(random_of(*map(np.int64, key)).random() == value for key, value in drawn.items())


@pytest.mark.parametrize("window", [1, 7, 100, 500, 10_000])
@pytest.mark.parametrize("budget", [1, 60, 1000, 10**9])
def test_every_example_comes_exactly_once_and_the_budget_holds(budget, window, monkeypatch):
    monkeypatch.setattr(batching, "SORTED", window)
    batches = plan(FEW, 1, 0, budget)
    assert (counts(batches) == 1).all()
    for batch in batches:
        assert len(batch) == 1 or fuller_side(batch, FEW) <= budget


def test_a_batch_does_not_cross_a_window(monkeypatch):
    whole = plan(FEW, 1, 0, 10**9)
    monkeypatch.setattr(batching, "SORTED", 200)
    windows = plan(FEW, 1, 0, 10**9)
    assert [len(batch) for batch in whole] == [500]
    assert sorted(len(batch) for batch in windows) == [100, 200, 200]


def test_a_window_holds_examples_from_everywhere(monkeypatch):
    monkeypatch.setattr(batching, "SORTED", 100)
    windows = plan(FEW, 1, 0, 10**9)
    # of 500: neighbours in a file are often alike
    assert all(np.ptp(batch) > 400 for batch in windows)


def test_budgets_are_used_and_lengths_within_a_batch_are_alike():
    batches = plan(LENGTHS, 1, 0, 4096)
    used = sum(fuller_side(batch, LENGTHS) for batch in batches) / (4096 * len(batches))
    assert used > 0.95
    padded = sum(len(batch) * LENGTHS[batch].max(0).sum() for batch in batches)
    assert LENGTHS.sum() / padded > 0.85


def test_long_and_short_batches_come_in_random_order():
    batches = plan(LENGTHS, 1, 0, 4096)
    lengths = np.array([LENGTHS[batch].mean() for batch in batches])
    assert abs(np.corrcoef(lengths, np.arange(len(batches)))[0, 1]) < 0.2


def test_epochs_put_other_examples_together():
    mates = [
        {frozenset(batch.tolist()) for batch in plan(LENGTHS, 1, epoch, 4096)} for epoch in (0, 1)
    ]
    # the shortest sentences always meet each other
    assert len(mates[0] & mates[1]) < len(mates[0]) / 4


def test_one_side_may_be_a_list_of_lengths():
    lengths = [3, 9, 4, 7, 5]
    found, expected = plan(lengths, 1, 0, 12), plan(np.array(lengths)[:, None], 1, 0, 12)
    assert [batch.tolist() for batch in found] == [batch.tolist() for batch in expected]
    assert sorted(i for batch in found for i in batch) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sides", [1, 2, 3])
def test_any_number_of_sides_counts(sides):
    lengths = np.random.default_rng(sides).integers(0, 30, (200, sides))
    batches = plan(lengths, 1, 0, 100)
    assert (counts(batches, 200) == 1).all()
    assert max(fuller_side(batch, lengths) for batch in batches) <= 100


def test_nothing_to_plan_is_no_batch():
    assert plan(FEW[:0], 1, 0, 100) == []


def test_a_batch_may_be_as_large_as_the_budget():
    assert [len(batch) for batch in plan([5] * 8, 1, 0, 10)] == [2] * 4


def test_copies_come_as_often_as_their_weight_says():
    weights = [(0, 100, 2.0), (100, 300, 1.0), (300, 500, 0.5)]
    found = [counts(plan(FEW, 1, epoch, 1000, weights)) for epoch in range(20)]
    for times in found:
        assert (times[:100] == 2).all()
        assert (times[100:300] == 1).all()
        assert set(times[300:]) == {0, 1}
    shares = np.mean(found, 0)[300:]
    assert 0.45 < shares.mean() < 0.55
    assert len({tuple(times[300:]) for times in found}) == 20  # drawn anew each epoch
    assert same(plan(FEW, 1, 3, 1000, weights), plan(FEW, 1, 3, 1000, weights))


def test_a_fraction_adds_to_the_whole_copies():
    times = np.mean([counts(plan(FEW, 1, epoch, 1000, [(0, 500, 2.25)])) for epoch in range(20)], 0)
    assert times.min() >= 2
    assert 2.2 < times.mean() < 2.3


def test_examples_without_a_weight_come_once():
    times = counts(plan(FEW, 1, 0, 1000, [(100, 200, 3.0)]))
    assert (times == np.repeat([1, 3, 1], [100, 100, 300])).all()


@pytest.mark.parametrize("budget", [0, -5])
def test_a_budget_that_holds_nothing_is_refused(budget):
    with pytest.raises(
        ValueError, match=f"the token budget of a batch is {budget}, must be at least 1"
    ):
        plan(FEW, 1, 0, budget)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("start", "a_step"), [(0, 1), (0, 4), (8, 4), (10, 5), (0, 1000)])
def test_ranks_share_out_the_batches_of_each_step(start, a_step, world):
    """None is lost or repeated, and all ranks compute equally often."""
    batches = plan(FEW, 1, 0, 1000)
    of_ranks = [[*load(batches, list, start, rank, world, 0, a_step)] for rank in range(world)]
    assert len({len(made) for made in of_ranks}) == 1
    turns, taken = zip(*of_ranks), []
    for first in range(start, len(batches), a_step):
        left = min(a_step, len(batches) - first)
        step = [made for turn in islice(turns, -(-left // world)) for made in turn]
        assert all(isinstance(made, Filler) for made in step[left:])
        assert [made.batch for made in step[left:]] == [list(batches[first][:1])] * len(step[left:])
        taken += step[:left]
    assert same(taken, batches[start:])


@pytest.fixture
def small_windows(monkeypatch):
    """Examples of 500 in windows of three parts of 40 or more."""
    for name, size in (("WHOLE", 100), ("PARTS", 3), ("PART", 40)):
        monkeypatch.setattr(batching, name, size)


@pytest.mark.parametrize("weights", [(), [(30, 170, 2.0)]])
def test_the_windows_of_an_epoch_hold_every_example_once(small_windows, weights):
    of = windows(500)
    assert (windows(100), of) == (1, 4)
    planned = [plan(FEW, 1, 0, 1000, weights, window=(number, of)) for number in range(of)]
    seen = [counts(batches) for batches in planned]
    expected = np.ones(500, int)
    for start, stop, copies in weights:
        expected[start:stop] = copies
    assert (sum(seen) == expected).all()
    # Each mixes three parts or more, from all over the corpus, and other ones in another epoch.
    parts = [np.add.reduceat(each > 0, range(0, 500, 40)) for each in seen]
    assert all(np.count_nonzero(each) >= 3 for each in parts)
    assert all(set(each.tolist()) <= {0, 20, 40} for each in parts)
    assert any((np.diff(np.flatnonzero(each)) > 1).any() for each in parts)
    assert (counts(plan(FEW, 1, 1, 1000, weights, window=(0, of))) != seen[0]).any()


def test_a_window_reads_the_lengths_of_its_own_examples_alone(monkeypatch):
    """Lengths may be computed, or lie in a file that memory does not hold."""

    class Computed:
        def __init__(self):
            self.read = []

        def __len__(self):
            return 10**10

        def __getitem__(self, examples):
            self.read.append(examples)
            return examples % 50 + 1

    lengths = Computed()
    monkeypatch.setattr(batching, "PART", 2**12)
    batches = plan(lengths, 1, 0, 1000, added=3, window=(5, windows(10**10)))
    [read] = lengths.read
    assert sorted(read) == sorted(np.concatenate(batches))
    assert 64 * 2**12 <= len(np.unique(read)) == len(read) <= 65 * 2**12
    assert max((batch % 50 + 4).sum() for batch in batches) <= 1000


def test_up_to_a_limit_an_epoch_is_one_window_in_the_order_it_always_had():
    assert [windows(count) for count in (0, 1, 2**27, 2**27 + 1, 10**10)] == [1, 1, 1, 32, 2384]
    digest = hashlib.sha256(np.concatenate(plan(LENGTHS, 7, 3, 1000))).hexdigest()
    assert digest.startswith("a1eec4ee1380c48a")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_change_nothing(workers):
    batches = plan(FEW, 1, 0, 1000)
    made = list(load(batches, lambda batch: (os.getpid(), FEW[batch]), start=1, workers=workers))
    assert same([found for _, found in made], [FEW[batch] for batch in batches[1:]])
    assert len({process for process, _ in made} - {os.getpid()}) == workers


@pytest.mark.parametrize(("count", "elsewhere"), [(4, False), (5, True)])
def test_a_few_batches_are_not_worth_a_process(count, elsewhere):
    made_by = list(
        load([np.array([i]) for i in range(count)], lambda batch: os.getpid(), workers=1)
    )
    assert (os.getpid() not in made_by) == elsewhere


def test_an_epoch_that_is_over_gives_nothing():
    batches = plan(FEW, 1, 0, 1000)
    assert list(load(batches, lambda batch: batch, start=len(batches), workers=2)) == []


@pytest.mark.parametrize("between", [0.0, 0.5])
def test_a_worker_that_is_killed_is_named_with_the_way_to_go_on(between):
    """While a batch is awaited, or in the middle of something else."""
    batches = [np.array([i]) for i in range(99)]
    made = load(batches, lambda batch: os.getpid(), workers=1)
    worker = next(made)

    def go_on():
        os.kill(worker, signal.SIGKILL)
        time.sleep(between)
        list(made)

    named = r"was killed, .* go on with --resume, and with a smaller data.workers"
    with pytest.raises(TrainingFailed, match=named), naming_killed_workers():
        go_on()


def test_another_error_of_the_loader_passes():
    def fail(batch):
        raise RuntimeError("not so")

    with pytest.raises(RuntimeError, match="not so"), naming_killed_workers():
        list(load([np.array([0])], fail))


def test_a_worker_whose_parent_is_gone_when_it_begins_ends(monkeypatch):
    ended, moved = [], []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(os, "setpgid", lambda *where: moved.append(where))
    batching._start_worker(os.getppid(), 0)
    batching._start_worker(None, 0)
    assert (ended, moved) == ([], [(0, 0)] * 2)
    batching._start_worker(os.getppid() + 1, 0)
    assert ended == [1]


def test_workers_of_a_parent_that_lives_give_every_batch():
    batches = [np.array([i, i + 1]) for i in range(5)]
    assert [batch.tolist() for batch in load(batches, np.copy, workers=2)] == [
        batch.tolist() for batch in batches
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_that_a_user_can_mend_comes_from_a_worker_as_it_is(workers):
    def make(batch):
        if batch[0] == 3:
            raise TransductError("a.jpg: not a picture; fix it")
        return batch

    loaded = load([np.array([i]) for i in range(5)], make, workers=workers)
    assert [next(loaded).tolist() for _ in range(3)] == [[0], [1], [2]]
    with refusal(r"^a\.jpg: not a picture; fix it$"):
        next(loaded)


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
def test_workers_may_be_begun_in_other_ways(method, tmp_path):
    """The default of Python 3.14: a server process forks them and is their parent."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import multiprocessing
import numpy as np
from transduct.data.batching import load
if __name__ == "__main__":
    multiprocessing.set_start_method("{method}")
    print(*(batch.item() for batch in load([np.array([i]) for i in range(6)], np.copy, workers=1)))
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("0 1 2 3 4 5\n", 0), done.stderr
