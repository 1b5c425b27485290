"""The recipes' script goes all the way on a CPU in miniature, and its table names what fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_recipes import RECIPES, recipe_of, table

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_recipes.py"


@pytest.mark.slow
def test_the_miniature_measures_compares_and_trains_to_the_end(tmp_path):
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--miniature"]
    done = subprocess.run(
        [*command, "--full", "transformer"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    [row] = json.loads((tmp_path / "recipes.json").read_text(encoding="utf-8"))["rows"].values()
    assert row["chosen"] == ["capture"]
    assert row["apart"]["captured"] < 1e-4
    assert row["examples_per_second"] > 0
    assert 0.0 <= row["waiting"] <= 1.0
    assert "bleu" in row["scores"]
    assert done.stdout.splitlines()[1].startswith("transformer            capt ")


@pytest.mark.parametrize("path", sorted(RECIPES.iterdir()), ids=lambda path: path.stem)
def test_every_recipe_has_a_gpu_profile_and_a_folder_of_data(path, tmp_path):
    recipe = recipe_of(path.stem, tmp_path, False)
    given = str(recipe.data.get("root", ""))
    assert given.startswith(str(tmp_path)) or "generate" in str(recipe.data)


def test_what_failed_and_what_was_left_is_named():
    rows = {"one": {"failed": "no device"}}
    assert table(rows, ["two"]).splitlines()[1:] == [
        f"{'one':22} failed: no device",
        f"{'two':22} not measured, for want of time",
    ]
