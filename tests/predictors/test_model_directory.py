"""Model directories read for use."""

import json
import shutil
from dataclasses import asdict, fields, is_dataclass

import pytest
import torch

from tests.families import tiny_gpt, tiny_rnn
from tests.helpers import tiny, tokens_of
from tests.refusals import refusal
from tests.tasks.test_model import written
from transduct import storage
from transduct.data.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from transduct.inference.packed import PackedLinear, PackedTable
from transduct.inference.quantised import QuantisedLinear, quantise
from transduct.kernels import cpu
from transduct.models import bert, transformer, vit
from transduct.predictors import model_directory
from transduct.predictors.base import TASKS, imported
from transduct.predictors.model_directory import OneModel, TextModel, shown_labels, three_of
from transduct.tasks import model as shared
from transduct.training.config import TrainingConfig

SHAPE = {"d_model": 16, "num_heads": 4, "d_ff": 32, "layers": 2}
GRID = {"positions": "sinusoidal_2d"}
MODELS = {
    "transformer": tiny,
    "transformer, nothing tied": lambda: tiny(tie="none", norm="post", positions="learned"),
    "transformer, relative": lambda: tiny(positions="relative"),
    "transformer, one-hot": lambda: tiny(positions="one_hot", position_mode="attention"),
    "rnn": tiny_rnn,
    "gpt": tiny_gpt,
    "gpt, rotary": lambda: tiny_gpt(positions="rotary", tie=False),
    "bert": lambda: bert.Bert(bert.Config(11, **SHAPE, head="masked")).eval(),
    "vit": lambda: vit.ViT(vit.Config(3, 12, 4, **SHAPE)).eval(),
    "vit, hybrid": lambda: vit.ViT(vit.Config(3, 12, 4, [4, 8], **SHAPE, **GRID)).eval(),
}


def test_a_model_directory_comes_back(tmp_path):
    model = tiny(seed=1)
    tokenizer, log = Tokenizer.train(["a b c", "b c d"], "character", 20), {"step": 7, "seconds": 2}
    tokenizer.save(tmp_path / "tokenizer.json")
    about = shared.card("A model", "3 texts", TrainingConfig(), {"loss": 1.5}, log)
    files = [tmp_path / "tokenizer.json"]
    shared.write_model(tmp_path / "model", "copying", model, {"more": 1}, files, about)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["task"], config["more"]) == ("copying", 1)
    assert config["model"]["d_model"] == model.config.d_model
    other = tiny(seed=2)
    model_directory.read_weights(other, tmp_path / "model", torch.device("cpu"), "bfloat16")
    assert torch.equal(other.encoder_norm.weight, model.encoder_norm.weight.bfloat16())
    assert not other.training
    assert Tokenizer.load(tmp_path / "model" / "tokenizer.json").digest == tokenizer.digest
    assert "on 3 texts,\n7 steps of at most 4,096 tokens, 2 s" in about
    assert "| loss | 1.5 |" in about
    unmeasured = shared.card("A model", "3 texts", TrainingConfig(), {}, log)
    assert "It was not measured: its recipe has no validation set." in unmeasured
    assert "score" not in unmeasured


def answers(model):
    """What a model says to a batch."""
    (tokens, segments), (target, target_segments) = tokens_of([5, 2, 9]), tokens_of([4, 6, 1], 2)
    if isinstance(model, vit.ViT):
        return model.classify(*model.encode(torch.ones(2, 3, 12, 12)))
    if isinstance(model, bert.Bert):
        return model.masked_logits(model.encode(tokens, torch.zeros_like(tokens), segments))
    if not hasattr(model, "decode"):
        return model.logits(model.hidden(tokens, segments))
    memory = model.encode(tokens, segments)
    return model.logits(model.decode(target, target_segments, memory, segments))


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_a_blank_model_holds_nothing_until_it_is_filled(tmp_path, name):
    torch.manual_seed(1)
    model = MODELS[name]()
    directory, generators = written(tmp_path / "held", model), torch.get_rng_state()
    empty = model_directory.blank(type(model), model.config, "recipe")
    assert torch.equal(torch.get_rng_state(), generators), "nothing was drawn"
    held = [*empty.parameters(), *empty.buffers()]
    assert held
    assert all(each.is_meta for each in held)
    model_directory.read_weights(empty, directory, torch.device("cpu"), "float32")
    held = [*empty.parameters(), *empty.buffers()]
    assert not any(each.is_meta or each.requires_grad for each in held)
    assert not empty.training
    torch.testing.assert_close(answers(empty), answers(model), atol=1e-5, rtol=1e-5)


def test_widths_that_do_not_fit_together_are_refused_with_the_file_that_says_them(tmp_path):
    odd = {"model": asdict(tiny(positions="rotary").config) | {"d_k": 7}}
    none = {"model": {"vocabulary_size": 9, "layers": 0}}
    family = transformer.Transformer, transformer.Config
    with refusal(r"m/config.json: model: rotary positions turn pairs of numbers"):
        model_directory.blank_of(odd, *family, tmp_path / "m")
    with refusal(r"m/config.json: model.layers is 0, must be from 1 to 1,000"):
        model_directory.blank_of(none, bert.Bert, bert.Config, tmp_path / "m")


@torch.inference_mode()
def test_a_model_in_use_on_a_cpu_is_packed(tmp_path):
    model = tiny()
    empty = model_directory.blank(transformer.Transformer, model.config, "recipe")
    directory = written(tmp_path / "held", model)
    model_directory.read_weights(empty, directory, torch.device("cpu"), "float32")
    assert not [part for part in empty.modules() if isinstance(part, torch.nn.Linear)]
    assert isinstance(empty.encoder[0].feed_forward.inner, PackedLinear)
    assert isinstance(empty.output_table, PackedTable)
    assert empty.output_table is empty.source_embedding.table is empty.target_embedding.table


@torch.inference_mode()
def test_a_quantised_model_in_use_on_a_cpu_is_packed(tmp_path):
    model = tiny()
    quantise(model)
    directory, expected = written(tmp_path / "held", model), answers(model)
    empty = model_directory.blank(transformer.Transformer, model.config, "recipe")
    quantise(empty)
    assert all(each.is_meta for each in empty.parameters())
    model_directory.read_weights(empty, directory, torch.device("cpu"), "float32")
    layers = [part for part in empty.modules() if isinstance(part, QuantisedLinear)]
    assert layers
    assert all((part.packed is None) == (cpu.library() is None) for part in layers)
    torch.testing.assert_close(answers(empty), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("int8", [False, True])
@torch.inference_mode()
def test_a_model_in_use_does_not_change_with_its_file(tmp_path, int8):
    """As when another is copied over it."""
    model, empty = tiny(), model_directory.blank(transformer.Transformer, tiny().config, "recipe")
    if int8:
        quantise(model)
        quantise(empty)
    directory = written(tmp_path / "held", model)
    model_directory.read_weights(empty, directory, torch.device("cpu"), "float32")
    expected = answers(empty)
    size = (directory / storage.WEIGHTS).stat().st_size
    (directory / storage.WEIGHTS).write_bytes(b"?" * size)
    assert torch.equal(answers(empty), expected)


def test_the_memory_of_a_gpu_is_not_laid_out_for_a_processor(tmp_path):
    model = tiny()
    empty = model_directory.blank(transformer.Transformer, model.config, "recipe")
    directory = written(tmp_path / "held", model)
    model_directory.read_weights(empty, directory, torch.device("meta"), "bfloat16")
    assert isinstance(empty.encoder[0].feed_forward.inner, torch.nn.Linear)
    assert {p.dtype for p in empty.parameters()} == {torch.bfloat16}


LABELLED = {  # where `config.json` lists the labels of a task
    "sequence": ("answers", "labels"),
    "pictures": ("pictures", "labels"),
}


@pytest.mark.parametrize("task", [task for task in TASKS if task != "translation"])
def test_a_predictor_names_its_family_and_what_it_is_made_of(task):
    predictor = imported(TASKS[task][0])
    assert issubclass(predictor, OneModel)
    assert all(is_dataclass(kind) for kind in predictor.sections.values())
    for size in predictor.family.sizes.values():
        assert size.keys() <= {each.name for each in fields(predictor.family.config)}


def test_tokens_are_counted_with_the_end_and_what_the_vocabulary_lacks_is_listed():
    tokenizer = train_tokenizer(["a b"], TokenizerConfig("character", 20))

    class Own(TextModel):
        predict = measured = test_set = None

    model = Own(torch.nn.Linear(1, 1), tokenizer, None)
    assert not model.model.training
    assert model.token_counts(["", "a"]) == [1, 3], "with a mark before the word"
    assert model.unknown("a") == []
    assert model.unknown("☃") == ["☃"]


@pytest.mark.parametrize("name", LABELLED)
def test_labels_of_another_model_are_refused(name, family_of, tmp_path):
    shutil.copytree(family_of(name)[1], tmp_path / "run")
    file = tmp_path / "run" / "model" / "config.json"
    config, (section, key) = json.loads(file.read_text()), LABELLED[name]
    config[section][key].append("another")
    file.write_text(json.dumps(config))
    count = len(config[section][key])
    with refusal("together") as caught:
        imported(TASKS[config["task"]][0]).load(file.parent, config, torch.device("cpu"), "float32")
    found = f"{file}: names {count} labels, its model tells {count - 1} apart"
    advice = "they do not belong together: copy the model again"
    assert str(caught.value) == f"{found}; {advice}"


@pytest.mark.parametrize(
    ("count", "numbers"), [(0, []), (1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (10, [0, 3, 6])]
)
def test_three_examples_are_shown_if_there_are_as_many(count, numbers):
    assert list(three_of(count)) == numbers


def test_few_labels_are_shown_of_many_and_the_beginning_of_long_ones():
    assert shown_labels(["x", "y"]) == "x, y"
    assert shown_labels(["a" * 41, "b" * 40]) == f"{'a' * 40}..., {'b' * 40}"
    assert shown_labels(list("abcdefghijkl")) == "a, b, c, d, e, f, g, h, i, j, k, l"
    assert shown_labels(list("abcdefghijklm")) == "a, b, c, d, e, f, g, h, i, j, k, l, ..."
