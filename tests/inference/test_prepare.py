"""A model that is prepared for inference gives the same answers."""

import pytest
import torch

from tests.changes import CHANGES
from tests.helpers import PLACES, tiny, tokens_of
from transduct.blocks.embeddings import PositionVectors
from transduct.functional.positions import LENGTH_DEPENDENT
from transduct.inference.packed import PackedLinear
from transduct.inference.prepare import prepare, settle
from transduct.inference.quantised import QuantisedLinear, quantise


def answers(model):
    """The logits of a few tokens over themselves."""
    tokens, segments = tokens_of([3, 5])
    return model.logits(model.decode(tokens, segments, model.encode(tokens, segments), segments))


@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_a_changed_model_that_has_settled_has_the_same_answers(name):
    model = tiny()
    CHANGES[name](model)
    before = answers(model)
    settle(model)
    torch.testing.assert_close(answers(model), before)


@pytest.mark.parametrize("scheme, mode", PLACES)
@torch.no_grad()
def test_a_model_that_has_settled_has_the_same_answers(scheme, mode):
    model = tiny(positions=scheme, position_mode=mode)
    before = answers(model)
    settle(model)
    torch.testing.assert_close(answers(model), before)
    assert model.decoder[0].self_attention.query is None
    settle(model)  # again
    torch.testing.assert_close(answers(model), before)


@pytest.mark.parametrize("scheme, mode", PLACES)
def test_a_model_that_has_settled_holds_all_its_position_vectors_in_tables(scheme, mode):
    """In the embeddings and inside attention: two in each of two layers on both sides."""
    model = tiny(positions=scheme, position_mode=mode, encoder_layers=2, decoder_layers=2)
    settle(model)
    vectors = [part for part in model.modules() if isinstance(part, PositionVectors)]
    inside = scheme not in ("none", "rotary", "alibi", "relative")
    assert len(vectors) == {"attention": 8}.get(mode, 2) * inside
    assert {part.table is None for part in vectors} <= {scheme in LENGTH_DEPENDENT}


@pytest.mark.parametrize("integers", [False, True], ids=["float32", "8-bit"])
@torch.inference_mode()
def test_a_prepared_model_has_the_same_answers(integers):
    model = tiny()
    if integers:
        quantise(model)
    before = answers(model)
    prepare(model.train(), torch.device("cpu"), torch.float32)
    assert not model.training
    assert type(model.encoder[0].feed_forward.inner) in (PackedLinear, QuantisedLinear)
    torch.testing.assert_close(answers(model), before, atol=1e-4, rtol=1e-4)
