"""What tasks over text share: tokenizers made once, weights taken over by name, model directories."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers import tiny
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError
from transduct.models import rnn, transformer
from transduct.tasks import text
from transduct.training import checkpoint as files
from transduct.training.trainer import TrainingConfig


def trained():
    return Tokenizer.train(["a b c", "b c d"], "character", 20)


def test_a_tokenizer_is_trained_once_and_then_loaded(tmp_path):
    said = []
    one = text.run_tokenizer(tmp_path / "tokenizer.json", None, trained, said.append)
    two = text.run_tokenizer(tmp_path / "tokenizer.json", None, pytest.fail, said.append)
    assert one.digest == two.digest == trained().digest
    assert said == [f"tokenizer.json: {one.size} tokens, trained and saved"]
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_tokenizer_is_taken_from_the_model_to_start_from(tmp_path):
    (tmp_path / "other").mkdir()
    trained().save(tmp_path / "other" / "tokenizer.json")
    said = []
    held = tmp_path / "other" / "tokenizer.json"
    found = text.run_tokenizer(tmp_path / "tokenizer.json", held, pytest.fail, said.append)
    assert found.digest == trained().digest
    assert f"taken from {tmp_path / 'other'}" in said[0]


def written(directory, model):
    files.write_directory(directory, {files.WEIGHTS: files.pack(files.weights_of(model))})
    return directory


def test_weights_are_taken_wherever_names_agree(tmp_path):
    held, model = tiny(seed=1, encoder_layers=3), tiny(seed=2)
    before = {name: weight.clone() for name, weight in files.weights_of(model).items()}
    said = []
    text.start_from(model, written(tmp_path / "held", held), said.append)
    for name, weight in files.weights_of(model).items():
        assert torch.equal(weight, files.weights_of(held)[name])
    assert said == [f"started from {tmp_path / 'held'}: {len(before)} of {len(before)} weights taken, the rest is new"]


def test_weights_that_the_other_lacks_stay(tmp_path):
    held, model = tiny(seed=1, decoder_layers=1), tiny(seed=2)
    before = files.weights_of(model)["decoder.1.feed_forward.inner.weight"].clone()
    text.start_from(model, written(tmp_path / "held", held), str)
    assert torch.equal(files.weights_of(model)["decoder.1.feed_forward.inner.weight"], before)


def test_weights_are_renamed_first(tmp_path):
    held, model = tiny(seed=1), tiny(seed=2)

    def rename(weights):
        weights["encoder_norm.weight"] = weights.pop("decoder_norm.weight")

    text.start_from(model, written(tmp_path / "held", held), str, rename)
    assert torch.equal(model.encoder_norm.weight, held.decoder_norm.weight)


def test_weights_of_another_shape_are_refused(tmp_path):
    with pytest.raises(
        TransductError, match=r"held: weight '.*' is \(.*\), this model's is \(.*\); give this model the"
    ):
        text.start_from(tiny(), written(tmp_path / "held", tiny(d_ff=16)), str)


def test_a_model_that_shares_nothing_is_refused(tmp_path):
    held = written(tmp_path / "held", torch.nn.Linear(2, 2))
    with pytest.raises(TransductError, match="held: shares no weight with this model; start from a model of the same"):
        text.start_from(tiny(), held, str)


FAMILIES = {
    "transformer": text.Family(transformer.Config, transformer.SIZES, transformer.Transformer),
    "rnn": text.Family(rnn.Config, rnn.SIZES, rnn.RNN),
}
SIZES = {"source_size": 9, "target_size": 9}


def section(**values):
    return text.ModelSection(values, FAMILIES, {"source_size": "tokenizer.size", "target_size": "tokenizer.size"})


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
    trained().save(tmp_path / "tokenizer.json")
    about = text.card("A model", "3 texts", TrainingConfig(), {"loss": 1.5}, {"step": 7, "seconds": 2.0})
    text.write_model(tmp_path / "model", "copying", model, {"more": 1}, [tmp_path / "tokenizer.json"], about)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["task"], config["more"], config["model"]["d_model"]) == ("copying", 1, model.config.d_model)
    other = tiny(seed=2)
    text.read_weights(other, tmp_path / "model", torch.device("cpu"), "bfloat16")
    assert torch.equal(other.encoder_norm.weight, model.encoder_norm.weight.bfloat16())
    assert not other.training
    assert Tokenizer.load(tmp_path / "model" / "tokenizer.json").digest == trained().digest
    assert "on 3 texts,\n7 steps of at most 4,096 tokens, 2 s" in about
    assert "| loss | 1.5 |" in about


def test_tokenizers_of_another_model_are_refused(tmp_path):
    text.check_sizes(tmp_path, (5, 6), (5, 6))
    with pytest.raises(TransductError, match="the tokenizers hold 5 tokens, the model 6; they do not belong together"):
        text.check_sizes(tmp_path, (5,), (6,))


def test_files_and_what_was_left_out_are_said():
    assert text.files_said(["a", "b"], {"too_long": 1200, "empty": 0}) == "from a, b (left out: 1,200 too long)"
    assert text.files_said([], {}) == "from a generated corpus (left out: none)"


def test_texts_are_read_between_begin_and_end():
    tokens, types, segments, cut = text.encoder_input([[5, 6], [], np.array([7])], None, 9)
    assert tokens.tolist() == [1, 5, 6, 2, 1, 2, 1, 7, 2]
    assert types.tolist() == [0] * 9
    assert (segments.lengths.tolist(), cut) == ([4, 2, 3], 0)


def test_pairs_are_read_one_after_the_other_with_an_end_each():
    tokens, types, segments, cut = text.encoder_input([[5, 6], []], [[7], np.array([8, 9])], 6)
    assert tokens.tolist() == [1, 5, 6, 2, 7, 2, 1, 2, 8, 9, 2]
    assert types.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1]
    assert (segments.lengths.tolist(), cut) == ([6, 5], 0)


def test_a_long_text_loses_its_end():
    tokens, _, segments, cut = text.encoder_input([[5, 6, 7], [5, 6, 7, 8]], None, 5)
    assert tokens.tolist() == [1, 5, 6, 7, 2] * 2
    assert (segments.longest, cut) == (5, 1)


@pytest.mark.parametrize("max_length", [3, 4, 7, 8, 11])
def test_of_a_long_pair_the_longer_text_loses_tokens_one_by_one(max_length):
    pairs = [(one, two) for one in range(7) for two in range(7)]
    first, second = ([list(range(10, 10 + n)) for n in lengths] for lengths in zip(*pairs))
    tokens, types, segments, cut = text.encoder_input(first, second, max_length)
    rows = zip(tokens.split(segments.lengths.tolist()), types.split(segments.lengths.tolist()))
    shortened = 0
    for (one, two), (row, kinds) in zip(pairs, rows, strict=True):
        left, right = one, two
        while left + right + 3 > max_length:  # as Devlin et al. do it
            left, right = (left - 1, right) if left > right else (left, right - 1)
        shortened += (left, right) != (one, two)
        assert row.tolist() == [1, *range(10, 10 + left), 2, *range(10, 10 + right), 2]
        assert int(kinds.sum()) == right + 1
    assert cut == shortened
