"""Intervals and p-values of drawn corpora are those of formulas, narrower with more examples, and
know chance."""

import numpy as np
import pytest

from transduct.evaluation import bootstrap
from transduct.evaluation.bootstrap import Ratio, interval, p_value
from transduct.evaluation.classification import wilson_interval


def proportion(right, count, seed=0):
    parts = np.random.default_rng(seed).permutation(np.arange(count) < right).astype(float)
    return Ratio(parts, np.ones(count))


def test_a_share_is_a_sum_over_a_sum():
    share = Ratio(np.array([1.0, 0.0, 3.0]), np.array([2.0, 5.0, 3.0]))
    assert share.score == 40.0
    assert share.resampled(np.array([2, 0, 1])) == 100 * 5 / 7
    # nothing to divide by
    assert Ratio(np.zeros(2), np.array([0.0, 1.0])).resampled(np.array([2, 0])) == 0.0


@pytest.mark.parametrize(("right", "count"), [(800, 1000), (50, 100), (990, 1000)])
def test_the_interval_of_a_proportion_is_that_of_the_formula_and_near_that_of_the_draws(
    right, count
):
    share = proportion(right, count)
    assert share.interval() == wilson_interval(right, count)
    assert share.interval() == pytest.approx(interval(share.resampled, count), abs=1.0)


def test_what_was_never_seen_may_still_be():
    assert proportion(0, 20).interval()[1] > 10
    assert proportion(20, 20).interval()[0] < 90
    words = np.full(20, 9.0)
    assert Ratio(words, words).interval() == wilson_interval(20, 20)
    assert Ratio(0 * words, words).interval() == wilson_interval(0, 20)
    assert Ratio(np.array([49.0]), np.array([50.0])).interval() == [0.0, 100.0]
    assert Ratio(np.array([60.0]), np.array([50.0])).interval() == [0.0, 120.0]


def test_the_interval_narrows_with_the_root_of_the_examples():
    few, many = (proportion(count // 2, count).interval() for count in (100, 1600))
    assert (few[1] - few[0]) / (many[1] - many[0]) == pytest.approx(4.0, rel=0.15)


def test_always_the_same_draws():
    assert proportion(30, 70).interval() == proportion(30, 70).interval()
    assert interval(lambda counts: float(counts.sum()), 7) == [7.0, 7.0]
    errors, others = (
        Ratio(np.random.default_rng(seed).random(70), np.full(70, 5.0)) for seed in (1, 2)
    )
    assert errors.interval() == errors.interval()
    assert errors.p_value(others) == errors.p_value(others)


def test_a_draw_that_deviates_just_as_much_as_was_observed_counts(monkeypatch):
    monkeypatch.setattr(bootstrap, "_resamples", lambda _: np.array([[0, 2], [1, 1], [2, 0]]))
    found = p_value(lambda counts: counts[0], lambda counts: 0.0, 2)
    assert found == (2 + 1) / (bootstrap.RESAMPLES + 1)


def test_what_is_alike_differs_by_chance_and_what_is_clearly_better_does_not():
    ours = proportion(500, 1000)
    assert ours.p_value(ours) == 1.0
    # other examples, the same score
    assert ours.p_value(Ratio(1.0 - ours.parts, ours.wholes)) == 1.0
    better = Ratio(np.maximum(ours.parts, proportion(200, 1000, 1).parts), ours.wholes)
    assert better.p_value(ours) < 1e-20
    least = 1 / (bootstrap.RESAMPLES + 1)
    assert p_value(better.resampled, ours.resampled, 1000) == pytest.approx(least)
    assert ours.p_value(proportion(505, 1000, 2)) > 0.5


def test_a_share_that_is_a_proportion_by_chance_is_compared_with_another_by_draws():
    ones, others = proportion(10, 20), Ratio(np.array([2.0, 0.0, 1.0, 3.0] * 5), np.full(20, 3.0))
    for one, other in ((ones, others), (others, ones)):
        assert one.p_value(other) == p_value(one.resampled, other.resampled, 20)


def test_a_few_examples_prove_nothing():
    assert proportion(1, 1).p_value(proportion(0, 1)) == 1.0
    assert proportion(3, 3).p_value(proportion(0, 3)) == pytest.approx(0.25)
    one, other = Ratio(np.array([1.0]), np.array([3.0])), Ratio(np.array([2.0]), np.array([3.0]))
    assert one.p_value(other) == 1.0, "all resamples of one example are alike"


def test_chance_alone_is_significant_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    random = np.random.default_rng(3)
    found = []
    for _ in range(200):
        one, other = (Ratio((random.random(80) < 0.5).astype(float), np.ones(80)) for _ in range(2))
        found.append(p_value(one.resampled, other.resampled, 80))
    assert 0.0 <= np.mean(np.array(found) <= 0.05) < 0.12
