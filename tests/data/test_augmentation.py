"""What is done to a picture is what its paper says, as often as the recipe says, and depends on its
draws alone."""

import sys
from random import Random

import numpy as np
import pytest

from tests.refusals import refusal
from transduct.data import augmentation
from transduct.data.augmentation import (
    GREY,
    Augmentation,
    augmented,
    mixed,
    moved,
    operated,
    operations,
)

SIDE = 24
PICTURE = np.random.default_rng(1).integers(150, 256, (SIDE, SIDE, 3)).astype(np.uint8)
OTHER = np.random.default_rng(2).integers(0, 100, (SIDE, SIDE, 3)).astype(np.uint8)
EVERYTHING = Augmentation(crop=2, flip=True, operations=2, erase=0.5)


def many(count=400, **changes):
    return [augmented(PICTURE, Augmentation(**changes), Random(i)) for i in range(count)]


def share_of(pictures, test):
    return sum(map(test, pictures)) / len(pictures)


def test_nothing_is_done_unless_it_is_asked_for():
    assert augmented(PICTURE, Augmentation(), Random(1)) is PICTURE


def test_what_is_drawn_alike_comes_out_alike_and_the_picture_stays():
    before = PICTURE.copy()
    one, same, another = (
        augmented(PICTURE, EVERYTHING, Random(f"1/{epoch}/7")) for epoch in (0, 0, 1)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, another)
    assert np.array_equal(PICTURE, before)
    assert one.shape == PICTURE.shape
    assert one.dtype == np.uint8


def test_half_of_the_pictures_are_mirrored():
    pictures = many(flip=True)
    mirrored = share_of(pictures, lambda picture: np.array_equal(picture, PICTURE[:, ::-1]))
    assert 0.4 < mirrored < 0.6
    assert share_of(pictures, lambda picture: np.array_equal(picture, PICTURE)) == pytest.approx(
        1 - mirrored
    )


@pytest.mark.parametrize("down", [-3, 0, 2, SIDE])
@pytest.mark.parametrize("right", [-SIDE, -1, 0, 3])
def test_a_moved_picture_is_a_crop_of_one_with_a_black_border(down, right):
    wide = np.pad(PICTURE, ((SIDE, SIDE), (SIDE, SIDE), (0, 0)))
    expected = wide[SIDE - down : 2 * SIDE - down, SIDE - right : 2 * SIDE - right]
    assert np.array_equal(moved(PICTURE, down, right), expected)


def test_every_crop_within_reach_comes():
    wide = np.pad(PICTURE, ((1, 1), (1, 1), (0, 0)))
    crops = {wide[y : y + SIDE, x : x + SIDE].tobytes() for y in range(3) for x in range(3)}
    assert {picture.tobytes() for picture in many(crop=1)} == crops


@pytest.mark.parametrize(
    "name", [name for name in operations() if name not in ("stretch", "equalise")]
)
def test_an_operation_without_strength_does_nothing(name):
    assert np.array_equal(operated(PICTURE, name, 0.0), PICTURE)


@pytest.mark.parametrize("name", [name for name in operations() if name != "identity"])
@pytest.mark.parametrize("strength", [-1.0, 1.0])
def test_an_operation_of_full_strength_changes_a_picture(name, strength):
    found = operated(PICTURE, name, strength)
    assert found.shape == PICTURE.shape
    assert found.dtype == np.uint8
    assert not np.array_equal(found, PICTURE)


def test_operations_do_what_they_are_called():
    assert np.array_equal(operated(PICTURE, "translate_x", 0.25), moved(PICTURE, 0, -6))
    assert np.array_equal(operated(PICTURE, "translate_y", -0.25), moved(PICTURE, 6, 0))
    assert np.array_equal(operated(PICTURE, "rotate", 2 / 3), np.rot90(PICTURE))
    assert operated(PICTURE, "brightness", -1.0).max() <= 3
    assert np.ptp(operated(PICTURE, "colour", -1.0).astype(int), axis=2).max() <= 2
    assert np.ptp(operated(PICTURE, "contrast", -1.0).astype(int)) <= 3
    assert not (operated(PICTURE, "posterise", 1.0) % 64).any()
    assert np.array_equal(operated(PICTURE, "solarise", 1.0), 255 - PICTURE)
    assert operated(PICTURE, "stretch", 0.3).min() == 0
    assert operated(PICTURE, "equalise", 0.3).min() < 10
    assert operated(PICTURE, "sharpness", -1.0).std() < 0.7 * PICTURE.std()
    # rows or columns stay, each moved as a whole
    for axis, name in enumerate(("shear_y", "shear_x")):
        line = PICTURE[5] if name == "shear_x" else PICTURE[:, 5]
        sheared = operated(PICTURE, name, 0.2)
        assert np.array_equal(np.take(sheared, 5, axis=1 - axis)[:-1], line[1:])


def test_as_many_operations_are_done_as_asked_for():
    done = []
    for count in range(4):
        random = Random(3)
        augmented(PICTURE, Augmentation(operations=count), random)
        done.append(random.random())
    assert len(set(done)) == 4  # each takes its draws
    assert share_of(many(operations=1), lambda picture: np.array_equal(picture, PICTURE)) < 0.25


def test_operations_are_of_every_kind_and_of_any_strength_to_either_side(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        augmentation, "operated", lambda picture, *how: drawn.append(how) or picture
    )
    many(operations=1)
    names, strengths = zip(*drawn)
    assert {*names} == {*operations()}
    assert -1.0 <= min(strengths) < -0.95 < 0.95 < max(strengths) <= 1.0


def test_a_piece_is_erased_of_as_many_as_asked_for():
    pictures = many(erase=0.4)
    grey = [(picture == GREY).all(2).mean() for picture in pictures]
    assert 0.3 < share_of(grey, bool) < 0.5
    assert max(grey) <= 0.4
    for picture in pictures:
        kept = (picture != GREY).any(2)
        assert np.array_equal(picture[kept], PICTURE[kept])
        rows, columns = (~kept).any(1), (~kept).any(0)
        assert (~kept).sum() == rows.sum() * columns.sum()  # a rectangle


def test_erased_pieces_are_of_many_sizes_and_up_to_three_times_as_high_as_wide_or_as_wide_as_high():
    grey = [(picture == GREY).all(2) for picture in many(erase=1.0)]
    # not cut off by the border
    whole = [each for each in grey if not (each[[0, -1]].any() or each[:, [0, -1]].any())]
    shapes = [each.any(1).sum() / each.any(0).sum() for each in whole]
    assert 0.25 < min(shapes) < 0.5 < 2.0 < max(shapes) < 4.0
    assert (
        0.01 < min(each.mean() for each in whole) < 0.04 < 0.25 < max(each.mean() for each in grey)
    )


def test_half_are_laid_over_each_other_and_half_hold_a_piece_of_the_other():
    pasted = 0
    for i in range(200):
        picture, share = mixed(PICTURE, OTHER, Random(i))
        own, other = (picture == PICTURE).all(2), (picture == OTHER).all(2)
        assert 0.0 <= share <= 1.0
        if (own | other).all():
            pasted += 1
            assert own.mean() == pytest.approx(share)
        else:
            assert np.abs(picture - (share * PICTURE + (1 - share) * OTHER)).max() <= 0.51
    assert 80 < pasted < 120


def test_shares_are_drawn_from_the_distributions_of_their_papers(monkeypatch):
    areas = []
    monkeypatch.setattr(
        augmentation,
        "_rectangle",
        lambda _, area, *rest: areas.append(area) or (slice(0), slice(0)),
    )
    shares = [mixed(PICTURE[:2, :2], OTHER[:2, :2], Random(i))[1] for i in range(4000)]
    assert np.std(areas) == pytest.approx(12**-0.5, abs=0.008), "uniform"
    assert np.std([share for share in shares if share < 1.0]) == pytest.approx(
        0.5 / 2.6**0.5, abs=0.008
    ), "beta of 0.8"


def test_without_pillow_operations_name_what_to_install(monkeypatch):
    augmentation.operations.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refusal(r"Pillow is not installed; run: pip install 'transduct\[vision\]'"):
        augmented(PICTURE, EVERYTHING, Random(1))
