"""Boxes against Hugging Face's and against counting pixels."""

import pytest
import torch
from transformers.loss.loss_for_object_detection import generalized_box_iou

from transduct.functional.boxes import area, generalised_iou, iou, pairwise, to_centres, to_corners


def some_boxes(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(count, 2, generator=generator)
    return torch.cat((first, first + torch.rand(count, 2, generator=generator) + 0.01), 1)


def test_the_two_ways_to_write_a_box():
    assert to_corners(torch.tensor([3.0, 4.0, 2.0, 6.0])).tolist() == [2.0, 1.0, 4.0, 7.0]
    boxes = some_boxes(20)
    torch.testing.assert_close(to_corners(to_centres(boxes)), boxes)


def test_overlap_is_what_counting_pixels_gives():
    generator = torch.Generator().manual_seed(1)
    corners = torch.randint(0, 20, (50, 2, 2), generator=generator).sort(1).values
    corners[:, 1] += 1
    boxes = corners.flatten(1)
    painted = torch.zeros(50, 24, 24, dtype=torch.bool)
    for picture, (x0, y0, x1, y1) in zip(painted, boxes.tolist()):
        picture[y0:y1, x0:x1] = True
    common = (painted[:, None] & painted[None]).sum((2, 3))
    either = (painted[:, None] | painted[None]).sum((2, 3))
    assert area(boxes).tolist() == painted.sum((1, 2)).tolist()
    torch.testing.assert_close(iou(*pairwise(boxes, boxes)), common / either)


def test_generalised_iou_is_hugging_face_s():
    ours, theirs = some_boxes(30), some_boxes(20, seed=2)
    expected = generalized_box_iou(ours, theirs)
    torch.testing.assert_close(generalised_iou(*pairwise(ours, theirs)), expected)
    torch.testing.assert_close(generalised_iou(ours[:20], theirs), expected[:20].diagonal())


def test_generalised_iou_ranges_from_far_apart_to_equal():
    box = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert generalised_iou(box, box) == 1.0
    assert generalised_iou(box, box + 1000.0) == pytest.approx(-1.0, abs=1e-5)
    assert iou(box, box + 2.0) == 0.0


def test_boxes_that_do_not_overlap_have_a_gradient_towards_each_other():
    box = torch.tensor([0.0, 0.0, 1.0, 1.0], requires_grad=True)
    generalised_iou(box, torch.tensor([3.0, 0.0, 4.0, 1.0])).backward()
    assert box.grad[2] > 0.0


def test_boxes_without_any_area_have_nothing_in_common():
    nothing = torch.full((1, 4), 0.5)
    assert iou(nothing, nothing).tolist() == generalised_iou(nothing, nothing).tolist() == [0.0]
