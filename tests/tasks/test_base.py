"""What every task is used for: its model is loaded, scored and compared; and how the package offers
it."""

from dataclasses import replace

from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct.runs import train

SHORT = tiny_recipe(training={"steps": 2})


def test_an_unknown_task_is_refused(tmp_path):
    for name in ("base", "translator", "poetry"):
        with refusal(f"recipe: unknown task '{name}'; known are: image_classification"):
            train.train(replace(SHORT, task=name), tmp_path / "run", notify=str)
