"""The families of translation models, and what is refused of a model's directory."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file

import transduct
from transduct.bench.ours import untrained
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError
from transduct.predictors.translation import SHORTLIST
from transduct.predictors.translation_families import DERIVED, FAMILIES


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_has_its_sizes_and_the_fields_that_other_sections_decide(name):
    family = FAMILIES[name]
    assert {"tiny", "small", "base"} <= family.sizes.keys()
    config = family.config(**dict.fromkeys(DERIVED, 9), **family.sizes["tiny"])
    model = family.build(config)
    assert model.config == config
    for method in ("encode", "start", "step", "decode", "logits"):
        assert callable(getattr(model, method))


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"family": "cnn"}, "unknown family 'cnn'; known are: transformer, rnn"),
        ({"family": ["rnn"]}, "unknown family '['rnn']'; known are: transformer, rnn"),
        ({"quantised": "int4"}, "quantised to 'int4' and asked for float32; ask for float32"),
    ],
)
def test_a_model_of_another_make_is_refused(trained_run, tmp_path, wrong, said):
    copy = shutil.copytree(trained_run / "model", tmp_path / "m")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | wrong))
    with pytest.raises(TransductError, match=re.escape(f"m/config.json: {said}")):
        transduct.load(copy)


def test_a_direction_that_is_none_is_named(trained_run, tmp_path):
    copy = shutil.copytree(trained_run / "model", tmp_path / "m")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"backwards": "yes"}))
    with pytest.raises(
        TransductError, match=r"m/config\.json: backwards is 'yes', expected true or false"
    ):
        transduct.load(copy)
    del config["backwards"]  # as of models that were made before there was a choice
    (copy / "config.json").write_text(json.dumps(config))
    assert transduct.load(copy).translate(["a b"]) == transduct.load(trained_run).translate(["a b"])


def test_a_shortlist_of_other_vocabularies_or_of_something_else_is_refused(tmp_path):
    untrained(tmp_path / "model", "tiny", 50)
    text, path = tmp_path / "text", tmp_path / "model" / SHORTLIST
    text.write_text("w1 w2 w3")
    held = load_tensors(transduct.load(tmp_path / "model").shortlist_of(text)[SHORTLIST])
    save_file(held, path)
    assert transduct.load(tmp_path / "model").translate(["w1 w2"], shortlist=True)[0].score < 0
    for odd in (
        held | {"more": held["common"].clone()},
        {"tokens": held["tokens"]},
        held | {"common": torch.tensor([50])},
        held | {"common": held["common"][held["common"] != Tokenizer.END].contiguous()},
    ):
        save_file(odd, path)
        with pytest.raises(
            TransductError, match=re.escape(f"{path}: is not a shortlist of this model; make one")
        ):
            transduct.load(tmp_path / "model")
