"""The tables of names, and what is recognised without a name."""

import pytest

from tests.refusals import refusal
from transduct.interop.architectures import ARCHITECTURES, Names, kind_of, search_of


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
    with refusal("the nearest is 't5', from which it differs by its c"):
        kind_of(config, "config.json")
    with refusal("names no model_type, and its keys are of no known"):
        kind_of({"vocab_size": 5}, "config.json")


def test_search_settings_are_taken_or_named():
    said = {"early_stopping": "never", "forced_eos_token_id": 2, "max_length": 9}
    search, lacking = search_of(said | {"repetition_penalty": None}, "config.json")
    assert (search.decoding(1), lacking) == (
        {
            "length_rule": "power", "beam": 1, "length_penalty": 1.0, "stopping": "never",
            "max_length": 7, "at_limit": "free",
        },
        [],
    )  # fmt: skip
    assert search_of({"min_length": 5}, "config.json")[1] == ["min_length 5"]
    with refusal(r"config\.json: num_beams is the text 'three'"):
        search_of({"num_beams": "three"}, "config.json")


@pytest.mark.parametrize(("early", "stopping"), [(True, "early"), (False, "estimate")])
def test_early_stopping_is_a_rule_of_ours(early, stopping):
    said = {"early_stopping": early, "max_new_tokens": 30, "max_length": 20}
    decoding = search_of(said, "config.json")[0].decoding(0)
    assert (decoding["stopping"], decoding["max_length"]) == (stopping, 30)
    assert decoding["at_limit"] == "cut"


def test_weights_are_found_by_our_names_too():
    names = Names(ARCHITECTURES["bart"].names)
    theirs = "model.decoder.layers.1.fc2.bias"
    assert names.theirs(*names.ours(theirs)) == [theirs]
    embedding = "model.encoder.embed_positions.weight"
    assert names.theirs(*names.ours(embedding)) == [embedding]
    gated = Names(ARCHITECTURES["t5"].names).theirs("encoder.0.feed_forward.inner.weight")
    assert [name.split(".")[-2] for name in gated] == ["wi", "wi_0"]
