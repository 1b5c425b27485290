"""docs/using.md: its commands and its program run, its options exist, and what its tables say of
the code is so."""

import json
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import asdict, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from docx import Document

from tests.docs import reference
from tests.docs.test_pages import PROGRAM, VERBS, commands
from tests.recipes import tiny_recipe
from transduct.config import Recipe, dump, load_recipe
from transduct.errors import TransductError
from transduct.interfaces import cli
from transduct.predictors import base as predictors_base
from transduct.records import record
from transduct.runs import train
from transduct.tasks.base import task_class
from transduct.tasks.shortcut import SHORTCUT_SIZES
from transduct.training.log import ignore

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [shlex.join(words) for words in commands("docs/using.md") if words[:1] == ["transduct"]]
SPANS = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]
LINES = ["a b c", "", "d e f g", "a h"]


def rows(title):
    """The cells of the first table under a heading."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    _, _, *lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def named(cell):
    """What stands in a cell as code."""
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture
def folder(run, monkeypatch):
    """Where the page's commands run: a finished run and texts to translate."""
    place = run.parent / "place"
    (place / "runs").mkdir(parents=True)
    shutil.move(run, place / "runs" / "de-en")
    for name in ("input.de", "test.de"):
        (place / name).write_text("".join(f"{line}\n" for line in LINES))
    for name in ("test.en", "other.en"):
        (place / name).write_text("".join(f"{line[::-1]}\n" for line in LINES))
    for name, text in (("train.de", LINES), ("train.en", [line[::-1] for line in LINES])):
        (place / name).write_text("".join(f"{line}\n" for line in text))
    (place / "in").mkdir()
    pq.write_table(pa.table({"text": LINES}), place / "in" / "a.parquet")
    (place / "test").mkdir()
    for name in ("pairs.jsonl", "test/a.jsonl"):
        (place / name).write_text('{"de": "a b c", "en": "c b a"}\n')
    (place / "pairs.tsv").write_text("de\ten\na b c\tc b a\n")
    (place / "page.html").write_text("<p>a b c</p>\n")
    letter = Document()
    letter.add_paragraph("a b c")
    letter.save(place / "letter.docx")
    (place / "begun.en").write_text("c\n\ng f\n\n")
    monkeypatch.chdir(place)
    return place


def call(words, monkeypatch, capfd):
    """The lines that a command prints; it must end well."""
    monkeypatch.setattr(sys, "argv", words)
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main()
    captured = capfd.readouterr()
    assert not end.value.code, captured.err
    return captured.out.splitlines()


def test_the_commands_run_and_print_what_the_page_says(folder, monkeypatch, capfd):
    assert len(COMMANDS) > 10
    printed = {}
    for command in COMMANDS:
        printed[command] = call(shlex.split(command), monkeypatch, capfd)
    for command, lines in printed.items():
        if "--n-best 4" in command:
            numbers = [int(line.split("\t")[0]) for line in lines]
            assert numbers == sorted(numbers)
            assert set(numbers) == {1, 2, 3, 4}
            assert numbers.count(2) == 1
            assert 1 < numbers.count(1) <= 4
            assert all(re.fullmatch(r"\d\t-?\d+\.\d{6}\t.*", line) for line in lines)
        elif "--scores" in command:
            assert all(re.fullmatch(r"-?\d+\.\d{6}\t.*", line) for line in lines)
        elif "--json" in command:
            assert set(json.loads("".join(lines))) == {"scores", "details"}
        elif "input.de" in command and "--shortlist input" not in command:
            assert len(lines) == len(LINES)
            assert lines[1] == ""
            if "--prefixes" in command:
                assert (lines[0][:1], lines[2][:3]) == ("c", "g f")
        elif command.startswith("transduct score") and "--source" in command:
            assert [float(line) < 0 for line in lines] == [True] * len(LINES)
    assert any("p = " in line for lines in printed.values() for line in lines)
    translation = printed["transduct translate runs/de-en input.de"][0]
    assert printed["transduct translate runs/de-en page.html"] == [f"<p>{translation}</p>"]
    assert [each.text for each in Document("letter.en.docx").paragraphs] == [translation]
    assert len(pq.read_table("translated/a.parquet")["translation"]) == len(LINES)
    assert Path("scored/pairs.tsv").read_text().startswith("de\ten\tscore\n")
    assert json.loads(Path("answers/a.jsonl").read_text())["translation"]
    assert Path("look.svg").read_text().startswith("<svg")
    assert len(Path("found.en").read_text().splitlines()) == len(LINES)


def test_the_program_of_many_files_runs(folder, capsys):
    exec(PROGRAMS[0].replace("workers=2", "workers=1"), {})
    assert capsys.readouterr().out.splitlines()[-1] == f"{len(LINES)} 1 1"
    assert len(pq.read_table("translated/a.parquet")["translation"]) == len(LINES)


def test_the_training_program_runs(folder):
    program = PROGRAMS[2].replace("steps=2000", "steps=2")
    Path("recipes").mkdir()
    Path("recipes/multi30k_en_de.yaml").write_text(
        dump({**asdict(tiny_recipe()), "profiles": {"cpu": {}}})
    )
    names = {}
    exec(program, names)
    assert names["model"] == Path("runs/multi30k/model")
    assert (names["model"] / "config.json").exists()


def test_the_program_runs(folder, capsys):
    program = PROGRAMS[1]
    names = {}
    exec(program, names)
    alternatives = names["found"].alternatives
    assert capsys.readouterr().out == "".join(
        f"{t.text} {t.score} {t.tokens}\n" for t in alternatives
    )
    assert names["weights"].shape == (len(names["rows"]), len(names["columns"]))
    assert names["report"].outputs
    with pytest.raises(TransductError):
        names["model"].translate(["a"], beams=5)


@pytest.mark.parametrize(
    "text", [text for kind, text in BLOCKS if kind == "yaml"], ids=lambda text: text.split()[1]
)
def test_the_recipes_for_data_of_ones_own_are_accepted(tmp_path, text):
    recipe = record(Recipe, yaml.safe_load(text), "")
    task = task_class(recipe.task)(recipe, tmp_path, ignore)
    assert task.recipe.training["steps"] == 2000


def test_what_files_alone_choose_is_what_the_table_says():
    table = rows("Training from files")
    assert len(table) == len(SHORTCUT_SIZES)
    for (pairs, model, *numbers, _), (most, (size, steps, dropout, vocabulary)) in zip(
        table, SHORTCUT_SIZES, strict=True
    ):
        assert pairs == ("more" if most is None else f"up to {most:,}")
        assert named(model) == [size]
        assert numbers == [
            f"{steps:,}",
            f"{vocabulary:,}",
            str(dropout),
            "0.002" if size == "tiny" else "0.0007",
        ]


def test_every_option_named_is_one_of_its_command():
    of_all = {option for each in PROGRAM.params for option in each.opts}
    known = {
        verb: {option for each in found.params for option in [*each.opts, *each.secondary_opts]}
        for verb, found in VERBS.items()
    }
    everything = set().union(of_all, *known.values()) | {
        "--no-python",
        "--nproc-per-node",
        "--logdir",
    }
    checked = 0
    for span in [*SPANS, *COMMANDS]:
        verb = next((word for word in span.split() if word in known), None)
        for option in re.findall(r"(?<!\S)--[a-z-]+", span):
            assert option in (
                known[verb] | {"--no-python", "--nproc-per-node"} if verb else everything
            ), span
            checked += 1
    assert checked > 40


def test_the_extras_are_those_of_the_project():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    said = {named(name)[0]: brings for name, _, brings in rows("Installation")}
    assert said == {
        name: ", ".join(re.split(r"[><]=", each)[0] for each in held)
        for name, held in extras.items()
    }


def test_a_run_directory_holds_what_the_page_says(trained_run):
    said = {
        name.partition("/")[0] for where, _ in rows("The run directory") for name in named(where)
    }
    held = {path.name for path in trained_run.iterdir()} - {".lock"}
    assert held | {"stage_1", "stage_2"} == said
    [[_, of_log]] = [row for row in rows("The run directory") if row[0] == "`log.jsonl`"]
    events = [json.loads(line) for line in (trained_run / "log.jsonl").read_text().splitlines()]
    assert {key for event in events for key in event} == set(named(of_log))
    [[_, of_model]] = [row for row in rows("The run directory") if row[0] == "`model/`"]
    assert {path.name for path in (trained_run / "model").iterdir()} == {
        *named(of_model),
        "tokenizer.json",
    }


@pytest.mark.parametrize(
    "override, refused",
    [
        ("data.root=elsewhere", False),
        ("data.workers=1", False),
        ("data.metrics=[bleu]", False),
        ("data.bleu_tokenize=char", False),
        ("decoding.beam=3", False),
        ("training.learning_rate=0.001", False),
        ("training.steps=90", False),
        ("training.ema=0.9", True),
        ("data.max_length=30", True),
        ("tokenizer.size=70", True),
        ("model.d_ff=64", True),
    ],
)
def test_what_may_change_in_a_run_that_is_resumed(run, override, refused):
    shutil.rmtree(run / "model")
    section = override.partition(".")[0]
    recipe, said = load_recipe(run / "recipe.yaml", [override]), []
    if refused:
        with pytest.raises(TransductError, match="resume with the run's own recipe"):
            train.train(recipe, run, resume=True, notify=said.append)
    else:
        train.train(recipe, run, resume=True, notify=said.append)
        assert any(override.partition("=")[0] in line for line in said) == (
            section in ("decoding", "training")
        )


def test_the_table_of_tasks_is_complete_and_true():
    said = {
        named(task)[0]: (answer, options, attention)
        for task, _, answer, options, attention in rows("Other tasks")
    }
    assert set(said) == set(reference.TASKS)
    for task, (answer, options, attention) in said.items():
        cls = predictors_base.imported(predictors_base.TASKS[task][0])
        decoding = reference.records_of(task).get("decoding")
        keys = {field.name for field in fields(decoding)} if decoding else set()
        assert set(named(options)) <= keys, task
        assert bool(named(options)) == bool(keys), task
        assert hasattr(cls, "attention") == attention.startswith("yes"), task
        assert hasattr(cls, "picture") == ("--out" in answer), task


REFUSED = {
    "int8 OUT --precision int8": "quantised already",
    "int8 OUT --format onnx": "quantised already",
    "both OUT --precision int8": "no Transformer for translation",
    "both OUT --shortlist input.de": "no attention to align with",
    "both OUT --with int8": "none of them an ensemble",
    "runs/de-en OUT --format huggingface": (
        "model.norm=post model.positions=sinusoidal_concatenated"
    ),
    "runs/de-en OUT --with int8 --precision int8": (
        "--with puts models of ours together as they are"
    ),
    "runs/de-en runs --precision int8": "exists already",
}


def test_what_is_not_converted(folder, monkeypatch, capfd):
    call(["transduct", "convert", "runs/de-en", "int8", "--precision", "int8"], monkeypatch, capfd)
    call(["transduct", "convert", "runs/de-en", "both", "--with", "int8"], monkeypatch, capfd)
    for words, message in REFUSED.items():
        monkeypatch.setattr(sys, "argv", ["transduct", "convert", *words.split()])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2, words
        assert message in capfd.readouterr().err, words
