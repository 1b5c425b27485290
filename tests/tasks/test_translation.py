"""The translation task: its batches, its loss, its scores, and what it saves."""

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch

from tests.helpers import randomise, ready, tiny
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from tests.tasks.test_text import SOURCES, TARGETS
from transduct.config import Recipe
from transduct.data.samples import generate
from transduct.data.tokenizer import Tokenizer
from transduct.functional.losses import (
    label_smoothed_cross_entropy,
    projected_cross_entropy,
    symmetric_divergence,
)
from transduct.inference import engine
from transduct.inference.settings import longest_output
from transduct.models import transformer
from transduct.predictors import base as predictors_base
from transduct.predictors.model_directory import Family
from transduct.predictors.shortlists import align
from transduct.predictors.translation import Translator
from transduct.runs import train
from transduct.segments import Segments, Shape
from transduct.tasks import base, translation
from transduct.tasks.translation import TranslationTask, losses_of, make_batch
from transduct.training.trainer import fit

TEXTS = ["a b c", "d", "c a b a"]
TRANSFORMER = translation.FAMILIES["transformer"]


def prepared(directory, said=str, **sections):
    """A task that is ready to train, with a model; what `data` says replaces the recipe's own, not
    to be merged."""
    directory.mkdir(exist_ok=True)
    recipe = tiny_recipe(**sections)
    recipe.data.update(sections.get("data", {}))
    return ready(TranslationTask(recipe, directory, said))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    sections = {"model": {"dropout": 0.0}, "training": {"label_smoothing": 0.3}}
    return prepared(tmp_path_factory.mktemp("task"), **sections)


def pairs_of(task, batch):
    """The pairs of ids in a batch."""
    sources = batch.source.split(batch.source_segments.lengths.tolist())
    outputs = batch.outputs.split(batch.target_segments.lengths.tolist())
    return [
        (tuple(s.tolist()[:-1]), tuple(t.tolist()[:-1]))
        for s, t in zip(sources, outputs, strict=True)
    ]


def test_a_batch_is_flat_with_its_ends_and_beginnings():
    batch = make_batch([[5, 6], [7]], [np.array([8]), []])
    begin, end = Tokenizer.BEGIN, Tokenizer.END
    assert batch.source.tolist() == [5, 6, end, 7, end]
    assert batch.inputs.tolist() == [begin, 8, begin]
    assert batch.outputs.tolist() == [8, end, end]
    assert batch.source_segments.lengths.tolist() == [3, 2]
    assert batch.target_segments.lengths.tolist() == [2, 1]
    assert batch.counts == {"tokens": 3.0}
    assert batch.to(torch.device("cpu")) is batch
    moved = batch.to(torch.device("meta"))
    assert {x.device.type for x in (moved.source, moved.inputs, moved.outputs)} == {"meta"}


def test_batches_are_made_by_as_many_workers_as_the_recipe_says(made, monkeypatch):
    task, _ = made
    monkeypatch.setattr(base, "load", lambda *given: given)
    monkeypatch.setattr(task, "data", replace(task.data, workers=3))
    assert task.batches("train", 0, 5, 1, 2, 4)[2:] == (5, 1, 2, 3, 4)


@pytest.mark.parametrize("text", ["abcdefgh" * 4, "ab"])
def test_a_text_that_dropout_makes_too_long_keeps_its_plain_form(tmp_path, text):
    # Every pair fits exactly, so that whatever is cut finer is too long, if only by its end token.
    (tmp_path / "a").write_text(f"{text}\n" * 9)
    pair = {"source": str(tmp_path / "a"), "target": str(tmp_path / "a")}
    sections = {
        "data": {"train": [pair], "max_length": 2, "drop_duplicates": False},
        "tokenizer": {"dropout": 0.5, "size": 300},
    }
    task, _ = prepared(tmp_path / "run", **sections)
    [batch] = task.batches("train", 0, 0, 0, 1)
    assert pairs_of(task, batch) == [tuple(map(tuple, task.tokenizers[0].encode([text, text])))] * 9


def test_the_loss_is_label_smoothed_cross_entropy_over_target_tokens(made):
    task, model = made
    batch = next(task.batches("train", 0, 0, 0, 1))
    (total, count, weight) = task.loss(model, batch)["tokens"]
    memory = model.encode(batch.source, batch.source_segments)
    logits = model.logits(
        model.decode(batch.inputs, batch.target_segments, memory, batch.source_segments)
    )
    expected = torch.nn.functional.cross_entropy(
        logits, batch.outputs, reduction="sum", label_smoothing=0.3
    )
    torch.testing.assert_close(total, expected)
    assert (count, weight) == (len(batch.outputs), 1.0)


def test_with_r_drop_two_readings_are_to_agree(tmp_path):
    task, model = prepared(tmp_path / "run", model={"dropout": 0.4}, training={"r_drop": 5.0})
    batch = next(task.batches("train", 0, 0, 0, 1))

    torch.manual_seed(3)
    (total, count, _) = task.loss(model.train(), batch)["tokens"]
    torch.manual_seed(3)
    sources, targets = (
        Segments.of(x.lengths.tolist() * 2) for x in (batch.source_segments, batch.target_segments)
    )
    memory = model.encode(torch.cat((batch.source, batch.source)), sources)
    hidden = model.decode(torch.cat((batch.inputs, batch.inputs)), targets, memory, sources)
    readings = model.logits(hidden).chunk(2)
    losses = [label_smoothed_cross_entropy(logits, batch.outputs, 0.1).sum() for logits in readings]
    expected = sum(losses) / 2 + 5.0 / 2 * symmetric_divergence(*readings).sum()
    torch.testing.assert_close(total, expected)
    assert count == len(batch.outputs)
    assert losses[0] != losses[1]
    model.eval()  # without dropout a second reading says nothing new
    plain, _ = losses_of(model, batch, 0.1)
    torch.testing.assert_close(task.loss(model, batch)["tokens"][0], plain)


def test_bleu_cuts_words_as_the_recipe_says_while_training_and_after(tmp_path):
    recipe = tiny_recipe(training={"steps": 1}, data={"bleu_tokenize": "char"})
    task = TranslationTask(recipe, tmp_path, str)
    task.prepare()
    model = task.build_model().eval()
    task.save(model, tmp_path / "model", {"step": 0, "seconds": 0.0}, task.evaluate(model))
    loaded = predictors_base.load(tmp_path / "model")
    data = (["a b"], [["b a"]])
    for report in (
        task.evaluate(model, data),
        loaded.evaluate(data),
        loaded.evaluate(data, loaded),
    ):
        assert "tok:char" in report.details["bleu"]["signature"]


def test_a_pinned_seed_trains_as_it_did(tmp_path):
    """Data, order, initial weights, loss and optimiser at once: whoever changes these changes every
    later model."""
    recipe = tiny_recipe(model={"dropout": 0.0}, training={"precision": "float32"})
    train.train(recipe, tmp_path / "run", notify=str)
    records = map(
        json.loads, (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    )
    losses = [record["loss"] for record in records if "loss" in record]
    expected = [
        4.5599,
        4.2282,
        4.2079,
        3.9505,
        3.9313,
        3.7695,
        3.6272,
        3.6916,
        3.6346,
        3.6594,
        3.5514,
        3.5926,
        3.4822,
    ]
    assert losses == pytest.approx([*expected, 3.5304], abs=5e-4)


def test_validation_scores_agree_with_forced_decoding(made, tmp_path):
    task, model = made
    model.eval()
    sources, targets = map(list, zip(*generate("reverse", 8, "valid")))
    report = task.evaluate(model)
    assert report.scores.keys() == {"loss", "perplexity", "bleu", "chrf", "exact_match"}
    task.save(model, tmp_path / "model", {"step": 0, "seconds": 0.0}, task.evaluate(model))
    translator = predictors_base.load(tmp_path / "model")
    tokens = sum(len(ids) + 1 for ids in task.tokenizers[1].encode(targets))
    assert report.scores["loss"] == pytest.approx(
        -sum(translator.score(sources, targets)) / tokens, rel=1e-5
    )
    assert report.scores["perplexity"] == pytest.approx(math.exp(report.scores["loss"]))
    assert report.outputs == [
        translation.text for translation in translator.translate(sources, beam=1)
    ]
    assert [sample[0] for sample in report.details["samples"]] == [
        sources[0],
        sources[2],
        sources[4],
    ]
    assert task.evaluate(model, (sources[:1], [["x"]])).scores["exact_match"] == 0.0
    assert task.predict(model, sources) == translator.predict(sources)


def test_validations_search_with_a_beam_of_their_own(made, monkeypatch):
    task, model = made
    beams, find = [], engine.find

    def watched(model, sentences, *rest):
        beams.extend(one.beam for one in sentences)
        return find(model, sentences, *rest)

    monkeypatch.setattr(engine, "find", watched)
    monkeypatch.setattr(task, "decoding", replace(task.decoding, validation_beam=3))
    task.evaluate(model.eval())
    assert set(beams) == {3}


def test_a_validation_text_that_is_too_long_is_cut(made):
    task, model = made
    long = "a b " * 100
    assert math.isfinite(task.evaluate(model.eval(), ([long], [[long]])).scores["loss"])


# backwards


def written(folder, **data):
    """A run of whole words over `reverse`, or over what `data` says of training, and what it
    makes."""
    recipe = tiny_recipe(tokenizer={"kind": "word", "size": 40}, decoding={"beam": 3})
    recipe.data.update(data)
    return train.train(recipe, folder, notify=str)


def test_what_is_learnt_backwards_is_what_turned_targets_teach(tmp_path):
    """To turn each target is to turn its text: weights, losses and translations are the same."""
    for part, count in (("train", 120), ("valid", 8)):
        pairs = generate("reverse", count, part)
        rows = [f"{source}\t{' '.join(reversed(target.split()))}\n" for source, target in pairs]
        (tmp_path / f"{part}.tsv").write_text("".join(rows))
    named = {part: {"pairs": str(tmp_path / f"{part}.tsv")} for part in ("train", "valid")}
    backwards = written(tmp_path / "backwards", backwards=True)
    forwards = written(tmp_path / "forwards", train=[named["train"]], valid=named["valid"])
    for name in ("tokenizer.json", "model.safetensors"):
        assert (backwards / name).read_bytes() == (forwards / name).read_bytes()
    ours, theirs = predictors_base.load(backwards), predictors_base.load(forwards)
    found, texts = (
        ours.translate(TEXTS, n_best=3),
        [" ".join(reversed(text.split())) for text in TEXTS],
    )
    for one, other in zip(found, theirs.translate(TEXTS, n_best=3), strict=True):
        assert one.tokens == other.tokens[::-1]
        assert one.text == " ".join(reversed(other.text.split()))
        assert [each.score for each in one.alternatives] == [
            each.score for each in other.alternatives
        ]
    assert ours.score(TEXTS, TEXTS) == theirs.score(TEXTS, texts)
    assert (
        (backwards / "card.md")
        .read_text()
        .startswith("# Translation model that writes from the end on\n")
    )
    assert (forwards / "card.md").read_text().startswith("# Translation model\n")
    assert found[0].score == pytest.approx(ours.score(TEXTS[:1], [found[0].tokens])[0], abs=1e-4)
    seen, theirs_seen = ours.attention(TEXTS[0], "a b"), theirs.attention(TEXTS[0], "b a")
    assert seen.target == theirs_seen.target == ["<s>", "▁b", "▁a"], (
        "in the order in which it is written"
    )
    assert all(torch.equal(seen[name], theirs_seen[name]) for name in seen)
    assert [side.tolist() for side in align(ours, TEXTS)] == [
        side.tolist() for side in align(theirs, TEXTS)
    ]


def test_the_validation_loss_is_of_targets_as_they_are_written(tmp_path):
    task, model = prepared(tmp_path, data={"backwards": True})
    sources, targets = ["a b", "c d e"], ["b a", "c e d"]
    report = task.evaluate(model.eval(), (sources, [[text] for text in targets]))
    tokens = sum(len(ids) + 1 for ids in task.tokenizers[1].encode(targets))
    scores = task.predictor(model).score(sources, targets)
    assert report.scores["loss"] == pytest.approx(-sum(scores) / tokens, rel=1e-5)


def test_a_model_goes_on_in_its_own_direction(tmp_path):
    backwards = written(tmp_path / "backwards", backwards=True)
    begun = {"tokenizer": {"kind": "word", "size": 40}, "model": {"start_from": str(backwards)}}
    with refusal(r"data\.backwards is False, .*/backwards/model has True; make them equal"):
        train.train(tiny_recipe(**begun), tmp_path / "forwards", notify=str)
    turned = {"data": {"backwards": True}, "training": {"steps": 1}}
    there = train.train(tiny_recipe(**begun, **turned), tmp_path / "on", notify=str)
    assert predictors_base.load(there).backwards
    first = train.train(tiny_recipe(training={"steps": 1}), tmp_path / "first", notify=str)
    begun = {"model": {"start_from": str(first)}}
    with refusal(r"data\.backwards is True, .* has False; make them equal"):
        train.train(tiny_recipe(**begun, **turned), tmp_path / "turned", notify=str)


def test_stages_that_go_on_do_so_in_one_direction(tmp_path):
    recipe = replace(
        tiny_recipe(), stages=[{"training": {"steps": 4}}, {"data": {"backwards": True}}]
    )
    with refusal(
        r"stages\[1\]\.data\.backwards is True, the stage that it starts from has "
        r"False; make"
    ):
        train.train(recipe, tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists(), "and nothing was trained before it was said"


def test_batches_are_turned_whatever_becomes_of_them(tmp_path):
    """With BPE dropout and with one shape too: what is read is the text."""
    for number, training in enumerate(({}, {"capture": True})):
        sections = {
            "tokenizer": {"dropout": 0.3},
            "training": training,
            "data": {"backwards": True},
        }
        task, _ = prepared(tmp_path / str(number), **sections)
        pairs = [
            pair for batch in task.batches("train", 0, 0, 0, 1) for pair in pairs_of(task, batch)
        ]
        read = Counter(
            tuple(task.tokenizers[0].decode([source, target[::-1]])) for source, target in pairs
        )
        del read["", ""]  # what fills a shape
        assert read == Counter(generate("reverse", 120))


@pytest.mark.parametrize("options", [{"prefixes": ["a"]}, {"constraint": "tree"}])
def test_what_begins_at_the_beginning_is_not_for_a_model_that_ends_there(tmp_path, options):
    task, model = prepared(tmp_path, data={"backwards": True})
    translator = task.predictor(model)
    what = "a prefix" if "prefixes" in options else "a constraint"
    with refusal(f"this model writes right to left, so it cannot continue {what}; leave"):
        translator.translate(["a b"], **options)
    assert translator.translate(["a b"], prefixes=[""])
    with refusal(r"recipe: data\.backwards is true, but a tree begins with its root; set dec"):
        prepared(tmp_path / "tree", data={"backwards": True}, decoding={"constraint": "tree"})


# preparing


def test_tokenizers_and_corpus_are_made_once(tmp_path):
    first, second = [], []
    one, _ = prepared(tmp_path, first.append)
    two, _ = prepared(tmp_path, second.append)
    assert first == ["tokenizer.json: 56 tokens, trained and saved", "corpus prepared: 120 pairs"]
    assert second == ["corpus unchanged: reused 120 rows"]
    assert one.tokenizers[0].digest == two.tokenizers[0].digest
    assert one.tokenizers[0] is one.tokenizers[1]
    assert not list(tmp_path.glob("*.part"))


def test_each_side_may_have_a_tokenizer_of_its_own(tmp_path):
    sides = {
        "shared": False,
        "source": {"kind": "word", "size": 40},
        "target": {"kind": "character", "size": 35},
    }
    task, model = prepared(tmp_path, tokenizer=sides)
    assert [tokenizer.kind for tokenizer in task.tokenizers] == ["word", "character"]
    assert (model.config.source_size, model.config.target_size) == tuple(
        t.size for t in task.tokenizers
    )
    assert model.config.tie == "decoder"
    task.save(model, tmp_path / "model", {"step": 0, "seconds": 0.0}, task.evaluate(model))
    loaded = predictors_base.load(tmp_path / "model")
    assert loaded.source_tokenizer.kind == "word"
    assert loaded.predict(["a b", "c"]) == task.predict(model, ["a b", "c"])
    shutil.copy(tmp_path / "tokenizer.source.json", tmp_path / "model" / "tokenizer.target.json")
    sizes = "{0.size} and {0.size} tokens, the model {0.size} and {1.size}".format(*task.tokenizers)
    with refusal(f"the tokenizers hold {sizes}; they do not belong together: copy the"):
        predictors_base.load(tmp_path / "model")


def test_replacements_are_made_wherever_text_comes_in(tmp_path):
    (tmp_path / "a").write_text("a-b\nc-d\ne-f\n" * 3)
    pair = {"source": str(tmp_path / "a"), "target": str(tmp_path / "a")}
    sections = {
        "train": [pair],
        "valid": pair,
        "replace": [{"side": "source", "pattern": "-", "by": " "}],
    }
    task, model = prepared(tmp_path / "run", data=sections)
    [batch] = task.batches("train", 0, 0, 0, 1)
    decoded = {tuple(task.tokenizers[0].decode(pair)) for pair in pairs_of(task, batch)}
    assert decoded == {("a b", "a-b"), ("c d", "c-d"), ("e f", "e-f")}
    assert task.evaluate(model.eval()).details["samples"][0][0] == "a-b"
    task.save(model, tmp_path / "model", {"step": 0, "seconds": 0.0}, task.evaluate(model))
    loaded = predictors_base.load(tmp_path / "model")
    assert loaded.score(["a-b"], ["x"]) == loaded.score(["a b"], ["x"])


def test_what_is_held_out_is_changed_once(tmp_path):
    (tmp_path / "a").write_text("".join(f"{letter} b\n" for letter in "acdefghijklmnopqrstuvwxyz"))
    pair = {"source": str(tmp_path / "a"), "target": str(tmp_path / "a")}
    numbered = {"side": "both", "pattern": "[a-z]", "by": r"#{n}\g<0>", "cycle": 9}
    recipe = tiny_recipe(data={"train": [pair], "held_out": 5, "replace": [numbered]})
    recipe.data.pop("valid")
    task = TranslationTask(recipe, tmp_path / "run", str)
    (tmp_path / "run").mkdir()
    task.prepare()
    sources, references = task._validation
    assert len(sources) == 5
    assert references == [[f"#0{source[0]} #1b"] for source in sources]
    assert not any("#" in source for source in sources), "the translator changes them"
    trained = {
        text
        for row in task.corpus.columns(np.arange(len(task.corpus)))[:1]
        for text in decoded(task, row)
    }
    assert trained == {f"#0{letter} #1b" for letter in "acdefghijklmnopqrstuvwxyz"} - {
        r for [r] in references
    }


def decoded(task, column):
    tokens, lengths = column
    return task.tokenizers[0].decode(
        [ids.tolist() for ids in np.split(tokens, np.cumsum(lengths)[:-1])]
    )


def test_held_out_pairs_are_validated_on_and_not_trained_on(tmp_path):
    held = tiny_recipe(data={"held_out": 10})
    held.data.pop("valid")
    task = TranslationTask(held, tmp_path, str)
    task.prepare()
    sources, references = task._validation
    assert len(sources) == len(references) == 10
    trained = {
        pair for batch in task.batches("train", 0, 0, 0, 1) for pair in pairs_of(task, batch)
    }
    ids = task.tokenizers[0].encode
    assert (
        not {(tuple(s), tuple(t)) for s, t in zip(ids(sources), ids([r[0] for r in references]))}
        & trained
    )


def test_a_mistake_in_the_validation_files_is_found_before_any_work(tmp_path):
    said = []
    with refusal("none: no such file"):
        prepared(tmp_path, said.append, data={"valid": {"source": "none", "target": "none"}})
    assert not said


def test_a_mistake_in_the_validation_files_is_found_before_another_stage(tmp_path):
    for name, count in (("a", 2), ("b", 1)):
        (tmp_path / name).write_text("x\n" * count)
    recipe = tiny_recipe()
    recipe.data["valid"] = {"source": str(tmp_path / "a"), "target": str(tmp_path / "b")}
    with refusal(f"{tmp_path}/b"):
        TranslationTask(recipe, tmp_path, str).check_data()


# saving


def test_the_card_says_what_it_was_trained_on_and_how_well_it_does(trained_run, tmp_path):
    written = (trained_run / "model" / "card.md").read_text(encoding="utf-8")
    signature = "; chrf nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:"
    for part in (
        "500 pairs from a generated corpus",
        "60 steps of at most 200 tokens",
        "| chrf | ",
        ", greedy",
        signature,
    ):
        assert part in written
    (tmp_path / "text").write_text("a b\n" * 3 + "\n")
    pair = {"source": str(tmp_path / "text"), "target": str(tmp_path / "text")}
    task, model = prepared(tmp_path / "run", data={"train": [pair]})
    task.save(model, tmp_path / "model", {"step": 3, "seconds": 1.4}, task.evaluate(model))
    written = (tmp_path / "model" / "card.md").read_text(encoding="utf-8")
    assert f"1 pairs from {tmp_path / 'text'}, {tmp_path / 'text'} (left out: " in written
    assert "1 empty" in written
    assert "2 duplicate" in written
    assert "3 steps of at most 200 tokens, 1 s" in written


# files instead of a recipe


def test_lines_that_are_not_utf8_are_numbered():
    broken = []
    lines = Translator.readable_lines(
        BytesIO("é\n\n".encode() + b"\xe9\n\xf0\x9f\n\xed\xa0\x80"), broken
    )
    assert list(lines) == ["é", "", "\ufffd", "\ufffd", "\ufffd\ufffd\ufffd"]
    assert broken == [3, 4, 5]


def test_a_test_set_may_have_several_references_and_replacements(tmp_path):
    (tmp_path / "test.tsv").write_text("a-b\tx-1\ty\nc\tz\n")
    data = {
        "train": [{"generate": "copy", "count": 1}],
        "test": {"pairs": "test.tsv", "alternatives": True},
        "root": str(tmp_path),
        "replace": [{"side": "both", "pattern": "-", "by": ""}],
    }
    found = Translator.test_set({}, Recipe("translation", data=data))
    assert found == (["a-b", "c"], [["x1", "y"], ["z"]])
    with refusal("names no test set; give --source and --reference"):
        Translator.test_set({}, Recipe("translation", data={"train": data["train"]}))


def fullest(task):
    """Of each batch of an epoch the tokens of its fuller side."""
    batches = task.batches("train", 0, 0, 0, 1)
    return np.array([max(len(batch.source), len(batch.outputs)) for batch in batches])


def test_batches_are_planned_for_what_dropout_makes_of_them(tmp_path, monkeypatch):
    task, _ = prepared(tmp_path, training={"batch_tokens": 200}, tokenizer={"dropout": 0.3})
    filled = fullest(task)
    assert 0.9 < np.median(filled) / 200 < 1.02
    assert filled.max() < 1.1 * 200
    monkeypatch.setitem(task.__dict__, "growth", [1.0, 1.0])  # the control
    assert np.median(fullest(task)) > 1.1 * 200


# one shape


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_every_batch_of_every_epoch_has_one_shape_where_it_is_asked_for(tmp_path, dropout):
    task, _ = prepared(tmp_path, training={"capture": True}, tokenizer={"dropout": dropout})
    plain, _ = prepared(tmp_path / "plain", tokenizer={"dropout": dropout})
    for epoch in range(3):
        pairs = list(
            zip(
                task.batches("train", epoch, 0, 0, 1),
                plain.batches("train", epoch, 0, 0, 1),
                strict=True,
            )
        )
        for filled, batch in pairs:
            assert (len(filled.source), len(filled.outputs)) == (
                task.shape.tokens,
                task.shape.tokens,
            )
            assert (filled.tokens, filled.counts) == (batch.tokens, batch.counts)
            assert torch.equal(filled.outputs[: batch.tokens], batch.outputs)
            assert (
                len(filled.source_segments) == len(filled.target_segments) == task.shape.sequences
            )


def test_what_dropout_makes_too_long_for_the_shape_is_left_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(translation, "SPARE", 0.9)  # of 280, and up to 256
    task, _ = prepared(
        tmp_path, training={"capture": True, "batch_tokens": 280}, tokenizer={"dropout": 0.9}
    )
    batches = list(task.batches("train", 0, 0, 0, 1))
    assert {len(batch.source) for batch in batches} == {task.shape.tokens} == {256}
    assert max(batch.tokens for batch in batches) > 230


def losses_of_a_run(directory, **training):
    """The loss of each step. (Adam makes steps even of a key's bias, whose gradient is nothing but
    rounding.)"""
    task, model = prepared(
        directory, model={"dropout": 0.0}, training={"validate_every": 0, **training}
    )
    fit(model, task.training, task.directory, task.batches, task.loss)
    lines = (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_a_captured_run_learns_what_a_plain_one_does(tmp_path):
    """Without dropout, for the filler's own numbers are drawn too."""
    plain, captured = (losses_of_a_run(tmp_path / str(on), capture=on) for on in (False, True))
    assert len(plain) == 14
    assert captured == pytest.approx(plain, rel=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_compiled_run_learns_what_a_plain_one_does_and_compiles_once(tmp_path):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        plain, compiled = (
            losses_of_a_run(tmp_path / str(on), compile=on, steps=5) for on in (False, True)
        )
    assert compiled == pytest.approx(plain, rel=1e-5)
    counters = torch._dynamo.utils.counters
    assert (counters["stats"]["unique_graphs"], dict(counters["graph_break"])) == (1, {})


class OwnFamily(transformer.Transformer):
    """A family from outside the package, which declares that nothing can be captured."""

    captures_search = captures_steps = compiles = False


class AbleFamily(OwnFamily):
    """One that declares that everything can be."""

    captures_search = captures_steps = compiles = True


@pytest.mark.parametrize(
    "name, message",
    [
        ("training.compile", r"training\.compile is not for the family '{}'; set it to auto or"),
        ("training.capture", r"training\.capture is not for the family '{}'; set it to auto or"),
        ("decoding.captured", "decoding: captured search does not support {}; leave captured out"),
    ],
)
def test_a_family_says_itself_what_can_be_captured_and_compiled(
    tmp_path, monkeypatch, name, message
):
    for family, build in (("own", OwnFamily), ("able", AbleFamily)):
        kind = Family(transformer.Config, transformer.SIZES, build)
        monkeypatch.setitem(translation.FAMILIES, family, kind)
    section, option = name.split(".")
    recipe = tiny_recipe(**{section: {option: True}})
    refused = {"own": ("own", "OwnFamily"), "rnn": ("rnn", "RNN")}
    for family, names in refused.items():
        changed = replace(recipe, model={"family": family, "size": "tiny"})
        if (family, name) == ("rnn", "training.capture"):
            TranslationTask(changed, tmp_path, str)
            continue
        said = message.format(names[name == "decoding.captured"])
        with refusal(f"^recipe: {said}"):
            TranslationTask(changed, tmp_path, str)
    able = replace(recipe, model={"family": "able", "size": "tiny"})
    task = TranslationTask(able, tmp_path, str)
    assert vars(getattr(task, section))[option] is True


def test_a_family_from_outside_that_says_it_can_is_compiled_and_captured(tmp_path, monkeypatch):
    monkeypatch.setitem(translation.FAMILIES, "variant", replace(TRANSFORMER))
    recipe = tiny_recipe(training={"capture": True, "compile": True}, decoding={"captured": True})
    recipe = replace(recipe, model={**recipe.model, "family": "variant"})
    task = TranslationTask(recipe, tmp_path, str)
    assert (task.training.capture, task.training.compile, task.one_shape) == (True, True, True)


def test_batches_of_a_recurrence_have_few_shapes_that_fit_their_lengths(tmp_path):
    training = {"capture": True, "batch_tokens": 280}
    model = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    recipe = replace(tiny_recipe(training=training), model={"family": "rnn", **model})
    task = TranslationTask(recipe, tmp_path, str)
    task.prepare()
    found = {
        (batch.source_segments.fixed, len(batch.source), batch.source_segments.longest)
        for batch in task.batches("train", 0, 0, 0, 1)
    }
    assert found <= {(True, 384, 16), (True, 384, 32), (True, 384, 40)}


def test_a_shortlist_that_no_model_in_training_has_is_refused(tmp_path):
    with refusal(r"recipe: decoding\.shortlist is true, but a shortlist is made of a trained"):
        TranslationTask(tiny_recipe(decoding={"shortlist": True}), tmp_path, str)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"metrics": ["bleu", "foo"]},
            "no metric is called 'foo'; known are: bleu, chrf, ter, exact_match",
        ),
        ({"bleu_tokenize": "foo"}, "BLEU has no tokenizer 'foo'; choose from"),
    ],
)
def test_scores_that_cannot_be_are_refused_before_the_training(tmp_path, data, message):
    with refusal(message):
        TranslationTask(tiny_recipe(data=data), tmp_path, str)


@pytest.mark.parametrize(
    "kinds, expansion", [(("character", "word"), 2.0), (("word", "character"), 5.9)]
)
def test_outputs_have_the_room_that_the_training_data_need(tmp_path, kinds, expansion):
    text = "".join(
        " ".join(f"{number:08}" for number in range(start, start + 8)) + "\n" for start in range(40)
    )
    (tmp_path / "a").write_text(text)
    files = {"source": str(tmp_path / "a"), "target": str(tmp_path / "a")}
    sides = dict(
        zip(("source", "target"), ({"kind": kind, "size": 100} for kind in kinds), strict=True)
    )
    data = {"train": [files], "max_length": 128, "drop_duplicates": False}
    task, model = prepared(tmp_path / "run", data=data, tokenizer={"shared": False, **sides})
    assert task.decoding.expansion == expansion
    longest = max(len(ids) for ids in task.tokenizers[1].encode(text.splitlines())) + 1
    shortest = min(len(ids) for ids in task.tokenizers[0].encode(text.splitlines())) + 1
    assert longest_output(shortest, task.decoding.expansion) >= longest
    task.save(model, tmp_path / "model", {"step": 1, "seconds": 1.0}, task.evaluate(model))
    held = json.loads((tmp_path / "model" / "config.json").read_text())
    assert held["decoding"]["expansion"] == task.decoding.expansion
    asked, _ = prepared(
        tmp_path / "other",
        data=data,
        tokenizer={"shared": False, **sides},
        decoding={"expansion": 1.5},
    )
    assert asked.decoding.expansion == 1.5


def test_the_room_is_that_of_the_whole_corpus_but_for_one_pair_in_a_thousand(monkeypatch):
    few, many = np.full((2, 5_000, 2), 10)
    few[:4, 1], many[3_000:, 1] = 900, 100
    assert translation._expansion(few) == 2.0
    monkeypatch.setattr(translation, "MEASURED", 500)
    assert translation._expansion(many) == 7.4


@pytest.mark.parametrize(
    "share, expected", [(0.1, 5), (0.9, 18), (1.0, 40)], ids=["fewest", "most", "all"]
)
def test_validations_on_the_way_take_a_share_of_the_work_and_the_last_is_whole(
    tmp_path, share, expected
):
    """The same pairs each time, evenly chosen; the card's scores are those of all pairs."""
    recipe = tiny_recipe(
        data={"valid": {"generate": "reverse", "part": "valid", "count": 40}},
        training={"steps": 4, "validate_every": 2, "validation_share": share},
    )
    lines, validated, evaluate = [], [], TranslationTask.evaluate

    def counted(self, model, data=None):
        validated.append(self._validation if data is None else data)
        return evaluate(self, model, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationTask, "evaluate", counted)
        patch.setattr(base, "FEWEST_VALIDATED", 5)
        train.train(recipe, tmp_path / "run", notify=lines.append)
    *some, last = validated
    assert len(last[0]) == 40
    assert len(some[0][0]) == pytest.approx(expected, abs=5)
    assert all(each == some[0] for each in some)
    assert set(some[0][0]) <= set(last[0])
    reported = [line for line in lines if line.startswith("validations during training score")]
    assert len(reported) == (share < 1)


def test_the_same_share_is_chosen_again_by_a_run_that_goes_on(tmp_path):
    recipe = tiny_recipe(
        data={"valid": {"generate": "reverse", "part": "valid", "count": 40}},
        training={"steps": 6, "validate_every": 2, "best": "chrf"},
    )
    whole = train.train(recipe, tmp_path / "whole", notify=str)
    half = replace(recipe, training={**recipe.training, "steps": 3})
    train.train(half, tmp_path / "run", notify=str)
    again = train.train(recipe, tmp_path / "run", resume=True, notify=str)
    assert (again / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_filled_batch_has_one_shape_on_both_sides():
    batch = make_batch(SOURCES, TARGETS, Shape(128, 12, 16))
    plain = make_batch(SOURCES, TARGETS)
    assert (batch.tokens, batch.counts) == (plain.tokens, plain.counts) == (10, {"tokens": 10.0})
    for name in ("source", "inputs", "outputs"):
        real = getattr(plain, name)
        assert getattr(batch, name).shape == (128,)
        assert torch.equal(getattr(batch, name)[: len(real)], real)
    assert batch.counted.tolist() == [1.0] * 10 + [0.0] * 118
    assert (len(batch.source_segments), len(batch.target_segments)) == (12, 12)


@pytest.mark.parametrize(
    "positions", ["sinusoidal", "rotary", "alibi", "normalised_index", "learned"]
)
def test_filler_changes_neither_loss_nor_gradient(positions):
    model = randomise(tiny(positions=positions, num_kv_heads=2)).double()
    found = []
    for shape in (None, Shape(128, 12, 16)):
        batch = make_batch(SOURCES, TARGETS, shape)
        memory = model.encode(batch.source, batch.source_segments)
        hidden = model.decode(batch.inputs, batch.target_segments, memory, batch.source_segments)
        losses = projected_cross_entropy(
            hidden, model.output_table, batch.outputs, 0.1, batch.counted
        )
        found.append(
            [
                *losses,
                *torch.autograd.grad(losses[0], [p for p in model.parameters() if p.requires_grad]),
            ]
        )
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


def test_a_model_of_one_pair_says_its_languages(tmp_path):
    for name in ("train.en", "train.de"):
        (tmp_path / name).write_text("a b\nb a\na a b\n" * 20)
    corpus = {"source": "train.en", "target": "train.de"}
    data = {"train": [corpus], "root": str(tmp_path)}
    train.train(tiny_recipe(data=data, training={"steps": 1}), tmp_path / "run", notify=str)
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["source_language"], config["target_language"]) == ("en", "de")
