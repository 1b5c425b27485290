"""Holds for every task: an interrupted run ends with the same bytes, and an answer does not depend
on its batch."""

import json
import re
import shutil
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain, count, islice
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import transduct
from tests.changes import Gated, becomes
from tests.families import RECIPES, in_folder
from tests.graphs import replayed_eagerly
from tests.helpers import Interrupted, real, weights
from tests.pictures import BARS, bar
from tests.refusals import refusal
from tests.tones import string
from transduct import storage
from transduct.errors import NotFinite, TransductError
from transduct.kernels import cpu
from transduct.kernels.cuda_graphs import mapped, outline
from transduct.models import transformer
from transduct.models.transformer import Transformer
from transduct.predictors.base import Report
from transduct.predictors.model_directory import Family
from transduct.predictors.options import NoOptions
from transduct.predictors.translation import FAMILIES
from transduct.runs import evaluate, train
from transduct.segments import Segments
from transduct.tasks import base, translation
from transduct.tasks.base import task_class
from transduct.tasks.text import TextTask
from transduct.training.distributed import Ranks
from transduct.training.step import Stepper, seed_generators

INPUTS = {
    "text_classification": {
        "sequence": ["( [ ] )", "( ]", "[ ] { }", "{ }"],
        "tokens": ["a b a", "c", "d d e f", "b b"],
        "span": [
            f"where is anna ?\tanna is in {place} . bela is in rome ."
            for place in ("oslo", "a boat", "lagos")
        ],
    },
    "image_classification": [bar(kind, 100) for kind in BARS],
    "object_detection": [bar(kind, 100) for kind in BARS],
    "image_codes": [bar(kind, 100) for kind in BARS],
    "text_to_image": ["a small red circle in the middle", "red", "", "a large cross"],
    "speech_recognition": [string("1 2"), string("3", "bela"), string("0 1 2")],
    "masked_language_modeling": [
        "to be or [MASK] to",
        "[MASK]",
        "that is the [MASK] the mind",
        "and",
    ],
}

# their batches have few shapes as they are
DRAWS = "text_to_image"  # its files hold a picture too
WEIGHED = (
    "text_classification",
    "masked_language_modeling",
    "image_classification",
    "image_codes",
    "text_to_image",
)
UNCHANGED = ("translation", "language_modeling", "image_codes")
OF_ONE_SHAPE = ("language_modeling", "image_classification", "image_codes")


def inputs_of(recipe):
    inputs = INPUTS.get(recipe.task, ["a b c", "c", "d e f g a", "b a"])
    return inputs[recipe.data["kind"]] if isinstance(inputs, dict) else inputs


@pytest.fixture(scope="module", params=RECIPES)
def finished(request, family_of):
    """A recipe and the run it has left."""
    return family_of(request.param)


def in_parts(recipe, run, *stops):
    """The weights of a run that is broken off after each of these steps."""
    for number, stop in enumerate(stops):

        def report(event, stop=stop):
            if event["step"] == stop and "loss" in event:
                raise Interrupted

        with pytest.raises(Interrupted):
            train.train(recipe, run, resume=number > 0, notify=str, report=report)
    train.train(recipe, run, resume=True, notify=str)
    return weights(run)


def test_a_run_that_was_broken_off_ends_with_the_same_bytes(finished, tmp_path):
    """Before its first checkpoint, and amid an epoch after one."""
    recipe, whole = finished
    assert in_parts(recipe, tmp_path / "run", 2, 5) == weights(whole)


@pytest.mark.parametrize("name", ["masked tokens", "rnn general"])
def test_a_broken_off_run_of_filled_batches_ends_with_the_same_bytes(name, tmp_path):
    recipe = in_folder(RECIPES[name], tmp_path)
    recipe = replace(recipe, training={**recipe.training, "capture": True, "validate_every": 0})
    train.train(recipe, tmp_path / "whole", notify=str)
    assert in_parts(recipe, tmp_path / "parts", 5) == weights(tmp_path / "whole")


@pytest.mark.parametrize("name", ["transformer", "pictures"])
def test_the_control_another_seed_ends_otherwise(name, family_of, tmp_path):
    recipe, whole = family_of(name)
    training = {**recipe.training, "seed": 2}
    train.train(replace(recipe, training=training), tmp_path / "run", notify=str)
    assert weights(tmp_path / "run") != weights(whole)


def test_a_model_decodes_as_its_recipe_says(finished, tmp_path):
    recipe, run = finished
    if recipe.task in ("image_codes", "masked_language_modeling"):
        return  # they have nothing to say
    said = replace(recipe, decoding={**recipe.decoding, "batch_tokens": 777})
    task = task_class(recipe.task)(said, run, str)
    task.prepare()
    task.save(task.build_model(), tmp_path / "model", {"step": 1, "seconds": 0.0}, Report({}))
    assert transduct.load(tmp_path / "model").decoding == task.decoding
    assert task.decoding.batch_tokens == 777


def test_the_log_tells_speed_and_loss(finished):
    _, run = finished
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    steps = [event for event in events if "loss" in event]
    assert [event["step"] for event in steps] == list(range(1, 9))
    assert all(event["tokens_per_second"] > 0 for event in steps)


def test_an_answer_is_the_same_alone_in_any_batch_and_of_a_moved_model(finished, tmp_path):
    recipe, run = finished
    model = transduct.load(run)
    inputs = inputs_of(recipe)
    together = model.predict(inputs)
    assert len(together) == len(inputs)
    assert [model.predict([text])[0] for text in inputs] == together
    (run / "model").rename(tmp_path / "moved")
    try:
        moved = transduct.load(tmp_path / "moved")
    finally:
        (tmp_path / "moved").rename(run / "model")
    assert moved.predict(inputs[::-1])[::-1] == together


def scored_and_translated(recipe, run):
    """What the model of a run gives as it was trained, and as it is loaded for use."""
    task = translation.TranslationTask(recipe, run, str)
    task.prepare()
    model = task.build_model().eval()
    storage.fill(model, storage.read_tensors(run / "model" / storage.WEIGHTS), run)
    sources, targets = ["a b c", "c", "d e f g a", "b a"], ["c b a", "d e", "", "a b"]
    for translator in (task.predictor(model), transduct.load(run)):
        found = translator.translate(sources, beam=3)
        scores = [*translator.score(sources, targets), *(each.score for each in found)]
        yield scores, [each.tokens for each in found]


def test_a_model_that_translates_is_in_use_what_it_was_trained_to_be(finished):
    recipe, run = finished
    if recipe.task == "translation":
        trained, used = scored_and_translated(recipe, run)
        assert used[0] == pytest.approx(trained[0], abs=1e-4)
        assert used[1] == trained[1]


class Bounded(Transformer):
    """Another feed-forward network, and bounded logits."""

    def __init__(self, config):
        super().__init__(config)
        becomes(Gated)(self)

    def logits(self, hidden):
        return 3.0 * (super().logits(hidden) / 3.0).tanh()


def shown():
    """The variant that docs/adding_a_task.md shows."""
    page = (Path(__file__).parents[2] / "docs" / "adding_a_task.md").read_text(encoding="utf-8")
    names = {"__name__": "variant"}
    exec(page.split("```python\n")[-1].split("```")[0], names)
    return FAMILIES.pop("variant")


@pytest.mark.parametrize(
    "family",
    [shown(), Family(transformer.Config, transformer.SIZES, Bounded)],
    ids=["of the page", "bounded"],
)
def test_a_family_of_ones_own_is_in_use_what_it_was_trained_to_be(tmp_path, monkeypatch, family):
    monkeypatch.setitem(FAMILIES, "variant", family)
    recipe = RECIPES["transformer"]
    recipe = in_folder(replace(recipe, model={**recipe.model, "family": "variant"}), tmp_path)
    train.train(recipe, tmp_path / "run", notify=str)
    trained, used = scored_and_translated(recipe, tmp_path / "run")
    assert used[0] == pytest.approx(trained[0], abs=1e-4)
    assert used[1] == trained[1]


def test_a_model_that_answers_with_nan_says_so(finished, tmp_path):
    recipe, run = finished
    broken = shutil.copytree(run / "model", tmp_path / "broken")
    held = load_file(broken / "model.safetensors")
    save_file(
        {name: torch.full_like(x, float("nan")) for name, x in held.items()},
        broken / "model.safetensors",
    )
    model = transduct.load(broken)
    with pytest.raises(NotFinite, match="the model's numbers are not finite"):
        model.predict(inputs_of(recipe))


def test_weights_of_attention_are_for_computing_with(finished):
    recipe, run = finished
    model = transduct.load(run)
    if not hasattr(model, "attention") or model.model.attention_names == []:
        return
    said = ["1 2"] if recipe.task == "speech_recognition" else []
    seen = model.attention(inputs_of(recipe)[0], *said)
    assert "weights=" not in repr(seen), "a notebook shows what a call returns"
    for weight in seen.weights.values():
        (weight.requires_grad_() * 2.0).sum().backward()
        assert weight.grad is not None


def test_losses_and_errors_are_better_as_they_fall(finished):
    recipe, run = finished
    task = task_class(recipe.task)(recipe, run, str)
    task.prepare()
    report = task.evaluate(task.build_model().eval())
    falls = (
        "loss",
        "perplexity",
        "nats_",
        "ter",
        "word_error_rate",
        "token_error_rate",
        "reconstruction_error",
    )
    assert report.lower_is_better & report.scores.keys() == {
        name for name in report.scores if name.startswith(falls)
    }


def said_of(task):
    """The scores that docs/recipes.md says a task's validations give."""
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    section = page.split("## Scores that may choose")[1].split("\n## ")[0]
    [scores] = re.findall(rf"^\| {task} \| (.*) \|$", section, re.MULTILINE)
    return {
        *re.findall(r"`([a-z0-9_]+)`", scores),
        *(said_of("image_codes") if "those of image_codes" in scores else ()),
    }


def test_each_score_of_its_validations_may_choose_and_no_other(finished, tmp_path):
    recipe, run = finished
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    module = task_class(recipe.task)
    nothing = {
        key: value
        for key, value in recipe.data.items()
        if key not in ("valid", "held_out", "hold_out")
    }
    given = {name for event in events for name in event.get("scores", {})}
    assert given <= said_of(recipe.task), "docs/recipes.md names them all"
    for name in given:
        chosen = replace(recipe, training={**recipe.training, "best": name})
        module(chosen, tmp_path, str)
        with refusal(rf"training\.best is '{name}', but nothing is validated on; "):
            module(replace(chosen, data=nothing), tmp_path, str)
    for name in {"beauty", "accuracy", "attributes_right", "word_error_rate_unseen", "f1"} - given:
        # without a validation that is what is said of the rest
        validated = "valid" in recipe.data or name == "beauty"
        said = (
            "expected a score of validations: "
            if validated
            else "(expected a score of v|but nothing is validated)"
        )
        with refusal(rf"training\.best is '{name}', {said}"):
            module(replace(recipe, training={**recipe.training, "best": name}), tmp_path, str)


def numbers_of(batch):
    """The tensors of a batch, as lists."""
    return [part.tolist() for part in vars(batch).values() if isinstance(part, torch.Tensor)]


def test_ranks_share_the_batches_of_an_epoch_and_a_run_goes_on_amid_them(finished):
    recipe, run = finished
    task = task_class(recipe.task)(recipe, run, str)
    task.prepare()

    def made(*where):
        return [numbers_of(batch) for batch in real(task.batches("train", *where))]

    whole = made(0, 0, 0, 1)
    shares = [made(0, 0, rank, 3) for rank in range(3)]
    assert [shares[number % 3][number // 3] for number in range(len(whole))] == whole
    assert sum(map(len, shares)) == len(whole)
    assert made(0, 2, 0, 1) == whole[2:]
    assert made(0, 0, 0, 1) == whole != made(1, 0, 0, 1)


def test_every_example_comes_once_an_epoch_in_an_order_of_epoch_and_seed(finished, monkeypatch):
    recipe, run = finished
    task, _ = prepared(recipe, run)

    def order(epoch):
        batches, make = task.order(epoch)
        if not recipe.tokenizer.get("dropout"):
            sizes = [make(numbers).tokens for numbers in batches]
            assert max(sizes) <= task.training.batch_tokens
        return [number for numbers in batches for number in numbers.tolist()]

    first, epoch = order(0), task.epoch(0)
    runs = epoch.weights or [(0, len(epoch.lengths), 1.0)]
    once = [number for start, stop, weight in runs if weight for number in range(start, stop)]
    assert sorted(first) == once
    assert order(0) == first != order(1)
    monkeypatch.setattr(task, "training", replace(task.training, seed=2))
    assert order(0) != first


def fields_of(batch):
    """The fields of a batch that have rows for each example, without positions."""
    return {
        name: vars(batch)[name]
        for name, axis in batch.axes.items()
        if isinstance(vars(batch)[name], torch.Tensor) and not axis.within
    }


def equal_fields(one, other):
    return all(
        one[name].shape == x.shape and torch.equal(one[name], x) for name, x in other.items()
    )


def assert_draws_belong_to_examples(task):
    """Each example is the same alone as in its batch, and in two epochs it is not."""
    order, make = task.order(0)
    numbers = max(order, key=len)
    alone = [fields_of(make(numbers[i : i + 1])) for i in range(len(numbers))]
    joined = {name: torch.cat([each[name] for each in alone]) for name in alone[0]}
    assert equal_fields(fields_of(make(numbers)), joined)
    assert not equal_fields(fields_of(task.order(1)[1](numbers)), joined)


def test_what_is_drawn_for_an_example_belongs_to_it_and_its_epoch(finished):
    recipe, run = finished
    if recipe.task in UNCHANGED:
        return  # their examples are the same in each epoch
    task, _ = prepared(recipe, run)
    if recipe.data.get("kind") is None or task.tokenizer_config.dropout:
        assert_draws_belong_to_examples(task)


@pytest.mark.parametrize("name", ["transformer", "masked tokens and next sentence"])
def test_subword_dropout_belongs_to_the_example_and_the_epoch(name, tmp_path):
    recipe = in_folder(RECIPES[name], tmp_path)
    dropout = {"kind": "bpe", "size": 200, "dropout": 0.5}
    task, _ = prepared(recipe, tmp_path, tokenizer=dropout)
    assert_draws_belong_to_examples(task)


def test_a_saved_model_answers_and_scores_as_the_trained_one(finished):
    recipe, run = finished
    task, model = prepared(recipe, run)
    storage.fill(model, storage.read_tensors(run / "model" / storage.WEIGHTS), run)
    loaded, inputs = transduct.load(run), inputs_of(recipe)
    assert loaded.predict(inputs) == task.predict(model, inputs)
    if recipe.task != "translation" and task.validation()[0] is not None:  # with a beam of its own
        expected = task.evaluate(model).scores
        assert loaded.evaluate(task.validation()[0], **task.search).scores == pytest.approx(
            expected
        )
    rough = transduct.load(run, precision="bfloat16")
    assert next(rough.model.parameters()).dtype == torch.bfloat16
    assert len(rough.predict(inputs)) == len(inputs)


def test_validations_during_training_may_score_some_of_the_examples(finished, monkeypatch):
    """Evenly chosen, the same each time; a text or a stream of pictures is scored whole."""
    recipe, run = finished
    monkeypatch.setattr(base, "FEWEST_VALIDATED", 2)
    few = {"validation_share": 1e-9, "validate_every": 1}
    task, model = prepared(recipe, run, training=few)
    whole, (some, report) = task._validation, task.validation()
    if whole is None or not task.validated_in_part:
        assert (some, report) == (whole, "")
        return
    of_all = len(whole[0] if isinstance(whole, tuple) else whole)
    assert report.startswith(f"validations during training score 2 of {of_all} {task.unit}, ")
    assert task.evaluate(model, some).scores.keys() == task.evaluate(model).scores.keys()
    assert len(some[0] if isinstance(some, tuple) else some) == 2
    all_of_them, _ = prepared(recipe, run, training={**few, "validation_share": 1})
    assert all_of_them.validation()[1] == ""


def test_a_recipe_with_every_default_is_read_as_the_same(finished):
    recipe, run = finished
    kind = task_class(recipe.task)
    task = kind(recipe, run, str)
    assert kind(task.recipe, run, str).recipe == task.recipe
    assert not {name for name, _ in derived_of(kind)} & task.recipe.model.keys()
    assert recipe.training.items() <= task.recipe.training.items()


def test_only_the_training_split_has_batches(finished):
    recipe, run = finished
    task = task_class(recipe.task)(recipe, run, str)
    for split in ("valid", "test"):
        with refusal(rf"^unknown split '{split}'; a task has batches of 'train'$"):
            next(iter(task.batches(split, 0, 0, 0, 1)))


def test_a_task_with_one_vocabulary_has_one_tokenizer(finished, tmp_path):
    recipe, _ = finished
    kind = task_class(recipe.task)
    if not issubclass(kind, TextTask):
        return
    two = replace(recipe, tokenizer={**recipe.tokenizer, "shared": False})
    with refusal(
        r"^recipe: tokenizer\.shared is false, but the texts have one side; set it to true$"
    ):
        kind(two, tmp_path, str)


def test_steps_are_captured_where_they_can_be(finished, tmp_path):
    recipe, _ = finished
    given = replace(recipe, training={**recipe.training, "capture": True})
    kind = task_class(recipe.task)
    if kind(recipe, tmp_path, str).model.model.captures_steps:
        assert kind(given, tmp_path, str).training.capture is True
        return
    with refusal(r"training\.capture is "):
        kind(given, tmp_path, str)


def on_meta(item):
    """The same tensors on a device whose numbers cannot be read; floats as tensors, as for a
    graph."""
    return mapped(item, lambda tensor: tensor.to("meta"))


def test_a_step_that_is_captured_asks_nothing_of_the_host(finished, monkeypatch):
    recipe, run = finished
    task = task_class(recipe.task)(recipe, run, str)
    if not task.model.model.captures_steps:
        return
    task.training = replace(task.training, capture=True)
    task.prepare()
    batch = next(task.batches("train", 0, 0, 0, 1))
    model = task.build_model().to("meta").train()
    # This device has no precision of its own.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    terms = task.loss(model, on_meta(batch))
    counts = on_meta(batch).counts
    sum(weight * total / counts[name] for name, (total, _, weight) in terms.items()).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def captured_task(recipe, run):
    """The task with and without batches for captured steps."""
    tasks = [
        task_class(recipe.task)(
            replace(recipe, training={**recipe.training, "capture": on}), run, str
        )
        for on in (True, False)
    ]
    for task in tasks:
        task.prepare()
    return tasks


def test_what_fills_up_a_batch_counts_nowhere(finished):
    recipe, run = finished
    if recipe.task == "object_detection":
        return  # it matches on the host
    captured, plain = captured_task(recipe, run)
    model, changed = plain.build_model().eval(), 0
    given = [task.batches("train", 1, 0, 0, 1) for task in (captured, plain)]
    for filled, batch in islice(zip(*given, strict=True), 4):
        assert (filled.tokens, filled.counts) == (batch.tokens, batch.counts)
        changed += outline(filled, []) != outline(batch, [])
        found = []
        for each in (filled, batch):
            seed_generators(1)
            terms = plain.loss(model, each)
            total = sum(
                weight * value / batch.counts[name] for name, (value, _, weight) in terms.items()
            )
            weights = [p for p in model.parameters() if p.requires_grad]
            found.append((total.detach(), torch.autograd.grad(total, weights, allow_unused=True)))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    assert changed or recipe.task in OF_ONE_SHAPE


def test_a_captured_step_is_the_plain_step(finished, monkeypatch):
    """Over the same batches and with dropout, by graphs that stand in for those of a GPU."""
    recipe, run = finished
    if recipe.task == "object_detection":
        return  # it matches on the host
    monkeypatch.setattr(cpu, "library", lambda: None)  # whose calls no graph notes
    task, _ = captured_task(recipe, run)
    graphs, found = replayed_eagerly(monkeypatch), []
    for on in (False, True):
        seed_generators(1)
        model = task.build_model().train()
        stepper = Stepper(model, task.training, task.loss, Ranks())
        stepper._backward.captured = on
        batches = chain.from_iterable(task.batches("train", epoch, 0, 0, 1) for epoch in count())
        losses = [
            stepper.take([batch], number, 0.01).loss()
            for number, batch in enumerate(islice(batches, 5), 1)
        ]
        found.append((losses, [p.detach() for p in model.parameters()]))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert graphs


def test_it_is_measured_on_its_test_set(finished):
    recipe, run = finished
    if recipe.data.get("test") is None:
        with refusal("names no test set"):
            evaluate.evaluate(run)
        return
    report = evaluate.evaluate(run)
    assert report.scores
    assert all(isinstance(score, float) for score in report.scores.values())
    assert report.scores == evaluate.evaluate(run).scores


def test_it_is_compared_with_a_loaded_model(finished):
    recipe, run = finished
    data = (["a"], [["a"]]) if recipe.data.get("test") is None else evaluate._test_set(run, {})
    with refusal("against: found 'runs/other', expected a model like this one; give trans"):
        transduct.load(run).evaluate(data, "runs/other")


def prepared(recipe, folder, said=str, **changes):
    """The task with some keys of its sections changed, and its model."""
    sections = {name: {**getattr(recipe, name), **keys} for name, keys in changes.items()}
    task = task_class(recipe.task)(replace(recipe, **sections), folder, said)
    task.prepare()
    return task, task.build_model().eval()


def test_one_input_is_no_list_none_has_no_answer_and_options_have_names(finished):
    recipe, run = finished
    model = transduct.load(run)
    one = rf"found one {model.reads}, expected a list of {model.reads}s: write \['a'\]"
    with refusal(one):
        model.predict("a")
    with refusal(r"unknown key 'decoding\.beams'"):
        model.predict(inputs_of(recipe), beams=3)
    assert model.predict([]) == []


def test_what_is_no_picture_is_named(finished, tmp_path):
    recipe, run = finished
    model, [picture, *_] = transduct.load(run), inputs_of(recipe)
    if model.reads != "picture":
        return
    (tmp_path / "text.png").write_text("not a picture")
    Image.fromarray(picture).save(tmp_path / "right.png")
    shown = model.predict([picture, str(tmp_path / "right.png"), tmp_path / "right.png"])
    assert shown[0] == shown[1] == shown[2]
    wrong = {
        "input 2: found an array of shape .*, float64; expected": picture / 255.0,
        "missing.png: no such file; give the path of a picture": str(tmp_path / "missing.png"),
        "text.png: not a whole picture": tmp_path / "text.png",
    }
    for message, given in wrong.items():
        with refusal(message):
            model.predict([picture, given])
    for verb in model.verbs & {"attention", "picture"}:
        with refusal("^the picture: found NoneType; expected a path"):
            getattr(model, verb)(*[None, None][: 1 + (verb == "picture")])


def test_another_run_may_start_from_it(finished, tmp_path):
    recipe, run = finished
    said, start = [], run / "model"
    task, model = prepared(recipe, tmp_path, said.append, model={"start_from": str(start)})
    held = storage.read_tensors(start / storage.WEIGHTS)
    assert all(torch.equal(weight, held[name]) for name, weight in model.named_parameters())
    assert any(re.search(r"started from .*: (\d+) of \1 weights taken$", line) for line in said)
    assert task.recipe.model["start_from"] == str(start)
    for path in task.files(None) if isinstance(task, TextTask) and recipe.task != DRAWS else ():
        assert path.read_bytes() == (start / path.name).read_bytes()


def test_what_another_run_knows_of_a_label_stays_with_it(finished, tmp_path):
    recipe, run = finished
    rows = task_class(recipe.task).label_rows
    held = shutil.copytree(run / "model", tmp_path / "held" / "model")
    shutil.copy(run / "recipe.yaml", held.parent)
    config = labels = json.loads((held / "config.json").read_text())
    for key in rows.keys if rows else ():
        labels = labels[key]
    if rows is None or not labels:
        return  # it has none
    labels.reverse()
    (held / "config.json").write_text(json.dumps(config))
    _, model = prepared(recipe, tmp_path, model={"start_from": str(held)})
    theirs, changed = storage.read_tensors(held / storage.WEIGHTS), 0
    for name, weight in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in rows.weights):
            known, rest = theirs[name][: len(labels)], theirs[name][len(labels) :]
            assert torch.equal(weight, torch.cat((known.flip(0), rest))), "no object stays the last"
            changed += 1
    assert changed


def test_without_anything_to_validate_on_there_are_no_scores(finished, tmp_path):
    recipe, _ = finished
    rest = ("valid", "held_out", "hold_out")
    data = {name: value for name, value in recipe.data.items() if name not in rest}
    task, model = prepared(replace(recipe, data=data), tmp_path)
    report = task.evaluate(model)
    assert report.scores == {}
    task.save(model, tmp_path / "model", {"step": 1, "seconds": 0.0}, report)
    card = (tmp_path / "model" / "card.md").read_text(encoding="utf-8")
    assert "It was not measured: its recipe has no validation set." in card
    assert not (tmp_path / "model" / "samples.png").exists()


def test_a_corpus_counts_as_often_as_it_weighs(finished, tmp_path):
    recipe, _ = finished
    if recipe.task not in WEIGHED or recipe.data.get("next_sentence"):
        return  # they have no weights, or a test of their own
    [source] = recipe.data["train"]
    task, _ = prepared(recipe, tmp_path, data={"train": [source, {**source, "weight": 3.0}]})
    order, _ = task.order(0)
    times = Counter(Counter(chain.from_iterable(each.tolist() for each in order)).values())
    assert times.keys() == {1, 3}
    assert times[1] == times[3]


def test_a_batch_moves_as_a_whole(finished):
    recipe, run = finished
    task, _ = prepared(recipe, run)
    batch = next(task.batches("train", 0, 0, 0, 1))
    assert batch.to(torch.device("cpu")) is batch
    moved = batch.to(torch.device("meta"))
    tensors = [part for part in vars(moved).values() if isinstance(part, torch.Tensor)]
    sides = [part for part in vars(moved).values() if isinstance(part, Segments)]
    tensors += [part for side in sides for part in (side.lengths, side.offsets)]
    assert {part.device.type for part in tensors} == {"meta"}
    assert (moved.counts, moved.tokens) == (batch.counts, batch.tokens)


def test_sections_that_no_task_of_its_kind_can_have_are_refused_before_anything_is_written(
    finished, tmp_path
):
    recipe, _ = finished
    kind = task_class(recipe.task)
    wrong = [
        ("model", "size", "huge", "unknown model.size 'huge'; known are: "),
        ("model", "start_from", 3, "model.start_from is 3, expected text"),
        ("data", "train", [], "data.train is empty; name at least one corpus"),
        *(
            ("model", key, 9, f"model.{key} cannot be set; set {by}")
            for key, by in derived_of(kind)
        ),
    ]
    for section in ("tokenizer", "decoding"):
        said = f"unknown key '{section}.odd'"
        without = getattr(kind.sections, section) is NoOptions
        wrong.append((section, "odd", 1, said + "; there are none" * without))
    for section, key, value, said in wrong:
        changed = {section: {**getattr(recipe, section), key: value}}
        with pytest.raises(TransductError) as caught:
            kind(replace(recipe, **changed), tmp_path / "run", str)
        assert f"recipe: {said}" in str(caught.value)
    assert not (tmp_path / "run").exists()


def derived_of(kind):
    """The fields of a model that other sections decide; a start is its own key."""
    return [pair for pair in kind.derived.items() if pair[1] != "model.start_from"]
