"""The program as its user meets it: what it prints, where, and how it ends."""

import errno
import gzip
import inspect
import io
import json
import os
import pickle
import re
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import transduct
from tests.forked import apart
from tests.helpers import Stub
from tests.recipes import tiny_recipe
from transduct import storage
from transduct.config import load_recipe
from transduct.data.images import as_picture, read_picture
from transduct.data.samples import generate
from transduct.devices import fast_precision, pick_device
from transduct.drawing.plots import draw_attention
from transduct.errors import MissingExtra, TransductError
from transduct.formats.documents import Document
from transduct.inference import engine
from transduct.interfaces import cli, terminal
from transduct.interfaces import demo as interfaces_demo
from transduct.predictors import base as predictors_base
from transduct.predictors import shortlists
from transduct.predictors.base import Attention, Predictor
from transduct.predictors.image_classification import PictureClassifier, attended
from transduct.predictors.translation import Translator
from transduct.runs import evaluate as evaluation
from transduct.serving import server
from transduct.tasks import translation
from transduct_bench import rows

COMMANDS = [
    "demo",
    "train",
    "prepare",
    "filter",
    "translate",
    "predict",
    "evaluate",
    "convert",
    "describe",
    "inspect",
    "score",
    "serve",
    "bench",
    "learn",
]
TINY = [
    "training.steps=2",
    "model.d_model=16",
    "model.num_heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
]
SOME = b"a b c\nd e f\ng\nh i\nj\n"
STRANGE = [
    "",
    "   ",
    "\t",
    "a" * 300,
    "a\0b",
    "a\rb",
    "\u2028",
    "x\u0085y",
    "\u1100\u1161",
    "🙂",
    "</s>",
    "a b c",
]


class Input(io.TextIOWrapper):
    """Stands for stdin."""

    terminal = False

    def isatty(self):
        return self.terminal


@dataclass
class Done:
    """How a call of the program ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self):
        """What was written to stdout, line by line."""
        assert self.out == b"" or self.out.endswith(b"\n")
        return self.out.decode().split("\n")[:-1]


@pytest.fixture
def program(monkeypatch, capsysbinary):
    """Call the program in this process: bytes in, bytes out, an exit status."""

    def call(*words, given=b""):
        monkeypatch.setattr(sys, "argv", ["transduct", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", Input(io.BytesIO(given)))
        capsysbinary.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        except Exception as error:  # noqa: BLE001 (as Python itself does at the end of a program)
            sys.excepthook(type(error), error, error.__traceback__)
            code = 1
        captured = capsysbinary.readouterr()
        return Done(code, captured.out, captured.err.decode())

    return call


def assert_refused(done, *parts, code=2):
    """One line that names all the parts, and nothing else."""
    assert (done.code, done.out) == (code, b"")
    assert done.err.startswith("transduct: ")
    assert done.err.count("\n") == 1
    for part in parts:
        assert part in done.err


def write_pairs(folder, pairs, names=("train.a", "train.b")):
    """The two sides of some pairs as files; their paths."""
    paths = [folder / name for name in names]
    for side, path in enumerate(paths):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return paths


# help, usage, and how errors look


def test_a_flag_may_be_repeated(program):
    assert_refused(program("evaluate", "m", "--json", "--json"), "m: no such folder")


def test_help_comes_without_torch():
    """A subprocess, for this one has imported everything."""
    script = f"""
import sys
from transduct.interfaces.cli import main
for words in [["--help"], *[[name, "--help"] for name in {COMMANDS}]]:
    sys.argv = ["transduct", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
heavy = {{"torch", "numpy", "tokenizers", "pyarrow", "sacrebleu"}} & sys.modules.keys()
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: ") == len(COMMANDS) + 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(program, command):
    done = program(command, "--help")
    assert done.code == 0
    assert b"Example" in done.out
    assert f"transduct {command} ".encode() in done.out.replace(b"\n", b" ")


def test_these_are_all_commands():
    own = [command.callback.__name__ for command in cli.app.registered_commands]
    assert [*own, "bench", "learn"] == COMMANDS  # which two packages of this repository add


@pytest.mark.parametrize(
    "words", [["transmute"], ["translate"], ["translate", "m", "--beam", "x"], ["score", "m"]]
)
def test_a_wrong_call_ends_with_2(program, words):
    command = "" if words == ["transmute"] else f" {words[0]}"
    assert_refused(program(*words), f"(see: transduct{command} --help)")


def test_no_summary_of_a_command_is_cut_short(program):
    _, *terminal = program("--help").lines  # after "Usage: ... [ARGS]..."
    assert [line for line in terminal if line.endswith("...")] == []


def test_without_a_command_it_explains_itself(program):
    done = program()
    assert (done.code, done.err) == (0, "")
    assert all(command in done.out.decode() for command in COMMANDS)


def test_debug_shows_where_an_error_came_from(program, tmp_path):
    assert_refused(program("translate", tmp_path), "no config.json here")
    for words in (["--debug", "translate", tmp_path], ["translate", tmp_path, "--debug"]):
        done = program(*words)
        assert done.code == 2, "as without it"
        assert "Traceback" in done.err
        assert "model_directory" in done.err
        assert done.err.splitlines()[-1].startswith("transduct: ")
    assert_refused(program("predict", tmp_path, "--", "--debug"), "no config.json here")


def test_the_version_is_printed(program):
    assert program("--version").lines == [f"transduct {transduct.__version__}"]


def watched(monkeypatch, place, name):
    """The calls of a function, each as its arguments by name; in its place, one that refuses."""
    calls, signature = [], inspect.signature(getattr(place, name))

    def refuse(*given, **named):
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        more = [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
        calls.append(
            {**bound.arguments, **{k: v for n in more for k, v in bound.arguments[n].items()}}
        )
        raise TransductError("not now")

    monkeypatch.setattr(place, name, refuse)
    return calls


SEARCH = {
    "beam": 7,
    "length_penalty": 0.5,
    "batch_tokens": 77,
    "workers": 3,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "seed": 11,
    "shortlist": True,
    "captured": True,
    "sentences": True,
    "no_repeat": 3,
}
FLAGS = [
    (
        "translate {run} --n-best 4 --beam 7 --length-penalty 0.5 --batch-tokens 77 --workers 3 "
        "--temperature 0.7 --top-k 5 --top-p 0.9 --seed 11 --shortlist --captured --sentences "
        "--no-repeat 3",
        (Translator, "translate"),
        {"texts": ["a b"], "n_best": 4, "options": SEARCH},
    ),
    ("translate {run}", (Translator, "translate"), {"n_best": 1, "options": {}}),
    (
        "translate m --device cuda:7 --precision bfloat16",
        (predictors_base, "load"),
        {"path": "m", "device": "cuda:7", "precision": "bfloat16", "verb": "translate"},
    ),
    ("predict m a --device cuda:7", (predictors_base, "load"), {"path": "m", "device": "cuda:7"}),
    ("evaluate {run} --beam 7", (Translator, "evaluate"), {"options": {"beam": 7}}),
    (
        "evaluate m --source s --reference r --against other --device cuda:7 --precision bfloat16",
        (evaluation, "evaluate"),
        {
            "path": "m",
            "files": {"source": "s", "reference": "r"},
            "against": "other",
            "device": "cuda:7",
            "precision": "bfloat16",
        },
    ),
    (
        "evaluate m --source s --target r --reference q",
        (evaluation, "evaluate"),
        {"files": {"source": "s", "reference": ["r", "q"]}, "options": {}},
    ),
    (
        "score m --source s --target t --device cuda:7 --precision bfloat16",
        (evaluation, "scores"),
        {
            "path": "m",
            "files": {"source": "s", "reference": "t"},
            "device": "cuda:7",
            "precision": "bfloat16",
        },
    ),
    (
        "score m --source s --reference t",
        (evaluation, "scores"),
        {"files": {"source": "s", "reference": "t"}},
    ),
    (
        "score m --source s --target t --device cuda:7",
        (evaluation, "load"),
        {"path": "m", "device": "cuda:7"},
    ),
    (
        "bench train --against torch --size tiny --vocabulary 99 --sentences 9 --threads 5 "
        "--rounds 7 --only captions --device cuda:7",
        (rows, "run"),
        {
            "what": "train",
            "against": "torch",
            "sizes": rows.Sizes("tiny", 99, 9, 5, "cuda:7"),
            "rounds": 7,
            "only": "captions",
            "given": None,
        },
    ),
    ("bench decode --model m --text t", (rows, "run"), {"given": ("m", Path("t")), "rounds": 3}),
    ("demo --out m", (interfaces_demo, "run"), {"directory": Path("m")}),
    (
        "serve m --port 7 --host h --waiting 9 --keys k --device cuda:7 --precision bfloat16",
        (server, "serve"),
        {
            "models": ["m"],
            "host": "h",
            "port": 7,
            "waiting": 9,
            "keys": Path("k"),
            "device": "cuda:7",
            "precision": "bfloat16",
        },
    ),
]


@pytest.mark.parametrize(
    "words, function, expected", FLAGS, ids=[flags[0].replace("{run}", "m") for flags in FLAGS]
)
def test_every_flag_reaches_the_function_that_it_is_for(
    program, trained_run, monkeypatch, words, function, expected
):
    calls = watched(monkeypatch, *function)
    assert_refused(
        program(*words.format(run=trained_run).split(), given=b"a b\n"), "transduct: not now"
    )
    [call] = calls
    assert {name: call[name] for name in expected} == expected


def test_an_output_folder_in_use_is_refused_before_the_text_is_read(program, tmp_path):
    paths = write_pairs(tmp_path, list(generate("reverse", 12)))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    words = f"train --source {paths[0]} --target {paths[1]} --out {tmp_path / 'taken'}".split()
    assert_refused(
        program(*words, *TINY),
        "taken: holds files that do not belong to a run; choose an empty or a new folder for --out",
    )


def test_several_files_may_follow_one_option(program, tmp_path):
    pairs = list(generate("reverse", 24))
    paths = [write_pairs(tmp_path, pairs[i : i + 12], (f"{i}.a", f"{i}.b")) for i in (0, 12)]
    sources, targets = zip(*paths)
    words = ["train", "--source", *sources, "--target", *targets, *TINY, "--out", tmp_path / "run"]
    assert program(*words).code == 0
    assert load_recipe(tmp_path / "run" / "recipe.yaml").data["train"][0]["source"] == [
        *map(str, sources)
    ]
    words = ["filter", *words[1 : words.index(TINY[0])], "--report-only"]
    assert b" of 24 pairs" in program(*words, "--out", tmp_path / "report").out


def test_what_is_called_train_is_not_the_command(program, trained_run, monkeypatch, tmp_path):
    """Words are repeated for the command alone: here it is the model's name, after an option's
    file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").symlink_to(trained_run)
    source, target = write_pairs(tmp_path, [("a b", "b a")])
    assert (
        program("evaluate", "--source", source, "train", "--reference", target, "--json").code == 0
    )


def test_an_error_in_a_section_names_the_recipe_s_file(program, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        yaml.dump({"task": "translation", "training": {"stepz": 3}, "data": {"train": []}})
    )
    for words, message in (
        ([], f"{path}:2: data.train is empty"),
        (["data.train=[{source: a, target: b}]"], f"{path}:5: unknown key 'training.stepz'"),
        (["data.train=[]"], "the override 'data.train=[]': data.train is empty"),
    ):
        assert_refused(
            program("train", path, *words, "--out", tmp_path / "run"), f"transduct: {message}"
        )


def test_attention_without_a_line_is_refused(program, trained_run, tmp_path):
    done = program("translate", trained_run, "--attention", tmp_path / "look.svg", given=b"")
    assert_refused(done, "found no line to draw the attention of; give one at least")


def test_an_error_of_ours_is_one_line_too(program, trained_run, monkeypatch):
    monkeypatch.setattr(engine, "find", lambda *given: 1 // 0)
    done = program("translate", trained_run, given=b"a\n")
    assert_refused(
        done,
        "ZeroDivisionError: integer division or modulo by zero (see it all with: transduct",
        code=1,
    )
    assert "Traceback" in program("--debug", "translate", trained_run, given=b"a\n").err


def test_the_program_itself_ends_with_one_line(trained_run):
    """In a process of its own, where typer has a hook for what nobody caught."""
    code = "from transduct.inference import engine; engine.find = None\n"
    code += "from transduct.interfaces.cli import main; main()"
    command = [sys.executable, "-c", code, "translate", str(trained_run)]
    done = subprocess.run(command, input=b"a\n", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    assert done.stderr.startswith(b"transduct: TypeError: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "words, place, name, said",
    [
        ("translate {run}", engine, "find", "interrupted"),
        (
            "train --source {text} --target {text} --out {out}",
            translation,
            "prepare",
            "interrupted; go on with --resume",
        ),
    ],
    ids=["translate", "train"],
)
def test_a_signal_anywhere_ends_it_with_one_line(
    trained_run, tmp_path, number, words, place, name, said
):
    def before():
        setattr(place, name, lambda *_, **__: signal.raise_signal(number))
        # which a shell's `&` takes away
        signal.signal(signal.SIGINT, signal.default_int_handler)

    (tmp_path / "text").write_text("a b\nc d\n" * 9)
    words = words.format(run=trained_run, text=tmp_path / "text", out=tmp_path / "run").split()
    with apart(*words, before=before) as process:
        code, out, error = process.ended(b"a\n")
    assert (code, out, error.splitlines()[-1]) == (1, b"", f"transduct: {said}".encode())
    assert b"Traceback" not in error


@pytest.mark.parametrize("command", ["train", "predict", "convert", "bench"])
def test_examples_stand_on_lines_of_their_own(program, command):
    terminal = [line.strip() for line in program(command, "--help").lines]
    assert "Examples:" in terminal
    assert terminal[terminal.index("Examples:") + 1].startswith(f"transduct {command} ")
    assert terminal[terminal.index("Examples:") + 2].startswith(f"transduct {command} ")


def test_files_to_translate_may_be_compressed_or_no_plain_files(trained_run, tmp_path):
    given = b"a b c\nd e\n"
    (tmp_path / "text.gz").write_bytes(gzip.compress(given))
    (tmp_path / "text").write_bytes(given)
    expected = transduct.load(trained_run).predict(["a b c", "d e"])
    for name in ("text.gz", "text", "/dev/stdin"):
        with apart("translate", trained_run, tmp_path / name) as process:
            code, out, _ = process.ended(given)
        assert (code, out.decode().splitlines()) == (0, expected)


def test_a_reader_who_has_had_enough_is_no_error(trained_run):
    with apart("translate", trained_run) as process:
        process.stdout.close()
        assert process.ended(b"a b c\n" * 9) == (0, b"", b"")


# translate


def test_a_line_out_for_each_line_in_from_stdin_and_from_a_file(
    program, trained_run, tmp_path, monkeypatch
):
    monkeypatch.setattr(terminal, "LINES_AT_ONCE", 5)
    text = "".join(f"{line}\n" for line in STRANGE)
    expected = [t.text for t in transduct.load(trained_run).translate(STRANGE)]
    from_stdin = program("translate", trained_run, given=text.encode("utf-8-sig"))
    assert (from_stdin.code, from_stdin.lines) == (0, expected)
    assert any(expected)
    (tmp_path / "input").write_bytes(text.encode())
    assert program("translate", trained_run, tmp_path / "input").out == from_stdin.out


@pytest.mark.parametrize(
    "given, count",
    [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\n\n", 2), (b"a\r\nb\r\n", 2), (b"a\rb", 1),
     (b"\xef\xbb\xbfa\n", 1), (b"\xe2\x80\xa8\n\xc2\x85\n\x0b\n\x0c", 4), (b"\0\n\0", 2)],
)  # fmt: skip
def test_lines_are_counted_as_wc_does(program, trained_run, given, count):
    done = program("translate", trained_run, given=given)
    assert (done.code, len(done.lines)) == (0, count)


def test_a_document_comes_back_whole_and_other_structures_are_refused(
    program, trained_run, tmp_path
):
    content = b"1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>a b c</i>\r\n\r\n"
    (tmp_path / "a.srt").write_bytes(content)
    (tmp_path / "a.srt.gz").write_bytes(gzip.compress(content))
    [text] = transduct.load(trained_run).predict(["a b c"])
    expected = content.replace(b"a b c", text.encode())
    for path, given in ((tmp_path / "a.srt", b""), (tmp_path / "a.srt.gz", b""), ("-", content)):
        done = program("translate", trained_run, path, given=given)
        assert (done.code, done.out) == (0, expected), done.err
    words = ["translate", trained_run, tmp_path / "a.srt"]
    assert_refused(
        program(*words, "--scores"), "a.srt: a document comes back whole; leave out --n-b"
    )
    assert len(program(*words, "--text").lines) == 4
    (tmp_path / "a.srt").write_bytes("1\n00:00:01,000 --> 00:00:02,000\nЭто да.\n".encode("cp1251"))
    assert_refused(program(*words), "a.srt:3: byte 1 is 0xdd, which is not UTF-8; conv")
    html = b"<!DOCTYPE html>\n<p class=x>a b c</p>\n"
    done = program("translate", trained_run, given=html)
    assert (done.code, done.out) == (0, html.replace(b"a b c", text.encode())), done.err
    assert len(program("translate", trained_run, "--text", given=html).lines) == 2
    done = program("translate", trained_run, given=b'{"a": "b"}\n')
    assert_refused(done, "stdin: found JSON lines, expected lines of text; write its texts")


def test_one_document_is_written_to_a_file_of_its_kind(program, trained_run, tmp_path, monkeypatch):
    document = Path(__file__).parents[1] / "formats" / "files" / "letter.docx"
    model = transduct.load(trained_run)
    found = Document(".docx", "", document.read_bytes())
    expected = found.translated(model.translate_marked(found.segments))
    out = tmp_path / "letter.de.docx"
    done = program("translate", trained_run, document, "--out", out)
    assert (done.code, done.out, out.read_bytes()) == (0, b"", expected), done.err
    assert program("translate", trained_run, document).out == expected
    (tmp_path / "a.md").write_bytes(b"# a\n\n* b\n")
    heading, item = model.predict(["a", "b"])
    done = program("translate", trained_run, tmp_path / "a.md")
    assert done.out.decode() == f"# {heading}\n\n* {item}\n"
    (tmp_path / "a.txt").write_bytes("a b\r\n\r\nc".encode("utf-16"))
    done = program("translate", trained_run, tmp_path / "a.txt", "--out", tmp_path / "b.txt")
    assert (done.code, (tmp_path / "b.txt").read_bytes()[:2]) == (0, b"\xff\xfe"), done.err
    memory = b'<tmx><tu><tuv lang="x"><seg>a b</seg></tuv><tuv lang="y"><seg/></tuv></tu></tmx>'
    (tmp_path / "a.tmx").write_bytes(memory)
    [text] = model.predict(["a b"])
    assert program("translate", trained_run, tmp_path / "a.tmx").out == memory.replace(
        b"<seg/>", f"<seg>{text}</seg>".encode()
    )
    same = program("translate", trained_run, document, "--out", document)
    assert_refused(same, "letter.docx: this is an input; write to another file")
    bad = program("translate", trained_run, tmp_path / "a.tmx", "--n-best", 2, "--out", "b.tmx")
    assert_refused(bad, "a.tmx: a document comes back whole; leave out --n-best")
    (tmp_path / "bad.docx").write_bytes(b"no archive")
    assert_refused(program("translate", trained_run, tmp_path / "bad.docx"), "bad.docx: damaged")
    monkeypatch.setitem(sys.modules, "defusedxml", None)
    missing = program("translate", trained_run, document, "--out", out)
    assert_refused(missing, "defusedxml is not installed; run: pip install 'transduct[documents]'")


def test_bytes_that_are_not_utf8_are_read_with_a_warning(program, trained_run):
    done = program("translate", trained_run, given=b"a b\n\xff c\nd\nb\xe4r\n")
    assert (done.code, len(done.lines)) == (0, 4)
    assert done.err == "transduct: stdin:2: not UTF-8 and 1 more; such bytes were read as U+FFFD\n"
    replaced = "a b\n\ufffd c\nd\nb\ufffdr\n".encode()
    assert program("translate", trained_run, given=replaced).out == done.out


def test_a_line_that_is_too_long_is_translated_in_pieces_with_a_warning(
    program, trained_run, caplog
):
    done = program("translate", trained_run, given=b"a b c\n" + b"a b " * 200 + b"\n")
    assert (done.code, len(done.lines)) == (0, 2)
    assert "a text of 400 tokens is longer than the model takes (39), translated in" in caplog.text


def test_scores_and_alternatives_stand_before_the_text(program, trained_run, monkeypatch):
    monkeypatch.setattr(terminal, "LINES_AT_ONCE", 2)
    plain = program("translate", trained_run, given=SOME).lines
    scored = program("translate", trained_run, "--scores", given=SOME).lines
    assert [line.split("\t", 1)[1] for line in scored] == plain
    assert all(float(line.split("\t")[0]) < 0 for line in scored)
    rows = [
        row.split("\t")
        for row in program("translate", trained_run, "--n-best", 2, given=SOME).lines
    ]
    assert {row[0] for row in rows} == set("12345")
    assert [next(row[1:] for row in rows if row[0] == n) for n in "12345"] == [
        line.split("\t") for line in scored
    ]


def test_terms_are_followed_and_what_is_lost_is_said(program, trained_run, tmp_path):
    (tmp_path / "terms").write_text("a\tz\tq\n")
    terms = ("--glossary", tmp_path / "terms", "--placeholders")
    done = program("translate", trained_run, *terms, given=b"b c\na b\nc 12\n")
    assert (done.code, len(done.lines)) == (0, 3)
    assert {*"zq"} & {*done.lines[1]}
    assert "line 3: the translation lacks 12" in done.err
    assert "line 2" not in done.err
    (tmp_path / "terms").write_text("a\n")
    done = program("translate", trained_run, *terms, given=b"a\n")
    assert (done.code, done.lines) == (2, [])
    assert "terms:1: expected a term, a tab and its translation" in done.err


def test_translations_begin_with_lines_of_a_file(program, trained_run, monkeypatch, tmp_path):
    monkeypatch.setattr(terminal, "LINES_AT_ONCE", 2)
    (tmp_path / "begun").write_text("c\n\nd e\n")
    free = program("translate", trained_run, given=b"a b c\nd e f\ng h\n").lines
    words = ["translate", trained_run, "--prefixes", tmp_path / "begun"]
    done = program(*words, "--attention", tmp_path / "look.svg", given=b"a b c\nd e f\ng h\n")
    assert (done.code, done.lines[1]) == (0, free[1])
    assert [line.split()[0] for line in done.lines[::2]] == ["c", "d"]
    assert done.lines[2].startswith("d e")
    assert (tmp_path / "look.svg").exists()
    (tmp_path / "begun").write_text("c\n\n☃\n")
    done = program(*words, given=b"a b c\nd e f\ng h\n")
    assert (done.code, len(done.lines)) == (2, 2)
    assert done.err.startswith(
        f"transduct: {tmp_path / 'begun'}:3: holds what no translation does, a character"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--beam", 1],
        ["--length-penalty", 0],
        ["--batch-tokens", 5],
        ["--precision", "bfloat16"],
        ["--temperature", 1, "--top-k", 5, "--top-p", 0.9, "--seed", 3],
    ],
)
def test_every_way_to_decode_runs_and_repeats_itself(program, trained_run, words):
    first, again = (
        program("translate", trained_run, *words, given=b"a b c\nd e f\n") for _ in range(2)
    )
    assert (first.code, len(first.lines)) == (0, 2)
    assert first.out == again.out


@pytest.mark.parametrize(
    "words, said",
    [
        (["--precision", "int3"], "unknown precision 'int3'; known are: float32, bfloat16"),
        (["--attention", "heads.gif"], "end it in .svg or .png"),
        (["--attention", "missing/heads.svg"], "heads.svg: there is no folder missing; make it"),
        (["missing.txt"], "missing.txt: no such file; give a text file, or none for stdin"),
    ],
)
def test_options_that_cannot_be_are_refused(program, trained_run, words, said):
    assert_refused(program("translate", trained_run, *words, given=b"a\n"), said)


def test_attention_is_drawn_for_the_first_line(program, trained_run, tmp_path):
    picture = tmp_path / "heads.svg"
    done = program("translate", trained_run, "--attention", picture, given=b"a b c\nd\n")
    assert (done.code, len(done.lines)) == (0, 2)
    drawn = picture.read_text(encoding="utf-8")
    for name in ("encoder.0.self", "decoder.0.self", "decoder.0.cross"):
        assert f"{name} head 1" in drawn
        assert f"{name} head 2" in drawn


def test_attention_is_that_of_the_translation_that_was_printed(program, trained_run, tmp_path):
    words = ["--temperature", "1.5", "--seed", "7", "--n-best", "3", "--attention"]
    given = b"a b c d e f g\n"
    done = program("translate", trained_run, *words, tmp_path / "heads.svg", given=given)
    model = transduct.load(trained_run)
    [found] = model.translate(["a b c d e f g"], 3, temperature=1.5, seed=7)
    assert (
        found.text
        == done.lines[0].split("\t")[2]
        != model.predict(["a b c d e f g"], temperature=1.5, seed=7)[0]
    )
    draw_attention(model, "a b c d e f g", tmp_path / "expected.svg", {"target": found.tokens})
    assert (tmp_path / "heads.svg").read_bytes() == (tmp_path / "expected.svg").read_bytes()


def test_who_writes_a_line_and_waits_is_answered(trained_run):
    expected = transduct.load(trained_run).predict(["a b c", "d e", "f"])
    with apart("translate", trained_run) as process:

        def answer():
            assert select.select([process.stdout], [], [], 120)[0], "it waits for more"
            return process.stdout.readline().decode()

        process.stdin.write(b"a b c\nd")
        assert answer() == f"{expected[0]}\n"
        process.stdin.write(b" e\nf")
        assert answer() == f"{expected[1]}\n"
        assert process.ended() == (0, f"{expected[2]}\n".encode(), b"")


def test_on_a_terminal_it_answers_line_by_line(program, trained_run, monkeypatch):
    monkeypatch.setattr(Input, "terminal", True)
    done = program("translate", trained_run, "--beam", 1, given=b"a b c\n\n")
    expected = transduct.load(trained_run).translate(["a b c", ""], beam=1)
    assert done.lines == [translation.text for translation in expected]
    assert done.err == "Write a sentence and press Enter; Ctrl-D ends.\n> > > "


def test_on_a_terminal_options_hold_as_they_do_elsewhere(
    program, trained_run, monkeypatch, tmp_path
):
    words = ("translate", trained_run, "--n-best", 2, "--attention", tmp_path / "heads.svg")
    expected = program(*words, given=b"a b c\nd\n").lines
    (tmp_path / "heads.svg").rename(tmp_path / "expected.svg")
    monkeypatch.setattr(Input, "terminal", True)
    found = program(*words, given=b"a b c\nd\n").lines
    # A line is translated alone there, and PyTorch's own layers round by the shape of a batch.
    for one, other in zip(found, expected, strict=True):
        [number, score, text], [same_number, same_score, same_text] = (
            line.split("\t") for line in (one, other)
        )
        assert (number, text) == (same_number, same_text)
        assert float(score) == pytest.approx(float(same_score), abs=1e-5)
    assert (tmp_path / "heads.svg").read_text() == (tmp_path / "expected.svg").read_text()
    scored = program("translate", trained_run, "--scores", given=b"a b c\n").lines
    assert len(scored) == 1
    assert "\t" in scored[0]


# predict, evaluate, score


def test_a_picture_that_cannot_be_drawn_loses_no_answer(
    program, trained_run, monkeypatch, tmp_path
):
    def nothing(*_, **__):
        raise TransductError("found nothing to attend to; give another")

    program("predict", trained_run, "a b c", "d", "--attention", tmp_path / "a.svg")
    assert "decoder.0.cross head 2" in (tmp_path / "a.svg").read_text()
    monkeypatch.setattr(Translator, "attention", nothing)
    done = program("predict", trained_run, "a b c", "d", "--attention", tmp_path / "a.svg")
    assert done.lines == transduct.load(trained_run).predict(["a b c", "d"])
    assert (done.code, done.err) == (2, "transduct: found nothing to attend to; give another\n")
    monkeypatch.setattr(terminal, "LINES_AT_ONCE", 1)  # nor one of those that are read later
    done = program("translate", trained_run, "--attention", tmp_path / "a.svg", given=b"a b c\nd\n")
    assert (done.code, done.lines) == (2, transduct.load(trained_run).predict(["a b c", "d"]))


def test_predict_answers_the_lines_of_files_and_of_stdin(program, trained_run, tmp_path):
    (tmp_path / "lines").write_bytes(b"a b\n\nc \xff\n")
    (tmp_path / "more").write_text("d")
    lines = ["a b", "", "c \ufffd", "x", "d", "e f", "g"]
    words = ["predict", trained_run, tmp_path / "lines", "x", tmp_path / "more", "-"]
    done = program(*words, given=b"e f\ng\n")
    model = transduct.load(trained_run)
    assert (done.code, done.lines) == (0, model.predict(lines)), done.err
    assert f"{tmp_path / 'lines'}:3: not UTF-8; such bytes were read as U+FFFD" in done.err
    done = program("predict", trained_run, "--text", tmp_path / "more", "", "-")
    assert done.lines == model.predict([str(tmp_path / "more"), "", "-"])
    assert program("predict", trained_run, tmp_path).lines == model.predict([str(tmp_path)])
    (tmp_path / "text.docx").write_bytes(b"PK\3\4" + b"x" * 99)
    assert_refused(program("predict", trained_run, tmp_path / "text.docx"), "found a zip archive")


class Picky(Stub):
    """Stands for a model that cannot answer some inputs; says when it is asked."""

    attention_names, asked = (), 0

    def predict(self, inputs):
        type(self).asked += len(inputs)
        if "odd" in inputs:
            raise TransductError("odd", input=inputs.index("odd"))
        if "silent.wav" in inputs:
            raise TransductError("silent", file="silent.wav")
        return [f"{given}!" for given in inputs]


def test_an_input_without_an_answer_leaves_its_line_empty(program, monkeypatch, tmp_path):
    monkeypatch.setattr(predictors_base, "load", lambda model, device: Picky())
    given = ["a", "silent.wav", "b", "odd", "c", "d"]
    done = program("predict", "m", *given)
    assert (done.code, done.lines) == (1, ["a!", "", "b!", "", "c!", "d!"])
    assert done.err.splitlines() == [
        "transduct: input 2: silent.wav: silent",
        "transduct: input 4: odd",
        "transduct: 2 of 6 inputs failed; see above",
    ]
    found = [json.loads(line) for line in program("predict", "m", *given, "--json").lines]
    assert found[:2] == [{"output": "a!"}, {"error": "silent.wav: silent"}]
    (tmp_path / "lines").write_text("a\nodd\n")
    done = program("predict", "m", tmp_path / "lines")
    assert (done.code, done.lines) == (1, ["a!", ""])
    assert f"transduct: {tmp_path / 'lines'}:2: odd" in done.err
    assert_refused(program("predict", "m", "odd"), "input 1: odd")


def test_the_first_answer_does_not_wait_for_the_last(program, monkeypatch):
    monkeypatch.setattr(predictors_base, "load", lambda model, device: Picky())
    asked = []

    def seen(value, **_):
        asked.append((value, Picky.asked))

    monkeypatch.setattr(terminal, "print", seen, raising=False)
    monkeypatch.setattr(Picky, "asked", 0)
    program("predict", "m", *(f"text {number}" for number in range(60)))
    assert asked[0] == ("text 0!", 1)
    assert asked[20] == ("text 20!", 31)
    assert asked[-1] == ("text 59!", 60)


def test_a_library_that_is_missing_is_no_fault_of_an_input(program, monkeypatch):
    def without(self, inputs):
        if inputs:
            raise MissingExtra("Pillow is not installed")
        return []

    monkeypatch.setattr(predictors_base, "load", lambda model, device: Picky())
    monkeypatch.setattr(Picky, "predict", without)
    assert_refused(program("predict", "m", "a", "b"), "Pillow is not installed")


def test_predict_reads_bytes_that_are_no_text_as_translate_does(program, trained_run):
    given = b"a \xff b"
    found = program("predict", trained_run, given.decode(errors="surrogateescape")).lines
    assert found == program("translate", trained_run, given=given + b"\n").lines


def test_predict_hands_options_on(program, trained_run):
    words = ["predict", trained_run, "a b c", "--set", "beam=1", "--set", "length_penalty=0.5"]
    assert program(*words).lines == transduct.load(trained_run).predict(
        ["a b c"], beam=1, length_penalty=0.5
    )
    assert_refused(
        program("predict", trained_run, "a", "--set", "beem=1"),
        "unknown key 'decoding.beem'",
        "'beam'",
    )
    assert_refused(
        program("predict", trained_run, "a", "--set", "inputs=1"),
        "'inputs' is not an option; leave it out",
    )


def test_predict_looks_at_every_name_before_it_answers(program, trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        Translator,
        "predict",
        lambda *_, **__: pytest.fail("answered before the name was looked at"),
    )
    done = program("predict", trained_run, "a b c", "--attention", tmp_path / "looks.jpg")
    assert_refused(done, "looks.jpg' does not name a picture; end it in .svg or .png")


class Seer(PictureClassifier):
    """Stands for a model of pictures: it says how wide one is, and draws it."""

    attention_names = ("encoder.0.self",)
    verbs = PictureClassifier.verbs | {"picture"}

    def __init__(self):
        pass

    def predict(self, inputs):
        return [as_picture(given, "input").shape[1] for given in inputs]

    def picture(self, given, output):
        return as_picture(given, "input")

    def attention(self, given):
        draw = partial(attended, picture=as_picture(given, "input"), grid=2)
        return Attention({"encoder.0.self": torch.ones(1, 5, 5)}, draw=draw)


def test_a_pipe_is_read_once_whatever_is_drawn(program, monkeypatch, tmp_path):
    monkeypatch.setattr(predictors_base, "load", lambda model, device: Seer())
    Image.new("RGB", (7, 5), "red").save(tmp_path / "a.png")
    os.mkfifo(tmp_path / "pipe")
    writer = Thread(
        target=(tmp_path / "pipe").write_bytes,
        args=[(tmp_path / "a.png").read_bytes()],
        daemon=True,
    )
    writer.start()
    words = ["--out", tmp_path / "out.png", "--attention", tmp_path / "looks.png"]
    done = program("predict", "m", tmp_path / "pipe", *words)
    assert done.lines == ["7"], done.err
    writer.join(10)
    assert read_picture(tmp_path / "out.png", "").shape == (5, 7, 3)
    assert (tmp_path / "looks.png").exists()
    done = program("predict", "m", "a" * 300, *words)
    assert_refused(done, "File name too long")
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} is no pipe"))
    assert program("predict", "m", tmp_path / "a.png", *words).lines == ["7"]


class Painter(Predictor):
    """Stands for a model that answers with pictures."""

    paints = True
    verbs = Predictor.verbs | {"picture"}
    load = test_set = measured = None

    def __init__(self):
        pass

    def predict(self, inputs):
        return [f"picture of {given}" for given in inputs]

    def picture(self, given, output):
        assert output == f"picture of {given}"
        return np.full((2, 3, 3), len(given), np.uint8)


def test_predict_draws_each_answer(program, monkeypatch, tmp_path):
    monkeypatch.setattr(predictors_base, "load", lambda model, device: Painter())
    done = program("predict", "m", "a", "--out", tmp_path / "one.png")
    assert done.lines == ["picture of a"], done.err
    program("predict", "m", "a", "bcd", "--out", tmp_path / "all.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all_1.png", "all_2.png", "one.png"]
    assert read_picture(tmp_path / "all_2.png", "").tolist() == [[[3] * 3] * 3] * 2
    monkeypatch.setattr(
        Painter, "predict", lambda *_: pytest.fail("painted before the name was looked at")
    )
    done = program("predict", "m", "a", "--out", tmp_path / "a.xyz")
    assert_refused(done, "a.xyz' does not name a picture; end it in .png, .jpg, .jpeg")


def test_convert_writes_for_another_tool(program, trained_run, tmp_path):
    done = program("convert", trained_run, tmp_path / "ct2", "--format", "ctranslate2")
    assert done.lines == [str(tmp_path / "ct2")]
    assert (tmp_path / "ct2" / "model.bin").exists()
    assert_refused(
        program("convert", trained_run, tmp_path / "x", "--precision", "int3"),
        "unknown 'int3'; known are: int8",
    )
    assert_refused(
        program("convert", tmp_path / "ct2", tmp_path / "x"),
        "config.json: has no 'format', so transduct did not write it, or wrote it for another "
        "tool; expected a mod",
    )


def test_convert_makes_a_model_smaller_and_puts_models_together(program, trained_run, tmp_path):
    small = tmp_path / "int8"
    done = program("convert", trained_run, small, "--precision", "int8")
    assert done.lines == [str(small)]
    found = program("predict", small, "a b c", "d").lines
    assert found == transduct.load(small).predict(["a b c", "d"])
    done = program("convert", trained_run, tmp_path / "both", "--with", small)
    assert done.lines == [str(tmp_path / "both")]
    alone = program("translate", trained_run, given=b"a b c\nd e\n").lines
    assert program("translate", tmp_path / "both", given=b"a b c\nd e\n").lines == alone


def test_steps_are_captured_where_that_is_asked_for(program, trained_run, monkeypatch):
    asked, found = [], engine.find
    monkeypatch.setattr(
        engine, "find", lambda *given: (asked.append(given[1][0].config.captured), found(*given))[1]
    )
    expected = program("translate", trained_run, given=b"a b c\nd e\n").lines
    assert program("translate", trained_run, "--captured", given=b"a b c\nd e\n").lines == expected
    assert (
        program("translate", trained_run, "--no-captured", given=b"a b c\nd e\n").lines == expected
    )
    assert asked == ["auto", True, False]


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_convert_learns_a_shortlist(program, trained_run, tmp_path, monkeypatch):
    text = tmp_path / "text"
    text.write_text("a b c\nd e\n")
    program("convert", trained_run, tmp_path / "short", "--precision", "int8", "--shortlist", text)
    assert (tmp_path / "short" / "shortlist.safetensors").exists()
    assert json.loads((tmp_path / "short" / "config.json").read_text())["quantised"] == "int8"
    narrow = program("translate", tmp_path / "short", text, "--shortlist")
    # it was learnt from just this text
    assert narrow.lines == program("translate", tmp_path / "short", text).lines
    program("convert", trained_run, tmp_path / "copy", "--shortlist", text)
    assert "quantised" not in json.loads((tmp_path / "copy" / "config.json").read_text())
    with monkeypatch.context() as refused:  # before a text is translated
        refused.setattr(shortlists, "align", None)
        again = program("convert", trained_run, tmp_path / "copy", "--shortlist", text)
        assert_refused(again, "copy: exists already")
    # a model that was made in a model's folder is no part of it
    (tmp_path / "copy" / "model").mkdir()
    (tmp_path / "copy" / "model" / "weights").touch()
    program("convert", tmp_path / "copy", tmp_path / "third", "--shortlist", text)
    assert {path.name for path in (tmp_path / "third").iterdir()} == {
        path.name for path in (tmp_path / "copy").iterdir() if path.is_file()
    }
    with monkeypatch.context() as patch:  # all files or none
        patch.setattr(storage, "put_in_place", full)
        done = program("convert", trained_run, tmp_path / "fourth", "--shortlist", text)
    assert_refused(done, "fourth: the disk is full; nothing was changed there")
    assert not (tmp_path / "fourth").exists()
    assert not (tmp_path / "none").exists()


def test_evaluate_prints_scores_signatures_and_intervals_and_writes_the_translations(
    program, trained_run, tmp_path
):
    source, reference = write_pairs(tmp_path, [*generate("reverse", 12)])
    words = ["evaluate", trained_run, "--source", source, "--reference", reference]
    found = json.loads(program(*words, "--json").out)
    assert found.keys() == {"scores", "details"}
    assert found["scores"].keys() == {"bleu", "chrf", "ter", "exact_match"}
    assert found["details"]["sentences"] == 12
    low, high = found["details"]["chrf"]["interval"]
    assert low <= found["details"]["chrf"]["mean"] <= high
    assert "version:" in found["details"]["bleu"]["signature"]
    table = program(*words, "--out", tmp_path / "found").lines
    assert [line.split()[0] for line in table] == list(found["scores"])
    assert [float(line.split()[1]) for line in table] == pytest.approx(
        list(found["scores"].values()), abs=0.005
    )
    assert (tmp_path / "found").read_bytes() == program("translate", trained_run, source).out
    done = program(*words, "--out", tmp_path)
    assert_refused(done, f"{tmp_path}: not a regular file; give another")


def test_a_line_may_have_several_references(program, trained_run, tmp_path):
    pairs = [*generate("reverse", 12)]
    source, reference = write_pairs(tmp_path, pairs)
    outputs = transduct.load(trained_run).predict([text for text, _ in pairs])
    _, other = write_pairs(tmp_path, [*zip(outputs, outputs)], ("own.a", "own.b"))
    words = ["evaluate", trained_run, "--source", source, "--json"]
    one = json.loads(program(*words, "--reference", reference).out)
    both, turned = (
        json.loads(program(*words, "--reference", first, "--reference", second).out)
        for first, second in ((reference, other), (other, reference))
    )
    assert both["scores"] == turned["scores"]
    assert both["scores"]["exact_match"] == 100.0 > one["scores"]["exact_match"]
    assert "nrefs:2" in both["details"]["bleu"]["signature"]


def test_evaluate_reads_the_test_set_of_the_recipe(program, trained_run):
    for model in (trained_run, trained_run / "model"):
        found = json.loads(program("evaluate", model, "--json", "--beam", 1).out)
        assert found["details"]["sentences"] == 8


def test_evaluate_takes_options_of_the_task(program, trained_run):
    words = ["evaluate", trained_run, "--json", "--beam", 2, "--set", "beam=1", "--set"]
    report = json.loads(program(*words, "length_penalty=0.6").out)
    assert report == json.loads(program("evaluate", trained_run, "--json", "--set", "beam=2").out)
    sampled = json.loads(program(*words, "temperature=5").out)
    assert sampled["scores"] != report["scores"]
    assert_refused(program(*words, "beem=1"), "unknown key 'decoding.beem'; did you mean 'beam'?")
    for name in ("data", "files", "device", "precision"):
        assert_refused(program(*words, f"{name}=1"), f"'{name}' is not an option; leave it out")


def test_evaluate_scores_by_what_is_asked_for(program, trained_run, tmp_path):
    source, target = write_pairs(tmp_path, [("a b c d e", "e d c b a"), ("c d", "d c")])
    words = ["evaluate", trained_run, "--source", source, "--reference", target, "--json"]

    def signature(name, *settings):
        done = program(*words, *(word for each in settings for word in ("--set", each)))
        assert done.code == 0, done.err
        return json.loads(done.out)["details"][name]["signature"]

    for tokenize in ("13a", "intl", "char", "zh", "none"):
        assert f"tok:{tokenize}" in signature("bleu", f"bleu_tokenize={tokenize}")
    assert "nw:2" in signature("chrf++", "metrics=chrf++,bleu")
    assert "nw:0" in signature("chrf", "metrics=chrf")


def test_a_finished_run_is_not_scored_otherwise_by_resuming_it(program, trained_run):
    done = program("train", "--resume", "--out", trained_run, "data.bleu_tokenize=zh")
    said = f"for others run: transduct evaluate {trained_run} --set bleu_tokenize=zh"
    assert_refused(done, "this run is finished and its scores are by data.bleu_tokenize=auto", said)
    done = program("train", "--resume", "--out", trained_run, "data.metrics=[chrf++]")
    assert_refused(done, f"transduct evaluate {trained_run} --set metrics=chrf++")


def test_evaluate_leaves_out_what_is_broken_if_asked(program, trained_run, tmp_path):
    source, target = write_pairs(tmp_path, [("a b", "b a"), ("c", "c"), ("d", "d")])
    target.write_bytes(b"b a\n\xff\nd\n")
    words = ["evaluate", trained_run, "--source", source, "--reference", target]
    assert_refused(program(*words), "0xff, which is not UTF-8")
    done = program(*words, "--skip-errors")
    assert done.code == 0
    assert done.lines[-1].split() == ["left_out", "1"]
    report = json.loads(program(*words, "--skip-errors", "--json").out)
    assert report["details"]["left_out"] == {"broken": 1}
    assert report["details"]["sentences"] == 2


def test_a_model_against_itself_shows_no_difference(program, trained_run):
    words = ["evaluate", trained_run, "--beam", 1, "--against", trained_run]
    report = json.loads(program(*words, "--json").out)
    details = report["details"]
    assert details["against"]["chrf"] == report["scores"]["chrf"]
    assert details["p_values"].keys() == details["against"].keys() >= {"bleu", "chrf", "ter"}
    assert min(details["p_values"].values()) > 0.9
    assert all("against" in line for line in program(*words).lines)


def test_evaluate_puts_both_models_on_the_device(program, trained_run, monkeypatch):
    devices, load = [], predictors_base.load
    monkeypatch.setattr(
        evaluation, "load", lambda *given: (devices.append(given[1:]), load(*given))[1]
    )
    words = ["--beam", 1, "--against", trained_run, "--device", "cpu", "--precision", "bfloat16"]
    assert program("evaluate", trained_run, *words).code == 0
    assert devices == [("cpu", "bfloat16")] * 2


def test_score_prints_one_number_a_line(program, trained_run, tmp_path):
    pairs = [*generate("reverse", 5), ("", ""), ("a", "")]
    source, target = write_pairs(tmp_path, pairs)
    done = program("score", trained_run, "--source", source, "--target", target)
    expected = transduct.load(trained_run).score(*zip(*pairs))
    assert [float(line) for line in done.lines] == pytest.approx(expected, abs=1e-5)


def test_a_pair_that_cannot_be_scored_keeps_its_line(program, trained_run, tmp_path):
    long = "a b " * 50
    source, target = write_pairs(tmp_path, [("a", "b"), (long, "b"), ("c", "d"), ("a", long)])
    source.write_bytes(source.read_bytes() + b"\xff\n")
    target.write_bytes(target.read_bytes() + b"e\n")
    words = ["score", trained_run, "--source", source, "--target", target]
    done = program(*words)
    expected = transduct.load(trained_run).score(["a", "c"], ["b", "d"])
    assert [bool(line) for line in done.lines] == [True, False, True, False, False]
    assert [float(done.lines[i]) for i in (0, 2)] == pytest.approx(expected, abs=1e-5)
    place = f"transduct: {source} and {target}: pair"
    assert done.err.splitlines() == [
        f"{place} 2: 100 tokens, the model takes 39; shorten it",
        f"{place} 4: 100 tokens, the model takes 39; shorten it",
        f"{place} 5: {source}, {target}, row 5: not UTF-8; write it again in UTF-8",
        "transduct: 3 of 5 pairs failed; see above",
    ]
    assert done.code == 1
    done = program(*words, "--json")
    found = [json.loads(line) for line in done.lines]
    assert [[*each] for each in found] == [["score"], ["error"], ["score"], ["error"], ["error"]]
    assert found[1]["error"] == "pair 2: 100 tokens, the model takes 39; shorten it"
    assert found[2]["score"] == pytest.approx(expected[1])


def test_an_error_on_a_rank_names_the_rank(program, tmp_path, monkeypatch):
    words = ["train", "--source", "none", "--target", "none", "--out", tmp_path / "run"]
    assert_refused(program(*words), "none: no such file")
    monkeypatch.setenv("RANK", "1")
    assert_refused(program(*words), "rank 1: none: no such file")


def test_of_several_ranks_one_prints_the_model(program, trained_run, monkeypatch):
    for rank, expected in (("0", [str(trained_run / "model")]), ("1", [])):
        monkeypatch.setenv("RANK", rank)
        done = program("train", "--out", trained_run, "--resume")
        assert (done.code, done.lines) == (0, expected)


@pytest.mark.parametrize(
    "words, said",
    [
        (["evaluate", "--source", "a"], "--source and --reference belong together"),
        (["evaluate", "--source", "none", "--reference", "none"], "none: no such file"),
        (["evaluate", "--source", ".", "--reference", "."], ".: a folder; name the files in it"),
    ],
)
def test_what_cannot_be_scored_is_refused(program, trained_run, words, said):
    assert_refused(program(words[0], trained_run, *words[1:]), said)


def test_a_wrong_call_is_refused_before_pytorch_is_imported(tmp_path):
    (tmp_path / "runs" / "de-en").mkdir(parents=True)
    calls = (
        ("evaluate runs/de-eb", "runs/de-eb: no such folder; did you mean runs/de-en?"),
        ("translate a", "a: no such folder; give a run or a model directory"),
        ("predict a b", "a: no such folder"),
        ("score a --source b --target b", "a: no such folder"),
        ("describe a", "a: no such folder"),
        ("inspect a b --out c.html", "a: no such folder"),
        ("serve a", "a: no such folder"),
        ("convert a b", "a: no such folder"),
        ("evaluate runs/de-en --against a", "a: no such folder"),
        ("evaluate runs/de-en --source none --reference none", "none: no such file"),
        ("score runs/de-en --source - --target -", "found - twice"),
        ("evaluate runs/de-en --out no/a", "no/a: there is no folder no"),
        ("train a.yaml training.steps 3", "write training.steps=3"),
        ("train a b", "found 2 recipes (a, b)"),
    )
    code = (
        "import sys\n"
        "from transduct.interfaces.cli import main\n"
        "for words in sys.argv[1:]:\n"
        "    sys.argv = ['transduct', *words.split()]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    words = [sys.executable, "-c", code, *(call for call, _ in calls)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, (_, said) in zip(done.stderr.splitlines(), calls, strict=True):
        assert said in line


def test_an_answer_that_could_not_be_written_is_refused_before_the_work(
    program, trained_run, monkeypatch
):
    for place, name in ((evaluation, "evaluate"), (Translator, "translate")):
        monkeypatch.setattr(place, name, lambda *_, **__: pytest.fail("worked first"))
    for words in ("evaluate --out", "predict a --attention", "translate --attention"):
        words = words.split()
        done = program(words[0], trained_run, *words[1:], "/proc/looks.svg")
        assert_refused(done, "/proc/looks.svg: cannot be written", "choose another place")
    assert_refused(program("convert", trained_run, "/proc/a/b"), "/proc/a/b: cannot be written")
    assert_refused(program("learn", "scale", "--out", "/proc/a"), "/proc/a: cannot be written")


def test_a_side_may_come_from_stdin(program, trained_run, tmp_path):
    source, target = write_pairs(tmp_path, [("a b", "b a"), ("c", "c")])
    words = ["score", trained_run, "--source", "-", "--target", target]
    expected = program("score", trained_run, "--source", source, "--target", target).lines
    assert program(*words, given=source.read_bytes()).lines == expected
    report = program(
        "evaluate", trained_run, "--source", source, "--reference", "-", given=target.read_bytes()
    )
    assert report.code == 0
    assert_refused(program(*words[:-1], "-"), "found - twice; stdin holds one of them")
    assert_refused(
        program("translate", trained_run, "--prefixes", "-", given=b"a\n"),
        "stdin holds the text; give the prefixes as a file",
    )


def test_an_override_that_changes_nothing_is_reported(program, run):
    done = program("train", "--resume", "--out", run, "training.steps=60")
    assert done.code == 0
    said = f"{run}: the override 'training.steps=60' changes nothing: it has this value already"
    rest = ", and is finished; to train it further, give more steps: training.steps=N"
    assert f"{said}{rest}\n" in done.err
    shutil.rmtree(run / "model")
    assert f"{said}\n" in program("train", "--resume", "--out", run, "training.steps=60").err


# models that cannot be used


def put_pickle_in_place(path):
    """One that would leave a file behind, were it run."""

    class Malice:
        def __reduce__(self):
            return open, (str(path.with_name("it was run")), "w")

    path.write_bytes(pickle.dumps(Malice()))


def test_a_damaged_model_is_refused_and_never_run(program, trained_run, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(trained_run / "model", model)
    put_pickle_in_place(model / "model.safetensors")
    said = "model.safetensors: not a whole safetensors file"
    assert_refused(program("translate", model), str(model), said)
    assert not (model / "it was run").exists()


# train


def write_recipe(folder, **sections):
    path = folder / "recipe.yaml"
    recipe = tiny_recipe(training={"steps": 2}, **sections)
    path.write_text(yaml.safe_dump({k: v for k, v in vars(recipe).items() if k != "stages"}))
    return path


def test_training_prints_the_model_and_writes_the_resolved_recipe(program, tmp_path):
    recipe, out = write_recipe(tmp_path), tmp_path / "deep" / "run"
    # without a checkpoint it starts afresh
    done = program("train", recipe, "training.learning_rate=1e-3", "--resume", "--out", out)
    assert (done.code, done.lines) == (0, [str(out / "model")])
    assert "step 2  loss " in done.err
    assert "step 2  validation: loss" in done.err
    resolved = load_recipe(out / "recipe.yaml")
    assert resolved.training["learning_rate"] == 1e-3
    assert (resolved.training["clip"], resolved.model["tie"]) == (1.0, "all")
    assert resolved.decoding["length_penalty"] == 1.0
    assert Path(resolved.data["root"]).is_absolute()
    held = {path.name for path in out.iterdir()}
    assert held >= {"recipe.yaml", "log.jsonl", "checkpoints", "model"}
    files = {"config.json", "model.safetensors", "tokenizer.json", "card.md"}
    assert {path.name for path in (out / "model").iterdir()} == files
    assert_refused(
        program("train", recipe, "--out", out),
        f"{out}: holds another run; continue it with --resume",
    )
    for words in ([recipe], []):
        again = program("train", *words, "--resume", "--out", out)
        assert (again.code, again.lines) == (0, [str(out / "model")])
        assert "this run is finished" in again.err


def test_the_run_is_named_after_its_recipe_and_a_profile_is_laid_over(
    program, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path)
    recipe.write_text(recipe.read_text() + "profiles: {quick: {training: {steps: 1}}}\n")
    done = program("train", "recipe.yaml", "--profile", "quick")
    assert done.lines == ["runs/recipe/model"]
    assert load_recipe(tmp_path / "runs" / "recipe" / "recipe.yaml").training["steps"] == 1
    assert_refused(program("train", "recipe.yaml", "--profile", "quik"), "did you mean 'quick'?")
    done = program("train", "--resume", "--out", "runs/recipe", "--profile", "quick")
    assert_refused(done, "--profile quick belongs to a recipe; give one, or leave it out")


def test_two_files_are_enough(program, tmp_path, monkeypatch):
    source, target = write_pairs(tmp_path, [*generate("reverse", 60)])
    out = tmp_path / "run"
    done = program("train", "--source", source, "--target", target, "--out", out, *TINY)
    assert (done.code, done.lines) == (0, [str(out / "model")])
    chosen = (
        "model size tiny, 2,000 subwords, 2 steps, "
        f"{fast_precision(pick_device('auto'))}; 6 pairs held out"
    )
    assert f"60 pairs; defaults for that many: {chosen}" in done.err
    assert "corpus prepared: 54 pairs (left out: 6 held out)" in done.err
    assert len(program("translate", out, given=b"a b\n").lines) == 1
    resumed = program("train", "--source", source, "--target", target, "--out", out, "--resume")
    assert "this run is finished" in resumed.err
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["--source", f"~/{source.name}", "--target", f"~/{target.name}"]
    assert "this run is finished" in program("train", *words, "--out", out, "--resume").err
    other = program("train", "--source", target, "--target", target, "--out", out, "--resume")
    assert_refused(
        other, f"{out}: --source is {target}, its run has {source}; choose another --out"
    )
    more = ["--valid-source", source, "--valid-target", target]
    other = program(
        "train", "--source", source, "--target", target, *more, "--out", out, "--resume"
    )
    assert_refused(other, f"--valid-source is {source}, its run has nothing; choose another --out")


def test_files_to_validate_on_are_used_instead_of_held_out_ones(program, tmp_path):
    source, target = write_pairs(tmp_path, [*generate("reverse", 60)])
    valid = write_pairs(tmp_path, [*generate("reverse", 4, "valid")], ["valid.a", "valid.b"])
    words = f"--source {source} --target {target} --valid-source {valid[0]} --valid-target"
    done = program("train", *words.split(), valid[1], "--out", tmp_path / "run", *TINY)
    assert "0 pairs held out" in done.err
    log = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    assert [len(each["scores"]) for each in log if "scores" in each][-1] == 5


LONG = 300 * "a"  # no file system has such names
BAD_CALLS = {  # one of each place that refuses; what each place refuses is in its own tests
    "no run": (["--resume"], "run: holds no run to resume; name it with --out"),
    "a recipe's pipe": (
        ["files.yaml", "data.train=[{source: pipe, target: train.b}]"],
        "pipe: a pipe, which can be",
    ),
    "no pairs": (["files.yaml", "data.max_length=2"], "no pair is left to train on"),
    "validation": (["files.yaml", "data.valid.source=gone"], "gone: no such file"),
    "a model": (["recipe.yaml", "model.num_heads=3"], "recipe.yaml:20: model: "),
    "two vocabularies": (
        ["recipe.yaml", "tokenizer.shared=false", "model.tie=all"],
        "model.tie is 'all', which needs one",
    ),
    "a stage's key": (
        ["recipe.yaml", "stages=[{}, {model: {x: 1}}]"],
        "}}]': unknown key 'stages[1].model.x'",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_what_cannot_be_trained_is_refused_and_leaves_nothing(program, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, [*generate("reverse", 30)])
    os.mkfifo(tmp_path / "pipe")
    recipe = yaml.safe_load(write_recipe(tmp_path).read_text())
    files = {"source": "train.a", "target": "train.b"}
    recipe["data"] = {"train": [files], "valid": files, "workers": 0}
    (tmp_path / "files.yaml").write_text(yaml.safe_dump(recipe))
    before = sorted(tmp_path.rglob("*"))
    words, said = BAD_CALLS[name]
    done = program("train", *words, "--out", "run")
    assert_refused(Done(done.code, done.out, done.err.splitlines(keepends=True)[-1]), said)
    assert "Traceback" not in done.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_recipe_may_lie_in_a_folder_whose_name_looks_like_an_override(program, tmp_path):
    (tmp_path / "a=b").mkdir()
    recipe = write_recipe(tmp_path).rename(tmp_path / "a=b" / "recipe.yaml")
    done = program("train", recipe, "training.steps=0", "--out", tmp_path / "run")
    assert_refused(done, "the override 'training.steps=0': training.steps is 0, must be from 1 to")
    recipe.write_text(recipe.read_text().replace("steps: ", "steps: -"))
    done = program("train", recipe, "--out", tmp_path / "run")
    assert_refused(done, f"{recipe}:", ": training.steps is -")


@pytest.mark.parametrize("words", [["translate", LONG], ["train", "recipe.yaml", "--out", LONG]])
def test_a_path_that_the_system_refuses_is_named(program, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path)
    assert_refused(program(*words), "cannot be used (File name too long); give another path")


def test_a_file_is_no_folder_to_train_in(program, tmp_path):
    recipe, out = write_recipe(tmp_path), tmp_path / "holiday.jpg"
    out.touch()
    assert_refused(program("train", recipe, "--out", out), "this is a file; --out names a folder")
    assert out.is_file()


def test_training_that_fails_ends_with_1(program, tmp_path):
    settings = {"learning_rate": 1e30, "warmup": 1, "divergence_tries": 1, "clip": 0}
    words = [f"training.{name}={value}" for name, value in settings.items()]
    done = program("train", write_recipe(tmp_path), *words, "--out", tmp_path / "run")
    assert done.code == 1
    said = r"\ntransduct: training diverged 2 times \(.*\); lower training\.learning_rate .*\n$"
    assert re.search(said, done.err)
