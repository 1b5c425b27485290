"""Bounding boxes: conversion between two formats, IoU and generalised IoU.

A box is given by its upper left and lower right corners, (x0, y0, x1, y1), or by its centre and
size, (x, y, width, height). Let A and Q be numbers of boxes.
"""

import torch
from torch import Tensor

SMALLEST = 1e-20  # smallest area to divide by, so that the IoU of two empty boxes is 0


def to_corners(boxes: Tensor) -> Tensor:
    """Convert centre, width and height to corners: (..., 4) -> (..., 4)."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat((centre - half, centre + half), -1)  # (..., 4)


def to_centres(boxes: Tensor) -> Tensor:
    """Convert corners to centre, width and height: (..., 4) -> (..., 4)."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((first + last) / 2, last - first), -1)  # (..., 4)


def area(boxes: Tensor) -> Tensor:
    """The area of corner boxes: (..., 4) -> (...)."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of corresponding corner boxes: (..., 4), (..., 4) -> (...)."""
    intersection, union = _overlap(boxes, others)
    return intersection / union.clamp(min=SMALLEST)


def generalised_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """IoU - (C - U) / C, where U is the union and C the smallest box that encloses both: (..., 4),
    (..., 4) -> (...).

    It ranges from -1, far apart, to 1, equal, and has a gradient even where the boxes do not
    overlap (Rezatofighi et al. 2019, algorithm 1).
    """
    intersection, union = _overlap(boxes, others)
    first = torch.minimum(boxes[..., :2], others[..., :2])
    last = torch.maximum(boxes[..., 2:], others[..., 2:])
    around = _product(last - first)
    return intersection / union.clamp(min=SMALLEST) - (around - union) / around.clamp(min=SMALLEST)


def pairwise(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of boxes, for `iou` and `generalised_iou`: (A, 4), (Q, 4) -> (A, Q, 4), (A, Q,
    4)."""
    shape = (len(boxes), len(others), 4)
    return boxes[:, None].expand(shape), others[None].expand(shape)  # (A, Q, 4)


def _product(sizes: Tensor) -> Tensor:
    """Width times height: (..., 2) -> (...). The gradient of `prod` would wait for the GPU to look
    for zeros."""
    return sizes[..., 0] * sizes[..., 1]


def _overlap(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    first = torch.maximum(boxes[..., :2], others[..., :2])
    last = torch.minimum(boxes[..., 2:], others[..., 2:])
    intersection = _product((last - first).clamp(min=0))
    return intersection, area(boxes) + area(others) - intersection
