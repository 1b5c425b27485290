"""What tasks share: weights taken over by name, model directories and their cards."""

import json
import re
from pathlib import Path

import pytest
import torch

from tests.helpers import tiny
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError
from transduct.models import rnn, transformer
from transduct.tasks import model as shared
from transduct.training import checkpoint as files
from transduct.training.trainer import TrainingConfig


def written(directory, model):
    files.write_directory(directory, {files.WEIGHTS: files.pack(files.weights_of(model))})
    return directory


def test_weights_are_taken_wherever_names_agree(tmp_path):
    held, model = tiny(seed=1, encoder_layers=3), tiny(seed=2)
    before = {name: weight.clone() for name, weight in files.weights_of(model).items()}
    said = []
    shared.start_from(model, written(tmp_path / "held", held), said.append)
    for name, weight in files.weights_of(model).items():
        assert torch.equal(weight, files.weights_of(held)[name])
    assert said == [f"started from {tmp_path / 'held'}: {len(before)} of {len(before)} weights taken, the rest is new"]


def test_weights_that_the_other_lacks_stay(tmp_path):
    held, model = tiny(seed=1, decoder_layers=1), tiny(seed=2)
    before = files.weights_of(model)["decoder.1.feed_forward.inner.weight"].clone()
    shared.start_from(model, written(tmp_path / "held", held), str)
    assert torch.equal(files.weights_of(model)["decoder.1.feed_forward.inner.weight"], before)


def test_weights_are_renamed_first(tmp_path):
    held, model = tiny(seed=1), tiny(seed=2)

    def rename(weights):
        weights["encoder_norm.weight"] = weights.pop("decoder_norm.weight")

    shared.start_from(model, written(tmp_path / "held", held), str, rename)
    assert torch.equal(model.encoder_norm.weight, held.decoder_norm.weight)


def test_weights_of_another_shape_are_refused(tmp_path):
    with pytest.raises(
        TransductError, match=r"held: weight '.*' is \(.*\), this model's is \(.*\); give this model the"
    ):
        shared.start_from(tiny(), written(tmp_path / "held", tiny(d_ff=16)), str)


def test_a_model_that_shares_nothing_is_refused(tmp_path):
    held = written(tmp_path / "held", torch.nn.Linear(2, 2))
    with pytest.raises(TransductError, match="held: shares no weight with this model; start from a model of the same"):
        shared.start_from(tiny(), held, str)


FAMILIES = {
    "transformer": shared.Family(transformer.Config, transformer.SIZES, transformer.Transformer),
    "rnn": shared.Family(rnn.Config, rnn.SIZES, rnn.RNN),
}
SIZES = {"source_size": 9, "target_size": 9}


def section(**values):
    return shared.ModelSection(values, FAMILIES, {"source_size": "tokenizer.size", "target_size": "tokenizer.size"})


def test_a_section_is_a_size_and_what_differs_from_it():
    config = section(size="tiny", d_ff=7).config(**SIZES)
    assert (config.d_model, config.d_ff, config.source_size) == (128, 7, 9)
    assert isinstance(section(family="rnn").config(**SIZES), rnn.Config)


def test_a_resolved_section_is_read_as_the_same():
    one = section(family="rnn", size="tiny", start_from="other")
    two = section(**one.resolved(one.config(**SIZES)))
    assert two.config(**SIZES) == one.config(**SIZES)
    assert (two.name, two.start) == ("rnn", Path("other"))
    assert not SIZES.keys() & one.resolved(one.config(**SIZES)).keys()


def test_a_model_is_built_from_the_weights_of_another(tmp_path):
    held = tiny(seed=3)
    shape = {name: getattr(held.config, name) for name in ("d_model", "num_heads", "d_ff", "d_k", "max_length")}
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    chosen = section(start_from=str(written(tmp_path / "held", held)), **shape, **layers)
    sizes = {"source_size": held.config.source_size, "target_size": held.config.target_size}
    model = chosen.build(chosen.config(**sizes), str)
    assert torch.equal(model.encoder_norm.weight, held.encoder_norm.weight)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"family": "cnn"}, "recipe: unknown model.family 'cnn'; known are: transformer, rnn"),
        ({"size": "huge"}, "recipe: unknown model.size 'huge'; known are: tiny, small, base, big"),
        ({"source_size": 3}, "recipe: model.source_size cannot be set; set tokenizer.size"),
        ({"start_from": 3}, "recipe: model.start_from is 3, expected a valid string"),
        ({"d_model": 10, "num_heads": 3}, "recipe: model: d_model 10 is not a multiple of num_heads 3; set d_k"),
        ({"num_heads": 2, "d_k": 3, "positions": "rotary"}, "recipe: model: rotary positions turn pairs of numbers"),
        ({"with": 3}, "recipe: unknown key 'model.with'"),
    ],
)
def test_impossible_sections_are_refused(values, message):
    with pytest.raises(TransductError, match=re.escape(message)):
        section(**values).config(**SIZES)


def test_a_model_directory_comes_back(tmp_path):
    model = tiny(seed=1)
    tokenizer = Tokenizer.train(["a b c", "b c d"], "character", 20)
    tokenizer.save(tmp_path / "tokenizer.json")
    about = shared.card("A model", "3 texts", TrainingConfig(), {"loss": 1.5}, {"step": 7, "seconds": 2.0})
    shared.write_model(tmp_path / "model", "copying", model, {"more": 1}, [tmp_path / "tokenizer.json"], about)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["task"], config["more"], config["model"]["d_model"]) == ("copying", 1, model.config.d_model)
    other = tiny(seed=2)
    shared.read_weights(other, tmp_path / "model", torch.device("cpu"), "bfloat16")
    assert torch.equal(other.encoder_norm.weight, model.encoder_norm.weight.bfloat16())
    assert not other.training
    assert Tokenizer.load(tmp_path / "model" / "tokenizer.json").digest == tokenizer.digest
    assert "on 3 texts,\n7 steps of at most 4,096 tokens, 2 s" in about
    assert "| loss | 1.5 |" in about


def test_files_and_what_was_left_out_are_said():
    assert shared.files_said(["a", "b"], {"too_long": 1200, "empty": 0}) == "from a, b (left out: 1,200 too long)"
    assert shared.files_said([], {}) == "from a generated corpus (left out: none)"
