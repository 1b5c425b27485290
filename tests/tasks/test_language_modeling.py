"""The language modelling task: every token is predicted once, and what is saved is what was
trained."""

import math
import shutil
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest
import torch

from tests.helpers import ready
from tests.predictors.test_language_modeling import CONTEXT, LINES, whole_run
from tests.refusals import refusal
from transduct.config import Recipe, merge
from transduct.predictors import base as predictors_base
from transduct.runs import evaluate, train
from transduct.tasks.language_modeling import LanguageModelingTask, in_rows


def text_recipe(root, **sections):
    """A recipe over the files train.txt and valid.txt in `root`; `sections` are laid over it."""
    tree = {
        "task": "language_modeling",
        "data": {
            "train": [{"text": "train.txt"}],
            "valid": {"text": "valid.txt"},
            "root": str(root),
            "context": CONTEXT,
            "workers": 0,
        },
        "tokenizer": {"kind": "verbatim", "size": 64},
        "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "layers": 2, "dropout": 0.0},
        "training": {
            "steps": 6,
            "batch_tokens": 64,
            "warmup": 2,
            "learning_rate": 0.01,
            "label_smoothing": 0.0,
            "validate_every": 3,
            "checkpoint_every": 3,
        },
        "decoding": {"beam": 1, "temperature": 0.8, "length": 30},
    }
    return Recipe(**merge(tree, sections))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with a text to train on and another to validate on."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "valid.txt").write_text("nobler to be\n\nin the  mind\n")
    return folder


def prepared(texts, directory, said=str, **sections):
    """A task that is ready to train, with a model."""
    directory.mkdir(exist_ok=True)
    task, model = ready(LanguageModelingTask(text_recipe(texts, **sections), directory, said))
    return task, model.eval()


@pytest.fixture(scope="module")
def made(texts, tmp_path_factory):
    return prepared(texts, tmp_path_factory.mktemp("task") / "run")


# batches


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_rows_hold_the_run_whatever_its_parts(size):
    parts = [np.arange(2), np.arange(2, 2), np.arange(2, 9), np.arange(9, 11)]
    chunks = [column for [column] in in_rows(parts, size)]
    assert np.concatenate([flat for flat, _ in chunks]).tolist() == list(range(11))
    lengths = [length for _, lengths in chunks for length in lengths.tolist()]
    assert sum(lengths) == 11
    assert set(lengths[:-1]) <= {size}


def test_several_texts_are_read_one_after_the_other(texts, tmp_path):
    shutil.copy(texts / "train.txt", tmp_path / "a.txt")
    (tmp_path / "b.tsv").write_text("x\tlast line")
    sources = [
        {"text": str(tmp_path / "a.txt")},
        {"pairs": str(tmp_path / "b.tsv"), "columns": [1]},
    ]
    task, _ = prepared(texts, tmp_path / "run", data={"train": sources})
    rows, _ = task.corpus.columns(np.arange(len(task.corpus)))[0]
    assert rows.tolist() == whole_run(task.tokenizer, [*LINES, "last line"])


def test_tokenizer_and_corpus_are_made_once_and_again_for_another_context(texts, tmp_path):
    said = []
    one, _ = prepared(texts, tmp_path, said.append)
    assert [line.split(":")[0] for line in said] == ["tokenizer.json"]
    two, _ = prepared(texts, tmp_path, said.append)
    assert said[1].startswith("corpus unchanged")
    assert one.tokenizer.digest == two.tokenizer.digest
    prepared(texts, tmp_path, said.append, data={"context": 20})
    assert said[2:] == ["corpus prepared again: context changed"]


# the loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_cross_entropy_over_tokens(made, monkeypatch, smoothing):
    task, model = made
    monkeypatch.setattr(task, "training", replace(task.training, label_smoothing=smoothing))
    batch = next(task.batches("train", 0, 0, 0, 1))
    total, count, weight = task.loss(model, batch)["tokens"]
    logits = model.logits(model.hidden(batch.inputs, batch.segments))
    entropy = partial(torch.nn.functional.cross_entropy, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(total, entropy(logits, batch.outputs))
    assert (count, weight) == (len(batch.outputs), 1.0)


def test_the_card_says_what_text_it_was_and_how_it_is_cut(made, tmp_path):
    task, model = made
    task.save(model, tmp_path / "model", {"step": 3, "seconds": 1.4}, task.evaluate(model))
    card = (tmp_path / "model" / "card.md").read_text(encoding="utf-8")
    made_of = f"{len(''.join(LINES)) + len(LINES)} tokens from train.txt (left out: none)"
    for part in ("Language model", made_of, "| nats_per_character |", "windows of 16 tokens"):
        assert part in card, part


def test_evaluating_reads_a_file_or_the_test_set_and_compares(texts, tmp_path):
    recipe = text_recipe(texts, data={"test": {"text": "valid.txt"}})
    model = train.train(recipe, tmp_path / "run", notify=str)
    report = evaluate.evaluate(model, length=5)
    assert len(report.outputs[0]) == 5
    other = evaluate.evaluate(model, {"source": str(texts / "valid.txt")}, against=model)
    assert other.scores == report.scores == other.details["against"]
    assert evaluate.evaluate(model, {"source": str(texts / "train.txt")}).scores != report.scores


# recipes


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"model": {"d_model": 6, "positions": "rotary"}},
            "recipe: model: rotary positions turn pairs of numbers",
        ),
        (
            {"tokenizer": {"kind": "bpe", "dropout": 0.1}},
            "tokenizer.dropout is 0.1, but a text is encoded once",
        ),
        (
            {"data": {"train": [{"source": "a", "target": "b"}]}},
            "a corpus gives 2 texts a row, must be 1: give text",
        ),
        (
            {"data": {"valid": {"pairs": "a.tsv"}}},
            "a corpus gives 2 texts a row, must be 1: give text, or name one",
        ),
        (
            {"data": {"train": [{"text": "a", "weight": 2.0}]}},
            "weight is 2.0, must be 1: an epoch shows every token",
        ),
        (
            {"decoding": {"temperature": 0.0, "captured": True}},
            "recipe: decoding.captured is for models that decode",
        ),
        (
            {"decoding": {"constraint": "tree"}},
            "recipe: decoding.constraint is for models that decode over a memory",
        ),
        (
            {"decoding": {"expansion": 3.0}},
            "recipe: decoding.expansion is for models that decode over a memory",
        ),
        (
            {"decoding": {"no_repeat": 3}},
            "recipe: decoding.no_repeat is for models that decode over a memory",
        ),
        (
            {"decoding": {"sentences": True}},
            "recipe: decoding.sentences is for models that decode over a memory",
        ),
        (
            {"decoding": {"shortlist": True}},
            "recipe: decoding.shortlist is for models that decode over a memory",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_recipes_that_cannot_be_are_refused(texts, tmp_path, sections, message):
    recipe = text_recipe(texts, **sections)
    recipe.data.update(sections.get("data", {}))
    with refusal(message):
        LanguageModelingTask(recipe, tmp_path, str)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"train.txt: no such file; check the path \(those in a recipe start at data.root\)"),
        ("", "train.txt: nothing in it; name files that hold text"),
        ("\n \n", "found no text to train the tokenizer on"),
        (
            "short\n\ntext\n",
            "train.txt: 12 tokens of text, expected at least a window of 16; give more "
            "text, or set",
        ),
    ],
    ids=["missing", "empty", "blank", "short"],
)
def test_a_text_that_cannot_be_trained_on_is_refused_and_leaves_nothing(
    texts, tmp_path, content, message
):
    if content is not None:
        (tmp_path / "train.txt").write_text(content)
    shutil.copy(texts / "valid.txt", tmp_path)
    with refusal(message):
        train.train(text_recipe(tmp_path), tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()


def test_a_mistake_in_the_validation_text_is_found_before_any_work(texts, tmp_path):
    said = []
    with refusal("none: no such file"):
        prepared(texts, tmp_path, said.append, data={"valid": {"text": "none"}})
    assert not said


def test_a_text_that_is_gone_when_a_run_goes_on_is_missed(texts, tmp_path):
    shutil.copytree(texts, tmp_path / "texts")
    prepared(tmp_path / "texts", tmp_path / "run")
    (tmp_path / "texts" / "train.txt").unlink()
    with refusal(r"train.txt: cannot be read \(No such file.*\); correct data.train or"):
        prepared(tmp_path / "texts", tmp_path / "run")


# learning


def repeated(count, seed):
    """Lines of a drawn word of three letters again and again."""
    random = Random(seed)
    return ["".join(random.choices("abcdefgh", k=3)) * 5 for _ in range(count)]


def test_a_tiny_model_learns_to_go_on_with_what_repeats(tmp_path):
    (tmp_path / "train.txt").write_text("".join(f"{line}\n" for line in repeated(1500, 1)))
    (tmp_path / "valid.txt").write_text("".join(f"{line}\n" for line in repeated(30, 2)))
    recipe = text_recipe(
        tmp_path,
        data={"context": 32},
        model={"d_model": 32, "d_ff": 64, "positions": "rotary"},
        training={
            "steps": 300,
            "batch_tokens": 512,
            "learning_rate": 0.005,
            "warmup": 30,
            "schedule": "linear",
            "validate_every": 0,
            "checkpoint_every": 300,
        },
    )
    model = predictors_base.load(train.train(recipe, tmp_path / "run", notify=str))
    lines = repeated(40, 3)
    found = model.predict([line[:7] for line in lines], temperature=0.0, length=6)
    assert sum(text == line[7:13] for text, line in zip(found, lines)) >= 38
    # The letters of a word cannot be known: 3 x ln 8 nats of the 16 characters of a line.
    # Everything else can.
    best = 3 * math.log(8) / 16
    assert model.measure(repeated(30, 2))["nats_per_token"] < best + 0.25
