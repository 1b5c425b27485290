"""Verdicts change with what was measured: where no model has learnt, and where the opposite of a
claim is planted in the measured rows."""

import copy

import pytest
from transduct_course.catalogue import NAMES, find
from transduct_course.experiment import Result, Setting

from course.tests.verdicts import DOCS, EXPECTED

GUESSES = {"accuracy": 0, "right": 0, "best": 0, "short": 0, "wrong": 1, "forced": 1, "loss": 9,
           "steps": None, "free": 0, "exact": 0, "after_right": 1}  # fmt: skip


def measured(name):
    """The rows of the full run."""
    return copy.deepcopy(Result.read(find(name), DOCS / "learn" / f"{name}.json").rows)


@pytest.mark.parametrize("name", [name for name in NAMES if find(name).learnt])
def test_of_models_that_only_guess_nothing_is_decided(name):
    rows = [
        {**row, **{key: GUESSES[key] for key in row if key in GUESSES}} for row in measured(name)
    ]
    found = Result(find(name), Setting(), rows).verdicts
    assert [verdict.answer for verdict in found] == ["not decided"]


def same_at_every_depth(rows):
    for row in rows:
        if row["variant"] == "without residuals":
            row["loss"] = 2.0


def residuals_do_not_help(rows):
    for row in rows:
        row["loss"] = 3.0 if row["depth"] > 8 else 2.0


def without_is_as_good(rows):
    for row in rows:
        row |= {"accuracy": 0.99, "loss": 0.1}


def order_is_seen(rows):
    for row in rows:
        if row["positions"] == "none":
            row |= {"right": 1.0, "same_when_shuffled": 0.1}


def order_is_not_seen_by_a_gru(rows):
    for row in rows:
        if row["positions"] == "GRU":
            row["right"] = 0.25


def only_sinusoids_look_to_the_left(rows):
    for row in rows:
        if row["task"] != "reversal":
            row["short"] = 1.0 if row["scheme"] == "sinusoidal" else 0.5


def one_hot_goes_on(rows):
    for row in rows:
        if row["scheme"] == "one_hot":
            row["by_length"] = [1.0] * len(row["by_length"])


def sinusoids_meet(rows):
    for row in rows:
        row["least"] = 0.01


def heads_are_flat(rows):
    for row in rows:
        row["falling"] = 0.1


def repeating_is_harmless(rows):
    for row in rows:
        row["loss"] = 2.0


def all_rates_work(rows):
    for row in rows:
        row |= {"rates": 2, "best": 1.0}


def nothing_learns_without_norms(rows):
    for row in rows:
        if row["norm"] == "no norm":
            row |= {"rates": 0, "best": 0.1}


@pytest.mark.parametrize(
    ("name", "part", "plant"),
    [
        ("norm", 0, nothing_learns_without_norms),
        ("norm", 1, nothing_learns_without_norms),
        ("norm", 2, all_rates_work),
        ("residual", 0, same_at_every_depth),
        ("residual", 1, residuals_do_not_help),
        ("feed_forward", 1, without_is_as_good),
        ("order", 0, order_is_seen),
        ("far_words", 0, heads_are_flat),
        ("far_words", 1, repeating_is_harmless),
        ("positions", 0, sinusoids_meet),
        ("positions", 1, only_sinusoids_look_to_the_left),
        ("positions", 2, only_sinusoids_look_to_the_left),
        ("positions", 3, only_sinusoids_look_to_the_left),
        ("positions", 4, one_hot_goes_on),
        ("order", 1, order_is_not_seen_by_a_gru),
    ],
)
def test_a_planted_opposite_changes_the_verdict(name, part, plant):
    rows, judge = measured(name), find(name).judge
    before = judge(rows)[part].answer
    plant(rows)
    assert {before, judge(rows)[part].answer} == {"holds", "does not hold"}


@pytest.mark.parametrize(
    ("better", "expected"), [("pre-trained", "holds"), ("from scratch", "does not hold")]
)
def test_what_is_better_by_more_than_seeds_differ_is_decided(better, expected):
    rows = measured("bert_pretraining")
    for row in rows:
        row |= dict.fromkeys(("accuracy", "chrf"), (row["model"] == better) + row["seed"] / 100)
    assert {verdict.answer for verdict in find("bert_pretraining").judge(rows)} == {expected}


def answers(result):
    return tuple(verdict.answer for verdict in result.verdicts)


def planted(name, key, of, to):
    """The measured result, in which one variant has the numbers of another."""
    result = Result.read(find(name), DOCS / "learn" / f"{name}.json")
    same = [each for each in (*result.experiment.keys, "seed") if each != key]
    twins = {tuple(map(row.get, same)): row for row in result.rows if row[key] == of}
    result.rows = [
        {**twins[tuple(map(row.get, same))], key: to} if row[key] == to else row
        for row in result.rows
    ]
    return result


@pytest.mark.parametrize(
    ("name", "key", "of", "to", "expected"),
    [
        ("distance", "model", "Transformer", "tanh",
         ("does not hold", "does not hold", "does not hold", "holds")),
        ("distance", "model", "GRU", "GRU + attention",
         ("holds", "holds", "does not hold", "does not hold")),
        ("distance", "model", "GRU", "LSTM, open gates", ("holds", "holds", "holds", "holds")),
        ("scale", "scaled", True, False, ("does not hold",) * 4),
        ("heads", "heads", "1", "4", ("does not hold",) * 3),
        ("mask", "model", "with the mask", "without it", ("holds", "does not hold")),
        ("cross_attention", "model", "untrained", "trained", ("not decided",)),
        ("it_the_animal", "model", "untrained", "trained", ("not decided",)),
        ("speech_heads", "heads", "all", "bands", ("not decided",)),
        ("context_vector", "model", "GRU + attention", "one vector", ("does not hold",)),
        ("contexts", "model", "with attention", "feed-forward alone", ("does not hold",)),
        ("parallel", "layer", "attention", "GRU", ("does not hold",) * 3),
        ("ladder", "rung", "average", "attention",
         ("not decided", "holds", "holds", "not decided", "holds")),
        ("warm_up", "warm_up", False, True, ("does not hold",) * 2),
    ],
)  # fmt: skip
def test_a_variant_that_equals_another_changes_the_verdict(name, key, of, to, expected):
    assert answers(planted(name, key, to, to)) == EXPECTED[name]
    assert answers(planted(name, key, of, to)) == expected


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("it_the_animal", {"it": 0.95}, ("holds", "holds", "does not hold")),
        ("it_the_animal", {"pronoun": 0.95}, ("holds", "does not hold", "holds")),
        ("attention_by_hand", {"formula": 0.5}, ("does not hold",)),
        ("shifted_targets", {"target": "pizza"}, ("does not hold",)),
        ("next_word", {"total": 1.1}, ("does not hold",)),
        ("hash_table", {"error": 0.5}, ("does not hold",)),
        ("architecture", {"own": False}, ("does not hold",)),
        ("family", {"layers": 0}, ("does not hold",)),
        (
            "teacher_forcing",
            {"after_right": 0.1, "after_wrong": 0.2, "free": 0.3},
            ("does not hold",) * 3,
        ),
    ],
)
def test_other_numbers_change_the_verdict(name, change, expected):
    result = Result.read(find(name), DOCS / "learn" / f"{name}.json")
    for row in result.rows:
        if row.get("model") != "untrained":
            row.update(change)
    assert answers(result) == expected
