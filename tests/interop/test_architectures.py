"""The tables of names, and what is recognised without a name."""

import pytest

from transduct.errors import TransductError
from transduct.interop.architectures import ARCHITECTURES, Names, Search, kind_of


def test_a_table_names_each_part_of_a_weight():
    names = Names({"a.{n}.in_{kind}": ["{side}.x.{kind}".replace("{side}", "encoder"), "b.{n}"]})
    assert names.ours("a.3.in_weight") == ["encoder.x.weight", "b.3"]
    assert names.ours("a.x.in_weight") == []


def test_the_sides_of_embeddings_are_named_as_ours():
    names = Names(ARCHITECTURES["bart"].names)
    found = names.ours("model.decoder.layernorm_embedding.bias")
    assert found == ["target_embedding.norm.bias"]


@pytest.mark.parametrize(
    "config, kind",
    [
        ({"architectures": ["MT5ForConditionalGeneration"]}, "mt5"),
        ({"d_kv": 8, "num_layers": 2, "relative_attention_num_buckets": 32}, "t5"),
        ({"encoder_ffn_dim": 8, "decoder_ffn_dim": 8}, "bart"),
        ({"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "normalize_before": True}, "mbart"),
    ],
)
def test_a_kind_is_recognised_by_its_keys(config, kind):
    assert kind_of(config, "config.json") == kind


def test_an_unknown_kind_is_compared_with_the_nearest():
    config = {"model_type": "t5gemma2", "d_kv": 8}
    with pytest.raises(TransductError, match="the nearest is 't5', from which it differs by its c"):
        kind_of(config, "config.json")
    with pytest.raises(TransductError, match="names no model_type, and its keys are of no known"):
        kind_of({"vocab_size": 5}, "config.json")


def test_search_settings_are_taken_or_named():
    found = Search.of({"early_stopping": "never", "forced_eos_token_id": 2, "max_length": 9}, 1)
    assert found.decoding == {
        "length_rule": "power", "beam": 1, "length_penalty": 1.0, "stopping": "never",
        "max_length": 7, "at_limit": "free",
    }  # fmt: skip
    assert Search.of({"min_length": 5}, 0).left_out == ["min_length 5"]
