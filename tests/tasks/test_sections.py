"""The sections of a recipe: what a size stands for, what is refused, what is filled in."""

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.helpers import tiny
from tests.refusals import refusal
from transduct import storage
from transduct.config import Recipe, dump
from transduct.data.tokenizer import Tokenizer, TokenizerConfig
from transduct.models import rnn, transformer
from transduct.models.base import Model
from transduct.predictors.model_directory import Family
from transduct.predictors.options import NoOptions, data_with_test
from transduct.records import record
from transduct.tasks import sections
from transduct.tasks.sections import ModelSection
from transduct.training.config import TrainingConfig

FAMILIES = {
    "transformer": Family(transformer.Config, transformer.SIZES, transformer.Transformer),
    "rnn": Family(rnn.Config, rnn.SIZES, rnn.RNN),
}
SIZES = {"source_size": 9, "target_size": 9}


def section(**values):
    return ModelSection(
        values, FAMILIES, {"source_size": "tokenizer.size", "target_size": "tokenizer.size"}
    )


def test_sizes_that_no_machine_holds_are_refused():
    with refusal(r"recipe: model: its weights would take [\d,]+ GB; make it smaller"):
        section(size="tiny", d_model=10**7, num_heads=1).config(**SIZES)


def test_a_section_is_a_size_and_what_differs_from_it():
    config = section(size="tiny", d_ff=7).config(**SIZES)
    assert (config.d_model, config.d_ff, config.source_size) == (128, 7, 9)
    assert isinstance(section(family="rnn").config(**SIZES), rnn.Config)


def test_a_resolved_section_is_read_as_the_same():
    one = section(family="rnn", size="tiny", start_from="other")
    two = section(**one.resolved(one.config(**SIZES)))
    assert two.config(**SIZES) == one.config(**SIZES)
    assert (two.name, two.start) == ("rnn", Path("other").resolve())
    assert not SIZES.keys() & one.resolved(one.config(**SIZES)).keys()


def test_a_model_is_built_from_the_weights_of_another(tmp_path):
    held = tiny(seed=3)
    shape = {
        name: getattr(held.config, name)
        for name in ("d_model", "num_heads", "d_ff", "d_k", "max_length")
    }
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    storage.write_directory(
        tmp_path / "held", {storage.WEIGHTS: storage.pack(storage.weights_of(held))}
    )
    chosen = section(start_from=str(tmp_path / "held"), **shape, **layers)
    sizes = {"source_size": held.config.source_size, "target_size": held.config.target_size}
    model = chosen.build(chosen.config(**sizes), str)
    assert torch.equal(model.encoder_norm.weight, held.encoder_norm.weight)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"family": "cnn"}, "recipe: unknown model.family 'cnn'; known are: transformer, rnn"),
        ({"size": "huge"}, "recipe: unknown model.size 'huge'; known are: tiny, small, base, big"),
        ({"source_size": 3}, "recipe: model.source_size cannot be set; set tokenizer.size"),
        ({"start_from": 3}, "recipe: model.start_from is 3, expected text"),
        (
            {"d_model": 10, "num_heads": 3},
            "recipe: model: d_model 10 is not a multiple of num_heads 3; set d_k",
        ),
        (
            {"num_heads": 2, "d_k": 3, "positions": "rotary"},
            "recipe: model: rotary positions turn pairs of numbers",
        ),
        ({"with": 3}, "recipe: unknown key 'model.with'"),
        ({"qqq": 3}, "recipe: unknown key 'model.qqq'; known are: d_model, "),
    ],
)
def test_impossible_sections_are_refused(values, message):
    with refusal(re.escape(message)):
        section(**values).config(**SIZES)


@dataclass(frozen=True)
class Section:
    train: list[str]
    test: str | None = None
    root: str = "."
    valid: str | None = None
    held_out: str | None = None
    hold_out: int = 0


def test_a_recipe_without_a_test_set_is_refused():
    assert data_with_test(Section, Recipe("any", data={"train": [], "test": "a"})) == Section(
        [], "a"
    )
    for recipe in (None, Recipe("any", data={"train": []})):
        with refusal(r"^the model's recipe names no test set; give --source and --reference$"):
            data_with_test(Section, recipe)
    with refusal(r"names no test set; give --source$"):
        data_with_test(Section, None, "--source")


def filled(training, scores=("a", "b"), model=Model, **data):
    task = SimpleNamespace(
        data=Section([], **data),
        tokenizer_config=NoOptions(),
        decoding=NoOptions(),
        training=training,
        scores=scores,
        model=SimpleNamespace(resolved=dict, weights=7, model=model, name="own"),
    )
    return sections.filled(Recipe("any"), task, {})


@pytest.mark.parametrize("fast", ["float32", "bfloat16"])
def test_the_device_says_what_precision_is_fast_on_it(monkeypatch, fast):
    asked = []
    monkeypatch.setattr(sections, "fast_precision", lambda device: asked.append(device) or fast)
    auto = TrainingConfig(precision="auto", device="cpu")
    assert filled(auto).training["precision"] == fast
    assert asked == [torch.device("cpu")]
    assert filled(replace(auto, precision="bfloat16")).training["precision"] == "bfloat16"
    assert len(asked) == 1


def test_the_best_is_chosen_by_a_score_of_validations_and_where_there_are_some():
    training = TrainingConfig(best="b", device="cpu")
    with refusal(r"^recipe: training.best is 'b', expected a score of validations: a, c$"):
        filled(training, ("a", "c"), valid="file")
    with refusal(r"^recipe: training.best is 'b', but nothing is validated on; give data"):
        filled(training)
    for validated in ({"valid": "file"}, {"held_out": "file"}, {"hold_out": 2}):
        assert filled(training, **validated).training["best"] == "b"
    training = filled(TrainingConfig(device="cpu")).training
    assert training["best"] is None
    assert (training["compile"], training["capture"]) == (False, False)


def model_with(folder, recipe=None, sides=("tokenizer.json",)):
    """A run whose model has tokenizers of characters, and perhaps a recipe."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    for name in sides:
        Tokenizer.train(["a b c", "b c d"], "character", 20).save(folder / "model" / name)
    if recipe is not None:
        (folder / "recipe.yaml").write_text(dump({"task": "translation", "tokenizer": recipe}))
    return folder / "model"


SIDES = ("tokenizer.source.json", "tokenizer.target.json")
ASKED = {"kind": "character", "size": 4000}  # by the model's own recipe


@pytest.mark.parametrize(
    "given, recipe, sides",
    [
        ({"size": 20}, None, ["tokenizer.json"]),
        ({"size": 20}, ASKED, ["tokenizer.json"]),
        ({"kind": "bpe"}, ASKED, ["tokenizer.json"]),
        ({"sample": 7}, ASKED, ["tokenizer.json"]),
        ({"shared": False, "kind": "unigram"}, None, SIDES),
        ({"shared": False, "target": {"size": 9000}}, {"shared": False, **ASKED}, SIDES),
        ({"shared": False, "source": {"kind": "word"}}, None, ["tokenizer.json"]),
    ],
)
def test_keys_that_the_tokenizer_of_a_model_to_start_from_makes_void_are_refused(
    tmp_path, given, recipe, sides
):
    start = model_with(tmp_path, recipe, sides)
    config = record(TokenizerConfig, given, "tokenizer")
    *_, (key, value) = given.items()
    if isinstance(value, dict):
        [(inner, value)] = value.items()
        key = f"{key}.{inner}"
    with refusal(
        rf"tokenizer\.{key} is {value}, but the tokenizer of model\.start_from \(.*\) has .*, "
        "which stays; leave the key out, or train a new model"
    ):
        sections.with_brought(config, given, start)
    assert sections.with_brought(config, given, start, begun=True).shared == config.shared
    assert sections.with_brought(config, given, None) is config


@pytest.mark.parametrize(
    "given, recipe, sides, found",
    [
        ({}, None, ["tokenizer.json"], {"kind": "character"}),
        ({}, ASKED, ["tokenizer.json"], ASKED),
        ({**ASKED, "sample": 200_000}, ASKED, ["tokenizer.json"], ASKED),
        ({"kind": "character"}, None, ["tokenizer.json"], {"kind": "character"}),
        ({"shared": False}, None, SIDES, {"kind": "bpe"}),
        ({"shared": False, **ASKED}, {"shared": False, **ASKED}, SIDES, ASKED),
        ({"shared": False, "size": 500}, None, ["tokenizer.json"], {"size": 500}),
        ({"size": 500}, None, [], {"size": 500}),
        ({"size": 500}, None, SIDES, {"size": 500}),  # refused where they are taken
    ],
)
def test_a_tokenizer_section_says_what_the_model_to_start_from_brings(
    tmp_path, given, recipe, sides, found
):
    start = model_with(tmp_path, recipe, sides)
    made = sections.with_brought(record(TokenizerConfig, given, "tokenizer"), given, start)
    assert {name: getattr(made, name) for name in found} == found
    again = sections.with_brought(made, asdict(made), start)
    assert again == made, "a run's own recipe is taken"
    if sides and not made.shared:
        assert made.source.kind == "character"
        assert (made.target is None) == (len(sides) == 1)
