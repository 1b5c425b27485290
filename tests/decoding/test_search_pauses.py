"""Long work pauses where it may be interrupted, in every thread that shares it."""

import threading

import pytest

from transduct.decoding.search import pause, pausing
from transduct.inference.batches import parallel_map


def test_a_pause_calls_what_it_is_given_and_only_inside():
    calls = []
    pause()
    with pausing(lambda: calls.append("outer")):
        pause()
        with pausing(None):
            pause()
        pause()
    pause()
    assert calls == ["outer", "outer"]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_pause_raises_ends_the_work(workers):
    done = []

    def enough():
        if done:
            raise InterruptedError

    with pausing(enough), pytest.raises(InterruptedError):
        list(parallel_map(done.append, range(100), workers))
    assert 1 <= len(done) <= workers


def test_a_pause_is_called_in_the_threads_that_share_the_work():
    threads, together = set(), threading.Barrier(2, timeout=30)

    def work(number):
        together.wait()
        return number

    with pausing(lambda: threads.add(threading.get_ident())):
        assert list(parallel_map(work, [1, 2], 2)) == [1, 2]
    assert len(threads) == 2
    assert threading.get_ident() not in threads
