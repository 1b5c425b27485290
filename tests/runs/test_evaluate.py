"""A model scored on files, or on the test set of its run."""

import json
import re
import shutil
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from tests.pictures import BARS, bar, png
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from tests.tones import encoded, tone
from transduct.config import dump, load_recipe
from transduct.data.samples import generate
from transduct.errors import TransductError, WrongData
from transduct.predictors import base as predictors_base
from transduct.predictors.base import predictor_class
from transduct.predictors.translation import Translator
from transduct.runs import evaluate, train


def test_lines_are_read_as_the_task_of_the_model_reads_them(trained_run):
    broken = []
    assert list(predictor_class(trained_run).readable_lines(BytesIO(b"a\n\xff\nb"), broken)) == [
        "a",
        "\ufffd",
        "b",
    ]
    assert broken == [2]


def test_files_may_lie_at_home(tmp_path, monkeypatch, trained_run):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").write_text("x\n" * 20)
    recipe = train.file_recipe({"source": ["~/a"], "target": "~/a", "valid_source": None}, [], str)
    assert recipe.data["train"] == [{"source": [f"{tmp_path}/a"], "target": f"{tmp_path}/a"}]
    assert len([*evaluate.scores(trained_run, {"source": "~/a", "reference": "~/a"})]) == 20
    shutil.copytree(trained_run / "model", tmp_path / "m")
    assert predictors_base.load("~/m").translate(["a b"]) == predictors_base.load(
        Path("~/m")
    ).translate(["a b"])


def test_files_may_be_paths_and_several_a_tuple(trained_run, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}\n")
    names = [str(tmp_path / name) for name in "ab"]
    scores = evaluate.evaluate(trained_run, {"source": names[0], "reference": names}).scores
    for given in ((names[0], names[1]), [tmp_path / "a", tmp_path / "b"]):
        assert (
            evaluate.evaluate(trained_run, {"source": tmp_path / "a", "reference": given}).scores
            == scores
        )


@pytest.mark.parametrize(
    "files", ["test.de", ["test.de"], {"source": "a", "reference": None}, {"source": 5}]
)
def test_files_of_another_form_are_refused(trained_run, files):
    with pytest.raises(TransductError) as caught:
        evaluate.evaluate(trained_run, files)
    assert (
        str(caught.value)
        == f"files: found {files!r}, expected paths by name, such as {{'source': 'test.de'}}"
    )


def test_models_of_different_tasks_are_not_compared(trained_run, run):
    config = json.loads((run / "model" / "config.json").read_text())
    (run / "model" / "config.json").write_text(json.dumps(config | {"task": "language_modeling"}))
    message = (
        f"{run}: a model of language_modeling, and {trained_run} is one of translation; "
        "compare models of the same task"
    )
    with refusal(re.escape(message)):
        evaluate.evaluate(trained_run, against=run)


def test_files_are_changed_as_the_recipe_changes_its_own(tmp_path):
    """The same test set as files, by a run and by its model directory alone."""
    changes = [{"side": "target", "pattern": " ", "by": ""}]
    pairs = list(generate("reverse", 8, "test"))
    for side, texts in zip(("source", "target"), zip(*pairs)):
        (tmp_path / side).write_text("".join(f"{text}\n" for text in texts))
    files = {"source": str(tmp_path / "source"), "reference": str(tmp_path / "target")}
    train.train(tiny_recipe(data={"replace": changes}), tmp_path / "run", notify=str)
    alone = shutil.copytree(tmp_path / "run" / "model", tmp_path / "alone")
    reports = [
        evaluate.evaluate(tmp_path / "run"),
        evaluate.evaluate(tmp_path / "run", files),
        evaluate.evaluate(alone, files),
    ]
    assert reports[0].scores == reports[1].scores == reports[2].scores
    model = predictors_base.load(alone)
    joined = [target.replace(" ", "") for _, target in pairs]
    assert [*evaluate.scores(alone, files)] == model.score([source for source, _ in pairs], joined)


def test_the_first_of_several_references_is_scored(run, tmp_path):
    (tmp_path / "test.tsv").write_text("a b\tb a\tc\nc\tc\ta b\n")
    recipe = load_recipe(run / "recipe.yaml")
    recipe.data["test"] = {"pairs": str(tmp_path / "test.tsv"), "alternatives": True}
    (run / "recipe.yaml").write_text(dump(asdict(recipe)))
    assert [*evaluate.scores(run, {})] == predictors_base.load(run).score(
        ["a b", "c"], ["b a", "c"]
    )


def test_several_references_are_for_tasks_that_know_them(trained_run, tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"{name}\n{name} d\n")
    files = {"source": str(tmp_path / "a"), "reference": [str(tmp_path / "b"), str(tmp_path / "c")]}
    seen = []
    monkeypatch.setattr(Translator, "evaluate", lambda _, data, *rest: seen.append(data))
    evaluate.evaluate(trained_run, files)
    assert seen == [(["a", "a d"], [["b", "c"], ["b d", "c d"]])]
    monkeypatch.setattr(Translator, "several", frozenset())
    with refusal("found 2 files for reference; a model of translation takes one"):
        evaluate.evaluate(trained_run, files)


def test_a_recipe_that_lies_beside_a_model_is_not_its_own(trained_run, tmp_path, monkeypatch):
    """Only a run's folder `model` has one, also where that is where one stands."""
    alone = shutil.copytree(trained_run / "model", tmp_path / "mt")
    recipe = load_recipe(trained_run / "recipe.yaml")
    changes = [{"side": "target", "pattern": "a", "by": "zzz"}]
    (tmp_path / "recipe.yaml").write_text(
        dump(asdict(replace(recipe, data={**recipe.data, "replace": changes})))
    )
    files = {}
    for name, text in (("source", "a b\n"), ("reference", "b a\n")):
        (tmp_path / name).write_text(text)
        files[name] = str(tmp_path / name)
    assert evaluate.evaluate(alone, files).scores == evaluate.evaluate(trained_run, files).scores
    with refusal("the model's recipe names no test set; give --source and --reference"):
        evaluate.evaluate(alone)
    monkeypatch.chdir(trained_run / "model")
    assert evaluate.evaluate(".").scores == evaluate.evaluate(trained_run).scores
    (tmp_path / "link").symlink_to(trained_run / "model")
    assert evaluate.evaluate(tmp_path / "link").scores == evaluate.evaluate(trained_run).scores


def test_errors_in_data_name_the_files(trained_run, tmp_path, monkeypatch):
    def refuse(*given, **options):
        raise WrongData("row 2: no label")

    monkeypatch.setattr(Translator, "evaluate", refuse)
    files = {name: str(tmp_path / name) for name in ("source", "reference")}
    for path in files.values():
        Path(path).write_text("a\n")
    with refusal(f"^{tmp_path}/source, {tmp_path}/reference: row 2: no label"):
        evaluate.evaluate(trained_run, files)
    with refusal(r"^data\.test: row 2: no label"):
        evaluate.evaluate(trained_run)


def test_a_report_is_json_whatever_its_numbers_are():
    report = predictors_base.Report(
        {"loss": float("nan"), "bleu": 1.5}, {"interval": [float("-inf"), 2], "name": "NaN é"}
    )
    scores, details = {"loss": None, "bleu": 1.5}, {"interval": [None, 2], "name": "NaN é"}
    assert report.as_json() == json.dumps(
        {"scores": scores, "details": details}, ensure_ascii=False
    )


def of_lines(*columns):
    """Writes a file for each column, as the source and the reference."""

    def write(folder):
        names = ("source", "reference")[: len(columns)]
        for name, lines in zip(names, columns, strict=True):
            (folder / name).write_bytes(b"".join(line + b"\n" for line in lines))
        return {name: str(folder / name) for name in names}

    return write


def of_sounds(folder):
    (folder / "sounds").mkdir()
    for number in range(3):
        samples = tone(1, number=number) if number else np.zeros(4000, np.float32)
        (folder / "sounds" / f"{number}.wav").write_bytes(encoded(samples))
    (folder / "texts").write_text("".join(f"{number}.wav\t1\n" for number in range(3)))
    return {"source": str(folder / "sounds"), "reference": str(folder / "texts")}


def of_pictures(folder):
    for number, kind in enumerate(BARS):
        (folder / "bars" / kind).mkdir(parents=True)
        content = png(bar(kind, 1)) if number else b"no picture"
        (folder / "bars" / kind / "a.png").write_bytes(content)
    return {"source": str(folder / "bars")}


def of_scenes(folder):
    files = {"source": of_pictures(folder)["source"], "reference": str(folder / "boxes.jsonl")}
    lines = [{"file": f"{kind}/a.png", "boxes": [[0, 0, 9, 9]], "labels": [kind]} for kind in BARS]
    (folder / "boxes.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return files


# By family, what writes a test set of three of which one is broken, and what is said of that.
BROKEN = {
    "sequence": (of_lines([b"( )", b"[", b"( ]"], [b"balanced", b"odd", b"unbalanced"]), "'odd'"),
    "span": (of_lines([b"who ?\ta b", b"who ?", b"who ?\ta"], [b"a", b"b", b"a"]), "one text"),
    "tokens": (of_lines([b"a b", b"a b", b"c"], [b"new new", b"new", b"new"]), "1 tags"),
    "gpt": (of_lines([b"to be", b"\xff", b"or not"]), "not UTF-8"),
    "masked tokens": (of_lines([b"to be", b"\xff", b"or not"]), "not UTF-8"),
    "speech": (of_sounds, "0.wav: silent"),
    "pictures": (of_pictures, "a.png: not"),
    "scenes": (of_scenes, "a.png: not"),
    "image codes": (of_pictures, "a.png: not"),
}  # fmt: skip


@pytest.mark.parametrize("family", BROKEN)
def test_what_is_broken_in_a_test_set_stops_or_is_left_out(family, family_of, tmp_path):
    write, said = BROKEN[family]
    (_, run), files = family_of(family), write(tmp_path)
    with refusal(re.escape(said)) as caught:
        evaluate.evaluate(run, files)
    assert str(caught.value).endswith("; or leave such out with --skip-errors")
    report = evaluate.evaluate(run, files, skip_errors=True)
    assert report.details["left_out"]["broken"] == 1
    assert report.scores
