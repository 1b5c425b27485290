"""The commands over many files: what they print, what they refuse, and how they end."""

import json

import pytest
from typer.testing import CliRunner

from tests.refusals import refusal
from transduct.errors import TransductError
from transduct.interfaces.cli import app
from transduct.interfaces.terminal import of_many_files


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    rows = [{"text": "a b", "en": "b a"}, {"text": "c d e", "en": "e d c"}]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "in" / "x.jsonl").write_text(content)
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("verb", "options", "column"),
    [
        ("translate", ["--beam", 1], "translation"),
        ("predict", ["--set", "beam=1"], "prediction"),
        ("score", ["--column", "text,en"], "score"),
        ("evaluate", ["--column", "text,en", "--beam", 1, "--json"], "translation"),
    ],
)
def test_a_folder_of_the_same_files_comes_out(verb, options, column, folder, trained_run):
    (folder / "in" / "none.jsonl").touch()
    found = call(verb, trained_run, folder / "in", "--out", folder / "out", *options)
    assert found.exit_code == 0
    lines = (folder / "out" / "x.jsonl").read_text().splitlines()
    assert [column in json.loads(line) for line in lines] == [True, True]
    assert (folder / "out" / "none.jsonl").read_text() == ""
    assert "transduct: warning: none.jsonl: nothing in it\n" in found.stderr
    printed = json.loads(found.stdout) if verb == "evaluate" else {}
    assert ("scores" in printed) == (verb == "evaluate")


def test_rows_that_failed_end_with_status_1(folder, trained_run):
    with (folder / "in" / "x.jsonl").open("a") as file:
        file.write('{"text": 3}\n')
    for first in (", first: x.jsonl:3: found int in column 'text'", ""):  # and when it is done
        found = call(
            "translate", trained_run, folder / "in", "--out", folder / "out", "--skip-errors"
        )
        assert found.exit_code == 1
        assert f"transduct: 1 rows failed and are empty{first}" in found.stderr


def test_a_part_is_two_numbers(folder, trained_run):
    for part in ("1/2", "2/2"):
        call("translate", trained_run, folder / "in", "--out", folder / "out", "--part", part)
    assert (folder / "out" / "x.jsonl").exists()
    with refusal("--part is 'half'; give such as 3/64, the third of 64 parts"):
        call("translate", trained_run, folder / "in", "--out", folder / "out", "--part", "half")


def test_many_files_need_a_folder_for_the_results(tmp_path):
    assert of_many_files({"out": tmp_path}, ["x"])
    assert not of_many_files({}, ["x"])
    for given, inputs, what in (
        ({}, ["a", "b"], "several files"),
        ({}, ["in/*.txt"], "several files"),
        ({}, [str(tmp_path)], "several files"),
        ({"skip_errors": True}, ["a"], "--skip-errors"),
    ):
        with pytest.raises(TransductError) as caught:
            of_many_files(given, inputs)
        expected = f"found {what} and no folder for the results; give --out DIR"
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("verb", "options", "name"),
    [
        ("translate", ["--prefixes", "x"], "prefixes"),
        ("predict", ["--json"], "json"),
        ("score", ["--source", "x"], "source"),
        ("evaluate", ["--against", "x"], "against"),
    ],
)
def test_options_of_one_file_are_refused(verb, options, name, folder, trained_run):
    found = CliRunner().invoke(
        app, [verb, str(trained_run), str(folder / "in"), "--out", str(folder / "out"), *options]
    )
    assert found.exit_code == 2
    assert f"--{name} is for one file; leave it out, or --out" in str(found.output)
    assert not (folder / "out").exists()


@pytest.mark.parametrize("verb", ["score", "evaluate"])
def test_a_table_without_a_folder_is_refused(verb, folder, trained_run):
    found = CliRunner().invoke(app, [verb, str(trained_run), str(folder / "in" / "x.jsonl")])
    assert found.exit_code == 2
    assert "or tables and --out" in str(found.output)
