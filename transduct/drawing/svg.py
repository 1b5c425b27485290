"""Pages of rectangles, lines, texts and photographs, written as SVG without dependencies or as PNG
by matplotlib.

Both formats look the same. `pictures` does the layout.
"""

import base64
import io
import sys
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from transduct.data.images import encode_picture
from transduct.errors import needing

INK = "#24292f"
# Fonts with Hangul. matplotlib lists the collection of all Noto Sans CJK fonts under its first
# face, the Japanese one.
FONTS = (
    "Noto Sans CJK KR",
    "Noto Sans KR",
    "NanumGothic",
    "Malgun Gothic",
    "Apple SD Gothic Neo",
    "Noto Sans CJK JP",
)
PNG = Path("photograph.png")  # whose ending says the format
COLUMN = 0.58  # em; a Latin letter is about one column wide, a Hangul syllable two


@dataclass(frozen=True)
class Rectangle:
    """A filled rectangle with its upper left corner at (x, y); SVG viewers show the hint as a
    tooltip."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    hint: str = ""


@dataclass(frozen=True)
class Line:
    """A line from (x, y) through points given relative to it."""

    x: float
    y: float
    points: tuple[tuple[float, float], ...]
    colour: str = INK
    width: float = 1


@dataclass(frozen=True)
class Text:
    """Text whose baseline starts, is centred or ends at (x, y), rotated clockwise about it by
    `angle` degrees."""

    x: float
    y: float
    text: str
    size: float = 12
    anchor: str = "start"
    angle: float = 0
    bold: bool = False


@dataclass(frozen=True, eq=False)
class Photograph:
    """Pixels (height, width, 3) from 0 to 255, stretched over a rectangle."""

    x: float
    y: float
    width: float
    height: float
    pixels: np.ndarray


Shape = Rectangle | Line | Text | Photograph


@dataclass(frozen=True)
class Picture:
    """Shapes on a white page, in pixels from its upper left corner. Notebooks display it."""

    width: float
    height: float
    shapes: tuple[Shape, ...]

    def svg(self) -> str:
        """The picture as the text of an SVG file."""
        size = f'width="{_number(self.width)}" height="{_number(self.height)}"'
        box = f'viewBox="0 0 {_number(self.width)} {_number(self.height)}"'
        fonts = ", ".join(f"'{font}'" for font in FONTS)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} xml:space="preserve"',
            f'     font-family="{fonts}, sans-serif" fill="{INK}">',
            "<style>rect { shape-rendering: crispEdges }</style>",  # no seams between cells
            f'<rect {size} fill="#ffffff"/>',
            *(_element(shape) for shape in self.shapes),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _repr_svg_(self) -> str:
        return self.svg()

    def png(self, scale: float = 2) -> bytes:
        """The picture as a PNG file with `scale` dots to a pixel.

        Raises TransductError if matplotlib is not installed. Warns on stderr if no font holds its
        Hangul.
        """
        with needing("plots", "matplotlib"):
            from matplotlib.figure import Figure
        figure = Figure(figsize=(self.width / 100, self.height / 100), dpi=100 * scale)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(self.height, 0))
        axes.set_axis_off()
        _draw(axes, self.shapes)
        file = io.BytesIO()
        with warnings.catch_warnings():
            # `_warn_of_missing_font` warns once instead, with a remedy.
            warnings.filterwarnings("ignore", r"Glyph .*HANGUL", UserWarning)
            figure.savefig(file, format="png", metadata={"Software": None})
        return file.getvalue()


def moved(shapes: Sequence[Shape], x: float, y: float) -> list[Shape]:
    """The shapes moved right by x and down by y."""
    return [replace(shape, x=shape.x + x, y=shape.y + y) for shape in shapes]


def printable(text: str) -> str:
    """Text safe for a terminal and for XML: control characters become control pictures (␀) or
    U+FFFD."""
    return "".join(map(_printable, unicodedata.normalize("NFC", text)))


def text_columns(text: str) -> int:
    """The width of a text in terminal columns; Hangul and other East Asian wide characters take
    two."""
    return sum(_character_columns(character) for character in text)


def text_width(text: str, size: float) -> float:
    """The approximate width of a text in pixels, rarely an underestimate, so that labels fit in any
    font."""
    return text_columns(text) * size * COLUMN


def _printable(character: str) -> str:
    if character < " ":
        return chr(0x2400 + ord(character))
    if character == "\x7f":
        return "\u2421"
    # Other controls, surrogates and line separators; XML forbids U+FFFE and U+FFFF.
    if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in "\ufffe\uffff":
        return "\ufffd"
    return character


def _character_columns(character: str) -> int:
    # Vowels and final consonants of decomposed Hangul combine with the syllable before them.
    if unicodedata.category(character) in ("Mn", "Me", "Cf") or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _element(shape: Shape) -> str:
    x, y = _number(shape.x), _number(shape.y)
    match shape:
        case Rectangle():
            size = f'width="{_number(shape.width)}" height="{_number(shape.height)}"'
            element = f'<rect x="{x}" y="{y}" {size} fill="{shape.fill}"'
            return (
                f"{element}><title>{escape(printable(shape.hint))}</title></rect>"
                if shape.hint
                else f"{element}/>"
            )
        case Line():
            points = " ".join(
                f"{_number(shape.x + right)},{_number(shape.y + down)}"
                for right, down in shape.points
            )
            stroke = f'stroke="{shape.colour}" stroke-width="{_number(shape.width)}"'
            return (
                f'<polyline points="{x},{y} {points}" fill="none" {stroke} '
                'stroke-linejoin="round"/>'
            )
        case Text():
            weight = ' font-weight="bold"' if shape.bold else ""
            turn = f' transform="rotate({_number(shape.angle)} {x} {y})"' if shape.angle else ""
            place = (
                f'x="{x}" y="{y}" font-size="{_number(shape.size)}" text-anchor="{shape.anchor}"'
            )
            return f"<text {place}{weight}{turn}>{escape(printable(shape.text))}</text>"
        case Photograph():
            size = (
                f'width="{_number(shape.width)}" height="{_number(shape.height)}" '
                'preserveAspectRatio="none"'
            )
            data = base64.b64encode(encode_picture(shape.pixels, PNG)).decode()
            return (
                f'<image x="{x}" y="{y}" {size} image-rendering="pixelated" '
                f'href="data:image/png;base64,{data}"/>'
            )


def _draw(axes: Any, shapes: Sequence[Shape]) -> None:
    from matplotlib.collections import PolyCollection

    point = (
        72 / 100
        # points per pixel: font sizes and line widths are in points (72 per inch); an inch is 100
        # pixels
    )
    rectangles = [shape for shape in shapes if isinstance(shape, Rectangle)]
    corners = [
        [(r.x, r.y), (r.x + r.width, r.y), (r.x + r.width, r.y + r.height), (r.x, r.y + r.height)]
        for r in rectangles
    ]
    fills = [rectangle.fill for rectangle in rectangles]
    axes.add_collection(
        PolyCollection(corners, facecolors=fills, linewidths=0, antialiased=False), autolim=False
    )
    for shape in shapes:
        if isinstance(shape, Photograph):
            extent = (shape.x, shape.x + shape.width, shape.y + shape.height, shape.y)
            axes.imshow(shape.pixels, extent=extent, aspect="auto", interpolation="nearest")
    texts = [shape for shape in shapes if isinstance(shape, Text)]
    fonts = _installed_fonts(
        any("\uac00" <= character <= "\ud7a3" for text in texts for character in text.text)
    )
    for line in shapes:
        if isinstance(line, Line):
            across = [line.x, *(line.x + right for right, _ in line.points)]
            down = [line.y, *(line.y + below for _, below in line.points)]
            axes.plot(
                across,
                down,
                color=line.colour,
                linewidth=line.width * point,
                solid_joinstyle="round",
            )
    for text in texts:
        axes.text(
            text.x,
            text.y,
            printable(text.text),
            fontsize=text.size * point,
            fontfamily=fonts,
            fontweight="bold" if text.bold else "normal",
            color=INK,
            horizontalalignment={"start": "left", "middle": "center", "end": "right"}[text.anchor],
            verticalalignment="baseline",
            rotation=-text.angle,
            rotation_mode="anchor",
            parse_math=False,  # a token may contain a dollar sign
        )


def _installed_fonts(hangul: bool) -> list[str]:
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    found = [font for font in FONTS if font in installed]
    if hangul and not found:
        _warn_of_missing_font()
    return [*found, "DejaVu Sans"]  # bundled with matplotlib


@cache
def _warn_of_missing_font() -> None:
    sys.stderr.write(
        f"transduct: no font with Hangul is installed, so PNG shows boxes; install {FONTS[0]}\n"
    )
