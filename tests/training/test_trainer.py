"""The schedule of steps, validations and checkpoints, and what happens when training goes wrong."""

import json
import math
import re
import shutil
import signal
import threading
import time
from collections import Counter
from concurrent.futures import wait
from dataclasses import replace

import pytest
import torch

from tests.helpers import everything_in, real
from tests.training import toy
from tests.training.toy import CONFIG, SIZES, Report, network, train, weights
from transduct import storage
from transduct.errors import NotFinite, TrainingFailed, TransductError
from transduct.storage import read_tensors, weights_of
from transduct.training import checkpoints, trainer
from transduct.training.checkpoints import Checkpoints
from transduct.training.distributed import Ranks
from transduct.training.log import RunLog, ignore
from transduct.training.optim import rate
from transduct.training.trainer import Meter


def records(directory):
    return [
        json.loads(line)
        for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def saved(directory, step, name="model.safetensors"):
    return read_tensors(directory / "checkpoints" / f"step_{step}" / name)


def assert_same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **tolerance)


EXACTLY = {"rtol": 0, "atol": 0}


@pytest.mark.parametrize(("precision", "optimiser"), [("float32", "muon"), ("bfloat16", "adam")])
def test_it_learns(tmp_path, precision, optimiser):
    how = {"precision": precision, "optimiser": optimiser, "schedule": "linear"}
    model, state = train(tmp_path, steps=200, validate_every=0, **how)
    assert toy.validate(network()).scores["loss"] > 0.3
    assert toy.validate(model).scores["loss"] < 0.01
    assert state.step == 200
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_on_an_accelerator_batches_are_prepared_ahead_with_the_same_results(tmp_path, monkeypatch):
    threads = []

    def batches(*where):
        for batch in toy.batches(*where):
            threads.append(threading.current_thread().name)
            yield batch

    plain, state = train(tmp_path / "plain", batches=batches)
    assert {*threads} == {threading.current_thread().name}
    monkeypatch.setattr(trainer, "ACCELERATORS", ["cpu"])
    threads.clear()
    model, same_state = train(tmp_path / "ahead", batches=batches)
    assert all(name.startswith("ahead") for name in threads)
    assert_same(weights_of(model), weights_of(plain), **EXACTLY)
    assert (same_state.epoch, same_state.batch) == (state.epoch, state.batch)
    train(tmp_path / "short", batches=batches, steps=7)
    assert not [each for each in threading.enumerate() if each.name.startswith("ahead")]


def test_each_step_is_taken_on_the_next_batch_at_the_rate_of_the_schedule(tmp_path):
    seen = []

    def loss(model, batch):
        seen.append(batch.number)
        return toy.loss(model, batch)

    train(tmp_path, loss=loss, validate=None)
    assert seen == [0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 1]
    rates = [record["learning_rate"] for record in records(tmp_path)]
    assert rates == pytest.approx(
        [rate("inverse_sqrt", 0.05, 2, 12, step) for step in range(1, 13)]
    )
    assert [record["epoch"] for record in records(tmp_path)] == [0] * 5 + [1] * 5 + [2] * 2


# going back


def poison(steps, kind="loss"):
    """A loss that is not finite, or has such a gradient, in the batch of these calls (counted from
    1)."""
    calls = Counter()

    def loss(model, batch):
        calls["all"] += 1
        total, count, weight = toy.loss(model, batch)["tokens"]
        if calls["all"] in steps:
            nothing = (model[0].weight * 0.0).sum()
            total = total + (nothing / 0.0 if kind == "loss" else nothing.sqrt())
        return {"tokens": (total, count, weight)}

    return loss


@pytest.mark.parametrize("kind, said", [("loss", "loss nan"), ("gradient", "gradient norm nan")])
def test_after_a_divergence_training_goes_on_from_the_last_checkpoint_at_half_the_rate(
    tmp_path, kind, said
):
    model, state = train(tmp_path, loss=poison({6}, kind), validate=None)
    log = records(tmp_path)
    [back] = [record for record in log if "diverged" in record]
    assert (back["step"], back["rate_scale"], back["try"]) == (3, 0.5, 1)
    assert back["diverged"].startswith("step 6: loss ")
    assert said in back["diverged"]
    steps = [record["step"] for record in log if "loss" in record]
    assert steps == [1, 2, 3, 4, 5, *range(4, 13)]
    rates = [record["learning_rate"] for record in log if "loss" in record]
    expected = [rate("inverse_sqrt", 0.05, 2, 12, step) for step in steps]
    assert rates == pytest.approx([*expected[:5], *(value / 2 for value in expected[5:])])
    assert (state.step, state.rate_scale, state.tries) == (12, 0.5, 1)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def bursting(at, times=1):
    """A loss that is a thousandfold from this step on, so often, and as usual after a rollback."""
    taken = Counter()

    def loss(model, batch):
        taken["calls"] += 1
        [(total, count, weight)] = toy.loss(model, batch).values()
        return {"tokens": (total * (1e5 if taken["calls"] > at else 1.0), count, weight)}

    return loss, taken


LONG = {"steps": 160, "validate": None, "log_every": 50, "checkpoint_every": 25, "clip": 0.0}


def test_a_loss_that_stays_far_above_its_best_is_a_divergence_too(tmp_path):
    loss, taken = bursting(at=80)
    train_once = loss

    def loss_that_recovers(model, batch):
        terms = train_once(model, batch)
        if taken["calls"] == 150:
            taken["calls"] = -10_000
        return terms

    _, state = train(tmp_path, loss=loss_that_recovers, keep_checkpoints=9, **LONG)
    [back] = [record for record in records(tmp_path) if "diverged" in record]
    assert (back["step"], back["rate_scale"], state.step) == (50, 0.5, 160)
    assert re.fullmatch(r"step 150: loss [\d.e+]+ for 50 steps, it was 0\.\d+", back["diverged"])


def test_a_rate_that_destroys_the_model_at_once_fails(tmp_path):
    message = r"training diverged 4 times \(step 50: loss .* for 50 steps, it was .*\); lower train"
    with pytest.raises(TrainingFailed, match=message):
        train(
            tmp_path, learning_rate=1e5, **{**LONG, "keep_checkpoints": 9, "schedule": "constant"}
        )
    assert not (tmp_path / "model").exists()


def test_another_number_of_threads_is_reported_on_resume(tmp_path):
    before, events = torch.get_num_threads(), []
    train(tmp_path, steps=6)
    try:
        torch.set_num_threads(before)
        train(tmp_path, steps=8, report=events.append)
        assert not [event for event in events if "notice" in event]
        torch.set_num_threads(before + 1)
        train(tmp_path, steps=12, report=events.append)
    finally:
        torch.set_num_threads(before)
    [notice] = [event["notice"] for event in events if "notice" in event]
    assert notice == (
        f"the run was trained with {before} CPU threads and goes on with {before + 1}: its numbers "
        "will differ in their last digits; for the same to the byte, resume with "
        f"OMP_NUM_THREADS={before}"
    )
    assert "notice" not in (tmp_path / "log.jsonl").read_text()


def test_a_model_that_validation_finds_unfinished_goes_back_too(tmp_path):
    """A step that is too large shows only in the next loss, but a validation right after it finds
    NaN."""
    calls = []

    def validate(model):
        calls.append(model.training)
        if len(calls) == 2:
            raise NotFinite
        return scores_from([1.0] * 9)(model)

    model, state = train(tmp_path, validate=validate, validate_every=3)
    [back] = [record for record in records(tmp_path) if "diverged" in record]
    assert back["diverged"].startswith("step 6: the model's numbers are not finite")
    assert (back["step"], back["rate_scale"]) == (3, 0.5)
    assert (state.step, any(calls)) == (12, False)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_the_halved_rate_survives_a_kill_right_after_a_rollback(tmp_path):
    class Killed(Exception):
        pass

    def kill(event):
        if event["step"] == 4 and rates:
            raise Killed
        if "diverged" in event:
            rates.append(event["rate_scale"])

    rates = []
    with pytest.raises(Killed):
        train(tmp_path, loss=poison({6}), report=kill)
    _, state = train(tmp_path)
    assert (state.rate_scale, state.tries) == (0.5, 1)


def test_the_halved_rate_survives_a_kill_where_the_best_checkpoint_is_newest(
    tmp_path,
):
    class Killed(Exception):
        pass

    def batches(*where):
        if any("diverged" in event for event in events):
            raise Killed
        return toy.batches(*where)

    events = []
    with pytest.raises(Killed):  # step 4 is the best, step 3 the last regular one
        train(tmp_path, loss=poison({6}), batches=batches, report=events.append, best="loss")
    assert Checkpoints(tmp_path / "checkpoints").steps() == [0, 3]
    model, state = train(tmp_path, best="loss")
    assert (state.rate_scale, state.tries) == (0.5, 1)
    whole, _ = train(tmp_path / "whole", loss=poison({6}), best="loss")
    assert_same(weights_of(model), weights_of(whole), **EXACTLY)


def test_a_rollback_finds_the_best_checkpoint_of_that_time(tmp_path):
    """The best of step 3 was step 2, until step 4 was better; after going back to 3 nothing is."""
    validate = scores_from([0.5, 0.4, *[0.9] * 20])
    given = {"validate_every": 2, "best": "loss", "keep_checkpoints": 2}
    model, state = train(tmp_path, loss=poison({5}), validate=validate, **given)
    assert state.best_step == 2
    assert_same(weights_of(model), saved(tmp_path, 2), **EXACTLY)


def test_a_best_checkpoint_that_is_cut_short_leaves_the_one_before(tmp_path, written_at_once):
    train(
        tmp_path,
        steps=4,
        validate=scores_from([0.5, 0.4]),
        validate_every=2,
        best="loss",
        keep_checkpoints=2,
    )
    path = tmp_path / "checkpoints" / "step_4" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    validate = scores_from([0.9] * 9)
    model, state = train(
        tmp_path, validate=validate, validate_every=2, best="loss", keep_checkpoints=2
    )
    assert state.best_step == 2
    assert_same(weights_of(model), saved(tmp_path, 2), **EXACTLY)


def test_a_signal_does_not_write_a_checkpoint_again(tmp_path, monkeypatch):
    written, save = [], Checkpoints.save
    monkeypatch.setattr(
        Checkpoints,
        "save",
        lambda self, step, *given: (written.append(step), save(self, step, *given)),
    )
    for at, expected in ((6, [0, 3, 6]), (7, [6, 7])):  # at a checkpoint's step, and between two
        written.clear()

        def report(event, at=at):
            if event["step"] == at and "loss" in event:
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises(
            TrainingFailed, match=f"stopped by a signal at step {at}; go on with --resume"
        ):
            train(tmp_path, report=report, validate=None)
        assert written == expected[-len(written) :]
        assert written[-1] == at


def test_training_that_diverges_again_and_again_fails(tmp_path):
    message = (
        r"training diverged 3 times \(step 1: loss nan, gradient norm nan\); lower "
        r"training.learning_rate or raise"
    )
    with pytest.raises(TrainingFailed, match=message):
        train(tmp_path, loss=poison(range(2, 99)), divergence_tries=2)
    log = records(tmp_path)
    assert [(record["rate_scale"], record["try"]) for record in log if "diverged" in record] == [
        (0.5, 1),
        (0.25, 2),
    ]


@pytest.fixture
def written_at_once(monkeypatch):
    """Checkpoints are on the disk before the next step begins, to be damaged there."""
    save = Checkpoints.save

    def at_once(self, *arguments):
        save(self, *arguments)
        self.wait()

    monkeypatch.setattr(Checkpoints, "save", at_once)


def test_a_rollback_skips_a_checkpoint_that_is_cut_short(tmp_path, written_at_once):
    def cut(event):
        if event["step"] == 7 and "loss" in event:
            path = tmp_path / "checkpoints" / "step_6" / "model.safetensors"
            path.write_bytes(path.read_bytes()[:-1])

    train(tmp_path, loss=poison({8}), report=cut, validate=None)
    assert [record["step"] for record in records(tmp_path) if "diverged" in record] == [3]


def test_without_a_whole_checkpoint_there_is_no_way_back(tmp_path, written_at_once):
    def cut(event):
        for path in tmp_path.glob("checkpoints/*/state.json"):
            path.write_text("{")

    with pytest.raises(
        TrainingFailed,
        match=r"training diverged \(step 2: .*\) and no checkpoint is whole; start again",
    ):
        train(tmp_path, loss=poison({2}), report=cut)


def test_a_rollback_takes_any_whole_checkpoint_where_none_is_regular(tmp_path):
    """As after resuming with another `checkpoint_every`."""
    train(tmp_path, steps=10, checkpoint_every=5, keep_checkpoints=2)
    _, state = train(tmp_path, loss=poison({2}), validate=None, checkpoint_every=1000)
    assert [record["step"] for record in records(tmp_path) if "diverged" in record] == [10]
    assert (state.step, state.tries) == (12, 1)


def cut_short(directory, steps):
    for step in steps:
        path = directory / "checkpoints" / f"step_{step}" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1])


def test_a_run_says_which_checkpoints_it_passes_over(tmp_path):
    whole, _ = train(tmp_path / "whole")
    train(tmp_path / "run")
    cut_short(tmp_path / "run", [12])
    model, _ = train(tmp_path / "run")
    [[problem]] = [
        record["passed_over"] for record in records(tmp_path / "run") if "passed_over" in record
    ]
    assert "step_12/model.safetensors: not a whole safetensors file" in problem
    assert_same(weights_of(model), weights_of(whole), **EXACTLY)


@pytest.mark.parametrize("wrong", ["later", "cut short", "without their state"])
def test_a_run_without_a_readable_checkpoint_is_not_begun_anew_over_what_is_there(tmp_path, wrong):
    """Such as one trained by a later version, or on a disk that is temporarily unreadable."""
    train(tmp_path, steps=6)
    if wrong == "without their state":  # which a copy that ends early lacks
        for path in tmp_path.glob("checkpoints/*/state.json"):
            path.unlink()
        said = (
            r"step_6/state\.json: .* \(no older checkpoint is whole either; to start again choose"
        )
    elif wrong == "later":
        for path in tmp_path.glob("checkpoints/*/state.json"):
            path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
        said = (
            r"step_6/state\.json: format 99, this version reads 1 to 1; .* or install the "
            r"transduct that wrote it \(no"
        )
    else:
        cut_short(tmp_path, [0, 3, 6])
        said = (
            r"step_6/model\.safetensors: not a whole .* \(no older checkpoint is whole "
            r"either; to start again choose"
        )
    before = everything_in(tmp_path)
    with pytest.raises(TransductError, match=said):
        train(tmp_path)
    assert everything_in(tmp_path) == before


def test_the_checkpoint_being_written_is_waited_for_and_all_is_closed_whatever_fails(
    tmp_path, monkeypatch
):
    """An error of the log's, which is closed after that, would hide those before."""
    ended, training = [], []

    def stop(event):
        training.append(event["step"])
        if event["step"] == 3:
            raise RuntimeError("of training")

    def failing(name, own):
        def call(self):
            if training[-1:] != [3]:
                return own(self)
            ended.append(name)
            raise OSError(f"of {name}")

        return call

    for place, name in (
        (Checkpoints, "wait"),
        (trainer.RunLog, "close"),
        (trainer.Stepper, "release"),
    ):
        monkeypatch.setattr(place, name, failing(name, getattr(place, name)))
    with pytest.raises(OSError, match="of release") as caught:
        train(tmp_path, report=stop)
    assert ended == ["wait", "close", "release"]
    errors = [caught.value]
    while errors[-1].__context__:
        errors.append(errors[-1].__context__)
    assert [str(error) for error in errors] == ["of release", "of close", "of wait", "of training"]


# checkpoints and what is made of them


@pytest.mark.parametrize(
    "changes, kept",
    [
        ({}, [6, 9, 12]),
        ({"keep_checkpoints": 1}, [12]),
        ({"steps": 11}, [3, 6, 9, 11]),
        ({"keep_checkpoints": 9}, [0, 3, 6, 9, 12]),
    ],
)
def test_the_newest_checkpoints_are_kept(tmp_path, changes, kept):
    train(tmp_path, **changes)
    assert Checkpoints(tmp_path / "checkpoints").steps() == kept


def test_what_a_kill_left_of_older_checkpoints_is_gone_in_the_end(tmp_path):
    train(tmp_path)
    shutil.copytree(tmp_path / "checkpoints" / "step_6", tmp_path / "checkpoints" / "step_3")
    shutil.copytree(
        tmp_path / "checkpoints" / "step_6", tmp_path / "checkpoints" / ".step_0.old.part"
    )
    train(tmp_path)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step_12",
        "step_6",
        "step_9",
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_final_weights_are_the_mean_of_the_last_checkpoints(tmp_path, count):
    model, state = train(tmp_path, average=count, validate=None)
    assert state.averaged == [6, 9, 12][3 - count :]
    mean = mean_of(tmp_path, *state.averaged)
    assert_same(weights_of(model), mean, **EXACTLY)


def scores_from(values, name="loss"):
    """A validation that gives these scores in turn."""
    rest = iter(values)
    return lambda model: Report({name: next(rest)}, {})


def test_the_checkpoint_of_the_best_score_is_chosen(tmp_path):
    model, state = train(
        tmp_path, validate=scores_from([3.0, 1.0, 2.0]), best="loss", keep_checkpoints=1
    )
    assert (state.best_step, state.best_score) == (8, 1.0)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [8, 12]
    assert_same(weights_of(model), saved(tmp_path, 8), **EXACTLY)


@pytest.mark.parametrize("name, best", [("loss", 4), ("bleu", 8)])
def test_of_some_scores_the_lower_is_better(tmp_path, name, best):
    _, state = train(tmp_path, validate=scores_from([1.0, 3.0, 2.0], name), best=name)
    assert state.best_step == best


@pytest.mark.parametrize("changed", [False, True])
def test_scores_on_other_validation_data_are_not_compared(tmp_path, changed):
    train(tmp_path, steps=8, validate=scores_from([1.0, 2.0]), best="loss", validated_on="one")
    after = {
        "validate": scores_from([1.5]),
        "best": "loss",
        "validated_on": "another" if changed else "one",
    }
    _, state = train(tmp_path, **after)
    expected = (12, 1.5, 0, "another") if changed else (4, 1.0, 2, "one")
    assert (
        state.best_step,
        state.best_score,
        state.without_progress,
        state.validated_on,
    ) == expected
    said = [
        (record["step"], record["notice"]) for record in records(tmp_path) if "notice" in record
    ]
    assert (
        said
        == [(8, "the validation data have changed: step 4 no longer counts as the best")] * changed
    )


def test_a_run_that_validates_no_more_ends_with_the_step_that_was_the_best(tmp_path):
    train(tmp_path, validate=scores_from([1.0, 2.0, 3.0]), best="loss", validated_on="one")
    model, state = train(tmp_path, validate=pytest.fail, best="loss", validated_on="another")
    assert (state.best_step, state.validated_on) == (4, "one")
    assert_same(weights_of(model), saved(tmp_path, 4), **EXACTLY)


def test_a_rollback_over_changed_validation_data_forgets_the_old_best_again(tmp_path):
    train(
        tmp_path,
        steps=8,
        validate=scores_from([1.0, 2.0]),
        best="loss",
        checkpoint_every=8,
        validated_on="one",
    )
    after = {
        "validate": scores_from([3.0, 4.0]),
        "best": "loss",
        "checkpoint_every": 8,
        "validated_on": "another",
    }
    _, state = train(tmp_path, loss=poison({3}), **after)
    assert (state.tries, state.best_step, state.best_score) == (1, 12, 3.0)


def test_an_older_checkpoint_does_not_say_what_it_was_validated_on(tmp_path):
    train(tmp_path, steps=8, validate=scores_from([1.0, 2.0]), best="loss")
    path = tmp_path / "checkpoints" / "step_8" / "state.json"
    held = json.loads(path.read_text())
    path.write_text(
        json.dumps({name: held[name] for name in held if name not in ("validated_on", "digest")})
    )
    _, state = train(tmp_path, validate=scores_from([3.0]), best="loss", validated_on="known now")
    assert (state.best_step, state.best_score, state.validated_on) == (4, 1.0, "known now")
    assert not any("notice" in record for record in records(tmp_path))


def test_what_is_no_number_is_never_the_best(tmp_path):
    _, state = train(tmp_path, validate=scores_from([math.nan, 3.0, 2.0]), best="loss")
    assert (state.best_step, state.best_score) == (12, 2.0)


def test_losses_of_steps_that_are_taken_back_count_in_no_record(tmp_path):
    given = {"validate": None, "checkpoint_every": 4}
    for every in (1, 5):  # both return from step 8 to step 4
        train(tmp_path / f"{every}", loss=poison({8}), log_every=every, **given)
    # of a step that is taken twice, the second loss
    whole = [record for record in records(tmp_path / "1") if "loss" in record]
    each = {record["step"]: record["loss"] for record in whole}
    found = [
        (record["step"], record["loss"])
        for record in records(tmp_path / "5")
        if record["step"] in (5, 10)
    ]
    assert [step for step, _ in found] == [5, 5, 10]
    assert [loss for _, loss in found[:2]] == [pytest.approx(each[5])] * 2
    assert found[2][1] == pytest.approx(sum(each[step] for step in range(6, 11)) / 5)


def test_the_best_checkpoint_is_averaged_with_those_before_it(tmp_path):
    scores = scores_from([3.0, 1.0, 2.0, 1.0, 0.5])
    model, state = train(tmp_path, validate=scores, best="loss", average=2)
    assert (state.averaged, state.average_scores, state.average_metric) == (
        [6, 8],
        {1: 1.0, 2: 0.5},
        "loss",
    )
    assert_same(weights_of(model), mean_of(tmp_path, 6, 8), **EXACTLY)


def mean_of(directory, *steps):
    read = [saved(directory, step) for step in steps]
    return {
        name: torch.stack([each[name].double() for each in read]).mean(0).float()
        for name in read[0]
    }


@pytest.mark.parametrize(
    "scores, taken",
    [
        ([1.0, 2.0, 3.0], [12]),  # losses: the last checkpoint alone is the best
        ([3.0, 2.0, 2.5], [9, 12]),
        ([3.0, 3.0, 3.0], [6, 9, 12]),
        ([3.0, math.nan, 4.0], [12]),
        ([math.nan] * 3, [12]),
    ],
)
@pytest.mark.parametrize("best", ["loss", None])
def test_as_many_checkpoints_are_averaged_as_validate_best(tmp_path, scores, taken, best):
    validate = scores_from([9.0, 8.0, 7.0, *scores])
    model, state = train(tmp_path, validate=validate, best=best, average=3, checkpoint_every=3)
    assert state.averaged == taken
    assert_same(weights_of(model), mean_of(tmp_path, *taken), **EXACTLY)
    last = records(tmp_path)[-1]
    assert last["averaged"] == taken
    assert last["scores_by_count"] == {
        str(n): None if math.isnan(s) else s for n, s in enumerate(scores, 1)
    }
    assert last["metric"] == "loss"


def test_an_average_that_gives_no_numbers_is_not_taken(tmp_path):
    calls = Counter()

    def validate(model):
        calls["all"] += 1
        if calls["all"] == 5:  # the average of two
            raise NotFinite
        return Report({"loss": 1.0 / calls["all"]}, {})

    _, state = train(tmp_path, validate=validate, average=3)
    assert (state.averaged, math.isnan(state.average_scores[2])) == ([6, 9, 12], True)


def test_without_validation_nothing_of_the_warm_up_is_averaged(tmp_path):
    model, state = train(tmp_path, validate=None, average=3, warmup=6)
    assert state.averaged == [9, 12]
    assert_same(weights_of(model), mean_of(tmp_path, 9, 12), **EXACTLY)
    none = lambda model: Report({}, {})  # noqa: E731
    assert train(tmp_path, validate=none, average=3, warmup=12)[1].averaged == [12]


def test_an_unknown_score_is_no_choice_of_an_average_either(tmp_path):
    train(tmp_path, validate=None, average=2)
    with pytest.raises(
        TrainingFailed, match=r"training.best is 'beauty', the validation gives: loss; name one and"
    ):
        train(tmp_path, average=2, best="beauty")


@pytest.mark.parametrize("validate", [None, toy.validate])
def test_a_damaged_checkpoint_of_the_average_is_refused(tmp_path, validate):
    train(tmp_path, average=3, validate=validate)
    cut_short(tmp_path, [9])
    found = (
        r"step_9/.*copy it again.* \(to leave it and older ones out: training\.average=1 --resume\)"
    )
    with pytest.raises(TransductError, match=found):
        train(tmp_path, average=3, validate=validate)
    model, _ = train(tmp_path, average=1, validate=validate)
    assert_same(weights_of(model), saved(tmp_path, 12), **EXACTLY)


def test_a_checkpoint_of_the_average_without_its_state_is_refused(tmp_path):
    train(tmp_path, average=2)
    (tmp_path / "checkpoints" / "step_9" / "state.json").unlink()
    with pytest.raises(
        TransductError, match=r"step_9/state.json: cannot be read .*training\.average=1 --resume"
    ):
        train(tmp_path, average=2)


def test_one_flipped_bit_in_a_moving_average_is_found(tmp_path):
    train(tmp_path, average=2, ema=0.8)
    path = tmp_path / "checkpoints" / "step_9" / "ema.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        TransductError, match=r"step_9/ema.safetensors: holds other bytes .*training\.average=1"
    ):
        train(tmp_path, average=2, ema=0.8)


def test_a_best_checkpoint_that_is_damaged_is_no_model(tmp_path):
    train(tmp_path, validate=scores_from([3.0, 1.0, 2.0, 4.0]), best="loss")
    cut_short(tmp_path, [8])
    with pytest.raises(
        TransductError, match=r"step_8/.*copy it again \(to end with the newest .*best=null"
    ):
        train(tmp_path, best="loss")
    model, _ = train(tmp_path, best=None)
    assert_same(weights_of(model), saved(tmp_path, 12), **EXACTLY)


def test_what_is_advised_when_the_best_is_damaged_ends_a_run_whose_patience_ended_it(tmp_path):
    scores = [1.0, 2.0, 3.0, 4.0, 5.0]
    train(tmp_path, validate=scores_from(scores), best="loss", patience=1, steps=20)
    cut_short(tmp_path, [4])
    advised = (
        r"newest weights: training\.best=null training\.patience=0 training\.steps=8 --resume\)"
    )
    with pytest.raises(TransductError, match=advised):
        train(tmp_path, validate=scores_from(scores), best="loss", patience=1, steps=20)
    model, state = train(tmp_path, best=None, patience=0, steps=8)
    assert state.step == 8
    assert_same(weights_of(model), saved(tmp_path, 8), **EXACTLY)


@pytest.mark.parametrize("other", [{"seed": 7}, {"batch_tokens": 5}], ids=str)
def test_what_orders_batches_anew_begins_an_epoch(other):
    state = trainer.State(step=5, epoch=2, batch=3).under(CONFIG)
    assert state.batch == 0, "of a state that knows no order nobody can tell"
    state = replace(state, epoch=2, batch=3)
    assert state.under(CONFIG) == state
    changed = state.under(replace(CONFIG, **other))
    assert (changed.epoch, changed.batch, changed.step) == (3, 0, 5)
    assert changed.under(replace(CONFIG, **other)) == changed
    assert replace(state, batch=0).under(replace(CONFIG, **other)).epoch == 2, "it has not begun"


def test_training_ends_when_patience_does(tmp_path):
    values = [5.0, 6.0, 4.0, 6.0, 4.0, 1.0]
    model, state = train(tmp_path, validate=scores_from(values), best="loss", patience=2, steps=99)
    assert (state.step, state.best_step) == (20, 20), "of equal scores the later one"
    assert_same(weights_of(model), saved(tmp_path, 20), **EXACTLY)
    stopped = [record["stopped"] for record in records(tmp_path) if "stopped" in record]
    assert stopped == [
        "stopped early at step 20 of 99: loss has not improved in 2 validations; the weights are "
        "those of step 20 (loss 4); to go on: --resume training.patience=0"
    ]
    again, state = train(tmp_path, validate=None, best="loss", patience=2, steps=99)
    assert state.step == 20, "a finished run goes on"
    assert len([record for record in records(tmp_path) if "stopped" in record]) == 1
    assert_same(weights_of(again), weights_of(model), **EXACTLY)


def test_patience_begins_with_the_first_score_that_is_not_the_worst(tmp_path):
    """BLEU stays 0 for long, while the loss falls; of such steps the last has the best weights."""
    values = [0.0, 0.0, 0.0, 0.0, 2.0, 1.0, 1.5]
    scores = scores_from(values, "bleu")
    _, state = train(tmp_path, validate=scores, best="bleu", patience=2, steps=99)
    assert (state.step, state.best_step, state.best_score) == (28, 20, 2.0)
    worst = scores_from([0.0] * 9, "bleu")
    _, state = train(tmp_path / "worst", validate=worst, best="bleu", patience=2, steps=16)
    assert (state.step, state.best_step, state.without_progress) == (16, 16, 0)


@pytest.mark.parametrize("losses, best", [([3.0, 2.0, 2.5], 8), ([3.0, 2.0, 2.0], 12)])
def test_equal_scores_are_decided_by_the_loss_then_by_the_later_step(tmp_path, losses, best):
    rest = iter(losses)
    both = lambda model: Report({"bleu": 7.0, "loss": next(rest)}, {})  # noqa: E731
    _, state = train(tmp_path, validate=both, best="bleu", patience=3)
    assert (state.step, state.best_step, state.without_progress) == (12, best, 2)


@pytest.mark.parametrize("when", ["validation", "average"])
def test_a_signal_while_the_model_is_scored_stops_at_once_and_loses_no_validation(tmp_path, when):
    """The run that goes on makes the validation that was broken off, and ends with the same."""
    values, calls = [5.0, 4.0, 3.0, 3.0, 2.0], []
    given = {"best": "loss", "average": 2}
    expected, whole = train(tmp_path / "whole", validate=scores_from(values), **given)
    broken = 2 if when == "validation" else 4

    def interrupted(model):
        calls.append(model.training)
        if len(calls) == broken:
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("the signal was not heeded at once")
        return Report({"loss": values[len(calls) - 1]}, {})

    place = "step 8 in its validation" if broken == 2 else "step 12 while averages were scored"
    with pytest.raises(
        TrainingFailed, match=f"^stopped by a signal at {place}; go on with --resume$"
    ):
        train(tmp_path / "run", validate=interrupted, **given)
    rest = scores_from(values[broken - 1 :] if broken == 2 else values[3:])
    model, state = train(tmp_path / "run", validate=rest, **given)
    assert (state.best_step, state.averaged) == (whole.best_step, whole.averaged)
    assert_same(weights_of(model), weights_of(expected), **EXACTLY)
    validated = [r["step"] for r in records(tmp_path / "run") if "scores" in r]
    assert validated == [4, 8, 12]


def test_a_run_that_goes_on_by_another_score_compares_no_scores_of_two_kinds(tmp_path):
    def both(model):
        return Report({"loss": next(losses), "bleu": next(bleus)}, {})

    losses, bleus = iter([1.0, 9.0, 8.0, 7.0]), iter([50.0, 10.0, 30.0, 20.0])
    _, state = train(tmp_path, validate=both, best="loss", patience=3, steps=8)
    assert (state.best_step, state.without_progress) == (4, 1)
    _, state = train(tmp_path, validate=both, best="bleu", patience=3, steps=16)
    assert (state.best_step, state.best_score, state.without_progress) == (12, 30.0, 1)
    model, state = train(tmp_path, validate=None, best=None, steps=16)
    assert state.best_step is None
    assert_same(weights_of(model), saved(tmp_path, 16), **EXACTLY)


@pytest.mark.parametrize(
    "changes, scale",
    [
        ({}, 0.5),
        ({"learning_rate": 0.01}, 1.0),
        ({"warmup": 5}, 1.0),
        ({"schedule": "linear"}, 1.0),
    ],
)
def test_a_rate_that_was_lowered_after_diverging_counts_from_there(tmp_path, changes, scale):
    """Older checkpoints, which do not record the rates, resume unchanged."""
    _, state = train(tmp_path, loss=poison({6}), steps=9)
    assert (state.rate_scale, state.tries) == (0.5, 1)
    path = tmp_path / "checkpoints" / "step_9" / "state.json"
    if not changes:
        held = json.loads(path.read_text())
        path.write_text(
            json.dumps({name: held[name] for name in held if name not in ("chosen_by", "rates")})
        )
    _, state = train(tmp_path, steps=12, **changes)
    assert (state.rate_scale, state.tries) == (scale, int(scale < 1))
    config = replace(CONFIG, **changes)
    expected = scale * rate(config.schedule, config.learning_rate, config.warmup, 12, 12)
    assert records(tmp_path)[-2]["learning_rate"] == pytest.approx(expected)


def test_a_score_that_the_validation_does_not_give_is_no_choice(tmp_path):
    with pytest.raises(
        TrainingFailed, match=r"training.best is 'beauty', the validation gives: loss; name one and"
    ):
        train(tmp_path, best="beauty")
    train(tmp_path, best="loss")
    assert [record["step"] for record in records(tmp_path) if "loss" in record] == list(
        range(1, 13)
    )


def test_a_moving_average_is_validated_and_handed_out(tmp_path):
    seen = []

    def validate(model):
        assert not model.training
        seen.append({name: weight.clone() for name, weight in weights_of(model).items()})
        return toy.validate(model)

    model, _ = train(tmp_path, validate=validate, ema=0.8, checkpoint_every=1, keep_checkpoints=20)
    expected = [saved(tmp_path, 0)]
    for step in range(1, 13):
        expected.append(
            {name: 0.8 * expected[-1][name] + 0.2 * w for name, w in saved(tmp_path, step).items()}
        )
    for weights_seen, step in zip(seen, (4, 8, 12), strict=True):
        assert_same(weights_seen, expected[step])
    assert_same(weights_of(model), expected[12])
    assert not torch.allclose(saved(tmp_path, 12)["0.weight"], expected[12]["0.weight"])


def test_a_moving_average_does_not_go_on_in_a_file_that_will_be_removed(tmp_path, monkeypatch):
    read = []
    train(tmp_path, steps=3, ema=0.9)
    monkeypatch.setattr(
        storage, "read_tensors", lambda path: read.append(read_tensors(path)) or read[-1]
    )
    run = trainer.Trainer(
        network(), replace(CONFIG, ema=0.9), tmp_path, toy.batches, toy.loss, None, ignore, Ranks()
    )
    run.restore(3)
    places = {tensor.data_ptr() for tensors in read for tensor in tensors.values()}
    assert not places & {weight.data_ptr() for weight in run.ema.weights.values()}


def test_validation_leaves_the_model_as_it_was(tmp_path):
    with_validation, _ = train(tmp_path / "with", network(dropout=0.5), validate_every=1, ema=0.5)
    without, _ = train(tmp_path / "without", network(dropout=0.5), validate=None, ema=0.5)
    assert_same(weights_of(with_validation), weights_of(without), **EXACTLY)


# resuming


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
@pytest.mark.parametrize(
    "broken", [None, "model.safetensors", "optimizer.safetensors", "state.json"]
)
def test_a_run_that_was_broken_off_ends_like_one_that_was_not(tmp_path, broken, optimiser):
    """Also where the newest checkpoint is cut short. tests/tasks/test_resume.py does this with
    kills and all."""
    how = {"accumulate": 2, "optimiser": optimiser}
    whole, _ = train(tmp_path / "whole", network(dropout=0.5), **how)

    class Stopped(Exception):
        pass

    def stop(event):
        if event["step"] == 8:
            raise Stopped

    with pytest.raises(Stopped):
        train(tmp_path / "run", network(dropout=0.5), **how, report=stop)
    if broken:
        path = tmp_path / "run" / "checkpoints" / "step_6" / broken
        path.write_bytes(path.read_bytes()[:-3])
    resumed, _ = train(tmp_path / "run", network(dropout=0.5), **how)
    assert_same(weights_of(resumed), weights_of(whole), **EXACTLY)
    logs = [records(tmp_path / name) for name in ("run", "whole")]
    steps = [[record["step"] for record in log if "passed_over" not in record] for log in logs]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_model_with_a_buffer_is_refused_before_anything_is_written(tmp_path, persistent):
    model = network()
    model[1].register_buffer("seen", torch.zeros(1), persistent)
    with pytest.raises(TransductError) as caught:
        train(tmp_path, model)
    found = (
        "Sequential: '1.seen' is a buffer, which neither a checkpoint nor the finished "
        "model holds; "
    )
    remedy = "make it an nn.Parameter with requires_grad=False, or use a layer without one"
    assert str(caught.value) == found + remedy
    assert not list(tmp_path.iterdir())


def test_what_is_frozen_is_saved_and_stays(tmp_path):
    model = network()
    model.seen = torch.nn.Parameter(torch.tensor([3.0]), requires_grad=False)
    train(tmp_path, model)
    assert saved(tmp_path, 12)["seen"] == 3.0


def test_outside_the_main_thread_it_trains_without_signals(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(train(tmp_path, steps=2)[1].step))
    thread.start()
    thread.join()
    assert found == [2]


def test_an_empty_epoch_after_the_end_of_another_is_none_too_many(tmp_path):
    """Resuming at the end of an epoch finds no batches left, which does not make it an empty
    epoch."""

    def batches(split, epoch, *where):
        return iter([]) if epoch == 1 else toy.batches(split, epoch, *where)

    whole, _ = train(tmp_path / "whole", batches=batches, steps=7)
    train(tmp_path / "run", batches=batches, steps=len(SIZES))
    resumed, _ = train(tmp_path / "run", batches=batches, steps=7)
    assert_same(weights_of(resumed), weights_of(whole), **EXACTLY)


def test_an_epoch_without_batches_is_refused(tmp_path):
    with pytest.raises(
        TrainingFailed, match="no example was drawn in a whole epoch; raise the weights"
    ):
        train(tmp_path, batches=lambda *where: iter([]))


def test_an_epoch_that_happens_to_be_empty_is_passed_over(tmp_path):
    def batches(split, epoch, *where):
        return iter([]) if epoch % 2 else toy.batches(split, epoch, *where)

    train(tmp_path, batches=batches)
    assert {record["epoch"] for record in records(tmp_path) if "epoch" in record} == {0, 2, 4}


def test_the_toy_task_gives_every_batch_once_an_epoch():
    """The tests above and those of several ranks rely on this."""
    for world in (1, 2, 3):
        numbers = [
            b.number for rank in range(world) for b in real(toy.batches("train", 1, 0, rank, world))
        ]
        assert sorted(numbers) == list(range(len(SIZES)))
    assert weights(network())[0].equal(weights(network())[0])


def test_a_validation_takes_no_time_of_training(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("transduct.training.trainer.time.perf_counter", lambda: now[0])

    def loss(model, batch):
        now[0] += 2.0
        return toy.loss(model, batch)

    def validate(model):
        now[0] += 100.0
        return toy.validate(model)

    train(tmp_path, loss=loss, validate=validate)
    steps = [record for record in records(tmp_path) if "loss" in record]
    sizes = [SIZES[number] for number in (0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 1)]
    assert [record["tokens_per_second"] for record in steps] == [size / 2.0 for size in sizes]
    assert steps[-1]["seconds"] == 2.0 * 12 + 100.0 * 2  # before the last validation


def test_the_time_before_a_resume_counts(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("transduct.training.trainer.time.perf_counter", lambda: now[0])

    def loss(model, batch):
        now[0] += 2.0
        return toy.loss(model, batch)

    for steps in (3, 7):
        _, state = train(tmp_path, loss=loss, validate=None, steps=steps)
        now[0] += 1000.0
        assert state.seconds == records(tmp_path)[-1]["seconds"] == 2.0 * steps


def test_a_full_disk_ends_training_at_the_next_step(tmp_path, monkeypatch):
    write, save = checkpoints.write_directory, Checkpoints.save

    def full(directory, *rest, **named):
        if directory.name == "step_6":
            raise TransductError("the disk is full")
        write(directory, *rest, **named)

    def save_and_see(self, *given, **named):
        save(self, *given, **named)
        wait([self._writing])

    monkeypatch.setattr(checkpoints, "write_directory", full)
    monkeypatch.setattr(Checkpoints, "save", save_and_see)
    with pytest.raises(TransductError, match="the disk is full"):
        train(tmp_path, validate=None)
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_a_log_whose_disk_went_away_is_named(tmp_path):
    with pytest.raises(
        TransductError, match=r"log\.jsonl: cannot be written .*; see that its disk"
    ):
        RunLog(tmp_path / "gone", ignore).write({"step": 1})
    assert not any(tmp_path.iterdir())


def test_fewer_steps_than_are_trained_already_are_refused(tmp_path):
    train(tmp_path / "run", steps=6)
    with pytest.raises(
        TransductError, match=r"training\.steps is 4, step 6 is trained already; give no fewer"
    ):
        train(tmp_path / "run", steps=4)
    assert train(tmp_path / "run", steps=6)[1].step == 6


def test_a_run_goes_on_in_the_window_of_the_epoch_where_it_was(tmp_path):
    """Epochs of two windows, of three batches and of two."""

    def of_windows(split, epoch, start, rank, world, a_step, window):
        seen.append((epoch, window, start))
        return iter([toy.examples(number) for number in ((0, 1, 2), (3, 4))[window]][start:])

    seen, how = [], {"batches": of_windows, "windows": 2, "checkpoint_every": 1}
    _, state = train(tmp_path / "whole", steps=9, **how)
    assert seen == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    assert (state.epoch, state.window, state.batch) == (1, 1, 1)
    for steps in range(1, 10):
        resumed, _ = train(tmp_path / "run", steps=steps, schedule="constant", **how)
    again, _ = train(tmp_path / "again", steps=9, schedule="constant", **how)
    assert_same(weights_of(resumed), weights_of(again), **EXACTLY)
    assert (1, 1, 0) in seen
    assert (0, 1, 1) in seen


def test_ranks_that_would_not_compute_equally_often_are_refused():
    message = "the ranks have 1 to 2 batches for a step; let `batches` give each the same number"
    with pytest.raises(TrainingFailed, match=message):
        trainer.Trainer._agreed(None, [{"turns": 1}, {"turns": 2}])


def test_a_meter_counts_from_one_record_to_the_next(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter = Meter(seconds=50.0)
    now[0] += 2.0
    meter.waited = 0.5
    for loss in (1.0, 3.0):
        meter.count(loss, 20)
    first = meter.record(7, 1, 0.1)
    assert (first["seconds"], first["loss"], first["tokens_per_second"], first["waiting"]) == (
        52.0,
        2.0,
        20.0,
        0.25,
    )
    meter.count(9.0, 99)
    meter.forget()
    now[0] += 1.0
    meter.count(5.0, 0)
    second = meter.record(8, 1, 0.1)
    assert (second["seconds"], second["loss"], second["tokens_per_second"], second["waiting"]) == (
        53.0,
        5.0,
        0.0,
        0.0,
    )


def test_what_is_done_in_a_pause_takes_no_time_of_training(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter = Meter(seconds=0.0)
    meter.count(1.0, 30)
    now[0] += 1.0
    with meter.paused():
        now[0] += 8.0
    now[0] += 1.0
    record = meter.record(1, 0, 0.1)
    assert (record["seconds"], record["tokens_per_second"]) == (10.0, 15.0)
