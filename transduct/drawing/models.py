"""The whole model, counted and drawn from its weights: its parts, their shapes and parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from transduct.drawing.plots import SEQUENTIAL
from transduct.drawing.svg import (
    Line,
    Picture,
    Rectangle,
    Shape,
    Text,
    text_columns,
    text_width,
)

SHOWN_LAYERS = 2  # as in the notes: two stacked layers say that there are more
BOX, GAP, COLUMN, LEFT, SPACE = 24.0, 8.0, 300.0, 24.0, 80.0
# Which side of an encoder-decoder a top module stands on, by the start of its name.
RIGHT = ("target", "decoder", "output", "ctc", "bridge", "attention")
INPUTS = (
    "source_embedding",
    "target_embedding",
    "source_table",
    "target_table",
    "embedding",
    "stem",
    "patches",
    "types",
    "positions",
    "backbone",
    "class_token",
)
ORDER = {"self_attention": 0, "cross_attention": 1, "feed_forward": 2}  # of a layer's parts


@dataclass
class Part:
    """The parameters that layers have in the same place.

    Attributes:
        name: as in the model, with a star for the number of the layer.
        shape: of its weight in each layer.
        layers: in how many layers it is.
        parameters: of all layers, with biases; what is shared counts where it comes first.
    """

    name: str
    shape: str = ""
    layers: set[str] = field(default_factory=set)
    parameters: int = 0


Weights = Mapping[str, Tensor]  # by name, as in a model or its file; shared ones once


def parts(weights: Weights) -> list[Part]:
    """All parts of a model, from its input to its output."""
    found: dict[str, Part] = {}
    for name in sorted(weights, key=place):
        steps = name.split(".")
        starred = ["*" if step.isdigit() else step for step in steps]
        own = ".".join(starred[:-1] if starred[-1] in ("weight", "bias", "table") else starred)
        part = found.setdefault(own or name, Part(own or name))
        part.parameters += weights[name].numel()
        part.layers.add(".".join(step for step in steps if step.isdigit()))
        if weights[name].ndim > 1 or not part.shape:
            part.shape = " x ".join(map(str, weights[name].shape))
    return [*found.values()]


def place(name: str) -> int:
    """Embeddings come first, then stacks of layers, the encoder's before the decoder's, then norms
    and heads."""
    if name.startswith(INPUTS):
        return 0
    if any(step.isdigit() for step in name.split(".")):
        return 1 if name.startswith("encoder") else 2
    return 3


def described(weights: Weights) -> list[list[str]]:
    """The table of the parts of a model, its last line the sum."""
    lines = [["part", "shape", "layers", "parameters"]]
    rows = parts(weights)
    lines += [[p.name, p.shape, str(len(p.layers)), f"{p.parameters:,}"] for p in rows]
    return [*lines, ["all", "", "", f"{sum(p.parameters for p in rows):,}"]]


def columns(weights: Weights) -> list[list[tuple[str, list[str]]]]:
    """The boxes of a drawing from the input to the output: of an encoder, and of a decoder."""
    tops = list(dict.fromkeys(name.split(".")[0] for name in sorted(weights, key=place)))
    both = {"encoder", "decoder"} <= {*tops}
    sides = [
        [top for top in tops if (both and top.startswith(RIGHT)) is right]
        for right in (False, True)
    ]
    return [[box for top in side for box in boxes(top, weights)] for side in sides if side]


def drawing(weights: Weights, title: str = "") -> Picture:
    """The parts of a model from its input (below) to its output (above), the encoder's side on the
    left, with at most two layers of each stack and how many there are."""
    sides = columns(weights)
    height = max(sum(map(size, column)) for column in sides) + 84
    shapes: list[Shape] = [Text(16, 28, title, 15, bold=True)] if title else []
    crossings: list[float] = []  # the heights at which decoder layers read the memory
    highest: list[float] = []
    for number, column in enumerate(sides):
        y, x = height - 20, LEFT + number * (COLUMN + SPACE)
        for box in column:
            y -= size(box)
            shapes += drawn(box, x, y)
            inner = [line.split(" ")[0] for line in reversed(box[1])]
            if "cross_attention" in inner:
                crossings.append(y + BOX * (1.4 + inner.index("cross_attention")))
        highest.append(y)
    for level in crossings:  # the top of the encoder goes to every layer of the decoder
        start, down = LEFT + COLUMN, level - highest[0] - 12
        way = ((SPACE / 2, 0.0), (SPACE / 2, down), (SPACE, down))
        shapes.append(Line(start, highest[0] + 12, way))
    if crossings:
        shapes.append(Text(LEFT + COLUMN + 4, highest[0] + 6, "keys, values", 9))
    width = max(LEFT * 2 + len(sides) * (COLUMN + SPACE) - SPACE, text_width(title, 15) + 32)
    return Picture(width, height, tuple(shapes))


def boxes(top: str, weights: Weights) -> Iterator[tuple[str, list[str]]]:
    """A title and inner lines for each box of a part at the top of a model: one for each of the
    first layers of a stack, or one."""
    own = {name: w for name, w in weights.items() if name.split(".")[0] == top}
    total = sum(weight.numel() for weight in own.values())
    layers: dict[int, dict[str, dict[str, list[str]]]] = {}
    for name, weight in own.items():
        steps = name.split(".")
        number = next((i for i, step in enumerate(steps) if step.isdigit()), None)
        if number is None:
            continue
        parts = layers.setdefault(int(steps[number]), {})
        inside = steps[number + 1]
        if weight.ndim > 1 and not inside.startswith("around"):
            shape = "x".join(map(str, weight.shape))
            letters = parts.setdefault(inside, {}).setdefault(shape, [])
            letters.append(steps[number + 2][0].upper() if len(steps) > number + 3 else "W")
    if not layers:
        yield f"{top}  {total:,}", []
        return
    for number in sorted(layers)[:SHOWN_LAYERS]:
        lines = [
            f"{name}  " + "  ".join(f"{','.join(each)} {shape}" for shape, each in parts.items())
            for name, parts in sorted(
                layers[number].items(), key=lambda line: ORDER.get(line[0], 1)
            )
        ]
        yield f"{top} {number + 1}", lines
    if len(layers) > SHOWN_LAYERS:
        yield f"... {len(layers)} layers in all: {total:,}", []


def size(box: tuple[str, list[str]]) -> float:
    """The height of a box and the space beneath it."""
    return BOX * (1 + len(box[1])) + GAP


def drawn(box: tuple[str, list[str]], x: float, y: float) -> Iterator[Shape]:
    """A box with its title above its parts, the first part lowest, as data flows upwards."""
    title, lines = box
    yield Rectangle(x, y, COLUMN, size(box) - GAP, SEQUENTIAL[0 if lines else 1])
    yield Text(x + 8, y + 16, title, 11, bold=bool(lines))
    for number, line in enumerate(reversed(lines)):
        top = y + BOX * (1 + number)
        yield Rectangle(x + 8, top, COLUMN - 16, BOX - 4, SEQUENTIAL[1])
        yield Text(x + 14, top + 14, line, 10)


def aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Cells under each other, numbers to the right of their column."""
    widths = [max(map(text_columns, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [" " * (width - text_columns(cell)) + cell for cell, width in zip(line, widths)]
        yield "  ".join(cells).rstrip()
