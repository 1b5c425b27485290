"""A run directory belongs to one run and one process; what is there is never overwritten or mixed."""

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

import transduct
from tests.helpers import everything_in
from tests.recipes import tiny_recipe
from transduct.config import dump, load_recipe
from transduct.data.samples import generate
from transduct.errors import TransductError, WrongData
from transduct.interop import int8
from transduct.tasks import base
from transduct.tasks.translator import Translator

SHORT = tiny_recipe(training={"steps": 2})


def test_what_a_run_leaves(trained_run):
    assert {path.name for path in trained_run.iterdir()} - {"tensorboard"} == {
        "recipe.yaml", "log.jsonl", "checkpoints", "model", "tokenizer.json", "corpus", ".lock",
    }  # fmt: skip
    recipe = load_recipe(trained_run / "recipe.yaml")
    assert (recipe.task, recipe.training["steps"]) == ("translation", 60)
    events = [json.loads(line) for line in (trained_run / "log.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if "loss" in event] == list(range(1, 61))
    assert (trained_run / "checkpoints" / "step_60" / "state.json").exists()


def test_the_recipe_it_leaves_trains_the_same_model(trained_run, tmp_path):
    model = base.train(load_recipe(trained_run / "recipe.yaml"), tmp_path / "again", notify=str)
    assert model == tmp_path / "again" / "model"
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (model / name).read_bytes() == (trained_run / "model" / name).read_bytes()


# loading


def test_a_run_and_its_model_directory_are_the_same_model(trained_run):
    texts = ["a b c", "d"]
    one, other = transduct.load(trained_run), transduct.load(str(trained_run / "model"), device="cpu")
    assert isinstance(one, Translator)
    assert one.translate(texts) == other.translate(texts)


def test_a_model_directory_can_be_moved(trained_run, tmp_path):
    shutil.copytree(trained_run / "model", tmp_path / "elsewhere")
    moved = base.load(tmp_path / "elsewhere")
    assert moved.translate(["a b"]) == base.load(trained_run).translate(["a b"])


def test_half_precision_is_close(trained_run):
    exact, half = base.load(trained_run), base.load(trained_run, precision="bfloat16")
    assert next(half.model.parameters()).dtype.itemsize == 2
    assert half.score(["a b c"], ["c b a"]) == pytest.approx(exact.score(["a b c"], ["c b a"]), rel=0.05)


def test_the_package_offers_load_and_nothing_it_does_not_have():
    assert transduct.load is base.load
    with pytest.raises(AttributeError, match="module 'transduct' has no attribute 'lode'"):
        transduct.lode  # noqa: B018 (looking it up is what is tested)


# the other verbs


def test_lines_are_read_as_the_task_of_the_model_reads_them(trained_run):
    broken = []
    assert list(base.readable_lines(trained_run, BytesIO(b"a\n\xff\nb"), broken)) == ["a", "\ufffd", "b"]
    assert broken == [2]


def test_files_may_lie_at_home(tmp_path, monkeypatch, trained_run):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").write_text("x\n" * 20)
    recipe = base.file_recipe("translation", {"source": ["~/a"], "target": "~/a", "valid_source": None}, [], str)
    assert recipe.data["train"] == [{"source": [f"{tmp_path}/a"], "target": f"{tmp_path}/a"}]
    assert len(base.score(trained_run, {"source": "~/a", "reference": "~/a"})) == 20


def test_a_recipe_for_files_takes_overrides(tmp_path):
    (tmp_path / "a").write_text("x\n" * 20)
    files = {"source": [str(tmp_path / "a")], "target": [str(tmp_path / "a")]}
    recipe = base.file_recipe("translation", files, ["training.steps=7", "model.size=small"], str)
    assert (recipe.training["steps"], recipe.model["size"], recipe.data["held_out"]) == (7, "small", 2)
    with pytest.raises(TransductError, match="the recipe for your files: unknown key 'modle'; did you mean 'model'"):
        base.file_recipe("translation", files, ["modle.size=small"], str)


def test_a_task_that_is_none_is_refused(tmp_path):
    for name in ("base", "translator", "poetry"):
        with pytest.raises(TransductError, match=f"recipe: unknown task '{name}'; known are: image_classification"):
            base.train(replace(SHORT, task=name), tmp_path / "run", notify=str)


def test_a_recipe_survives_being_written(trained_run, tmp_path):
    recipe = load_recipe(trained_run / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text(dump(asdict(recipe)))
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


def test_a_finished_run_is_left_as_it_is(run):
    before, said = everything_in(run), []
    recipe = load_recipe(run / "recipe.yaml")
    changed = replace(recipe, training={**recipe.training, "steps": 99})
    base.train(changed, run, resume=True, notify=said.append)
    assert said == [f"{run}: this run is finished; its model is {run / 'model'}"]
    assert everything_in(run) == before


def test_models_of_different_tasks_are_not_compared(trained_run, run):
    config = json.loads((run / "model" / "config.json").read_text())
    (run / "model" / "config.json").write_text(json.dumps(config | {"task": "language_modeling"}))
    message = f"{run}: a model of language_modeling, and {trained_run} is one of translation; compare equals"
    with pytest.raises(TransductError, match=re.escape(message)):
        base.evaluate(trained_run, against=run)


def test_files_are_changed_as_the_recipe_changes_its_own(tmp_path):
    """The same test set as files, by a run and by its model directory alone."""
    changes = [{"side": "target", "pattern": " ", "by": ""}]
    pairs = list(generate("reverse", 8, "test"))
    for side, texts in zip(("source", "target"), zip(*pairs)):
        (tmp_path / side).write_text("".join(f"{text}\n" for text in texts))
    files = {"source": str(tmp_path / "source"), "reference": str(tmp_path / "target")}
    base.train(tiny_recipe(data={"replace": changes}), tmp_path / "run", notify=str)
    alone = shutil.copytree(tmp_path / "run" / "model", tmp_path / "alone")
    reports = [base.evaluate(tmp_path / "run"), base.evaluate(tmp_path / "run", files), base.evaluate(alone, files)]
    assert reports[0].scores == reports[1].scores == reports[2].scores
    model = base.load(alone)
    joined = [target.replace(" ", "") for _, target in pairs]
    assert base.score(alone, files) == model.score([source for source, _ in pairs], joined)


def test_a_recipe_that_lies_beside_a_model_is_not_its_own(trained_run, tmp_path, monkeypatch):
    """Only a run's folder `model` has one, also where that is where one stands."""
    alone = shutil.copytree(trained_run / "model", tmp_path / "mt")
    recipe = load_recipe(trained_run / "recipe.yaml")
    changes = [{"side": "target", "pattern": "a", "by": "zzz"}]
    (tmp_path / "recipe.yaml").write_text(dump(asdict(replace(recipe, data={**recipe.data, "replace": changes}))))
    files = {}
    for name, text in (("source", "a b\n"), ("reference", "b a\n")):
        (tmp_path / name).write_text(text)
        files[name] = str(tmp_path / name)
    assert base.evaluate(alone, files).scores == base.evaluate(trained_run, files).scores
    with pytest.raises(TransductError, match="the model's recipe names no test set; give --source and --reference"):
        base.evaluate(alone)
    monkeypatch.chdir(trained_run / "model")
    assert base.evaluate(".").scores == base.evaluate(trained_run).scores
    (tmp_path / "link").symlink_to(trained_run / "model")
    assert base.evaluate(tmp_path / "link").scores == base.evaluate(trained_run).scores


# the package itself


@pytest.mark.parametrize(
    ("asked", "found"), [({}, transduct.SPINS), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_threads_do_not_wait_awake_for_long_unless_someone_says_so(monkeypatch, asked, found):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    transduct.share_cores()
    assert os.environ.get("GOMP_SPINCOUNT") == found


def test_load_is_given_to_python_with_the_same_care():
    script = "import os, transduct; transduct.load; print(os.environ['GOMP_SPINCOUNT'])"
    env = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == transduct.SPINS


# stages


def staged(tmp_path, **second):
    """Two trainings of the same model, the second from the first's weights, with data named by a relative path."""
    (tmp_path / "text").write_text("".join(f"{word}\n" for word in ("a b", "b c", "c d e", "d", "e a", "b a c")))
    pair = {"source": "text", "target": "text"}
    recipe = tiny_recipe(training={"steps": 2, "validate_every": 0, "checkpoint_every": 1})
    data = {"train": [pair], "valid": pair, "max_length": 20, "root": str(tmp_path), "workers": 0}
    return replace(recipe, data=data, stages=[{}, {"training": {"steps": 3, "seed": 2}, **second}])


def weights(directory):
    return (directory / "model.safetensors").read_bytes()


def test_stages_are_trained_in_turn_each_from_the_model_before(tmp_path, monkeypatch):
    said = []
    monkeypatch.chdir(tmp_path)
    recipe = staged(tmp_path)
    model = base.train(replace(recipe, data={**recipe.data, "root": "."}), tmp_path / "run", notify=said.append)
    run = tmp_path / "run"
    assert model == run / "model"
    assert weights(model) == weights(run / "stage_2" / "model") != weights(run / "stage_1" / "model")
    assert sum(line.startswith(f"started from {run / 'stage_1' / 'model'}") for line in said) == 1
    assert [line for line in said if line.startswith("stage")] == [
        "stage 1 of 2: translation",
        "stage 2 of 2: translation",
    ]
    logs = [(run / f"stage_{number}" / "log.jsonl").read_text() for number in (1, 2)]
    assert (run / "log.jsonl").read_text() == "".join(logs)
    assert load_recipe(run / "recipe.yaml").data["root"] == str(tmp_path)
    assert transduct.load(run).predict(["a b"]) == transduct.load(run / "stage_2").predict(["a b"])
    said.clear()
    assert base.train(recipe, run, resume=True, notify=said.append) == model
    assert said == [f"{run}: this run is finished; its model is {model}"]


def test_a_stage_has_the_tokenizer_of_the_one_before(tmp_path):
    base.train(staged(tmp_path, tokenizer={"size": 20}), tmp_path / "run", notify=str)
    one, two = ((tmp_path / "run" / f"stage_{number}" / "tokenizer.json").read_bytes() for number in (1, 2))
    assert one == two


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 4])  # in the first stage and in the second
def test_stages_go_on_where_they_were(tmp_path, stop):
    recipe = staged(tmp_path)
    whole = base.train(recipe, tmp_path / "whole", notify=str)
    events = []

    def report(event):
        events.append(event)
        if sum("loss" in event for event in events) == stop:
            raise Interrupted

    with pytest.raises(Interrupted):
        base.train(recipe, tmp_path / "run", notify=str, report=report)
    assert not (tmp_path / "run" / "model").exists()
    assert weights(base.train(recipe, tmp_path / "run", resume=True, notify=str)) == weights(whole)


def test_a_mistake_in_the_last_stage_is_found_before_the_first_is_trained(tmp_path):
    with pytest.raises(TransductError, match=r"unknown key 'training\.stepps'; did you mean 'steps'"):
        base.train(staged(tmp_path, training={"stepps": 3}), tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_file_that_the_last_stage_lacks_is_missed_before_the_first_is_trained(tmp_path, split):
    gone = {"source": "text", "target": "gone"}
    recipe = staged(tmp_path, data={split: [gone] if split == "train" else gone})
    with pytest.raises(TransductError, match=f"{tmp_path}/gone: no such file; a relative path in a recipe starts at"):
        base.train(recipe, tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()


def test_a_model_to_start_from_that_the_last_stage_lacks_is_missed_before_the_first_is_trained(tmp_path):
    recipe = staged(tmp_path, model={"start_from": "nowhere"})
    with pytest.raises(
        TransductError, match=r"model\.start_from: nowhere holds no config\.json; name a model directory"
    ):
        base.train(recipe, tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()


def test_the_recipe_of_a_staged_run_is_read_again_from_anywhere(tmp_path, monkeypatch):
    made = base.train(SHORT, tmp_path / "start", notify=str)
    monkeypatch.chdir(tmp_path)
    start = {"start_from": "start/model"}
    recipe = replace(tiny_recipe(training={"steps": 1}, model=start), stages=[{}, {"model": start}])
    base.train(recipe, tmp_path / "run", notify=str)
    written = load_recipe(tmp_path / "run" / "recipe.yaml")
    found = [written.model["start_from"], written.stages[1]["model"]["start_from"]]
    assert found == [str(made)] * 2
    assert written.stages[0] == {}


def test_a_stage_may_start_from_any_before_it(tmp_path):
    recipe = staged(tmp_path)
    last = {"training": {"steps": 2}, "model": {"start_from": str(tmp_path / "run" / "stage_1" / "model")}}
    said = []
    base.train(replace(recipe, stages=[*recipe.stages, last]), tmp_path / "run", notify=said.append)
    assert sum(line.startswith(f"started from {tmp_path / 'run' / 'stage_1' / 'model'}") for line in said) == 2


def test_an_ensemble_is_nothing_to_start_from(tmp_path):
    base.train(replace(staged(tmp_path), ensemble=True), tmp_path / "both", notify=str)
    recipe = staged(tmp_path)
    recipe = replace(recipe, stages=[], model={**recipe.model, "start_from": str(tmp_path / "both" / "model")})
    with pytest.raises(TransductError, match=r"model is an ensemble; name one of its members, such as .*model/1"):
        base.train(recipe, tmp_path / "run", notify=str)


def test_a_quantised_model_is_nothing_to_start_from(trained_run, tmp_path):
    int8.convert(trained_run / "model", tmp_path / "int8")
    recipe = tiny_recipe(model={"start_from": str(tmp_path / "int8")})
    with pytest.raises(TransductError, match="int8 is quantised; name the model that it was made of"):
        base.train(recipe, tmp_path / "run", notify=str)


@pytest.mark.parametrize("name", ["d_model", "d_ff"])
def test_stages_of_other_sizes_are_refused_before_the_first_is_trained(tmp_path, name):
    message = rf"stages\[1\]: model\.{name} is 64, the stage that it starts from has \d+; make them equal"
    with pytest.raises(TransductError, match=message):
        base.train(staged(tmp_path, model={name: 64}), tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "second", [{"tokenizer": {"size": 20}}, {"data": {"replace": [{"side": "both", "pattern": "a", "by": "b"}]}}]
)
def test_stages_that_cannot_decide_together_are_refused_before_the_first_is_trained(tmp_path, second):
    recipe = replace(staged(tmp_path, **second), ensemble=True)
    with pytest.raises(
        TransductError, match=r"stages\[1\]: its data\.replace or its tokenizer is not that of stages\[0\]"
    ):
        base.train(recipe, tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()


def test_stages_stay_stages_and_an_ensemble_one(tmp_path):
    recipe = staged(tmp_path)
    base.train(recipe, tmp_path / "run", notify=str)
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(TransductError, match="run: its run has ensemble=false, the recipe says true; resume with the"):
        base.train(replace(recipe, ensemble=True), tmp_path / "run", resume=True, notify=str)


def test_a_finished_stage_needs_its_files_no_more(tmp_path):
    (tmp_path / "other").write_text("a b\nb c\nc d e\n")
    pair = {"source": "other", "target": "other"}
    recipe = staged(tmp_path)
    recipe = replace(recipe, stages=[{"data": {"train": [pair], "valid": pair}}, recipe.stages[1]])
    whole = base.train(recipe, tmp_path / "run", notify=str)
    before = weights(whole)
    for made in (whole, tmp_path / "run" / "stage_2" / "model"):
        shutil.rmtree(made)
    (tmp_path / "other").unlink()
    assert weights(base.train(recipe, tmp_path / "run", resume=True, notify=str)) == before


def test_a_run_keeps_its_number_of_stages(tmp_path):
    recipe = staged(tmp_path)
    base.train(recipe, tmp_path / "run", notify=str)
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(
        TransductError, match="its run has stages=2, the recipe says 3; resume with the run's own recipe"
    ):
        base.train(replace(recipe, stages=[*recipe.stages, {}]), tmp_path / "run", resume=True, notify=str)
    with pytest.raises(TransductError, match="holds another run; continue it with --resume"):
        base.train(recipe, tmp_path / "run", notify=str)


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_with_stages_that_is_refused_stays_as_it_was(tmp_path, finished):
    recipe, run = staged(tmp_path), tmp_path / "run"
    base.train(recipe, run, notify=str)
    if not finished:
        shutil.rmtree(run / "model")
        shutil.rmtree(run / "stage_2" / "model")
    before = everything_in(run)
    with pytest.raises(TransductError, match=r"stage_1: its run has model.d_model=16, the recipe says 32; resume with"):
        base.train(replace(recipe, model={**recipe.model, "d_model": 32}), run, resume=True, notify=str)
    assert everything_in(run) == before
    base.train(recipe, run, resume=True, notify=str)
    assert (run / "model" / "config.json").exists()


def test_a_root_that_is_no_text_is_refused(tmp_path):
    recipe = staged(tmp_path)
    with pytest.raises(TransductError, match=r"data.root is 5, expected a valid string"):
        base.train(replace(recipe, data={**recipe.data, "root": 5}), tmp_path / "run", notify=str)


def test_the_test_set_of_a_run_with_stages_is_the_last_one_s(tmp_path):
    test = {"source": "text", "target": "text"}
    recipe = staged(tmp_path, data={"test": test, "metrics": ["exact_match"]})
    base.train(recipe, tmp_path / "run", notify=str)
    assert base.evaluate(tmp_path / "run").scores.keys() == {"exact_match"}


def test_a_model_is_asked_only_for_what_it_can_do(trained_run):
    with pytest.raises(TransductError, match="run: a model of translation cannot sing; see: transduct predict --help"):
        base.load(trained_run, verb="sing")


def test_a_run_that_has_begun_needs_the_model_it_started_from_no_more(tmp_path):
    start = base.train(SHORT, tmp_path / "start", notify=str)
    recipe = tiny_recipe(model={"start_from": str(start)}, training={"steps": 1})
    base.train(recipe, tmp_path / "run", notify=str)
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.rmtree(start)
    with pytest.raises(TransductError, match=r"holds no config\.json; the run has begun and needs it no more"):
        base.train(recipe, tmp_path / "run", resume=True, notify=str)
    alone = replace(recipe, model={**recipe.model, "start_from": None})
    assert (base.train(alone, tmp_path / "run", resume=True, notify=str) / "config.json").exists()


def test_the_names_of_tasks_are_those_of_the_files_that_are_tasks():
    files = {path.stem for path in Path(base.__file__).parent.glob("*.py")}
    tasks = {name for name in files if hasattr(import_module(f"transduct.tasks.{name}"), "create")}
    assert sorted(tasks) == [*base.TASKS]


def test_what_is_wrong_with_data_is_said_with_the_names_of_its_files(trained_run, tmp_path, monkeypatch):
    def evaluate(*given, **options):
        raise WrongData("row 2: no label")

    monkeypatch.setattr(Translator, "evaluate", evaluate)
    files = {name: str(tmp_path / name) for name in ("source", "reference")}
    for path in files.values():
        Path(path).write_text("a\n")
    with pytest.raises(TransductError, match=f"^{tmp_path}/source, {tmp_path}/reference: row 2: no label"):
        base.evaluate(trained_run, files)
    with pytest.raises(TransductError, match=r"^data\.test: row 2: no label"):
        base.evaluate(trained_run)


def test_a_report_is_json_whatever_its_numbers_are():
    report = base.Report({"loss": float("nan"), "bleu": 1.5}, {"interval": [float("-inf"), 2], "name": "NaN é"})
    scores, details = {"loss": None, "bleu": 1.5}, {"interval": [None, 2], "name": "NaN é"}
    assert report.as_json() == json.dumps({"scores": scores, "details": details}, ensure_ascii=False)


def test_a_model_to_start_from_that_is_not_there_is_missed_before_anything_is_made(tmp_path):
    recipe = tiny_recipe(model={"start_from": str(tmp_path / "modle")})
    with pytest.raises(
        TransductError, match=r"model\.start_from: .*modle holds no config\.json; name a model directory"
    ):
        base.train(recipe, tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()
