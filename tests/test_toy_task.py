"""A task outside the package, added by one file and two entry points, works in every command
and in the server."""

import io
import json
import sys
from pathlib import Path

import pytest

import transduct
from tests import test_added
from tests.helpers import Interrupted, weights
from tests.interfaces.clients import service_of, serving
from tests.toy_task.first_letter import FirstLetter
from transduct.config import load_recipe
from transduct.interfaces import cli
from transduct.runs import train

WORDS = ["apple", "bear", "ice", "cow", "egg", "dog", "up", "fox", "oak", "goat", "under", "hen"]
PAGE = Path(__file__).parents[1] / "docs" / "adding_a_task.md"
RECIPE = """
task: first_letter
data: {kind: sequence, train: [{pairs: rows.tsv}], valid: {pairs: rows.tsv},
       test: {pairs: rows.tsv}}
training: {steps: 60, log_every: 1, batch_tokens: 8, learning_rate: 0.1, validate_every: 20,
           checkpoint_every: 10,
  device: cpu}
"""


package = test_added.package  # a fixture
pytestmark = pytest.mark.usefixtures("package")


@pytest.fixture
def folder(tmp_path):
    answers = ["vowel" if word[0] in "aeiou" else "consonant" for word in WORDS]
    rows = [f"{word}\t{answer}\n" for word, answer in zip(WORDS, answers, strict=True)]
    (tmp_path / "rows.tsv").write_text("".join(rows))
    (tmp_path / "words").write_text("".join(f"{word}\n" for word in WORDS))
    (tmp_path / "answers").write_text("".join(f"{answer}\n" for answer in answers))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def program(monkeypatch, capsys):
    """Call the program in this process; returns what it printed and its exit status."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["transduct", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return out, err, end.value.code or 0

    return call


def test_the_page_shows_it_whole_in_60_lines():
    text = (Path(__file__).parent / "toy_task" / "first_letter.py").read_text(encoding="utf-8")
    assert text in PAGE.read_text(encoding="utf-8")
    assert sum(bool(line) for line in text.splitlines()) <= 60


def test_every_command_and_the_server_take_it(folder, program):
    run, root = folder / "run", f"data.root={folder}"
    out, err, code = program("train", folder / "recipe.yaml", root, "--out", run)
    assert (out, code) == (f"{run}/model\n", 0), err
    assert program("predict", run, "egg", "hen")[::2] == ("vowel\nconsonant\n", 0)
    out, _, code = program("evaluate", run)
    assert (out.split(), code) == (["accuracy", "100.00", "f1", "100.00"], 0)
    files = ("--source", folder / "words", "--reference", folder / "answers")
    out, _, _ = program("evaluate", run, *files, "--against", run / "model", "--json")
    assert json.loads(out) == {
        "scores": {"accuracy": 100.0, "f1": 100.0},
        "details": {"against": {"accuracy": 100.0, "f1": 100.0}, "p_values": {}},
    }
    assert program("evaluate", run, "--out", folder / "out")[2] == 0
    assert (folder / "out").read_text() == (folder / "answers").read_text()
    for refused, said in (
        (("translate", run, folder / "words"), "a model of first_letter cannot translate; see: "),
        (("score", run, *files), "a model of first_letter cannot score; see: "),
        (("predict", run, "a", "--out", "a.png"), "this model answers in text, which has no pict"),
        (("predict", run, "a", "--attention", "a.svg"), "this model has no attention to show; o"),
        (("predict", run, "a", "--set", "beam=2"), "options: unknown key 'decoding.beam'"),
        (("evaluate", run, *files, "--reference", folder / "words"), "found 2 files for reference"),
    ):
        out, err, code = program(*refused)
        assert (out, code) == ("", 2), err
        assert said in err
    model = transduct.load(run)
    assert isinstance(model, FirstLetter)
    with serving(service_of(model, "toy", 10)) as client:
        assert client.post("/predict", {"inputs": ["ice", "dog"]})["outputs"] == [
            "vowel",
            "consonant",
        ]
        assert client("POST", "/translate", {"texts": ["a"]})[0] == 404


def test_a_run_that_was_stopped_is_resumed_to_the_same_bytes(folder, program):
    recipe = load_recipe(folder / "recipe.yaml", [f"data.root={folder}"])

    def stop(event):
        if event["step"] == 33:
            raise Interrupted

    train.train(recipe, folder / "whole", notify=str)
    with pytest.raises(Interrupted):
        train.train(recipe, folder / "run", notify=str, report=stop)
    assert program("train", "--resume", "--out", folder / "run")[2] == 0
    assert weights(folder / "run") == weights(folder / "whole")
    _, err, code = program("train", "--resume", "--out", folder / "run")
    assert code == 0
    assert "this run is finished" in err
