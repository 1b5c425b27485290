"""Heat maps, charts and blocks show the numbers they are given."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.refusals import refusal
from transduct.drawing import plots
from transduct.drawing.plots import pillow, sheet
from transduct.drawing.svg import Line, Photograph, Picture, Rectangle, Text, text_width
from transduct.predictors.base import Panel

MATRIX = [[0.1, 0.9, 0.0], [0.5, 0.25, 0.25]]


def of_kind(picture, kind):
    return [shape for shape in picture.shapes if isinstance(shape, kind)]


def cells(picture):
    """The colour of each cell by its hint."""
    return {shape.hint: shape.fill for shape in of_kind(picture, Rectangle) if shape.hint}


def texts(picture):
    return [shape.text for shape in of_kind(picture, Text)]


def lightness(colour):
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_larger_values_are_darker():
    values = np.linspace(0, 1, 30)
    shades = [lightness(colour) for colour in cells(plots.heatmap([values])).values()]
    assert len(shades) == 30
    assert shades == sorted(shades, reverse=True)


def test_negative_values_are_blue_positive_ones_red_and_what_is_not_finite_is_grey():
    colours = list(cells(plots.heatmap([[-2.0, 0.0, 2.0, -math.inf, math.nan]])).values())
    ends = plots.DIVERGING
    assert colours == [ends[0], ends[3], ends[-1], plots.NOT_FINITE, plots.NOT_FINITE]


def test_labels_title_and_scale_are_written():
    picture = plots.heatmap(MATRIX, ["나는", "a"], ["I", "saw", " "], title="Attention")
    assert texts(picture) == ["Attention", "나는", "a", "I", "saw", "␣", "0", "0.9"]
    assert list(cells(picture))[1] == "나는, saw: 0.9"


def test_limits_set_the_scale():
    wide, narrow = plots.heatmap([[0.5]], limits=(0, 1)), plots.heatmap([[0.5]], limits=(0, 0.25))
    assert texts(wide) == ["0", "1"]
    assert list(cells(narrow).values()) == [plots.SEQUENTIAL[-1]]


@pytest.mark.parametrize("values", [[1e308, -1e308], [0.0, 5e-324], [1e-320, 1e-319]])
def test_numbers_that_hardly_fit_are_drawn(values):
    plots.curves([1, 2], {"a": values})
    plots.heatmap([values])
    plots.terminal([values])


@pytest.mark.parametrize("matrix", [np.zeros((2, 2)), [[math.nan, -math.inf]]])
def test_matrices_with_nothing_to_scale(matrix):
    assert texts(plots.heatmap(matrix)) == ["0", "1"]


def test_lists_arrays_and_tensors_look_the_same():
    half = torch.tensor(MATRIX, dtype=torch.bfloat16, requires_grad=True)
    assert (
        plots.heatmap(half)
        == plots.heatmap(half.tolist())
        == plots.heatmap(np.array(half.tolist()))
    )


LONG = "a label that is much too long to be written out in full"
PAGES = {
    "labels": lambda: plots.grid([("x", MATRIX, [LONG, "b"], ["c", "d", LONG])] * 5),
    "a title": lambda: plots.grid([("x", MATRIX, None, None)], title="title" * 30),
    "names": lambda: plots.grid([("name" * 20, MATRIX, None, None)] * 2),
    "names of photographs": lambda: plots.overlays(
        [("name" * 20, MATRIX, np.zeros((9, 9, 3), np.uint8))] * 2
    ),
    "a legend": lambda: plots.curves([1, 2], {"a": [1, 2], "b" * 20: [3, 4]}),
    "many lines": lambda: plots.curves([1, 2], {str(i): [i, 2] for i in range(30)}),
    "large numbers": lambda: plots.curves([1, 2], {"a": [0, 1e6]}, y_label="y"),
}


def extent(shape):
    """The left, upper, right and lower ends of a shape."""
    if isinstance(shape, Line):
        across, down = zip((0, 0), *shape.points)
        return (
            shape.x + min(across),
            shape.y + min(down),
            shape.x + max(across),
            shape.y + max(down),
        )
    if not isinstance(shape, Text):
        return shape.x, shape.y, shape.x + shape.width, shape.y + shape.height
    width = text_width(shape.text, shape.size)
    if shape.angle:  # to the upper right
        return shape.x, shape.y - width * 0.5**0.5, shape.x + width * 0.5**0.5, shape.y
    left = shape.x - width * {"start": 0, "middle": 0.5, "end": 1}[shape.anchor]
    return left, shape.y - 0.7 * shape.size, left + width, shape.y


@pytest.mark.parametrize("page", PAGES)
def test_everything_lies_on_the_page(page):
    picture = PAGES[page]()
    lefts, tops, rights, bottoms = zip(*map(extent, picture.shapes))
    assert min(lefts) >= 0
    assert min(tops) >= 0
    assert max(rights) <= picture.width
    assert max(bottoms) <= picture.height


def test_pictures_of_a_page_stand_below_each_other():
    one, other = (plots.curves([0, 1], {"loss": [2, 1]}, title) for title in ("first", "second"))
    both = plots.page([one, other])
    at = {shape.text: shape.y for shape in of_kind(both, Text)}
    assert at["second"] - at["first"] >= one.height
    assert both.height >= one.height + other.height
    assert both.width < plots.page([one, other], 2).width


@pytest.mark.parametrize("page", ["names", "names of photographs"])
def test_the_names_of_neighbours_do_not_overlap(page):
    one, other = (extent(s) for s in of_kind(PAGES[page](), Text) if s.text.startswith("name"))
    assert one[2] < other[0]


def test_a_page_of_many_large_heat_maps_is_no_wider_than_a_screen():
    assert plots.grid([("", np.eye(64), None, None)] * 16).width < 1000


def test_heat_maps_of_a_row_stand_on_one_line():
    picture = plots.grid(
        [("", [[1.0]], None, None), ("", [[1.0], [1.0], [1.0]], None, None)], per_row=2
    )
    bottoms = [extent(shape)[3] for shape in of_kind(picture, Rectangle) if shape.hint]
    assert bottoms[0] == max(bottoms)


def test_the_colour_bar_has_each_number_beside_its_colour():
    picture = plots.heatmap([[-2.0, 2.0]])
    bar = [shape for shape in of_kind(picture, Rectangle) if not shape.hint]
    high, middle, low = sorted(of_kind(picture, Text), key=lambda s: s.y)
    assert [text.text for text in (high, middle, low)] == ["2", "0", "-2"]
    assert min(middle.y - high.y, low.y - middle.y) > 12, "none lies upon another"
    top, bottom = min(bar, key=lambda each: each.y), max(bar, key=lambda each: each.y)
    assert (top.fill, bottom.fill) == (plots.DIVERGING[-1], plots.DIVERGING[0])


def test_a_large_heat_map_leaves_out_labels_and_hints():
    names = [str(i) for i in range(200)]
    picture = plots.heatmap(np.eye(200), names, names)
    assert not cells(picture)
    assert len(texts(picture)) < 200
    assert max(picture.width, picture.height) < 900


def test_panels_share_one_scale_and_stand_in_rows():
    picture = plots.grid(
        [("one", [[1.0]], None, None), ("two", [[4.0]], None, None)] * 2, per_row=2
    )
    assert set(cells(picture).values()) == {
        plots.SEQUENTIAL[-1],
        cells(plots.heatmap([[1.0, 4.0]]))["0, 0: 1"],
    }
    titles = [shape for shape in of_kind(picture, Text) if shape.bold]
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = [(title.x, title.y) for title in titles]
    assert (x0, x1, y0, y2) == (x2, x3, y1, y3)
    assert x0 < x1
    assert y0 < y2


def test_curves_pass_through_their_points():
    picture = plots.curves([0, 10, 20], {"loss": [4.0, 2.0, 0.0]}, "title", "step", "nats")
    assert {"title", "step", "nats", "loss", "0", "4", "20"} <= set(texts(picture))
    (curve, _) = [shape for shape in of_kind(picture, Line) if shape.width >= 2]
    # half way, then to the corner of the 520 x 280 plot
    assert curve.points == ((260, 140), (520, 280))


def test_a_gap_parts_a_curve_and_a_point_alone_is_seen():
    picture = plots.curves([0, 1, 2, 3, 4], {"loss": [1, 2, math.nan, 3, math.inf]}, y_label="loss")
    assert sum(shape.width == 2 for shape in of_kind(picture, Line)) == 1
    assert len(of_kind(picture, Rectangle)) == 1


@pytest.mark.parametrize(
    "values, expected",
    [
        ([0, 1], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ([0, 20_000], ["0", "5,000", "10,000", "15,000", "20,000"]),
        ([3, 3], ["1", "2", "3", "4", "5"]),
        ([0, 2e7], ["0", "5,000,000", "1e+07", "1.5e+07", "2e+07"]),
        ([0, 5e-6], ["0", "1e-06", "2e-06", "3e-06", "4e-06", "5e-06"]),
        ([math.nan], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_ticks_are_round_numbers_around_the_values(values, expected):
    ticks, labels = plots._ticks(np.array(values, dtype=float))
    assert labels == expected
    assert not any(value < ticks[0] - 1e-9 or value > ticks[-1] + 1e-9 for value in values)


def test_terminal_columns_are_as_wide_as_their_labels():
    assert plots.terminal([[1.0, 0.5], [0.0, math.nan]], ["나", "abc"], ["어제", "b"]) == (
        "    어제 b\n"
        " 나 ████ ▄▄\n"
        "abc      ··\n"
    )  # fmt: skip


def test_terminal_without_labels():
    assert plots.terminal([[0, 1], [1, 0]]) == "    ██\n ██\n"
    assert plots.terminal([[-1, 0, 1]]) == "    ▄▄ ██\n"


def test_terminal_prints_no_control_characters():
    assert "\x1b" not in plots.terminal([[1.0]], ["\x1b[31m"], ["\x1b]0;"])


@pytest.mark.parametrize(
    "ending, start",
    [(".svg", b"<svg"), (".SVG", b"<svg"), (".png", b"\x89PNG"), (".PNG", b"\x89PNG")],
)
def test_save_writes_the_format_the_name_ends_in(tmp_path, ending, start):
    plots.save(plots.heatmap(MATRIX), tmp_path / f"attention{ending}")
    (file,) = tmp_path.iterdir()
    assert file.read_bytes().startswith(start)


def test_save_refuses_other_names_and_says_what_cannot_be_written(tmp_path):
    picture = Picture(10, 10, ())
    with refusal(r"a\.pdf' does not name a picture; end it in \.svg or \.png"):
        plots.save(picture, tmp_path / "a.pdf")
    with refusal(r"a\.gif' does not name a picture; end it in \.svg or \.png"):
        plots.check_ending(tmp_path / "a.gif")
    plots.check_ending(None)
    plots.check_ending(tmp_path / "a.SVG")
    with refusal(r"a\.svg: cannot be written \(No such file or directory\); see that"):
        plots.save(picture, tmp_path / "missing" / "a.svg")
    (tmp_path / "folder.svg").mkdir()
    with refusal("Is a directory"):
        plots.save(picture, tmp_path / "folder.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


@pytest.mark.parametrize(
    "matrix, rows, columns, message",
    [
        ([[1, 2], [3]], None, None, "matrix is not made of numbers in equal rows"),
        ([["a"]], None, None, "matrix is not made of numbers in equal rows"),
        ([1, 2], None, None, r"matrix has the shape \(2,\); give 2 dimensions"),
        ([[]], None, None, r"matrix has the shape \(1, 0\); give 2 dimensions, none of them 0"),
        ([[1, 2]], ["a", "b"], None, "2 row labels for 1 rows; give one for each"),
        ([[1, 2]], None, ["a"], "1 column labels for 2 columns; give one for each"),
    ],
)
@pytest.mark.parametrize("draw", [plots.heatmap, plots.terminal])
def test_matrix_and_labels_must_fit(draw, matrix, rows, columns, message):
    with refusal(message):
        draw(matrix, rows, columns)


@pytest.mark.parametrize(
    "draw, message",
    [
        (lambda: plots.grid([]), "no heat map to draw; give at least one"),
        (
            lambda: plots.heatmap([[1]], limits=(1, 1)),
            r"limits \(1, 1\) are not in order; give the l",
        ),
        (lambda: plots.overlays([]), "no photograph to draw; give at least one"),
        (lambda: plots.curves([1, 2], {}), "no line to draw; give at least one"),
        (lambda: plots.curves([1, 2], {"loss": [1]}), "'loss' has 1 values, x has 2; give equally"),
        (
            lambda: plots.curves([[1]], {"loss": [1]}),
            r"x has the shape \(1, 1\); give 1 dimensions",
        ),
    ],
)
def test_what_cannot_be_drawn_is_said(draw, message):
    with refusal(message):
        draw()


@pytest.mark.parametrize("size", [(900, 1200), (1, 2000), (320, 100)])
def test_a_large_photograph_is_kept_at_twice_its_size_on_the_page(size):
    shades = np.linspace(0, 250, size[1])[None, :, None]
    values = shades.repeat(size[0], 0).repeat(3, 2).astype(np.uint8)
    [shape] = of_kind(plots.overlays([("", [[0.0]], values)]), Photograph)
    assert max(shape.pixels.shape[:2]) <= 320
    assert shape.pixels.mean() == pytest.approx(values.mean(), abs=1.0)
    assert max(shape.width, shape.height) == 160
    if size == (320, 100):
        assert np.array_equal(shape.pixels, values)


def test_a_photograph_is_red_where_the_matrix_is_large():
    grey = np.full((6, 8, 3), 100, np.uint8)
    matrix = [[0.0, 0.0], [0.0, 0.4]]
    picture = plots.overlays(
        [("one", matrix, grey), ("two", torch.zeros(3, 4), grey)], title="both"
    )
    one, two = of_kind(picture, Photograph)
    assert texts(picture) == ["both", "one", "two"]
    assert np.array_equal(one.pixels[:3], grey[:3])
    assert np.array_equal(one.pixels[3:, 4:], np.broadcast_to([190, 54, 54], (3, 4, 3)))
    assert np.array_equal(one.pixels[3:, :4], grey[3:, :4])
    assert np.array_equal(two.pixels, grey)  # what is nowhere large reddens nothing
    assert (one.width, one.height) == (160, 120)
    assert two.x > one.x + one.width
    assert picture.width > two.x + two.width


def test_what_is_below_zero_reddens_nothing():
    grey = np.full((4, 6, 3), 100, np.uint8)
    [shape] = of_kind(plots.overlays([("", [[-0.4, 0.0, 0.4]], grey)]), Photograph)
    assert np.array_equal(shape.pixels[:, :4], grey[:, :4])
    assert not np.array_equal(shape.pixels[:, 4:], grey[:, 4:])


def attending(count, cells, layers=1):
    """A model with this many layers, heads and weights per head."""
    panels = [Panel(f"head {i}", torch.full(cells, 0.5)) for i in range(count * layers)]
    weights = {f"encoder.{i}.self": torch.zeros(count, *cells) for i in range(layers)}
    found = SimpleNamespace(panels=lambda: panels, weights=weights)
    return SimpleNamespace(attention=lambda given: found)


def test_the_heads_of_a_layer_stand_in_a_row(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "save", lambda picture, path: drawn.append(picture))
    plots.draw_attention(attending(3, (2, 2), layers=4), "a b", tmp_path / "a.svg", {})
    down = {s.text: s.y for s in of_kind(drawn[0], Text) if s.text.startswith("head")}
    assert len({*down.values()}) == 4
    assert len({down[f"head {i}"] for i in range(3)}) == 1


def test_an_input_that_is_no_text_is_no_title(tmp_path):
    plots.draw_attention(attending(1, (2, 2)), b"\x89PNG", tmp_path / "a.svg", {})
    assert "PNG" not in (tmp_path / "a.svg").read_text()


def test_more_weights_than_a_page_takes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "MOST_CELLS", 32)
    plots.draw_attention(attending(2, (4, 4)), "a b", tmp_path / "a.svg", {})
    message = "50 weights are too many to draw, 32 at most; give a shorter input"
    with refusal(message):
        plots.draw_attention(attending(2, (5, 5)), "a b", tmp_path / "b.svg", {})
    assert not (tmp_path / "b.svg").exists()


def test_a_long_input_makes_no_wide_page(tmp_path):
    for given, ending in (("short", "short<"), ("x" * 5000, "x" * 119 + "…<")):
        plots.draw_attention(attending(1, (4, 4)), given, tmp_path / "a.svg", {})
        drawn = (tmp_path / "a.svg").read_text()
        assert ending in drawn
        assert len(drawn) < 5000


def test_a_long_label_is_cut_where_it_is_read():
    [(_, label)], _ = plots._spaced(["x" * 10**6], 12.0)
    assert label == "x" * 23 + "…"


def pictures(count):
    return np.random.default_rng(1).integers(0, 256, (count, 6, 6, 3)).astype(np.uint8)


def test_a_page_holds_every_picture_and_its_caption():
    page = sheet([[picture] for picture in pictures(9)], ["a long caption of several words"] * 9)
    assert page.shape[1] > 8 * 128
    bare = sheet([[picture] for picture in pictures(9)])
    assert bare.shape[0] < page.shape[0]
    assert np.array_equal(page[8:134:21, 8:134:21], pictures(9)[0])
    stacked = sheet([pictures(2)])
    assert np.array_equal(stacked[8 + 128 : 8 + 128 + 126 : 21, 8:134:21], pictures(2)[1])


def test_without_pillow_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refusal(r"Pillow is not installed; run: pip install 'transduct\[vision\]'"):
        pillow()
