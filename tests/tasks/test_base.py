"""What every task is used for: its model is loaded, scored and compared; and how the package offers
it."""

import json
from dataclasses import replace

import pytest

from tests.families import RECIPES, in_folder
from tests.pictures import BARS
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from tests.tones import PATTERN
from transduct.runs import train
from transduct.tasks.base import task_class

SHORT = tiny_recipe(training={"steps": 2})
PICTURES, BOXED = {"images": "pictures.tar"}, {"images": "pictures.tar", "boxes": "boxes.jsonl"}
SOUNDS = {"sounds": "tones.tar", "pattern": PATTERN}


def test_an_unknown_task_is_refused(tmp_path):
    for name in ("base", "translator", "poetry"):
        with refusal(f"recipe: unknown task '{name}'; known are: image_classification"):
            train.train(replace(SHORT, task=name), tmp_path / "run", notify=str)


def test_a_part_to_freeze_that_there_is_not_is_refused_before_data_are_read(tmp_path):
    recipe = tiny_recipe(
        data={"train": [{"pairs": "gone.tsv"}]}, training={"freeze": ["encodr*"], "warmup": 1}
    )
    with refusal("recipe: training.freeze names 'encodr\\*', which is no part of this model; its"):
        train.train(recipe, tmp_path / "run", notify=str)


@pytest.mark.parametrize(
    "name, source, found",
    [
        ("gpt", {}, "60 of 60 test lines of 30 characters or more"),
        ("masked tokens", {}, "60 of 60 validation lines of 30 characters or more"),
        ("pictures", PICTURES, "60 of 60 validation pictures"),
        ("image codes", PICTURES, "60 of 60 validation pictures"),
        ("text to image", PICTURES, "60 of 60 validation pictures"),
        ("scenes", BOXED, "60 of 60 validation pictures"),
        ("speech", SOUNDS, "16 of 16 validation recordings"),
    ],
)
def test_examples_to_evaluate_on_that_are_trained_on_are_counted(name, source, found, tmp_path):
    recipe = in_folder(RECIPES[name], tmp_path)
    named = [f"{BARS[i % 3]}/{i:04}.png" for i in range(60)]
    lines = [{"file": each, "boxes": [[0, 0, 9, 9]], "labels": ["bar"]} for each in named]
    (tmp_path / "boxes.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "lines.txt").write_text(
        "".join(f"line {n:02} is long enough for all\n" for n in range(60))
    )
    left = {"speech": ("test", "leave_out"), "pictures": ("hold_out", "test")}.get(name, ())
    data = {key: value for key, value in recipe.data.items() if key not in left}
    data |= {"train": [source], "valid": source} if source else {}
    said = []
    (tmp_path / "run").mkdir()
    task = task_class(recipe.task)(replace(recipe, data=data), tmp_path / "run", said.append)
    task.prepare()
    assert (
        f"warning: {found} are in training: scores may be too good; take them out of"
        in "\n".join(said)
    )
