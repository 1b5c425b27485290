"""Marian's weights keep their numbers under our names."""

import dataclasses

import pytest
import torch

from tests.helpers import SIZE, tiny
from transduct.errors import TransductError
from transduct.functional.positions import sinusoidal_concatenated
from transduct.interop.marian import (
    ACTIVATIONS,
    Marian,
    our_weights,
    their_config,
    their_weights,
    unsupported,
)
from transduct.models.transformer import Config
from transduct.storage import weights_of

MODEL = {"norm": "post", "positions": "sinusoidal_concatenated", "d_k": None, "output_bias": True}
ORDER = [*range(4, SIZE), *range(4)]  # of their ids
WHERE = "weights"


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_weights_come_back_by_the_numbers_of_tokens(tie):
    model = tiny(**MODEL, tie=tie)
    theirs = their_weights(model)
    assert theirs["final_logits_bias"].shape == (1, SIZE)
    back = our_weights(model, theirs, range(SIZE), ORDER, WHERE)
    for name, weight in weights_of(model).items():
        rows = ("output_bias", "output_table", "target_embedding.table")
        assert torch.equal(back[name], weight[ORDER] if name in rows else weight)


def test_tables_that_are_tied_may_have_any_of_their_names():
    model = tiny(**MODEL)
    held = their_weights(model)
    for name in ("lm_head.weight", "model.encoder.embed_tokens.weight"):
        held[name] = held.pop(
            "model.shared.weight" if name == "lm_head.weight" else "lm_head.weight"
        )
        assert torch.equal(
            our_weights(model, held, ORDER, ORDER, WHERE)["output_table"], model.output_table[ORDER]
        )
    held["lm_head.weight"] = held[name] + 1.0
    with pytest.raises(
        TransductError,
        match=r"model.shared.weight and .* lm_head.weight differ, config.json says that",
    ):
        our_weights(model, held, ORDER, ORDER, WHERE)


def test_sinusoids_are_left_out_and_other_positions_refused():
    model = tiny(**MODEL)
    name, table = (
        "model.encoder.embed_positions.weight",
        sinusoidal_concatenated(torch.arange(16), 16),
    )
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        held = {
            key: tensor.to(dtype) for key, tensor in (their_weights(model) | {name: table}).items()
        }
        found = our_weights(model, held, ORDER, ORDER, WHERE)
        assert found.keys() == weights_of(model).keys()
        assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    for wrong in (table + 0.001 * torch.eye(16), table[:8], table.int(), table * float("nan")):
        with pytest.raises(
            TransductError,
            match=rf"weights: '{name}' .* holds no sinusoids; our Transformer has no",
        ):
            our_weights(model, their_weights(model) | {name: wrong}, ORDER, ORDER, WHERE)


def test_a_bias_of_another_size_is_refused():
    held = their_weights(tiny(**MODEL))
    held["final_logits_bias"] = held["final_logits_bias"][:, 1:]
    with pytest.raises(
        TransductError, match=r"weight 'final_logits_bias' is \(1, 10\), config.json says \(1, 11\)"
    ):
        our_weights(tiny(**MODEL), held, ORDER, ORDER, WHERE)


@pytest.mark.parametrize("activation", ACTIVATIONS.values())
def test_what_is_written_of_a_model_is_read_as_the_same(activation):
    shape = {
        "norm": "post",
        "positions": "sinusoidal_concatenated",
        "dropout": 0.3,
        "attention_dropout": 0.2,
    }
    config = Config(SIZE, SIZE, **shape, activation=activation)
    assert unsupported(config) is None
    names = {field.name for field in dataclasses.fields(Marian)}
    marian = Marian(
        **{name: value for name, value in their_config(config).items() if name in names}
    )
    assert marian.unsupported() is None
    assert ACTIVATIONS[marian.activation] == activation
    assert (marian.dropout, marian.attention_dropout) == (0.3, 0.2)
