"""The log of a run: complete lines with the documented names, and TensorBoard events."""

import json
import math
import shutil
import sys
from contextlib import nullcontext
from types import ModuleType

import pytest

from tests.training.toy import train
from transduct.errors import TrainingFailed
from transduct.training import log as module
from transduct.training.log import RunLog, ignore


@pytest.fixture
def without_tensorboard(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)


@pytest.fixture
def board(monkeypatch):
    """A stand-in for TensorBoard's writer, which need not be installed."""
    written = []

    class SummaryWriter:
        def __init__(self, directory, purge_step):
            written.append(("open", directory, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append(("close",))

    stand_in = ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    return written


def records(directory):
    return [
        json.loads(line)
        for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def test_a_record_holds_the_names_that_are_promised(tmp_path):
    watched = []
    train(tmp_path, report=watched.append)
    found = records(tmp_path)
    steps = [record for record in found if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 13))
    promised = {"step", "seconds", "loss", "tokens_per_second", "learning_rate", "memory"}
    for record in steps:
        assert promised <= record.keys()
        assert record["loss"] > 0
        assert record["tokens_per_second"] > 0
        assert 0 <= record["waiting"] <= 1
    assert [r["seconds"] for r in steps] == sorted(r["seconds"] for r in steps)
    validations = [record for record in found if "scores" in record]
    assert [record["step"] for record in validations] == [4, 8, 12]
    assert all(
        record["scores"].keys() == {"loss"}
        and record["validation_seconds"] >= 0 < record["seconds"]
        for record in validations
    )
    for event, record in zip(watched, found, strict=True):
        details = {"seen": "all"} if "scores" in record else {"steps": 12}
        assert event == {**record, "details": details}, "details are for whoever watches"


@pytest.mark.parametrize(
    "every, steps",
    [
        (5, [1, 2, 4, 5, 10, 12]),
        (12, [1, 2, 4, 8, 12]),
        (99, [1, 2, 4, 8, 12]),
        (1, [*range(1, 13)]),
    ],
)
def test_the_first_steps_and_the_last_are_logged(tmp_path, every, steps):
    train(tmp_path, log_every=every, validate=None)
    assert [record["step"] for record in records(tmp_path)] == steps


def test_events_go_to_tensorboard_where_it_is_installed(tmp_path, board):
    log = RunLog(tmp_path, ignore)
    log.write({"step": 3, "epoch": 1, "loss": 0.5, "memory": 7})
    log.write({"step": 4, "scores": {"bleu": 30.0}, "name": "text"}, {"samples": []})
    log.close()
    assert board == [
        ("open", str(tmp_path / "tensorboard"), None),
        ("loss", 0.5, 3),
        ("memory", 7, 3),
        ("bleu", 30.0, 4),
        ("close",),
    ]


def test_events_of_steps_to_be_taken_again_are_hidden(tmp_path, board):
    log = RunLog(tmp_path, ignore)
    log.forget_after(3)
    log.write({"step": 4, "loss": 0.5})
    assert board == [("open", str(tmp_path / "tensorboard"), 4), ("loss", 0.5, 4)]


def test_the_log_is_json_whatever_the_scores(tmp_path, without_tensorboard):
    log = RunLog(tmp_path, ignore)
    log.write({"step": 1, "scores": {"ap": math.nan, "loss": math.inf, "bleu": 1.5}})
    assert (
        log.path.read_text(encoding="utf-8")
        == '{"step": 1, "scores": {"ap": null, "loss": null, "bleu": 1.5}}\n'
    )


@pytest.mark.parametrize("best, error", [(None, None), ("beauty", TrainingFailed)])
def test_a_run_closes_tensorboards_file_however_it_ends(tmp_path, board, best, error):
    with pytest.raises(error) if error else nullcontext():
        train(tmp_path, steps=2, best=best)
    assert ("learning_rate", 0.05, 2) in board
    assert board[-1] == ("close",)


@pytest.mark.parametrize("call", ["__init__", "add_scalar", "close"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("tensorflow's own")]
)
def test_a_tensorboard_that_fails_is_turned_off_with_one_notice(
    tmp_path, board, monkeypatch, call, error
):
    def fails(*_, **__):
        raise error

    said = []
    monkeypatch.setattr(sys.modules["torch.utils.tensorboard"].SummaryWriter, call, fails)
    _, state = train(tmp_path, steps=3, report=said.append, validate=None)
    assert state.step == 3
    assert [event["step"] for event in said if "loss" in event] == [1, 2, 3]
    [notice] = [event for event in said if "notice" in event]
    assert (
        notice["notice"]
        == f"TensorBoard's events are no longer written ({error}); log.jsonl has everything"
    )
    assert notice["step"] == (3 if call == "close" else 1)
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3]


# its thread ends of it
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_folder_of_tensorboards_that_is_removed_ends_no_run(tmp_path):
    pytest.importorskip("tensorboard")
    said = []

    def remove(event):
        said.append(event)
        shutil.rmtree(tmp_path / "tensorboard", ignore_errors=True)

    _, state = train(tmp_path, report=remove, validate=None)
    assert state.step == 12
    assert len([event for event in said if "notice" in event]) == 1


def test_what_only_has_its_name_is_not_tensorboard(tmp_path, monkeypatch):
    """A folder "tensorboard" beside the program, as every run has one, is found as a package."""
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # its import fails
    log = RunLog(tmp_path, ignore)
    log.write({"step": 1})
    log.write({"step": 2})
    log.close()
    assert [record["step"] for record in records(tmp_path)] == [1, 2]


def test_without_tensorboard_there_is_only_the_log(tmp_path, without_tensorboard):
    log = RunLog(tmp_path, ignore)
    log.write({"step": 1, "text": "한국어"})
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
    assert (tmp_path / "log.jsonl").read_text(encoding="utf-8") == '{"step": 1, "text": "한국어"}\n'


@pytest.mark.parametrize("rest", [b"", b'{"step": 2', b'{"step": 2}', b"\0\0\n", b"5\nnull\n{}\n"])
def test_records_of_steps_to_be_taken_again_are_forgotten(tmp_path, without_tensorboard, rest):
    log = RunLog(tmp_path, ignore)
    log.forget_after(0)
    assert not log.path.exists()
    for step in (1, 2, 2, 3):
        log.write({"step": step})
    with log.path.open("ab") as file:
        file.write(rest)
    log.forget_after(2)
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 2]
