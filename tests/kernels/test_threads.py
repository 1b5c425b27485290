"""PyTorch's thread count is restored after all calls, and our kernels use the threads they may
use."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from transduct.kernels.threads import CORES


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def state():
    return torch.get_num_threads(), CORES.sharing, CORES.count()


def test_products_alone_keeps_pytorch_to_one_thread():
    assert state() == (2, 2, 2)
    for _ in range(2):
        with CORES.products_alone():
            assert state() == (1, 2, 2)
            with CORES.products_alone():
                assert state() == (1, 2, 2)
            assert state() == (1, 2, 2)
        assert state() == (2, 2, 2)


def test_a_part_of_products_alone_may_take_one_core():
    for _ in range(2):
        with CORES.alone():
            assert state() == (1, 1, 2)
            with CORES.products_alone(), CORES.alone():
                assert state() == (1, 1, 2)
        assert state() == (2, 2, 2)
        with CORES.products_alone():
            with CORES.alone():
                assert state() == (1, 1, 2)
            assert state() == (1, 2, 2)
        assert state() == (2, 2, 2)


def test_an_error_restores_the_thread_count():
    with pytest.raises(ZeroDivisionError), CORES.products_alone():
        raise ZeroDivisionError
    assert state() == (2, 2, 2)


def test_a_worker_keeps_to_one_core_within_products_alone():
    def work():
        with CORES.products_alone():
            return state()

    with CORES, ThreadPoolExecutor(1, initializer=CORES.work_alone) as pool:
        assert pool.submit(work).result() == (1, 1, 2)
        assert pool.submit(state).result() == (1, 1, 2)
    assert state() == (2, 2, 2)


def test_a_thread_started_meanwhile_has_as_many_threads():
    """PyTorch gives a new thread the count that was set last, by any thread."""
    found = []

    def begin():
        with CORES.products_alone():
            found.append(state())
        found.append(state())

    with CORES.products_alone():
        other = threading.Thread(target=begin)
        other.start()
        other.join()
    assert found == [(1, 2, 2), (2, 2, 2)]


def test_overlapping_calls_restore_the_thread_count():
    """The second begins while the first has set one thread, and ends after it."""
    counted = []
    first_runs, second_runs, first_is_over = (threading.Event() for _ in range(3))

    def one():
        first_runs.set()
        second_runs.wait(9)

    def other():
        second_runs.set()
        counted.append(CORES.count())
        first_is_over.wait(9)

    def call(work, ended):
        with CORES, ThreadPoolExecutor(1, initializer=CORES.work_alone) as pool:
            pool.submit(work).result()
        ended.set()

    def later():
        counted.append(torch.get_num_threads())

    threads = [threading.Thread(target=call, args=(one, first_is_over))]
    threads[0].start()
    assert first_runs.wait(9)
    threads.append(threading.Thread(target=call, args=(other, threading.Event())))
    threads[1].start()
    for thread in threads:
        thread.join()
    threads = [threading.Thread(target=later)]
    threads[0].start()
    threads[0].join()
    assert counted == [2, 2]
