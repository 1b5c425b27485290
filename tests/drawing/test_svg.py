"""One drawing, two formats: well-formed SVG whatever the text holds, and PNG of the same size."""

import base64
import io
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.refusals import refusal
from transduct.drawing import svg
from transduct.drawing.svg import Line, Photograph, Picture, Rectangle, Text

SVG = "{http://www.w3.org/2000/svg}"
SHAPES = (
    Rectangle(10, 10, 30, 20, "#ff0000", "a hint"),
    Line(0, 50, ((60, 0),), "#0000ff", 4),
    Text(30, 40, "a & <b>", 10, "middle", angle=-45, bold=True),
)


@pytest.fixture
def no_fonts(monkeypatch):
    """Only the font that matplotlib brings along is installed, and nothing was warned of yet."""
    font_manager = pytest.importorskip("matplotlib.font_manager")
    only = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", only)
    svg._warn_of_missing_font.cache_clear()
    yield
    svg._warn_of_missing_font.cache_clear()


def pixels(png):
    """The picture's pixels (height, width, 3) from 0 to 255."""
    image = pytest.importorskip("matplotlib.image").imread(io.BytesIO(png))
    return np.round(image[..., :3] * 255).astype(int)


def test_svg_holds_every_shape():
    root = ElementTree.fromstring(Picture(60, 60, SHAPES).svg())
    page, rectangle = root.findall(f"{SVG}rect")
    assert (page.get("width"), rectangle.get("x"), rectangle.get("fill")) == ("60", "10", "#ff0000")
    assert rectangle.findtext(f"{SVG}title") == "a hint"
    assert root.find(f"{SVG}polyline").get("points") == "0,50 60,50"
    text = root.find(f"{SVG}text")
    assert (text.text, text.get("text-anchor"), text.get("transform")) == (
        "a & <b>",
        "middle",
        "rotate(-45 30 40)",
    )
    assert text.get("font-weight") == "bold"
    assert all(f"'{font}'" in root.get("font-family") for font in svg.FONTS)
    assert root.get("{http://www.w3.org/XML/1998/namespace}space") == "preserve", (
        "blanks within a token are seen"
    )


def test_a_notebook_shows_the_svg():
    picture = Picture(60, 60, SHAPES)
    assert picture._repr_svg_() == picture.svg()


@pytest.mark.parametrize(
    "text", ["\x00\x1b[31m", "\x7f\x85", "\ud800", "\ufffe\uffff", "a\nb\tc", "]]>", "&#0;"]
)
def test_any_text_makes_well_formed_svg(text):
    drawn = Picture(60, 60, (Rectangle(0, 0, 1, 1, "#000000", text), Text(0, 0, text))).svg()
    assert ElementTree.fromstring(drawn.encode()).findtext(f"{SVG}text") == svg.printable(text)


def test_printable_shows_control_characters():
    assert svg.printable("a\x00\n\x7f\x85\ud800\u2028\uffffz") == "a␀␊␡" + "\ufffd" * 4 + "z"


def test_printable_composes_hangul():
    assert svg.printable("\u1112\u1161\u11ab") == "한"


@pytest.mark.parametrize(
    "text, columns",
    [
        ("", 0),
        ("abc", 3),
        ("한국어", 6),
        ("\u1112\u1161\u11ab", 2),
        ("e\u0301", 1),
        ("，", 2),
        ("a\u200db", 2),
    ],
)
def test_columns_of_text(text, columns):
    assert svg.text_columns(text) == columns
    assert svg.text_width(text, 10) == columns * svg.text_width("a", 10)


def test_moved_shapes_keep_their_form():
    rectangle, line, text = svg.moved(SHAPES, 5, 7)
    assert (rectangle.x, rectangle.y, rectangle.width) == (15, 17, 30)
    assert (line.x, line.y, line.points) == (5, 57, ((60, 0),))
    assert (text.x, text.y) == (35, 47)


def test_png_puts_shapes_where_svg_does():
    image = pixels(Picture(60, 80, SHAPES[:2]).png(scale=2))
    assert image.shape == (160, 120, 3)
    red, blue = (image == (255, 0, 0)).all(-1), (image == (0, 0, 255)).all(-1)
    assert red[20:60, 20:80].all()
    assert red.sum() == 40 * 60
    assert blue[97:103, 5:-5].all()
    assert not blue[:90].any()


def test_png_is_the_same_each_time_and_takes_dollars_literally():
    picture = Picture(60, 60, (Text(0, 30, r"$\notmath$"),))
    assert picture.png() == picture.png()
    assert b"Software" not in picture.png(), "which would name the version of matplotlib"


def test_characters_that_cannot_be_drawn_are_replaced_in_the_png_too():
    odd, replaced = (
        Picture(60, 60, (Text(0, 30, text),)).png() for text in ("a\ud800b", "a\ufffdb")
    )
    assert odd == replaced


@pytest.mark.parametrize("angle, last, first", [(90, True, False), (-90, False, True)])
def test_text_is_turned_clockwise_in_the_png_as_in_the_svg(angle, last, first):
    ink = (
        pixels(Picture(100, 100, (Text(50, 50, "MMMM", 12, angle=angle),)).png(scale=1)).min(2)
        < 128
    )
    assert (ink[:45].any(), ink[55:].any()) == (first, last)


def test_text_of_the_png_stands_as_the_svg_says():
    def ink(**options):
        return (
            pixels(Picture(100, 100, (Text(50, 50, "MMMM", 12, **options),)).png(scale=1)).min(2)
            < 128
        )

    starts, middle, ends = (
        np.flatnonzero(ink(anchor=anchor).any(0)) for anchor in ("start", "middle", "end")
    )
    assert starts.min() >= 49
    assert abs(middle.mean() - 50) < 3
    assert ends.max() <= 51
    rows = np.flatnonzero(ink().any(1))
    assert rows.max() in (48, 49, 50), "on the baseline"
    assert 7 <= len(rows) <= 10, "three quarters of twelve pixels"
    assert ink(bold=True).sum() > 1.1 * ink().sum()


def test_a_missing_hangul_font_is_named_once(no_fonts, capsys):
    Picture(60, 60, (Text(0, 30, "한글"),)).png()
    Picture(60, 60, (Text(0, 30, "집"),)).png()
    assert capsys.readouterr().err == (
        "transduct: no font with Hangul is installed, so PNG shows boxes; install Noto Sans "
        "CJK KR\n"
    )


def test_no_warning_without_hangul_or_with_a_font(no_fonts, capsys, monkeypatch):
    from matplotlib import font_manager

    Picture(60, 60, (Text(0, 30, "abc"),)).png()
    assert svg._installed_fonts(hangul=False) == ["DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [SimpleNamespace(name="NanumGothic")])
    assert svg._installed_fonts(hangul=True) == ["NanumGothic", "DejaVu Sans"]
    assert capsys.readouterr().err == ""


def test_png_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with refusal(r"matplotlib is not installed; run: pip install 'transduct\[plots\]'"):
        Picture(60, 60, ()).png()


CORNERS = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [9, 9, 9]]], np.uint8)


def test_a_photograph_lies_in_the_svg_pixel_for_pixel():
    root = ElementTree.fromstring(Picture(60, 60, (Photograph(10, 5, 40, 50, CORNERS),)).svg())
    image = root.find(f"{SVG}image")
    assert [image.get(name) for name in ("x", "y", "width", "height")] == ["10", "5", "40", "50"]
    assert (image.get("preserveAspectRatio"), image.get("image-rendering")) == ("none", "pixelated")
    kind, _, data = image.get("href").partition(",")
    assert kind == "data:image/png;base64"
    assert np.array_equal(pixels(base64.b64decode(data)), CORNERS)


def test_a_photograph_is_stretched_in_the_png():
    found = pixels(Picture(60, 60, (Photograph(10, 5, 40, 50, CORNERS),)).png(scale=1))
    assert found[:5].min() == found[:, :10].min() == found[55:].min() == found[:, 50:].min() == 255
    for row, y in ((0, 15), (1, 45)):
        for column, x in ((0, 15), (1, 45)):
            assert np.array_equal(found[y, x], CORNERS[row, column])


def test_a_photograph_needs_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refusal(r"Pillow is not installed; run: pip install 'transduct\[vision\]'"):
        Picture(1, 1, (Photograph(0, 0, 1, 1, CORNERS),)).svg()
