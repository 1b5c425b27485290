"""How many files a reader opens to follow one training batch, or one sentence, through the program."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import transduct
from transduct.config import load_recipe
from transduct.interfaces import demo
from transduct.kernels import cpu
from transduct.predictors.base import load
from transduct.runs.train import train
from transduct.tasks.translation import TranslationTask
from transduct.training.distributed import Ranks
from transduct.training.step import Stepper

PACKAGE = Path(transduct.__file__).parent
# The most files without the compiled extension, and those that its fast paths may add. They only go
# down: 18 of each is the aim.
BATCH, SENTENCE, FAST = 27, 24, 8


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


@pytest.fixture(params=["compiled", "not compiled"])
def fast(request, monkeypatch):
    if request.param == "not compiled":
        monkeypatch.setattr(cpu, "library", lambda: None)
        return 0
    return FAST


def test_a_batch_takes_few_files(fast, recipe, run):
    task = TranslationTask(recipe, run, lambda _: None)
    task.prepare()
    stepper = Stepper(task.build_model(), task.training, task.loss, Ranks())

    def step():
        stepper.take([next(task.batches("train", 0, 0, 0, 1))], 1, 1e-3)

    step()  # what is prepared once is no part of a batch
    files = entered(step)
    assert len(files) <= BATCH + fast, files
    assert {"tasks/translation.py", "training/step.py", "functional/losses.py"} <= {*files}


def test_a_sentence_takes_few_files(fast, run):
    translator = load(run / "model")
    translator.translate(["ten thousand"])
    files = entered(lambda: translator.translate(["three hundred and five"]))
    assert len(files) <= SENTENCE + fast, files
    assert {"predictors/translation.py", "decoding/search.py"} <= {*files}
    if not fast:
        assert {"blocks/transformer.py", "blocks/attention.py", "blocks/caches.py"} <= {*files}
