"""Pictures by a model in use: drawn from texts, chosen among samples, looked into, shown on a
sheet."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.models.test_dalle import BEGIN, PLACES, SIDE, WORDS, logits_of, tiny_dalle
from tests.refusals import refusal
from transduct.data.captioned_images import Examples
from transduct.data.tokenizer import Tokenizer
from transduct.predictors import text_to_image
from transduct.predictors.image_codes import codes_of
from transduct.predictors.text_to_image import Painter, PaintingConfig

TEXTS = ["red circle above", "blue", "", "red red red red"]


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer.train(["red blue circle square above below"], "word", WORDS)
    assert made.size == WORDS
    return made


@pytest.fixture
def made(tokenizer):
    return Painter(tiny_dalle(), tokenizer, PaintingConfig())


def pictures(count=4, size=2 * SIDE):
    return np.random.default_rng(1).integers(0, 256, (count, size, size, 3)).astype(np.uint8)


def test_samples_are_of_distinct_captions_from_all_over_a_corpus(made, monkeypatch):
    shown = []

    def predict(self, captions):
        shown.extend(captions)
        return [SimpleNamespace(pixels=each) for each in pictures(len(captions))]

    monkeypatch.setattr(Painter, "predict", predict)
    made.grid([str(number // 2) for number in range(100)])
    assert shown == [str(number) for number in range(0, 48, 3)]


def test_captions_that_are_cut_or_empty_are_counted(made, caplog):
    longest = made.model.config.max_length
    with caplog.at_level(logging.WARNING, "transduct"):
        made.predict(["red", "red " * (longest + 1), "", "blue"])
    assert caplog.messages == [
        f"1 of 4 captions are longer than {longest} tokens: their ends are left out",
        "1 of 4 captions are empty: anything may be drawn",
    ]


def test_a_text_that_is_too_long_loses_its_end(made, tokenizer):
    [ids, none], cut = text_to_image.text_tokens(tokenizer, made.model, ["red " * 9, ""])
    assert len(ids) == 5
    assert min(ids) > BEGIN
    assert (none, cut) == ([], 1)


def test_the_sample_with_the_median_gain_is_kept(made, tokenizer, monkeypatch):
    seen = {}
    best = Painter._best

    def spy(self, text, samples, budget):
        seen[tuple(text)] = samples
        return best(self, text, samples, budget)

    monkeypatch.setattr(Painter, "_best", spy)
    texts, _ = text_to_image.text_tokens(tokenizer, made.model, ["red circle", "blue"])
    chosen = made._codes(texts, PaintingConfig(samples=5, seed=3))
    for text, codes in zip(texts, chosen.tolist()):
        gains = []
        for sample in seen[tuple(text)]:
            given, alone = (
                logits_of(made.model, prompt, sample[:-1]).log_softmax(-1) for prompt in (text, [])
            )
            gains.append(float((given - alone)[range(len(sample)), sample].sum()))
        assert len(set(gains)) == 5
        assert codes == seen[tuple(text)][gains.index(sorted(gains)[2])]


def test_a_sheet_shows_what_is_drawn_from_captions(made):
    page, alone = made.grid([*TEXTS, "blue"]), made.grid(["blue"])
    assert page.dtype == np.uint8
    assert page.shape[1] > 3 * alone.shape[1]


def test_a_picture_is_followed_while_it_is_drawn(made):
    seen = []
    [picture, _] = made.predict(["blue", "red"], follow=seen.append, samples=2, batch_tokens=1)
    assert picture == made.predict(["blue"], samples=2)[0]
    assert [len(each.codes) for each in seen[:PLACES]] == [*range(1, PLACES + 1)]
    assert seen[0].pixels.shape == picture.pixels.shape
    [alone] = made.predict(["blue"], follow=seen.append)
    assert seen[-1] == alone


def test_guidance_changes_what_is_drawn(made):
    assert made.predict(TEXTS, guidance=5.0) != made.predict(TEXTS, guidance=1.0)
    apart = made.predict(["red", "blue"], guidance=0.0, temperature=0.0)
    assert apart[0] == apart[1]


def test_scores_of_pictures_and_captions(made):
    data = Examples(TEXTS, list(pictures()))
    report = made.evaluate(data, against=made)
    scores = {"nats_per_code", "reconstruction_error", "psnr", "code_usage", "code_perplexity"}
    assert set(report.scores) == scores
    codes = codes_of(made.model.vae, pictures())
    total = 0.0
    for text, row in zip(TEXTS, codes.tolist()):
        [tokens], _ = text_to_image.text_tokens(made.tokenizer, made.model, [text])
        likely = logits_of(made.model, tokens, row[:-1]).log_softmax(-1)
        total -= float(sum(likely[place, code] for place, code in enumerate(row)))
    assert report.scores["nats_per_code"] == pytest.approx(total / codes.size, rel=1e-5)
    assert report.details["against"] == report.scores
    assert len(report.outputs) == 4
    assert report.details["p_values"] == {}
    scenes = made.evaluate(Examples(TEXTS, list(pictures()), "scenes"), against=made)
    assert scenes.scores["attributes_right"] == 0.0
    assert scenes.details["p_values"] == {"attributes_right": 1.0}
    assert scenes.details["attributes_right"]["interval"][0] == 0.0


def test_no_more_is_read_together_than_the_call_says(made, monkeypatch):
    budgets, answered = [], text_to_image.answered
    spy = lambda *given: (budgets.append(given[2]), answered(*given))[1]  # noqa: E731
    monkeypatch.setattr(text_to_image, "answered", spy)
    made.evaluate(Examples(TEXTS, list(pictures())), batch_tokens=40)
    assert len(budgets) > 1
    assert max(budgets) == 40


def test_attention_shows_where_codes_looked_at_each_word(made):
    found = made.attention("red circle above")
    assert list(found.weights) == ["decoder.0.self", "decoder.1.self"]
    assert found.weights["decoder.0.self"].shape == (4, 3 + 1 + PLACES, 3 + 1 + PLACES)
    panels = found.panels()
    assert [panel.title for panel in panels] == found.source
    assert {panel.weights.shape for panel in panels} == {(SIDE, SIDE)}
    assert {panel.picture.shape for panel in panels} == {(6, 6, 3)}
    mean = sum(weights.mean(0) for weights in found.weights.values()) / 2
    # what chose code 5, at word 1
    torch.testing.assert_close(panels[1].weights[1, 2], mean[3 + 1 * SIDE + 2, 1])
    with refusal("found no words to attend to"):
        made.attention("")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"temperature": 0.0, "seed": 3}, "seed needs sampling; set temperature above 0"),
        ({"beam": 2}, "beam is 2, must be 1: set samples"),
        ({"temperature": 0.0, "captured": True}, "captured is for models that decode over a mem"),
        ({"colour": "red"}, "unknown key 'decoding.colour'"),
    ],
)
def test_impossible_options_are_refused(made, options, message):
    with refusal(message):
        made.predict(TEXTS, **options)
