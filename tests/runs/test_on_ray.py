"""Ray Train starts the ranks of a run, and starts them again."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from tests.recipes import tiny_recipe
from tests.refusals import refusal
from tests.training.ranks import family, fork
from transduct.errors import TrainingFailed
from transduct.runs import on_ray
from transduct.runs.on_ray import train_on_ray

RECIPE = tiny_recipe(
    model={"dropout": 0.1},
    training={
        "steps": 200, "validate_every": 0, "average": 1, "checkpoint_every": 10, "log_every": 1,
    },
)  # fmt: skip


def ours(folder):
    """Whether a process of /proc descends from this one."""
    try:
        parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return parent == os.getpid() or (parent > 1 and ours(Path("/proc", str(parent))))


def kill_a_rank(run, killed):
    """Wait until a run has taken some steps, then kill its last rank."""
    log = run / "log.jsonl"
    while not log.exists() or len(log.read_text().splitlines()) < 15:
        time.sleep(0.05)
    found = [path for path in Path("/proc").glob("[0-9]*") if ours(path)]
    ranks = [path for path in found if b"RayTrainWorker" in (path / "cmdline").read_bytes()]
    os.kill(max(int(path.name) for path in ranks), signal.SIGKILL)
    killed.append(len(log.read_text().splitlines()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_a_run_whose_rank_is_killed_goes_on_to_the_same_bytes(tmp_path):
    """As those of two ranks that nobody killed."""
    fork(2, family, RECIPE, tmp_path / "alone")
    killed, run = [], tmp_path / "ray"
    Thread(target=kill_a_rank, args=(run, killed), daemon=True).start()
    model = train_on_ray(RECIPE, run, False, "local", "2")
    assert killed
    assert killed[0] < 200
    expected = (tmp_path / "alone" / "model" / "model.safetensors").read_bytes()
    assert (model / "model.safetensors").read_bytes() == expected
    assert not [*tmp_path.glob(".*")], "what Ray keeps is left"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_a_refusal_of_the_ranks_is_not_tried_again(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("")
    with refusal("holds files that do not belong to a run; choose an empty or a new folder"):
        train_on_ray(RECIPE, tmp_path / "run", False, "local", "1")


@pytest.mark.slow
def test_the_command_trains_and_ends(tmp_path):
    """As a user calls it; nothing of Ray is left behind."""
    tree = {name: value for name, value in asdict(tiny_recipe()).items() if value}
    (tmp_path / "recipe.yaml").write_text(json.dumps(tree))
    run = tmp_path / "run"
    program = "from transduct.interfaces.cli import main; main()"
    words = [str(tmp_path / "recipe.yaml"), "--out", str(run), "--ray", "local", "--ranks", "2"]
    done = subprocess.run(
        [sys.executable, "-c", program, "train", *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{run / 'model'}\n"
    assert "log.jsonl" in done.stderr
    assert (run / "model" / "config.json").exists()
    left = [(path / "cmdline").read_bytes() for path in Path("/proc").glob("[0-9]*") if ours(path)]
    assert not [words for words in left if b"ray/" in words or words.startswith(b"ray::")]


@pytest.mark.parametrize(("ranks", "tries", "seconds"), [("3", 0, "600"), ("1:3", 1000, "60")])
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_ranks_whose_machine_does_not_come_back_end_in_a_line(
    ranks, tries, seconds, tmp_path, monkeypatch
):
    """As Ray says it when a machine is lost; else it would wait for ever."""
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.exceptions import ControllerError

    def fit(trainer):
        assert os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] == seconds
        assert trainer.run_config.failure_config.controller_failure_limit == tries
        assert trainer.run_config.failure_config.max_failures == 1000
        raise ControllerError(TimeoutError("timed out after 600 seconds. Potential causes include"))

    resources = SimpleNamespace(cluster_resources=dict)
    monkeypatch.setattr(on_ray, "cluster", lambda *_: nullcontext(resources))
    monkeypatch.setattr(on_ray, "require_resources", lambda *_: None)
    monkeypatch.setattr(TorchTrainer, "fit", fit)
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "")
    monkeypatch.delenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S")
    message = (
        f"^Ray cannot start {ranks} ranks .timed out after 600 seconds.; see that the cluster has "
        "their machines, or give fewer --ranks, and go on with --resume$"
    )
    with pytest.raises(TrainingFailed, match=message):
        train_on_ray(RECIPE, tmp_path / "run", False, "auto", ranks)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("ranks", ["0", "two", "4:2", "-1"])
def test_a_number_of_ranks_that_cannot_be_is_refused(tmp_path, ranks):
    with refusal(f"--ranks is '{ranks}'; give a number, or the least and the most, such as 4:16"):
        train_on_ray(RECIPE, tmp_path / "run", False, "local", ranks)
