"""`transduct prepare` makes the same corpus whoever works at it, and a run that uses it gets the
model that it would have had by itself."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
from typer.testing import CliRunner

from tests.recipes import letters, tiny_recipe
from tests.refusals import refusal
from transduct.config import dump
from transduct.data import duplicates, preparing, splits
from transduct.data.sources import TextSource
from transduct.errors import TrainingFailed
from transduct.interfaces.cli import app
from transduct.predictors.likelihood import DualCrossEntropy
from transduct.runs.prepare import prepare
from transduct.runs.train import train

LINES = [*letters(300), *letters(60)]  # the last are duplicates


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Many parts and ranges."""
    monkeypatch.setattr(splits, "SIZE", 250)
    monkeypatch.setattr(duplicates, "RANGE", 50)
    monkeypatch.setattr(duplicates, "RUN", 20)


def write(folder, name, lines):
    (folder / f"{name}.a").write_text("".join(f"{line}\n" for line in lines))
    (folder / f"{name}.b").write_text("".join(f"{line.upper()}\n" for line in lines))


@pytest.fixture
def recipe(tmp_path):
    write(tmp_path, "x", LINES[:200])
    write(tmp_path, "y", LINES[200:])
    return tiny_recipe(
        data={
            "root": str(tmp_path),
            "train": [{"source": ["x.a", "y.a"], "target": ["x.b", "y.b"]}],
            "held_out": 8,
            "valid": None,
        },
        training={"steps": 4, "validate_every": 4, "checkpoint_every": 4},
    )


def prepared(recipe, folder, **how):
    """What was said, and the files of the corpus."""
    said = []
    prepare(recipe, folder, notify=said.append, **how)
    corpus = folder / "corpus"
    return said, {path.name: path.read_bytes() for path in corpus.iterdir()}


def parts(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "parts").iterdir()}


def using(recipe, corpus, **data):
    return replace(recipe, data={**recipe.data, **data, "corpus": str(corpus)})


def test_a_run_that_uses_a_corpus_gets_the_model_of_one_that_prepares_for_itself(
    recipe, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    corpus = tmp_path / "corpus"
    _, made = prepared(recipe, corpus)
    said = []
    by_itself = train(recipe, tmp_path / "alone", notify=said.append)
    assert {
        path.name: path.read_bytes() for path in (tmp_path / "alone" / "corpus").iterdir()
    } == made
    assert "58 duplicate" in " ".join(said)
    for path in tmp_path.glob("[xy].*"):
        path.unlink()  # they are not read
    shutil.rmtree(corpus / "parts")
    memory = fsspec.filesystem("memory")
    memory.put(str(corpus), "/letters/corpus", recursive=True)
    for place in (corpus, "memory://letters/corpus"):
        run = tmp_path / f"run of {type(place).__name__}"
        model = train(using(recipe, place), run, notify=str)
        names = sorted(path.name for path in by_itself.iterdir())
        assert names == sorted(path.name for path in model.iterdir())
        for name in {*names} - {"card.md"}:  # which says how long it took
            assert (model / name).read_bytes() == (by_itself / name).read_bytes(), name
        assert not (run / "corpus").exists()
    memory.rm("/letters", recursive=True)


def test_pairs_that_two_models_find_unlikely_are_left_out_of_training(recipe, tmp_path):
    models = [str(train(recipe, tmp_path / "judge", notify=str))] * 2
    nats = np.sort(DualCrossEntropy(models)([(line, line.upper()) for line in LINES]))
    place = 100 + int(np.diff(nats[100:200]).argmax())  # a bound that rounding does not cross
    filters = {"unlikely": float(nats[place : place + 2].mean()), "models": models}
    data = {**recipe.data, "held_out": 0, "drop_duplicates": False, "filters": filters}
    said, made = prepared(replace(recipe, data=data), tmp_path / "corpus")
    expected = f"left out: {sum(each > filters['unlikely'] for each in nats)} unlikely"
    assert any(expected in line for line in said)
    train(replace(recipe, data=data), tmp_path / "run", notify=said.append)
    files = (tmp_path / "run" / "corpus").iterdir()
    assert {path.name: path.read_bytes() for path in files} == made


def test_only_a_changed_file_is_prepared_again(recipe, tmp_path):
    said, made = prepared(recipe, tmp_path / "corpus")
    before = parts(tmp_path / "corpus")
    assert len(before) > 10
    assert prepared(recipe, tmp_path / "corpus")[1] == made
    assert parts(tmp_path / "corpus") == before
    train = [TextSource(source="x.a", target="x.b")]
    of_x = len(splits.splits_of(train, tmp_path))
    write(tmp_path, "y", letters(100, 9))
    said, changed = prepared(recipe, tmp_path / "corpus")
    after = parts(tmp_path / "corpus")
    same = before.keys() & after.keys()
    assert len(same) == of_x
    assert all(before[name] == after[name] for name in same)
    assert any(
        f"{len(after) - of_x} of {len(after)} parts of the corpus are made" in line for line in said
    )
    assert changed != made
    write(tmp_path, "y", LINES[200:])
    assert prepared(recipe, tmp_path / "corpus")[1] == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"data": {"max_length": 30}},
            "was prepared by another recipe: max_length differ; correct",
        ),
        ({"data": {"train": [{"source": "x.a", "target": "x.b"}]}}, "another recipe: train differ"),
        ({"tokenizer": {"size": 50}}, "tokenizer.size is 50, .*corpus was prepared with 60; make"),
    ],
)
def test_the_corpus_of_another_recipe_is_refused(change, message, recipe, tmp_path):
    prepared(recipe, tmp_path / "corpus")
    section, values = next(iter(change.items()))
    other = replace(recipe, **{section: {**vars(recipe)[section], **values}})
    with refusal(message):
        train(using(other, tmp_path / "corpus"), tmp_path / "run", notify=str)
    assert not (tmp_path / "run" / "checkpoints").exists()
    if "train" not in values:
        with refusal(f"corpus: holds a corpus with another {section}"):
            prepare(other, tmp_path / "corpus", notify=str)


def test_a_corpus_that_is_damaged_or_not_there_is_refused(recipe, tmp_path):
    corpus = tmp_path / "corpus"
    with refusal("nothing/job.json: cannot be read .*expected the corpus that data.corpus names"):
        train(using(recipe, tmp_path / "nothing"), tmp_path / "run", notify=str)
    prepared(recipe, corpus)
    path = corpus / "corpus" / "shard_00000.arrow"
    content = bytearray(path.read_bytes())
    content[300] ^= 64
    path.write_bytes(content)
    with refusal(r"shard_00000.arrow: is damaged; prepare the corpus again"):
        train(using(recipe, corpus), tmp_path / "run", notify=str)
    said, _ = prepared(recipe, corpus)
    assert any("corpus prepared again: " in line for line in said)
    train(using(recipe, corpus), tmp_path / "run", notify=str)
    path.unlink()
    with refusal("corpus: damaged .*No such file"):
        train(using(recipe, corpus), tmp_path / "other", notify=str)
    (corpus / "corpus" / "manifest.json").write_text("{")
    with refusal("corpus: not a prepared corpus"):
        train(using(recipe, corpus), tmp_path / "other", notify=str)


def test_a_run_goes_on_with_the_corpus_it_began_with(recipe, tmp_path):
    prepared(recipe, tmp_path / "corpus")
    train(using(recipe, tmp_path / "corpus"), tmp_path / "run", notify=str)
    longer = replace(recipe, training={**recipe.training, "steps": 8})
    shutil.move(tmp_path / "corpus", tmp_path / "moved")
    train(using(longer, tmp_path / "moved"), tmp_path / "run", resume=True, notify=str)
    write(tmp_path, "y", letters(100, 9))
    prepared(recipe, tmp_path / "moved")
    longer = replace(recipe, training={**recipe.training, "steps": 12})
    with refusal("moved/corpus is not the one with which this run began; give that one"):
        train(using(longer, tmp_path / "moved"), tmp_path / "run", resume=True, notify=str)


def test_tokenizers_of_a_model_to_start_from_must_be_those_of_the_corpus(recipe, tmp_path):
    prepared(recipe, tmp_path / "corpus")
    write(tmp_path, "y", letters(100, 9))
    start = train(recipe, tmp_path / "start", notify=str)
    further = replace(recipe, model={**recipe.model, "start_from": str(start)})
    with refusal("data.corpus: .*corpus was prepared with other tokenizers than .*model has"):
        train(using(further, tmp_path / "corpus"), tmp_path / "run", notify=str)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"task": "language_modeling"},
            "corpora of language_modeling are prepared by transduct train",
        ),
        ({"stages": [{}, {}]}, "the recipe has stages; prepare the recipe of a single one"),
    ],
)
def test_a_recipe_that_cannot_be_prepared_is_refused(change, message, recipe, tmp_path):
    with refusal(message):
        prepare(replace(recipe, **change), tmp_path / "corpus", notify=str)


def test_no_workers_and_an_empty_file_are_refused_by_name(recipe, tmp_path):
    with refusal("--workers is 0, must be at least 1"):
        prepare(recipe, tmp_path / "corpus", workers=0, notify=str)
    write(tmp_path, "y", [])
    with refusal("y.a, .*y.b: nothing in it; name files that hold text"):
        prepare(recipe, tmp_path / "corpus", notify=str)


def test_a_folder_of_other_files_is_left_alone(recipe, tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.tex").touch()
    with refusal("corpus: holds files that are no corpus; give a new folder as --out"):
        prepare(recipe, tmp_path / "corpus", notify=str)


def test_the_command_prepares_and_says_where(recipe, tmp_path):
    path, out = tmp_path / "recipe.yaml", tmp_path / "corpus"
    path.write_text(dump({"task": recipe.task, "data": recipe.data, "tokenizer": recipe.tokenizer}))
    done = CliRunner().invoke(app, ["prepare", str(path), "--out", str(out)])
    assert done.stdout == f"{out}\n"
    assert CliRunner().invoke(app, ["prepare", "max_length=3", "--out", str(out)]).exit_code == 2
    with refusal("s3:/a is an address; prepare in a folder, then copy all of it but parts/ there"):
        prepare(recipe, Path("s3://a"), notify=str)


class Killed(preparing.MakePart):
    """Is killed at its third part, the first time."""

    def __call__(self, split):
        mark = self.folder.with_name("killed")
        if split.number == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(split)


class KilledLater(preparing.MakePart):
    """Is killed at its sixth part."""

    def __call__(self, split):
        if split.number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(split)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"workers": 3}, {"workers": 2, "ray": "local"}])
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_bytes_do_not_depend_on_who_works_nor_on_a_worker_that_is_killed(
    how, recipe, tmp_path, monkeypatch
):
    if "ray" not in how:
        recipe = replace(recipe, data={**recipe.data, "filters": {"near_duplicates": 0.8}})
    with monkeypatch.context() as patch:
        patch.setattr(duplicates, "RANGE", 1 << 22)
        said, made = prepared(recipe, tmp_path / "one")
    assert ("near duplicates" in said[-1]) == ("ray" not in how)
    monkeypatch.setattr(preparing, "MakePart", Killed)
    assert prepared(recipe, tmp_path / "other", **how)[1] == made
    assert (tmp_path / "other" / "killed").exists()
    assert {*parts(tmp_path / "other")} == {*parts(tmp_path / "one")}


def test_a_driver_that_is_killed_goes_on(recipe, tmp_path):
    _, made = prepared(recipe, tmp_path / "one")
    if not (child := os.fork()):
        preparing.MakePart = KilledLater
        try:
            prepare(recipe, tmp_path / "other", notify=str)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    before = {path.name for path in (tmp_path / "other" / "parts").glob("[0-9a-f]*")}
    assert len(before) == 5
    said, again = prepared(recipe, tmp_path / "other")
    assert again == made
    assert before < {*parts(tmp_path / "other")}
    count = len(parts(tmp_path / "other"))
    assert (
        f"{count - len(before)} of {count} parts of the corpus are made, others are there" in said
    )


class Lost(preparing.MakePart):
    """Its disk goes away after the third part."""

    def __call__(self, split):
        read = super().__call__(split)
        if split.number == 2:
            self.folder.parent.rename(self.folder.parent.with_name("away"))
        return read


def test_a_disk_that_goes_away_is_named_and_nothing_is_written_in_its_place(
    recipe, tmp_path, monkeypatch
):
    _, made = prepared(recipe, tmp_path / "one")
    with monkeypatch.context() as patch, refusal("other/parts/.*: cannot be written .*run again"):
        patch.setattr(preparing, "MakePart", Lost)
        prepare(recipe, tmp_path / "other", notify=str)
    assert not (tmp_path / "other").exists()
    (tmp_path / "away").rename(tmp_path / "other")
    assert prepared(recipe, tmp_path / "other")[1] == made


class Blind(duplicates.FindRepeated):
    """Sees the first part alone."""

    def __init__(self, parts, *rest):
        super().__init__(parts[:1], *rest)


def test_a_search_for_duplicates_in_parts_alone_would_be_seen(recipe, tmp_path, monkeypatch):
    """A control."""
    _, made = prepared(recipe, tmp_path / "one")
    monkeypatch.setattr(duplicates, "FindRepeated", Blind)
    assert prepared(recipe, tmp_path / "blind")[1] != made


def test_a_part_that_is_damaged_is_made_again(recipe, tmp_path):
    _, made = prepared(recipe, tmp_path / "corpus")
    first, second = sorted((tmp_path / "corpus" / "parts").iterdir())[:2]
    (first / "rows.arrow").write_bytes(b"half")
    (second / "facts.json").write_text("{")
    shutil.rmtree(tmp_path / "corpus" / "corpus")
    said, again = prepared(recipe, tmp_path / "corpus")
    assert again == made
    assert any(line.startswith("2 of ") for line in said)


def test_who_interrupts_it_learns_how_to_go_on(recipe, tmp_path, monkeypatch):
    def interrupt(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "Parts", interrupt)
        with pytest.raises(TrainingFailed, match="interrupted; go on with the same command"):
            prepare(recipe, tmp_path / "corpus", notify=str)
    before = parts(tmp_path / "corpus")
    prepared(recipe, tmp_path / "corpus")
    assert parts(tmp_path / "corpus") == before
