"""Pictures for tables 2 and 3: models by cost and score, and the scores of all trainings."""

import math
import statistics
from collections.abc import Mapping, Sequence

from paper_variations import BASE, Result

from transduct.drawing.plots import CURVE_COLOURS, FAINT, MARGIN
from transduct.drawing.svg import INK, Line, Picture, Rectangle, Shape, Text, text_width

Box = tuple[float, float, float, float]  # left, top, right, bottom
SMALL = 11  # font size beside points and ticks


def cost_and_score(
    models: Mapping[str, tuple[float, float]], ours: Mapping[str, tuple[float, float]]
) -> Picture:
    """A scatter plot of named models, BLEU against FLOPs (logarithmic); ours are larger and in
    another colour."""
    points = {**models, **ours}
    decades = _whole([math.log10(flops) for flops, _ in points.values()])
    scores = _whole([bleu for _, bleu in points.values()])
    left, top, width, height = MARGIN + 28, MARGIN + 56, 560, 360
    right, bottom = left + width, top + height
    shapes: list[Shape] = [
        Text(MARGIN, MARGIN + 13, "What a training costs and what it reaches", 15, bold=True)
    ]
    shapes += [
        Text(MARGIN, top - 14, "BLEU, English to German", 12),
        Text((left + right) / 2, bottom + 40, "FLOPs of the training", 12, "middle"),
    ]

    def across(flops: float) -> float:
        return left + (math.log10(flops) - decades[0]) / (decades[-1] - decades[0]) * width

    def down(bleu: float) -> float:
        return bottom - (bleu - scores[0]) / (scores[-1] - scores[0]) * height

    for score in scores[:: max(1, round(len(scores) / 8))]:
        y = down(score)
        shapes += [
            Line(left, y, ((width, 0),), FAINT),
            Text(left - 8, y + 4, str(score), SMALL, "end"),
        ]
    for decade in decades:
        x = across(10.0**decade)
        shapes += [
            Line(x, top, ((0, height),), FAINT),
            Text(x, bottom + 18, f"1e{decade}", SMALL, "middle"),
        ]
    boxes = [
        (across(flops) - 6, down(bleu) - 6, across(flops) + 6, down(bleu) + 6)
        for flops, bleu in points.values()
    ]
    for number, (name, (flops, bleu)) in enumerate(points.items()):
        half, colour = (5, CURVE_COLOURS[1]) if name in ours else (3, CURVE_COLOURS[0])
        x, y = across(flops), down(bleu)
        shapes.append(
            Rectangle(
                x - half,
                y - half,
                2 * half,
                2 * half,
                colour,
                f"{name}: {bleu:g}, {flops:.1e} FLOPs",
            )
        )
        shapes.append(
            _beside(x, y, name, [box for place, box in enumerate(boxes) if place != number], boxes)
        )
    return Picture(
        max(box[2] for box in [*boxes, (0, 0, right + 12, 0)]) + MARGIN,
        bottom + MARGIN + 36,
        tuple(shapes),
    )


def _whole(values: Sequence[float]) -> range:
    """The whole numbers that enclose the values, at least two."""
    return range(
        math.floor(min(values)), max(math.ceil(max(values)), math.floor(min(values)) + 1) + 1
    )


def _beside(x: float, y: float, name: str, others: Sequence[Box], boxes: list[Box]) -> Text:
    """Place the name of a point, if possible without covering any of `boxes`, and add its own box
    to them."""
    half, tall = text_width(name, SMALL) / 2, SMALL
    # above, below, right, left
    middles = [(x, y - 12), (x, y + 12), (x + half + 10, y), (x - half - 10, y)]
    places = [(a - half, b - tall / 2, a + half, b + tall / 2) for a, b in middles]
    box = next(
        (box for box in places if not any(_overlap(box, other) for other in others)), places[0]
    )
    boxes.append(box)
    return Text(box[0], box[3] - 2, name, SMALL)


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def strip(groups: Mapping[tuple[str, str], Sequence[Result]]) -> Picture:
    """A strip plot of the BLEU of all trainings, one row per value, with a vertical line at the
    base's mean."""
    points = {
        f"{row} {value}".strip(): [r.bleu for r in group if r.bleu is not None]
        for (row, value), group in groups.items()
    }
    scores = [score for found in points.values() for score in found]
    low, high = math.floor(min(scores, default=0.0)), math.floor(max(scores, default=0.0)) + 1
    left, top, width, step = (
        MARGIN + max(text_width(name, 12) for name in points) + 12,
        MARGIN + 44,
        480,
        20,
    )
    bottom = top + step * len(points)

    def across(score: float) -> float:
        return left + (score - low) / (high - low) * width

    shapes: list[Shape] = [
        Text(MARGIN, MARGIN + 13, "BLEU on the validation set, one point a seed", 15, bold=True)
    ]
    for tick in range(low, high + 1, max(1, round((high - low) / 8))):
        shapes += [
            Line(across(tick), top, ((0, bottom - top),), FAINT),
            Text(across(tick), bottom + 18, str(tick), 11, "middle"),
        ]
    if points[BASE]:
        shapes.append(Line(across(statistics.mean(points[BASE])), top, ((0, bottom - top),), INK))
    for number, (name, found) in enumerate(points.items()):
        y = top + step * (number + 0.5)
        shapes.append(Text(left - 12, y + 4, name, 12, "end"))
        shapes += [
            Rectangle(across(s) - 3, y - 3, 6, 6, CURVE_COLOURS[0], f"{name}: {s:.2f}")
            for s in found
        ]
    return Picture(left + width + MARGIN + 12, bottom + MARGIN + 24, tuple(shapes))
