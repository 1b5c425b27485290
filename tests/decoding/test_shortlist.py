"""A shortlist has the expected tokens, and the restricted model scores them as the whole model
would."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.helpers import BEGIN, END, randomise, tiny
from transduct.blocks.embeddings import narrowed
from transduct.decoding.shortlist import Narrowed, Shortlist
from transduct.inference import engine
from transduct.inference.batches import encode
from transduct.inference.fused import fuse
from transduct.inference.packed import pack_layers
from transduct.inference.quantised import pack_quantised, quantise
from transduct.inference.settings import DecodingConfig

SOURCES = [[3, 4, 5, END], [7, END], [8, 3, 9, 9, 4, END]]


def shortlist():
    source = torch.tensor([3, 3, 3, 3, 5, 5, 5, 4])
    target = torch.tensor([8, 9, 9, 7, 6, 6, 7, 9])
    return Shortlist.of(source, target, 10, always=[0, BEGIN, END], most=2, common=1)


def test_it_holds_the_most_frequent_of_each_token_and_of_all():
    made = shortlist()
    assert made.offsets.tolist() == [0, 0, 0, 0, 2, 3, 5, 5, 5, 5, 5]
    assert made.tokens.tolist() == [9, 7, 9, 6, 7]
    assert made.common.tolist() == [0, 1, 2, 9]
    tokens, allowed = shortlist().candidates([[5], [3, 4]])
    assert tokens.tolist() == [0, 1, 2, 6, 7, 9]
    assert [tokens[row].tolist() for row in allowed] == [[0, 1, 2, 6, 7, 9], [0, 1, 2, 7, 9]]
    assert shortlist().candidates([[6], []])[0].tolist() == [0, 1, 2, 9]
    # nothing aligned leaves what is always there
    nothing = torch.zeros(0, dtype=torch.int64)
    made = Shortlist.of(nothing, nothing, 4, always=[2, 1], most=5, common=3)
    assert made.candidates([[3]])[0].tolist() == [0, 1, 2]


def test_it_fits_vocabularies_whose_tokens_it_names():
    made = shortlist()
    assert made.fits(10, 10, {0, 1, 2})
    assert not made.fits(10, 10, {0, 3}), "a search may end by taking another token for the end"
    assert not made.fits(9, 10, {0})
    assert not made.fits(10, 9, {0})
    for odd in (
        replace(made, offsets=made.offsets.flip(0)),
        replace(made, offsets=made.offsets + 1),
        replace(made, tokens=made.tokens.float()),
        replace(made, tokens=-made.tokens),
        replace(made, common=made.common[None]),
    ):
        assert not odd.fits(10, 10, {0})


def limited(model, tokens, sources):
    """A model that may write only these tokens."""
    every = torch.ones(len(sources), len(tokens), dtype=torch.bool)
    return Narrowed(narrowed(model, tokens), tokens, every)


@pytest.mark.parametrize("kept", ["numbers", "packed", "integers"])
@pytest.mark.parametrize("beam", [1, 3])
def test_all_tokens_on_the_list_change_nothing(kept, beam):
    model = tiny()
    if kept == "integers":
        quantise(model)
    if kept != "numbers":
        pack_layers(model)
        pack_quantised(model)
        fuse(model)
    everything = torch.arange(model.config.target_size)
    config, limits = DecodingConfig(beam=beam), [8] * 3
    expected = engine.generate(model, SOURCES, limits, config, BEGIN, END, [0])
    seen = []

    def narrow(sources):
        seen.append(list(sources))
        return limited(model, everything, sources)

    found = engine.generate(model, SOURCES, limits, config, BEGIN, END, [0], None, narrow)
    for one, two in zip(found, expected, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in two]
        assert [h.score for h in one] == pytest.approx([h.score for h in two], abs=1e-4)
    assert sorted(source for batch in seen for source in batch) == sorted(SOURCES)


@torch.inference_mode()
def test_only_the_tokens_of_the_list_are_scored_and_written():
    model, tokens = tiny(), torch.tensor([0, BEGIN, END, 5, 8])
    narrow, config = partial(limited, model, tokens), DecodingConfig(beam=2)
    search = SOURCES, [8] * 3, config, BEGIN, END, [0, BEGIN], None, narrow
    found = engine.generate(model, *search)
    assert {token for hypotheses in found for h in hypotheses for token in h.tokens} <= {5, 8}
    memory, few = encode(model, SOURCES[:1], torch.device("cpu")), narrow(SOURCES[:1])
    whole, _ = model.step(torch.tensor([8]), model.start(*memory, 1))
    part, _ = few.step(torch.tensor([few.number(8)]), few.start(*memory, 1))
    torch.testing.assert_close(part, whole[:, tokens])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("beam", [1, 3])
def test_what_a_neighbour_may_use_changes_nothing(beam, packed):
    """Sources of other lengths end at other steps, so that their rows are dropped in between."""
    model, random = randomise(tiny(), spread=0.4), torch.Generator().manual_seed(1)
    if packed:  # whose steps are taken ahead by the kernels
        pack_layers(model)
        fuse(model)
    source, target = torch.randint(3, 10, (2, 40), generator=random)
    made = Shortlist.of(source, target, 10, always=[0, BEGIN, END], most=2, common=0)

    def narrow(sources):
        tokens, allowed = made.candidates(sources)
        return Narrowed(narrowed(model, tokens), tokens, allowed)

    def found(sources, limits):
        config = DecodingConfig(beam=beam, workers=1)
        return engine.generate(model, sources, limits, config, BEGIN, END, [0, BEGIN], None, narrow)

    limits = [3, 6, 12]
    alone = [found([source], [limit])[0] for source, limit in zip(SOURCES, limits, strict=True)]
    together = found(SOURCES, limits)
    assert len({tuple(made.candidates([source])[0].tolist()) for source in SOURCES}) == 3
    for one, two in zip(alone, together, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in two]
        assert [h.score for h in one] == pytest.approx([h.score for h in two], abs=1e-5)
