import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import paper_parsing as parsers
import pcfg
import pytest
import yaml
from paper_tables import main

from tests.benchmarks.test_paper_tables import rows_of
from tests.benchmarks.test_pcfg import TREES
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct.config import load_recipe
from transduct.runs import evaluate, train
from transduct.training.log import ignore

ODD = ["((UH Yes))", "((NP (-NONE- *)))"]  # one word without a constituent; nothing but a trace


@pytest.fixture(scope="module")
def parsing_run(tmp_path_factory):
    """A run that has learnt a few trees, its training and test trees beside it."""
    directory = tmp_path_factory.mktemp("parsing")
    (directory / "train.mrg").write_text("".join(f"({tree})\n" for tree in TREES))
    (directory / "test.mrg").write_text("".join(f"{tree}\n" for tree in [*TREES, *ODD]))
    data = {
        "root": str(directory),
        "train": [{"trees": "train.mrg", "columns": ["words", "brackets"]}],
        "test": {"trees": "test.mrg"},
        "max_length": 60,
        "max_ratio": 0,
        "metrics": ["f1"],
        "workers": 0,
    }
    recipe = tiny_recipe(
        training={"steps": 20, "validate_every": 0},
        decoding={"beam": 2, "length_penalty": 0.0, "constraint": "tree"},
    )
    recipe = replace(recipe, data=data, tokenizer={"kind": "word", "size": 100})
    train.train(recipe, directory / "run", notify=ignore)
    return directory / "run"


@pytest.fixture(scope="module")
def table(parsing_run, tmp_path_factory):
    """The folder that the command has written."""
    out = tmp_path_factory.mktemp("table")
    assert main(["parsing", str(parsing_run), "--edges", "1,4", "--out", str(out)]) == 0
    return out


def test_the_run_has_the_score_that_evaluate_gives_it(table, parsing_run):
    parsed, _, _ = rows_of(table)
    expected = evaluate.evaluate(parsing_run).scores["f1"]
    assert 0 < expected < 100
    assert json.loads((table / "results.json").read_text())["f1"]["translation"][
        "all"
    ] == pytest.approx(expected)
    assert parsed[0][:2] == ["translation", f"{expected:.4g}"]


def test_the_grammar_has_the_score_that_its_own_command_prints(
    table, parsing_run, monkeypatch, capsys
):
    parsed, _, _ = rows_of(table)
    files = {part: str(parsing_run.parent / f"{part}.mrg") for part in ("train", "test")}
    monkeypatch.setattr("sys.argv", ["pcfg.py", "--train", files["train"], "--test", files["test"]])
    pcfg.main()
    printed = json.loads(capsys.readouterr().out)
    assert printed["sentences"] == 5
    assert parsed[1][:2] == ["PCFG", f"{printed['f1']}"]
    assert all(float(row[2]) >= 0 for row in parsed)


def test_both_by_length_and_as_published(table):
    _, by_length, published = rows_of(table)
    assert [row[:2] for row in by_length] == [
        ["1 to 1", "1"],
        ["2 to 4", "1"],
        ["5 to 8", "3"],
        ["all", "5"],
    ]
    assert by_length[0][2:] == ["", ""]  # it has no constituent to be found
    assert [row[3] for row in by_length[1:3]] == ["100"] * 2
    assert published[-3:] == [
        ["Transformer (4 layers)", "semi-supervised", "92.7"],
        ["Luong et al. (2015)", "multi-task", "93"],
        ["Dyer et al. (2016)", "generative", "93.3"],
    ]
    text = (table / "table.md").read_text()
    assert (
        "on 5 test trees: the run run, which translates words to trees, beside a PCFG read off "
        "the 4 trees" in text
    )
    results = json.loads((table / "results.json").read_text())
    assert results["sentences"] == {"1 to 1": 1, "2 to 4": 1, "5 to 8": 3, "all": 5}
    assert results["f1"]["PCFG"] == {
        "1 to 1": None,
        "2 to 4": 100,
        "5 to 8": 100,
        "all": pytest.approx(97.96, abs=0.01),
    }
    assert results["seconds"].keys() == {"translation", "PCFG"}
    drawn = (table / "plot.svg").read_text()
    assert all(re.search(rf">{name}<", drawn) for name in ("translation", "PCFG"))


def test_trees_that_have_moved(table, parsing_run, tmp_path):
    run = shutil.copytree(parsing_run, tmp_path / "run")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"]["root"] = str(tmp_path / "gone")
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    words = ["parsing", str(run), "--edges", "1,4", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert main([*words, "--root", str(parsing_run.parent)]) == 0
    assert rows_of(tmp_path / "out")[1] == rows_of(table)[1]


def test_runs_that_parse_nothing_are_refused(parsing_run, trained_run, tmp_path, capsys):
    remedy = (
        "trained or tested on something else than words and brackets of trees; give a run such as"
    )
    assert main(["parsing", str(trained_run), "--out", str(tmp_path / "out")]) == 2
    assert f"{trained_run}: {remedy} recipes/wsj_parsing.yaml makes" in capsys.readouterr().err
    recipe = load_recipe(parsing_run / "recipe.yaml")
    for changes in ({"test": None}, {"test": recipe.data["test"] | {"columns": ["words", "tags"]}}):
        with refusal(remedy):
            parsers.treebank(parsing_run, replace(recipe, data=recipe.data | changes))
    with refusal("its task is image_captioning; give a run that translates words to trees"):
        parsers.treebank(parsing_run, SimpleNamespace(task="image_captioning"))
    assert not (tmp_path / "out").exists()
