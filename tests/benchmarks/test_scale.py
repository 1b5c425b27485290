"""The benchmark of many ranks, in miniature: each example comes once, and arithmetic is right."""

import pytest
import scale

from transduct.data import batching
from transduct.data.corpus import Corpus


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_each_example_comes_once_while_ranks_come_and_go(monkeypatch, ranks):
    monkeypatch.setattr(batching, "WHOLE", 5000)
    monkeypatch.setattr(batching, "PARTS", 2)
    monkeypatch.setattr(batching, "PART", 1000)
    found = scale.simulate(10_000, ranks)
    assert (found.examples, found.ranks, found.windows, found.seen_once) == (10_000, ranks, 5, True)


def test_an_example_that_comes_twice_is_noticed(monkeypatch):
    whole = scale._shared_out
    monkeypatch.setattr(scale, "_shared_out", lambda *given: [*whole(*given)][1:])
    assert not scale.simulate(2000, 2).seen_once


def test_what_an_epoch_costs_is_arithmetic():
    """On one GPU 10 million pairs of 30 tokens take 1000 seconds at 300,000 tokens a second."""
    one, eight, *_ = scale.costs(3e5, 1e6, 0.032, 3.6)
    assert (one.sent_ms, one.efficiency) == (0.0, 1.0)
    assert one.hours == pytest.approx(1000 / 3600)
    assert one.euros == pytest.approx(1.0)
    assert eight.sent_ms == pytest.approx(1e3 * 8e6 * 7 / 8 / scale.NVLINK)
    assert eight.hours * 8 * eight.efficiency == pytest.approx(one.hours)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_generated_pairs_are_prepared_with_a_tenth_that_came_before(tmp_path, workers):
    seconds, memory = scale.prepare_pairs(tmp_path / "in", 2000, workers)
    assert seconds > 0
    assert memory > 0
    made = Corpus(tmp_path / "in" / "corpus")
    assert (len(made), made.dropped["duplicate"]) == (1_900, 100)
