"""Recipes for files alone: sizes that follow the amount of text, and models that are trained
further."""

import json

import pytest

from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct.config import Recipe
from transduct.devices import fast_precision, pick_device
from transduct.predictors.base import load
from transduct.predictors.translation import FAMILIES
from transduct.runs import train
from transduct.tasks import shortcut
from transduct.tasks.translation import TranslationTask


@pytest.mark.parametrize("pairs, size", [(5, "tiny"), (6, "small"), (20, "small"), (21, "base")])
def test_sizes_follow_the_amount_of_text(tmp_path, monkeypatch, pairs, size):
    table = [
        (5, ("tiny", 10, 0.3, 50)),
        (20, ("small", 200, 0.2, 60)),
        (None, ("base", 3000, 0.1, 70)),
    ]
    monkeypatch.setattr(shortcut, "SHORTCUT_SIZES", table)
    (tmp_path / "a").write_text("x\n" * pairs)
    said, file = [], str(tmp_path / "a")
    tree = shortcut.file_recipe({"source": [file], "target": [file]}, said.append, {})
    chosen = (
        tree["model"]["size"],
        tree["training"]["steps"],
        tree["model"]["dropout"],
        tree["tokenizer"]["size"],
    )
    assert chosen == next(choice for _, choice in table if choice[0] == size)
    steps, vocabulary = tree["training"]["steps"], tree["tokenizer"]["size"]
    precision = tree["training"]["precision"]
    assert precision == fast_precision(pick_device("auto"))
    chosen = (
        f"model size {size}, {vocabulary} subwords, {steps:,} steps, {precision}; "
        f"{pairs // 10} pairs held out"
    )
    expected = f"{pairs} pairs; defaults for that many: {chosen}"
    assert said == [expected]
    TranslationTask(Recipe(**tree), tmp_path, str)


@pytest.mark.parametrize(
    "size, rate, dropout",
    [("tiny", 0.002, 0.3), ("small", 0.0007, 0.1), ("base", 0.0007, 0.1), ("big", 0.0007, None)],
)
def test_rate_and_dropout_are_those_of_the_size_that_is_asked_for(tmp_path, size, rate, dropout):
    (tmp_path / "a").write_text("x\n" * 400)
    said, file = [], str(tmp_path / "a")
    tree = shortcut.file_recipe(
        {"source": [file], "target": [file]}, said.append, {"model": {"size": size}}
    )
    assert (tree["model"]["size"], tree["model"].get("dropout")) == (size, dropout)
    assert tree["training"]["learning_rate"] == rate
    assert f"model size {size}, 2,000 subwords, 2,000 steps" in said[0]


def test_at_most_a_thousand_pairs_are_held_out_of_files(tmp_path):
    (tmp_path / "a").write_text("x\n" * 20_000)
    file = str(tmp_path / "a")
    assert (
        shortcut.file_recipe({"source": [file], "target": [file]}, str, {})["data"]["held_out"]
        == 1000
    )


def test_the_real_table_is_in_order_and_names_sizes_that_exist():
    most = [limit for limit, _ in shortcut.SHORTCUT_SIZES]
    assert most[-1] is None
    assert most[:-1] == sorted(most[:-1])
    assert {choice[0] for _, choice in shortcut.SHORTCUT_SIZES} <= FAMILIES[
        "transformer"
    ].sizes.keys()


def test_unequal_numbers_of_files_are_refused(tmp_path):
    given = {"source": ["a", "b"], "target": ["c"]}
    with refusal("found 2 source and 1 target files; give as many of each"):
        shortcut.file_recipe(given, str, {})


def files_of(folder, pairs=30):
    """Two files of `pairs` lines."""
    for name in ("source", "target"):
        (folder / name).write_text("".join(f"a b {number % 7}\n" for number in range(pairs)))
    return {name: str(folder / name) for name in ("source", "target")}


@pytest.mark.parametrize(
    "asked, validated",
    [
        ({}, True),
        ({"data": {"held_out": 0}}, False),
        ({"data": {"held_out": "x"}}, True),
        ({"data": {"valid": {}}}, True),
    ],
)
def test_the_checkpoint_is_chosen_by_validations_where_there_are_any(tmp_path, asked, validated):
    training = shortcut.file_recipe(files_of(tmp_path), str, asked)["training"]
    assert training.get("best") == ("chrf" if validated else None)


def test_with_too_little_text_to_hold_out_the_last_checkpoint_is_taken(tmp_path):
    tree = shortcut.file_recipe(files_of(tmp_path, 9), str, {})
    assert tree["data"]["held_out"] == 0
    assert "best" not in tree["training"]


@pytest.fixture(scope="module", params=[True, False], ids=["one vocabulary", "two"])
def begun(request, tmp_path_factory):
    """A trained model that differs from what files alone would choose in everything that must be
    kept."""
    replace = [{"side": "both", "pattern": "z", "by": "y"}]
    recipe = tiny_recipe(
        data={"max_length": 50, "replace": replace, "backwards": True, "metrics": ["chrf"]},
        tokenizer={"shared": request.param},
        model={"activation": "gelu", "norm": "post"},
        decoding={"length_penalty": 0.6},
        training={"steps": 1},
    )
    return train.train(recipe, tmp_path_factory.mktemp("begun") / "run", notify=str)


def test_a_model_is_trained_further_by_naming_it(tmp_path, begun):
    said = []
    overrides = [f"model.start_from={begun}", "training.steps=1", "data.workers=0"]
    recipe = train.file_recipe(files_of(tmp_path), overrides, said.append)
    assert f"the model and the vocabulary of {begun}, 1 steps" in said[0]
    further = load(train.train(recipe, tmp_path / "run", notify=said.append))
    before, after = (
        json.loads((path / "config.json").read_text())
        for path in (begun, tmp_path / "run" / "model")
    )
    assert after == before | {"decoding": after["decoding"]}
    assert after["decoding"] | {"expansion": 0.0} == before["decoding"] | {"expansion": 0.0}
    assert further.source_tokenizer.digest == load(begun).source_tokenizer.digest
    assert any("weights taken" in line for line in said)


def test_a_model_is_trained_further_in_fewer_steps_at_a_lower_rate(tmp_path, begun):
    given = files_of(tmp_path)
    new, further = (
        shortcut.file_recipe(given, str, {"model": model})["training"]
        for model in ({}, {"start_from": str(begun)})
    )
    assert further["steps"] == new["steps"] // 5
    assert further["learning_rate"] < new["learning_rate"] / 5
    assert further["validate_every"] == further["steps"] // 10


def test_a_model_with_a_shortlist_is_trained_further_without(tmp_path, monkeypatch):
    held = {
        "format": 1,
        "task": "translation",
        "model": {},
        "decoding": {"beam": 3, "shortlist": True},
    }
    (tmp_path / "config.json").write_text(json.dumps(held))
    monkeypatch.setenv("HOME", str(tmp_path))
    tree = shortcut.file_recipe(files_of(tmp_path), str, {"model": {"start_from": "~"}})
    assert tree["decoding"] == {
        "beam": 3,
        "shortlist": False,
        "expansion": 0.0,
    }  # measured on the new text


def test_a_model_keeps_its_size(tmp_path, begun):
    asked = {"model": {"start_from": str(begun), "size": "base"}}
    with refusal(r"model\.size is for a new model; leave it or model\.start_from out"):
        shortcut.file_recipe(files_of(tmp_path), str, asked)


def test_what_is_no_translation_model_changes_nothing(tmp_path):
    given, expected = files_of(tmp_path), shortcut.file_recipe(files_of(tmp_path), str, {})
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text(
        '{"format": 1, "task": "masked_language_modeling", "model": {}}'
    )
    for start in ("bert", "nothing"):
        assert (
            shortcut.file_recipe(given, str, {"model": {"start_from": str(tmp_path / start)}})
            == expected
        )
