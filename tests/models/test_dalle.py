"""DALL-E equals a GPT over texts and codes; codes are the nearest ones; guidance mixes two
logits."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import TINY, randomise
from tests.models.stepping import assert_steps_equal_whole_sequences
from transduct.decoding.filters import FixedLength
from transduct.functional.losses import divergence_from_uniform
from transduct.inference import engine
from transduct.inference.batches import flat
from transduct.inference.settings import DecodingConfig
from transduct.models import gpt
from transduct.models.dalle import DALLE, CodesConfig, Config, DiscreteVAE, Guided, guided_logits
from transduct.segments import Segments

CODES, WORDS, SIDE = 7, 9, 3
PLACES, BEGIN = SIDE**2, CODES
TEXTS = [[8, 9, 10, 11], [12], [], [16, 15, 14, 13, 12]]


def codes_config(**changes):
    shape = {"picture_size": 2 * SIDE, "channels": [16], "codes": CODES, "d_code": 4}
    return CodesConfig(**{**shape, **changes})


def tiny_vae(**changes):
    torch.manual_seed(1)
    return randomise(DiscreteVAE(codes_config(**changes)).eval(), spread=0.1)


def tiny_dalle(**changes):
    torch.manual_seed(1)
    shape = {**TINY, "layers": 2, "dropout": 0.0, "max_length": 5}
    return randomise(DALLE(Config(WORDS, codes_config(), **{**shape, **changes})).eval())


def pictures(count=3, seed=2):
    return (
        torch.rand(count, 3, 2 * SIDE, 2 * SIDE, generator=torch.Generator().manual_seed(seed)) * 2
        - 1
    )


@torch.inference_mode()
def logits_of(model, text, codes):
    """(T, V + 1): the logits after `begin` and each code, computed at once."""
    tokens, segments = flat([[*text, BEGIN, *codes]], torch.device("cpu"))
    return model.logits(model.hidden(tokens, segments))[len(text) :]


# the discrete VAE


@pytest.mark.parametrize("quantiser", ["vq", "gumbel"])
def test_a_picture_goes_to_a_grid_of_codes_and_back(quantiser):
    vae = tiny_vae(quantiser=quantiser)
    codes = vae.encode(pictures())
    assert codes.shape == (3, PLACES)
    assert len(codes.unique()) > 1
    assert vae.decode(codes).shape == (3, 3, 2 * SIDE, 2 * SIDE)


def test_the_nearest_codes_are_those_of_training():
    vae = tiny_vae()
    remade, codes, penalty = vae(pictures(), 1.0)
    assert torch.equal(codes, vae.encode(pictures()))
    torch.testing.assert_close(remade, vae.decode(codes))
    features = vae._features(pictures())
    distances = torch.cdist(features, vae.codebook)
    assert torch.equal(distances.argmin(1), codes.flatten())
    torch.testing.assert_close(penalty, 1.25 * distances.min(1).values.square().sum())


def test_gumbel_codes_are_the_likeliest_at_low_temperatures():
    vae = tiny_vae(quantiser="gumbel", beta=0.0)
    torch.manual_seed(1)
    logits = 1000.0 * vae._features(pictures())  # so that the noise decides nothing
    vectors, codes, penalty = vae._quantised(logits, 1e-3)
    torch.testing.assert_close(vectors, vae.codebook[codes])
    assert torch.equal(codes, logits.argmax(1))
    assert penalty == 0.0


@torch.no_grad()
def test_gumbel_codes_are_mixed_evenly_at_a_high_temperature_and_their_divergences_added_up():
    vae = tiny_vae(quantiser="gumbel", beta=0.5)
    logits = torch.randn(6, CODES)
    vectors, _, penalty = vae._quantised(logits, 1e4)
    torch.testing.assert_close(vectors, vae.codebook.mean(0).expand(6, -1), atol=1e-3, rtol=0)
    torch.testing.assert_close(penalty, 0.5 * divergence_from_uniform(logits).sum())


def test_a_picture_s_codes_are_its_own():
    vae = tiny_vae()
    together = vae.encode(pictures(5))
    assert torch.equal(together, torch.cat([vae.encode(picture[None]) for picture in pictures(5)]))


# the decoder


def test_it_is_gpt_with_its_positions_copied():
    model = tiny_dalle()
    shape = {"d_model": 16, "num_heads": 4, "d_ff": 32, "layers": 2, "dropout": 0.0}
    reference = gpt.GPT(gpt.Config(BEGIN + 1 + WORDS, max_length=4 + 1 + PLACES, **shape)).eval()
    reference.load_state_dict(
        {k: v for k, v in model.state_dict().items() if k.startswith("decoder")}, strict=False
    )
    with torch.no_grad():
        reference.output_table.copy_(model.table)
        grid = [
            model.row_positions[i // SIDE] + model.column_positions[i % SIDE] for i in range(PLACES)
        ]
        reference.embedding.positions.table.copy_(
            torch.stack([*model.text_positions[-4:], torch.zeros(16), *grid])
        )
    rows = [
        [*range(8, 12), BEGIN, 1, 2, 3, 4, 5, 6, 0, 1, 2],
        [*range(13, 17), BEGIN, 6, 5, 4, 3, 2, 1, 0, 6, 5],
    ]
    tokens, segments = flat(rows, torch.device("cpu"))
    expected = reference.logits(reference.hidden(tokens, segments))
    found = model.logits(model.hidden(tokens, segments))
    torch.testing.assert_close(found[:, :CODES], expected[:, :CODES], atol=1e-5, rtol=1e-5)
    assert found[:, BEGIN].isneginf().all()


@torch.inference_mode()
@pytest.mark.parametrize("scale", [None, 2.5])
def test_a_cache_changes_nothing(scale):
    model = tiny_dalle()
    stepping = model if scale is None else Guided(model, scale)
    tokens, segments = flat(TEXTS, torch.device("cpu"))
    state = stepping.start(stepping.encode(tokens, segments), segments, beam=2)

    def expected(owner, row):
        found = logits_of(model, TEXTS[owner], row)[-1]
        if scale is None:
            return found
        alone = logits_of(model, [], row)[-1]
        return torch.cat((alone[:-1] + scale * (found - alone)[:-1], found[-1:]))

    assert_steps_equal_whole_sequences(
        stepping, state, [BEGIN] * len(TEXTS), 2, PLACES + 1, (0, CODES), expected
    )


def test_a_code_sees_its_text_and_what_stands_before_it():
    model = tiny_dalle()
    codes = [1, 2, 3, 4]
    base = logits_of(model, [8, 9], codes)[:, :-1]
    assert not torch.isclose(base, logits_of(model, [8, 10], codes)[:, :-1]).all(1).any()
    later = logits_of(model, [8, 9], [1, 2, 6, 4])[:, :-1]
    same = torch.isclose(base, later, atol=1e-6).all(1).tolist()
    assert same == [True, True, True, False, False]


def drawn(model, temperature=1.0, texts=TEXTS):
    def fixed(numbers):
        return FixedLength(BEGIN, [PLACES + 1] * (2 * len(numbers)))

    config = DecodingConfig(beam=2, temperature=temperature, length_penalty=0.0)
    return engine.generate(model, texts, [PLACES + 1] * len(texts), config, BEGIN, BEGIN, (), fixed)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_search_draws_whole_pictures_and_scores_them(temperature):
    model = tiny_dalle()
    for text, samples in zip(TEXTS, drawn(model, temperature), strict=True):
        assert len(samples) == 2
        for sample in samples:
            assert len(sample.tokens) == PLACES
            assert set(sample.tokens) <= set(range(CODES))
            likely = logits_of(model, text, sample.tokens[:-1]).double().log_softmax(-1)
            total = sum(float(row[code]) for row, code in zip(likely, sample.tokens, strict=True))
            assert sample.score == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 3.0])
def test_guided_logits_are_the_formula(scale):
    without, given = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        guided_logits(without, given, scale), without + scale * (given - without)
    )


def test_guidance_of_one_changes_nothing_and_of_none_ignores_the_text():
    model = tiny_dalle()
    assert [[h.tokens for h in each] for each in drawn(Guided(model, 1.0))] == [
        [h.tokens for h in each] for each in drawn(model)
    ]
    unguided = drawn(Guided(model, 0.0), 0.0)
    [nothing] = drawn(model, 0.0, [[]])
    assert [[h.tokens for h in each] for each in unguided] == [[h.tokens for h in nothing]] * len(
        TEXTS
    )


def test_the_discrete_vae_inside_stays_as_it_is():
    model = tiny_dalle().train()
    tokens, segments = flat([[8, 9, BEGIN, 1, 2]], torch.device("cpu"))
    F.cross_entropy(
        model.logits(model.hidden(tokens, segments))[:, :-1], torch.tensor([0, 1, 2, 3, 4])
    ).backward()
    learnt = {name for name, p in model.named_parameters() if p.grad is not None}
    assert not any(name.startswith("vae.") for name in learnt)
    assert {name for name, p in model.named_parameters() if not name.startswith("vae.")} == learnt
    assert all(not p.requires_grad for p in model.vae.parameters())


def test_attention_weights_are_handed_over():
    model, weights = tiny_dalle(), []
    tokens, segments = flat([[8, 9, BEGIN, 1, 2]], torch.device("cpu"))
    model.hidden(tokens, segments, weights)
    assert len(weights) == len(model.attention_names) == 2
    assert weights[0].shape == (1, 4, 5, 5)
    assert isinstance(segments, Segments)


# what is refused
