"""Models of any task: loaded, looked at, copied."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import transduct
from tests.refusals import refusal
from transduct.config import load_recipe
from transduct.predictors import base as predictors_base
from transduct.predictors.translation import Translator
from transduct.runs import train
from transduct.tasks import base

# models as earlier versions wrote them, never written anew
GOLDEN = sorted(Path(__file__).parents[1].glob("golden/*"))


@pytest.mark.parametrize("directory", GOLDEN, ids=lambda path: path.name)
def test_models_of_earlier_versions_load_and_answer_as_they_did(directory):
    model = transduct.load(directory)
    expected = json.loads((directory / "expected.json").read_text(encoding="utf-8"))
    texts, translations, tokens, scores = (
        [each[key] for each in expected] for key in ("text", "translation", "tokens", "score")
    )
    found = model.translate(texts)
    assert [each.text for each in found] == translations
    assert [each.tokens for each in found] == tokens
    assert model.score(texts, tokens) == pytest.approx(scores, abs=1e-3)


def test_the_control_there_are_such_models():
    assert GOLDEN


def test_a_run_and_its_model_directory_are_the_same_model(trained_run):
    texts = ["a b c", "d"]
    one, other = transduct.load(trained_run), transduct.load(str(trained_run / "model"))
    assert isinstance(one, Translator)
    assert one.translate(texts) == other.translate(texts)
    for device in (None, torch.device("cpu"), "cpu"):
        model = predictors_base.load(trained_run, device).model
        assert next(model.parameters()).device == torch.device("cpu")


def test_half_precision_is_close(trained_run):
    exact, half = (predictors_base.load(trained_run, precision=p) for p in ("float32", "bfloat16"))
    assert next(half.model.parameters()).dtype.itemsize == 2
    pair = ["a b c"], ["c b a"]
    assert half.score(*pair) == pytest.approx(exact.score(*pair), rel=0.05)


def test_the_package_offers_nothing_it_does_not_have():
    with pytest.raises(AttributeError, match="module 'transduct' has no attribute 'lode'"):
        transduct.lode  # noqa: B018 (looking it up is what is tested)


@pytest.mark.parametrize(
    "path, said",
    [
        (None, "found None; give the path of a run or a model directory"),
        (3, "found 3; give the path of a run or a model directory"),
        ("a" * 300, "a: cannot be used (File name too long); give another path, or the right to"),
        ("nowhere", "nowhere: no such folder; give a run or a model directory"),
        (__file__, "test_base.py: a file; give a run or a model directory"),
        ("null\0", "no such folder; give a run or a model directory"),
    ],
)
def test_what_cannot_be_the_path_of_a_model_is_refused(path, said):
    with refusal(re.escape(said)):
        transduct.load(path)


def test_a_run_that_was_stopped_says_how_to_make_a_model_of_what_there_is(run):
    steps = sorted(int(path.name.removeprefix("step_")) for path in (run / "checkpoints").iterdir())
    last = run / "checkpoints" / f"step_{steps[-1]}"
    with refusal(re.escape(f"{last}: a checkpoint, whose run has a model; give {run}/mod")):
        transduct.load(last)
    shutil.rmtree(run / "model")
    finish = f"transduct train --out {run} --resume"
    advice = f"finish it with: {finish}, or as it is now with: {finish} training.steps={steps[-1]}"
    for path in (run, last):
        with refusal(re.escape(advice)):
            transduct.load(path)
    fewer = load_recipe(run / "recipe.yaml", [f"training.steps={steps[-1]}"])
    assert transduct.load(train.train(fewer, run, resume=True, notify=str)).predict(["a b"])


def test_a_name_of_hugging_face_s_hub_is_to_be_downloaded_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "Helsinki-NLP/opus-mt-en-de"
    get = f"transduct convert {name} OUT"
    with refusal(f"{name}: no such folder; .* Hugging Face's hub: {get}"):
        predictors_base.load(name)
    (tmp_path / "Helsinki-NLP").mkdir()  # where runs are, say, and one of them is misspelt
    with refusal(r"no such folder; give a run or a model directory$"):
        transduct.load(name)
    (tmp_path / "Helsinki-NLP" / "opus-mt-en-de2").mkdir()
    with refusal(f"no such folder; did you mean {name}2\\?"):
        transduct.load(name)


def test_folders_of_others_are_told_from_a_model_of_ours(tmp_path):
    snapshot = tmp_path / "models--Helsinki-NLP--opus-mt-en-de" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    with refusal(f"no config.json here; a cache of Hugging Face's hub: give {snapshot}"):
        predictors_base.load(snapshot.parents[1])
    (tmp_path / "opus").mkdir()
    for name in ("decoder.yml", "model.npz"):
        (tmp_path / "opus" / name).touch()
    with refusal(r"no config.json here; Marian's own format cannot be read: take the"):
        predictors_base.load(tmp_path / "opus")


def test_a_model_names_its_task_and_is_asked_only_for_what_it_can_do(trained_run, tmp_path):
    (tmp_path / "config.json").write_text('{"format": 1, "task": null}')
    with refusal("no 'task' in it; give a directory that transduct"):
        predictors_base.load(tmp_path)
    with refusal("run: a model of translation cannot sing; see: transduct predict --help"):
        predictors_base.load(trained_run, verb="sing")


def test_the_table_of_tasks_holds_each_file_that_trains_and_who_answers():
    """A file that trains has the name of one that answers."""
    folders = [Path(module.__file__).parent for module in (base, predictors_base)]
    trainers, predictors = ({path.stem for path in folder.glob("*.py")} for folder in folders)
    shared = {"__init__", "base", "text"}
    assert sorted((trainers & predictors) - shared) == [*predictors_base.TASKS]
    for name, places in predictors_base.TASKS.items():
        predictor, trainer = map(predictors_base.imported, places)
        assert issubclass(predictor, predictors_base.Predictor)
        assert issubclass(trainer, base.Task)
        modules = f"transduct.predictors.{name}", f"transduct.tasks.{name}"
        assert (predictor.__module__, trainer.__module__) == modules


def test_what_a_predictor_declares_it_has():
    optional = {"translate", "score", "embed", "attention", "picture", "probabilities"}
    optional |= {"shortlist_of", "codes", "continued"}
    for place, _ in predictors_base.TASKS.values():
        predictor = predictors_base.imported(place)
        methods = {name for name in vars(predictor) if callable(getattr(predictor, name))}
        assert predictor.verbs == {"predict", "evaluate"} | (methods & optional), place


@pytest.mark.parametrize("task", predictors_base.TASKS)
def test_a_test_set_is_given_whole_or_named_by_the_recipe(task):
    predictor = predictors_base.imported(predictors_base.TASKS[task][0])
    with refusal("the model's recipe names no test set; give --source"):
        predictor.test_set({}, None)
    with refusal("--source"):
        predictor.test_set({"reference": "a"}, None)
