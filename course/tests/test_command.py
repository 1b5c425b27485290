"""The command learn, from the words of the user to files and exit status."""

import json
from dataclasses import replace

import pytest
from transduct_course import catalogue, hash_table
from transduct_course.catalogue import find

from tests.interfaces import test_cli

program = test_cli.program  # a fixture


def test_the_experiments_are_listed_with_their_claims(program):
    done = program("learn")
    assert done.code == 0
    assert "어텐션은 부드러운 해시 테이블이다." in done.out.decode()
    listed = json.loads(program("learn", "--json").out)["experiments"]
    assert {"scale", "hash_table"} <= {each["name"] for each in listed}


def test_an_experiment_prints_claim_table_and_verdict_and_writes_its_files(program, tmp_path):
    done = program("learn", "hash_table", "--quick", "--out", tmp_path)
    assert done.code == 0
    assert "hash_table: shown: at temperature" in done.out.decode()
    assert "hash_table: 보였다: " in done.out.decode()
    kept = json.loads((tmp_path / "hash_table.json").read_text())
    shown = json.loads(program("learn", "hash_table", "--quick", "--json", "--out", tmp_path).out)
    assert shown["experiments"][0]["rows"] == kept["rows"]
    assert (tmp_path / "hash_table.svg").read_text().startswith("<svg")


def test_an_experiment_that_is_interrupted_keeps_its_rows(program, tmp_path, monkeypatch):
    measure = hash_table.measure

    def cut(setting):
        yield next(iter(measure(setting)))
        raise KeyboardInterrupt

    own = hash_table.EXPERIMENT.__class__(**{**vars(hash_table.EXPERIMENT), "measure": cut})
    monkeypatch.setattr(hash_table, "EXPERIMENT", own)
    done = program("learn", "hash_table", "--quick", "--out", tmp_path)
    assert done.code == 1
    assert "not decided: it was interrupted" in done.out.decode()
    assert len(json.loads((tmp_path / "hash_table.json").read_text())["rows"]) == 1


def test_names_may_be_in_capitals_and_all_are_counted(program, tmp_path, monkeypatch):
    done = program("learn", "Hash_Table", "--quick", "--out", tmp_path)
    assert (done.code, "hash_table: shown" in done.out.decode()) == (0, True)
    monkeypatch.setattr(catalogue, "NAMES", ("hash_table", "attention_by_hand"))
    done = program("learn", "--all", "--quick", "--out", tmp_path)
    assert done.code == 0
    assert "2 of 2; about 0 minutes left" in done.err


def test_experiments_that_judge_the_same_trainings_train_once(program, tmp_path, monkeypatch):
    twin = replace(hash_table.EXPERIMENT, name="twin")
    monkeypatch.setattr(hash_table, "TWIN", twin, raising=False)
    monkeypatch.setitem(catalogue.PLACES, "twin", "hash_table:TWIN")
    monkeypatch.setattr(catalogue, "NAMES", ("hash_table", "twin"))
    done = program("learn", "--all", "--quick", "--json", "--out", tmp_path)
    first, second = json.loads(done.out)["experiments"]
    assert (first["rows"], second["seconds"]) == (second["rows"], 0.0)
    assert done.err.count("temperature 8.00") == 1
    assert find("warm_up").measure is find("norm").measure


def test_an_experiment_without_its_data_is_not_run(program, tmp_path):
    done = program("learn", "bert_pretraining", "--quick", "--data", tmp_path, "--out", tmp_path)
    assert done.code == 0
    assert "bert_pretraining: not run: needs the data set sst2" in done.out.decode()


def test_the_page_is_written_and_nothing_is_trained(program, tmp_path):
    done = program("learn", "--page", tmp_path / "page.html")
    assert (done.code, "page.html: open it in a browser" in done.out.decode()) == (0, True)
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scale", "--page", "page.html"], "--page stands alone"),
        (["hash_tabel"], "no experiment is called 'hash_tabel'; the nearest is hash_table"),
        (["--quick"], "name an experiment to run, or give --all"),
        (["--data", "."], "name an experiment to run, or give --all"),
        (
            ["scale", "--data", "none"],
            "none: no such folder; give the one that holds",
        ),
        (["scale", "--all"], "found both scale and --all"),
    ],
)
def test_wrong_calls_of_learn_are_told(program, words, message):
    done = program("learn", *words)
    assert (done.code, message in done.err) == (2, True)
