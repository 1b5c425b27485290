import re
from itertools import combinations

import pytest
from paper_pictures import SMALL, cost_and_score

from transduct.drawing.svg import Rectangle, Text, text_width

CLOSE = {"one": (1e19, 25.0), "two": (1.1e19, 25.1), "far": (3e20, 28.9)}


def names_and_points(picture, names):
    """The texts beside the points, and the points by name."""
    texts = [shape for shape in picture.shapes if isinstance(shape, Text) and shape.text in names]
    points = {s.hint.split(":")[0]: s for s in picture.shapes if isinstance(s, Rectangle)}
    return texts, points


def test_what_costs_more_is_further_right_and_what_scores_more_further_up():
    picture = cost_and_score({"a": (1e18, 25.5), "b": (1e20, 24.0)}, {"ours": (1e19, 27.0)})
    _, points = names_and_points(picture, ())
    assert points["a"].x < points["ours"].x < points["b"].x
    assert points["ours"].y < points["a"].y < points["b"].y
    # logarithms
    assert points["ours"].x + 5 == pytest.approx((points["a"].x + points["b"].x) / 2 + 3)
    assert points["a"].fill == points["b"].fill != points["ours"].fill
    assert re.findall(r"<title>(.*?)</title>", picture.svg()) == [
        "a: 25.5, 1.0e+18 FLOPs", "b: 24, 1.0e+20 FLOPs", "ours: 27, 1.0e+19 FLOPs",
    ]  # fmt: skip


def test_names_cover_each_other_nowhere():
    texts, _ = names_and_points(cost_and_score(CLOSE, {"ours": (1.05e19, 24.9)}), [*CLOSE, "ours"])
    assert len(texts) == 4
    for one, other in combinations(texts, 2):
        apart = max(
            other.x - one.x - text_width(one.text, SMALL),
            one.x - other.x - text_width(other.text, SMALL),
        )
        assert apart >= 0 or abs(one.y - other.y) >= SMALL


def test_one_point_has_room():
    picture = cost_and_score({"a": (1e18, 25.0)}, {})
    assert all(
        0 <= shape.x <= picture.width and 0 <= shape.y <= picture.height for shape in picture.shapes
    )
