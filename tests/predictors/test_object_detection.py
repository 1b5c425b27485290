"""The detector in use: what it is given, what it says, what it draws, and where it looked."""

import logging
import sys
import weakref

import numpy as np
import pytest
import torch

from tests.models.test_detr import tiny_detr
from tests.refusals import refusal
from tests.tasks.test_object_detection import annotate
from transduct.data.annotated_images import Collage, Example, SceneSource
from transduct.evaluation import bootstrap
from transduct.evaluation.bootstrap import Resampled
from transduct.functional.boxes import to_corners
from transduct.predictors import object_detection as detector_of
from transduct.predictors.base import Report
from transduct.predictors.object_detection import (
    Detection,
    DetectionConfig,
    Detections,
    Detector,
    SceneSet,
    labels_of_places,
    make_batch,
)

LABELS = ["red", "green", "blue"]


def detector(**decoding):
    return Detector(tiny_detr(), LABELS, DetectionConfig(**{"threshold": 0.2, **decoding}))


def picture(height=32, width=32, seed=1):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def scenes(count=4):
    boxes = np.array([[2, 2, 12, 12], [14, 6, 30, 30]], np.float32)
    return [Example(picture(seed=i), boxes, np.array([0, i % 3])) for i in range(count)]


def test_what_is_found_as_text():
    cat, dog = Detection("cat", 0.98, (12, 30, 44, 62)), Detection("dog", 0.7, (0, 1, 2, 3))
    found = Detections([cat, dog])
    assert str(found) == "cat 0.98 [12 30 44 62]; dog 0.70 [0 1 2 3]"
    assert str(Detections()) == ""


@torch.no_grad()
def test_detections_are_the_model_s_in_pixels_of_the_picture():
    model, given = detector(), picture(64, 96)
    [found] = model.predict([given])
    small = model._square(given)
    logits, boxes = model.model.decode(*model.model.encode(torch.from_numpy(small)[None]))
    scores = logits[-1, 0].softmax(-1)[:, :3]
    assert len(found) == int((scores >= 0.2).sum()) > 0
    query, label = divmod(int(scores.argmax()), 3)
    corners = to_corners(boxes[-1, 0, query]).clamp(0, 1) * torch.tensor([96, 64, 96, 64])
    assert (found[0].label, found[0].box) == (LABELS[label], tuple(corners.round().int().tolist()))
    assert found[0].score == pytest.approx(float(scores.max()), abs=1e-4)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


def test_a_place_has_the_label_of_what_its_middle_lies_in():
    boxes = np.array([[0, 0, 10, 10], [7, 9, 31, 16], [-3, 30, 40, 90]], np.float32)
    scene = Example(picture(), boxes, np.array([0, 1, 2]))
    labels = labels_of_places(scene, tiny_detr().config).reshape(8, 8)
    expected = np.full((8, 8), 3)
    for row, column in np.ndindex(8, 8):
        x, y = 4 * column + 2, 4 * row + 2
        for (x0, y0, x1, y1), label in zip(boxes, (0, 1, 2)):
            if x0 <= x < x1 and y0 <= y < y1:
                expected[row, column] = label
    assert (labels == expected).all()


def test_a_threshold_keeps_what_is_surer():
    model, given = detector(), [picture()]
    every, some = (model.predict(given, threshold=value)[0] for value in (0.0, 0.2))
    assert len(every) == 4 * 3
    assert some == [each for each in every if each.score >= 0.2]
    assert model.predict(given, threshold=1.0) == [[]]
    with refusal(r"unknown key 'decoding.treshold'; did you mean 'threshold'"):
        model.predict(given, treshold=0.1)


def test_no_photograph_is_kept_at_its_size(monkeypatch):
    given, kept = picture(40, 60), []

    def read(*_):
        kept.append(weakref.ref(photograph := given.copy()))
        assert sum(each() is not None for each in kept) <= 2  # this one, and the one before
        return photograph

    monkeypatch.setattr(detector_of, "as_picture", read)
    model = detector()
    assert model.predict([None] * 5) == model.predict([None]) * 5


def test_boxes_are_drawn_each_class_in_a_colour_of_its_own():
    model, given = detector(), np.zeros((40, 60, 3), np.uint8)
    red, blue = (Detection(label, 0.9, (30, 5, 50, 35)) for label in ("red", "blue"))
    drawn, other = (model.picture(given, Detections([each])) for each in (red, blue))
    assert drawn.shape == (40, 60, 3)
    assert drawn[34, 31:49].any(1).all(), "the lower edge"
    assert not drawn[30, 34:46].any(), "not the inside"
    assert (drawn[34, 40] != other[34, 40]).any()
    assert not given.any()
    assert not model.picture(given, Detections()).any()
    assert (model.picture(given, Detections([red, blue]))[34] == drawn[34]).all(), "first on top"
    at_the_edge = Detection("red", 0.9, (0, 0, 0, 20))
    assert model.picture(np.zeros((20, 20, 3), np.uint8), Detections([at_the_edge])).any()


def test_drawing_without_pillow_names_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refusal(r"pip install 'transduct\[vision\]'"):
        detector().picture(picture(), Detections())


def test_attention_shows_where_each_detection_s_query_looked():
    model, given = detector(), picture(64, 48)
    [found] = model.predict([given])
    seen = model.attention(given)
    assert list(seen.weights) == model.model.attention_names
    assert seen.weights["encoder.0.self"].shape == (2, 64, 64)
    objects = seen.draw.keywords["objects"]
    assert [detection for detection, _ in objects] == found
    panels = seen.panels()
    assert len(panels) == 2 * len(found)
    assert panels[1].title == f"{found[0]}, decoder.1.cross"
    assert (panels[1].picture == given).all()
    query = objects[0][1]
    expected = seen.weights["decoder.1.cross"][:, query].mean(0).view(8, 8)
    torch.testing.assert_close(panels[1].weights, expected)
    # where nothing is sure enough, that of the surest
    [(detection, _)] = model.attention(given, threshold=1.0).draw.keywords["objects"]
    assert detection == model.predict([given], threshold=0.0)[0][0]


def test_scores_are_of_all_that_is_found_whatever_the_threshold():
    model = detector()
    report = model.evaluate(scenes())
    assert set(report.scores) == {"ap", "ap50"}
    assert report.scores == model.evaluate(scenes(), threshold=0.9).scores
    assert report.details["objects"] == 8
    assert len(report.outputs) == 4
    compared = model.evaluate(scenes(), against=model).details
    assert (compared["against"], compared["p_values"]) == (report.scores, {"ap50": 1.0})
    other = Detector(model.model, [*model.labels[:-1], "unheard of"], model.decoding)
    with refusal("the other model has other labels; compare models of the same task"):
        model.evaluate(scenes(), against=other)


def test_a_model_is_compared_with_another(monkeypatch):
    model, other, given, asked = detector(), detector(threshold=0.4), [], []
    theirs = Report({"ap": 12.0, "ap50": 34.0}, right={"ap50": Resampled(len, 4)})
    other.measured = lambda _, options: asked.append(options) or theirs
    monkeypatch.setattr(bootstrap, "p_value", lambda *said: given.append(said) or 0.25)
    details = model.evaluate(scenes(), against=other, batch_tokens=64).details
    assert asked == [{"batch_tokens": 64}]
    assert (details["against"], details["p_values"]) == (theirs.scores, {"ap50": 0.25})
    [(ours_drawn, theirs_drawn, count)] = given
    assert (theirs_drawn, count) == (len, 4)
    assert ours_drawn != theirs_drawn
    turned = Detector(model.model, model.labels[::-1], model.decoding)  # whose numbers are others
    with refusal("these scenes were read for one of the two models; give a SceneSet, which"):
        model.evaluate(scenes(), against=turned)


def test_models_that_would_be_shown_other_scenes_are_not_compared():
    model, other = detector(), Detector(tiny_detr(side=64), LABELS, DetectionConfig())
    drawn = SceneSet(SceneSource("photographs", collage=Collage()))
    with refusal("on canvases of 32 and of 64 pixels other scenes are drawn; compare models of"):
        model.evaluate(drawn, against=other)


def test_a_model_that_says_what_is_there_scores_all(monkeypatch):
    model, data = detector(), scenes()
    batch = make_batch(data, model.model.config)

    def perfect(pictures, weights=None):
        logits = torch.full((len(pictures), 4, 4), -20.0)
        boxes = torch.full((len(pictures), 4, 4), 0.5)
        logits[..., 3] = 0.0
        for i in range(len(pictures)):
            for query in range(2):
                logits[i, query, batch.labels[2 * i + query]] = 20.0
                boxes[i, query] = batch.boxes[2 * i + query]
        return logits, boxes

    monkeypatch.setattr(model, "_forward", perfect)
    assert model.evaluate(data).scores == pytest.approx({"ap": 100.0, "ap50": 100.0})


def test_unknown_labels_of_a_test_set_are_named_and_counted(tmp_path, caplog):
    lines = [("a.png", [[2, 2, 12, 12]], ["pink"]), ("b.png", [[2, 2, 12, 12]], ["red"])]
    own = SceneSource(**annotate(tmp_path, lines))
    with refusal(r"own.jsonl:1: a.png: unknown label 'pink'; training has: red, green"):
        detector().evaluate(SceneSet(own, str(tmp_path)))
    with caplog.at_level(logging.WARNING, "transduct"):
        report = detector().evaluate(SceneSet(own, str(tmp_path), "skip"))
    assert (report.details["left_out"], report.details["pictures"]) == ({"broken": 1}, 1)
    assert "a.png: unknown label 'pink'" in caplog.text


def test_scenes_without_an_object_are_named(tmp_path):
    own = SceneSource(**annotate(tmp_path, [("a.png", [], []), ("b.png", [], [])]))
    with refusal(r"^own.jsonl: found no object to measure on; give some pictures with box"):
        detector().evaluate(SceneSet(own, str(tmp_path)))


def test_labels_of_another_model_are_refused(tmp_path):
    config = {"labels": ["red"], "decoding": {}}
    with refusal(r"config.json: found labels \['red'\], its model tells 3 apart; copy it again"):
        Detector.parts(tmp_path, config, detector().model)
