"""Gradients are summed alike on any number of ranks, after the backward pass and during it."""

from dataclasses import replace

import pytest
import torch

from tests.families import RECIPES, in_folder
from tests.training import toy
from tests.training.ranks import family, fork
from transduct.runs import train
from transduct.storage import read_tensors
from transduct.training.combining import Combined, combined
from transduct.training.distributed import Ranks

STEPS = {"steps": 3, "batches_per_step": 2, "validate_every": 0, "average": 1, "timeout": 60.0}


@pytest.mark.parametrize(("world", "captured"), [(1, False), (1, True), (2, True)])
def test_gradients_travel_after_the_pass_where_hooks_are_of_no_use(world, captured):
    """Alone there is nothing to send, and a replayed graph runs no hooks."""
    found = combined(toy.network(), toy.loss, Ranks(world=world), captured)
    assert type(found) is Combined


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_two_ranks_train_every_family_like_one_process(tmp_path, name):
    """To rounding, with dropout: what a step draws depends on no rank."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    recipe = in_folder(RECIPES[name], tmp_path)
    recipe = replace(recipe, training={**recipe.training, **STEPS})
    alone = train.train(recipe, tmp_path / "alone", notify=len)
    fork(2, family, recipe, tmp_path / "two")
    torch.set_num_threads(threads)
    expected = read_tensors(alone / "model.safetensors")
    found = read_tensors(tmp_path / "two" / "model" / "model.safetensors")
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
