"""Together they hold likely what they do on average; that search and scores agree is tested for all families."""

import pytest
import torch

from tests.families import Generator, tiny_rnn
from tests.helpers import BEGIN, END, tiny
from transduct.decoding import engine
from transduct.decoding.engine import DecodingConfig
from transduct.decoding.ensemble import Ensemble, mean

SOURCES = [[3, 4, 5, END], [7, END], [8, 3, 9, 9, 4, END]]


def found(model, **changes):
    config = DecodingConfig(**{"beam": 3, "length_penalty": 0.0, **changes})
    return engine.generate(model, SOURCES, [9] * 3, config, BEGIN, END, forbidden=(0, BEGIN))


def test_the_probability_of_a_token_is_the_mean_of_theirs():
    torch.manual_seed(1)
    logits = [torch.randn(4, 7) * scale for scale in (1, 5, 20)]
    expected = torch.stack([each.double().softmax(-1) for each in logits]).mean(0)
    torch.testing.assert_close(mean(logits).exp().double(), expected, atol=1e-6, rtol=0)


def test_a_model_agrees_with_itself():
    model = tiny()
    alone, together = found(model), found(Ensemble([model, model]))
    for one, other in zip(alone, together, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        torch.testing.assert_close([h.score for h in one], [h.score for h in other], atol=1e-5, rtol=0)


def test_a_score_is_of_the_mean_and_no_output_is_too_long_for_one():
    members = [tiny(), tiny_rnn(attention="general")]
    together = [h[0].tokens for h in found(Ensemble(members))]
    assert Ensemble(members).config.max_length == min(member.config.max_length for member in members)
    scores = engine.score(Ensemble(members), SOURCES, together, BEGIN, END, 100)
    torch.testing.assert_close(scores, [h[0].score for h in found(Ensemble(members))], atol=1e-4, rtol=0)
    for source, tokens, score in zip(SOURCES, together, scores, strict=True):
        likely = sum(Generator(each).logits(source, tokens).double().softmax(-1) for each in members) / 2
        expected = sum(float(row[token].log()) for row, token in zip(likely, [*tokens, END], strict=True))
        assert score == pytest.approx(expected, abs=1e-4)
