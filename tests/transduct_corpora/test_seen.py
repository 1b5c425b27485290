"""The rule that reads pixels says yes to every true picture, and no as soon as anything named is
changed."""

import sys
from random import Random

import numpy as np
import pytest

from transduct.errors import TransductError
from transduct_corpora.scenes import COLOURS, PLACES, RELATIONS, SHAPES, SIZES, generate
from transduct_corpora.seen import Seen, attribute_scores, captions_of, shows, things_in

KINDS = [[*SIZES], [*COLOURS], [*SHAPES], [*PLACES], [*RELATIONS]]


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("part", ["train", "test"])
def test_true_pictures_show_their_captions(size, part):
    examples = list(generate(400, part, size))
    assert [text for text, picture in examples if not shows(picture, text, COLOURS)] == []


def changed(caption, random):
    """The caption with one of the attributes it names replaced by another of its kind."""
    kind = random.choice(
        [kind for kind in KINDS if any(f" {name} " in f" {caption} " for name in kind)]
    )
    held = random.choice([name for name in kind if f" {name} " in f" {caption} "])
    other = random.choice([name for name in kind if name != held])
    return f" {caption} ".replace(f" {held} ", f" {other} ", 1).strip()


def test_a_changed_attribute_is_seen():
    random = Random(1)
    examples = [
        (changed(text, random), text, picture) for text, picture in generate(400, "test", 32)
    ]
    assert all(other != text for other, text, _ in examples)
    assert [other for other, _, picture in examples if shows(picture, other, COLOURS)] == []


def test_the_middle_of_a_thing_is_the_middle_of_its_pixels():
    picture = np.full((32, 32, 3), 255, np.uint8)
    picture[4:12, 8:24] = COLOURS["red"]
    [thing] = things_in(picture, COLOURS)
    assert (thing.x, thing.y) == (0.5, 0.25)


def test_of_two_things_either_may_be_named_first():
    upper, lower = (
        Seen("large", "red", "circle", 0.5, 0.2),
        Seen("small", "blue", "square", 0.45, 0.7),
    )
    assert captions_of([upper, lower]) == {
        "a large red circle above a small blue square",
        "a small blue square below a large red circle",
    }
    assert captions_of([]) == captions_of([upper, lower, upper]) == set()


def test_one_thing_between_two_places_is_in_neither():
    assert captions_of([Seen("large", "red", "circle", 0.5, 0.2)]) == set()
    for x, y in ((0.41, 0.5), (0.5, 0.59)):
        assert captions_of([Seen("large", "red", "circle", x, y)]) == {
            "a large red circle in the middle"
        }


def test_specks_and_faint_shadows_are_no_things():
    _, picture = next(generate(1, "test", 32))
    spoiled = picture.copy()
    spoiled[picture.min(2) == 255] -= 30
    spoiled[0, :3] = 0
    assert [str(thing) for thing in things_in(spoiled, COLOURS)] == [
        str(t) for t in things_in(picture, COLOURS)
    ]
    spoiled[-5:, -5:] = 0  # too large for a speck
    assert len(things_in(spoiled, COLOURS)) == len(things_in(picture, COLOURS)) + 1


def test_pixels_hang_together_by_edges_and_corners():
    picture = np.full((16, 16, 3), 255, np.uint8)
    picture[0:4, 0:4] = picture[4:8, 4:8] = 0
    assert len(things_in(picture, COLOURS)) == 1
    picture[4:8, 4:8] = 255
    picture[5:9, 5:9] = 0
    assert len(things_in(picture, COLOURS)) == 2


def test_without_scipy_the_line_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.ndimage", None)
    monkeypatch.delattr("scipy.ndimage", raising=False)
    with pytest.raises(
        TransductError, match=r"SciPy is not installed; run: pip install 'transduct\[vision\]'"
    ):
        things_in(np.zeros((8, 8, 3), np.uint8), COLOURS)


def test_the_score_is_the_share_that_is_right():
    examples = list(generate(4, "test", 32))
    captions, pictures = [text for text, _ in examples], [picture for _, picture in examples]
    found = attribute_scores(captions, [*pictures[:3], pictures[0]], COLOURS)
    assert found.scores == {"attributes_right": 75.0}
    assert found.right == [True, True, True, False]
    low, high = found.details["attributes_right"]["interval"]
    assert low < 75 < high
    with pytest.raises(TransductError, match="4 captions and 3 pictures; give one picture of each"):
        attribute_scores(captions, pictures[:3], COLOURS)
