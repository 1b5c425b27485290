"""What a run leaves, alone or in stages, and what is refused before anything is trained."""

import json
import re
import shutil
import signal
import threading
from contextlib import nullcontext
from dataclasses import asdict, replace
from fnmatch import fnmatchcase

import pyarrow
import pytest
import torch
from pyarrow import parquet

import transduct
from tests.families import RECIPES, in_folder
from tests.helpers import Interrupted, everything_in
from tests.interfaces import test_cli
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct.config import Recipe, dump, load_recipe
from transduct.data.files import Refused
from transduct.data.sources import TextSource
from transduct.data.text import read_pairs
from transduct.errors import TrainingFailed, TransductError
from transduct.interop import int8
from transduct.predictors.base import Report
from transduct.runs import evaluate, train
from transduct.storage import read_tensors
from transduct.tasks import sections, shortcut, translation
from transduct.tasks.translation import TranslationTask
from transduct.training.distributed import Ranks


def stop_after(step):
    """A report that interrupts training once a step is logged."""

    def report(event):
        if event["step"] == step and "loss" in event:
            signal.raise_signal(signal.SIGINT)

    return report


program = test_cli.program  # a fixture
SHORT = tiny_recipe(training={"steps": 2})


def test_what_a_run_leaves(trained_run):
    assert {path.name for path in trained_run.iterdir()} - {"tensorboard"} == {
        "recipe.yaml",
        "log.jsonl",
        "checkpoints",
        "model",
        "tokenizer.json",
        "corpus",
        "corpus.json",
        ".lock",
        "tokenizer.digests.json",
    }
    recipe = load_recipe(trained_run / "recipe.yaml")
    assert (recipe.task, recipe.training["steps"]) == ("translation", 60)
    events = [json.loads(line) for line in (trained_run / "log.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if "loss" in event] == list(range(1, 61))
    assert (trained_run / "checkpoints" / "step_60" / "state.json").exists()


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear"])
def test_a_finished_run_with_more_steps_goes_on_as_one_that_had_them_from_the_start(
    tmp_path, schedule
):
    """With its optimiser, from its last checkpoint; killed on the way it goes on again."""
    long = tiny_recipe(training={"steps": 8, "schedule": schedule, "average": 1})
    short = replace(long, training={**long.training, "steps": 5})
    run, lines = tmp_path / "run", []
    first = weights(train.train(short, run, notify=str))
    with pytest.raises(TrainingFailed, match="stopped by a signal at step 6"):
        train.train(long, run, resume=True, notify=lines.append, report=stop_after(6))
    assert lines[:1] == ["training.steps was 5, goes on with 8"]
    rises = "training.schedule is linear, so the learning rate rises from 0 to "
    assert lines[1].startswith("goes on from step 5 to 8")
    assert (rises in lines[1]) == (schedule == "linear")
    assert weights(run / "model") == first, "the model of before is there until the new one is"
    model = train.train(load_recipe(run / "recipe.yaml"), run, resume=True, notify=str)
    if schedule == "inverse_sqrt":
        assert weights(model) == weights(train.train(long, tmp_path / "whole", notify=str))
    assert weights(model) != first
    train.train(long, run, resume=True, notify=lines.append)
    assert lines[-1] == f"{run}: this run is finished; its model is {model}"


@pytest.mark.parametrize("ensemble", [False, True])
def test_a_finished_run_of_stages_takes_more_steps(tmp_path, staged_run, ensemble_run, ensemble):
    """In its last stage, for others started from those before; in an ensemble in each."""
    recipe, made, *_ = ensemble_run if ensemble else staged_run
    run, lines = shutil.copytree(made, tmp_path / "run"), []
    before = everything_in(run / "model")
    more = replace(recipe, stages=[{}, {"training": {"steps": 4, "seed": 2}}])
    more = replace(more, training={**more.training, "steps": 3})
    model = train.train(more, run, resume=True, notify=lines.append)
    assert "goes on from step 3 to 4" in "\n".join(lines)
    assert everything_in(model) != before
    kept = "stage 1 takes no more steps: stage 2 started from it"
    assert (kept in lines) == (not ensemble)
    assert [train.last_step(run / f"stage_{n}") for n in (1, 2)] == [2 + ensemble, 4]
    again = everything_in(model)
    train.train(more, run, resume=True, notify=lines.append)
    assert lines[-1] == f"{run}: this run is finished; its model is {model}"
    assert everything_in(model) == again


@pytest.mark.parametrize("family", ["transformer", "rnn general", "gpt", "speech"])
def test_frozen_parts_keep_every_bit_and_are_named(program, tmp_path, family):
    """Through weight decay, averages of weights and of checkpoints, and a resume."""
    recipe = in_folder(RECIPES[family], tmp_path)
    part = "decoder*" if family == "gpt" else "encoder*"
    settings = {"freeze": [part], "weight_decay": 0.1, "ema": 0.5, "average": 2, "steps": 5}
    recipe = replace(recipe, training={**recipe.training, **settings})
    run = tmp_path / "run"
    with pytest.raises(TrainingFailed, match="stopped by a signal"):
        train.train(recipe, run, notify=str, report=stop_after(3))
    model = train.train(recipe, run, resume=True, notify=str)
    before = read_tensors(run / "checkpoints" / "step_0" / "model.safetensors")
    after = read_tensors(model / "model.safetensors")
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    frozen = {name for name in after if fnmatchcase(name, part)}
    assert frozen
    assert not moved & frozen
    assert moved
    assert f"These parts were frozen: {part}." in (model / "card.md").read_text()
    assert f"frozen: {part}\n" in program("describe", run).out.decode()


def test_a_run_that_stopped_early_goes_on_without_patience(tmp_path):
    impatient = {"patience": 1, "best": "bleu", "steps": 14, "validate_every": 2}
    recipe = tiny_recipe(training=impatient)
    scores = iter([5.0, 4.0, *[6.0] * 30])
    run, lines = tmp_path / "run", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationTask, "evaluate", lambda *_, **__: Report({"bleu": next(scores)}))
        train.train(recipe, run, notify=lines.append)
        assert "stopped early at step 4 of 14" in (run / "log.jsonl").read_text()
        assert "stopped early at step 4 of 14" in (run / "model" / "card.md").read_text()
        train.train(recipe, run, resume=True, notify=lines.append)
        assert "this run is finished" in lines[-1]
        more = replace(recipe, training={**recipe.training, "steps": 20})
        train.train(more, run, resume=True, notify=lines.append)
        assert "patience stopped it; to go on add training.patience=0" in lines[-2]
        patient = replace(recipe, training={**recipe.training, "patience": 0})
        train.train(patient, run, resume=True, notify=lines.append)
    assert (run / "checkpoints" / "step_14").exists()


def test_the_recipe_it_leaves_trains_the_same_model(trained_run, tmp_path):
    model = train.train(load_recipe(trained_run / "recipe.yaml"), tmp_path / "again", notify=str)
    assert model == tmp_path / "again" / "model"
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (model / name).read_bytes() == (trained_run / "model" / name).read_bytes()


@pytest.mark.parametrize(
    "best, scores, final, said",
    [
        (None, [5.0, 3.0], 4.0, ["warning: the model has loss 4, a validation on the way had 3"]),
        (None, [5.0, 3.0], 3.0, []),
        (None, [2.0, 3.0], 3.0, ["warning: the model has loss 3, a validation on the way had 2"]),
        (
            "chrf",
            [3.0, 2.0],
            2.5,
            ["warning: the model has chrf 2.5, a validation on the way had 3"],
        ),
        ("chrf", [2.0, 3.0], 3.5, []),
        ("chrf", [], 3.5, []),
    ],
)
def test_a_model_worse_than_a_validation_of_its_run_is_warned_of(
    tmp_path, best, scores, final, said
):
    name = best or "loss"
    old = {"step": 1, "scores": {name: 0.0 if name == "loss" else 99.0}}
    changed = {"step": 1, "notice": "the validation data have changed"}
    events = [
        old,
        changed,
        *({"step": 2, "scores": {name: score}} for score in scores),
        {"step": 3, "loss": 0.0},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found: list[str] = []
    train._warn_if_worse(
        Report({name: final}, lower_is_better=frozenset({"loss"})),
        best,
        tmp_path / "log.jsonl",
        found.append,
    )
    assert [line.split(";")[0] for line in found] == said
    train._warn_if_worse(Report({}), None, tmp_path / "log.jsonl", pytest.fail)
    train._warn_if_worse(Report({"bleu": 1.0}), None, tmp_path / "none", pytest.fail)


def test_averages_are_logged_and_on_the_card_and_never_below_the_chosen_checkpoint(tmp_path):
    recipe = tiny_recipe(
        training={
            "steps": 30,
            "validate_every": 10,
            "checkpoint_every": 5,
            "average": 4,
            "warmup": 20,
        }
    )
    run = train.train(recipe, tmp_path / "run", notify=str).parent
    [event] = [
        each
        for each in map(json.loads, (run / "log.jsonl").read_text().splitlines())
        if "averaged" in each
    ]
    scores = event["scores_by_count"]
    assert (event["metric"], list(scores)) == ("loss", ["1", "2", "3", "4"])
    assert scores[str(len(event["averaged"]))] == min(scores.values()) <= scores["1"]
    card = (run / "model" / "card.md").read_text()
    assert f"Averages of checkpoints had this loss: of 1 {scores['1']:.4g}," in card
    assert f"| loss | {min(scores.values()):.4g} |" in card


@pytest.mark.parametrize(
    "paths, profile, files, said",
    [
        ([], None, {}, "nothing to train; give a recipe, or --source and --target, or --resume w"),
        (["a.yaml"], None, {"source": "a"}, "found a recipe (a.yaml) and text files; give one"),
        (["a.yaml"], None, {"valid_source": "a"}, "found a recipe (a.yaml) and text files; give"),
        ([], "cpu", {"source": "a"}, "--profile cpu belongs to a recipe; give one, or leave it"),
        ([], None, {"source": ["a"]}, "files come in pairs"),
        ([], None, {"source": ["a"], "target": ["a"], "valid_source": "a"}, "come in pairs"),
    ],
)
def test_a_call_for_no_recipe_or_two_is_refused(tmp_path, paths, profile, files, said):
    with refusal(re.escape(said)):
        train.chosen_recipe(paths, [], profile, tmp_path / "run", False, files, str)


def test_what_a_recipe_for_files_derives_from_its_steps_follows_those_that_are_asked_for(tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).write_text("a b\n" * 20)
    files, said = {name: str(tmp_path / name) for name in ("source", "target")}, []
    training = train.file_recipe(
        files, ["training.steps=100", "training.warmup=7"], said.append
    ).training
    derived = {"steps": 100, "warmup": 7, "validate_every": 10, "checkpoint_every": 5}
    assert {name: training[name] for name in derived} == derived
    assert "100 steps" in said[0]


def test_a_recipe_for_files_takes_the_numbers_that_are_fast_where_it_will_train(
    tmp_path, monkeypatch
):
    (tmp_path / "a").write_text("x\n" * 20)
    files, devices = {"source": str(tmp_path / "a"), "target": str(tmp_path / "a")}, []
    monkeypatch.setattr(
        shortcut, "pick_device", lambda name: devices.append(name) or torch.device("cpu")
    )
    for overrides in ([], ["training.device=cpu"]):
        train.file_recipe(files, overrides, str)
    assert devices == ["auto", "cpu"]


def test_a_recipe_for_files_takes_overrides(tmp_path):
    (tmp_path / "a").write_text("x\n" * 20)
    files = {"source": [str(tmp_path / "a")], "target": [str(tmp_path / "a")]}
    recipe = train.file_recipe(files, ["training.steps=7", "model.size=small"], str)
    assert (recipe.training["steps"], recipe.model["size"], recipe.data["held_out"]) == (
        7,
        "small",
        2,
    )
    with refusal("the recipe for your files: unknown key 'modle'; did you mean 'model'"):
        train.file_recipe(files, ["modle.size=small"], str)


def test_a_validation_set_that_is_asked_for_leaves_nothing_to_hold_out(tmp_path):
    (tmp_path / "a").write_text("x\n" * 20)
    files = {"source": [str(tmp_path / "a")], "target": [str(tmp_path / "a")]}
    overrides = [f"data.valid.{side}={tmp_path / 'a'}" for side in ("source", "target")]
    recipe = train.file_recipe(files, overrides, str)
    assert recipe.data["held_out"] == 0
    assert TranslationTask(recipe, tmp_path, str).data.valid is not None


def test_files_train_any_family(tmp_path):
    (tmp_path / "a").write_text("x\n" * 20)
    files = {"source": [str(tmp_path / "a")], "target": [str(tmp_path / "a")]}
    recipe = train.file_recipe(files, ["model.family=rnn"], str)
    assert TranslationTask(recipe, tmp_path, str).model.name == "rnn"


def test_a_place_in_the_home_folder_is_named_by_a_tilde_with_files_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").write_text("x\n" * 20)
    recipe = train.file_recipe(
        {"source": "~/a", "target": "~/a"},
        ["model.start_from=~/b/model", "data.root=~/c"],
        str,
    )
    assert recipe.model["start_from"] == f"{tmp_path}/b/model"
    assert recipe.data["root"] == f"{tmp_path}/c"


def test_a_finished_run_is_left_as_it_is(run):
    before, said = everything_in(run), []
    recipe = load_recipe(run / "recipe.yaml")
    changed = replace(recipe, training={**recipe.training, "warmup": 99})
    train.train(changed, run, resume=True, notify=said.append)
    told, finished = said
    remedy = "another may start from its model (model.start_from)"
    assert told == f"{run}: training.warmup stays 4, not 99: this run is finished; {remedy}"
    assert finished == f"{run}: this run is finished; its model is {run / 'model'}"
    assert everything_in(run) == before


def test_a_run_that_has_begun_needs_the_model_it_started_from_no_more(tmp_path):
    start = train.train(SHORT, tmp_path / "start", notify=str)
    recipe = tiny_recipe(model={"start_from": str(start)}, training={"steps": 1})
    train.train(recipe, tmp_path / "run", notify=str)
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.rmtree(start)
    with refusal(r"holds no config\.json; the run no longer needs it"):
        train.train(recipe, tmp_path / "run", resume=True, notify=str)
    alone = replace(recipe, model={**recipe.model, "start_from": None})
    assert (train.train(alone, tmp_path / "run", resume=True, notify=str) / "config.json").exists()


def test_a_model_to_start_from_that_is_not_there_is_missed_before_anything_is_made(tmp_path):
    recipe = tiny_recipe(model={"start_from": str(tmp_path / "modle")})
    with refusal(r"model\.start_from: .*modle: no such folder; give a run or a model directory"):
        train.train(recipe, tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()


# stages


def staged(tmp_path, **second):
    """Two trainings of the same model, the second from the first's weights, with data named by a
    relative path."""
    (tmp_path / "text").write_text(
        "".join(f"{word}\n" for word in ("a b", "b c", "c d e", "d", "e a", "b a c"))
    )
    pair = {"source": "text", "target": "text"}
    recipe = tiny_recipe(training={"steps": 2, "validate_every": 0, "checkpoint_every": 1})
    data = {"train": [pair], "valid": pair, "max_length": 20, "root": str(tmp_path), "workers": 0}
    return replace(recipe, data=data, stages=[{}, {"training": {"steps": 3, "seed": 2}, **second}])


def weights(directory):
    return (directory / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def staged_run(tmp_path_factory):
    """The recipe of such a run, its folder, and what it has said."""
    folder, said = tmp_path_factory.mktemp("staged"), []
    recipe = staged(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        relative = replace(recipe, data={**recipe.data, "root": "."})
        model = train.train(relative, folder / "run", notify=said.append)
    assert model == folder / "run" / "model"
    return recipe, folder / "run", said


@pytest.fixture
def run_of_stages(staged_run, tmp_path):
    """Its recipe, and a copy of the run to be changed."""
    recipe, run, _ = staged_run
    return recipe, shutil.copytree(run, tmp_path / "run")


@pytest.fixture(scope="module")
def ensemble_run(tmp_path_factory):
    """The recipe of an ensemble, and its run."""
    folder = tmp_path_factory.mktemp("ensemble")
    recipe = replace(staged(folder), ensemble=True)
    train.train(recipe, folder / "run", notify=str)
    return recipe, folder / "run"


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory):
    """The recipe of a run that ended after a step of its second stage, and the run."""
    folder = tmp_path_factory.mktemp("broken_off")
    return interrupted(folder), folder / "run"


@pytest.fixture
def interrupted_run(broken_off, tmp_path):
    """Its recipe, and a copy of the run to be changed."""
    recipe, run = broken_off
    return recipe, shutil.copytree(run, tmp_path / "run")


@pytest.mark.parametrize("in_stages", [False, True])
def test_a_run_goes_on_in_the_precision_in_which_it_began_on_another_machine(
    tmp_path, monkeypatch, in_stages
):
    recipe, run, said = staged(tmp_path), tmp_path / "run", []
    recipe = replace(
        recipe, stages=recipe.stages * in_stages, training={**recipe.training, "precision": "auto"}
    )
    monkeypatch.setattr(sections, "fast_precision", lambda device: "float32")
    train.train(recipe, run, notify=str)
    last = run / "stage_2" if in_stages else run
    for directory in {run, last}:
        shutil.rmtree(directory / "model")
    monkeypatch.setattr(sections, "fast_precision", lambda device: "bfloat16")
    train.train(recipe, run, resume=True, notify=said.append)
    assert load_recipe(last / "recipe.yaml").training["precision"] == "float32"
    assert not any("precision" in line for line in said)
    told = replace(recipe, training={**recipe.training, "precision": "bfloat16"})
    for directory in {run, last}:
        shutil.rmtree(directory / "model")
    train.train(told, run, resume=True, notify=said.append)
    assert "training.precision was float32, goes on with bfloat16" in said, "the control"


def test_stages_are_trained_in_turn_each_from_the_model_before(staged_run):
    recipe, run, lines = staged_run
    model, said = run / "model", []
    assert (
        weights(model) == weights(run / "stage_2" / "model") != weights(run / "stage_1" / "model")
    )
    assert sum(line.startswith(f"started from {run / 'stage_1' / 'model'}") for line in lines) == 1
    assert [line for line in lines if line.startswith("stage")] == [
        "stage 1 of 2: translation",
        "stage 2 of 2: translation",
    ]
    logs = [(run / f"stage_{number}" / "log.jsonl").read_text() for number in (1, 2)]
    assert (run / "log.jsonl").read_text() == "".join(logs)
    one, two = (run / f"stage_{number}" / "tokenizer.json" for number in (1, 2))
    assert one.read_bytes() == two.read_bytes()
    assert load_recipe(run / "recipe.yaml").data["root"] == str(run.parent)
    assert transduct.load(run).predict(["a b"]) == transduct.load(run / "stage_2").predict(["a b"])
    finished = f"{run}: this run is finished; its model is {model}"
    assert train.train(recipe, run, resume=True, notify=said.append) == model
    assert said == [finished]
    said.clear()
    train.train(replace(recipe, decoding={"beam": 3}), run, resume=True, notify=said.append)
    remedy = "another may start from its model (model.start_from)"
    beams = [
        f"{run / part}: decoding.beam stays 2, not 3: this run is finished; {remedy}"
        for part in ("stage_1", "stage_2")
    ]
    assert said == [*beams, finished]


def test_stages_go_on_where_they_were(tmp_path, staged_run):
    """Broken off in the first stage, and again in the second after a checkpoint."""
    recipe, whole, _ = staged_run
    for stop in (1, 4):
        events = []

        def report(event, events=events, stop=stop):
            events.append(event)
            if sum("loss" in event for event in events) == stop:
                raise Interrupted

        with pytest.raises(Interrupted):
            train.train(recipe, tmp_path / "run", resume=stop > 1, notify=str, report=report)
        assert not (tmp_path / "run" / "model").exists()
    model = train.train(recipe, tmp_path / "run", resume=True, notify=str)
    assert weights(model) == weights(whole / "model")


def interrupted(tmp_path):
    """A recipe whose run has been interrupted in its second stage."""
    recipe = staged(tmp_path)

    def report(event):
        if event.get("step") == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        train.train(recipe, tmp_path / "run", notify=str, report=report)
    return recipe


def test_a_refused_resume_of_stages_leaves_their_recipe_as_it_was(interrupted_run):
    recipe, run = interrupted_run
    held = (run / "recipe.yaml").read_bytes()
    fewer = replace(recipe, stages=[{}, {"training": {**recipe.stages[1]["training"], "steps": 1}}])
    with refusal("step 2 is trained already; give no fewer"):
        train.train(fewer, run, resume=True, notify=str)
    assert (run / "recipe.yaml").read_bytes() == held


def test_a_run_may_lie_at_home_and_gradients_be_turned_off(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with torch.no_grad():
        assert train.train(SHORT, "~/run", notify=str) == tmp_path / "run" / "model"
    train.train(SHORT, tmp_path / "same", notify=str)
    one, same = (
        (tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("run", "same")
    )
    assert one == same


def test_another_thread_may_not_train_meanwhile(tmp_path):
    said = []

    def other():
        try:
            train.train(SHORT, tmp_path / "other", notify=str)
        except TransductError as error:
            said.append(str(error))

    def report(event):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    train.train(SHORT, tmp_path / "run", notify=str, report=report)
    [problem] = {*said}
    assert problem.startswith(
        "another thread of this process trains, with the same random generators; train in a "
    )
    assert not (tmp_path / "other").exists()


def test_files_that_have_moved_since_a_run_began_are_refused_with_a_remedy(tmp_path):
    recipe = interrupted(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "text").rename(tmp_path / "elsewhere" / "text")
    with refusal(r"/text: no such file; .*; if they have moved, .*: data\.root=FOLDER$"):
        train.train(recipe, tmp_path / "run", resume=True, notify=str)
    moved = replace(recipe, data={**recipe.data, "root": str(tmp_path / "elsewhere")})
    train.train(moved, tmp_path / "run", resume=True, notify=str)


GONE = {"source": "text", "target": "gone"}
NO_COMMON_WAY = r"stages\[1\]: its data\.replace or its tokenizer is not that of stages\[0\]"
STARTS = r"stages\[1\]\.{} is {}, the stage that it starts from has {}; make them equal"


@pytest.mark.parametrize(
    "whole, second, message",
    [
        ({}, {"training": {"stepps": 3}}, r"'stages\[1\]\.training\.stepps'; did you mean 'steps'"),
        ({}, {"data": {"train": [GONE]}}, "/gone: no such file; check the path"),
        ({}, {"data": {"valid": GONE}}, "/gone: no such file; check the path"),
        ({}, {"data": {"test": GONE}}, "/gone: no such file; check the path"),
        (
            {},
            {"data": {"train": [{"source": "text", "target": "short"}]}},
            r"text has 6 lines and .*short has 2; expected line i",
        ),
        (
            {},
            {"model": {"start_from": "nowhere"}},
            r"model\.start_from: nowhere: no such folder; give a run or a model directory",
        ),
        (
            {"model": {"positions": "learned"}},
            {"data": {"max_length": 30}},
            STARTS.format(r"data\.max_length", 30, 20),
        ),
        ({}, {"tokenizer": {"size": 50}}, STARTS.format(r"tokenizer\.size", 50, 60)),
        (
            {"tokenizer": {"shared": False}},
            {"tokenizer": {"source": {"size": 50}}},
            STARTS.format(r"tokenizer\.source\.size", 50, 60),
        ),
        ({}, {"model": {"d_model": 64}}, STARTS.format(r"model\.d_model", 64, r"\d+")),
        ({}, {"model": {"d_ff": 64}}, STARTS.format(r"model\.d_ff", 64, r"\d+")),
        ({}, {"model": {"num_heads": 1}}, STARTS.format(r"model\.num_heads", 1, r"\d+")),
        ({"ensemble": True}, {"tokenizer": {"size": 20}}, NO_COMMON_WAY),
        (
            {"ensemble": True},
            {"data": {"replace": [{"side": "both", "pattern": "a", "by": "b"}]}},
            NO_COMMON_WAY,
        ),
    ],
)
def test_what_is_wrong_in_the_last_stage_is_found_before_the_first_is_trained(
    tmp_path, whole, second, message
):
    recipe = staged(tmp_path, **second)
    (tmp_path / "short").write_text("a\nb\n")
    for name, value in whole.items():
        value = {**vars(recipe)[name], **value} if name != "ensemble" else value
        recipe = replace(recipe, **{name: value})
    with refusal(message):
        train.train(recipe, tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()


def test_a_stage_that_has_begun_is_not_read_twice(run_of_stages, monkeypatch):
    (recipe, run), read = run_of_stages, []
    monkeypatch.setattr(translation.TranslationTask, "check_data", lambda task: read.append(task))
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "stage_2" / "model")
    train.train(recipe, run, resume=True, notify=str)
    assert read == []


def test_a_run_to_start_from_stands_for_its_model(trained_run, run, tmp_path):
    recipe = tiny_recipe(
        data={"train": [{"generate": "reverse", "count": 500}]},
        model={"d_model": 32, "start_from": str(trained_run)},
        training={"steps": 1},
    )
    train.train(recipe, tmp_path / "of_run", notify=str)
    model = {**recipe.model, "start_from": str(trained_run / "model")}
    train.train(replace(recipe, model=model), tmp_path / "of_model", notify=str)
    assert weights(tmp_path / "of_run" / "model") == weights(tmp_path / "of_model" / "model")
    held = load_recipe(tmp_path / "of_run" / "recipe.yaml").model["start_from"]
    assert held == str((trained_run / "model").resolve())
    shutil.rmtree(run / "model")
    unfinished = replace(recipe, model={**recipe.model, "start_from": str(run)})
    said = f"model.start_from: {run}: this run has no model yet; finish it with"
    with refusal(re.escape(said)):
        train.train(unfinished, tmp_path / "none", notify=str)


def test_the_recipe_of_a_staged_run_is_read_again_from_anywhere(tmp_path, monkeypatch):
    made = train.train(SHORT, tmp_path / "start", notify=str)
    monkeypatch.chdir(tmp_path)
    start = {"start_from": "start/model"}
    recipe = replace(tiny_recipe(training={"steps": 1}, model=start), stages=[{}, {"model": start}])
    train.train(recipe, tmp_path / "run", notify=str)
    written = load_recipe(tmp_path / "run" / "recipe.yaml")
    found = [written.model["start_from"], written.stages[1]["model"]["start_from"]]
    assert found == [str(made)] * 2
    assert written.stages[0] == {}


def test_a_stage_may_start_from_any_before_it(tmp_path):
    recipe = staged(tmp_path)
    last = {
        "training": {"steps": 2},
        "model": {"start_from": str(tmp_path / "run" / "stage_1" / "model")},
    }
    said = []
    train.train(
        replace(recipe, stages=[*recipe.stages, last]), tmp_path / "run", notify=said.append
    )
    assert (
        sum(
            line.startswith(f"started from {tmp_path / 'run' / 'stage_1' / 'model'}")
            for line in said
        )
        == 2
    )


def test_an_ensemble_is_nothing_to_start_from(tmp_path, ensemble_run):
    start, recipe = str(ensemble_run[1] / "model"), staged(tmp_path)
    recipe = replace(recipe, stages=[], model={**recipe.model, "start_from": start})
    with refusal(r"model is an ensemble; name one of its members, such as .*model/1"):
        train.train(recipe, tmp_path / "run", notify=str)


def test_a_quantised_model_is_nothing_to_start_from(trained_run, tmp_path):
    int8.convert(trained_run / "model", tmp_path / "int8")
    recipe = replace(tiny_recipe(model={"start_from": str(tmp_path / "int8")}), tokenizer={})
    with refusal("int8 is quantised; name the model that it was made of"):
        train.train(recipe, tmp_path / "run", notify=str)


@pytest.mark.parametrize(
    "other, message",
    [
        ({"num_heads": 4}, "num_heads is 4, .* has 2"),
        ({"positions": "rotary"}, "positions is rotary, .* has sinusoidal"),
        ({"norm": "post"}, "norm is post, .* has pre"),
        ({"tie": "none"}, "tie is none, .* has all"),
        ({"position_mode": "concatenate"}, "position_mode is concatenate, .* has add"),
        ({"norm_kind": "rms"}, "norm_kind is rms, .* has layer"),
        ({"activation": "gelu"}, "activation is gelu, .* has relu"),
    ],
)
def test_a_model_whose_weights_mean_something_else_is_nothing_to_start_from(
    tmp_path, trained_run, other, message
):
    held = load_recipe(trained_run / "recipe.yaml")
    recipe = replace(held, model={**held.model, "start_from": str(trained_run / "model"), **other})
    with refusal(rf"recipe: model\.{message}; make them equal"):
        train.train(recipe, tmp_path / "run", notify=str)


@pytest.mark.parametrize(
    "family, section, key, value",
    [
        ("transformer", "data", "max_length", 30),
        ("transformer", "model", "d_k", 4),
        ("masked tokens", "data", "max_length", 20),
        ("scenes", "model", "queries", 64),
        ("pictures", "model", "patch_size", 2),
        ("image codes", "model", "codes", 9),
        ("text to image", "model", "d_ff", 8),
        ("speech", "model", "d_ff", 8),
    ],
)
def test_other_shapes_than_those_of_the_start_are_refused_before_anything_is_prepared(
    family, section, key, value, family_of, tmp_path
):
    recipe, run = family_of(family)
    made = run / "model"
    if key == "max_length":
        steps = {"steps": 1, "validate_every": 0}
        training, model = {**recipe.training, **steps}, {**recipe.model, "positions": "learned"}
        recipe = replace(recipe, model=model, training=training)
        made = train.train(recipe, tmp_path / "a", notify=str)
    again = replace(recipe, stages=[], model={**recipe.model, "start_from": str(made)})
    changed = replace(again, **{section: {**getattr(again, section), key: value}})
    with refusal(rf"model\..*{key}.* is {value}, .* has "):
        train.train(changed, tmp_path / "b", notify=str)
    assert not (tmp_path / "b" / "corpus").exists()


def test_stages_without_tables_of_positions_may_have_other_lengths(tmp_path):
    recipe = staged(tmp_path)
    recipe = replace(recipe, stages=[{}, {**recipe.stages[1], "data": {"max_length": 30}}])
    train.train(recipe, tmp_path / "run", notify=str)


@pytest.mark.parametrize(
    "weight, other, extra, refused",
    [
        (1.0, True, 0, True),
        (2.0, True, 0, True),
        (2.0, False, 0, False),
        (2.0, False, -1, False),
        (1.0, False, 1, True),
    ],
)
def test_pairs_that_an_earlier_stage_was_trained_on_are_not_held_out(
    tmp_path, weight, other, extra, refused
):
    for name in ("a", "b"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{name} {n}\tb {n}\n" for n in range(40)))
    own, more = {"pairs": str(tmp_path / "a.tsv")}, {"pairs": str(tmp_path / "b.tsv")}
    first = {"train": [own, more] if other else [own], "valid": None, "held_out": 5}
    second = {"train": [{**own, "weight": weight}], "valid": None, "held_out": 5 + extra}
    recipe = tiny_recipe(training={"steps": 1})
    stages = [{"data": first}, {"data": second}]
    recipe = replace(recipe, data={"max_length": 40, "workers": 0}, stages=stages)
    message = (
        r"stages\[1\]\.data\.held_out takes pairs that the stage it starts from was "
        r"trained on; name data\.valid"
    )
    with refusal(message) if refused else nullcontext():
        train.train(recipe, tmp_path / "run", notify=str)


def test_a_model_directory_with_an_embedding_norm_is_no_start_for_translation(tmp_path):
    held = {"format": 1, "task": "masked_language_modeling", "model": {"embedding_norm": True}}
    (tmp_path / "config.json").write_text(json.dumps(held))
    with refusal(r"model\.start_from: .* has model\.embedding_norm, which translation"):
        train.train(tiny_recipe(model={"start_from": str(tmp_path)}), tmp_path / "run", notify=str)


@pytest.mark.parametrize("name", ["context", "size"])
def test_stages_whose_learned_positions_are_of_other_lengths_are_refused(tmp_path, name):
    def stage(length, **model):
        return Recipe(task="any", data={name: length}, model={"positions": "learned", **model})

    start = str(tmp_path / "stage_1" / "model")
    stages = {tmp_path / "stage_1": stage(64), tmp_path / "stage_2": stage(128, start_from=start)}
    with refusal(rf"stages\[1\]\.data\.{name} is 128, the stage that .* has 64; make the"):
        train._check_shared(stages)


@pytest.mark.parametrize("out", ["run", "./run"])
def test_stages_are_compared_wherever_their_run_is(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    with refusal(STARTS.format(r"model\.d_model", 64, r"\d+")):
        train.train(staged(tmp_path, model={"d_model": 64}), out, notify=str)
    assert not (tmp_path / "run").exists()


def test_a_run_of_stages_may_be_moved(tmp_path, run_of_stages):
    recipe, run = run_of_stages
    before = weights(run / "model")
    for made in ("model", "stage_2/model"):
        shutil.rmtree(run / made)
    run.rename(tmp_path / "moved")
    assert weights(train.train(recipe, tmp_path / "moved", resume=True, notify=str)) == before


def test_a_stage_of_an_ensemble_may_start_from_one_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = staged(tmp_path, model={"start_from": "run/stage_1/model"})
    assert (
        train.train(replace(recipe, ensemble=True), "run", notify=str) / "2" / "config.json"
    ).exists()


def test_stages_stay_stages_and_an_ensemble_one(run_of_stages):
    recipe, run = run_of_stages
    shutil.rmtree(run / "model")
    with refusal("run: its run has ensemble=false, the recipe says true; resume with the"):
        train.train(replace(recipe, ensemble=True), run, resume=True, notify=str)


def test_a_finished_stage_needs_its_files_no_more(tmp_path):
    (tmp_path / "other").write_text("a b\nb c\nc d e\n")
    pair = {"source": "other", "target": "other"}
    recipe = staged(tmp_path)
    recipe = replace(recipe, stages=[{"data": {"train": [pair], "valid": pair}}, recipe.stages[1]])
    whole = train.train(recipe, tmp_path / "run", notify=str)
    before = weights(whole)
    for made in (whole, tmp_path / "run" / "stage_2" / "model"):
        shutil.rmtree(made)
    (tmp_path / "other").unlink()
    assert weights(train.train(recipe, tmp_path / "run", resume=True, notify=str)) == before


def test_a_run_keeps_its_number_of_stages(run_of_stages):
    recipe, run = run_of_stages
    shutil.rmtree(run / "model")
    with refusal("its run has stages=2, the recipe says 3; resume with the run's own recipe"):
        train.train(replace(recipe, stages=[*recipe.stages, {}]), run, resume=True, notify=str)
    with refusal("holds another run; continue it with --resume"):
        train.train(recipe, run, notify=str)


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_with_stages_that_is_refused_stays_as_it_was(run_of_stages, finished):
    recipe, run = run_of_stages
    if not finished:
        shutil.rmtree(run / "model")
        shutil.rmtree(run / "stage_2" / "model")
    before = everything_in(run)
    with refusal(r"stage_1: its run has model.d_model=16, the recipe says 32; resume with"):
        train.train(
            replace(recipe, model={**recipe.model, "d_model": 32}), run, resume=True, notify=str
        )
    assert everything_in(run) == before
    train.train(recipe, run, resume=True, notify=str)
    assert (run / "model" / "config.json").exists()


def test_a_validation_file_that_is_edited_between_two_sessions_is_another_measure(tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).write_text("a b\nb c\n")
    valid = {"source": str(tmp_path / "source"), "target": str(tmp_path / "target")}
    recipe = tiny_recipe(training={"best": "loss", "steps": 7})
    recipe = replace(recipe, data={**recipe.data, "valid": valid})
    for step, edited in ((7, False), (14, False), (21, True)):
        if edited:
            (tmp_path / "target").write_text("a b\nb d\n")
        said = []
        longer = replace(recipe, training={**recipe.training, "steps": step})
        train.train(longer, tmp_path / "run", resume=step > 7, notify=str, report=said.append)
        assert (
            any("the validation data have changed" in event.get("notice", "") for event in said)
            == edited
        )
        shutil.rmtree(tmp_path / "run" / "model")


def test_a_root_that_is_no_text_is_refused(tmp_path):
    recipe = staged(tmp_path)
    with refusal(r"data.root is 5, expected text"):
        train.train(replace(recipe, data={**recipe.data, "root": 5}), tmp_path / "run", notify=str)


def test_the_test_set_of_a_run_with_stages_is_the_last_one_s(tmp_path):
    test = {"source": "text", "target": "text"}
    recipe = staged(tmp_path, data={"test": test, "metrics": ["exact_match"]})
    train.train(recipe, tmp_path / "run", notify=str)
    assert evaluate.evaluate(tmp_path / "run").scores.keys() == {"exact_match"}


PAIRS = [(text, text.upper()) for text in ("a b", "b c d", "c", "d a", "a c b", "b b a d")]


def write_table(path):
    """Pairs in a table of the path's kind, with a column that is not read; its columns."""
    names = ["id", "de", "en"]
    rows = [{"id": str(n), "de": a, "en": b} for n, (a, b) in enumerate(PAIRS)]
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        path.write_text(
            "".join(mark.join(line) + "\n" for line in [names, *map(dict.values, rows)])
        )
    return path


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_a_table_of_pairs_is_trained_on_by_its_columns(tmp_path, kind):
    table = write_table(tmp_path / f"pairs.{kind}")
    asked = {"columns": "de,en"}
    recipe = train.chosen_recipe([str(table)], [], None, tmp_path / "run", False, asked, str)
    [corpus] = recipe.data["train"]
    assert corpus == {"pairs": [str(table)], "columns": ["de", "en"]}
    found = read_pairs(TextSource(**corpus), tmp_path, (), Refused("stop"))
    assert [pair for chunk in found for pair in chunk] == PAIRS
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(dump(asdict(with_root(recipe))))
    again = [str(table)], [], None, tmp_path / "run", True, asked, str
    assert train.chosen_recipe(*again) == load_recipe(tmp_path / "run" / "recipe.yaml")
    other = [str(write_table(tmp_path / f"other.{kind}")), *again[0][1:]], *again[1:]
    with refusal(r"the table is .*other.*, its run has .*pairs"):
        train.chosen_recipe(*other)


def with_root(recipe):
    return replace(recipe, data={"root": ".", **recipe.data})


def test_columns_are_names_or_numbers():
    assert train.column_names("de, en") == ["de", "en"]
    assert train.column_names("2,0") == [2, 0]
    for wrong in ("de", "de,en,fr", "de,"):
        with pytest.raises(
            TransductError, match=f"--columns is '{wrong}', expected two names, the s"
        ):
            train.column_names(wrong)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.json", "[]", "expected a recipe or a table; write JSON lines, one object a line, to"),
        ("a.ndjson", "{}", "expected a recipe or a table; name it .jsonl"),
        ("a.pq", "PAR1", "expected a recipe or a table; name it .parquet"),
        ("a.txt", "a: b", "expected a recipe or a table; name a table .tsv; give aligned text wit"),
        ("a.de", "Ein Haus.", "looks like text, not like a recipe; give a recipe (.yaml), a table"),
        ("folder", None, "is a folder; name a recipe, or its files with --source and --target"),
    ],
)
def test_what_is_no_recipe_is_named_with_what_to_give(tmp_path, name, content, message):
    path = tmp_path / name
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(TransductError) as caught:
        train.chosen_recipe([str(path)], [], None, tmp_path / "run", False, {}, str)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_columns_without_a_table_are_refused(tmp_path):
    with refusal("--columns de,en names columns of a table; give its"):
        train.chosen_recipe([], [], None, tmp_path, False, {"columns": "de,en"}, str)


@pytest.mark.parametrize(
    ("asked", "begun", "world", "steps"),
    [
        ({}, None, 1, 1),
        ({"accumulate": 3}, None, 2, 6),
        ({"batches_per_step": 4}, None, 2, 4),
        ({}, {"accumulate": 1, "batches_per_step": 4}, 2, 4),
        ({"accumulate": 2, "batches_per_step": 4}, {"accumulate": 1, "batches_per_step": 4}, 2, 8),
        ({"batches_per_step": 6}, {"accumulate": 1, "batches_per_step": 4}, 2, 6),
        ({}, {"accumulate": 1}, 2, 2),
    ],
)
def test_a_step_stays_the_size_that_its_run_began_with(
    tmp_path, monkeypatch, asked, begun, world, steps
):
    said = []
    task = TranslationTask(tiny_recipe(training=asked), tmp_path, said.append)
    if begun:
        (tmp_path / "recipe.yaml").touch()
        monkeypatch.setattr(train, "own_recipe", lambda folder: tiny_recipe(training=begun))
    train._fix_step(task, tmp_path, Ranks(0, world))
    assert task.training.batches_per_step == task.recipe.training["batches_per_step"] == steps
    assert not [line for line in said if "batches" in line]


def test_ranks_that_wait_in_each_step_are_warned_of(tmp_path):
    said = []
    task = TranslationTask(tiny_recipe(training={"batches_per_step": 4}), tmp_path, said.append)
    train._fix_step(task, tmp_path, Ranks(0, 3))
    assert said[-1] == (
        "warning: a step has 4 batches for 3 ranks, so 2 of them wait once a step; "
        "training.batches_per_step=6 uses all"
    )
