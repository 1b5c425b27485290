"""A quantised copy of a model directory is used like the original."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import transduct
from tests.refusals import refusal
from transduct.interop import int8
from transduct.interop.int8 import NOTE, convert
from transduct.kernels import cpu


def test_a_copy_is_smaller_and_translates(trained_run, tmp_path):
    convert(trained_run / "model", tmp_path / "int8")
    sizes = [
        (path / "model.safetensors").stat().st_size
        for path in (trained_run / "model", tmp_path / "int8")
    ]
    assert sizes[1] < 0.6 * sizes[0]
    texts = ["a b c", "", "d e", "f"]
    model, copy = transduct.load(trained_run), transduct.load(tmp_path / "int8")
    assert len(copy.translate(texts)) == len(texts)
    pairs = [model.score(texts, texts), copy.score(texts, texts)]
    assert pairs[0] == pytest.approx(pairs[1], rel=0.05)
    assert pairs[0] != pairs[1]
    config = json.loads((tmp_path / "int8" / "config.json").read_text())
    assert config["quantised"] == "int8"
    cards = [(path / "card.md").read_text() for path in (trained_run / "model", tmp_path / "int8")]
    assert cards[1] == cards[0] + NOTE.decode(), "the scores on it are another's"
    assert sorted(path.name for path in (tmp_path / "int8").iterdir()) == sorted(
        path.name for path in (trained_run / "model").iterdir()
    )


def test_a_model_without_a_card_is_given_none(run, tmp_path):
    (run / "model" / "card.md").unlink()
    convert(run / "model", tmp_path / "int8")
    assert not (tmp_path / "int8" / "card.md").exists()


def test_a_quantised_model_has_its_own_precision(trained_run, tmp_path):
    convert(trained_run / "model", tmp_path / "int8")
    with refusal("quantised to 'int8' and asked for bfloat16; ask for float32"):
        transduct.load(tmp_path / "int8", precision="bfloat16")


def test_a_weight_that_kernels_cannot_multiply_is_refused(trained_run, tmp_path):
    convert(trained_run / "model", tmp_path / "int8")
    weights = load_file(tmp_path / "int8" / "model.safetensors")
    next(x for x in weights.values() if x.dtype is torch.int8)[0, 0] = -128
    save_file(weights, tmp_path / "int8" / "model.safetensors")
    with refusal(r"model\.safetensors: has an 8-bit weight of -128, expected -127 to 127; convert"):
        transduct.load(tmp_path / "int8")


def test_a_model_whose_numbers_are_not_finite_is_refused(trained_run, tmp_path):
    shutil.copytree(trained_run / "model", tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    next(iter(weights.values())).fill_(float("nan"))
    save_file(weights, tmp_path / "model" / "model.safetensors")
    with refusal(r"model\.safetensors: holds numbers that are not finite; train the model"):
        convert(tmp_path / "model", tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


def test_a_machine_on_which_8_bits_are_not_faster_is_reported(trained_run, tmp_path, monkeypatch):
    reason = "this processor has no avx2"
    monkeypatch.setattr(int8, "report", lambda: [cpu.Kernel("int8 products", None, [], reason)])
    with pytest.warns(UserWarning, match=f"but not faster on this machine: {reason}$"):
        int8.convert(trained_run / "model", tmp_path / "int8")
    assert (tmp_path / "int8" / "config.json").exists()
