"""Ensembles average probabilities; tests for all families check that search and scores agree."""

import pytest
import torch

from tests.families import Generator, tiny_rnn
from tests.helpers import BEGIN, END, tiny
from transduct.decoding.search import length_penalty
from transduct.inference import engine
from transduct.inference.ensemble import Ensemble, Review, mean
from transduct.inference.settings import DecodingConfig

SOURCES = [[3, 4, 5, END], [7, END], [8, 3, 9, 9, 4, END]]


def found(model, **changes):
    config = DecodingConfig(**{"beam": 3, "length_penalty": 0.0, **changes})
    return engine.generate(model, SOURCES, [9] * 3, config, BEGIN, END, forbidden=(0, BEGIN))


def test_the_probability_of_a_token_is_the_mean_of_theirs():
    torch.manual_seed(1)
    logits = [torch.randn(4, 7) * scale for scale in (1, 5, 20)]
    expected = torch.stack([each.double().softmax(-1) for each in logits]).mean(0)
    torch.testing.assert_close(mean(logits).exp().double(), expected, atol=1e-6, rtol=0)
    narrow = [each.bfloat16() for each in logits]
    assert torch.equal(mean(narrow), mean([each.float() for each in narrow])), (
        "of narrow logits, not a narrow mean"
    )


def test_a_model_agrees_with_itself():
    model = tiny()
    alone, together = found(model), found(Ensemble([model, model]))
    for one, other in zip(alone, together, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        torch.testing.assert_close(
            [h.score for h in one], [h.score for h in other], atol=1e-5, rtol=0
        )


def test_a_score_is_of_the_mean_and_no_output_is_too_long_for_one():
    members = [tiny(), tiny_rnn(attention="general", max_length=12)]
    together = [h[0].tokens for h in found(Ensemble(members))]
    assert members[0].config.max_length > Ensemble(members).config.max_length == 12
    scores = engine.score(Ensemble(members), SOURCES, together, BEGIN, END, 100)
    torch.testing.assert_close(
        scores, [h[0].score for h in found(Ensemble(members))], atol=1e-4, rtol=0
    )
    for source, tokens, score in zip(SOURCES, together, scores, strict=True):
        likely = (
            sum(Generator(each).logits(source, tokens).double().softmax(-1) for each in members) / 2
        )
        expected = sum(
            float(row[token].log()) for row, token in zip(likely, [*tokens, END], strict=True)
        )
        assert score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_review_weighs_what_is_found_with_what_another_says_of_it_turned_round(alpha):
    model, other = tiny(), tiny_rnn(attention="general")
    before = found(model, length_penalty=alpha)
    after = Review(Ensemble([other]), 0.75, BEGIN, END).sort(before, SOURCES, alpha, 100)
    changed = 0
    for source, old, new in zip(SOURCES, before, after, strict=True):
        assert sorted(h.tokens for h in new) == sorted(h.tokens for h in old)
        assert [h.rank for h in new] == sorted((h.rank for h in new), reverse=True)
        changed += [h.tokens for h in new] != [h.tokens for h in old]
        for hypothesis in new:
            [first] = [h.score for h in old if h.tokens == hypothesis.tokens]
            likely = (
                Generator(other).logits(source, hypothesis.tokens[::-1]).double().log_softmax(-1)
            )
            second = sum(
                float(row[i])
                for row, i in zip(likely, [*hypothesis.tokens[::-1], END], strict=True)
            )
            assert hypothesis.score == pytest.approx(0.25 * first + 0.75 * second, abs=1e-4)
            penalty = length_penalty(len(hypothesis.tokens) + 1, alpha)
            assert hypothesis.rank == pytest.approx(hypothesis.score / penalty)
    assert changed, "a review that never changes the order is none"


def test_a_review_of_nothing_is_nothing():
    assert Review(tiny(), 0.5, BEGIN, END).sort([], [], 1.0, 100) == []
    assert Review(tiny(), 0.5, BEGIN, END).scores([], [], [], 100) == []
