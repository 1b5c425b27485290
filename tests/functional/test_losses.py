"""The fused loss equals torch's cross-entropy for any chunk size; set losses equal those of Hugging
Face's DETR."""

from itertools import permutations

import pytest
import torch
from torch.nn import functional as F
from transformers.loss import loss_for_object_detection as detection

from transduct.functional import losses
from transduct.segments import Segments, pad


@pytest.fixture
def example():
    torch.manual_seed(1)
    return torch.randn(10, 6), torch.randn(7, 6), torch.randint(7, (10,))


@pytest.fixture(params=["kernel", "formula"])
def either_way(request, monkeypatch):
    """By the kernel, where there is one, and by PyTorch's operations."""
    if request.param == "formula":
        monkeypatch.setattr(losses, "_fused", lambda logits: None)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_label_smoothing_is_torchs(example, smoothing):
    hidden, weight, targets = example
    logits = hidden @ weight.T
    expected = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(
        losses.label_smoothed_cross_entropy(logits, targets, smoothing), expected
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("chunk", [1, 7 * 3, 7 * 10, losses.CHUNK])
def test_the_projected_loss_and_its_gradients_are_torchs_in_any_pieces(
    example, monkeypatch, chunk, smoothing
):
    monkeypatch.setattr(losses, "CHUNK", chunk)
    hidden, weight, targets = (x.requires_grad_(x.is_floating_point()) for x in example)
    loss, nll = losses.projected_cross_entropy(hidden, weight, targets, smoothing)
    logits = F.linear(hidden, weight)
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, F.cross_entropy(logits, targets, reduction="sum"))
    assert not nll.requires_grad
    found = torch.autograd.grad(3.0 * loss, (hidden, weight))  # an average or a scale comes after
    for mine, reference in zip(found, torch.autograd.grad(3.0 * expected, (hidden, weight))):
        torch.testing.assert_close(mine, reference)


def test_the_loss_of_large_logits_is_finite(example, either_way):
    hidden, weight, targets = example
    loss, nll = losses.projected_cross_entropy(
        100.0 * hidden, weight.requires_grad_(), targets, 0.1
    )
    expected = [
        F.cross_entropy(100.0 * hidden @ weight.T, targets, reduction="sum", label_smoothing=e)
        for e in (0.1, 0)
    ]
    torch.testing.assert_close([loss, nll], expected)
    assert torch.autograd.grad(loss, weight)[0].isfinite().all()


@pytest.mark.parametrize("frozen", ["hidden", "weight", "both"])
def test_what_needs_no_gradient_changes_no_number(example, frozen):
    hidden, weight, targets = example
    expected = losses.projected_cross_entropy(
        hidden.clone().requires_grad_(), weight, targets, 0.1
    )[0]
    hidden.requires_grad_(frozen == "weight")
    weight.requires_grad_(frozen == "hidden")
    loss, _ = losses.projected_cross_entropy(hidden, weight, targets, 0.1)
    assert loss.requires_grad == (frozen != "both")
    assert torch.equal(loss, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_no_gradient_is_made_where_none_is_wanted(example, monkeypatch, mode):
    hidden, weight, targets = example
    weight.requires_grad_()  # as a model's is, also where it is only measured
    made, inner = [], losses._losses_of_rows
    monkeypatch.setattr(
        losses, "_losses_of_rows", lambda *given: made.append(given[4]) or inner(*given)
    )
    with mode():
        losses.projected_cross_entropy(hidden, weight, targets)
    assert set(made) == {mode is torch.enable_grad}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, losses.CHUNK])
def test_filler_counts_nowhere(example, either_way, monkeypatch, chunk, smoothing):
    monkeypatch.setattr(losses, "CHUNK", chunk)
    monkeypatch.setattr(losses, "FEWEST", 3)
    hidden, weight, targets = (x.requires_grad_(x.is_floating_point()) for x in example)
    counted = torch.tensor([1.0] * 6 + [0.0] * 4)
    found = losses.projected_cross_entropy(hidden, weight, targets, smoothing, counted)
    expected = losses.projected_cross_entropy(hidden[:6], weight, targets[:6], smoothing)
    torch.testing.assert_close(found, expected)
    mine, reference = (torch.autograd.grad(loss, (hidden, weight)) for loss, _ in (found, expected))
    torch.testing.assert_close(mine, reference)
    assert not mine[0][6:].any()


@pytest.mark.parametrize("counted", [None, torch.tensor([1.0] * 4 + [0.0])])
@pytest.mark.parametrize("chunk", [1, losses.CHUNK])
def test_tokens_read_twice_are_to_agree(example, either_way, monkeypatch, chunk, counted):
    """Half of equation 4 of R-Drop, by `F.kl_div`."""
    monkeypatch.setattr(losses, "CHUNK", chunk)
    monkeypatch.setattr(losses, "FEWEST", 4)
    hidden, weight, targets = (x.requires_grad_(x.is_floating_point()) for x in example)
    loss, nll = losses.projected_cross_entropy(
        hidden, weight, targets[:5], 0.1, counted, agreement=3.0
    )
    shares = torch.ones(5) if counted is None else counted
    one, other = F.linear(hidden, weight).log_softmax(-1).chunk(2)

    def apart(p, q):
        return (F.kl_div(q, p, reduction="none", log_target=True).sum(-1) * shares).sum()

    def mean(smoothing):
        pair = (
            F.cross_entropy(x, targets[:5], reduction="none", label_smoothing=smoothing)
            for x in (one, other)
        )
        return (sum(pair) * shares).sum() / 2

    expected = mean(0.1) + 3.0 / 2 * (apart(one, other) + apart(other, one)) / 2
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, mean(0.0))
    found = torch.autograd.grad(2.0 * loss, (hidden, weight))
    torch.testing.assert_close(found, torch.autograd.grad(2.0 * expected, (hidden, weight)))


@pytest.mark.parametrize("agreement", [0.0, 3.0])
@pytest.mark.parametrize("counted", [None, torch.tensor([1.0] * 4 + [0.0])])
@pytest.mark.parametrize("chunk", [1, losses.CHUNK])
def test_a_bias_equals_an_extra_column_of_the_weight(
    example, monkeypatch, chunk, counted, agreement
):
    monkeypatch.setattr(losses, "CHUNK", chunk)
    monkeypatch.setattr(losses, "FEWEST", 4)
    hidden, weight, targets = (x.requires_grad_(x.is_floating_point()) for x in example)
    bias = torch.randn(7, generator=torch.Generator().manual_seed(3)).requires_grad_()
    hidden, rest = (hidden if agreement else hidden[:5]), (targets[:5], 0.1, counted, agreement)
    found = losses.projected_cross_entropy(hidden, weight, *rest, bias=bias)
    wider = (
        torch.cat((hidden, torch.ones(len(hidden), 1)), 1),
        torch.cat((weight, bias[:, None]), 1),
    )
    expected = losses.projected_cross_entropy(*wider, *rest)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found[0], losses.projected_cross_entropy(hidden, weight, *rest)[0])
    inputs = example[0], weight, bias
    grads = [torch.autograd.grad(2.0 * loss, inputs) for loss, _ in (found, expected)]
    torch.testing.assert_close(*grads)
    # the rest is frozen
    alone, _ = losses.projected_cross_entropy(hidden.detach(), weight.detach(), *rest, bias=bias)
    torch.testing.assert_close(torch.autograd.grad(2.0 * alone, bias), grads[0][2:])


def test_under_autocast_a_bias_is_added_to_what_is_rounded(example):
    hidden, weight, targets = example
    bias = torch.arange(7.0).requires_grad_()
    expected, _ = losses.projected_cross_entropy(hidden, weight, targets, 0.1, bias=bias)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = losses.projected_cross_entropy(hidden, weight, targets, 0.1, bias=bias)
    torch.testing.assert_close(loss, expected, rtol=0.01, atol=0.0)
    mine, reference = (torch.autograd.grad(x, bias)[0] for x in (loss, expected))
    assert mine.dtype == torch.float32
    torch.testing.assert_close(mine, reference, rtol=0.05, atol=0.05)


def test_equal_readings_do_not_diverge(example):
    hidden, weight, targets = example
    twice = torch.cat((hidden, hidden))
    found = losses.projected_cross_entropy(twice, weight, targets, 0.1, agreement=5.0)
    torch.testing.assert_close(found, losses.projected_cross_entropy(hidden, weight, targets, 0.1))
    assert not losses.symmetric_divergence(hidden, hidden).any()


def test_an_empty_batch_loses_nothing():
    hidden = torch.empty(0, 6, requires_grad=True)
    loss, nll = losses.projected_cross_entropy(
        hidden, torch.randn(7, 6), torch.empty(0, dtype=torch.int64)
    )
    loss.backward()
    assert (loss.item(), nll.item(), hidden.grad.shape) == (0.0, 0.0, (0, 6))


def test_under_autocast_the_projection_alone_is_rounded(example):
    hidden, weight, targets = (x.requires_grad_(x.is_floating_point()) for x in example)
    expected, _ = losses.projected_cross_entropy(hidden, weight, targets, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss, nll = losses.projected_cross_entropy(hidden, weight, targets, 0.1)
    assert loss.dtype == nll.dtype == torch.float32
    assert not torch.equal(loss, expected)
    torch.testing.assert_close(loss, expected, rtol=0.01, atol=0.0)
    for mine, reference in zip(
        *(torch.autograd.grad(x, (hidden, weight)) for x in (loss, expected))
    ):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, reference, rtol=0.05, atol=0.05)


def test_many_pieces_under_autocast_add_up_in_single_precision(monkeypatch):
    monkeypatch.setattr(losses, "CHUNK", 1)
    monkeypatch.setattr(losses, "FEWEST", 1)
    hidden, weight, targets = (
        torch.ones(1000, 2),
        torch.zeros(3, 2, requires_grad=True),
        torch.zeros(1000).long(),
    )
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = losses.projected_cross_entropy(hidden, weight, targets)
    expected = 1000 / 3 * torch.tensor([[-2.0, -2.0], [1.0, 1.0], [1.0, 1.0]])
    torch.testing.assert_close(torch.autograd.grad(loss, weight)[0], expected, rtol=0.01, atol=0.0)


# sets of boxes


def scenes(seed, queries=7, classes=4, sizes=(2, 0, 5, 1)):
    """The outputs of a model for some pictures, and the objects in these."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(sizes), queries, classes + 1, generator=generator)
    boxes = torch.rand(len(sizes), queries, 4, generator=generator) * 0.5 + 0.2
    labels = torch.randint(classes, (sum(sizes),), generator=generator)
    targets = torch.rand(sum(sizes), 4, generator=generator) * 0.5 + 0.2
    return logits, boxes, labels, targets, list(sizes)


def hugging_face(logits, boxes, labels, targets, sizes):
    """Matches and mean losses of transformers' matcher and loss."""
    matcher = detection.HungarianMatcher(class_cost=1.0, bbox_cost=5.0, giou_cost=2.0)
    criterion = detection.ImageLoss(
        matcher, logits.shape[-1] - 1, losses.NO_OBJECT, ["labels", "boxes"]
    )
    outputs = {"logits": logits, "pred_boxes": boxes}
    split = zip(labels.split(sizes), targets.split(sizes), strict=True)
    wanted = [{"class_labels": own, "boxes": where} for own, where in split]
    return matcher(outputs, wanted), criterion(outputs, wanted)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sizes", [(2, 0, 5, 1), (7, 7), (9, 1, 3), (1,)])
def test_matches_and_losses_of_sets_are_hugging_face_s(seed, sizes):
    case = scenes(seed, sizes=sizes)
    matched, expected = hugging_face(*case)
    queries, objects = losses.match(*case)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    theirs = {
        (q + 7 * i, o + starts[i])
        for i, pair in enumerate(matched)
        for q, o in zip(*map(torch.Tensor.tolist, pair))
    }
    assert set(zip(queries.tolist(), objects.tolist())) == theirs
    sums = losses.set_losses(*case)
    counts = losses.set_counts(sizes, 7)
    if max(sizes) > 7:  # transformers counts objects that no query is left for
        counts |= dict.fromkeys(("l1", "giou"), float(sum(sizes)))
    for name, other in (("labels", "loss_ce"), ("l1", "loss_bbox"), ("giou", "loss_giou")):
        torch.testing.assert_close(sums[name] / counts[name], expected[other], rtol=1e-5, atol=1e-5)


def test_a_matching_costs_no_more_than_any_other():
    logits, boxes, labels, targets, sizes = scenes(1, queries=4, sizes=(3,))
    costs = losses.matching_costs(logits, boxes, labels, targets, sizes)  # (A, Q)
    queries, objects = losses.match(logits, boxes, labels, targets, sizes)
    cheapest = min(
        sum(costs[a, q] for a, q in enumerate(order)) for order in permutations(range(4), 3)
    )
    torch.testing.assert_close(costs[objects, queries].sum(), cheapest)


def test_parts_of_a_batch_of_sets_add_up_to_the_whole():
    logits, boxes, labels, targets, sizes = scenes(1)
    whole, counts = (
        losses.set_losses(logits, boxes, labels, targets, sizes),
        losses.set_counts(sizes, 7),
    )
    parts = [
        (
            losses.set_losses(logits[p], boxes[p], labels[o], targets[o], sizes[p]),
            losses.set_counts(sizes[p], 7),
        )
        for p, o in ((slice(0, 2), slice(0, 2)), (slice(2, 4), slice(2, 8)))
    ]
    for name, value in whole.items():
        torch.testing.assert_close(sum(sums[name] for sums, _ in parts), value)
        assert sum(held[name] for _, held in parts) == pytest.approx(counts[name])


def test_pictures_without_objects_teach_that_there_are_none():
    logits, boxes, labels, targets, sizes = scenes(1, sizes=(0, 0))
    sums = losses.set_losses(logits.requires_grad_(), boxes, labels, targets, sizes)
    assert (sums["l1"], sums["giou"]) == (0.0, 0.0)
    counts = losses.set_counts(sizes, 7)
    assert all(count > 0.0 for count in counts.values())
    expected = -logits.log_softmax(-1)[..., -1].mean()
    torch.testing.assert_close(sums["labels"] / counts["labels"], expected)


def test_a_model_that_has_diverged_is_matched_all_the_same():
    logits, boxes, labels, targets, sizes = scenes(1)
    sums = losses.set_losses(logits * float("nan"), boxes, labels, targets, sizes)
    assert sums["labels"].isnan()


@pytest.mark.parametrize(
    "times, lengths",
    [
        ([5, 9, 12], [2, 0, 4]),
        ([7], [3]),
        ([1, 3], [0, 1]),
        ([30, 50, 41], [10, 20, 3]),
        ([4, 4], [2, 2]),
    ],
)
def test_ctc_and_its_gradients_are_torchs(times, lengths):
    torch.manual_seed(1)
    segments, target_segments = Segments.of(times), Segments.of(lengths)
    logits = (3 * torch.randn(sum(times), 6, dtype=torch.float64)).requires_grad_()
    targets, blank = torch.randint(5, (sum(lengths),)), 5
    targets[1:2] = targets[:1]  # two of a kind
    found = losses.ctc_loss(logits.log_softmax(-1), segments, targets, target_segments, blank)
    dense = pad(logits.log_softmax(-1), segments).transpose(0, 1)
    expected = F.ctc_loss(dense, targets, tuple(times), tuple(lengths), blank, reduction="none")
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    weights = torch.arange(1.0, len(times) + 1)
    ours, theirs = (
        torch.autograd.grad((loss * weights).sum(), logits)[0] for loss in (found, expected)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


def test_ctc_in_single_precision_is_near_it():
    torch.manual_seed(1)
    logits = (3 * torch.randn(90, 12)).requires_grad_()
    targets, segments, target_segments = (
        torch.randint(1, 12, (20,)),
        Segments.of([50, 40]),
        Segments.of([12, 8]),
    )
    found = losses.ctc_loss(logits.log_softmax(-1), segments, targets, target_segments, 0)
    dense = pad(logits.log_softmax(-1), segments).transpose(0, 1)
    expected = F.ctc_loss(dense, targets, (50, 40), (12, 8), 0, reduction="none")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    ours, theirs = (torch.autograd.grad(loss.sum(), logits)[0] for loss in (found, expected))
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


def test_ctcs_gradient_is_not_rounded_where_layers_compute_in_bfloat16():
    torch.manual_seed(1)
    frames, texts = Segments.of([7, 5]), Segments.of([3, 2])
    targets, gradients = torch.tensor([1, 2, 1, 3, 3]), []
    logits = torch.randn(12, 5, requires_grad=True)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = losses.ctc_loss(logits.log_softmax(-1), frames, targets, texts, 0)
        gradients.append(torch.autograd.grad(found.sum(), logits)[0])
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-7)


def test_ctc_of_a_text_that_needs_more_frames_is_infinite_and_moves_nothing():
    logits = torch.randn(5, 4, requires_grad=True)
    targets = torch.tensor([1, 1, 2])  # three frames for two of a kind
    loss = losses.ctc_loss(
        logits.log_softmax(-1), Segments.of([2, 3]), targets, Segments.of([2, 1]), 0
    )
    assert loss.isinf().tolist() == [True, False]
    assert torch.autograd.grad(loss[1], logits, retain_graph=True)[0].isfinite().all()
    assert (torch.autograd.grad(loss.sum(), logits)[0][:2] == 0).all()


def test_ctc_of_a_text_without_any_frame_is_infinite_and_of_nothing_is_zero():
    logits = torch.randn(4, 3, requires_grad=True)
    loss = losses.ctc_loss(
        logits.log_softmax(-1),
        Segments.of([4, 0, 0]),
        torch.tensor([1, 1]),
        Segments.of([1, 1, 0]),
        0,
    )
    assert loss.isinf().tolist() == [False, True, False]
    assert loss[2] == 0
    assert torch.autograd.grad(loss[0] + loss[2], logits)[0].isfinite().all()


def test_ctc_of_a_sequence_is_the_same_alone_and_in_a_batch():
    torch.manual_seed(1)
    log_probabilities = torch.randn(30, 5).log_softmax(-1)
    targets = torch.randint(1, 5, (7,))
    together = losses.ctc_loss(
        log_probabilities, Segments.of([10, 20]), targets, Segments.of([3, 4]), 0
    )
    alone = losses.ctc_loss(
        log_probabilities[10:], Segments.of([20]), targets[3:], Segments.of([4]), 0
    )
    torch.testing.assert_close(together[1:], alone)


def test_vector_quantisation_is_the_formula_and_its_gradient_passes_straight():
    torch.manual_seed(1)
    vectors, codebook = (
        torch.randn(12, 4, requires_grad=True),
        torch.randn(5, 4, requires_grad=True),
    )
    found, codes, penalty = losses.vector_quantise(vectors, codebook, 0.25)
    nearest = torch.cdist(vectors, codebook).argmin(1)
    assert torch.equal(codes, nearest)
    torch.testing.assert_close(found, codebook[nearest])
    torch.testing.assert_close(penalty, 1.25 * (vectors - codebook[nearest]).square().sum())
    downstream = torch.randn(12, 4)
    straight = torch.autograd.grad(
        (found * downstream).sum(), (vectors, codebook), retain_graph=True, allow_unused=True
    )
    torch.testing.assert_close(straight[0], downstream)  # as if nothing had been quantised
    assert straight[1] is None
    of_vectors, of_codebook = torch.autograd.grad(penalty, (vectors, codebook))
    gap = (vectors - codebook[nearest]).detach()
    torch.testing.assert_close(of_vectors, 2 * 0.25 * gap)
    torch.testing.assert_close(of_codebook, torch.zeros(5, 4).index_add(0, nearest, -2 * gap))


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_gumbel_softmax_is_torchs_with_the_same_noise(temperature):
    logits = 3 * torch.randn(20, 6)
    torch.manual_seed(2)
    found = losses.gumbel_softmax(logits, temperature)
    torch.manual_seed(2)
    torch.testing.assert_close(found, F.gumbel_softmax(logits, temperature))


def test_the_divergence_from_uniform_is_torchs():
    logits = torch.randn(7, 5)
    uniform = torch.full((7, 5), 1 / 5)
    expected = F.kl_div(uniform.log(), logits.softmax(-1), reduction="none").sum(1)
    torch.testing.assert_close(losses.divergence_from_uniform(logits), expected)
    torch.testing.assert_close(losses.divergence_from_uniform(torch.zeros(2, 5)), torch.zeros(2))
