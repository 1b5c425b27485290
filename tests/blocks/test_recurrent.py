"""Recurrent layers equal torch's, without padding; attention over a source equals its formula."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from tests.helpers import gradients, randomise
from transduct.blocks.recurrent import Recurrent, RecurrentAttention, RecurrentLayer, Schedule
from transduct.functional.attention import concat_scores, dot_scores, general_scores
from transduct.segments import Segments, Shape

D_INPUT, D = 5, 6
THEIRS = {"tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
KINDS = ["dot", "general", "concat", "additive"]

of_both_cells = pytest.mark.parametrize("kind", ["tanh", "gru", "lstm"])
in_both_ways = pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])


def copied(kind, layers, bidirectional):
    """A stack of torch's, and ours with its weights."""
    theirs = randomise(THEIRS[kind](D_INPUT, D, layers, bidirectional=bidirectional))
    ours = Recurrent(kind, D_INPUT, D, layers, bidirectional)
    with torch.no_grad():
        for number, layer in enumerate(ours.layers):
            for name, parameter in layer.named_parameters():
                ways = [f"{name}_l{number}", f"{name}_l{number}_reverse"][: 1 + bidirectional]
                parameter.copy_(torch.cat([getattr(theirs, way) for way in ways]))
    return theirs, ours


def their_order(ours, bidirectional):
    """Our gradients of the parameters in the order of torch's."""
    parts = []
    for layer in zip(*[iter(ours)] * 4):  # weight_ih, weight_hh, bias_ih, bias_hh
        halves = [part.chunk(1 + bidirectional) for part in layer]
        parts += [half[way] for way in range(1 + bidirectional) for half in halves]
    return parts


@of_both_cells
@in_both_ways
@pytest.mark.parametrize("lengths", [[3, 1, 4, 4], [2, 2], [1], [1, 2, 3]], ids=str)
def test_outputs_and_gradients_are_torchs(kind, bidirectional, lengths):
    theirs, ours = copied(kind, 2, bidirectional)
    x = torch.randn(sum(lengths), D_INPUT, requires_grad=True)
    packed = theirs(pack_sequence(x.split(lengths), enforce_sorted=False))[0]
    padded = pad_packed_sequence(packed, batch_first=True)[0]
    expected = torch.cat([row[:length] for row, length in zip(padded, lengths)])
    found = ours(x, Segments.of(lengths))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    x_grad, *mine = gradients(found, [x, *ours.parameters()])
    reference = gradients(expected, [x, *theirs.parameters()])
    for one, other in zip([x_grad, *their_order(mine, bidirectional)], reference, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@of_both_cells
def test_a_recurrence_begins_from_the_states_it_is_given(kind):
    theirs, ours = copied(kind, 2, False)
    lengths = [2, 0, 3]
    states = [torch.randn(3, D * (1 + (kind == "lstm")), requires_grad=True) for _ in range(2)]
    x = torch.randn(5, D_INPUT)
    found = ours(x, Segments.of(lengths), states)
    rows = []
    for number, tokens in enumerate(x.split(lengths)):
        # (layers, D): h, and c of an LSTM
        parts = torch.stack([state[number] for state in states]).split(D, -1)
        if len(tokens):
            rows.append(theirs(tokens, tuple(parts) if kind == "lstm" else parts[0])[0])
    expected = torch.cat(rows)
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients(found, states), gradients(expected, states), strict=True):
        torch.testing.assert_close(one, other)
        assert not one[1].any()  # of the sequence without tokens


@of_both_cells
@in_both_ways
def test_derivatives_are_those_of_small_differences(kind, bidirectional):
    layer = randomise(RecurrentLayer(kind, D_INPUT, D, 1 + bidirectional)).double()
    schedule = Schedule.of(Segments.of([2, 3]), 1 + bidirectional)
    names, parameters = zip(*layer.named_parameters())

    def output(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values)), (x, schedule))

    x = torch.randn(5, D_INPUT, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(output, (x, *parameters), fast_mode=True)


@of_both_cells
@torch.no_grad()
def test_step_by_step_is_all_at_once(kind):
    _, ours = copied(kind, 2, False)
    x = torch.randn(4 * 3, D_INPUT)
    states = [torch.randn(3, D * (1 + (kind == "lstm"))) for _ in range(2)]
    expected, steps = ours(x, Segments.of([4] * 3), states), []
    for tokens in x.view(3, 4, D_INPUT).unbind(1):
        output, states = ours.step(tokens, states)
        steps.append(output)
    torch.testing.assert_close(torch.stack(steps, 1).flatten(0, 1), expected)


@of_both_cells
@in_both_ways
@torch.no_grad()
def test_a_sequence_is_read_alike_alone_and_in_a_batch(kind, bidirectional):
    _, ours = copied(kind, 2, bidirectional)
    x, lengths = torch.randn(9, D_INPUT), [2, 0, 4, 3]
    together = ours(x, Segments.of(lengths)).split(lengths)
    for tokens, expected in zip(x.split(lengths), together):
        torch.testing.assert_close(ours(tokens, Segments.of([len(tokens)])), expected)
    assert ours(x[:0], Segments.of([0, 0])).shape == (0, D * (1 + bidirectional))


def test_a_schedule_takes_every_token_once_in_each_direction():
    schedule = Schedule.of(Segments.of([2, 0, 3]), 2)
    assert schedule.order.tolist() == [2, 0, 1]
    # tokens 0 1 | 2 3 4, each in two places: 2 n from the left and 2 n + 1 from the right
    assert [rows.tolist() for rows in schedule.places.split(schedule.sizes)] == [
        [4, 0, 9, 3],
        [6, 2, 7, 1],
        [8, 5],
    ]
    assert schedule.places[schedule.back].tolist() == [*range(10)]
    nothing = Schedule.of(Segments.of([0, 0]), 2)
    assert (nothing.places.tolist(), nothing.back.tolist(), nothing.sizes) == ([], [], [])


def test_dropout_falls_between_layers():
    torch.manual_seed(1)
    x, segments = torch.randn(6, D_INPUT), Segments.of([4, 2])
    for layers in (1, 2):
        stack = Recurrent("gru", D_INPUT, D, layers, rate=0.5)
        states = [torch.randn(6, D)] * layers
        same = torch.equal(stack(x, segments), stack(x, segments))
        assert (
            same == torch.equal(stack.step(x, states)[0], stack.step(x, states)[0]) == (layers == 1)
        )
        stack.eval()
        assert torch.equal(stack(x, segments), stack(x, segments))


@of_both_cells
@in_both_ways
def test_under_autocast_products_are_narrow_and_states_wide(kind, bidirectional):
    _, ours = copied(kind, 1, bidirectional)
    x, segments = torch.randn(40, D_INPUT, requires_grad=True), Segments.of([25, 15])
    expected = ours(x, segments)
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(x, segments)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.0)
    assert not torch.equal(found, expected)
    for one, other in zip(
        gradients(found, list(ours.parameters())), gradients(expected, list(ours.parameters()))
    ):
        assert float((one - other).norm() / other.norm()) < 0.05


def test_weights_begin_orthogonal_and_forget_gates_open():
    for kind, gates in (("tanh", 1), ("gru", 3), ("lstm", 4)):
        layer = RecurrentLayer(kind, D_INPUT, D, 2)
        for matrix in layer.weight_hh.detach().split(D):
            torch.testing.assert_close(matrix @ matrix.T, torch.eye(D))
        opened = [part.detach().tolist() for part in layer.bias_ih.split(D)]
        assert opened == [
            [float(kind == "lstm" and gate % gates == 1)] * D for gate in range(2 * gates)
        ]
        assert not layer.bias_hh.any()
        bound = (6 / (D + D_INPUT)) ** 0.5
        assert 0.8 * bound < float(layer.weight_ih.detach().abs().max()) <= bound


def test_an_lstm_begins_by_remembering_over_its_span():
    """A unit whose forget gate is 1 - 1 / n keeps a state for about n tokens."""
    layer = RecurrentLayer("lstm", D_INPUT, 500, 2)
    before = layer.bias_ih.detach().clone().view(2, 4, 500)
    layer.remember(64)
    gates = layer.bias_ih.detach().view(2, 4, 500)
    spans = gates[:, 1].exp()
    assert 1.0 <= float(spans.min()) < 3.0
    assert 61.0 < float(spans.max()) <= 63.0
    assert float(spans.mean()) == pytest.approx(32.0, abs=3.0)
    assert torch.equal(gates[:, 0], -gates[:, 1])
    assert torch.equal(gates[:, 2:], before[:, 2:])


def test_scores_begin_about_as_large_as_the_states():
    torch.manual_seed(1)
    bound = (3 / 64) ** 0.5
    assert (
        0.9 * bound < float(RecurrentAttention("general", 64).weight.detach().abs().max()) <= bound
    )
    vector = RecurrentAttention("concat", 64).vector.detach()
    assert 0.7 < float(vector.norm()) < 1.3


def scores_of(attention, kind, h, memory):
    """The scores by the named functions, from the parameters of a layer: (T, D), (S, D) -> (T,
    S)."""
    if kind == "dot":
        return dot_scores(h, memory)
    if kind == "general":
        return general_scores(h, memory, attention.weight)
    return concat_scores(h, memory, attention.query.weight, attention.key.weight, attention.vector)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [[2, 0, 5], [3, 3]], ids=str)
def test_a_context_is_the_memory_weighted_by_the_softmax_of_the_scores(kind, lengths):
    attention = randomise(RecurrentAttention(kind, D))
    memory, h = (
        torch.randn(sum(lengths), D, requires_grad=True),
        torch.randn(len(lengths), 1, 4, D, requires_grad=True),
    )
    weights = []
    found = attention(h, attention.remember(memory, Segments.of(lengths)), weights)
    rows = []
    for number, part in enumerate(memory.split(lengths)):
        expected = scores_of(attention, kind, h[number, 0], part).softmax(-1)
        torch.testing.assert_close(
            weights[0][number, 0, :, : len(part)] * bool(len(part)), expected
        )
        assert not weights[0][number, 0, :, max(1, len(part)) :].any()
        rows.append(expected @ part)
    expected = torch.stack(rows).unsqueeze(1)
    torch.testing.assert_close(found, expected)
    inputs = [h, memory, *attention.parameters()]
    for one, other in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(one, other)


@of_both_cells
@pytest.mark.parametrize("directions", [1, 2])
def test_every_time_for_all_sequences_changes_nothing(kind, directions):
    torch.manual_seed(1)
    lengths, layer = [3, 1, 5, 2], RecurrentLayer(kind, 3, 4, directions)
    plain, filled = Segments.of(lengths), Segments.filled(lengths, Shape(16, 7, 5, 5))
    x, found = torch.randn(16, 3), []
    for segments in (plain, filled):
        given = x[: segments.total].clone().requires_grad_()
        output = layer(given, Schedule.of(segments, directions))[: plain.total]
        wanted = (given, *layer.parameters())
        grads = torch.autograd.grad(output.square().sum(), wanted)
        found.append((output, grads[0][: plain.total], *grads[1:]))
    torch.testing.assert_close(*found)
    schedule = Schedule.of(filled, directions)
    assert schedule.sizes == [7 * directions] * 5
