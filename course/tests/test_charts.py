"""Charts fit a slide and show every mean with its range, in the colour of its model."""

import re

import pytest
from transduct_course.charts import COLOURS, Chart, cells, slide

from course.tests.verdicts import DOCS
from transduct.drawing.svg import Line, Picture, Rectangle, Text

ROWS = [
    {"depth": depth, "model": model, "seed": seed, "loss": loss + seed * 0.1}
    for depth, loss in ((16, 1.0), (2, 4.0))
    for model in ("with residuals", "without residuals")
    for seed in (1, 2)
]


def texts(picture):
    return [shape.text for shape in picture.shapes if isinstance(shape, Text)]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("more", [{}, {"bars": True}, {"log": True}])
def test_charts_fit_a_slide(count, more):
    picture = slide(
        *[Chart(ROWS, "depth", "loss", "model", "Loss", "layers", "nats", **more)] * count
    )
    assert (picture.width, picture.height) == (800, 450)
    for shape in picture.shapes:
        assert 0 <= shape.x <= 800
        assert 0 <= shape.y <= 450
        if isinstance(shape, Line):
            assert all(0 <= shape.y + y <= 450 and 0 <= shape.x + x <= 800 for x, y in shape.points)
    assert texts(picture).count("without residuals") == count


def test_numbers_stand_in_order_and_lines_show_means_and_ranges():
    picture = slide(Chart(ROWS, "depth", "loss", "model", "Loss"))
    found = texts(picture)
    assert found.index("2") < found.index("16")
    lines = [shape for shape in picture.shapes if isinstance(shape, Line)]
    colour = COLOURS["without residuals"]
    ranges = [line for line in lines if line.colour == colour and line.width == 1]
    [mean] = [line for line in lines if line.colour == colour and line.width == 2]
    assert len(ranges) == 2
    assert all(line.points[0][1] < -2 for line in ranges)
    assert mean.points[0][1] > 100  # down from 4.15 to 1.15


def test_bars_begin_at_zero_and_missing_values_leave_gaps():
    rows = [*ROWS, {"depth": 32, "model": "with residuals", "seed": 1, "loss": None}]
    picture = slide(Chart(rows, "depth", "loss", "model", "Loss", bars=True))
    bars = [s for s in picture.shapes if isinstance(s, Rectangle) and s.height > 12]
    assert len(bars) == 4
    assert len({bar.y + bar.height for bar in bars}) == 1


def test_a_logarithmic_axis_has_powers_of_ten():
    rows = [{"x": x, "by": "a", "y": y} for x, y in ((1, 1e-6), (2, 1.0))]
    assert {"1e-06", "1"} <= {*texts(slide(Chart(rows, "x", "y", "by", "Gradients", log=True)))}


@pytest.mark.parametrize("path", sorted((DOCS / "learn").glob("*.svg")), ids=lambda path: path.name)
def test_every_picture_of_the_course_fits_a_slide(path):
    width, height = re.findall(r'(?:width|height)="([0-9.]+)"', path.read_text()[:300])[:2]
    assert float(width) <= 800
    assert float(height) <= 450


def test_a_picture_that_is_too_large_is_made_smaller():
    shapes = (Rectangle(100, 50, 800, 400, "red"), Text(0, 10, "a", 20), Line(8, 8, ((80, 80),)))
    rectangle, text, line = slide(Picture(1600, 450, shapes)).shapes
    assert (rectangle.x, rectangle.width, rectangle.height) == (50, 400, 200)
    assert (text.y, text.size, line.points) == (5, 10, ((40, 40),))
    beside = slide(Chart(ROWS, "depth", "loss", "model", "Loss"), Picture(400, 450, shapes))
    assert any(shape.x == 500 and shape.width == 800 for shape in beside.shapes[-3:-2])


def test_cells_are_as_dark_as_their_share_and_cut_what_is_too_long():
    made = cells([[("a", 0.0), ("b" * 40, 1.0)]], "Words", 100)
    pale, dark = (shape.fill for shape in made.shapes if isinstance(shape, Rectangle))
    assert pale > dark
    assert texts(made)[:2] == ["Words", "a"]
    assert texts(made)[2].endswith("b…")
    assert made.width == 224
