"""The loading benchmark: it measures any recipe of pictures, and says both speeds."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from tests.families import RECIPES, in_folder

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loading.py"


@pytest.mark.slow
def test_it_prints_the_speed_of_loading_and_of_training(tmp_path):
    recipe = in_folder(RECIPES["pictures"], tmp_path)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**asdict(recipe), "profiles": {"cpu": {}}}))
    call = [sys.executable, str(SCRIPT), str(tmp_path / "recipe.yaml"), "training.device=cpu", "--batches", "2"]
    done = subprocess.run([*call, "--out", str(tmp_path / "run")], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["recipe"] == "recipe"
    assert 13 < found["examples"] <= 26  # two batches of at most thirteen pictures, each of nine patches
    assert found["loaded_per_second"] > 0
    assert found["trained_per_second"] > 0
    assert found["device"] == "cpu"
    assert (tmp_path / "run" / "corpus").exists()
