"""Batches keep to their budget, and what is worked on side by side comes back in order."""

import threading
from random import Random

import pytest
import torch

from tests.helpers import BEGIN, END, SIZE, tiny
from transduct.inference import engine
from transduct.inference.batches import (
    answered,
    balanced_batches,
    flat,
    in_batches,
    parallel_map,
    shared_by,
    watched,
    workers_for,
)
from transduct.inference.settings import DecodingConfig
from transduct.kernels.threads import CORES


@pytest.mark.parametrize("budget", [1, 5, 7, 100])
def test_batches_are_sorted_by_length_and_keep_to_the_budget(budget):
    lengths = [3, 9, 1, 1, 4, 3, 2]
    batches = list(in_batches(lengths, budget))
    order = [number for batch in batches for number in batch]
    assert sorted(order) == list(range(7))
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    for batch, following in zip(batches, [*batches[1:], None]):
        total = sum(lengths[i] for i in batch)
        assert total <= budget or len(batch) == 1
        if following:
            assert total + lengths[following[0]] > budget, "the next would have fitted"


@pytest.mark.parametrize("workers", [1, 2])
def test_each_input_has_its_answer_whatever_the_batches(workers):
    seen, lengths = [], [3, 1, 2, 5]
    found = answered(
        lambda batch: seen.append(batch) or [10 * n for n in batch], lengths, 5, workers
    )
    assert found == [0, 10, 20, 30]
    assert len(seen) > 1
    assert all(sum(lengths[number] for number in batch) <= 5 for batch in seen)
    assert answered(list, [], 5) == []


def test_ranks_with_other_numbers_of_cores_share_the_same_batches():
    shared, lengths = [], [3, 1, 2, 5, 4, 4, 2]
    with shared_by(lambda work, batches: shared.append(batches) or [*work(batches)]):
        for workers in (1, 2, 5):
            assert answered(list, lengths, 12, workers) == [*range(7)]
    assert shared[0] == shared[1] == shared[2]
    assert balanced_batches(lengths, 12, 5) != shared[0], "the control"


def test_no_lengths_make_no_batches():
    assert list(in_batches([], 5)) == []
    assert balanced_batches([], 5, 2) == []


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_balanced_batches_give_each_worker_as_many_and_are_as_small_as_possible(workers):
    random = Random(1)
    for _ in range(200):
        lengths, budget = (
            random.choices([0, 1, 2, 5, 9, 30], k=random.randrange(40)),
            random.randrange(1, 40),
        )
        shares, batches = (
            balanced_batches(lengths, budget, workers),
            list(in_batches(lengths, budget)),
        )
        order = [number for share in shares for number in share]
        assert sorted(order) == list(range(len(lengths)))
        assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
        assert all(sum(lengths[i] for i in share) <= budget or len(share) == 1 for share in shares)
        wanted = -(-len(batches) // workers) * workers
        assert len(batches) <= len(shares) <= wanted
        largest = max((sum(lengths[i] for i in share) for share in shares), default=0)
        if workers > 1 and largest > max(lengths, default=0):
            assert len(list(in_batches(lengths, largest - 1))) > wanted, "smaller ones would do"


def test_no_worker_is_left_with_a_rest_that_fitted_into_no_share():
    lengths = [9, 8, 7, 6, 5, 4, 3, 2]
    assert [len(batch) for batch in in_batches(lengths, sum(lengths) // 2)] == [2, 4, 2]
    assert balanced_batches(lengths, 100, 2) == [[0, 1, 2], [3, 4, 5, 6, 7]]


@pytest.mark.parametrize("workers", [1, 3])
def test_parallel_map_returns_results_in_order(workers):
    threads, seen, shared = torch.get_num_threads(), set(), set()

    def work(item):
        seen.add((threading.get_ident(), torch.get_num_threads()))
        with CORES.products_alone():
            shared.add(CORES.sharing)
        return 2 * item

    assert list(parallel_map(work, range(20), workers)) == [2 * item for item in range(20)]
    alone = (threading.get_ident(), threads) in seen
    assert alone == (workers == 1)
    assert workers == 1 or {count for _, count in seen} == {1}
    assert workers == 1 or shared == {1}
    assert torch.get_num_threads() == threads


def test_few_inputs_are_one_batch_and_a_gpu_has_no_workers(monkeypatch):
    monkeypatch.setattr(CORES, "count", lambda: 4)
    cpu = torch.device("cpu")
    assert [workers_for(cpu, inputs) for inputs in (0, 1, 15, 16, 24, 100)] == [1, 1, 1, 2, 3, 4]
    assert [workers_for(cpu, 100, wanted) for wanted in (1, 2, 9)] == [1, 2, 9]
    assert workers_for(torch.device("cuda"), 100, 3) == 1


def test_an_error_of_a_worker_is_the_callers():
    with pytest.raises(ZeroDivisionError):
        list(parallel_map(lambda item: 1 // item, [1, 0, 2], 2))


def test_sequences_are_laid_end_to_end():
    tokens, segments = flat([[1, 2], [], [3]], torch.device("cpu"))
    assert tokens.tolist() == [1, 2, 3]
    assert segments.lengths.tolist() == [2, 0, 1]
    assert tokens.dtype == torch.int64
    assert SIZE > 9


def test_who_watches_is_called_as_the_inputs_of_a_search_are_done():
    calls = []
    sources = [[3, 4, END], [5, END], [6, 7, 8, END]]
    with watched(lambda more, of: calls.append((more, of))):
        engine.generate(tiny(), sources, [4] * 3, DecodingConfig(beam=1), BEGIN, END)
    engine.generate(tiny(), sources, [4] * 3, DecodingConfig(beam=1), BEGIN, END)
    assert sum(more for more, _ in calls) == 3
    assert {of for _, of in calls} == {3}
