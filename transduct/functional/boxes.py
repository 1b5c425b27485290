"""Boxes in a picture: two ways to write them, and how much two of them have in common.

A box is (x0, y0, x1, y1), its upper left and lower right corner, or (x, y, width, height) with its centre in front.
Let A be boxes and Q others.
"""

import torch
from torch import Tensor

SMALLEST = 1e-20  # area that is divided by: two boxes without any have nothing in common


def to_corners(boxes: Tensor) -> Tensor:
    """Centre, width and height to corners: (..., 4) -> (..., 4)."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat((centre - half, centre + half), -1)  # (..., 4)


def to_centres(boxes: Tensor) -> Tensor:
    """Corners to centre, width and height: (..., 4) -> (..., 4)."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((first + last) / 2, last - first), -1)  # (..., 4)


def area(boxes: Tensor) -> Tensor:
    """Of boxes given by their corners: (..., 4) -> (...)."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of corner boxes, of each with its counterpart: (..., 4), (..., 4) -> (...)."""
    intersection, union = _overlap(boxes, others)
    return intersection / union.clamp(min=SMALLEST)


def generalised_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """IoU - (C - U) / C with U the union and C the smallest box around both (Rezatofighi et al. 2019, algorithm 1).

    It goes from -1, far apart, to 1, equal, and has a gradient where boxes do not meet: (..., 4), (..., 4) -> (...).
    """
    intersection, union = _overlap(boxes, others)
    first = torch.minimum(boxes[..., :2], others[..., :2])
    last = torch.maximum(boxes[..., 2:], others[..., 2:])
    around = _product(last - first)
    return intersection / union.clamp(min=SMALLEST) - (around - union) / around.clamp(min=SMALLEST)


def pairwise(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Each box beside each other, for `iou` and `generalised_iou`: (A, 4), (Q, 4) -> twice (A, Q, 4)."""
    shape = (len(boxes), len(others), 4)
    return boxes[:, None].expand(shape), others[None].expand(shape)  # (A, Q, 4)


def _product(sizes: Tensor) -> Tensor:
    """Width times height (..., 2) -> (...); the derivative of `prod` would wait for the device to look for zeros."""
    return sizes[..., 0] * sizes[..., 1]


def _overlap(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    first = torch.maximum(boxes[..., :2], others[..., :2])
    last = torch.minimum(boxes[..., 2:], others[..., 2:])
    intersection = _product((last - first).clamp(min=0))
    return intersection, area(boxes) + area(others) - intersection
