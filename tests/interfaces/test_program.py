"""Arguments and streams are made usable, options given twice are refused, and whatever goes wrong
ends the program with one line and its status."""

import errno
import gc
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated

import pytest
import torch
import typer

from tests.refusals import refusal
from transduct.errors import TrainingFailed, TransductError
from transduct.interfaces import program
from transduct.interfaces.program import (
    Command,
    Program,
    UsageError,
    ended,
    from_home,
    load,
    repeated,
    set_options,
    with_records,
)

app = typer.Typer(cls=Program)


@app.callback()
def main():
    """Makes the commands a group."""


@app.command(cls=Command)
def once(number: int = 0, name: list[str] = typer.Option([])):  # noqa: B008 (typer's way)
    if number == 7:
        raise KeyboardInterrupt


def run(*words):
    return app(list(words), standalone_mode=False)


def test_an_option_of_one_value_is_given_once():
    assert run("once", "--number", "1", "--name", "a", "--name", "b") is None
    with pytest.raises(UsageError) as found:
        run("once", "--number", "1", "--number", "2")
    assert found.value.format_message() == "--number is given 2 times and takes one value"


def test_an_interrupt_is_a_failure_of_one_line():
    with pytest.raises(TrainingFailed, match=r"^interrupted$"):
        run("once", "--number", "7")


@dataclass(frozen=True)
class Shared:
    """Options of several commands."""

    width: Annotated[int | None, typer.Option("--wide", help="How wide.")] = None
    fast: bool = False


@app.command(cls=Command)
@with_records
def shared(name: str, group: Shared, count: int = 1):
    """Show what was given."""
    raise UsageError(f"{name} {group} {count} {set_options(group)}")


def test_the_fields_of_a_record_are_options_of_the_command():
    for words, line in (
        (["a"], "a Shared(width=None, fast=False) 1 {}"),
        (["a", "--wide", "3", "--count", "2"], "a Shared(width=3, fast=False) 2 {'width': 3}"),
        (["a", "--fast"], "a Shared(width=None, fast=True) 1 {'fast': True}"),
    ):
        with pytest.raises(UsageError) as found:
            run("shared", *words)
        assert found.value.format_message() == line


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (
            "train --source a b --target c d --out e",
            "train --source a --source b --target c --target d --out e",
        ),
        (
            "train --source a --target c x.y=1 --resume",
            "train --source a --target c x.y=1 --resume",
        ),
        ("train --source a x.y=1 b", "train --source a x.y=1 b"),
        ("train --source=a b --target=c d", "train --source=a --source b --target=c --target d"),
        ("train --source --target a b --out c", "train --source --target a --target b --out c"),
        ("train --source a=1 b x.y=1 c", "train --source a=1 --source b x.y=1 c"),
        ("train recipe.yaml --out a b", "train recipe.yaml --out a b"),
    ],
)
def test_an_option_of_several_files_is_repeated_for_each(words, found):
    assert repeated(words.split()) == found.split()


def test_a_home_folder_is_found_behind_an_option_too(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    words = ["train", "--out=~/run", "--source=a~b", "x=~/y", "~/z", "--resume"]
    assert from_home(words) == [
        "train",
        "--out=/home/me/run",
        "--source=a~b",
        "x=~/y",
        "~/z",
        "--resume",
    ]


PROGRAM = "from transduct.interfaces.program import open_streams; import sys; open_streams(); "


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_an_empty_one(streams):
    program = (
        PROGRAM + "print(1); print(2, file=sys.stderr); sys.exit(len(sys.stdin.buffer.read()))"
    )
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -c '{program}' {streams}"], input=b"", capture_output=True
    )
    assert done.returncode == 0
    assert done.stdout == (b"" if ">&-" in streams.split() else b"1\n")
    assert done.stderr == (b"" if "2>&-" in streams.split() else b"2\n")


def test_what_is_written_to_a_pipe_is_utf8_whatever_the_locale():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    call = [sys.executable, "-c", PROGRAM + "print(chr(0xD55C))"]
    assert (
        subprocess.run(call, env=environment, capture_output=True, check=True).stdout
        == "한\n".encode()
    )


def test_bytes_that_are_not_of_the_encoding_are_read():
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    call = [sys.executable, "-c", PROGRAM + "print(ascii(input()))"]
    done = subprocess.run(call, env=environment, input=b"a \xff\n", capture_output=True, check=True)
    assert done.stdout == b"'a \\udcff'\n"


@pytest.mark.parametrize(
    ("error", "said", "status"),
    [
        (TransductError("no such file"), "no such file", 2),
        (TrainingFailed("diverged"), "diverged", 1),
        (
            MemoryError("1 GB"),
            "out of memory; make the model, batch_tokens or the beam smaller (MemoryError: 1 GB)",
            1,
        ),
        (
            ZeroDivisionError("a\nb\x1b"),
            r"ZeroDivisionError: a b\x1b (see it all with: transduct --debug ...)",
            1,
        ),
        (
            OSError(errno.ELOOP, "Loops", "a"),
            "a: cannot be used (Loops); give another path, or the right to it",
            2,
        ),
        (
            OSError(errno.EACCES, "No"),
            "PermissionError: [Errno 13] No (see it all with: transduct --debug ...)",
            1,
        ),
        (
            OSError(errno.EIO, "broken"),
            "OSError: [Errno 5] broken (see it all with: transduct --debug ...)",
            1,
        ),
    ],
)
def test_an_error_is_one_line_and_a_status(error, said, status, capsys):
    assert ended(error, False) == (said, status)
    assert capsys.readouterr().err == ""
    assert ended(error, True) == (said, status)
    assert "Error" in capsys.readouterr().err or isinstance(error, TrainingFailed)


def test_what_pytorch_cannot_allocate_is_too_much():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    line, status = ended(caught.value, False)
    assert line.startswith(
        "out of memory; make the model, batch_tokens or the beam smaller (RuntimeError: "
    )
    assert status == 1


def test_a_full_disk_is_one(monkeypatch, capfd):
    moved = []
    monkeypatch.setattr(os, "dup2", lambda *given: moved.append(given[1]))
    assert ended(OSError(errno.ENOSPC, "full"), False) == (
        "the output: the disk is full; free some space and run again",
        2,
    )
    assert len(moved) == 1, "what is left in a buffer goes nowhere"


def test_what_comes_with_pytorch_is_not_looked_through_for_garbage(trained_run):
    gc.unfreeze()
    assert load(str(trained_run)).predict(["a b"])
    assert gc.isenabled()
    assert gc.get_freeze_count() > 100_000
    gc.unfreeze()


def test_the_program_ends_without_a_search_for_garbage(monkeypatch):
    """After Ctrl-C in a validation that took ten seconds on a busy machine."""

    def interrupted(*_, **__):
        raise TrainingFailed("interrupted")

    monkeypatch.setattr(program, "open_streams", lambda: None)
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    monkeypatch.setattr(program.warnings, "showwarning", program.warnings.showwarning)
    monkeypatch.setattr("transduct.devices.share_cores", lambda: None)
    gc.unfreeze()
    with pytest.raises(SystemExit):
        program.run(interrupted)
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()


def test_a_model_that_is_not_there_leaves_the_collector_as_it_was(tmp_path):
    with refusal("none"):
        load(str(tmp_path / "none"))
    assert gc.isenabled()
    gc.unfreeze()


def test_a_warning_is_one_line_without_its_place_in_the_source(capsys):
    program.show_warning(UserWarning("two\nlines"), UserWarning, "file.py", 7)
    assert capsys.readouterr().err == "transduct: warning: two lines\n"


@pytest.mark.parametrize(
    ("words", "refused"), [("translate runs/x", True), ("train r.yaml", False)]
)
def test_torchrun_around_another_command_is_refused_with_the_one_that_was_meant(
    monkeypatch, words, refused
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    program.refuse_launcher(words.split())  # another launcher, such as Slurm's
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    message = (
        "torchrun starts 2 processes, and each would translate everything; run this without "
        "torchrun: transduct translate runs/x"
    )
    with refusal(f"^{message}$") if refused else nullcontext():
        program.refuse_launcher(words.split())
