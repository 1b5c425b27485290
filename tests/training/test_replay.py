"""Inputs of one shape lie in one place, and a step that is replayed is the step that is taken."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from tests.training import toy
from tests.training.toy import CONFIG, network, train, weights
from transduct.errors import TrainingFailed
from transduct.functional import trials
from transduct.functional.segments import Segments
from transduct.training.distributed import Ranks
from transduct.training.log import ignore
from transduct.training.replay import Replay
from transduct.training.trainer import Diverged, Trainer

DEVICES = ["cpu"] + [pytest.param("cuda", marks=pytest.mark.gpu)] * torch.cuda.is_available()
SIZE = 6  # of every batch


@dataclass(frozen=True)
class Inputs:
    tokens: Tensor
    segments: Segments
    more: Mapping
    filler: int = field(default=0, compare=False)


def inputs(number, lengths=(2, 1), filler=0, kind=torch.float32):
    return Inputs(
        torch.full((3,), number, dtype=kind), Segments.of(lengths), {"none": None, "x": torch.ones(2)}, filler
    )


def test_copies_lie_where_the_first_lay_and_are_new_records():
    seen = []

    def function(held, totals):
        seen.append((held, totals, held.segments.positions.tolist()))
        return held.tokens.sum() / totals["tokens"]

    replay = Replay(function, torch.device("cpu"), True)
    given = [(inputs(number, lengths), {"tokens": float(number)}) for number, lengths in ((1, (2, 1)), (4, (1, 2)))]
    assert [float(replay(*each)) for each in given] == [3.0, 3.0]
    one, other = seen
    assert one[0] is not other[0]
    assert one[0].segments is not other[0].segments
    assert (one[2], other[2]) == ([0, 1, 0], [0, 0, 1]), "nothing is remembered of the batch before"
    for first, second in zip((one[0].tokens, one[1]["tokens"]), (other[0].tokens, other[1]["tokens"]), strict=True):
        assert first.data_ptr() == second.data_ptr()
    assert given[0][0].tokens.tolist() == [1, 1, 1], "what was given stays as it was"


def test_what_is_not_compared_may_differ():
    replay = Replay(lambda held: held.tokens.sum(), torch.device("cpu"), False)
    assert [float(replay(inputs(2, filler=filler))) for filler in (0, 3)] == [6.0, 6.0]


@pytest.mark.parametrize("other", [inputs(1, (3,)), inputs(1, (1, 1, 1)), inputs(1, kind=torch.float64)], ids=range(3))
def test_another_shape_is_refused(other):
    replay = Replay(lambda held: held.tokens.sum(), torch.device("cpu"), False)
    replay(inputs(1))
    message = "a batch has another shape than the first: found .*; set training.compile=false and training.capture"
    with pytest.raises(TrainingFailed, match=message):
        replay(other)


# steps


@dataclass(frozen=True)
class Batch(toy.Batch):
    def to(self, device):
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


def batches(split, epoch, start, rank, world):
    """Batches of one shape."""
    made = []
    for number in range(5):
        drawn = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(number))
        made.append(Batch(drawn, drawn.sum(1, keepdim=True).tanh(), 0))
    return iter(made[start + rank :: world])


def steps(directory, device, **changes):
    """The losses of five steps, and the weights after them."""
    directory.mkdir(exist_ok=True)
    model = network(dropout=0.5).to(device).train()
    config = replace(CONFIG, **changes)
    trainer = Trainer(model, config, directory, batches, toy.loss, None, ignore, Ranks())
    given = list(batches("train", 0, 0, 0, 1))
    found = []
    for number in range(5):
        found.append(trainer.optimise([given[number], given[-1]][: config.accumulate]))
        trainer.state = replace(trainer.state, step=number + 1)
    return found, weights(model)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("changes", [{}, {"accumulate": 2}, {"clip": 0.01}, {"clip": 0.0}, {"ema": 0.9}], ids=str)
def test_a_captured_step_is_the_step(tmp_path, changes, device):
    """With its dropout, for both draw from (seed, step, micro-batch)."""
    one, other = (steps(tmp_path / str(captured), device, capture=captured, **changes) for captured in (False, True))
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    torch.testing.assert_close(one[1], other[1], rtol=1e-5, atol=1e-6)


def test_a_compiled_loss_is_used_where_it_reaches_all_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "compiled", lambda loss: loss)
    one, other = (steps(tmp_path / str(compiled), "cpu", compile=compiled) for compiled in (False, True))
    assert one[0] == other[0]
    torch.testing.assert_close(one[1], other[1], rtol=0, atol=0)


def test_a_compiled_loss_that_teaches_a_weight_nothing_is_refused(tmp_path, monkeypatch):
    def broken(loss):
        """What PyTorch 2.11 made of a function: the right number, without a gradient."""

        def compiled(model, batch):
            silent = copy.deepcopy(model)
            silent[0].weight.requires_grad_(False)
            silent[0].bias, silent[3] = model[0].bias, model[3]
            return loss(silent, batch)

        return compiled

    monkeypatch.setattr(trials, "compiled", broken)
    lost = r"compiled by PyTorch .* the loss has no gradient for 1 weights \(0\.weight, \.\.\.\); set training\.compile"
    with pytest.raises(TrainingFailed, match=lost):
        train(tmp_path, batches=batches, compile=True)


def test_a_step_that_is_not_finite_moves_nothing(tmp_path):
    def loss(model, batch):
        total, count, weight = toy.loss(model, batch)["tokens"]
        return {"tokens": (total / 0.0, count, weight)}

    model = network()
    trainer = Trainer(model, replace(CONFIG, capture=True), tmp_path, batches, loss, None, ignore, Ranks())
    before = weights(model)
    with pytest.raises(Diverged, match="step 1: loss inf, gradient norm"):
        trainer.optimise(list(batches("train", 0, 0, 0, 1))[:1])
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


@pytest.mark.parametrize("capture", [False, True])
def test_a_rank_may_have_no_batch_at_the_end_of_an_epoch(tmp_path, capture):
    model = network()
    trainer = Trainer(model, replace(CONFIG, capture=capture), tmp_path, batches, toy.loss, None, ignore, Ranks())
    before = weights(model)
    assert trainer.optimise([]) == 0.0
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


def test_a_captured_run_goes_back_after_a_divergence_and_resumes(tmp_path):
    """To where the plain one goes, and with the optimiser's tensors of the checkpoint."""
    ends = []
    for captured in (False, True):
        calls = []

        def loss(model, batch, calls=calls):
            calls.append(None)
            total, count, weight = toy.loss(model, batch)["tokens"]
            return {"tokens": (total / (0.0 if len(calls) == 6 else 1.0), count, weight)}

        place = tmp_path / str(captured)
        model, state = train(place, loss=loss, batches=batches, validate=None, capture=captured)
        log = [json.loads(line) for line in (place / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        assert [(each["step"], each["try"]) for each in log if "diverged" in each] == [(3, 1)]
        assert state.step == CONFIG.steps
        again, _ = train(place, batches=batches, validate=None, capture=captured, steps=15)
        ends.append([*weights(model), *weights(again)])
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


def test_a_run_of_batches_of_many_shapes_is_refused(tmp_path):
    with pytest.raises(TrainingFailed, match="a batch has another shape than the first"):
        train(tmp_path, capture=True)
