"""What every task is used for: its model is loaded, scored and compared; and how the package offers
it."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from importlib import import_module
from io import BytesIO
from pathlib import Path

import pytest
import torch

import transduct
from tests.recipes import tiny_recipe
from transduct.config import dump, load_recipe
from transduct.data.samples import generate
from transduct.errors import TransductError, WrongData
from transduct.predictors import base as predictors_base
from transduct.predictors.translation import Translator
from transduct.runs import evaluate, train
from transduct.tasks import base, translation

SHORT = tiny_recipe(training={"steps": 2})
GOLDEN = sorted(
    Path(__file__).parents[1].glob("golden/*")
)  # models as earlier versions wrote them, never written anew


@pytest.mark.parametrize("directory", GOLDEN, ids=lambda path: path.name)
def test_models_of_earlier_versions_load_and_answer_as_they_did(directory):
    model, expected = (
        transduct.load(directory),
        json.loads((directory / "expected.json").read_text(encoding="utf-8")),
    )
    texts, tokens = [each["text"] for each in expected], [each["tokens"] for each in expected]
    found = model.translate(texts)
    assert [(each.text, each.tokens) for each in found] == [
        (each["translation"], each["tokens"]) for each in expected
    ]
    assert model.score(texts, tokens) == pytest.approx(
        [each["score"] for each in expected], abs=1e-3
    )


def test_the_control_there_are_such_models():
    assert GOLDEN


def test_a_run_and_its_model_directory_are_the_same_model(trained_run):
    texts = ["a b c", "d"]
    one, other = (
        transduct.load(trained_run),
        transduct.load(str(trained_run / "model"), device="cpu"),
    )
    assert isinstance(one, Translator)
    assert one.translate(texts) == other.translate(texts)


def test_a_model_directory_can_be_moved(trained_run, tmp_path):
    shutil.copytree(trained_run / "model", tmp_path / "elsewhere")
    moved = predictors_base.load(tmp_path / "elsewhere")
    assert moved.translate(["a b"]) == predictors_base.load(trained_run).translate(["a b"])


def test_half_precision_is_close(trained_run):
    exact, half = (
        predictors_base.load(trained_run),
        predictors_base.load(trained_run, precision="bfloat16"),
    )
    assert next(half.model.parameters()).dtype.itemsize == 2
    assert half.score(["a b c"], ["c b a"]) == pytest.approx(
        exact.score(["a b c"], ["c b a"]), rel=0.05
    )


def test_the_package_offers_load_and_nothing_it_does_not_have():
    assert transduct.load is predictors_base.load
    with pytest.raises(AttributeError, match="module 'transduct' has no attribute 'lode'"):
        transduct.lode  # noqa: B018 (looking it up is what is tested)


@pytest.mark.parametrize(
    "path, said",
    [
        (None, "found None; give the path of a run or a model directory"),
        (3, "found 3; give the path of a run or a model directory"),
        (
            "a" * 300,
            "a: cannot be used (File name too long); give another path, or the right to it",
        ),
        ("nowhere", "nowhere: no config.json here; give a run or a model directory"),
        ("null\0", "no config.json here; give a run or a model directory"),
    ],
)
def test_what_cannot_be_the_path_of_a_model_is_refused(path, said):
    with pytest.raises(TransductError, match=re.escape(said)):
        transduct.load(path)


def test_lines_are_read_as_the_task_of_the_model_reads_them(trained_run):
    broken = []
    assert list(evaluate.readable_lines(trained_run, BytesIO(b"a\n\xff\nb"), broken)) == [
        "a",
        "\ufffd",
        "b",
    ]
    assert broken == [2]


def test_files_may_lie_at_home(tmp_path, monkeypatch, trained_run):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").write_text("x\n" * 20)
    recipe = train.file_recipe(
        "translation", {"source": ["~/a"], "target": "~/a", "valid_source": None}, [], str
    )
    assert recipe.data["train"] == [{"source": [f"{tmp_path}/a"], "target": f"{tmp_path}/a"}]
    assert len([*evaluate.scores(trained_run, {"source": "~/a", "reference": "~/a"})]) == 20
    shutil.copytree(trained_run / "model", tmp_path / "m")
    assert predictors_base.load("~/m").translate(["a b"]) == predictors_base.load(
        Path("~/m")
    ).translate(["a b"])


@pytest.mark.parametrize("device", [None, torch.device("cpu"), "cpu"])
def test_a_device_may_be_torchs_or_none(trained_run, device):
    assert next(
        predictors_base.load(trained_run, device).model.parameters()
    ).device == torch.device("cpu")


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


def test_an_unknown_task_is_refused(tmp_path):
    for name in ("base", "translator", "poetry"):
        with pytest.raises(
            TransductError, match=f"recipe: unknown task '{name}'; known are: image_classification"
        ):
            train.train(replace(SHORT, task=name), tmp_path / "run", notify=str)


def test_models_of_different_tasks_are_not_compared(trained_run, run):
    config = json.loads((run / "model" / "config.json").read_text())
    (run / "model" / "config.json").write_text(json.dumps(config | {"task": "language_modeling"}))
    message = f"{run}: a model of language_modeling, and {trained_run} is one of translation; compare equals"
    with pytest.raises(TransductError, match=re.escape(message)):
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
    monkeypatch.delattr(translation, "SEVERAL")
    with pytest.raises(
        TransductError, match="found 2 files for reference; a model of translation takes one"
    ):
        evaluate.evaluate(trained_run, files)


def test_a_run_that_was_stopped_says_how_to_make_a_model_of_what_there_is(run):
    steps = sorted(int(path.name.removeprefix("step_")) for path in (run / "checkpoints").iterdir())
    last = run / "checkpoints" / f"step_{steps[-1]}"
    with pytest.raises(
        TransductError,
        match=re.escape(f"{last}: a checkpoint, whose run has a model; give {run}/mod"),
    ):
        transduct.load(last)
    shutil.rmtree(run / "model")
    advice = f"finish it with: transduct train --out {run} --resume, or as it is now with: transduct train --out {run} "
    for path in (run, last):
        with pytest.raises(
            TransductError, match=re.escape(f"{advice}--resume training.steps={steps[-1]}")
        ):
            transduct.load(path)
    fewer = load_recipe(run / "recipe.yaml", [f"training.steps={steps[-1]}"])
    assert transduct.load(train.train(fewer, run, resume=True, notify=str)).predict(["a b"])


def test_a_name_of_hugging_face_s_hub_is_to_be_downloaded_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "Helsinki-NLP/opus-mt-en-de"
    get = f"hf download {name} --local-dir opus-mt-en-de, and make it one of ours: transduct convert opus-mt-en-de OUT"
    with pytest.raises(
        TransductError, match=f"{name}: no config.json here; .* Hugging Face's hub: {get}"
    ):
        transduct.load(name)
    (tmp_path / "Helsinki-NLP").mkdir()  # where runs are, say, and one of them is misspelt
    with pytest.raises(
        TransductError, match=r"no config.json here; give a run or a model directory$"
    ):
        transduct.load(name)


def test_folders_of_others_are_told_from_a_model_of_ours(tmp_path):
    snapshot = tmp_path / "models--Helsinki-NLP--opus-mt-en-de" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    with pytest.raises(
        TransductError, match=f"no config.json here; a cache of Hugging Face's hub: give {snapshot}"
    ):
        predictors_base.load(snapshot.parents[1])
    (tmp_path / "opus").mkdir()
    for name in ("decoder.yml", "model.npz"):
        (tmp_path / "opus" / name).touch()
    with pytest.raises(
        TransductError, match=r"no config.json here; Marian's own format cannot be read: take the"
    ):
        predictors_base.load(tmp_path / "opus")


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
    with pytest.raises(
        TransductError, match="the model's recipe names no test set; give --source and --reference"
    ):
        evaluate.evaluate(alone)
    monkeypatch.chdir(trained_run / "model")
    assert evaluate.evaluate(".").scores == evaluate.evaluate(trained_run).scores
    (tmp_path / "link").symlink_to(trained_run / "model")
    assert evaluate.evaluate(tmp_path / "link").scores == evaluate.evaluate(trained_run).scores


def test_a_model_is_asked_only_for_what_it_can_do(trained_run):
    with pytest.raises(
        TransductError,
        match="run: a model of translation cannot sing; see: transduct predict --help",
    ):
        predictors_base.load(trained_run, verb="sing")


def test_the_names_of_tasks_are_those_of_the_files_that_are_tasks():
    files = {path.stem for path in Path(base.__file__).parent.glob("*.py")}
    tasks = {name for name in files if hasattr(import_module(f"transduct.tasks.{name}"), "create")}
    assert sorted(tasks) == [*predictors_base.TASKS]


def test_errors_in_data_name_the_files(trained_run, tmp_path, monkeypatch):
    def evaluate(*given, **options):
        raise WrongData("row 2: no label")

    monkeypatch.setattr(Translator, "evaluate", evaluate)
    files = {name: str(tmp_path / name) for name in ("source", "reference")}
    for path in files.values():
        Path(path).write_text("a\n")
    with pytest.raises(
        TransductError, match=f"^{tmp_path}/source, {tmp_path}/reference: row 2: no label"
    ):
        evaluate.evaluate(trained_run, files)
    with pytest.raises(TransductError, match=r"^data\.test: row 2: no label"):
        evaluate.evaluate(trained_run)


def test_a_report_is_json_whatever_its_numbers_are():
    report = predictors_base.Report(
        {"loss": float("nan"), "bleu": 1.5}, {"interval": [float("-inf"), 2], "name": "NaN é"}
    )
    scores, details = {"loss": None, "bleu": 1.5}, {"interval": [None, 2], "name": "NaN é"}
    assert report.as_json() == json.dumps(
        {"scores": scores, "details": details}, ensure_ascii=False
    )


# the package itself


@pytest.mark.parametrize(
    ("asked", "found"),
    [({}, transduct.SPINS), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_idle_threads_spin_only_briefly_unless_the_environment_says_otherwise(
    monkeypatch, asked, found
):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    transduct.share_cores()
    assert os.environ.get("GOMP_SPINCOUNT") == found


@pytest.mark.parametrize(
    ("quota", "asked", "found"),
    [
        ("150000 100000\n", None, "2"),
        ("20000 100000\n", None, "1"),
        ("150000 100000\n", "7", "7"),
        ("99900000 100000\n", None, None),
        ("max 100000\n", None, None),
        ("odd\n", None, None),
        (None, None, None),
    ],
)
def test_threads_are_no_more_than_the_cores_that_a_container_may_use(
    monkeypatch, tmp_path, quota, asked, found
):
    monkeypatch.setattr(transduct, "QUOTA", str(tmp_path / "cpu.max"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", asked or "")
    if asked is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    transduct.share_cores()
    assert os.environ.get("OMP_NUM_THREADS") == found
    assert transduct.cores() == (8 if found is None else 2 if asked else int(found))


def test_looking_up_load_limits_the_spinning_of_threads_too():
    script = "import os, transduct; transduct.load; print(os.environ['GOMP_SPINCOUNT'])"
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout.strip() == transduct.SPINS
