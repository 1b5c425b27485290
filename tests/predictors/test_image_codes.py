"""Pictures become codes and pictures again; what is lost is measured."""

import numpy as np
import pytest
import torch

from tests.models.test_dalle import CODES, PLACES, tiny_vae
from tests.pictures import bar, png
from tests.refusals import refusal
from transduct.evaluation.bootstrap import of_examples
from transduct.evaluation.classification import mcnemar
from transduct.predictors import image_codes
from transduct.predictors.base import Report
from transduct.predictors.image_codes import (
    GeneratedPicture,
    ImageCodes,
    as_pictures,
    as_tensor,
    code_scores,
)


@pytest.fixture
def codes():
    return ImageCodes(tiny_vae())


def pictures(count=4):
    return np.random.default_rng(1).integers(0, 256, (count, 6, 6, 3)).astype(np.uint8)


def test_pixels_go_to_numbers_and_back():
    numbers = as_tensor(pictures())
    assert numbers.shape == (4, 3, 6, 6)
    assert numbers.amin() >= -1.0
    assert numbers.amax() <= 1.0
    assert np.array_equal(as_pictures(numbers), pictures())
    assert as_pictures(torch.full((1, 3, 2, 2), 7.0)).max() == 255


def test_codes_are_the_same_however_many_are_made_at_once(monkeypatch):
    vae = tiny_vae()
    codes = image_codes.codes_of(vae, pictures())
    assert codes.shape == (4, PLACES)
    assert image_codes.codes_of(vae, pictures()[:0]).shape == (0, PLACES)
    monkeypatch.setattr(image_codes, "AT_ONCE", 3)
    assert np.array_equal(codes, image_codes.codes_of(vae, pictures()))


def test_scores_of_codes_are_their_formulas():
    codes = np.array([[0, 0, 1, 1], [0, 0, 1, 1]])
    black, grey = np.zeros((2, 6, 6, 3), np.uint8), np.full((2, 6, 6, 3), 51, np.uint8)
    scores = code_scores(tiny_vae(), black, codes, grey)
    expected = {"reconstruction_error": 0.04, "psnr": 10 * np.log10(25), "code_perplexity": 2.0}
    assert scores == pytest.approx({**expected, "code_usage": 100 * 2 / CODES})
    assert code_scores(tiny_vae(), black, codes, black)["psnr"] == pytest.approx(100.0)


def test_equal_pictures_are_equal():
    assert GeneratedPicture(pictures()[0]) == GeneratedPicture(pictures()[0])
    assert GeneratedPicture(pictures()[0]) != GeneratedPicture(pictures()[1])
    assert GeneratedPicture(pictures()[0]) != "picture 6x6"


def test_a_picture_file_is_answered_with_what_its_codes_keep(codes, tmp_path):
    (tmp_path / "bar.png").write_bytes(png(bar("across", 1, side=20)))
    [answer] = codes.predict([str(tmp_path / "bar.png")])
    assert str(answer) == "picture 6x6"
    assert answer.pixels.shape == (6, 6, 3)
    assert codes.predict([bar("across", 1, side=20)]) == [answer]
    assert codes.predict([bar("down", 1, side=20)]) != [answer]
    shown = codes.picture(str(tmp_path / "bar.png"), answer)
    assert shown.shape == (12, 6, 3)
    assert np.array_equal(shown[6:], answer.pixels)


def test_codes_are_told_in_rows(codes):
    found = codes.codes([*pictures()])
    expected = image_codes.codes_of(codes.model, pictures())
    assert np.array_equal(np.reshape(found, (4, PLACES)), expected)
    assert len(found[0]) ** 2 == PLACES
    with refusal("unknown key 'decoding.beam'"):
        codes.codes([pictures()[0]], beam=2)


def test_a_model_is_compared_with_another(codes):
    """Whose pictures are all as they should be, where of this one's the second half is."""
    ours, other = ImageCodes(codes.model), ImageCodes(codes.model)
    half = [False] * 10 + [True] * 10
    ours.measured = lambda data, options: Report({}, right={"attributes_right": of_examples(half)})
    other.measured = lambda data, options: Report(
        {"psnr": 7.0}, right={"attributes_right": of_examples([True] * 20)}
    )
    details = ours.evaluate(None, against=other).details
    assert details["against"] == {"psnr": 7.0}
    assert details["p_values"]["attributes_right"] == mcnemar(half, [True] * 20) < 0.05
