"""Scenes are what their captions say, the same on every machine, and their parts share no
meaning."""

from itertools import product
from random import Random

import numpy as np
import pytest

from transduct.errors import TransductError
from transduct_corpora import scenes
from transduct_corpora.scenes import RELATIONS, Scene, Thing, coverage, generate

RED, BLUE = Thing("large", "red", "circle"), Thing("small", "blue", "square")


def test_a_caption_names_everything():
    assert Scene((RED, BLUE), "above").caption == "a large red circle above a small blue square"
    assert Scene((BLUE,), "in the top left").caption == "a small blue square in the top left"


@pytest.mark.parametrize("relation", RELATIONS)
def test_both_captions_of_two_things_belong_to_one_part(relation):
    things = [Thing(*each) for each in product(scenes.SIZES, scenes.COLOURS, ["circle", "cross"])]
    pairs = [pair for pair in product(things, things) if pair[0] != pair[1]]
    parts = [Scene(pair, relation).part for pair in pairs]
    assert parts == [Scene(pair[::-1], RELATIONS[relation]).part for pair in pairs]
    assert set(parts) == {"train", "valid", "test"}


def test_parts_share_no_caption_and_no_meaning():
    captions = {
        part: {text for text, _ in generate(300, part, 8)} for part in ("train", "valid", "test")
    }
    assert not captions["train"] & captions["test"] | captions["train"] & captions["valid"]
    assert len(captions["test"]) == len(captions["valid"]) == 300


def test_a_scene_depends_on_its_part_and_number_alone():
    few, many = list(generate(5, "train", 16)), list(generate(9, "train", 16))
    assert [text for text, _ in few] == [text for text, _ in many[:5]]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(few, many))
    assert [text for text, _ in generate(5, "valid", 16)] != [text for text, _ in few]


def test_more_than_a_part_holds_is_refused():
    with pytest.raises(
        TransductError, match="cannot generate 501 scenes of 'test'; ask for at most 500"
    ):
        next(generate(501, "test", 8))


@pytest.mark.parametrize(
    "shape, extent", [("circle", np.pi / 4), ("square", 1.0), ("triangle", 0.5), ("cross", 5 / 9)]
)
def test_a_shape_covers_its_part_of_its_box(shape, extent):
    covered = coverage(shape, (0.5, 0.5), 0.3, 64)
    assert covered.sum() == pytest.approx(extent * (0.6 * 64) ** 2, rel=0.02)
    assert covered.min() == 0.0
    assert covered.max() == 1.0
    assert ((covered > 0) & (covered < 1)).any() == (shape != "square" or 0.3 * 64 % 1 != 0.5)
    np.testing.assert_allclose(covered, covered[:, ::-1], atol=1e-12)  # all are upright


def test_a_picture_is_white_but_for_its_things():
    drawn = scenes.picture(Scene((RED, BLUE), "left of"), 64, Random(1))
    assert drawn.shape == (64, 64, 3)
    assert drawn.dtype == np.uint8
    assert (drawn[:2] == 255).all()
    red, blue = ((drawn == scenes.COLOURS[name]).all(2) for name in ("red", "blue"))
    assert red.nonzero()[1].max() < blue.nonzero()[1].min()
    assert red.sum() > blue.sum() > 100
