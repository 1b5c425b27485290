"""A run has a second copy elsewhere, from which it goes on when its own folder is lost."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import fsspec
import pytest

from tests.helpers import Interrupted, weights
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct.config import dump
from transduct.data import places
from transduct.errors import TrainingFailed, TransductError
from transduct.runs import backup as backups
from transduct.runs.directory import LOCK
from transduct.runs.train import train
from transduct.storage import STATE, write_file
from transduct.training.distributed import Ranks


def recipe(address, **training):
    """A run with dropout whose final average and best checkpoint are older ones."""
    how = {"steps": 9, "warmup": 2, "checkpoint_every": 2, "keep_checkpoints": 3, "best": "loss"}
    return tiny_recipe(training={**how, "validate_every": 2, "backup": str(address), **training})


def stop_at(step):
    def report(event):
        if event["step"] == step and "loss" in event:
            raise Interrupted

    return report


def files(folder):
    """Those of a run that are copied, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if backups.FILE.fullmatch(path.relative_to(folder).as_posix()) and path.is_file()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run without a backup."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(recipe("", backup=None), folder, notify=str)
    return folder


@pytest.fixture
def lost(tmp_path):
    """The address and the empty folder of a run that was stopped at step 7, and lost."""
    with pytest.raises(Interrupted):
        train(recipe(tmp_path / "there"), tmp_path / "run", notify=str, report=stop_at(7))
    shutil.rmtree(tmp_path / "run")
    return tmp_path / "there", tmp_path / "run"


def test_a_run_whose_folder_is_lost_ends_with_the_same_bytes(lost, whole):
    address, run = lost
    said = []
    train(recipe(address), run, resume=True, notify=said.append)
    assert said[0] == f"fetching the run at {address}"
    assert weights(run) == weights(whole)
    assert files(run) == files(address)
    steps = {name for name in files(whole) if "step_" in name}
    assert {name for name in files(address) if "step_" in name} == steps


@pytest.fixture
def memory():
    yield "memory://bucket/run"
    fsspec.filesystem("memory").store.clear()


def test_a_backup_may_be_at_an_address(memory, whole, tmp_path):
    with pytest.raises(Interrupted):
        train(recipe(memory), tmp_path / "run", notify=str, report=stop_at(7))
    shutil.rmtree(tmp_path / "run")
    train(recipe(memory), tmp_path / "run", resume=True, notify=str)
    assert weights(tmp_path / "run") == weights(whole)
    there = {name: places.content_at(f"{memory}/{name}") for name in places.names_below(memory)}
    assert there.pop(".lock") == b""
    assert there == files(tmp_path / "run")


@pytest.mark.parametrize("ensemble", [False, True])
def test_a_run_of_stages_is_lost_in_its_second(tmp_path, ensemble):
    stages = [{}, {"training": {"seed": 2}}]
    staged = replace(recipe(tmp_path / "there"), stages=stages, ensemble=ensemble)
    run, again, seen = tmp_path / "run", tmp_path / "again", []

    def stop_in_second(event):
        seen.append(event["step"])
        if "loss" in event and event["step"] == 7 and seen.count(7) == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(staged, run, notify=str, report=stop_in_second)
    assert not (run / "stage_2" / "model").exists()
    shutil.rmtree(run)
    train(staged, run, resume=True, notify=str)
    train(replace(staged, training={**staged.training, "backup": None}), again, notify=str)
    assert files(run / "model") == files(again / "model")
    assert files(run) == files(tmp_path / "there")


def lose_while_copying(tmp_path, monkeypatch, name):
    """A run that was killed when it was about to copy this file, and is lost."""

    class Killed(BaseException):
        pass

    def killing(path, address):
        if address.endswith(name):
            raise Killed
        places.copy_from(path, address)

    with monkeypatch.context() as patch:
        patch.setattr(backups, "copy_from", killing)
        with pytest.raises(Killed):
            train(recipe(tmp_path / "there"), tmp_path / "run", notify=str)
    shutil.rmtree(tmp_path / "run")


def resumed(tmp_path):
    """The records of a run that goes on from its backup."""
    train(recipe(tmp_path / "there"), tmp_path / "run", resume=True, notify=str)
    return [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("control", [False, True])
def test_a_checkpoint_whose_copying_was_killed_is_not_there(tmp_path, monkeypatch, whole, control):
    """But for the control, whose state is copied first: it is found damaged."""
    with monkeypatch.context() as patch:
        if control:
            put_pieces = backups.Backup._put_pieces

            def state_first(self, last, ranks):
                self._put([last])
                put_pieces(self, last, ranks)

            patch.setattr(backups.Backup, "_put_pieces", state_first)
        lose_while_copying(tmp_path, monkeypatch, "step_6/optimizer.safetensors")
    whole_there = set(backups.Backup(tmp_path / "run", str(tmp_path / "there"))._there())
    assert (f"checkpoints/step_6/{STATE}" in whole_there) == control
    assert f"checkpoints/step_4/{STATE}" in whole_there
    passed = [each["passed_over"] for each in resumed(tmp_path) if "passed_over" in each]
    assert [["step_6" in line for line in lines] for lines in passed] == [[True]] * control
    assert weights(tmp_path / "run") == weights(whole)


@pytest.mark.parametrize("damage", [lambda content: content[:-1] + b"\xff", lambda content: b""])
def test_a_damaged_checkpoint_at_the_address_is_passed_over_and_named(lost, whole, damage):
    address, run = lost
    file = address / "checkpoints" / "step_6" / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    [passed] = [each["passed_over"] for each in resumed(run.parent) if "passed_over" in each]
    assert "step_6/model.safetensors" in passed[0]
    assert weights(run) == weights(whole)


def test_what_was_removed_here_is_removed_there_once_the_new_is_whole(tmp_path, monkeypatch):
    address, done = tmp_path / "there", []

    def removing(place, names):
        whole = sorted(path.parent.name for path in address.glob(f"checkpoints/*/{STATE}"))
        done.extend((name, whole) for name in sorted(names))
        places.remove_at(place, names)

    monkeypatch.setattr(backups, "remove_at", removing)
    train(recipe(address, best=None, keep_checkpoints=1, average=1), tmp_path / "run", notify=str)
    first = [each for each in done if "step_2/" in each[0]]
    assert first[0] == (f"checkpoints/step_2/{STATE}", ["step_2", "step_4"])
    assert [name for name, _ in first[1:]] == [
        f"checkpoints/step_2/{name}.safetensors" for name in ("model", "optimizer")
    ]
    assert files(tmp_path / "run") == files(address)


def test_a_copy_that_fails_is_warned_of_and_made_later(tmp_path, monkeypatch, whole):
    address, run, said, out_of_reach = tmp_path / "there", tmp_path / "run", [], {3, 4, 5, 9}
    step = 0

    def failing(path, place):
        if step in out_of_reach:
            raise TransductError("cannot be reached", file=place)
        places.copy_from(path, place)

    def report(event):
        nonlocal step
        step = event["step"]
        said.extend([event["backup"]] if "backup" in event else [])

    monkeypatch.setattr(backups, "copy_from", failing)
    message = r"run is whole, its backup is not: .*/there/.*: cannot be reached; copy it with --res"
    with pytest.raises(TrainingFailed, match=message):
        train(recipe(address), run, notify=str, report=report)
    assert weights(run) == weights(whole)
    assert said[0].startswith("warning: not copied, the next checkpoint tries again: /")
    assert json.dumps(said[0]) in (run / "log.jsonl").read_text()
    assert (address / "checkpoints" / "step_4" / STATE).exists()
    assert not (address / "model").exists()
    out_of_reach.clear()
    train(recipe(address), run, resume=True, notify=str)  # which is finished
    assert files(run) == files(address)


def test_where_the_disk_of_a_backup_went_away_nothing_is_written_in_its_place(tmp_path, whole):
    address, run, away, said = tmp_path / "there", tmp_path / "run", tmp_path / "away", []

    def report(event):
        if event["step"] == 3 and address.exists():
            address.rename(away)
        said.extend([event["backup"]] if "backup" in event else [])

    message = "its backup is not: .*/there: its files are gone; see that its disk is there"
    with pytest.raises(TrainingFailed, match=message):
        train(recipe(address), run, notify=str, report=report)
    assert weights(run) == weights(whole)
    assert "there: its files are gone" in said[0]
    assert not address.exists()
    away.rename(address)
    train(recipe(address), run, resume=True, notify=str)
    assert files(run) == files(address)


def test_an_address_that_cannot_be_written_to_is_refused_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    with refusal("there/.lock: cannot be reached .*; check the address"):
        train(recipe(tmp_path / "file" / "there"), tmp_path / "run", notify=str)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with refusal(r"s3fs .*; run: pip install 'transduct\[remote\]'"):
        train(recipe("s3://bucket/run"), tmp_path / "run", notify=str)
    train(recipe(tmp_path / "there", steps=2), tmp_path / "run", notify=str)  # it may begin here


def test_the_run_of_another_is_neither_overwritten_nor_taken(lost, tmp_path):
    address, run = lost
    before = files(address)
    with refusal(f"{address}: holds another run; continue it with --resume or choose another trai"):
        train(recipe(address), run, notify=str)
    train(recipe("", backup=None, steps=2), tmp_path / "other", notify=str)
    with refusal(f"{address}: holds another run; choose another training.backup"):
        train(recipe(address), tmp_path / "other", resume=True, notify=str)
    assert files(address) == before
    train(recipe(tmp_path / "free"), tmp_path / "other", resume=True, notify=(said := []).append)
    assert not [line for line in said if "backup" in line]  # which may change
    assert files(tmp_path / "other") == files(tmp_path / "free")


def test_a_launcher_goes_on_with_its_run_on_an_empty_machine(tmp_path, whole, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "night")
    address, run = tmp_path / "there", tmp_path / "run"
    with pytest.raises(Interrupted):
        train(recipe(address), run, notify=str, report=stop_at(7))
    shutil.rmtree(run)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "morning")
    with refusal("holds another run; continue it with --resume"):
        train(recipe(address), run, notify=str)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "night")
    train(recipe(address), run, notify=str)
    assert weights(run) == weights(whole)


def test_a_run_that_is_behind_its_backup_says_so(lost, tmp_path):
    address, run = lost
    shutil.copytree(address, run)
    shutil.rmtree(run / "checkpoints" / "step_6")
    train(recipe(address), run, resume=True, notify=(said := []).append)
    assert said[0].startswith(
        f"warning: the checkpoints at {address} are newer than those in {run}"
    )
    assert files(run) == files(address)


def test_only_files_of_a_run_are_fetched(lost, tmp_path):
    """What else lies there could lead elsewhere."""
    address, run = lost
    for name in ("other/file", ".hidden", "model/.hidden", "checkpoints/step_99/model.safetensors"):
        (address / name).parent.mkdir(parents=True, exist_ok=True)
        (address / name).write_text("none of ours")
    assert not backups.FILE.fullmatch("model/../../file")
    train(recipe(address), run, resume=True, notify=str)
    assert not (run / "other").exists()
    assert "none of ours" not in str(files(run))


@pytest.mark.parametrize("address", ["", "https://example.org/run"])
def test_what_is_no_place_for_a_backup_is_refused(address, tmp_path):
    with refusal(f"training.backup is '{address}'; expected s3://..., gs://... or a folder"):
        train(recipe(address), tmp_path / "run", notify=str)
    several = replace(recipe("a"), stages=[{}, {"training": {"backup": "b"}}])
    with refusal("training.backup is one for the whole recipe; write it above stages"):
        train(several, tmp_path / "run", notify=str)


def test_a_finished_run_may_get_a_backup_and_keep_it(whole, tmp_path):
    run, address = tmp_path / "run", tmp_path / "there"
    shutil.copytree(whole, run)
    for _ in range(2):
        train(recipe(address), run, resume=True, notify=str)
        assert files(run) == files(whole) == files(address)


class TwoRanks:
    """The first of two ranks, whose other one says it cannot copy."""

    rank, world, copying = 0, 2, False

    def exchange(self, message):
        theirs = "rank 1 cannot" if message == "" and self.copying else message
        self.copying = self.copying or bool(isinstance(message, str) and message)
        return lambda: [message, theirs]


def test_ranks_copy_their_own_pieces_and_the_state_waits_for_all(tmp_path):
    run, address = tmp_path / "run", tmp_path / "there"
    names = [f"shard-0000{n}-model-00001-of-00001.safetensors" for n in (1, 2)]
    for name in (*names, STATE):
        write_file(run / "checkpoints" / "step_2" / name, b"{}", parents=True)
    write_file(address / LOCK, b"", parents=True)
    backup = backups.Backup(run, str(address))
    assert backup.copy(TwoRanks()) == "rank 1 cannot"
    assert {path.name for path in address.rglob("*") if path.is_file()} == {LOCK, names[0]}
    for lost in (STATE, names[1]):  # what somebody removes there is copied again
        assert backup.copy(Ranks()) == ""
        assert files(address) == files(run)
        (address / "checkpoints" / "step_2" / STATE).unlink()
        (address / "checkpoints" / "step_2" / lost).unlink(missing_ok=True)
    assert backup.copy(Ranks()) == ""
    assert files(address) == files(run)


@pytest.mark.slow
def test_ranks_of_torchrun_go_on_with_their_pieces_on_an_empty_machine(tmp_path):
    """Without --resume, since they have the name of those before."""
    how = {"shard": "all", "steps": 7, "timeout": 60.0}
    (tmp_path / "recipe.yaml").write_text(dump(asdict(recipe(tmp_path / "there", **how))))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "night"),
        *("--no-python", Path(sys.executable).with_name("transduct"), "train"),
        tmp_path / "recipe.yaml",
    ]

    def launch(name, *overrides):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = [*command, "--out", tmp_path / name, *overrides]
        found = subprocess.run(done, env=environment, capture_output=True, text=True, timeout=300)
        assert found.returncode == 0, found.stderr
        return found.stdout + found.stderr

    launch("once", "training.backup=null")
    launch("run", "training.steps=4")
    shutil.rmtree(tmp_path / "run")
    assert "fetching the run at" in launch("run")
    assert weights(tmp_path / "run") == weights(tmp_path / "once")
    there = files(tmp_path / "there")
    assert there == files(tmp_path / "run")
    assert {"shard-00001", "shard-00002"} <= {name.split("/")[-1][:11] for name in there}
