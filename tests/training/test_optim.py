"""Schedules reach their peak and decay as documented; weight decay applies to matrices only."""

import copy
import math
import re

import pytest
import torch
from torch import nn

from tests.helpers import tiny as transformer
from transduct.errors import TransductError
from transduct.models.gpt import GPT
from transduct.models.gpt import Config as GPTConfig
from transduct.models.vit import Config as ViTConfig
from transduct.models.vit import ViT
from transduct.training.optim import (
    MovingAverage,
    Muon,
    all_orthogonal,
    freeze,
    hidden_matrices,
    make_optimiser,
    orthogonal,
    paper_rate,
    rate,
)
from transduct.training.step import guarded_step, set_rate

SCHEDULES = ["inverse_sqrt", "linear", "cosine", "constant"]
PEAK, WARMUP, STEPS = 2e-3, 10, 50


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_rises_in_a_straight_line_and_peaks_where_the_warm_up_ends(schedule):
    rates = [rate(schedule, PEAK, WARMUP, STEPS, step) for step in range(1, STEPS + 1)]
    assert rates[:WARMUP] == pytest.approx([PEAK * step / WARMUP for step in range(1, WARMUP + 1)])
    assert max(rates) == rates[WARMUP - 1] == PEAK
    assert rates[WARMUP - 1 :] == sorted(rates[WARMUP - 1 :], reverse=True)
    assert min(rates) >= 0.0


@pytest.mark.parametrize(
    ("schedule", "half", "end"),
    [
        ("inverse_sqrt", PEAK / math.sqrt(3), PEAK / math.sqrt(5)),
        ("linear", PEAK / 2, 0.0),
        ("cosine", PEAK / 2, 0.0),
        ("constant", PEAK, PEAK),
    ],
)
def test_the_rate_decays_by_half_midway_and_to_zero_at_the_end(schedule, half, end):
    assert rate(schedule, PEAK, WARMUP, STEPS, 30) == pytest.approx(half)
    assert rate(schedule, PEAK, WARMUP, STEPS, STEPS) == pytest.approx(end)
    assert 0.0 <= rate(schedule, PEAK, WARMUP, STEPS, 2 * STEPS) <= end + 1e-12


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 10), (1, 10), (10, 10), (0, 1)])
def test_a_schedule_without_a_warm_up_or_without_a_way_down_is_no_error(schedule, warmup, steps):
    rates = [rate(schedule, PEAK, warmup, steps, step) for step in range(1, steps + 1)]
    assert all(0.0 <= value <= PEAK for value in rates)


@pytest.mark.parametrize("warmup", [0, 1])
def test_without_a_warm_up_the_inverse_square_root_begins_at_its_peak(warmup):
    rates = [rate("inverse_sqrt", PEAK, warmup, STEPS, step) for step in (1, 4, 16)]
    assert rates == pytest.approx([PEAK, PEAK / 2, PEAK / 4])


@pytest.mark.parametrize("step", [1, 100, 4000, 4001, 100_000])
def test_the_papers_rate_is_the_inverse_square_root_with_its_own_peak(step):
    peak = (512 * 4000) ** -0.5
    assert paper_rate(512, 4000, step) == pytest.approx(rate("inverse_sqrt", peak, 4000, 0, step))
    assert paper_rate(512, 4000, step) == 512**-0.5 * min(step**-0.5, step * 4000**-1.5)


def test_only_matrices_decay():
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    optimiser = make_optimiser(model, (0.9, 0.98), 1e-9, weight_decay=0.5)
    for group in optimiser.param_groups:
        group["lr"] = 0.1
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, before[name] * (0.95 if parameter.ndim > 1 else 1.0))


@pytest.mark.parametrize(
    "model", [nn.Linear(3, 2, bias=False), nn.LayerNorm(2)], ids=["matrices", "vectors"]
)
def test_a_model_of_one_kind_of_parameters_is_no_error(model):
    assert len(make_optimiser(model, (0.9, 0.98), 1e-9, 0.0).param_groups) == 1


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(("most", "clipped"), [(0.0, 5.0), (10.0, 5.0), (1.0, 1.0)])
def test_a_guarded_step_clips_gradients_to_a_joint_norm(most, clipped, captured):
    model = nn.Linear(1, 1)
    optimiser = make_optimiser(model, (0.9, 0.98), 1e-9, 0.1, captured)
    set_rate(optimiser, 0.1)
    model.weight.grad, model.bias.grad = torch.tensor([[3.0]]), torch.tensor([-4.0])
    assert guarded_step(model, optimiser, most, torch.tensor(2.5)).tolist() == [2.5, 5.0]
    assert model.weight.grad.item() == pytest.approx(0.6 * clipped)
    mean = optimiser.state[model.bias]["exp_avg"]
    assert mean.item() == pytest.approx(-0.1 * 0.8 * clipped)


@pytest.mark.parametrize(
    ("loss", "gradient"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)]
)
@pytest.mark.parametrize("muon", [None, torch.float32])
def test_a_guarded_step_that_is_not_finite_moves_nothing(loss, gradient, muon):
    model = nn.Sequential(nn.Linear(1, 1))
    [weight, bias] = model.parameters()
    optimiser = make_optimiser(model, (0.9, 0.98), 1e-9, 0.1, muon is None, muon)
    set_rate(optimiser, 0.1)
    for given, value in ((1.0, 1.0), (gradient, loss)):
        before = [p.detach().clone() for p in (weight, bias)]
        state = [x.clone() for p in (weight, bias) for x in optimiser.state[p].values()]
        weight.grad, bias.grad = torch.tensor([[given]]), torch.tensor([1.0])
        guarded_step(model, optimiser, 1.0, torch.tensor(value))
    assert state
    assert all(torch.equal(p, x) for p, x in zip((weight, bias), before, strict=True))
    after = [x for p in (weight, bias) for x in optimiser.state[p].values()]
    assert all(torch.equal(x, y) for x, y in zip(after, state, strict=True))


def test_a_learning_rate_in_a_tensor_is_set_in_place():
    optimiser = make_optimiser(nn.Linear(2, 2), (0.9, 0.98), 1e-9, 0.0, True)
    places = [group["lr"].data_ptr() for group in optimiser.param_groups]
    set_rate(optimiser, 0.25)
    assert [float(group["lr"]) for group in optimiser.param_groups] == [0.25, 0.25]
    assert [group["lr"].data_ptr() for group in optimiser.param_groups] == places


def test_the_moving_average_follows_the_weights():
    model = nn.Linear(2, 1)
    average, expected = MovingAverage(model, 0.9), model.weight.detach().clone()
    for _ in range(3):
        with torch.no_grad():
            model.weight += 1.0
        average.update(model)
        expected = 0.9 * expected + 0.1 * model.weight.detach()
    torch.testing.assert_close(average.weights["weight"], expected)
    torch.testing.assert_close(average.weights["bias"], model.bias.detach())


def test_what_is_frozen_is_left_out():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    optimiser = make_optimiser(model, (0.9, 0.98), 1e-9, weight_decay=0.0)
    trained = {id(p) for group in optimiser.param_groups for p in group["params"]}
    assert trained == {id(p) for p in model[1].parameters()}


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5)])
def test_an_orthogonal_matrix_has_the_singular_vectors_of_the_one_it_is_next_to(shape):
    """And singular values of about 1: the five steps of the reference end between 0.68 and 1.21."""
    torch.manual_seed(1)
    u, values, v = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    found = orthogonal(u @ torch.diag(values) @ v, torch.float64)
    inner = u.T @ found @ v.T
    torch.testing.assert_close(inner, torch.diag(inner.diag()))
    assert inner.diag().min() > 0.65
    assert inner.diag().max() < 1.25
    assert not orthogonal(torch.zeros(shape)).any()


def test_singular_values_far_below_the_others_stay_below_them():
    """From 1/500 of the norm on they end between 0.68 and 1.21; the least grow 3.4445^5-fold."""
    values = torch.logspace(-8, 0, 401, dtype=torch.float64)
    pairs = torch.stack((torch.ones_like(values), values), 1).diag_embed()  # (401, 2, 2)
    found = orthogonal(pairs, torch.float64).diagonal(dim1=1, dim2=2)[:, 1]
    parts = values / (1 + values**2).sqrt()
    assert 0.68 < found[parts >= 1 / 500].min() < found[parts >= 1 / 500].max() < 1.21
    assert (found / parts).max() == pytest.approx(3.4445**5, rel=1e-4)


def test_matrices_of_one_shape_are_made_orthogonal_as_each_alone():
    torch.manual_seed(1)
    several = torch.randn(3, 9, 4)
    expected = torch.stack([orthogonal(each) for each in several])
    torch.testing.assert_close(orthogonal(several), expected)
    assert torch.equal(torch.stack([*all_orthogonal([*several], torch.float32)]), expected)


def test_an_orthogonal_matrix_in_bfloat16_is_nearly_the_same():
    torch.manual_seed(1)
    x = torch.randn(16, 48)
    found = orthogonal(x, torch.bfloat16)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, orthogonal(x), atol=0.02, rtol=0.0)


def hidden_stack():
    """A model with matrices for Muon, one of them a convolution, and parameters for Adam."""
    stack = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 5), nn.LayerNorm(5))
    return nn.ModuleDict({"table": nn.Embedding(7, 5), "stack": stack, "output": nn.Linear(5, 7)})


def test_hidden_matrices_are_those_of_layers_within_stacks():
    model = hidden_stack()
    assert [id(p) for p in hidden_matrices(model)] == [
        id(model["stack"][0].weight),
        id(model["stack"][2].weight),
    ]
    model["stack"][0].requires_grad_(False)
    assert [id(p) for p in hidden_matrices(model)] == [id(model["stack"][2].weight)]


@pytest.mark.parametrize(
    "model",
    [
        transformer(),
        ViT(
            ViTConfig(
                labels=3,
                image_size=8,
                patch_size=4,
                backbone=[8, 8],
                d_model=8,
                num_heads=2,
                d_ff=8,
                layers=2,
            )
        ),
        GPT(GPTConfig(9, d_model=8, num_heads=2, d_ff=8, layers=2, activation="swiglu")),
        nn.ModuleDict({"stem": nn.Sequential(nn.Conv1d(2, 3, 2))}),
    ],
    ids=lambda model: type(model).__name__,
)
def test_hidden_matrices_are_those_of_the_stacks_alone(model):
    found = {id(p) for p in hidden_matrices(model)}
    named = {name for name, p in model.named_parameters() if id(p) in found}
    inside = {
        n
        for n, p in model.named_parameters()
        if p.ndim > 1 and any(x.isdigit() for x in n.split("."))
    }
    assert named == inside
    assert named


def test_muon_moves_hidden_matrices_by_its_formula_and_all_else_as_adam():
    torch.manual_seed(1)
    model = hidden_stack()
    copy_, rate, decay = copy.deepcopy(model), 0.1, 0.5
    optimiser = make_optimiser(model, (0.9, 0.98), 1e-9, decay, muon=torch.float32)
    adam = make_optimiser(copy_, (0.9, 0.98), 1e-9, decay)
    momentum = {}
    for _ in range(3):
        hidden = {id(p) for p in hidden_matrices(model)}
        for each, twin in zip(model.parameters(), copy_.parameters()):
            each.grad = torch.randn_like(each)
            twin.grad = each.grad.clone()
        before = [p.detach().clone() for p in model.parameters()]
        for one in (optimiser, adam):
            set_rate(one, rate)
            one.step()
        for old, each, twin in zip(before, model.parameters(), copy_.parameters()):
            if id(each) not in hidden:
                assert torch.equal(each, twin)
                continue
            average = 0.95 * momentum.get(id(each), torch.zeros_like(each)) + 0.05 * each.grad
            momentum[id(each)] = average
            direction = orthogonal((0.95 * average + 0.05 * each.grad).flatten(1))
            moved = 0.2 * math.sqrt(max(direction.shape)) * rate * direction.view_as(each)
            torch.testing.assert_close(each, old * (1.0 - rate * decay) - moved)
    assert {key for p in hidden_matrices(model) for key in optimiser.state[p]} == {"momentum"}
    optimiser.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_a_step_of_muon_is_as_long_as_adams():
    """The root mean square of an update is 0.2 of the rate for any shape, so one rate serves
    both."""
    torch.manual_seed(1)
    for shape in ((64, 64), (16, 256), (256, 16)):
        stack = nn.Sequential(nn.Linear(*shape[::-1]))
        optimiser = make_optimiser(stack, (0.9, 0.98), 1e-9, 0.0, muon=torch.float32)
        assert isinstance(optimiser, Muon)
        before = stack[0].weight.detach().clone()
        stack[0].weight.grad, stack[0].bias.grad = 1e-3 * torch.randn(shape), torch.zeros(shape[0])
        set_rate(optimiser, 0.01)
        optimiser.step()
        assert (
            0.01 * 0.2 * 0.7 < (stack[0].weight - before).square().mean().sqrt() < 0.01 * 0.2 * 1.2
        )


def test_a_matrix_without_a_gradient_stays():
    model = hidden_stack()
    optimiser = make_optimiser(model, (0.9, 0.98), 1e-9, 0.5, muon=torch.float32)
    before = [p.detach().clone() for p in model.parameters()]
    optimiser.step()
    assert all(torch.equal(p, held) for p, held in zip(model.parameters(), before))


def test_muon_is_refused_where_there_is_nothing_for_it_to_move():
    """Recurrent weights are not linear layers; otherwise Adam alone would run under the name of
    Muon."""
    message = (
        "training.optimiser is muon, which moves matrices of .* within stacks; this "
        "model trains none: take adam"
    )
    for model in (nn.Linear(2, 2), nn.Sequential(nn.LSTM(2, 2))):
        with pytest.raises(TransductError, match=message):
            make_optimiser(model, (0.9, 0.98), 1e-9, 0.0, muon=torch.float32)


@pytest.mark.parametrize(
    "patterns, frozen",
    [
        (["encoder"], {"encoder.0.weight", "encoder.0.bias", "encoder.1.weight"}),
        (["*.bias", "encoder.1"], {"encoder.0.bias", "encoder.1.weight"}),
        (["tied"], {"encoder.1.weight"}),
    ],
)
def test_parts_are_frozen_by_their_names(patterns, frozen):
    model = nn.Module()
    model.encoder = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    model.tied, model.free = model.encoder[1], nn.Linear(2, 1, bias=False)
    freeze(model, patterns)
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == frozen


@pytest.mark.parametrize(
    "patterns, message",
    [
        (["0", "enc"], "training.freeze names 'enc', which is no part of this model; its parts: 0"),
        (["*"], "training.freeze leaves no weight to train; name fewer parts"),
    ],
)
def test_what_cannot_be_frozen_is_refused(patterns, message):
    with pytest.raises(TransductError, match=f"^recipe: {re.escape(message)}$"):
        freeze(nn.Sequential(nn.Linear(2, 2)), patterns)
