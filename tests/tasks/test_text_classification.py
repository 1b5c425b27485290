"""The classification task: its corpus, its batches, its loss, its mistakes, and what it saves; and
that it learns."""

import json
from itertools import pairwise
from unicodedata import normalize

import pytest
import torch
from torch.nn import functional as F

from tests.families import SHORT
from tests.helpers import assert_planned_for_dropout, ready
from tests.refusals import refusal
from transduct.config import Recipe
from transduct.data.samples import generate
from transduct.data.tokenizer import Tokenizer
from transduct.functional.losses import symmetric_divergence
from transduct.models.bert import Bert, Config
from transduct.predictors import base as predictors_base
from transduct.predictors.text_classification import (
    LONGEST_SPAN,
    Answers,
    Batch,
    Classifier,
    LabelledTextConfig,
    check_labels,
    labels_of,
    scores_of,
)
from transduct.records import record
from transduct.runs import evaluate, train
from transduct.segments import Segments
from transduct.tasks import text_classification
from transduct.tasks.model import write_model
from transduct.tasks.text_classification import find_run, span_loss

GENERATED = {"sequence": "brackets", "tokens": "seen_before", "span": "spans"}
KINDS = ["sequence", "pair", "tokens", "span"]


def recipe_of(kind, **sections):
    """A recipe that trains in a second; `sections` replace keys of its own."""
    name = GENERATED.get(kind)
    data = {
        part: {"generate": name, "part": part, "count": count}
        if name
        else {"pairs": f"{part}.tsv", "columns": [0, 1, 2]}
        for part, count in (("train", 60), ("valid", 6), ("test", 6))
    }
    tree = {
        "task": "text_classification",
        "data": {"kind": kind, **data, "train": [data["train"]], "max_length": 64, "workers": 0},
        "tokenizer": {"kind": "word", "size": 60},
        "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "layers": 1, "dropout": 0.0},
        "training": {**SHORT, "batch_tokens": 200},
    }
    return Recipe(
        **{
            key: {**tree[key], **sections.get(key, {})} if key != "task" else tree[key]
            for key in tree
        }
    )


def make_task(directory, kind="sequence", said=str, **sections):
    """A task in `directory`, where files of pairs are written first."""
    directory.mkdir(exist_ok=True)
    if kind == "pair":
        write_pairs(directory)
        sections = {**sections, "data": {"root": str(directory), **sections.get("data", {})}}
    return text_classification.TextClassificationTask(recipe_of(kind, **sections), directory, said)


def prepared(directory, kind="sequence", said=str, **sections):
    return ready(make_task(directory, kind, said, **sections))


def write_pairs(directory, train=60):
    """Two rows of letters, and which of them has more of the letter a."""
    for part, count in (("train", train), ("valid", 6), ("test", 100)):
        rows = [row for row, _ in generate("seen_before", 6 * count, part)]
        pairs = [
            pair for pair in zip(rows[::2], rows[1::2]) if pair[0].count("a") != pair[1].count("a")
        ][:count]
        lines = [
            "\t".join((a, b, "first" if a.count("a") > b.count("a") else "second"))
            for a, b in pairs
        ]
        (directory / f"{part}.tsv").write_text("".join(f"{line}\n" for line in lines))


def from_file(directory, lines, kind="sequence", **data):
    """The `data` section for rows in a file."""
    (directory / "train.tsv").write_text("".join(f"{line}\n" for line in lines))
    columns = [0, 1, 2] if kind in ("pair", "span") else [0, 1]
    corpus = {"pairs": "train.tsv", "columns": columns}
    return {"train": [corpus], "valid": None, "test": None, "root": str(directory), **data}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    return {
        kind: prepared(folder / kind, kind, training={"label_smoothing": 0.3}) for kind in KINDS
    }


def examples_in(batch):
    """Each sequence of a batch and its answers, as what does not depend on the batch."""
    ids = batch.ids.split(batch.segments.lengths.tolist())
    owner = batch.segments.sequence[batch.places]
    offsets = batch.segments.offsets
    labels = batch.labels if len(batch.labels) else torch.zeros_like(batch.places)
    answers = [[] for _ in ids]
    for place, label, number in zip(batch.places.tolist(), labels.tolist(), owner.tolist()):
        answers[number].append((place - int(offsets[number]), label))
    return [(tuple(each.tolist()), tuple(answer)) for each, answer in zip(ids, answers)]


def test_answers_stand_at_their_tokens(made):
    task, _ = made["tokens"]
    tags = dict(generate("seen_before", 60))
    for batch in task.batches("train", 0, 0, 0, 1):
        for ids, answers in examples_in(batch):
            text = " ".join(task.tokenizer.decode([ids]))
            assert [place for place, _ in answers] == list(range(1, len(ids) - 1))
            assert " ".join(task.answers.labels[label] for _, label in answers) == tags[text]
    task, _ = made["span"]
    rows = {f"{question} {text}": answer for question, text, answer in generate("spans", 60)}
    for batch in task.batches("train", 0, 0, 0, 1):
        for ids, ((first, _), (last, _)) in examples_in(batch):
            [text, answer] = task.tokenizer.decode([ids, ids[first : last + 1]])
            assert answer == rows[text]


def test_batches_are_planned_for_what_dropout_makes_of_them(tmp_path, monkeypatch):
    data = from_file(
        tmp_path, [f"{text}\t{i % 2}" for i, (text, _) in enumerate(generate("number_names", 200))]
    )
    task, _ = prepared(
        tmp_path / "run", data=data, tokenizer={"kind": "bpe", "size": 200, "dropout": 0.3}
    )
    assert_planned_for_dropout(task, monkeypatch)


@pytest.mark.parametrize("kind", ["tokens", "span"])
def test_subword_dropout_is_refused_where_answers_stand_at_tokens(tmp_path, kind):
    with refusal(
        f"tokenizer.dropout is 0.1, but it would move what the answers of '{kind}' stand at"
    ):
        make_task(tmp_path, kind, tokenizer={"kind": "bpe", "dropout": 0.1})


@pytest.mark.parametrize("kind", ["sequence", "pair", "tokens"])
def test_the_loss_of_labels_is_label_smoothed_cross_entropy(made, kind):
    task, model = made[kind]
    batch = next(task.batches("train", 0, 0, 0, 1))
    (total, count, weight) = task.loss(model, batch)["labels"]
    x = model.encode(batch.ids, batch.types, batch.segments)
    logits = model.tag(x)[batch.places] if kind == "tokens" else model.classify(x, batch.segments)
    expected = F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=0.3)
    torch.testing.assert_close(total, expected)
    assert (count, weight) == (len(batch.places), 1.0)


@pytest.mark.parametrize("kind", ["sequence", "pair"])
def test_what_votes_beside_the_encoder_learns_alone(tmp_path, kind):
    task, model = prepared(tmp_path, kind, model={"n_grams": 2})
    batch = next(task.batches("train", 0, 0, 0, 1))
    torch.nn.init.normal_(model.n_grams.votes)
    readers = [scores_of(model, batch), model.n_grams(batch.ids, batch.segments)]
    losses = [
        F.cross_entropy(each, batch.labels, reduction="sum", label_smoothing=0.1)
        for each in readers
    ]
    torch.testing.assert_close(task.loss(model, batch)["labels"][0], sum(losses))


@pytest.mark.parametrize("kind", ["sequence", "tokens"])
def test_with_r_drop_two_readings_are_to_agree(tmp_path, kind):
    task, model = prepared(tmp_path, kind, model={"dropout": 0.4}, training={"r_drop": 3.0})
    batch = next(task.batches("train", 0, 0, 0, 1))
    torch.manual_seed(3)
    (total, count, _) = task.loss(model.train(), batch)["labels"]
    torch.manual_seed(3)
    readings = [scores_of(model, batch) for _ in range(2)]
    losses = [
        F.cross_entropy(scores, batch.labels, reduction="sum", label_smoothing=0.1)
        for scores in readings
    ]
    expected = sum(losses) / 2 + 3.0 / 2 * symmetric_divergence(*readings).sum()
    torch.testing.assert_close(total, expected)
    assert count == len(batch.places)
    assert losses[0] != losses[1]


def test_r_drop_is_refused_for_spans(tmp_path):
    with refusal(r"training\.r_drop is for labels, not for spans; set it to 0"):
        make_task(tmp_path, "span", training={"r_drop": 1.0})


def test_the_loss_of_spans_is_cross_entropy_over_the_tokens_of_each_text(made):
    task, model = made["span"]
    batch = next(task.batches("train", 0, 0, 0, 1))
    (total, count, _) = task.loss(model, batch)["labels"]
    scores = model.span(model.encode(batch.ids, batch.types, batch.segments))
    expected, offsets = 0.0, batch.segments.offsets.tolist()
    for number, (start, stop) in enumerate(pairwise(offsets)):
        begin = start + int((batch.types[start:stop] == 0).sum())
        for side in (0, 1):
            right = batch.places[2 * number + side] - begin
            logits = scores[begin : stop - 1, side]
            expected += F.cross_entropy(logits, right, reduction="sum", label_smoothing=0.3)
    torch.testing.assert_close(total, expected)
    assert count == 2 * len(batch.segments)


def test_no_other_token_gets_a_gradient_of_a_span():
    ids, types = torch.tensor([1, 5, 2, 6, 7, 2]), torch.tensor([0, 0, 0, 1, 1, 1])
    scores = torch.randn(6, 2, requires_grad=True)
    batch = Batch(ids, types, Segments.of([6]), torch.tensor([3, 4]), torch.tensor([]))
    span_loss(scores, batch, 0.1).backward()
    assert scores.grad.abs().sum(1).ne(0).tolist() == [False, False, False, True, True, False]


def test_what_is_left_out_and_what_is_cut_is_counted(tmp_path):
    said = []
    lines = ["a b\tx", " \tx", "c d\ty", "a b\tx", "a b c d e f g\ty"]
    data = from_file(tmp_path, lines, max_length=6, drop_duplicates=True)
    task, _ = prepared(tmp_path / "run", said=said.append, data=data)
    assert task.corpus.dropped == {
        "empty": 1,
        "duplicate": 1,
        "answer_not_found": 0,
        "answer_too_long": 0,
    }
    left_out = "(left out: 1 empty, 1 duplicate); 1 longer than 6 tokens"
    assert f"corpus prepared: 3 examples from train.tsv {left_out}" in said
    task.prepare()
    assert "corpus unchanged: reused 3 rows" in said
    (tmp_path / "train.tsv").write_text("a\tx\nb\tz\n")
    task.prepare()
    assert "corpus prepared again: file train.tsv changed" in said
    assert task.answers.labels == ["x", "z"]


def test_answers_that_are_not_in_the_text_are_left_out_of_training_alone(tmp_path):
    lines = ["who\ta b c\tb c", "who\ta b c\tc b", "who\ta b c\t", "who\ta b c d e f g h\th"]
    data = from_file(tmp_path, lines, "span", max_length=10)
    task, model = prepared(tmp_path / "run", "span", data=data)
    assert (len(task.corpus), task.corpus.dropped["answer_not_found"]) == (1, 3)
    assert task.answers.labels == []
    found = task.evaluate(model, (["who\ta b c"], ["nobody"]))
    assert found.scores["exact_match"] == 0.0


def test_answers_longer_than_any_that_is_given_are_not_trained_on(tmp_path):
    words = [" ".join("a" * count) for count in (LONGEST_SPAN, LONGEST_SPAN + 1)]
    data = from_file(tmp_path, [f"who\t{words[1]} b\t{each}" for each in words], "span")
    said = []
    task, _ = prepared(tmp_path / "run", "span", said=said.append, data=data)
    assert (len(task.corpus), task.corpus.dropped["answer_too_long"]) == (1, 1)
    assert any("1 answer too long" in line for line in said)
    assert f"more than {LONGEST_SPAN} words are not trained on" in " ".join(
        LabelledTextConfig.__doc__.split()
    )


def test_texts_of_validation_and_test_that_are_in_training_are_reported(tmp_path):
    lines = [f"word {number}\t{'ab'[number % 2]}" for number in range(8)]
    (tmp_path / "valid.tsv").write_text("word  3\tb\nword 9\ta\nword 4\tb\n")
    said, scored = [], {"pairs": "valid.tsv"}
    data = from_file(tmp_path, lines, valid=scored, test=scored)
    prepared(tmp_path, said=said.append, data=data)
    for name in ("validation", "test"):
        found = f"warning: 2 of 3 {name} texts are in training: scores may be too good; data.drop_v"
        assert any(line.startswith(found) for line in said)
    said.clear()
    task, _ = prepared(tmp_path, said=said.append, data=data | {"drop_validation": True})
    assert "in training" not in " ".join(said)
    assert (len(task.corpus), task.corpus.dropped["held_out"]) == (6, 2)
    (tmp_path / "valid.tsv").write_text("word 9\ta\n")  # the corpus is made again
    task, _ = prepared(tmp_path, said=said.append, data=data | {"drop_validation": True})
    assert (len(task.corpus), task.corpus.dropped["held_out"]) == (8, 0)
    said.clear()
    prepared(tmp_path, said=said.append, data=data)
    assert "in training" not in " ".join(said)


def test_rows_that_differ_in_blanks_alone_are_duplicates(tmp_path):
    lines = ["a b\tx", "a  b \tx", "a\xa0b\tx", "a b\ty", "ab\tx"]
    task, _ = prepared(tmp_path / "run", data=from_file(tmp_path, lines, drop_duplicates=True))
    assert (len(task.corpus), task.corpus.dropped["duplicate"]) == (3, 2)


def test_the_first_run_of_words_is_found():
    assert find_run(["a", "b", "a", "b", "c"], ["a", "b"]) == (0, 1)
    assert find_run(["a", "b", "a", "b", "c"], ["b", "c"]) == (3, 4)
    assert find_run(["a"], ["a", "b"]) is None
    assert find_run(["a"], []) is None


MISTAKES = {
    "one label": (
        "sequence",
        ["a\tx", "b\tx"],
        r"found one label to train on \('x'\), expected at least 2; check data",
    ),
    "no label": (
        "sequence",
        ["a\tx", "b\t"],
        "train.tsv, row 2: found no label, expected one; fix the row or set",
    ),
    "tags": (
        "tokens",
        ["a b\tx y", "c d\tx"],
        "train.tsv, row 2: found 2 words and 1 tags, expected one tag for each word; fix",
    ),
    "nothing": (
        "sequence",
        [" \tx", "\ty"],
        r"no example is left to train on from train.tsv \(left out: 2 empty\)",
    ),
    "no answer": (
        "span",
        ["who\ta\tb"],
        r"no example is left .* \(left out: 1 answer not found\); check data.train",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_training_files_are_said(tmp_path, name):
    kind, lines, message = MISTAKES[name]
    data = from_file(tmp_path, lines, kind)
    Tokenizer.train(["a b c d"], "character", 20).save(tmp_path / "tokenizer.json")
    task = make_task(tmp_path / "run", kind, data=data, model={"start_from": str(tmp_path)})
    with refusal(message):
        task.prepare()


@pytest.mark.parametrize("part", ["valid", "test"])
def test_a_label_that_training_never_has_is_found_before_training(tmp_path, part):
    data = from_file(tmp_path, ["a\tx", "b\ty"])
    (tmp_path / "other.tsv").write_text("a\ty\nb\tz\n")
    data[part] = {"pairs": "other.tsv", "columns": [0, 1]}
    with refusal(r"other.tsv, row 2: unknown label 'z'; training has: x, y; fix the row"):
        prepared(tmp_path / "run", data=data)
    with refusal(r"other.tsv, row 2: unknown label 'z'; training has: x, y; fix the row"):
        make_task(tmp_path / "later", data=data).check_data()
    assert [*(tmp_path / "later").iterdir()] == []


def test_a_file_that_is_gone_is_said(tmp_path):
    data = from_file(tmp_path, ["a\tx", "b\ty"])
    task, _ = prepared(tmp_path / "run", data=data)
    (tmp_path / "train.tsv").unlink()
    with refusal(r"train.tsv: cannot be read \(No such file.*\); correct data.train or"):
        task.prepare()


WRONG_DATA = {
    "train is empty; name at least one corpus": {"kind": "span", "train": []},
    "a corpus gives 2 texts a row, must be 3: a row of kind 'pair' ends in its answer; "
    "set columns": {"kind": "pair", "train": [{"pairs": "a.tsv"}]},
    "a corpus gives 3 texts a row, must be 2: a row of kind 'tokens'": {
        "kind": "tokens",
        "train": [{"pairs": "a.tsv"}],
        "valid": {"pairs": "a.tsv", "columns": [0, 1, 2]},
    },
    "alternatives are references of a translation; here a row has one answer": {
        "kind": "sequence",
        "train": [{"pairs": "a.tsv", "alternatives": True}],
    },
    "max_length is 4, must be at least 5 for 'span'": {
        "kind": "span",
        "train": [{"generate": "spans", "count": 3}],
        "max_length": 4,
    },
    "data.kind is 'picture', expected 'sequence', 'pair', 'tokens' or 'span'": {
        "kind": "picture",
        "train": [],
    },
}


@pytest.mark.parametrize("message", WRONG_DATA)
def test_data_that_cannot_be_is_refused(message):
    with refusal(message):
        record(LabelledTextConfig, WRONG_DATA[message], "data")


WRONG_MODELS = {
    "model.labels cannot be set; set data.train": {"labels": 3},
    "model.head cannot be set; set data.kind": {"head": "span"},
    "model.max_length cannot be set; set data.max_length": {"max_length": 3},
    "unknown model.size 'huge'; known are: tiny, small, base": {"size": "huge"},
    r"model.d_model is 16, must be a multiple of num_heads \(3\)": {"num_heads": 3},
    "recipe: model: .*": {"positions": "rotary", "d_model": 6},
}


@pytest.mark.parametrize("message", WRONG_MODELS)
def test_a_model_that_cannot_be_is_refused_before_anything_is_written(tmp_path, message):
    with refusal(message):
        make_task(tmp_path, model=WRONG_MODELS[message])
    assert not list(tmp_path.iterdir())


def test_training_starts_from_a_model_of_masked_tokens(tmp_path):
    tokenizer = Tokenizer.train([text for text, _ in generate("brackets", 60)], "character", 30)
    torch.manual_seed(3)
    shape = {"d_model": 16, "num_heads": 2, "d_ff": 32, "layers": 1, "max_length": 64}
    held = Bert(Config(vocabulary_size=tokenizer.size, head="masked", **shape))
    tokenizer.save(tmp_path / "tokenizer.json")
    write_model(
        tmp_path / "held", "masked_language_modeling", held, {}, [tmp_path / "tokenizer.json"], ""
    )
    said = []
    task, model = prepared(
        tmp_path / "run",
        said=said.append,
        model={"start_from": str(tmp_path / "held")},
        tokenizer={"kind": "character", "size": tokenizer.size},
    )
    assert task.tokenizer.digest == tokenizer.digest
    assert torch.equal(model.embedding.table, held.embedding.table)
    assert any("weights taken, the rest is new" in line for line in said)


def test_what_another_model_knows_of_a_label_stays_with_it(tmp_path):
    task, held = prepared(tmp_path / "held", model={"n_grams": 2})
    torch.nn.init.normal_(held.n_grams.votes)
    task.save(held, tmp_path / "model", {"step": 1, "seconds": 1.0}, task.evaluate(held))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["answers"]["labels"].reverse()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    _, model = prepared(
        tmp_path / "run",
        model={"n_grams": 2, "start_from": str(tmp_path / "model")},
        tokenizer={"size": 9},
    )
    assert torch.equal(model.output.weight, held.output.weight.flip(0))
    assert torch.equal(model.n_grams.votes, held.n_grams.votes.flip(0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_leaves_a_model_that_is_loaded_and_scored(tmp_path, kind):
    if kind == "pair":
        write_pairs(tmp_path)
    recipe = recipe_of(kind, data={"root": str(tmp_path)})
    events = []
    model = train.train(recipe, tmp_path / "run", notify=str, report=events.append)
    config = json.loads((model / "config.json").read_text())
    assert config["answers"]["kind"] == kind
    assert config["answers"]["labels"] == sorted(config["answers"]["labels"])
    names = {"exact_match", "f1"} if kind == "span" else {"accuracy", "f1"}
    [first, last] = [event for event in events if "scores" in event]
    assert first["scores"].keys() == names
    assert len(last["details"]["samples"]) == 3
    report = evaluate.evaluate(tmp_path / "run", against=model)
    assert report.scores.keys() == names
    assert set(report.details["p_values"].values()) == {1.0}
    inputs, answers = Classifier.test_set({}, recipe)
    assert report.outputs == predictors_base.load(model).predict(inputs)
    (tmp_path / "inputs").write_text("".join(f"{text}\n" for text in inputs))
    (tmp_path / "answers").write_text("".join(f"{text}\n" for text in answers))
    files = {"source": str(tmp_path / "inputs"), "reference": str(tmp_path / "answers")}
    assert evaluate.evaluate(model, files).scores == report.scores
    assert "examples from" in (model / "card.md").read_text()
    if kind == "sequence":
        task = text_classification.TextClassificationTask(recipe, tmp_path / "run", str)
        task.prepare()
        assert task.predict(predictors_base.load(model).model, inputs) == report.outputs


def test_the_test_set_of_files_or_of_the_recipe(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": "one\\ttwo", "b": "three", "c": "x"}\n')
    rows = {"pairs": "rows.jsonl", "columns": ["a", "b", "c"]}
    recipe = recipe_of(
        "pair", data={"train": [rows], "valid": None, "test": rows, "root": str(tmp_path)}
    )
    assert Classifier.test_set({}, recipe) == (["one two\tthree"], ["x"])


LEARNING = {  # steps, learning rate, the model, the score and what it must reach
    "sequence": (300, 0.003, {"positions": "rotary", "pool": "mean"}, "accuracy", 95),
    "pair": (120, 0.004, {}, "accuracy", 95),
    "tokens": (150, 0.006, {}, "accuracy", 95),
    "span": (200, 0.006, {"positions": "rotary"}, "exact_match", 95),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(tmp_path, kind):
    steps, rate, changes, score, least = LEARNING[kind]
    data = {"root": str(tmp_path)}
    if kind == "pair":
        write_pairs(tmp_path, 2000)
    elif kind == "span":
        write_neighbours(tmp_path)
        data |= {part: {"pairs": f"{part}.tsv", "columns": [0, 1, 2]} for part in ("valid", "test")}
        data["train"] = [{"pairs": "train.tsv", "columns": [0, 1, 2]}]
    else:
        data |= {"train": [{"generate": GENERATED[kind], "count": 4400}], "drop_duplicates": True}
        data["test"] = {"generate": GENERATED[kind], "part": "test", "count": 200}
    training = {
        "steps": steps,
        "batch_tokens": 1000,
        "warmup": 30,
        "learning_rate": rate,
        "schedule": "linear",
        "label_smoothing": 0.0,
        "validate_every": 0,
        "checkpoint_every": steps,
    }
    model = {"d_model": 32, "num_heads": 4, "d_ff": 64, "layers": 2, **changes}
    train.train(
        recipe_of(kind, data=data, model=model, training=training), tmp_path / "run", notify=str
    )
    assert evaluate.evaluate(tmp_path / "run").scores[score] >= least


def write_neighbours(directory):
    """A letter, letters that hold it once, and it with the letter after it."""
    for part, count in (("train", 2000), ("valid", 10), ("test", 200)):
        rows = [row.split() for row, _ in generate("seen_before", count, part)]
        lines = []
        for letters in rows:
            place = len(letters) * 7 % (len(letters) - 1)
            letter = letters[place]
            text = [each for i, each in enumerate(letters) if each != letter or i == place] + ["z"]
            place = text.index(letter)
            lines.append(f"{letter}\t{' '.join(text)}\t{letter} {text[place + 1]}\n")
        (directory / f"{part}.tsv").write_text("".join(lines))


def test_a_label_is_one_in_either_form_of_unicode():
    forms = [normalize(form, "긍정") for form in ("NFC", "NFD")]
    found = [labels_of("sequence", ["a"], form, file="here") for form in forms]
    assert found == [[forms[0]], [forms[0]]]
    assert labels_of("tokens", ["a b"], " ".join(forms), file="here") == [forms[0], forms[0]]
    assert Answers("sequence", ["a", forms[1]]).labels == ["a", forms[0]]
    check_labels(Answers("sequence", ["a", forms[1]]), (["x", "y"], forms))
    assert find_run(f"x {forms[0]} y".split(), [forms[1]]) == (1, 1)
