"""Found boxes and the right ones to COCO's average precision, in percent.

A detection is right if it has the class and enough of the place (IoU) of an object that no better one has taken. In
the order of their scores the detections draw a curve of precision over recall; its mean height is average precision.
The rules are those of Lin et al. 2014 as pycocotools has them: IoU .50 to .95 in steps of .05, 101 places of recall,
the best 100 detections of a picture and class, objects of any area, the mean over the classes that have an object.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from transduct.errors import TransductError, WrongData
from transduct.functional.boxes import iou, pairwise

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MOST = 100  # detections of a picture and class


@dataclass(frozen=True)
class Found:
    """What is found in a picture, or, without scores, what is there.

    Attributes:
        boxes: (Q, 4) corners.
        labels: (Q,) class numbers.
        scores: (Q,) the higher the surer.
    """

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class Scores:
    """`ap`, `ap50`, and in the details both of each class that has an object."""

    scores: dict[str, float]
    details: dict[str, Any]


def detection_scores(found: Sequence[Found], there: Sequence[Found], classes: Sequence[str]) -> Scores:
    """Average precision over all thresholds (`ap`) and at IoU .50 (`ap50`).

    Args:
        found, there: of each picture.
        classes: the names of the labels.

    Raises:
        TransductError: the counts differ, or no picture holds an object.
    """
    if len(found) != len(there):
        raise TransductError(f"{len(found):,} predictions for {len(there):,} pictures; give one of each for a picture")
    each = {name: average_precision(found, there, label) for label, name in enumerate(classes)}
    held = {name: precision for name, precision in each.items() if precision is not None}
    if not held:
        raise WrongData("there is nothing to score; give at least one picture with an object")
    whole = np.stack([*held.values()])  # (classes, thresholds)
    details = {name: _named(precision) for name, precision in held.items()}
    objects = sum(len(picture.labels) for picture in there)
    return Scores(_named(whole), {"pictures": len(there), "objects": objects, "classes": details})


def _named(precision: np.ndarray) -> dict[str, float]:
    return {"ap50": 100 * float(precision[..., 0].mean()), "ap": 100 * float(precision.mean())}


def average_precision(found: Sequence[Found], there: Sequence[Found], label: int) -> np.ndarray | None:
    """(thresholds,) the average precision of a class; None if no picture holds it."""
    scores, rights, objects = [], [], 0
    for ours, truth in zip(found, there, strict=True):
        mine = np.flatnonzero(ours.labels == label)
        mine = mine[np.argsort(-ours.scores[mine], kind="stable")[:MOST]]
        truths = truth.boxes[truth.labels == label]
        objects += len(truths)
        scores.append(ours.scores[mine])
        rights.append(_right(ours.boxes[mine], truths))
    if not objects:
        return None
    order = np.argsort(-np.concatenate(scores), kind="stable")
    right = np.concatenate(rights, axis=1)[:, order]  # (thresholds, detections)
    hits = np.cumsum(right, axis=1)
    precision = hits / (np.arange(1, right.shape[1] + 1) + np.spacing(1))
    best_after = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return np.array([_mean_height(hits[t] / objects, best_after[t]) for t in range(len(THRESHOLDS))])


def _right(boxes: np.ndarray, truths: np.ndarray) -> np.ndarray:
    """(thresholds, detections) whether each detection, best first, takes an object that is still free.

    It takes the one with the highest IoU, of equal ones the last.
    """
    right = np.zeros((len(THRESHOLDS), len(boxes)), bool)
    if not len(boxes) or not len(truths):
        return right
    both = pairwise(torch.from_numpy(boxes.astype(np.float64)), torch.from_numpy(truths.astype(np.float64)))
    overlaps = iou(*both).numpy()  # (detections, objects)
    for row, threshold in zip(right, THRESHOLDS):
        free = np.ones(len(truths), bool)
        for number, overlap in enumerate(overlaps):
            candidates = np.where(free, overlap, -1.0)
            taken = len(truths) - 1 - int(candidates[::-1].argmax())
            if candidates[taken] >= min(threshold, 1 - 1e-10):
                row[number], free[taken] = True, False
    return right


def _mean_height(recall: np.ndarray, precision: np.ndarray) -> float:
    """The mean over `RECALLS` of the precision where each is first reached, 0 where it is not."""
    places = np.searchsorted(recall, RECALLS, side="left")
    return float(np.append(precision, 0.0)[places].mean())
