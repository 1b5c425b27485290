"""Gradients are summed alike on any number of ranks, after the backward pass and during it, and
where each rank holds pieces of the weights alone."""

import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.families import RECIPES, in_folder
from tests.recipes import tiny_recipe
from tests.training import toy
from tests.training.ranks import family, fork, pieces
from transduct.errors import TransductError
from transduct.runs import train
from transduct.storage import read_tensors
from transduct.training.checkpoints import Checkpoints
from transduct.training.combining import Combined, combined
from transduct.training.distributed import Ranks

# Gradients of some biases are 0 but for rounding; Adam would divide that by itself.
STEPS = {
    "steps": 3, "batches_per_step": 2, "validate_every": 0, "average": 1, "timeout": 60.0,
    "epsilon": 1e-3,
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def weights_in(run):
    return read_tensors(run / "model" / "model.safetensors")


def assert_close(found, expected):
    torch.testing.assert_close(weights_in(found), weights_in(expected), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("world", "captured"), [(1, False), (1, True), (2, True)])
@pytest.mark.parametrize("shard", ["none", "all"])
def test_gradients_travel_after_the_pass_where_hooks_are_of_no_use(world, captured, shard):
    """Alone there is nothing to send, and a replayed graph runs no hooks."""
    found = combined(toy.network(), toy.loss, Ranks(world=world), captured, shard)
    assert type(found) is Combined


def test_one_machine_reads_nothing_of_this():
    """Not FSDP2, not distributed checkpoints and not Ray."""
    code = (
        "import sys, transduct.runs.train, transduct.interfaces.cli;"
        "print([m for m in ('torch.distributed.fsdp', 'torch.distributed.checkpoint', 'ray')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "all"])
@pytest.mark.parametrize("name", RECIPES)
def test_two_ranks_train_every_family_like_one_process(tmp_path, name, shard):
    """To rounding, with dropout: what a step draws depends on no rank."""
    recipe = in_folder(RECIPES[name], tmp_path)
    recipe = replace(recipe, training={**recipe.training, **STEPS, "shard": shard})
    train.train(recipe, tmp_path / "alone", notify=len)
    fork(2, family, recipe, tmp_path / "two")
    assert_close(tmp_path / "two", tmp_path / "alone")


@pytest.mark.slow
def test_four_ranks_hold_pieces_within_their_machines(tmp_path):
    """Two machines of two ranks."""
    recipe = tiny_recipe(training={**STEPS, "shard": "node", "batches_per_step": 4})
    train.train(recipe, tmp_path / "alone", notify=len)
    fork(4, partial(family, local=2), recipe, tmp_path / "four")
    assert_close(tmp_path / "four", tmp_path / "alone")


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """What two ranks with pieces have left, and one process beside them."""
    out, how = tmp_path_factory.mktemp("pieces"), {**STEPS, "shard": "all", "recompute": True}
    how |= {"ema": 0.5, "validate_every": 2, "checkpoint_every": 2}
    recipe, longer = (tiny_recipe(training={**how, "steps": steps}) for steps in (2, 4))
    torch.set_num_threads(1)
    train.train(recipe, out / "from_one", notify=len)
    train.train(longer, out / "alone", notify=len)
    fork(2, pieces, recipe, longer, out)
    train.train(longer, out / "to_one", True, notify=len)
    return out


def test_a_run_in_pieces_is_resumed_to_the_same_bytes(held):
    once, parts = (weights_in(held / name) for name in ("once", "parts"))
    assert all(torch.equal(once[name], parts[name]) for name in once)


@pytest.mark.parametrize("run", ["once", "to_one", "from_one"])
def test_pieces_and_whole_weights_train_alike_and_follow_one_another(held, run):
    """Of one process's checkpoint two ranks take pieces, and of theirs it takes whole weights."""
    assert_close(held / run, held / "alone")


def test_each_rank_writes_its_own_pieces(held):
    names = {path.name for path in (held / "once" / "checkpoints" / "step_4").iterdir()}
    shards = {f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)}
    assert names == {"state.json", *shards}


def test_a_damaged_piece_is_noticed(held, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(held / "once" / "checkpoints", folder)
    one, other = sorted((folder / "step_4").glob("shard-*"))
    content = bytearray(one.read_bytes())
    content[-1] ^= 1
    one.write_bytes(content)
    checkpoints = Checkpoints(folder)
    with pytest.raises(TransductError, match=r"00001\.safetensors: holds other bytes than"):
        checkpoints.require_whole(4)
    assert checkpoints.last_good() == 2
    shutil.copy(held / "once" / "checkpoints" / "step_4" / one.name, one)
    other.unlink()
    with pytest.raises(TransductError, match=r"shard-00002.* cannot be read"):
        checkpoints.require_whole(4)


def test_a_full_disk_of_one_rank_is_named_on_all(held):
    for rank in (0, 1):
        line = (held / f"line_{rank}").read_text()
        assert "step_0: rank 1 cannot write it ([Errno 28] No space left on device); free" in line
