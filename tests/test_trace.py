"""How many files a reader opens to follow one training batch, or one sentence, through the
program."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import transduct
from transduct.config import load_recipe
from transduct.interfaces import demo
from transduct.kernels import cpu, cpu_products
from transduct.predictors.base import load
from transduct.runs.train import train
from transduct.tasks.translation import TranslationTask
from transduct.training.distributed import Ranks
from transduct.training.step import Stepper

PACKAGE = Path(transduct.__file__).parent
TOUR = PACKAGE.parent / "docs" / "tour.md"
# The most files without the compiled extension, and those that its fast paths may add.
MOST, FAST = 18, 8


def entered(call):
    """The package's files of which a call enters a function, in the order of first entry."""
    files = {}

    def note(frame, event, _):
        if event == "call":
            files.setdefault(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    paths = (Path(name) for name in files)
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


def a_batch(recipe, run):
    task = TranslationTask(recipe, run, lambda _: None)
    task.prepare()
    stepper = Stepper(task.build_model(), task.training, task.loss, Ranks())

    def step():
        stepper.take([next(task.batches("train", 0, 0, 0, 1))], 1, 1e-3).loss()

    step()  # what is prepared once is no part of a batch
    return step


def a_sentence(_, run):
    translator = load(run / "model")
    translator.translate(["ten thousand"])
    return lambda: translator.translate(["three hundred and five"])


CALLS = {"One training batch": a_batch, "One sentence": a_sentence}


@pytest.mark.parametrize("heading", CALLS)
def test_a_call_enters_few_files_and_the_tour_names_them(heading, recipe, run, monkeypatch):
    found = entered(CALLS[heading](recipe, run)) if cpu.library() is not None else None
    with monkeypatch.context() as without:
        without.setattr(cpu, "library", lambda: None)
        without.setattr(cpu_products, "_splits", lambda: False)  # it remembers what it found
        readable = entered(CALLS[heading](recipe, run))
    assert len(readable) <= MOST, " ".join(readable)
    assert {"blocks/transformer.py", "blocks/attention.py"} <= {*readable}
    [section] = [
        part
        for part in TOUR.read_text(encoding="utf-8").split("\n## ")
        if part.startswith(f"{heading}\n")
    ]
    text, compiled = section.split("\n### ")
    assert named(text) == readable
    if found is not None:  # else there are no kernels for this processor
        assert len(found) <= MOST + FAST, found
        assert named(compiled) == [file for file in found if file not in readable]


def test_the_tour_names_no_other_files():
    page = TOUR.read_text(encoding="utf-8")
    sections = [part for part in page.split("\n## ") if part.startswith(tuple(CALLS))]
    assert {*named(page)} == {file for part in sections for file in named(part)}
