"""Scenes for object detection, made of photographs that are pasted on a canvas."""

from collections.abc import Callable

import numpy as np

from transduct.data.annotated_images import Collage, Example, SceneCorpus
from transduct.data.images import Picture, resized

OVERLAP = 0.1  # the largest overlap of two photographs, as a share of the smaller one
TRIES = 20  # places tried for a photograph before it is left out
STRETCH = 0.2  # width and height are scaled by up to exp(STRETCH) and its inverse


def pasted(
    photograph: Callable[[int], Example],
    photographs: int,
    collage: Collage,
    side: int,
    random: np.random.Generator,
) -> Example:
    """Make a scene: random photographs, half of them mirrored, pasted on a canvas with little
    overlap.

    Args:
        photograph: returns a photograph by its number, below `photographs`.
    """
    canvas, boxes = background(side, random), np.empty((0, 4))
    labels: list[int] = []
    low, high = collage.sizes[0], min(collage.sizes[1], side)
    for _ in range(random.integers(collage.objects[0], collage.objects[1] + 1)):
        example, stretch = (
            photograph(int(random.integers(photographs))),
            np.exp(random.uniform(-STRETCH, STRETCH)),
        )
        size = random.uniform(low, high)
        width, height = (
            int(np.clip(round(each), low, high)) for each in (size * stretch, size / stretch)
        )
        mirrored = random.random() < 0.5
        places = random.integers(0, [side - width + 1, side - height + 1], (TRIES, 2))
        tried = np.concatenate((places, places + np.array([width, height])), 1)  # (TRIES, 4)
        free = np.flatnonzero((_overlap(tried, boxes) <= OVERLAP).all(1))
        if not len(free):
            continue
        box = tried[free[0]]
        picture = example.picture[:, ::-1] if mirrored else example.picture
        canvas[box[1] : box[3], box[0] : box[2]] = resized(
            np.ascontiguousarray(picture), height, width
        )
        boxes, labels = np.concatenate((boxes, box[None])), [*labels, *example.labels.tolist()]
    return Example(canvas, boxes.astype(np.float32), np.array(labels, np.int64))


def _overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The intersections as shares of the smaller of two boxes: (m, 4), (n, 4) -> (m, n)."""
    first = np.maximum(boxes[:, None, :2], others[None, :, :2])
    last = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    areas = [(each[:, 2:] - each[:, :2]).prod(1) for each in (boxes, others)]
    return (last - first).clip(0).prod(2) / np.minimum(areas[0][:, None], areas[1][None])  # (m, n)


def background(side: int, random: np.random.Generator) -> Picture:
    """A canvas of one colour, of a smooth gradient of colours, or of noise."""
    cells = int(random.choice([1, 2, 4, 12, side]))
    low, high = np.sort(random.integers(0, 256, (2, 3)), axis=0)
    return resized(
        random.integers(low, high, (cells, cells, 3), np.uint8, endpoint=True), side, side
    )


COLLAGE = SceneCorpus(pasted)
