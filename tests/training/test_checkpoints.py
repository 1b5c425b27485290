"""Checkpoints are whole or not there; what is damaged is passed over, what is old is removed."""

import errno
import json
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import pytest
import torch

from tests.training.faults import disk, failing
from tests.training.toy import network, trained
from transduct import storage
from transduct.errors import TransductError
from transduct.storage import load_weights, read_tensors
from transduct.training import checkpoints as module
from transduct.training.checkpoints import Checkpoints
from transduct.training.optim import (
    MovingAverage,
    load_optimiser,
    make_optimiser,
    optimiser_tensors,
)


def save(checkpoints, step, model, optimiser, ema=None, keep=None):
    checkpoints.save(
        step, model, optimiser_tensors(model, optimiser), {"step": step}, ema and ema.weights, keep
    )
    checkpoints.wait()


@pytest.fixture
def held(tmp_path):
    """Checkpoints of the steps 3 and 12, moving averages included."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.directory.mkdir()
    for step in (12, 3):
        model, optimiser = trained(step)
        save(checkpoints, step, model, optimiser, MovingAverage(model, 0.9))
    return checkpoints


# writing


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize(
    "number, said",
    [
        (
            errno.ENOSPC,
            "the disk is full; nothing was changed there: free some space and run again",
        ),
        (
            errno.EDQUOT,
            "the disk is full; nothing was changed there: free some space and run again",
        ),
        (errno.EPERM, "cannot be written (Operation not permitted); choose another place"),
        (
            errno.EIO,
            "cannot be written (Input/output error); see that its disk and its folder are there, "
            "then run again, or choose another place",
        ),
    ],
)
def test_a_checkpoint_that_cannot_be_written_leaves_those_before(
    held, monkeypatch, after, number, said
):
    model, optimiser = trained(1)
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fsync", failing(disk(number), after, os.fsync))
        with pytest.raises(TransductError) as caught:
            save(held, 20, model, optimiser, MovingAverage(model, 0.9), keep=[])
    assert str(caught.value) == f"{held.path(20)}: {said}"
    assert [path.name for path in sorted(held.directory.iterdir())] == ["step_12", "step_3"]
    assert held.last_good(held.steps()) == 12


def test_a_checkpoint_that_cannot_be_renamed_does_not_exist(held, monkeypatch):
    model, optimiser = trained(1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing(disk(errno.ENOSPC), 0, Path.rename))
        with pytest.raises(TransductError, match="the disk is full"):
            save(held, 20, model, optimiser)
    assert held.steps() == [3, 12]
    assert not list(held.directory.glob(".*"))


@pytest.mark.parametrize("after", range(3))
def test_a_crash_while_writing_leaves_no_trace(held, monkeypatch, after):
    """Nothing is cleaned up after a crash, so what it leaves must do no harm."""
    model, optimiser = trained(1)
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fsync", failing(KeyboardInterrupt(), after, os.fsync))
        patch.setattr(storage.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            save(held, 20, model, optimiser)
    assert list(held.directory.glob(".step_20.*.part"))
    assert held.last_good(held.steps()) == 12
    save(held, 20, model, optimiser, keep=held.steps())
    assert not list(held.directory.glob(".*"))
    assert held.last_good(held.steps()) == 20


def test_what_is_written_is_what_there_was_when_it_was_asked_for(held, monkeypatch):
    """Training goes on while a checkpoint is written; reading checkpoints waits for it."""
    model, optimiser = trained(1)
    save(held, 20, model, optimiser)
    expected = (held.path(20) / "model.safetensors").read_bytes()
    busy, write = threading.Event(), module.write_directory

    def slow(*arguments, **options):
        busy.wait(60)
        write(*arguments, **options)

    monkeypatch.setattr(module, "write_directory", slow)
    held.save(21, model, optimiser_tensors(model, optimiser), {"step": 21}, None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not held.path(21).exists()
    busy.set()
    assert held.steps() == [3, 12, 20, 21]
    assert (held.path(21) / "model.safetensors").read_bytes() == expected


def test_a_state_is_replaced_once_its_checkpoint_is_written(held, monkeypatch):
    (model, optimiser), write = trained(1), module.write_directory
    monkeypatch.setattr(
        module, "write_directory", lambda *given, **named: (sleep(0.1), write(*given, **named))
    )
    held.save(20, model, optimiser_tensors(model, optimiser), {"step": 20}, None)
    held.save_state(20, {"step": 20, "tries": 1})
    assert held.state(20)["tries"] == 1


@contextmanager
def disk_full(monkeypatch):
    """No checkpoint can be put in its place."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing(disk(errno.ENOSPC), 0, Path.rename))
        yield


@pytest.mark.parametrize("first", ["steps", "check", "save"])
def test_a_failure_to_write_is_reported_once_by_whatever_is_called_first(held, monkeypatch, first):
    model, optimiser = trained(1)
    held.check()
    with disk_full(monkeypatch):
        held.save(20, model, optimiser_tensors(model, optimiser), {"step": 20}, None)
        held._writer.submit(str).result()  # the writer does one after the other
        arguments = (21, model, {}, {}, None) if first == "save" else ()
        with pytest.raises(TransductError, match="step_20: the disk is full"):
            getattr(held, first)(*arguments)
    held.check()
    assert held.steps() == [3, 12]


def test_where_the_disk_went_away_no_checkpoint_is_written_in_its_place(held):
    """Once the folder is there again, the next one is written: the control."""
    (model, optimiser), folder = trained(1), held.directory
    folder.rename(folder.with_name("away"))
    with pytest.raises(TransductError, match=r"step_20: cannot be written .*; see that its disk"):
        save(held, 20, model, optimiser)
    assert not folder.exists()
    folder.with_name("away").rename(folder)
    save(held, 21, model, optimiser)
    assert held.steps() == [3, 12, 21]


def test_check_does_not_wait(held, monkeypatch):
    (model, optimiser), goes_on, write = trained(1), threading.Event(), module.write_directory
    monkeypatch.setattr(
        module,
        "write_directory",
        lambda *given, **named: goes_on.wait(9) and write(*given, **named),
    )
    held.save(20, model, optimiser_tensors(model, optimiser), {"step": 20}, None)
    held.check()
    goes_on.set()
    assert held.steps() == [3, 12, 20]


def test_while_a_checkpoint_is_replaced_the_old_one_is_kept_aside(held, monkeypatch):
    """Nothing is removed before the new one is in its place."""
    model, optimiser = trained(1)
    seen, remove = [], storage.shutil.rmtree

    def watched(path, **options):
        seen.append((path.name.endswith(".old.part"), held.last_good()))
        remove(path, **options)

    monkeypatch.setattr(storage.shutil, "rmtree", watched)
    save(held, 12, model, optimiser, MovingAverage(model, 0.9))
    assert {step for _, step in seen} == {12}
    assert seen[-1][0]


# reading and pruning


def test_saved_loaded_and_saved_again_are_the_same_bytes(held):
    model = network()
    optimiser = make_optimiser(model, (0.9, 0.98), 1e-9, 0.0)
    ema = MovingAverage(model, 0.9)
    path = held.path(12)
    with torch.no_grad():
        load_weights(model, read_tensors(path / "model.safetensors"), path)
    load_optimiser(model, optimiser, read_tensors(path / "optimizer.safetensors"))
    ema.weights = read_tensors(path / "ema.safetensors")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert before.keys() == {
        "model.safetensors",
        "optimizer.safetensors",
        "ema.safetensors",
        "state.json",
    }
    save(held, 12, model, optimiser, ema)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    ema.weights = {name: 2.0 * weight for name, weight in ema.weights.items()}
    save(held, 12, model, optimiser, ema)
    found = read_tensors(path / "ema.safetensors")
    assert all(torch.equal(found[name], weight) for name, weight in ema.weights.items())


def test_what_is_named_otherwise_is_no_checkpoint_and_stays(held):
    for name in ("step_3_before_tuning", "step_old", "step_", "step_²"):
        (held.directory / name).mkdir()
        (held.directory / name / "state.json").write_text("{}")
    assert held.steps() == [3, 12]
    held.forget_after(3)
    assert sorted(path.name for path in held.directory.iterdir()) == [
        "step_", "step_3", "step_3_before_tuning", "step_old", "step_²",
    ]  # fmt: skip


def test_steps_are_in_the_order_of_numbers(held):
    assert held.steps() == [3, 12]
    assert held.path(3) == held.directory / "step_3"
    assert Checkpoints(held.directory / "nowhere").steps() == []


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"]
)
def test_a_checkpoint_cut_short_is_passed_over(held, name):
    for step, rest in ((12, 3), (3, None)):
        path = held.path(step) / name
        path.write_bytes(path.read_bytes()[:-5])
        assert held.last_good(held.steps()) == rest


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "ema.safetensors"])
def test_a_checkpoint_with_another_bit_is_passed_over(held, name):
    """The file is valid, but a flipped bit has changed a number in it."""
    path, broken = held.path(12) / name, []
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    read_tensors(path)
    assert held.last_good(held.steps(), broken) == 3
    assert broken == [f"{path}: holds other bytes than were written to it; copy it again"]
    held.save_state(12, {"step": 12})
    assert held.last_good(held.steps()) == 3, "what is said of the run hides it"
    content[-2] ^= 1
    path.write_bytes(content)
    assert held.last_good(held.steps()) == 12


def test_a_checkpoint_from_before_there_were_digests_is_whole(held):
    (held.path(12) / "state.json").write_text('{"format": 1, "step": 12}')
    assert held.last_good(held.steps()) == 12
    (held.path(12) / "ema.safetensors").write_bytes(b"")
    assert held.last_good(held.steps()) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.update(step=13),
        lambda state: state.pop("step"),
        lambda state: state.update(digests=["model.safetensors"]),
        lambda state: state.update(digest=7),
        lambda state: (
            state.pop("digest"),
            state.update(digests=None),
        ),  # as in an older checkpoint
    ],
)
def test_a_state_that_is_not_as_it_was_written_is_passed_over(held, damage):
    path, broken = held.path(12) / "state.json", []
    state = json.loads(path.read_text())
    damage(state)
    path.write_text(json.dumps(state))
    assert held.last_good(broken=broken) == 3
    assert broken == [f"{path}: holds other bytes than were written to it; copy it again"]


def test_a_state_says_which_step_was_best_or_nothing(held):
    assert held.bests([3, 12]) == set()
    held.save_state(12, {"step": 12, "best_step": 3})
    assert held.bests([3, 12, 99]) == held.bests([99, 12]) == {3}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "ema.safetensors"])
def test_a_checkpoint_that_lacks_a_file_is_passed_over(held, name):
    (held.path(12) / name).unlink()
    assert held.last_good(held.steps()) == 3


def test_only_those_asked_for_are_looked_at(held):
    assert held.last_good([3]) == 3
    assert held.last_good([]) is None


def test_pruning_leaves_what_is_to_be_kept(held):
    save(held, 20, *trained(1), keep=[3, 99])
    assert held.steps() == [3, 20]
    assert not held.path(12).exists()


def test_pruning_takes_what_a_kill_left_of_checkpoints(held):
    for name in ("step_6", ".step_12.old.part", ".step_9.7.part"):  # the first lacks its state
        (held.directory / name).mkdir()
        (held.directory / name / "model.safetensors").touch()
    assert held.steps() == [3, 12]
    save(held, 20, *trained(1), keep=[3])
    assert sorted(path.name for path in held.directory.iterdir()) == ["step_20", "step_3"]


def test_a_checkpoint_that_was_moved_and_linked_is_pruned_by_its_link(held, tmp_path):
    held.path(12).rename(tmp_path / "elsewhere")
    held.path(12).symlink_to(tmp_path / "elsewhere")
    save(held, 20, *trained(1), keep=[3])
    assert sorted(path.name for path in held.directory.iterdir()) == ["step_20", "step_3"]
    assert (tmp_path / "elsewhere" / "state.json").exists()


@pytest.mark.parametrize("place, name", [(Path, "rename"), (os, "rmdir"), (os, "unlink")])
def test_what_cannot_be_removed_now_is_removed_next_time(held, monkeypatch, place, name):
    """A network file system keeps a file that is open under another name, so that its folder is not
    empty."""
    write = module.write_directory

    def fails(*_, **__):
        raise disk(errno.ENOTEMPTY)

    def written(*given, **named):
        write(*given, **named)
        patch.setattr(place, name, fails)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_directory", written)
        save(held, 20, *trained(1), keep=[3])
    assert held.last_good() == 20
    assert len([*held.directory.iterdir()]) == 3
    save(held, 21, *trained(1), keep=[3])
    assert sorted(path.name for path in held.directory.iterdir()) == ["step_21", "step_3"]


def test_a_step_of_another_course_that_cannot_be_removed_is_an_error(held, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing(disk(errno.EACCES), 0, None))
        with pytest.raises(PermissionError):
            held.forget_after(3)


def test_a_kill_while_a_checkpoint_is_pruned_leaves_none_half(held, monkeypatch):
    def killed(path, **_):
        assert path.name.startswith("."), "half of it could be taken for a checkpoint"

    monkeypatch.setattr(storage.shutil, "rmtree", killed)
    save(held, 20, *trained(1), keep=[3])
    assert held.steps() == [3, 20]


def test_the_state_can_be_replaced_without_the_weights(held):
    before = (held.path(3) / "model.safetensors").read_bytes()
    held.save_state(3, {"step": 3, "tries": 1})
    after = json.loads((held.path(3) / "state.json").read_text())
    assert after.pop("digests").keys() == {
        "model.safetensors",
        "optimizer.safetensors",
        "ema.safetensors",
    }
    assert after.pop("digest")
    assert after == {"format": 1, "step": 3, "tries": 1}
    assert held.last_good() == 12
    assert (held.path(3) / "model.safetensors").read_bytes() == before
