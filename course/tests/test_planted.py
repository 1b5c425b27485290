"""Verdicts change with what was measured: where no model has learnt, and where the opposite of a
claim is planted in the measured rows."""

import copy
import re

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


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_numbers_in_every_sentence(name):
    rows = [row for row in measured(name) if row.get("seed", 1) == 1]
    for verdict in Result(find(name), Setting("quick"), rows).verdicts:
        assert "nan" not in re.split(r"\W", " ".join(verdict.because))


def test_a_quick_run_trains_the_network_that_the_chapter_on_order_judges(monkeypatch):
    tried = []
    monkeypatch.setattr(Setting, "each", lambda self, schemes: tried.extend(schemes) or iter(()))
    assert [*find("order").measure(Setting("quick"))] == []
    assert {"none", "GRU"} < {*tried}


def test_one_model_is_not_several():
    [verdict] = find("family").judge(measured("family")[:1])
    assert verdict.because.english.startswith("1 model was built from the same layers")


def test_two_chapters_judge_the_same_trainings():
    assert measured("warm_up") == measured("norm")


def answers(result):
    return tuple(verdict.answer for verdict in result.verdicts)


def planted(name, key, of, to):
    """The measured result, in which one variant has the numbers of another."""
    result = Result.read(find(name), DOCS / "learn" / f"{name}.json")
    same = [each for each in (*result.experiment.keys, "seed") if each != key]
    twins = {tuple(map(row.get, same)): row for row in result.rows if row[key] == of}
    found = ((row, twins.get(tuple(map(row.get, same)), {})) for row in result.rows)
    result.rows = [{**row, **twin, key: to} if row[key] == to else row for row, twin in found]
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
        ("speech_heads", "heads", "all", "bands", ("not decided",) * 2),
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


LEFT = {"task": "two left of the mark"}  # where a symbol two to the left is looked for
NAMED = {"holds": "holds", "no": "does not hold", "open": "not decided"}
HELP = {"accuracy": 1.0, "chrf": 1.0}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("norm", [({"norm": "no norm"}, {"rates": 0, "best": 0.1})],
         "holds holds holds holds holds"),
        ("norm", [({}, {"rates": 2, "best": 1.0})], "no no no no no"),
        ("residual", [({"variant": "without residuals"}, {"loss": 2.0})], "no holds no holds"),
        ("residual", [({}, {"loss": 2.0}), ({"depth": 32}, {"loss": 3.0})],
         "holds no holds no"),
        ("feed_forward", [({}, {"accuracy": 0.99, "loss": 0.1})], "no no no"),
        ("order", [({"positions": "none"}, {"right": 1.0, "same_when_shuffled": 0.1})], "no no"),
        ("order", [({"positions": "GRU"}, {"right": 0.25})], "holds no"),
        ("far_words", [({}, {"falling": 0.1})], "no no"),
        ("far_words", [({}, {"loss": 2.0})], "holds holds"),
        ("positions", [({}, {"least": 0.01})], "no no no no holds no"),
        ("positions", [(LEFT, {"short": 0.5}),
                       (LEFT | {"scheme": "sinusoidal"}, {"short": 1.0})],
         "holds holds holds holds holds no"),
        ("positions", [({"scheme": "one_hot"}, {"by_length": [1.0] * 6})],
         "holds no no no no no"),
        *[("bert_pretraining", [({}, dict.fromkeys(HELP, 0.0)), ({"model": better}, HELP)],
           " ".join([answer] * 4))
          for better, answer in (("pre-trained", "holds"), ("from scratch", "no"))],
        ("it_the_animal", [({"model": "trained"}, {"it": 0.95})], "holds holds no"),
        ("it_the_animal", [({"model": "trained"}, {"pronoun": 0.95})], "holds no holds"),
        ("attention_by_hand", [({}, {"formula": 0.5})], "no"),
        ("shifted_targets", [({}, {"target": "pizza"})], "no"),
        ("next_word", [({}, {"total": 1.1})], "no"),
        ("hash_table", [({}, {"error": 0.5})], "no"),
        ("architecture", [({}, {"own": False})], "no"),
        ("family", [({}, {"layers": 0})], "no"),
        ("teacher_forcing", [({}, {"after_right": 0.1, "after_wrong": 0.2, "free": 0.3})],
         "no no no"),
    ],
)  # fmt: skip
def test_other_numbers_change_the_verdict(name, changes, expected):
    rows = measured(name)
    for where, change in changes:
        for row in rows:
            if where.items() <= row.items():
                row.update(change)
    found = Result(find(name), Setting(), rows)
    assert answers(found) == tuple(NAMED[each] for each in expected.split())
    assert answers(found) != EXPECTED[name]
