"""A picture classifier gives each picture one answer, the same in any company, and shows where it
looked."""

import logging
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers import randomise
from tests.pictures import BARS, SIDE, bar, write_pictures
from tests.refusals import refusal
from transduct.data.files import Refused
from transduct.data.images import ImageSource, fitted
from transduct.evaluation.classification import mcnemar
from transduct.models.vit import Config, ViT
from transduct.predictors import image_classification
from transduct.predictors.base import Attention
from transduct.predictors.image_classification import (
    About,
    LabelledPictures,
    PictureClassifier,
    PictureConfig,
    attended,
)

PICTURES = [bar(kind, number) for number in range(4) for kind in BARS]
ABOUT = About(list(BARS), [0.2, 0.3, 0.4], [0.3, 0.2, 0.1])


def make(seed=1, **model):
    """A classifier whose model knows nothing, but answers differently for every picture."""
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "layers": 2, "labels": 3}
    config = Config(**{"image_size": SIDE, "patch_size": 4, **sizes, **model})
    return PictureClassifier(randomise(ViT(config), seed), ABOUT, PictureConfig())


class Says(PictureClassifier):
    """A classifier whose answers are known."""

    def __init__(self, answers):
        made = make()
        super().__init__(made.model, made.about, made.decoding)
        self.answers = iter(answers)

    def predict(self, inputs, **options):
        self.asked = options
        return [next(self.answers) for _ in inputs]


@pytest.fixture
def corpus(tmp_path):
    write_pictures(tmp_path / "pictures", 12)
    return LabelledPictures(ImageSource("pictures"), str(tmp_path), "skip")


def test_the_answer_is_the_likeliest_label():
    model = make()
    found = model.probabilities(PICTURES)
    assert [max(row, key=row.get) for row in found] == model.predict(PICTURES)
    for row in found:
        assert list(row) == list(BARS)
        assert sum(row.values()) == pytest.approx(1.0, abs=1e-5)


def test_a_mirrored_answer_is_the_same_for_a_picture_and_its_mirror_image():
    model = make()
    mirrored = [picture[:, ::-1].copy() for picture in PICTURES]
    one, other = (model._scores(pictures, {}) for pictures in (PICTURES, mirrored))
    assert (one - other).abs().max() > 0.01
    expected = 0.5 * (one + other)
    for pictures in (PICTURES, mirrored):
        torch.testing.assert_close(model._scores(pictures, {"mirrored": True}), expected)
    assert model.probabilities(PICTURES, mirrored=True) != model.probabilities(PICTURES)


def test_scores_are_of_answers_to_the_options_given(corpus):
    ours, other = Says(["down"] * 12), Says(["down"] * 12)
    ours.evaluate(corpus, against=other, mirrored=True)
    assert ours.asked == other.asked == {"mirrored": True}


def test_files_are_read_as_their_pixels_are(tmp_path):
    model = make()
    Image.fromarray(PICTURES[5]).save(tmp_path / "bar.png")
    one = str(tmp_path / "bar.png"), tmp_path / "bar.png", PICTURES[5]
    assert len({tuple(row.values()) for row in model.probabilities(one)}) == 1
    Image.fromarray(PICTURES[5]).convert("L").save(tmp_path / "grey.png")
    assert len(model.predict([str(tmp_path / "grey.png")])) == 1


def test_pictures_of_other_sizes_are_fitted():
    model, wide = make(), np.concatenate([np.zeros((24, 8, 3), np.uint8), bar("down", 1, 24)], 1)
    assert model.probabilities([wide]) == model.probabilities([fitted(wide, SIDE)])


def test_colours_are_normalised_channel_by_channel():
    pictures = torch.randint(256, (2, 4, 5, 3), dtype=torch.uint8)
    found = ABOUT.read(pictures)
    assert found.shape == (2, 3, 4, 5)
    for channel, (mean, deviation) in enumerate(zip(ABOUT.mean, ABOUT.deviation)):
        expected = (pictures[..., channel] / 255 - mean) / deviation
        torch.testing.assert_close(found[:, channel], expected)


def test_scores_count_what_was_right(corpus, monkeypatch):
    monkeypatch.setattr("transduct.predictors.image_classification.CHUNK", 5)
    model = make()
    pairs = list(corpus.read(BARS, Refused("stop")))
    expected = model.predict([picture for picture, _ in pairs])
    report = model.evaluate(corpus)
    right = sum(found == label for found, (_, label) in zip(expected, pairs, strict=True))
    assert report.outputs == expected
    assert report.scores["accuracy"] == pytest.approx(100 * right / 12)
    low, high = report.details["accuracy"]["interval"]
    assert low <= report.scores["accuracy"] <= high
    assert report.details["examples"] == 12


def test_no_photograph_is_kept_at_its_size(corpus, monkeypatch):
    kept, large = [], make(image_size=8, patch_size=4)

    def read(*_):
        for number in range(12):
            kept.append(weakref.ref(photograph := np.full((12, 30, 3), number, np.uint8)))
            assert sum(each() is not None for each in kept) <= 2  # this one, and the one before
            yield str(number), photograph, BARS[number % 3]

    monkeypatch.setattr(image_classification, "read_labelled", read)
    report = make().evaluate(corpus, large)
    same = [fitted(np.full((12, 30, 3), number, np.uint8), SIDE) for number in range(12)]
    assert report.outputs == make().predict(same)
    assert report.details["against"] == large.evaluate(corpus).scores


def test_a_corpus_without_a_picture_is_named(corpus, tmp_path):
    (tmp_path / "empty" / "down").mkdir(parents=True)
    with refusal(r"^empty: found no picture to measure on \(there is none\); give one that"):
        make().evaluate(LabelledPictures(ImageSource("empty"), str(tmp_path)))
    (tmp_path / "empty" / "down" / "1.png").write_bytes(b"broken")
    with refusal(r"^empty: found no picture to measure on \(empty: down/1.png: not a whole "):
        make().evaluate(LabelledPictures(ImageSource("empty"), str(tmp_path), "skip"))


def test_two_models_are_compared_picture_by_picture(corpus):
    report = make().evaluate(corpus, against=make(2))
    assert report.details["against"] == make(2).evaluate(corpus).scores
    right = [label for _, label in corpus.read(ABOUT.labels, Refused("skip"))]
    wrong = ["down" if label != "down" else "across" for label in right]
    report = Says(right).evaluate(corpus, against=Says(right[:2] + wrong[2:]))
    expected = mcnemar([True] * 12, [True] * 2 + [False] * 10)
    assert report.details["p_values"]["accuracy"] == expected < 0.05
    assert make().evaluate(corpus, against=make()).details["p_values"]["accuracy"] == 1.0
    other = make()
    other.about = replace(ABOUT, labels=["x", "y", "z"])
    with refusal("the other model has other labels; compare models of the same task"):
        make().evaluate(corpus, against=other)


def test_broken_pictures_are_counted_or_stop_it(corpus, tmp_path, caplog):
    (tmp_path / "pictures" / "down" / "0001.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "transduct"):
        report = make().evaluate(corpus)
    assert "1 left out: pictures: down/0001.png: not a whole picture" in caplog.text
    assert report.details["left_out"] == {"broken": 1}
    assert report.details["examples"] == 11
    # for evaluate has no data.broken
    with refusal(r"pictures: down/0001.png: not a whole picture .* or PPM$"):
        make().evaluate(LabelledPictures(corpus.source, corpus.root))


def test_a_label_that_the_model_does_not_know_is_left_out_or_named(corpus, tmp_path):
    (tmp_path / "pictures" / "aslope").rename(tmp_path / "pictures" / "spiral")
    assert make().evaluate(corpus).details["left_out"] == {"broken": 4}
    corpus = replace(corpus, broken="stop")
    with refusal(r"pictures: spiral/0002.png: unknown label 'spiral'; training has: acr"):
        make().evaluate(corpus)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_attention_is_told_layer_by_layer_and_panel_by_panel(pool):
    model = make(pool=pool)
    attention = model.attention(bar("down", 1, 24))
    tokens = 9 + (pool == "class")
    names = ["encoder.0.self", "encoder.1.self"]
    shapes = {name: tuple(weights.shape) for name, weights in attention.items()}
    assert shapes == dict.fromkeys(names, (2, tokens, tokens))
    last, rollout = attention.panels()
    assert last.title == "encoder.1.self, mean of heads"
    assert rollout.title == "rollout of all layers"
    for panel in (last, rollout):
        assert panel.weights.shape == (3, 3)
        assert np.array_equal(panel.picture, fitted(bar("down", 1, 24), SIDE))
        assert panel.rows is panel.columns is None
        assert panel.weights.sum() <= 1.0 + 1e-5
    read = attention.weights["encoder.1.self"].mean(0)
    expected = read[0, 1:] if pool == "class" else read.mean(0)
    torch.testing.assert_close(last.weights.flatten(), expected)


def test_rollout_follows_what_was_gathered_before():
    first = torch.eye(5).roll(1, 0)  # each token reads the one before it
    seen = Attention({"encoder.0.self": first[None], "encoder.1.self": first[None]})
    _, rollout = attended(seen, PICTURES[0], 2)
    # The class token, 0, is half itself and half token 4, which by then is half itself and half
    # token 3.
    torch.testing.assert_close(rollout.weights, torch.tensor([[0.0, 0.0], [0.25, 0.5]]))


@pytest.mark.parametrize("colours", [{"mean": []}, {"deviation": [0.1] * 4}])
def test_colours_are_three(colours):
    message = r"mean is \[.*\] and deviation \[.*\], must be of three colours each"
    with pytest.raises(ValueError, match=message):
        replace(ABOUT, **colours)
