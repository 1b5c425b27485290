"""One thread a test: tiny sizes gain nothing from more, and sums are taken in one order. And no
GPU, unless it is asked for: `auto` finds one, and then what is compared would be on two devices."""

import os
import pickle
import shutil
import signal
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest
import torch

# files that ask for one
ON_GPU = ("short_attention", "row_losses", "row_peaks", "replay", "captured", "elsewhere", "graphs")
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start: they share the cores too


def pytest_configure(config):
    """Hide GPUs from everything but `pytest -m gpu` and the files of `ON_GPU`."""
    names = [Path(path.split("::")[0]).stem.removeprefix("test_") for path in config.args]
    if "gpu" not in config.getoption("markexpr") and not all(name in ON_GPU for name in names):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_ignore_collect(collection_path, config):
    """With `-m gpu` only files that hold such a test are imported: others need extras."""
    if config.getoption("markexpr") != "gpu" or collection_path.suffix != ".py":
        return None
    return "mark.gpu" not in collection_path.read_text(encoding="utf-8") or None


@pytest.fixture(autouse=True)
def one_thread():
    """Fail a test that leaves PyTorch more threads: later tests would differ in their last
    digits."""
    yield
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads == 1, f"the test leaves {threads} threads"


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """A function: a folder that is filled once, by whichever process of the tests needs it first,
    for tests that only look."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def filled(name, fill):
        folder = shared / name
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            flock(lock, LOCK_EX)
            if not (folder / "done").exists():
                fill(folder)
                (folder / "done").touch()
        return folder

    return filled


@pytest.fixture(scope="session")
def trained_run(once):
    """A finished run of a tiny translation model, for tests that only look."""
    from tests.recipes import tiny_recipe
    from transduct.runs.train import train

    recipe = tiny_recipe(
        data={"train": [{"generate": "reverse", "count": 500}]},
        model={"d_model": 32},
        training={"steps": 60},
    )
    return once("trained", lambda folder: train(recipe, folder / "run", notify=str)) / "run"


@pytest.fixture(scope="session")
def capitals(once):
    """A model that writes letters as capitals, and looks where it should."""
    import transduct
    from tests.recipes import train_capitals

    return transduct.load(once("capitals", train_capitals) / "run_small")


@pytest.fixture(scope="session")
def family_of(once):
    """A function: the recipe and the finished run of a family, for tests that only look."""
    from tests.families import RECIPES, in_folder
    from transduct.runs.train import train

    def found(family):
        def make(folder):
            recipe = in_folder(RECIPES[family], folder)
            train(recipe, folder / "run", notify=str)
            (folder / "recipe.pickle").write_bytes(pickle.dumps(recipe))

        folder = once(f"family {family}", make)
        return pickle.loads((folder / "recipe.pickle").read_bytes()), folder / "run"

    return found


@pytest.fixture
def run(trained_run, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(trained_run, tmp_path / "run")


@pytest.fixture
def hangups():
    """SIGHUP ends processes, even if the tests run under `nohup`, which ignores it for them and
    their children."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
