"""What every predictor of one model loads alike; how each answers stands in its own file."""

import json
from dataclasses import fields, is_dataclass

import pytest
import torch

from tests.families import RECIPES, in_folder
from transduct.data.tokenizer import TokenizerConfig, train_tokenizer
from transduct.errors import TransductError
from transduct.predictors.base import TASKS, imported
from transduct.predictors.one_model import OneModel, TextModel, three_of
from transduct.runs import train

LABELLED = {  # where `config.json` lists the labels of a task
    "sequence": ("answers", "labels"),
    "pictures": ("pictures", "labels"),
}


@pytest.mark.parametrize("task", [task for task in TASKS if task != "translation"])
def test_a_predictor_names_its_family_and_what_it_is_made_of(task):
    predictor = imported(TASKS[task][0])
    assert issubclass(predictor, OneModel)
    assert all(is_dataclass(kind) for kind in predictor.sections.values())
    for size in predictor.family.sizes.values():
        assert size.keys() <= {each.name for each in fields(predictor.family.config)}


def test_tokens_are_counted_with_the_end_and_what_the_vocabulary_lacks_is_listed():
    tokenizer = train_tokenizer(["a b"], TokenizerConfig("character", 20))

    class Own(TextModel):
        predict = measured = test_set = None

    model = Own(torch.nn.Linear(1, 1), tokenizer, None)
    assert not model.model.training
    assert model.token_counts(["", "a"]) == [1, 3], "with a mark before the word"
    assert model.unknown("a") == []
    assert model.unknown("☃") == ["☃"]


@pytest.mark.parametrize("name", LABELLED)
def test_labels_of_another_model_are_refused(name, tmp_path):
    train.train(in_folder(RECIPES[name], tmp_path), tmp_path / "run", notify=str)
    file = tmp_path / "run" / "model" / "config.json"
    config, (section, key) = json.loads(file.read_text()), LABELLED[name]
    config[section][key].append("another")
    file.write_text(json.dumps(config))
    count = len(config[section][key])
    with pytest.raises(TransductError) as caught:
        imported(TASKS[config["task"]][0]).load(file.parent, config, torch.device("cpu"), "float32")
    assert str(caught.value) == (
        f"{file}: names {count} labels, its model tells {count - 1} apart; they do not belong "
        "together: copy the model again"
    )


@pytest.mark.parametrize(
    ("count", "numbers"), [(0, []), (1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (10, [0, 3, 6])]
)
def test_three_examples_are_shown_if_there_are_as_many(count, numbers):
    assert list(three_of(count)) == numbers
