"""Exact resume: whatever kills a run and whenever, the resumed run ends with the same bytes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.helpers import Interrupted, weights
from tests.recipes import tiny_recipe
from transduct.config import dump
from transduct.errors import TrainingFailed
from transduct.interfaces.cli import main
from transduct.runs.train import train
from transduct.training import step as step_module
from transduct.training.optim import MovingAverage
from transduct.training.trainer import Trainer

# Dropout and BPE dropout on, a loader worker on, two micro-batches a step: 14 steps cross several
# epochs.
HARD = tiny_recipe(
    data={"workers": 1},
    tokenizer={"dropout": 0.2},
    training={"accumulate": 2, "ema": 0.9, "best": "loss"},
)

# Trains, and is killed with SIGKILL when the log reaches a step, or in the middle of writing a
# step's checkpoint.
CHILD = """
import os, signal, sys
from pathlib import Path
from transduct.config import load_recipe
from transduct.runs.train import train
from transduct import storage

recipe, out, when, step = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
if when == "writing":
    fsync = os.fsync
    state = {"written": 0}
    def counted(handle):
        fsync(handle)
        name = os.readlink(f"/proc/self/fd/{handle}")
        if f".step_{step}." in name and name.endswith("optimizer.safetensors"):
            kill()
    storage.os.fsync = counted
def report(event):
    if when == "step" and event["step"] == step and "loss" in event:
        kill()
if __name__ == "__main__":
    train(load_recipe(recipe), out, resume=True, notify=print, report=report)
"""


def run_child(tmp_path: Path, recipe: Path, out: Path, when: str, step: int) -> int:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    found = subprocess.run(
        [sys.executable, str(script), str(recipe), str(out), when, str(step)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert found.returncode in (0, -signal.SIGKILL), found.stderr
    return found.returncode


@pytest.mark.slow
def test_a_killed_run_ends_with_the_bytes_of_one_that_was_not(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(dump(asdict(HARD)))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run_child(tmp_path, recipe, whole, "never", 0) == 0
    epochs = [
        json.loads(line).get("epoch") for line in (whole / "log.jsonl").read_text().splitlines()
    ]
    epochs = [epoch for epoch in epochs if epoch is not None]
    edge = epochs.index(1)  # the last step of the first epoch, counted from one
    assert 0 < edge < 10
    for when, step in (("step", 1), ("step", edge), ("writing", 9), ("step", 10), ("step", 14)):
        assert run_child(tmp_path, recipe, killed, when, step) == -signal.SIGKILL, (when, step)
        assert not (killed / "model").exists()
    assert run_child(tmp_path, recipe, killed, "never", 0) == 0
    assert weights(whole) == weights(killed)
    assert not list((killed / "checkpoints").glob(".*")), (
        "the half-written checkpoint was left behind"
    )
    steps = [json.loads(line)["step"] for line in (killed / "log.jsonl").read_text().splitlines()]
    assert steps == [
        json.loads(line)["step"] for line in (whole / "log.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "run"
    train(HARD, directory, notify=str)
    return directory


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory):
    """A run that ended after step 8."""
    directory = tmp_path_factory.mktemp("broken") / "run"

    def report(event):
        if event["step"] == 8 and "loss" in event:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(HARD, directory, report=report, notify=str)
    return directory


@pytest.fixture
def resumed(broken_off, tmp_path):
    """A function: the weights of that run, trained on."""

    def weights_of_the_rest():
        run = shutil.copytree(broken_off, tmp_path / "run")
        train(HARD, run, resume=True, notify=str)
        return weights(run)

    return weights_of_the_rest


def test_the_control_itself_ends_alike(resumed, whole_run):
    assert resumed() == weights(whole_run)


@pytest.mark.parametrize("forgotten", ["optimiser", "batch", "epoch", "ema", "step", "seed"])
def test_a_restore_that_forgets_one_thing_is_caught(resumed, whole_run, monkeypatch, forgotten):
    restore = Trainer.restore

    def forgetful(self, step):
        restore(self, step)
        if forgotten == "optimiser" and step:
            self.stepper.optimiser.state.clear()
        if forgotten == "batch":
            self.state = replace(self.state, batch=0)
        if forgotten == "epoch":
            self.state = replace(self.state, epoch=self.state.epoch + 1)
        if forgotten == "ema":
            self.ema = MovingAverage(self.model, 0.9)
        if forgotten == "step":
            self.state = replace(self.state, step=0)
        if forgotten == "seed":
            monkeypatch.setattr(step_module, "seed_generators", lambda *numbers: None)

    monkeypatch.setattr(Trainer, "restore", forgetful)
    assert resumed() != weights(whole_run)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_leaves_a_run_that_resumes(tmp_path, whole_run, number):
    def report(event):
        if event["step"] == 5 and "loss" in event:
            os.kill(os.getpid(), number)

    with pytest.raises(TrainingFailed, match="stopped by a signal at step 5; go on with --resume"):
        train(HARD, tmp_path / "run", report=report, notify=str)
    assert (tmp_path / "run" / "checkpoints" / "step_5" / "state.json").exists()
    if number == signal.SIGTERM:  # what they leave is the same
        train(HARD, tmp_path / "run", resume=True, notify=str)
        assert weights(whole_run) == weights(tmp_path / "run")


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_leaves_a_run_that_resumes(tmp_path, number):
    """As `timeout`, torchrun and Ctrl-C send it: the loader's workers must not die of it before the
    trainer ends."""
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(dump(asdict(HARD)))
    if not (child := os.fork()):  # PyTorch is imported here already
        os.setsid()
        os.dup2(os.open(tmp_path / "said", os.O_CREAT | os.O_WRONLY), 2)
        sys.stderr = os.fdopen(2, "w")
        sys.argv[1:] = ["train", str(recipe), "--out", str(out), "training.steps=100000"]
        try:
            main()
        except SystemExit as error:
            sys.stderr.flush()
            os._exit(error.code)
        os._exit(99)
    while not (out / "log.jsonl").exists() or '"step": 5,' not in (out / "log.jsonl").read_text():
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.01)
    os.killpg(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    said = (tmp_path / "said").read_text()
    # at once, also in a validation
    when = r"stopped by a signal at step (\d+)(?: in its validation)?"
    [step] = re.findall(rf"^transduct: {when}; go on with --resume$", said, re.MULTILINE)
    assert (out / "checkpoints" / f"step_{step}" / "state.json").exists()


def test_a_finished_run_is_left_alone(tmp_path, whole_run):
    before = weights(whole_run)
    said = []
    train(HARD, whole_run, resume=True, notify=said.append)
    assert "this run is finished" in said[0]
    assert weights(whole_run) == before
