"""Average precision is pycocotools'."""

import contextlib
import io

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.refusals import refusal
from transduct.evaluation.detection import Objects, detection_scores

CLASSES = ["cat", "dog", "ship"]


def found(boxes, labels, scores=None):
    scores = np.ones(len(labels)) if scores is None else np.array(scores, float)
    return Objects(np.array(boxes, float).reshape(-1, 4), np.array(labels, int), scores)


def pictures(seed, count=12, classes=3, most=6, steps=5):
    """Random objects, and detections near them or anywhere; scores in a few steps, so that many are
    tied."""
    random = np.random.default_rng(seed)
    there, detected = [], []
    for _ in range(count):
        held = random.integers(0, most + 1) * (random.random() < 0.8)
        first = random.integers(0, 40, (held, 2))
        boxes = np.concatenate((first, first + random.integers(4, 30, (held, 2))), 1)
        labels = random.integers(0, classes, held)
        there.append(found(boxes, labels))
        near = boxes[random.random(held) < 0.8].repeat(2, 0) + random.integers(-2, 3, (1, 4))
        first = random.integers(0, 40, (random.integers(0, most), 2))
        anywhere = np.concatenate((first, first + random.integers(4, 30, first.shape)), 1)
        boxes = np.concatenate((near, anywhere))
        order = random.permutation(len(boxes))
        scores = random.integers(1, steps + 1, len(boxes)) / steps
        detected.append(found(boxes[order], random.integers(0, classes, len(boxes)), scores))
    return detected, there


def pycocotools(detected, there, classes):
    """AP, AP50 and the AP of each class."""

    def records(pictures):
        for number, each in enumerate(pictures):
            rows = zip(each.boxes.tolist(), each.labels.tolist(), each.scores.tolist())
            for (x0, y0, x1, y1), label, score in rows:
                box = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0)}
                yield {"image_id": number, "category_id": label, "score": score, **box}

    truths = [{"id": n, "iscrowd": 0, **each} for n, each in enumerate(records(there), 1)]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {"images": [{"id": i} for i in range(len(there))], "annotations": truths}
        truth.dataset["categories"] = [{"id": i} for i in range(classes)]
        truth.createIndex()
        run = COCOeval(truth, truth.loadRes([*records(detected)]), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    # (thresholds, recalls, classes), any area, 100 detections
    precision = run.eval["precision"][:, :, :, 0, 2]
    return 100 * run.stats[0], 100 * run.stats[1], 100 * precision.mean((0, 1))


def compared(detected, there, classes=CLASSES):
    """The scores, which must be pycocotools', and the AP of each class there."""
    ours = detection_scores(detected, there, classes)
    ap, ap50, each = pycocotools(detected, there, len(classes))
    assert ours.scores == pytest.approx({"ap": ap, "ap50": ap50}, abs=1e-6)
    return ours, each


@pytest.mark.parametrize("seed", range(20))
def test_average_precision_is_pycocotools(seed):
    ours, each = compared(*pictures(seed))
    for label, name in enumerate(CLASSES):
        assert ours.details["classes"][name]["ap"] == pytest.approx(each[label], abs=1e-6)


def test_a_class_that_is_never_there_counts_for_nothing():
    detected, there = pictures(1, classes=2)
    # found where there are none
    detected = [Objects(d.boxes, (d.labels + 1) % 3, d.scores) for d in detected]
    ours, _ = compared(detected, there)
    assert set(ours.details["classes"]) == {"cat", "dog"}


def test_a_class_that_is_never_found_scores_nothing():
    there = [found([[0, 0, 10, 10], [20, 20, 30, 30]], [0, 1])]
    ours = detection_scores([found([[0, 0, 10, 10]], [0], [0.5])], there, CLASSES)
    assert ours.scores == pytest.approx({"ap": 50.0, "ap50": 50.0})
    assert ours.details["classes"]["dog"] == {"ap": 0.0, "ap50": 0.0}
    assert (ours.details["pictures"], ours.details["objects"]) == (1, 2)


def test_only_the_best_hundred_of_a_picture_and_class_count():
    detected, there = pictures(3, count=3, classes=1, most=150, steps=1000)
    assert max(len(picture.labels) for picture in detected) > 200
    compared(detected, there, ["cat"])


def test_what_is_there_found_again_scores_all():
    _, there = pictures(1)
    scores = detection_scores(there, there, CLASSES).scores
    assert scores == pytest.approx({"ap": 100.0, "ap50": 100.0})


def test_of_objects_it_overlaps_alike_a_detection_takes_the_last():
    there = [found([[0, 0, 10, 10], [2, 0, 12, 10]], [0, 0])]
    compared([found([[1, 0, 11, 10], [0, 0, 10, 10]], [0, 0], [0.9, 0.8])], there, ["cat"])


@pytest.mark.parametrize("seed", range(5))
def test_a_resample_counts_each_picture_as_often_as_it_holds_it(seed):
    detected, there = pictures(seed, steps=10**9)  # no two scores alike
    counts = np.random.default_rng(seed).integers(0, 3, len(there))
    drawn = detection_scores(detected, there, CLASSES).resampled(counts)
    numbers = np.repeat(np.arange(len(there)), counts)
    again = [[each[i] for i in numbers] for each in (detected, there)]
    assert drawn == pytest.approx(detection_scores(*again, CLASSES).scores["ap50"], abs=1e-3)


def test_the_interval_holds_the_score():
    ours = detection_scores(*pictures(1, count=60), CLASSES)
    low, high = ours.details["ap50"]["interval"]
    assert low < ours.scores["ap50"] < high
    assert 0.0 < high - low < 30.0


def test_the_interval_leaves_out_a_class_that_no_drawn_picture_holds():
    there = [found([[0, 0, 10, 10], [20, 20, 30, 30]], [0, 1]), *[found([[0, 0, 10, 10]], [0])] * 4]
    ours = detection_scores(there, there, CLASSES)
    assert ours.details["ap50"]["interval"] == pytest.approx([100.0, 100.0])


def test_what_cannot_be_scored_is_refused():
    nothing = [found([], [])]
    with refusal("1 predictions for 2 pictures"):
        detection_scores(nothing, nothing * 2, CLASSES)
    with refusal("2 predictions for 1 pictures"):
        detection_scores(nothing * 2, nothing, CLASSES)
    with refusal("nothing to score"):
        detection_scores(nothing, nothing, CLASSES)
