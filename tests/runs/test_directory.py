"""A run directory belongs to one run: no other is overwritten, and a refused resume changes
nothing."""

import errno
import fcntl
import json
import os
import shutil
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import transduct
from tests.helpers import Interrupted, everything_in
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct.config import Recipe, dump, load_recipe
from transduct.errors import TrainingFailed, TransductError
from transduct.runs import directory, train
from transduct.tasks.translation import TranslationTask
from transduct.training.log import ignore

SHORT = tiny_recipe(training={"steps": 2})


def resume(run, report=ignore, notify=str, **changes):
    """Go on with a run, by its own recipe with changes to its sections."""
    recipe = load_recipe(run / "recipe.yaml")
    sections = {name: {**vars(recipe)[name], **values} for name, values in changes.items()}
    return train.train(replace(recipe, **sections), run, True, notify, report)


@pytest.fixture
def unfinished(run):
    """A copy of a run whose model was not written yet."""
    shutil.rmtree(run / "model")
    return run


def test_a_second_process_is_kept_out(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    lock = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with refusal("run: another process trains here; wait for it or stop it"):
        train.train(SHORT, directory, notify=str)
    assert [path.name for path in directory.iterdir()] == [".lock"]
    os.close(lock)
    train.train(SHORT, directory, notify=str)


def test_a_run_holds_its_lock_while_it_trains(tmp_path):
    refused = []

    def second(event):
        with refusal("another process trains here"):
            train.train(SHORT, tmp_path / "run", resume=True, notify=str)
        refused.append(event["step"])

    train.train(SHORT, tmp_path / "run", notify=str, report=second)
    assert refused == [1, 2, 2]


def test_a_process_that_was_forked_does_not_hold_the_lock(tmp_path, monkeypatch):
    """A loader's worker outlives a killed parent by some seconds."""
    children = []

    def fork(event):
        if event["step"] == 1:
            children.append(os.fork())
            if not children[-1]:
                time.sleep(30)
                os._exit(0)
            raise Interrupted

    with pytest.raises(Interrupted):
        train.train(SHORT, tmp_path / "run", notify=str, report=fork)
    try:
        train.train(SHORT, tmp_path / "run", resume=True, notify=str)
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


def test_half_written_files_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".recipe.yaml.77.part").write_text("task: trans")
    train.train(SHORT, tmp_path / "run", notify=str)
    shutil.copytree(tmp_path / "run" / "model", tmp_path / "run" / ".model.77.part")
    shutil.rmtree(tmp_path / "run" / "model")
    train.train(SHORT, tmp_path / "run", resume=True, notify=str)
    assert not list((tmp_path / "run").glob(".*.part"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.part").write_text("mine")
    with refusal("other: holds files that do not belong to a run; choose an empty or a new folder"):
        train.train(SHORT, tmp_path / "other", notify=str)


def test_another_run_is_not_overwritten(run):
    before = everything_in(run)
    with refusal("run: holds another run; continue it with --resume or choose another"):
        train.train(SHORT, run, notify=str)
    assert everything_in(run) == before


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": {"d_model": 64}}, "model.d_model=32, the recipe says 64"),
        ({"model": {"tie": "none"}}, "model.tie=all, the recipe says none"),
        ({"training": {"ema": 0.5}}, "training.ema=0.0, the recipe says 0.5"),
        ({"training": {"optimiser": "muon"}}, "training.optimiser=adam, the recipe says muon"),
        ({"data": {"max_length": 30}}, "data.max_length=40, the recipe says 30"),
        ({"tokenizer": {"size": 70}}, "tokenizer.size=60, the recipe says 70"),
    ],
)
def test_a_run_is_not_resumed_with_another_model_or_other_data(unfinished, changes, message):
    before = everything_in(unfinished)
    with refusal(f"run: its run has {message}; resume with the run's own recipe"):
        resume(unfinished, **changes)
    assert everything_in(unfinished) == before


OLD = {"scale": True, "residual": True, "feed_forward": True}  # keys of `model` of older versions


def test_a_run_with_the_keys_of_an_older_version_is_resumed_and_loaded(unfinished):
    held = load_recipe(unfinished / "recipe.yaml")
    old = replace(held, model={**held.model, **OLD})
    (unfinished / "recipe.yaml").write_text(dump(asdict(old)))
    for recipe in (held, old):
        train.train(recipe, unfinished, resume=True, notify=str)
    config = json.loads((unfinished / "model" / "config.json").read_text())
    assert not OLD.keys() & config["model"].keys()
    told = transduct.load(unfinished).predict(["a b"])
    config["model"] |= OLD
    (unfinished / "model" / "config.json").write_text(json.dumps(config))
    assert transduct.load(unfinished).predict(["a b"]) == told


@pytest.mark.parametrize("changes", [{name: False} for name in OLD] + [{"norm": "none"}], ids=str)
def test_a_model_that_the_course_alone_has_is_refused(unfinished, changes):
    [(key, value)] = changes.items()
    held = load_recipe(unfinished / "recipe.yaml")
    (unfinished / "recipe.yaml").write_text(
        dump(asdict(replace(held, model={**held.model, **changes})))
    )
    said = f"model.{key} is {str(value).lower()}; a model without that part is in the course"
    with refusal(said):
        resume(unfinished)


def test_a_refused_resume_leaves_the_recipe_as_it_was(unfinished):
    held = (unfinished / "recipe.yaml").read_bytes()
    with refusal(r"training\.steps is 1, step \d+ is trained already; give no fewer"):
        resume(unfinished, training={"steps": 1})
    assert (unfinished / "recipe.yaml").read_bytes() == held


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("out of memory")])
def test_a_resume_that_ends_before_it_goes_on_leaves_the_recipe_as_it_was(
    unfinished, monkeypatch, error
):
    held = (unfinished / "recipe.yaml").read_bytes()

    def fails(*_):
        raise error

    monkeypatch.setattr(train, "fit", fails)
    with pytest.raises((TrainingFailed, RuntimeError)):
        resume(unfinished, training={"steps": 99})
    assert (unfinished / "recipe.yaml").read_bytes() == held


@pytest.mark.parametrize("place", ["before its first step", "before its first line"])
def test_a_recipe_is_that_of_the_newest_step(unfinished, monkeypatch, place):
    """An unfinished step is no progress; a checkpoint is, even if nothing has been logged."""
    held, loss = load_recipe(unfinished / "recipe.yaml"), TranslationTask.loss
    before = {*unfinished.glob("checkpoints/*")}

    def fails(task, model, batch):
        if place == "before its first step" or {*unfinished.glob("checkpoints/*")} - before:
            raise RuntimeError("out of memory")
        return loss(task, model, batch)

    monkeypatch.setattr(TranslationTask, "loss", fails)
    changed = {"steps": 99, "log_every": 50, "checkpoint_every": 1}
    with pytest.raises(RuntimeError, match="out of memory"):
        resume(unfinished, training=changed)
    wanted = held.training["steps"] if place == "before its first step" else 99
    assert load_recipe(unfinished / "recipe.yaml").training["steps"] == wanted


def test_bleu_by_another_tokenizer_is_not_compared_with_what_was_best(unfinished):
    held = load_recipe(unfinished / "recipe.yaml")
    other = replace(held, data={**held.data, "bleu_tokenize": "char"})
    directory._compare(held, other, unfinished, pytest.fail)
    by_bleu = [replace(each, training={**held.training, "best": "bleu"}) for each in (held, other)]
    with refusal(r"has data\.bleu_tokenize=auto, the recipe says char"):
        directory._compare(*by_bleu, unfinished, pytest.fail)


def test_a_file_that_has_gone_from_a_run_is_named(unfinished):
    def reads(event):
        Path(unfinished / "gone").read_bytes()

    with refusal("gone: is missing; copy it back"):
        resume(unfinished, reads, training={"steps": 62})


def test_a_changed_recipe_is_kept_once_the_run_has_made_progress(unfinished):
    def full(event):
        raise TransductError(f"the disk is full at step {event['step']}")

    with refusal("the disk is full at step 6"):
        resume(unfinished, full, training={"steps": 62})
    assert load_recipe(unfinished / "recipe.yaml").training["steps"] == 62


def test_a_finished_run_may_lie_where_nothing_can_be_written(run, monkeypatch):
    def unwritable(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(directory.os, "access", lambda *_: False)
    monkeypatch.setattr(directory.os, "open", unwritable)
    assert resume(run) == run / "model"
    monkeypatch.undo()
    shutil.rmtree(run / "model")
    monkeypatch.setattr(directory.os, "open", unwritable)
    with refusal(r"run: cannot be written \(Read-only file system\); choose another"):
        resume(run)


def test_changes_of_training_and_decoding_are_allowed_and_reported(unfinished):
    said, data = [], {"root": "elsewhere", "workers": 1}
    resume(unfinished, notify=said.append, training={"steps": 62}, decoding={"beam": 3}, data=data)
    assert said[:2] == [
        "training.steps was 60, goes on with 62",
        "decoding.beam was 2, goes on with 3",
    ]
    assert not any("data." in line for line in said)
    assert load_recipe(unfinished / "recipe.yaml").training["steps"] == 62
    assert json.loads((unfinished / "log.jsonl").read_text().splitlines()[-1])["step"] == 62


@pytest.mark.parametrize(
    "error",
    [
        TransductError("bad data"),
        OSError(errno.EACCES, "Permission denied", "corpus/shard"),
        KeyError("a mistake of ours"),
        OSError(errno.EMFILE, "Too many open files"),
    ],
)
def test_a_run_that_cannot_begin_leaves_nothing_and_one_that_cannot_go_on_loses_nothing(
    tmp_path, unfinished, monkeypatch, error
):
    def fail(self):
        self.directory.joinpath("tokenizer.json").touch()
        self.directory.joinpath("corpus").mkdir(exist_ok=True)
        raise error

    monkeypatch.setattr(TranslationTask, "prepare", fail)
    before = set(everything_in(unfinished))
    place = r"corpus/shard: cannot be written \(Perm.*\); choose another place"
    message = rf"^(bad data|'a mistake of ours'|{place}|\[Errno 24\] Too many open files)$"
    with pytest.raises((TransductError, KeyError, OSError), match=message):
        resume(unfinished)
    assert set(everything_in(unfinished)) == before
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        with pytest.raises((TransductError, KeyError, OSError), match=message):
            train.train(SHORT, tmp_path / name, notify=str)
    assert not list((tmp_path / "empty").iterdir())
    assert not (tmp_path / "new").exists()


FULL = OSError(errno.ENOSPC, "No space left on device")


def of_disk():
    try:
        raise FULL
    except OSError as error:
        raise TransductError("step_0: the disk is full") from error


def of_recipe():
    raise TransductError("{key} is odd", key="model.d_model")


def of_disk_at_once():
    raise FULL


def of_ours():
    raise AttributeError


@pytest.mark.parametrize(
    "fails, kept", [(of_disk, True), (of_disk_at_once, True), (of_ours, True), (of_recipe, False)]
)
def test_a_corpus_that_is_prepared_is_kept_for_all_errors_but_those_of_the_recipe(
    tmp_path, monkeypatch, fails, kept
):
    """It may have taken hours. A recipe that is corrected is another one, which its run would
    refuse."""
    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "build_model", lambda self: fails())
        with pytest.raises((TransductError, AttributeError)):
            train.train(SHORT, tmp_path / "run", notify=str)
    assert (tmp_path / "run").exists() == kept
    said = []
    train.train(SHORT, tmp_path / "run", resume=kept, notify=said.append)
    assert any("corpus unchanged: reused" in line for line in said) == kept


@pytest.mark.parametrize("before", [False, True])
def test_what_cannot_be_removed_or_written_then_does_not_hide_the_error(
    tmp_path, unfinished, monkeypatch, before
):
    """Such as a folder on another disk that is linked, or a full disk."""
    run = unfinished if before else tmp_path / "new"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").touch()

    def fail(self):
        if not before:
            (run / "corpus").symlink_to(tmp_path / "elsewhere")
        patch.setattr(directory, "write_file", pytest.fail if not before else full)
        patch.setattr(Path, "rmdir", full)
        of_recipe()

    def full(*_):
        raise TransductError("recipe.yaml: the disk is full") if before else FULL

    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "prepare", fail)
        with refusal(r"recipe: model\.d_model is odd"):
            train.train(load_recipe(unfinished / "recipe.yaml"), run, resume=before, notify=str)
    assert (tmp_path / "elsewhere" / "mine").exists()
    assert before or not [*run.iterdir()]


def test_until_a_run_has_a_checkpoint_its_tokenizer_is_made_again(tmp_path, monkeypatch):
    """Its text may have been edited, or another model been taken to start from."""

    def interrupt(self):
        raise KeyboardInterrupt

    (tmp_path / "text").write_text("a b c d\n" * 9)
    pairs = {"source": [str(tmp_path / "text")], "target": [str(tmp_path / "text")]}
    recipe = replace(
        SHORT,
        data={"train": [pairs], "max_length": 40},
        tokenizer={"kind": "character", "size": 60},
    )
    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "build_model", interrupt)
        with pytest.raises(TrainingFailed):
            train.train(recipe, tmp_path / "run", notify=str)
    assert '"x"' not in (tmp_path / "run" / "tokenizer.json").read_text()
    (tmp_path / "text").write_text("x y z a\n" * 9)
    train.train(recipe, tmp_path / "run", resume=True, notify=str)
    made = (tmp_path / "run" / "tokenizer.json").read_bytes()
    assert b'"x"' in made
    shutil.rmtree(tmp_path / "run" / "model")
    train.train(recipe, tmp_path / "run", resume=True, notify=str)
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == made
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # to save space, once it is finished
    train.train(recipe, tmp_path / "run", resume=True, notify=str)
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == made


def test_a_failed_training_keeps_its_directory(tmp_path, monkeypatch):
    def fail(self):
        raise TrainingFailed("stopped by a signal at step 3; go on with --resume")

    monkeypatch.setattr(TranslationTask, "build_model", fail)
    with pytest.raises(TrainingFailed, match="stopped by a signal"):
        train.train(SHORT, tmp_path / "run", notify=str)
    assert (tmp_path / "run" / "recipe.yaml").exists()


def test_a_run_interrupted_before_its_first_step_can_be_resumed(tmp_path, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "build_model", interrupt)
        with pytest.raises(TrainingFailed, match="interrupted; go on with --resume"):
            train.train(SHORT, tmp_path / "run", notify=str)
    said = []
    train.train(SHORT, tmp_path / "run", resume=True, notify=said.append)
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert any("reused" in line for line in said), said


def test_a_broken_pipe_is_not_reported_as_a_disk_error(tmp_path):
    def closed(line):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        train.train(SHORT, tmp_path / "run", notify=closed)


def test_a_folder_whose_name_no_file_can_hold_is_refused_at_once(tmp_path):
    with refusal("/r\ufffd: its name is not UTF-8; choose another name for --out"):
        train.train(SHORT, tmp_path / os.fsdecode(b"r\xe9"), notify=str)
    assert not [*tmp_path.iterdir()]


def test_a_lock_is_not_for_running(tmp_path):
    train.train(SHORT, tmp_path / "run", notify=str)
    assert not (tmp_path / "run" / ".lock").stat().st_mode & 0o111


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with refusal(r"file/run: cannot be written \(Not a directory\); choose another place"):
        train.train(SHORT, tmp_path / "file" / "run", notify=str)


def test_a_failing_lock_is_not_reported_as_another_process(tmp_path, monkeypatch):
    def flock(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(directory.fcntl, "flock", flock)
    with refusal(r"run: cannot be written \(No locks available\)"):
        train.train(SHORT, tmp_path / "run", notify=str)


def test_a_run_may_go_on_without_the_files_that_stopped_it(tmp_path):
    """The error of such a file advises to skip it; a corpus that would then differ is refused where
    it is made."""
    stop, skip = (
        Recipe("image_codes", data={"train": [], "broken": broken}) for broken in ("stop", "skip")
    )
    directory._compare(stop, skip, tmp_path, str)
    with refusal(r"its run has data\.train=\[\], the recipe says \[1\]"):
        directory._compare(
            stop, replace(skip, data={"train": [1], "broken": "skip"}), tmp_path, str
        )


@pytest.mark.parametrize("given", ["own", "as it was"])
def test_a_damaged_recipe_of_a_run_is_refused_as_such(unfinished, given):
    path = unfinished / "recipe.yaml"
    content, recipe = path.read_bytes(), load_recipe(path)

    def resumed():
        chosen = recipe
        if given == "own":
            chosen = train.chosen_recipe([], [], None, unfinished, True, {}, str)
        return train.train(chosen, unfinished, resume=True, notify=str)

    place = content.index(b"learning_rate")
    for changed in (b"learning_rade", b"learning\x8arate", b"learning_rate: 9 #"):
        path.write_bytes(content[:place] + changed + content[place + 13 :])
        with refusal(
            f"^{path}: the run's own recipe .* damaged.* edited by hand.* put it back as it was"
        ):
            resumed()
    path.write_bytes(content[: place + 16])  # what is cut off belongs to it too
    with refusal("the run's own recipe is not as it was written"):
        resumed()
    path.write_bytes(content.partition(b"\n")[2])  # as an earlier version wrote it
    assert resumed() == unfinished / "model"
    assert path.read_bytes() == content
