"""Masked language modelling: its batches, its loss, and what it saves."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import assert_planned_for_dropout, ready
from tests.predictors.test_masked_language_modeling import BEGIN, END, stanzas, whole
from tests.refusals import refusal
from transduct.config import Recipe, merge
from transduct.data.tokenizer import Tokenizer
from transduct.predictors import base as predictors_base
from transduct.runs import train
from transduct.tasks.masked_language_modeling import MaskedLanguageModelingTask


def make_recipe(folder, **sections):
    """A recipe over stanzas that trains in seconds; `sections` are laid over it."""
    for name, count, seed in (("train", 20, 1), ("valid", 4, 2)):
        if not (folder / name).exists():
            (folder / name).write_text("".join(f"{line}\n" for line in stanzas(count, seed)))
    tree = {
        "data": {
            "train": [{"text": "train"}],
            "valid": {"text": "valid"},
            "root": str(folder),
            "max_length": 16,
            "next_sentence": True,
            "workers": 0,
        },
        "tokenizer": {"kind": "word", "size": 60},
        "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "layers": 1, "dropout": 0.0},
        "training": {
            "steps": 6,
            "batch_tokens": 200,
            "warmup": 2,
            "learning_rate": 0.01,
            "label_smoothing": 0.0,
            "log_every": 2,
            "validate_every": 0,
            "checkpoint_every": 3,
        },
    }
    return Recipe("masked_language_modeling", **merge(tree, sections))


def prepared(folder, said=str, **sections):
    """A task that is ready to train, with a model."""
    directory = folder / "run"
    directory.mkdir(exist_ok=True)
    return ready(MaskedLanguageModelingTask(make_recipe(folder, **sections), directory, said))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("task"))


def lines_in(task, sequence):
    """The lines in a sequence of ids."""
    inner = sequence[1:-1]
    parts = [inner[: inner.index(END)], inner[inner.index(END) + 1 :]] if END in inner else [inner]
    return tuple(task.tokenizer.decode(parts))


# batches


def test_a_batch_says_what_was_hidden_and_what_follows(made):
    task, _ = made
    batch = next(task.batches("train", 0, 0, 0, 1))
    text = stanzas(20, 1)
    following = set(pairwise(text))
    for sequence, types, apart in zip(
        whole(batch), batch.types.split(batch.segments.lengths.tolist()), batch.apart.tolist()
    ):
        assert (sequence[0], sequence[-1], sequence.count(END)) == (BEGIN, END, 2)
        first = sequence.index(END) + 1
        assert types.tolist() == [0] * first + [1] * (len(sequence) - first)
        assert apart or lines_in(task, sequence) in following
    assert (batch.ids == task.tokenizer.size).sum() > 0.6 * len(batch.places)
    assert batch.counts == {"tokens": len(batch.places), "pairs": len(batch.apart)}
    assert batch.tokens == len(batch.ids)


def test_without_next_sentence_lines_stand_alone(tmp_path):
    task, model = prepared(tmp_path, data={"next_sentence": False})
    batches = list(task.batches("train", 0, 0, 0, 1))
    assert Counter(lines_in(task, s) for b in batches for s in whole(b)) == Counter(
        (line,) for line in stanzas(20, 1)
    )
    assert all(batch.apart is None and not batch.types.any() for batch in batches)
    assert task.loss(model, batches[0]).keys() == {"tokens"}
    assert task.evaluate(model).scores.keys() == {"nats_per_token", "masked_accuracy"}
    assert all(task.loss(model, b)["tokens"][0] is not None for b in batches)
    assert not [
        name for name, _ in model.named_parameters() if name.startswith(("pooler", "next_sentence"))
    ]


def test_the_share_to_predict_is_the_recipe_s_in_training_and_after(tmp_path):
    task, model = prepared(tmp_path, data={"mask": 0.5})
    for batch in task.batches("train", 0, 0, 0, 1):
        assert len(batch.places) == 4 * len(batch.segments), "of two lines of four words"
    task.save(model, tmp_path / "model", {"step": 0, "seconds": 0.0}, task.evaluate(model.eval()))
    loaded = predictors_base.load(tmp_path / "model")
    assert loaded.mask_rate == 0.5
    assert loaded.evaluate(stanzas(4, 2)).scores == pytest.approx(task.evaluate(model).scores)


def test_a_long_pair_is_cut_and_still_fits_the_batch(tmp_path):
    (tmp_path / "train").write_text("".join(f"{'a b c d ' * n}\n" for n in (1, 9, 2, 9, 1)))
    task, _ = prepared(tmp_path)
    for batch in task.batches("train", 0, 0, 0, 1):
        assert batch.segments.longest <= 16
        assert batch.tokens <= 200
    assert task.corpus.dropped == {"blank_lines": 0, "ends_of_long_pairs": 4}


def test_batches_are_planned_for_what_dropout_makes_of_them(tmp_path, monkeypatch):
    task, _ = prepared(
        tmp_path, tokenizer={"kind": "bpe", "size": 60, "dropout": 0.5}, data={"max_length": 64}
    )
    assert_planned_for_dropout(task, monkeypatch)


# the loss


def test_the_loss_is_cross_entropy_over_hidden_tokens_and_over_pairs(tmp_path):
    task, model = prepared(tmp_path, training={"label_smoothing": 0.1})
    batch = next(task.batches("train", 0, 0, 0, 1))
    terms = task.loss(model, batch)
    x = model.encode(batch.ids, batch.types, batch.segments)
    logits = F.linear(
        model.transform_norm(F.gelu(model.transform(x))), model.embedding.table, model.bias
    )
    labels = torch.full((len(x),), -100).scatter(0, batch.places, batch.targets)
    tokens = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1)
    first = x[batch.segments.offsets[:-1]]
    pairs = F.cross_entropy(
        model.next_sentence(model.pooler(first).tanh()),
        batch.apart,
        reduction="sum",
        label_smoothing=0.1,
    )
    for name, expected in (("tokens", tokens), ("pairs", pairs)):
        found, count, weight = terms[name]
        torch.testing.assert_close(found, expected)
        assert (count, weight) == (batch.counts[name], 1.0)
    assert (labels >= 0).sum() == batch.counts["tokens"]


@pytest.mark.slow
def test_it_learns_what_fits_and_what_follows(tmp_path):
    (tmp_path / "train").write_text("".join(f"{line}\n" for line in stanzas(60, 1)))
    (tmp_path / "valid").write_text("".join(f"{line}\n" for line in stanzas(16, 2)))
    recipe = make_recipe(
        tmp_path,
        model={"d_model": 32, "num_heads": 4, "d_ff": 64, "layers": 2},
        training={
            "steps": 300,
            "batch_tokens": 600,
            "warmup": 30,
            "schedule": "linear",
            "checkpoint_every": 300,
        },
    )
    model = predictors_base.load(train.train(recipe, tmp_path / "run", notify=str))
    scores = model.evaluate(stanzas(16, 2)).scores
    assert scores["masked_accuracy"] > 99
    # more than 90 % cannot be told: a stanza ends, or the other line has the same words
    assert scores["accuracy"] > 85
    assert scores["nats_per_token"] < 0.1
    hidden = ["a1 [MASK] a3 a4", "[MASK] d3 d4 d1", "g4 g1 g2 [MASK]"]
    assert model.predict(hidden) == ["a1 a2 a3 a4", "d2 d3 d4 d1", "g4 g1 g2 g3"]


# the run and the model directory


def test_a_mistake_in_the_validation_text_is_found_before_training(tmp_path):
    (tmp_path / "valid").write_text("a1\n\nb1\n")
    with refusal(r"^valid: found 1 pairs of lines that are not blank, expected at least 3"):
        prepared(tmp_path)
    with refusal("none: no such file"):
        prepared(tmp_path, data={"valid": {"text": "none"}})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"d_model": 15}}, r"model.d_model is 15, must be a multiple of num_heads \(2\)"),
        (
            {"model": {"positions": "one_hot", "d_model": 8}},
            "model: positions 'one_hot' up to 16 need a width of 16",
        ),
    ],
    ids=str,
)
def test_a_recipe_that_makes_no_sense_is_refused(tmp_path, sections, message):
    with refusal(message):
        MaskedLanguageModelingTask(make_recipe(tmp_path, **sections), tmp_path, str)


def test_tokenizers_of_another_model_are_refused(tmp_path):
    model = train.train(make_recipe(tmp_path), tmp_path / "run", notify=str)
    Tokenizer.train(["x"], "character", 20).save(model / "tokenizer.json")
    with refusal(r"the tokenizers hold .* tokens, the model .*; they do not belong together"):
        predictors_base.load(model)
