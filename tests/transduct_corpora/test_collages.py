"""Collages: what is pasted where, and what is drawn from what."""

import numpy as np
import pytest

from transduct.data import annotated_images
from transduct.data.annotated_images import Collage, Example
from transduct_corpora import collages

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def photograph(number):
    colour = list(COLOURS.values())[number % 3]
    picture = np.broadcast_to(np.array(colour, np.uint8), (32, 32, 3))
    return Example(picture, np.empty((0, 4), np.float32), np.array([number % 3]))


def paste(number=0, **collage):
    return collages.pasted(
        photograph, 9, Collage(**collage), 64, annotated_images.generator(1, 0, number)
    )


@pytest.mark.parametrize("number", range(8))
def test_every_box_holds_its_photograph(number):
    scene = paste(number, objects=[1, 6], sizes=[12, 30])
    assert scene.picture.shape == (64, 64, 3)
    assert 1 <= len(scene.labels) <= 6
    for (x0, y0, x1, y1), label in zip(scene.boxes.astype(int), scene.labels):
        assert min(x0, y0) >= 0
        assert max(x1, y1) <= 64
        assert all(12 <= length <= 30 for length in (x1 - x0, y1 - y0))
        own = (scene.picture[y0:y1, x0:x1] == photograph(label).picture[0, 0]).all(-1)
        assert own.mean() > 0.5  # the rest is hidden by what lies above it
        assert own[0].any()


def test_photographs_hide_little_of_one_another():
    for number in range(20):
        boxes = paste(number, objects=[6, 6], sizes=[12, 30]).boxes
        hidden = collages._overlap(boxes, boxes) - np.eye(len(boxes))
        assert hidden.max() <= collages.OVERLAP


def test_a_scene_is_drawn_from_its_seed_epoch_and_number_alone():
    def pixels(*key):
        return collages.pasted(
            photograph, 9, Collage(), 64, annotated_images.generator(*key)
        ).picture.tobytes()

    assert pixels(1, 2, 3) == pixels(1, 2, 3)
    assert len({pixels(*key) for key in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4))}) == 4


def test_as_many_objects_as_asked_for_where_there_is_room():
    assert {len(paste(number, objects=[1, 3], sizes=[4, 8]).labels) for number in range(30)} == {
        1,
        2,
        3,
    }
    assert len(paste(objects=[5, 5], sizes=[60, 64]).labels) == 1, "a full canvas takes no more"


def test_no_photograph_is_larger_than_the_canvas():
    boxes = np.concatenate(
        [paste(number, objects=[1, 1], sizes=[40, 200]).boxes for number in range(20)]
    )
    assert boxes.max() <= 64
    assert (boxes[:, 2:] - boxes[:, :2]).min() < 60


def test_backgrounds_differ():
    backgrounds = [collages.background(32, annotated_images.generator(1, 0, n)) for n in range(40)]
    assert any((each == each[0, 0]).all() for each in backgrounds), "plain"
    assert any(each.std() > 20 for each in backgrounds), "or not"
