"""DETR: dependence and independence of its outputs, its boxes, and the formulas of its parts."""

import torch

from tests.helpers import randomise
from transduct.blocks.attention import MultiHeadAttention
from transduct.functional.attention import attention
from transduct.models.detr import (
    NARROWEST,
    Config,
    Detr,
    Gaussian,
    box_positions,
    grid_of_anchors,
    grid_of_places,
    moved,
)
from transduct.segments import Segments

SHAPE = {
    "classes": 3, "side": 32, "channels": [8, 16], "d_model": 16, "num_heads": 2, "d_ff": 32,
    "encoder_layers": 1, "decoder_layers": 2, "queries": 4,
}  # fmt: skip


def tiny_detr(**changes):
    torch.manual_seed(1)
    return randomise(Detr(Config(**{**SHAPE, **changes})).eval(), spread=0.1)


def pictures(count=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=generator)


def found(model, given, weights=None):
    memory, grid = model.encode(given, weights)
    return model.decode(memory, grid, weights)


def test_every_layer_gives_each_query_classes_and_a_box():
    logits, boxes = found(tiny_detr(), pictures(3))
    assert logits.shape == (2, 3, 4, 3 + 1)
    assert boxes.shape == (2, 3, 4, 4)
    assert (boxes[..., 2:] > 0).all()


def test_colours_are_read_from_minus_one_to_one():
    model, read = tiny_detr(), []
    model.backbone.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    model.encode(torch.tensor([255, 0, 51], dtype=torch.uint8).expand(1, 32, 32, 3))
    expected = torch.tensor([1.0, -1.0, -0.6])[None, :, None, None].expand(1, 3, 32, 32)
    torch.testing.assert_close(read[0], expected)


@torch.no_grad()
def test_cells_know_their_row_by_the_first_half_of_their_positions():
    model, read = tiny_detr(), []
    model.projection.weight.zero_(), model.projection.bias.zero_()
    model.encoder.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    model.encode(pictures(1))
    lines, columns = read[0].view(8, 8, 16).split(8, 2)  # (row, column, half of the width)
    assert torch.equal(lines, lines[:, :1].expand(8, 8, 8))
    assert torch.equal(columns, columns[:1].expand(8, 8, 8))
    assert not torch.allclose(lines[0], lines[1])


def test_a_picture_s_boxes_are_its_own():
    model, given = tiny_detr(), pictures(3)
    together = found(model, given)
    for number in range(3):
        for whole, alone in zip(together, found(model, given[number : number + 1])):
            torch.testing.assert_close(whole[:, number], alone[:, 0], rtol=1e-4, atol=1e-5)


def test_the_first_boxes_are_a_grid_of_anchors():
    torch.manual_seed(1)
    model = Detr(Config(**SHAPE))  # as it is begun
    _, boxes = found(model, pictures(1))
    centres = [[x, y] for y in (0.25, 0.75) for x in (0.25, 0.75)]
    torch.testing.assert_close(
        boxes[0, 0], torch.cat((torch.tensor(centres), torch.full((4, 2), 0.5)), 1)
    )
    assert grid_of_anchors(36)[:, 2:].eq(0.25).all()


def test_queries_see_each_other_and_no_order():
    model, given = tiny_detr(), pictures(1)
    logits, boxes = found(model, given)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        model.queries.copy_(model.queries[order])
        model.anchors.copy_(model.anchors[order])
    for mine, theirs in zip(found(model, given), (logits, boxes)):
        torch.testing.assert_close(mine, theirs[:, :, order], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        model.queries[3] += torch.randn(16)
    assert (found(model, given)[0] - logits[:, :, order])[-1, 0, 0].abs().max() > 1e-4


def test_no_gradient_goes_from_a_layer_s_boxes_to_the_layer_before():
    model = tiny_detr()
    _, boxes = found(model, pictures(1))
    [gradient] = torch.autograd.grad(boxes[1].sum(), model.anchors, retain_graph=True)
    assert not gradient.any()
    [gradient] = torch.autograd.grad(boxes[0].sum(), model.anchors)
    assert gradient.abs().min() > 0.0


def test_attention_weights_have_their_names():
    model = tiny_detr()
    weights: list[torch.Tensor] = []
    found(model, pictures(2), weights)
    named = dict(zip(model.attention_names, weights, strict=True))
    assert {name: tuple(w.shape) for name, w in named.items()} == {
        "encoder.0.self": (2, 2, 64, 64),
        "decoder.0.self": (2, 2, 4, 4),
        "decoder.0.cross": (2, 2, 4, 64),
        "decoder.1.self": (2, 2, 4, 4),
        "decoder.1.cross": (2, 2, 4, 64),
    }
    for each in weights:
        torch.testing.assert_close(each.sum(-1), torch.ones(each.shape[:-1]))


# the parts


def test_gaussians_are_the_formula():
    gaussian, places = randomise(Gaussian(3)), grid_of_places(4)
    boxes = torch.rand(2, 5, 4) * 0.5 + 0.2
    whole = gaussian(boxes, places)
    assert whole.shape == (2, 3, 5, 16)
    torch.testing.assert_close(whole, gaussian(boxes, places.expand(2, 16, 2)))
    for head in range(3):
        for row, column in ((0, 0), (1, 3), (3, 2)):
            place = torch.tensor([(column + 0.5) / 4, (row + 0.5) / 4])
            mean = boxes[1, 2, :2] + gaussian.centres[head] * boxes[1, 2, 2:] / 2
            spread = gaussian.spreads[head].exp() * boxes[1, 2, 2:] / 2 + NARROWEST
            expected = -0.5 * ((place - mean) / spread).square().sum()
            torch.testing.assert_close(whole[1, head, 2, 4 * row + column], expected)


def test_boxes_are_moved_by_parts_of_their_size():
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.4], [0.3, 0.3, 0.1, 0.1]])
    moves = torch.tensor([[0.5, -0.25, 0.0, 0.0], [0.0, 0.0, 2.0, 1.0]])
    moves[1, 2:] = moves[1, 2:].log()
    torch.testing.assert_close(
        moved(boxes, moves), torch.tensor([[0.6, 0.4, 0.2, 0.4], [0.3, 0.3, 0.2, 0.1]])
    )
    assert moved(boxes, torch.full((2, 4), 1000.0)).isfinite().all()


def test_before_anything_is_learnt_a_query_looks_into_its_box():
    torch.manual_seed(1)
    model = Detr(Config(**{**SHAPE, "queries": 16}))
    weights: list[torch.Tensor] = []
    found(model, pictures(1), weights)
    looked = weights[model.attention_names.index("decoder.0.cross")].mean(1)[0]  # (Q, P)
    places = grid_of_places(8)
    inside = (
        (places - model.anchors.sigmoid()[:, None, :2]).abs() * 2
        <= model.anchors.sigmoid()[:, None, 2:]
    ).all(-1)
    shares = (looked * inside).sum(1)
    assert shares.mean() > 0.55
    assert (shares > 2.5 * inside.float().mean(1)).all()


def test_biases_are_added_to_the_scores_of_attention():
    cross = MultiHeadAttention(16, 2)
    queries, memory, bias = torch.randn(8, 16), torch.randn(6, 16), torch.randn(2, 2, 4, 3)
    mine = cross.cross(queries, Segments.of([4, 4]), memory, Segments.of([3, 3]), bias=bias)
    query, key, value = (
        linear(x).view(2, -1, 2, 8).transpose(1, 2)
        for linear, x in ((cross.query, queries), (cross.key, memory), (cross.value, memory))
    )
    expected = cross.output(attention(query, key, value, None, bias).transpose(1, 2).reshape(8, 16))
    torch.testing.assert_close(mine, expected)
    square = torch.randn(2, 2, 4, 4)
    own = cross(queries, Segments.of([4, 4]), bias=square)
    torch.testing.assert_close(
        own, cross.cross(queries, Segments.of([4, 4]), queries, Segments.of([4, 4]), bias=square)
    )


def test_positions_of_boxes_tell_centre_and_size():
    boxes = torch.tensor([[0.3, 0.6, 0.2, 0.4], [0.3, 0.6, 0.4, 0.2], [0.6, 0.3, 0.2, 0.4]])
    vectors = box_positions(boxes, 32)
    assert vectors.shape == (3, 32)
    assert torch.equal(vectors[0, :16], vectors[1, :16])
    assert torch.equal(vectors[0, 16:], vectors[2, 16:])
    assert not torch.allclose(vectors[0, :16], vectors[2, :16])
    assert not torch.allclose(vectors[0, 16:], vectors[1, 16:])
