"""One thread a test: tiny sizes gain nothing from more, and sums are taken in one order."""

import shutil

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory):
    """A finished run of a tiny translation model, for tests that only look."""
    from tests.recipes import tiny_recipe
    from transduct.tasks.base import train

    directory = tmp_path_factory.mktemp("trained") / "run"
    recipe = tiny_recipe(
        data={"train": [{"generate": "reverse", "count": 500}]}, model={"d_model": 32}, training={"steps": 60}
    )
    train(recipe, directory, notify=str)
    return directory


@pytest.fixture
def run(trained_run, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(trained_run, tmp_path / "run")
