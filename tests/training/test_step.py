"""A step matches the formula however it is split; compiled and captured steps match the plain
one."""

import copy
import gc
import json
import math
import weakref
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch

from tests.training import toy
from tests.training.toy import CONFIG, Batch, examples, network, train, weights
from transduct.errors import TrainingFailed
from transduct.kernels import triton
from transduct.segments import Filler
from transduct.training.distributed import Ranks
from transduct.training.optim import Muon
from transduct.training.step import (
    FAR,
    LARGEST,
    PATIENT,
    WATCHED,
    Diverged,
    LossScale,
    State,
    Stepper,
    counts_of,
)

DEVICES = ["cpu"] + [pytest.param("cuda", marks=pytest.mark.gpu)] * torch.cuda.is_available()
SIZE = 6  # of every batch of one shape
RATE = 0.05


def make_stepper(model, loss=toy.loss, **changes):
    return Stepper(model, replace(CONFIG, **changes), loss, Ranks())


def gradients_of(stepper, batches):
    value = stepper.take(batches, 1, RATE).loss()
    return value, [parameter.grad.clone() for parameter in stepper.model.parameters()]


@pytest.mark.parametrize("sizes", [[21, 1], [7, 7, 8], [1] * 22])
def test_micro_batches_equal_one_batch(sizes):
    """To rounding, however unequal they are."""
    inputs, targets = (
        torch.cat(parts) for parts in zip(*((e.inputs, e.targets) for e in map(examples, range(5))))
    )
    parts = [Batch(x, y, 0) for x, y in zip(inputs.split(sizes), targets.split(sizes), strict=True)]
    value, gradients = gradients_of(make_stepper(network(), clip=0.0), parts)
    one_value, one_gradients = gradients_of(
        make_stepper(network(), clip=0.0), [Batch(inputs, targets, 0)]
    )
    assert value == pytest.approx(one_value, rel=1e-6)
    torch.testing.assert_close(gradients, one_gradients)
    mean = (network()(inputs) - targets).square().mean()
    assert value == pytest.approx(mean.item(), rel=1e-6)


def test_terms_are_averaged_each_over_its_own_count_and_weighted():
    class Two(Batch):
        counts = {"tokens": 4.0, "boxes": 2.0}

    def loss(model, batch):
        return {
            "tokens": (model(batch.inputs).sum(), 4.0, 1.0),
            "boxes": (batch.targets.sum() * model[0].bias[0], 2.0, 0.5),
        }

    batch = Two(*vars(examples(1)).values())
    stepper = make_stepper(network(), loss)
    model = network()
    expected = (
        model(batch.inputs).sum() * 2 / 8 + 0.5 * batch.targets.sum() * model[0].bias[0] * 2 / 4
    )
    assert stepper.take([batch, batch], 1, RATE).loss() == pytest.approx(
        float(expected.detach()), rel=1e-5
    )


@pytest.mark.parametrize(
    "terms, said",
    [
        (
            {"boxes": 2.0},
            "the loss has a term 'boxes', its batch counts tokens; add it to the batch's counts",
        ),
        (
            {"tokens": 2.0},
            "the loss counts 2 of 'tokens', its batch 7; let the loss take its counts from "
            "the batch",
        ),
    ],
)
def test_terms_that_the_batch_counts_otherwise_are_refused(terms, said):
    def loss(model, batch):
        return {name: (model(batch.inputs).sum(), count, 1.0) for name, count in terms.items()}

    with pytest.raises(TrainingFailed) as caught:
        make_stepper(network(), loss).take([examples(1)], 1, RATE).loss()
    assert str(caught.value) == said


def test_a_batch_that_counts_nothing_is_named():
    class Uncounted(Batch):
        counts = {}

    with pytest.raises(TrainingFailed, match="a term 'tokens', its batch counts nothing; add it"):
        make_stepper(
            network(), lambda model, batch: {"tokens": (model(batch.inputs).sum(), 7.0, 1.0)}
        ).take([Uncounted(*vars(examples(1)).values())], 1, RATE).loss()


def test_randomness_is_drawn_from_seed_step_and_micro_batch_alone():
    """Whatever was drawn before."""
    values = []
    for draws in (0, 5):
        stepper = make_stepper(network(dropout=0.5))
        torch.rand(draws)
        values.append(
            [stepper.take([examples(0), examples(0)], number, RATE).loss() for number in (1, 2)]
        )
    assert values[0] == values[1]
    other = make_stepper(network(dropout=0.5), seed=2)
    assert other.take([examples(0), examples(0)], 1, RATE).loss() != values[0][0]


def test_every_batch_of_a_step_draws_its_own_numbers_on_any_rank(monkeypatch):
    drawn = []
    monkeypatch.setattr(Ranks, "sum_gradients", lambda self, model, loss: loss)

    def loss(model, batch):
        drawn.append(float(torch.rand(())))
        return toy.loss(model, batch)

    for rank, world in ((0, 2), (1, 2), (0, 1)):
        captured = replace(CONFIG, capture=True)
        stepper = Stepper(network(), captured, loss, Ranks(rank, world))
        for number in (1, 2):
            stepper.take([examples(0)] * (4 // world), number, RATE).loss()
    assert len({*drawn}) == 8
    first, other, alone = drawn[:4], drawn[4:8], drawn[8:]
    steps = zip(first[:2], other[:2]), zip(first[2:], other[2:])
    assert [number for step in steps for turn in step for number in turn] == alone


def test_a_filler_adds_nothing():
    """Not to the loss, the gradients or the counts."""
    weights_after = []
    for given in ([examples(1)], [examples(1), Filler(examples(0))]):
        model = network()
        weights_after.append((make_stepper(model).take(given, 1, RATE).loss(), weights(model)))
    (loss, one), (same_loss, other) = weights_after
    assert loss == same_loss
    assert all(map(torch.equal, one, other))
    assert counts_of([examples(1), Filler(examples(0))]) == examples(1).counts


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_optimiser_is_the_one_that_is_asked_for(precision):
    found = make_stepper(network(), optimiser="muon", precision=precision).optimiser
    assert isinstance(found, Muon)
    assert found.dtype == getattr(torch, precision)
    assert not isinstance(make_stepper(network()).optimiser, Muon)


@pytest.mark.parametrize("capture", [False, True])
def test_the_optimiser_takes_its_settings(capture):
    stepper = make_stepper(
        network(), betas=[0.5, 0.7], epsilon=1e-3, weight_decay=0.25, capture=capture
    )
    groups = stepper.optimiser.param_groups
    assert {(*group["betas"], group["eps"]) for group in groups} == {(0.5, 0.7, 1e-3)}
    assert {
        weight.ndim: group["weight_decay"] for group in groups for weight in group["params"]
    } == {2: 0.25, 1: 0.0}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_layers_compute_in_the_precision_and_weights_stay_in_float32(precision):
    seen = []

    def loss(model, batch):
        seen.append(model(batch.inputs).dtype)
        return toy.loss(model, batch)

    _, gradients = gradients_of(make_stepper(network(), loss, precision=precision), [examples(0)])
    assert seen == [getattr(torch, precision)]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}


def test_gradients_are_clipped():
    stepper = make_stepper(network(), clip=0.01)
    _, gradients = gradients_of(stepper, [examples(1)])
    assert math.hypot(*(float(gradient.norm()) for gradient in gradients)) == pytest.approx(
        0.01, rel=1e-4
    )


# compiled and captured


@dataclass(frozen=True)
class OfOneShape(Batch):
    def to(self, device):
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


def batches(split, epoch, start, rank, world, *_):
    """Batches of one shape."""
    made = []
    for number in range(5):
        drawn = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(number))
        made.append(OfOneShape(drawn, drawn.sum(1, keepdim=True).tanh(), 0))
    return iter(made[start + rank :: world])


def steps(device, **changes):
    """The losses of five steps, and the weights after them."""
    model = network(dropout=0.5).to(device).train()
    stepper = make_stepper(model, **changes)
    given = list(batches("train", 0, 0, 0, 1))
    found = [
        stepper.take(
            [given[number], given[-1]][: stepper.config.accumulate], number + 1, RATE
        ).loss()
        for number in range(5)
    ]
    return found, weights(model)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "changes", [{}, {"accumulate": 2}, {"clip": 0.01}, {"clip": 0.0}, {"ema": 0.9}], ids=str
)
def test_a_captured_step_is_the_step(changes, device):
    """Dropout included, because both draw from (seed, step, micro-batch)."""
    one, other = (steps(device, capture=captured, **changes) for captured in (False, True))
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    torch.testing.assert_close(one[1], other[1], rtol=1e-5, atol=1e-6)


def test_a_compiled_loss_is_used_where_it_reaches_all_weights(monkeypatch):
    monkeypatch.setattr(triton, "compiled", lambda loss: loss)
    one, other = (steps("cpu", compile=compiled) for compiled in (False, True))
    assert one[0] == other[0]
    torch.testing.assert_close(one[1], other[1], rtol=0, atol=0)


def without_a_gradient(loss):
    """What PyTorch 2.11 made of a function: the right number, without a gradient."""

    def compiled(model, batch):
        silent = copy.deepcopy(model)
        silent[0].weight.requires_grad_(False)
        silent[0].bias, silent[3] = model[0].bias, model[3]
        return loss(silent, batch)

    return compiled


def failing(loss):
    def compiled(model, batch):
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC.")

    return compiled


@pytest.mark.parametrize(
    "broken, problem",
    [
        (
            without_a_gradient,
            r"by PyTorch .* it has no gradient for 1 weights \(0\.weight, \.\.\.\)",
        ),
        (failing, r"RuntimeError: Failed to find C compiler\."),
    ],
)
def test_a_compiled_loss_that_fails_or_loses_gradients_is_replaced_by_the_loss(
    monkeypatch, broken, problem
):
    plain = steps("cpu")
    monkeypatch.setattr(triton, "compiled", broken)
    with pytest.warns(UserWarning, match=f"^the loss is not compiled: {problem}$"):
        found = steps("cpu", compile=True)
    assert found[0] == plain[0]
    torch.testing.assert_close(found[1], plain[1], rtol=0, atol=0)


@pytest.mark.parametrize("capture", [False, True])
def test_a_step_that_is_not_finite_moves_nothing(capture):
    def loss(model, batch):
        total, count, weight = toy.loss(model, batch)["tokens"]
        return {"tokens": (total / 0.0, count, weight)}

    model = network()
    stepper = make_stepper(model, loss, capture=capture)
    before = weights(model)
    with pytest.raises(Diverged, match="step 1: loss inf, gradient norm"):
        stepper.take(list(batches("train", 0, 0, 0, 1))[:1], 1, RATE).loss()
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


@pytest.mark.parametrize("capture", [False, True])
def test_a_rank_may_have_no_batch_at_the_end_of_an_epoch(capture):
    model = network()
    stepper = make_stepper(model, capture=capture)
    before = weights(model)
    assert stepper.take([], 1, RATE).loss() == 0.0
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


def test_a_captured_run_goes_back_after_a_divergence_and_resumes(tmp_path):
    """It reaches the same state as the plain run, with the optimiser state of the checkpoint."""
    ends = []
    for captured in (False, True):
        calls = []

        def loss(model, batch, calls=calls):
            calls.append(None)
            total, count, weight = toy.loss(model, batch)["tokens"]
            return {"tokens": (total / (0.0 if len(calls) == 6 else 1.0), count, weight)}

        place = tmp_path / str(captured)
        model, state = train(place, loss=loss, batches=batches, validate=None, capture=captured)
        log = [
            json.loads(line)
            for line in (place / "log.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        assert [(each["step"], each["try"]) for each in log if "diverged" in each] == [(3, 1)]
        assert state.step == CONFIG.steps
        again, _ = train(place, batches=batches, validate=None, capture=captured, steps=15)
        ends.append([*weights(model), *weights(again)])
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


def test_a_captured_run_may_have_batches_of_many_shapes(tmp_path):
    ends = [train(tmp_path / str(capture), capture=capture) for capture in (False, True)]
    torch.testing.assert_close(*(weights(model) for model, _ in ends), rtol=1e-5, atol=1e-6)


# float16


def overflowing(least):
    """A loss whose gradients are not finite while it is scaled by more than `least`."""

    def loss(model, batch):
        total, count, weight = toy.loss(model, batch)["tokens"]
        total.register_hook(lambda grad: grad * (math.inf if grad * count > least else 1.0))
        return {"tokens": (total, count, weight)}

    return loss


@pytest.mark.parametrize("capture", [False, True])
def test_a_float16_step_whose_gradients_overflow_is_taken_again_with_a_lower_scale(capture):
    ends = []
    for least in (math.inf, 2.0**13):
        stepper = make_stepper(
            network(), overflowing(least), precision="float16", capture=capture, clip=0.01
        )
        found = [stepper.take([examples(1)], number, RATE).loss() for number in (1, 2, 3)]
        ends.append((found, weights(stepper.model), stepper.scaling))
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-3)
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=1e-2, atol=1e-4)
    assert [scaling for *_, scaling in ends] == [[2.0**16, 3.0], [2.0**13, 3.0]]


def test_where_no_scale_serves_it_goes_on_in_float32():
    stepper = make_stepper(network(), overflowing(0.5), precision="float16")
    said = "step 1: no loss scale serves float16; it goes on in flo"
    # Its loss overflows in any precision.
    with pytest.warns(UserWarning, match=said), pytest.raises(Diverged):
        stepper.take([examples(1)], 1, RATE).loss()
    assert stepper.scaling == [0.0, 0.0]
    stepper.combined.module.loss = lambda model, batch: (
        seen.append(model(batch.inputs).dtype),
        toy.loss(model, batch),
    )[1]
    seen = []
    stepper.take([examples(1)], 2, RATE).loss()
    assert seen == [torch.float32]


def test_a_scale_rises_after_many_steps_without_an_overflow_and_has_an_end():
    assert LossScale(4.0, PATIENT - 2).after_success() == LossScale(4.0, PATIENT - 1)
    assert LossScale(4.0, PATIENT - 1).after_success() == LossScale(8.0)
    assert LossScale(LARGEST, PATIENT).after_success().factor == LARGEST
    assert LossScale(4.0, 7).lower() == LossScale(2.0)
    assert LossScale(1.0).lower() is None


def test_a_float16_run_resumes_with_the_scale_it_had(tmp_path):
    given = {"loss": overflowing(2.0**13), "precision": "float16", "validate": None}
    whole, _ = train(tmp_path / "whole", **given)
    _, state = train(tmp_path / "parts", **given, steps=6)
    assert state.scaling == [2.0**13, 6.0]
    parts, state = train(tmp_path / "parts", **given)
    assert state.scaling == [2.0**13, 12.0]
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=0)


def test_release_frees_the_stepper_and_its_optimiser_at_once():
    """Its step functions form reference cycles, which would hold memory that the next stage
    needs."""
    gc.disable()
    try:
        stepper = make_stepper(network())
        stepper.take([examples(0)], 1, RATE).loss()
        held = weakref.ref(stepper.optimiser)
        stepper.release()
        del stepper
        assert held() is None
    finally:
        gc.enable()


# on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU has graphs")
def test_a_captured_run_resumes_to_the_same_bits(tmp_path):
    given = {"batches": batches, "validate": None, "capture": True, "device": "cuda"}
    whole, _ = train(tmp_path / "whole", **given)
    train(tmp_path / "parts", **given, steps=6)
    parts, _ = train(tmp_path / "parts", **given)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU has graphs")
def test_a_step_that_asks_the_host_runs_without_a_graph_and_draws_the_same():
    def asking(model, batch):
        total, count, weight = toy.loss(model, batch)["tokens"]
        return {"tokens": (total * (1.0 if float(total) > -1.0 else 0.0), count, weight)}

    ends = []
    for capture in (False, True):
        model = network(dropout=0.5).to("cuda").train()
        stepper = make_stepper(model, asking, capture=capture)
        given = list(batches("train", 0, 0, 0, 1))
        said = pytest.warns(UserWarning, match="steps cannot be captured and run without")
        with said if capture else nullcontext():
            for number, batch in enumerate(given, 1):
                stepper.take([batch], number, RATE).loss()
        ends.append(weights(model))
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)


def test_a_loss_far_above_its_best_for_the_stated_steps_is_a_divergence():
    high = 3.0 * FAR + 1.5
    state = replace(State(lowest=3.0), step=100)
    for step in range(101, 100 + WATCHED):
        state = replace(state, step=step).after(high, step)
    with pytest.raises(Diverged, match=r"step 150: loss 7\.5 for 50 steps, it was 3") as found:
        replace(state, step=150).after(high, 150)
    assert found.value.since == 50
    assert replace(state, step=150, losses=[3.0] * 49).after(high, 150).lowest == 3.0


def test_a_short_burst_of_high_losses_is_no_divergence():
    state = State(lowest=3.0)
    for step in range(1, 201):
        state = replace(state, step=step).after(9e9 if step % 50 < 20 else 3.0, step)
    assert (state.lowest, state.losses) == (3.0, [])


def test_a_loss_within_its_usual_range_never_diverges():
    state = State()
    for step in range(1, 501):
        state = replace(state, step=step).after(0.5 + 0.9 * (step % 2), step)
    assert state.lowest == pytest.approx(0.5, abs=1)
