"""Model directories with a translation Transformer are loaded, all others are rejected."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

import transduct
from tests.refusals import refusal
from transduct.data.tokenizer import Tokenizer
from transduct.interop import ctranslate2, huggingface, int8, onnx
from transduct.interop.export import configured, for_tool, loaded


def test_the_model_is_loaded_as_it_is(trained_run, tmp_path):
    settings, config = configured(trained_run / "model", tmp_path / "out", "no others")
    assert settings["task"] == "translation"
    found = loaded(trained_run / "model", config)
    expected = transduct.load(trained_run, precision="bfloat16").model.state_dict()
    for name, weight in found.named_parameters():
        if name in expected:
            torch.testing.assert_close(weight.detach().bfloat16(), expected[name], rtol=0, atol=0)
    assert {name for name, _ in found.named_parameters()} & expected.keys()


# What each converter says of other models.
OTHERS = {
    ctranslate2: "CTranslate2 takes no other of our models",
    huggingface: "Marian takes no other of our models",
    onnx: "ONNX takes no other of our models",
    int8: "no other model is quantised yet",
}
each_converter = pytest.mark.parametrize("convert", OTHERS, ids=lambda module: module.__name__)


@each_converter
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": "language_modeling"}, "model: no Transformer for translation; {}"),
        ({"family": "rnn"}, "model: no Transformer for translation; {}"),
        ({"quantised": "int8"}, "model: quantised already; give the model it was made of"),
        ({"model": {}}, "config.json: missing key 'model.source_size'"),
    ],
)
def test_other_models_are_refused(trained_run, tmp_path, convert, change, said):
    shutil.copytree(trained_run / "model", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with refusal(said.format(OTHERS[convert])):
        convert.convert(tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@each_converter
def test_a_model_without_its_tokenizer_or_with_anothers_is_not_converted(
    trained_run, tmp_path, convert
):
    shutil.copytree(trained_run / "model", tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    path.unlink()
    with refusal(r"model/tokenizer\.json: .*"):
        convert.convert(tmp_path / "model", tmp_path / "out")
    Tokenizer.train(["a b"], "word", 9).save(path)
    with refusal(r"the tokenizers hold \d+ and \d+ tokens, the model .*copy the model again"):
        convert.convert(tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_allocated_that_the_weights_do_not_hold(trained_run, tmp_path):
    _, config = configured(trained_run / "model", tmp_path / "out", "no others")
    with refusal("the file does not belong to this configuration"):
        loaded(trained_run / "model", replace(config, d_ff=1 << 24, encoder_layers=1000))


def test_a_model_that_writes_backwards_is_for_us_alone(trained_run, tmp_path):
    shutil.copytree(trained_run / "model", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"backwards": True}))
    for name, convert in (("CTranslate2", ctranslate2), ("Marian", huggingface), ("ONNX", onnx)):
        with refusal(f"model: writes right to left, which {name} does not support; train a"):
            convert.convert(tmp_path / "model", tmp_path / "out")
    assert for_tool("a tool", trained_run / "model", tmp_path / "out")[0]["backwards"] is False
    int8.convert(tmp_path / "model", tmp_path / "out")
    assert transduct.load(tmp_path / "out").backwards


@each_converter
def test_nothing_that_exists_is_written_over(trained_run, tmp_path, convert):
    (tmp_path / "out").mkdir()
    with refusal("out: exists already; choose another name"):
        convert.convert(trained_run / "model", tmp_path / "out")


def test_weights_of_another_model_are_refused(trained_run, tmp_path):
    _, config = configured(trained_run / "model", tmp_path / "out", "no others")
    shutil.copytree(trained_run / "model", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    with refusal("not a whole safetensors file"):
        loaded(tmp_path / "model", config)
    with refusal(r"model/config.json: model: rotary positions turn pairs of numbers"):
        loaded(tmp_path / "model", replace(config, positions="rotary", d_k=7))
