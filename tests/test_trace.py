"""How many files a reader opens to follow one training step, or one sentence, through the
program."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import transduct
from transduct.config import load_recipe
from transduct.interfaces import cli, demo
from transduct.kernels import cpu, cpu_products
from transduct.runs.train import train
from transduct.tasks.translation import TranslationTask
from transduct.training.trainer import fit

PACKAGE = Path(transduct.__file__).parent
TOUR = PACKAGE.parent / "docs" / "tour.md"
# The most files without the compiled extension, and those that its fast paths may add.
MOST, FAST = {"One training step": 20, "One sentence": 30}, 8


class Files:
    """The package's files of which a function is entered between `start` and `stop`, in the order
    of first entry."""

    def __init__(self):
        self.found = {}

    def start(self):
        sys.setprofile(self._note)

    def stop(self):
        sys.setprofile(None)

    def _note(self, frame, event, _):
        if event == "call":
            self.found.setdefault(frame.f_code.co_filename)

    def names(self):
        paths = (Path(name) for name in self.found)
        return [str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE)]


@pytest.fixture(scope="module")
def recipe():
    whole = load_recipe(demo.RECIPE)
    data = {**whole.data, "train": [{**whole.data["train"][0], "count": 300}]}
    data |= {part: {**whole.data[part], "count": 2} for part in ("valid", "test")}
    steps = {"steps": 2, "warmup": 1, "validate_every": 2, "checkpoint_every": 2}
    return replace(whole, data=data, training={**whole.training, **steps})


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    directory = tmp_path_factory.mktemp("trace") / "run"
    train(recipe, directory)
    return directory


def named(text):
    """The files that a page names, in the order of first mention."""
    return [*dict.fromkeys(re.findall(r"`([a-z_/]+\.py)`", text))]


def a_step(recipe, run, folder):
    """The files of one step inside `Trainer.run`, from one batch to the next, in which nothing is
    logged, validated or saved: the third, since the first two are logged."""
    files, task = Files(), TranslationTask(recipe, run, lambda _: None)
    task.prepare()

    def batches(*place):
        for number, batch in enumerate(task.batches(*place)):
            if number == 3:
                files.stop()
            yield batch
            if number == 1:
                files.start()

    config = replace(
        task.training, batch_tokens=500, steps=4, log_every=4, validate_every=4, checkpoint_every=4
    )
    task.training = config
    try:
        fit(task.build_model(), config, folder, batches, task.loss)
    finally:
        files.stop()
    return files.names()


def a_sentence(_, run, folder):
    """The files of `transduct translate MODEL FILE` with one line, from the command to its end."""
    (folder / "line.txt").write_text("three hundred and five\n")
    files, program = Files(), CliRunner()
    files.start()
    try:
        done = program.invoke(cli.app, ["translate", str(run / "model"), str(folder / "line.txt")])
    finally:
        files.stop()
    assert done.exit_code == 0
    return files.names()


CALLS = {"One training step": a_step, "One sentence": a_sentence}


@pytest.mark.parametrize("heading", CALLS)
def test_a_call_enters_few_files_and_the_tour_names_them(
    heading, recipe, run, monkeypatch, tmp_path
):
    call, found = CALLS[heading], None
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    call(recipe, run, folders[0])  # what is prepared once in a process is no part of it
    if cpu.library() is not None:
        found = call(recipe, run, folders[1])
    with monkeypatch.context() as without:
        without.setattr(cpu, "library", lambda: None)
        without.setattr(cpu_products, "_splits", lambda: False)  # it remembers what it found
        readable = call(recipe, run, folders[2])
    assert len(readable) <= MOST[heading], " ".join(readable)
    assert {"blocks/transformer.py", "blocks/attention.py"} <= {*readable}
    [section] = [
        part
        for part in TOUR.read_text(encoding="utf-8").split("\n## ")
        if part.startswith(f"{heading}\n")
    ]
    text, compiled = section.split("\n### ")
    assert named(text) == readable
    if found is not None:  # else there are no kernels for this processor
        assert len(found) <= MOST[heading] + FAST, found
        assert named(compiled) == [file for file in found if file not in readable]


def test_the_tour_names_no_other_files():
    page = TOUR.read_text(encoding="utf-8")
    sections = [part for part in page.split("\n## ") if part.startswith(tuple(CALLS))]
    assert {*named(page)} == {file for part in sections for file in named(part)}
