"""Scores of labels and spans against numbers known from elsewhere."""

import random
from math import comb

import pytest

from tests.refusals import refusal
from transduct.evaluation.classification import (
    label_scores,
    macro_f1,
    mcnemar,
    span_scores,
    wilson_interval,
)

ANSWERS = ["a", "a", "a", "b", "b", "c"]
PREDICTIONS = ["a", "a", "b", "b", "c", "c"]


def test_accuracy_confusion_and_what_was_right():
    found = label_scores(PREDICTIONS, ANSWERS)
    assert found.scores["accuracy"] == pytest.approx(100 * 4 / 6)
    confusion = {"a": {"a": 2, "b": 1}, "b": {"b": 1, "c": 1}, "c": {"c": 1}}
    assert found.details["confusion"] == confusion
    assert found.right == [True, True, False, True, False, True]
    assert found.details["accuracy"]["interval"] == wilson_interval(4, 6)


def test_labels_come_in_order_however_many_there_are():
    predictions, answers = ([str(i % count) for i in range(500)] for count in (7, 11))
    found = label_scores(predictions, answers).details["confusion"]
    assert [*found] == sorted(map(str, range(11)))
    assert all([*row] == sorted(row) for row in found.values())
    assert sum(sum(row.values()) for row in found.values()) == 500


def test_macro_f1_is_the_mean_of_each_label_s_own():
    # precision and recall by hand: a 2/2, 2/3; b 1/2, 1/2; c 1/2, 1/1
    each = [2 * p * r / (p + r) for p, r in ((1, 2 / 3), (1 / 2, 1 / 2), (1 / 2, 1))]
    assert macro_f1(PREDICTIONS, ANSWERS) == pytest.approx(100 * sum(each) / 3)
    assert label_scores(PREDICTIONS, ANSWERS).scores["f1"] == macro_f1(PREDICTIONS, ANSWERS)
    assert macro_f1(["d"], ["a"]) == 0.0, "a label that is only predicted counts too"
    assert macro_f1(ANSWERS, ANSWERS) == 100.0


@pytest.mark.parametrize("right, count", [(8, 10), (1, 10), (436, 500), (19_999, 20_000)])
def test_wilson_s_interval_ends_where_the_share_is_just_a_95_percent_chance(right, count):
    for end in wilson_interval(right, count):
        p = end / 100
        deviation = (p * (1 - p) / count) ** 0.5
        assert abs(right / count - p) == pytest.approx(1.959964 * deviation, rel=1e-5)


def test_wilson_s_interval_stays_within_nothing_and_everything():
    assert [wilson_interval(0, count)[0] for count in range(1, 300)] == [0.0] * 299, "to the bit"
    assert [wilson_interval(count, count)[1] for count in range(1, 300)] == [100.0] * 299
    assert wilson_interval(0, 10) == pytest.approx([0.0, 27.7533], abs=1e-3)
    assert wilson_interval(10, 10) == pytest.approx([72.2467, 100.0], abs=1e-3)


def test_wilson_s_interval_holds_the_truth_about_95_times_in_100():
    random.seed(1)
    draws = [sum(random.random() < 0.9 for _ in range(200)) for _ in range(1000)]
    held = sum(low <= 90 <= high for low, high in (wilson_interval(draw, 200) for draw in draws))
    assert 930 <= held <= 970


@pytest.mark.parametrize("better, worse", [(0, 0), (1, 0), (5, 5), (9, 1), (3, 40)])
def test_mcnemar_is_the_binomial_s_two_tails(better, worse):
    ours = [True] * better + [False] * worse + [True, False, True]
    theirs = [False] * better + [True] * worse + [True, False, True]
    count, fewer = better + worse, min(better, worse)
    tail = sum(comb(count, k) for k in range(fewer + 1)) / 2**count
    assert mcnemar(ours, theirs) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar(theirs, ours) == pytest.approx(mcnemar(ours, theirs))


def test_mcnemar_of_many_does_not_overflow():
    many = [True] * 5100 + [False] * 4900
    assert mcnemar(many, [not each for each in many]) == pytest.approx(0.0466, abs=1e-4)


def test_spans_are_compared_by_their_words():
    predictions = ["the north tower", "Seoul.", "anna", "in the old kitchen", ""]
    answers = ["north tower", "seoul", "bela", "the old kitchen", "rome"]
    found = span_scores(predictions, answers)
    assert found.right == [True, True, False, False, False]
    assert found.scores["exact_match"] == pytest.approx(40)
    assert found.scores["f1"] == pytest.approx(100 * (1 + 1 + 0 + 0.8 + 0) / 5)
    assert found.details["exact_match"]["interval"] == wilson_interval(2, 5)


def test_articles_do_not_count():
    predictions = ["an apple", "The apple", "a apple", "apple an", "ant"]
    found = span_scores(predictions, ["apple"] * 4 + ["t"])
    assert found.right == [True, True, True, True, False]


def test_of_words_that_come_twice_only_as_many_are_shared():
    assert span_scores(["x x y"], ["x z"]).scores["f1"] == pytest.approx(100 * 2 / 5)
    assert span_scores(["The"], ["!"]).scores == {"exact_match": 100.0, "f1": 100.0}, (
        "both are empty"
    )


@pytest.mark.parametrize("score", [label_scores, span_scores, macro_f1, mcnemar])
def test_what_cannot_be_scored_is_said(score):
    with refusal("2 predictions but 1 answers; give one prediction for each answer"):
        score(["a", "b"], ["a"])
    with refusal("nothing to score; give at least one prediction and its answer"):
        score([], [])
