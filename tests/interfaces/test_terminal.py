"""Lines come in chunks, numbered, and damage is counted once at the end; at a terminal each line is
one."""

import os
import pty
import subprocess
import sys
import threading
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.helpers import Stub
from tests.refusals import refusal
from transduct.errors import TransductError
from transduct.interfaces import progress, terminal
from transduct.interfaces.terminal import (
    check_drawable,
    is_one_document,
    is_picture,
    places,
    read_once,
)
from transduct.predictors.base import Report


def test_lines_come_in_numbered_chunks(trained_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "LINES_AT_ONCE", 2)
    (tmp_path / "text").write_bytes(b"a\nb\n\xff\nc\n\xfe")
    found = list(terminal.chunks(str(trained_run), tmp_path / "text"))
    assert found == [(0, ["a", "b"], None), (2, ["\ufffd", "c"], None), (4, ["\ufffd"], None)]
    said = (
        f"transduct: {tmp_path / 'text'}:3: not UTF-8 and 1 more; such bytes were read as U+FFFD\n"
    )
    assert capsys.readouterr() == ("", said)


def test_what_comes_before_a_line_that_cannot_be_read_is_answered(trained_run, tmp_path):
    (tmp_path / "text").write_bytes(b"a\nb\n" + b"x" * (5 << 20) + b"\nc\n")
    found = terminal.chunks(str(trained_run), tmp_path / "text")
    assert next(found) == (0, ["a", "b"], None)
    with refusal("text:3: found a line of more than 4,194,304 bytes"):
        next(found)


def test_a_file_without_lines_is_named(trained_run, tmp_path, capsys):
    (tmp_path / "text").touch()
    assert not list(terminal.chunks(str(trained_run), tmp_path / "text"))
    assert capsys.readouterr() == ("", f"transduct: warning: {tmp_path / 'text'}: nothing in it\n")


def test_prefixes_that_are_not_utf_8_are_reported(trained_run, tmp_path, capsys):
    (tmp_path / "text").write_bytes(b"a\nb\n")
    (tmp_path / "begun").write_bytes(b"c\n\xff\n")
    assert list(terminal.chunks(str(trained_run), tmp_path / "text", tmp_path / "begun")) == [
        (0, ["a", "b"], ["c", "\ufffd"])
    ]
    said = f"transduct: {tmp_path / 'begun'}:2: not UTF-8; such bytes were read as U+FFFD\n"
    assert capsys.readouterr() == ("", said)


def test_what_has_no_lines_is_refused(tmp_path):
    (tmp_path / "text").touch()
    assert terminal.require_text(tmp_path / "text") == tmp_path / "text"
    assert terminal.require_text(None) is terminal.require_text(Path("-")) is None  # stdin
    for path, what in ((tmp_path, "a folder"), (tmp_path / "gone", "no such file")):
        with refusal(f"{path}: {what}; give a text file, or none for stdin"):
            terminal.require_text(path)


def test_whole_text_is_not_remarked_upon(trained_run, tmp_path, capsys):
    (tmp_path / "text").write_text("a\n")
    assert list(terminal.chunks(str(trained_run), tmp_path / "text")) == [(0, ["a"], None)]
    assert capsys.readouterr() == ("", "")


def test_what_translations_begin_with_comes_along(trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "LINES_AT_ONCE", 2)
    (tmp_path / "text").write_text("a\nb\nc\n")
    (tmp_path / "begun").write_text("x\n\nz\n")
    found = list(terminal.chunks(str(trained_run), tmp_path / "text", tmp_path / "begun"))
    assert found == [(0, ["a", "b"], ["x", ""]), (2, ["c"], ["z"])]


@pytest.mark.parametrize(
    "begun, message",
    [
        ("x\n" * 4, "found 4 lines, the text has 3"),
        ("x\n" * 2, "found 2 lines, the text has more"),
        ("", "found 0 lines"),
    ],
)
def test_each_line_has_its_own_beginning(trained_run, tmp_path, begun, message):
    (tmp_path / "text").write_text("a\nb\nc\n")
    (tmp_path / "begun").write_text(begun)
    with refusal(f"begun: {message}.*; give a line for each, empty where anything may come"):
        list(terminal.chunks(str(trained_run), tmp_path / "text", tmp_path / "begun"))


def test_an_error_of_something_else_stays_as_it_is():
    for prefixes, message in ((None, "prefix 1: no"), (Path("begun"), "beam is 0")):
        with refusal(f"^{message}$"), terminal.naming_lines(prefixes, 4):
            raise TransductError(message)


def test_lines_of_a_pipe_are_taken_as_they_come(trained_run, monkeypatch):
    """Only the available lines, up to the limit; a line that arrives in two parts is one line."""
    monkeypatch.setattr(terminal, "LINES_AT_ONCE", 3)
    receiver, sender = os.pipe()
    with open(receiver, "rb") as stdin, open(sender, "wb", buffering=0) as pipe:
        monkeypatch.setattr("sys.stdin", TextIOWrapper(stdin))
        found = terminal.chunks(str(trained_run), None)
        pipe.write(b"a\nb\nc")
        assert next(found) == (0, ["a", "b"], None)
        pipe.write(b"d\n" + b"e\n" * 4)
        assert next(found) == (2, ["cd", "e", "e"], None)
        assert next(found) == (5, ["e", "e"], None)
        pipe.write(b"f")
        pipe.close()
        assert list(found) == [(7, ["f"], None)]


def test_at_a_terminal_lines_come_one_by_one(monkeypatch, capsys):
    given = iter(["a b", "", "a \udcff"])

    def typed(prompt):
        assert prompt == "", "it belongs on stderr"
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    assert list(terminal.typed()) == [(0, ["a b"], None), (1, [""], None), (2, ["a \ufffd"], None)]
    said = (
        "Write a sentence and press Enter; Ctrl-D ends.\n> > > transduct: not UTF-8; such "
        "bytes were read as U+FFFD\n> "
    )
    assert capsys.readouterr() == ("", said)


def test_a_line_on_a_terminal_can_be_edited_before_it_is_sent():
    pytest.importorskip("readline")
    script = (
        "from transduct.interfaces import terminal; [print(ascii(text)) for _, text, _ in "
        "terminal.typed()]"
    )
    ours, theirs = pty.openpty()
    call, environment = (
        [sys.executable, "-c", script],
        {**os.environ, "TERM": "xterm", "INPUTRC": os.devnull},
    )
    program = subprocess.Popen(call, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    said = b""
    try:
        # left, left, ..., right; Ctrl-D
        for prompts, typed in enumerate((b"bd\x1b[D\x1b[Dac\x1b[C\r", b"\x04"), 1):
            while said.count(b"> ") < prompts:
                said += os.read(ours, 999)
            os.write(ours, typed)
        assert program.wait(30) == 0
    finally:
        program.kill()
        program.wait()
        os.close(theirs)
        os.close(ours)
    assert b"['acbd']" in said


@pytest.mark.parametrize(
    "out, err, wanted, shown",
    [
        (False, True, True, True),
        (True, True, True, False),
        (False, False, True, False),
        (False, True, False, False),
    ],
)
def test_lines_are_counted_where_nobody_would_see_them_come(monkeypatch, out, err, wanted, shown):
    counted = []

    @contextmanager
    def count_lines():
        yield counted.append

    streams = {
        name: SimpleNamespace(isatty=lambda is_terminal=is_terminal: is_terminal)
        for name, is_terminal in (("stdout", out), ("stderr", err))
    }
    monkeypatch.setattr(terminal, "sys", SimpleNamespace(**streams))
    monkeypatch.setattr(progress, "count_lines", count_lines)
    with terminal.counting(wanted) as done:
        done(3)
    assert counted == [3] * shown


def test_answers_are_written_one_a_line(tmp_path):
    terminal.check_output(None)
    terminal.check_output(tmp_path / "out")
    terminal.write_outputs(["a\nb", "", 3], tmp_path / "out")
    assert (tmp_path / "out").read_text() == "a b\n\n3\n"
    terminal.check_output(tmp_path / "out")
    with refusal("out: this model gives no answers as text to write; leave --out out"):
        terminal.write_outputs([], tmp_path / "out")
    with refusal(f"out: there is no folder {tmp_path / 'none'}; make it, or give another"):
        terminal.check_output(tmp_path / "none" / "out")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with refusal(f"{path}: not a regular file; give another"):
            terminal.check_output(path)
    with refusal("this is an input; write to another file"):
        terminal.check_output(tmp_path / "out", [None, str(tmp_path / "." / "out")])


def test_scores_that_are_compared_have_as_many_digits():
    details = {
        "nats": {"interval": [1.46, 1.48]},
        "against": {"nats": 1.4741, "bleu": 30.5},
        "p_values": {"nats": 0.2},
    }
    said = [
        line.split() for line in terminal.table(Report({"nats": 1.4697, "bleu": 30.25}, details))
    ]
    assert said == [
        ["nats", "1.4697", "[1.4600,", "1.4800]", "against", "1.4741", "p", "=", "0.2000"],
        ["bleu", "30.25", "against", "30.50"],
    ]


def draws(given, output):
    return np.full((4, 6, 3), 200, np.uint8)


SHOWS = SimpleNamespace(attention_names=["encoder.0.self"])
TEXT = Stub()
PAINTER = Stub(
    paints=True, picture=draws, attention=print, verbs={"picture", "attention"}, model=SHOWS
)


@pytest.mark.parametrize(
    ("model", "path", "attention", "message"),
    [
        (TEXT, None, "a.svg", "m: this model has no attention to show; omit --attention"),
        (
            Stub(attention=print, verbs={"attention"}, model=SimpleNamespace(attention_names=[])),
            None,
            "a.svg",
            "m: this model has no",
        ),
        (
            PAINTER,
            None,
            None,
            r"m: this model answers with pictures; say where to draw them with --out FILE\.png",
        ),
        (TEXT, "a.png", None, "m: this model answers in text, which has no picture; omit --out"),
        (PAINTER, "a.txt", None, "'a.txt' does not name a picture; end it in "),
    ],
)
def test_impossible_pictures_are_refused_before_the_model_answers(model, path, attention, message):
    with refusal(f"^{message}"):
        check_drawable(model, "m", path and Path(path), attention and Path(attention))


@pytest.mark.parametrize(
    ("out", "inputs", "picture"),
    [
        ("a.png", ["a text"], True),
        ("a.xyz", ["a text"], True),  # which is then refused
        ("results.v2", ["{}/in.jsonl"], False),
        ("results.v2", ["in/*.parquet"], False),
        ("results", ["a text"], False),
        ("{}", ["a text"], False),
    ],
)
def test_a_folder_may_have_a_suffix(tmp_path, out, inputs, picture):
    folder = tmp_path / "a.b"
    folder.mkdir()
    (folder / "in.jsonl").touch()
    given = {"out": Path(out.format(folder))}
    inputs = [each.format(folder) for each in inputs]
    assert is_picture(given, inputs) == picture
    assert not is_picture({**given, "column": "text"}, inputs)


def test_a_document_of_another_kind_is_no_name_of_a_folder(tmp_path):
    with refusal("b.vtt: a document keeps its kind; end the name in .srt, or give a folder"):
        is_one_document({"out": Path("b.vtt")}, ["a.srt"])
    assert is_one_document({"out": Path("b.htm")}, ["a.html"])
    assert not is_one_document({"out": Path("b.v2")}, ["a.srt"])
    (tmp_path / "b.vtt").mkdir()
    assert not is_one_document({"out": tmp_path / "b.vtt"}, ["a.srt"])


def test_what_can_be_drawn_is_not_refused():
    check_drawable(TEXT, "m", None)
    check_drawable(PAINTER, "m", Path("a.png"), Path("b.svg"))


def test_bytes_that_are_no_text_are_marked_and_a_pipe_is_read_once(tmp_path):
    assert read_once(TEXT, b"a\xffb".decode(errors="surrogateescape")) == "a\ufffdb"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for reads in ("picture", "sound"):
        reader = Stub(reads=reads)
        assert read_once(reader, str(tmp_path)) == str(tmp_path)
        threading.Thread(target=pipe.write_bytes, args=(b"some",), daemon=True).start()
        assert read_once(reader, str(pipe)) == b"some"


def test_pictures_of_answers_are_numbered_where_there_are_several():
    assert places(PAINTER, ["a"], Path("x.png"), None) == [Path("x.png")]
    assert places(PAINTER, ["a", "b"], Path("f/x.png"), None) == [
        Path("f/x_1.png"),
        Path("f/x_2.png"),
    ]
    assert places(TEXT, ["a", "b"], None, Path("x.svg")) == []


@pytest.mark.parametrize(
    ("inputs", "out", "attention", "wrong"),
    [
        (["photo_2.png", "photo_1.png"], "photo.png", None, "photo_1.png"),
        (["street.jpg"], "./street.jpg", None, "street.jpg"),
        (["street.png"], None, "street.png", "street.png"),
        (["a.png"], "x.png", "x.png", "x.png"),
    ],
)
def test_no_picture_is_drawn_over_an_input_or_another(
    monkeypatch, tmp_path, inputs, out, attention, wrong
):
    monkeypatch.chdir(tmp_path)
    reader = Stub(reads="picture", picture=draws)
    with refusal(f"^{wrong}: this is an input, or another picture's place; draw to anoth"):
        places(reader, inputs, out and Path(out), attention and Path(attention))
    if out != attention:  # a text of that name is no file
        places(PAINTER, inputs, out and Path(out), attention and Path(attention))
