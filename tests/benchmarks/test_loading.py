"""The loading benchmark: it measures any recipe of pictures, and says both speeds."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import loading
import pytest
import torch
import yaml

from tests.families import RECIPES, in_folder

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loading.py"


def test_a_recipe_of_texts_is_refused_before_its_data_are_prepared(tmp_path, monkeypatch, capsys):
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump({**asdict(RECIPES["transformer"]), "profiles": {"cpu": {}}})
    )
    monkeypatch.setattr(
        sys, "argv", ["loading.py", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run")]
    )
    monkeypatch.setattr(loading, "prepare_machine", lambda: None)
    threads = torch.get_num_threads()
    with pytest.raises(SystemExit, match="2"):
        loading.main()
    torch.set_num_threads(threads)
    assert (
        "the task is translation; give a recipe of one of: image_classification"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_it_prints_the_speed_of_loading_and_of_training(tmp_path):
    recipe = in_folder(RECIPES["pictures"], tmp_path)
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump({**asdict(recipe), "profiles": {"cpu": {}}})
    )
    call = [
        sys.executable,
        str(SCRIPT),
        str(tmp_path / "recipe.yaml"),
        "training.device=cpu",
        "--batches",
        "2",
    ]
    done = subprocess.run(
        [*call, "--out", str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["recipe"] == "recipe"
    # two batches of at most thirteen pictures, each of nine patches
    assert 13 < found["examples"] <= 26
    assert found["loaded_per_second"] > 0
    assert found["trained_per_second"] > 0
    assert found["device"] == "cpu"
    assert (tmp_path / "run" / "corpus").exists()
