"""Average precision of detected boxes by COCO's rules, in percent.

A detection is right if it has the class of an object, overlaps it enough (IoU), and no detection
with a higher score matches that object. Average precision is the mean of the interpolated
precision-recall curve. The rules are those of COCO (Lin et al. 2014) as in pycocotools: IoU .50 to
.95 in steps of .05, 101 points of recall, the best 100 detections of a picture and class, objects
of any area, the mean over the classes that have an object.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from transduct.errors import WrongData, require
from transduct.evaluation.bootstrap import interval
from transduct.functional.boxes import iou, pairwise

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MOST_DETECTIONS = 100  # per picture and class


@dataclass(frozen=True)
class Objects:
    """The detected or the true objects in a picture.

    Attributes:
        boxes: (Q, 4) corners.
        labels: (Q,) class numbers.
        scores: (Q,) confidences; of true objects they have no effect.
    """

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class Ranking:
    """The detections of one class in all pictures, by falling score.

    Attributes:
        right: (thresholds, D) whether each detection matches an object.
        pictures: (D,) the picture of each detection.
        objects: (pictures,) the number of objects of the class in each picture.
    """

    right: np.ndarray
    pictures: np.ndarray
    objects: np.ndarray

    def average_precision(self) -> np.ndarray:
        """The mean of the interpolated precision-recall curve, (thresholds,)."""
        hits = np.cumsum(self.right, axis=1)
        precision = hits / (np.arange(1, hits.shape[1] + 1) + np.spacing(1))
        best_after = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        recall = hits / self.objects.sum()
        return np.array([_mean_height(recall[t], best_after[t]) for t in range(len(THRESHOLDS))])

    def resampled(self, counts: np.ndarray) -> float | None:
        """Average precision at IoU .50 of pictures that were sampled so often; None without
        objects."""
        objects = counts @ self.objects
        if not objects:
            return None
        # the precision is highest at hits
        weights, hits = (counts[self.pictures], np.flatnonzero(self.right[0]))
        found = np.cumsum(weights[hits])
        precision = found / (np.cumsum(weights)[hits] + np.spacing(1))
        best_after = np.maximum.accumulate(precision[::-1])[::-1]
        return _mean_height(found / objects, best_after)


@dataclass(frozen=True)
class Scores:
    """`ap` and `ap50`; the details hold both for each class that has an object, and the interval of
    `ap50`.

    Attributes:
        rankings: those of the classes that have an object.
    """

    scores: dict[str, float]
    details: dict[str, Any]
    rankings: list[Ranking]

    def resampled(self, counts: np.ndarray) -> float:
        """`ap50` of resampled pictures; see `bootstrap.Score`."""
        each = [
            precision
            for ranking in self.rankings
            if (precision := ranking.resampled(counts)) is not None
        ]
        return 100 * float(np.mean(each)) if each else 0.0


def detection_scores(
    found: Sequence[Objects], there: Sequence[Objects], classes: Sequence[str]
) -> Scores:
    """Average precision over all thresholds (`ap`) and at IoU .50 (`ap50`).

    Args:
        found, there: the detected and the true objects in each picture.
        classes: the names of the labels.

    Raises:
        TransductError: the counts differ, or no picture holds an object.
    """
    require(
        len(found) == len(there),
        f"{len(found):,} predictions for {len(there):,} pictures; give one prediction for "
        "each picture",
    )
    rankings = {name: ranked(found, there, label) for label, name in enumerate(classes)}
    rankings = {name: ranking for name, ranking in rankings.items() if ranking.objects.any()}
    if not rankings:
        raise WrongData("there is nothing to score; give at least one picture with an object")
    precisions = {name: ranking.average_precision() for name, ranking in rankings.items()}
    details: dict[str, Any] = {
        "pictures": len(there),
        "objects": sum(len(picture.labels) for picture in there),
    }
    details["classes"] = {name: _named(precision) for name, precision in precisions.items()}
    scores = Scores(_named(np.stack([*precisions.values()])), details, [*rankings.values()])
    details["ap50"] = {"interval": interval(scores.resampled, len(there))}
    return scores


def _named(precision: np.ndarray) -> dict[str, float]:
    return {"ap50": 100 * float(precision[..., 0].mean()), "ap": 100 * float(precision.mean())}


def ranked(found: Sequence[Objects], there: Sequence[Objects], label: int) -> Ranking:
    """Rank the detections of a class in all pictures."""
    scores, rights, objects = [], [], []
    for ours, truth in zip(found, there, strict=True):
        mine = np.flatnonzero(ours.labels == label)
        mine = mine[np.argsort(-ours.scores[mine], kind="stable")[:MOST_DETECTIONS]]
        truths = truth.boxes[truth.labels == label]
        objects.append(len(truths))
        scores.append(ours.scores[mine])
        rights.append(_right(ours.boxes[mine], truths))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    pictures = np.repeat(np.arange(len(scores)), [len(each) for each in scores])
    return Ranking(np.concatenate(rights, axis=1)[:, order], pictures[order], np.array(objects))


def _right(boxes: np.ndarray, truths: np.ndarray) -> np.ndarray:
    """Match detections, best first, to objects: (thresholds, detections), whether each finds one.

    A detection takes the free object with the highest IoU, the last of equal ones.
    """
    right = np.zeros((len(THRESHOLDS), len(boxes)), bool)
    if not len(boxes) or not len(truths):
        return right
    both = pairwise(
        torch.from_numpy(boxes.astype(np.float64)), torch.from_numpy(truths.astype(np.float64))
    )
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
    """The mean precision at the points where each of `RECALLS` is first reached; 0 where it is
    not."""
    places = np.searchsorted(recall, RECALLS, side="left")
    return float(np.append(precision, 0.0)[places].mean())
