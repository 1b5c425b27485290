"""`fit`: train any model on any batches, with bit-identical results however often the run is killed
and resumed.

The trainer knows modules and callables, but no task. A position in training is two integers,
(epoch, batch), and the default generators are reseeded before each micro-batch, so a checkpoint
holds no generator and no iterator.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from transduct import storage
from transduct.devices import ACCELERATORS, peak_memory, pick_device
from transduct.errors import NotFinite, TrainingFailed, TransductError, require
from transduct.kernels.cuda_graphs import pinned
from transduct.training.checkpoints import Checkpoints, Copy, no_copy
from transduct.training.config import TrainingConfig
from transduct.training.distributed import LossOf, Ranks, hollow
from transduct.training.log import Event, RunLog, ignore
from transduct.training.machine import (
    one_ahead,
    prepare_machine,
    stopped_by_signals,
    use_threads,
)
from transduct.training.optim import MovingAverage, freeze
from transduct.training.optim import rate as scheduled
from transduct.training.step import (
    Diverged,
    Finished,
    State,
    Stepper,
    Taken,
    counts_of,
    is_real,
    total_counts,
)

# a rank's micro-batches, what the ranks have agreed on, and the position after the step
Step = tuple[list[Any], Event, Event]


class Report(Protocol):
    """The result of a validation."""

    @property
    def scores(self) -> Mapping[str, float]:
        """Name to number."""

    @property
    def details(self) -> Mapping[str, Any]:
        """Samples, intervals and the like, shown beside the scores."""

    @property
    def lower_is_better(self) -> Container[str]:
        """The names of the scores that improve as they fall."""

    def hopeless(self, name: str) -> bool:
        """Whether a score is the worst possible: 0, or 100 % of errors. A loss never is."""


def fit(
    model: nn.Module,
    config: TrainingConfig,
    directory: Path,
    batches: Callable[..., Iterator[Any]],
    loss: LossOf,
    validate: Callable[[nn.Module], Report] | None = None,
    report: Callable[[Event], None] = ignore,
    validated_on: str = "",
    windows: int = 1,
    copy: Copy = no_copy,
) -> Finished:
    """Train `model` in `directory`, starting from its newest intact checkpoint; leaves the final
    weights in `model`.

    Args:
        batches: (split, epoch, start, rank, world, a_step, window) -> this rank's batches of a
            window of an epoch, from number `start` on, as `data.batching.load` shares them out.
        loss: (model, batch) -> {name: (sum, count, weight)}.
        validate: model -> a report with scores.
        report: called with each record of the log, which has an additional entry "details".
        validated_on: a digest of the validation data; scores on other data are not compared.
        windows: the number of windows in an epoch.
        copy: called in the background after each checkpoint is written.

    Raises:
        TrainingFailed: if training diverged too often, or was stopped by a signal (the state is
            saved).
        TransductError: if the model has a buffer, the run is past the requested number of steps,
            none of its checkpoints can be read, or the ranks find different ones.
    """
    for name, _ in model.named_buffers():
        raise TransductError(
            f"{type(model).__name__}: '{name}' is a buffer, which neither a checkpoint nor the "
            "finished model holds; make it an nn.Parameter with requires_grad=False, or use a "
            "layer without one"
        )
    device = pick_device(config.device)
    prepare_machine()
    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    if not config.sharded:  # else it may not fit
        model.to(device)
    model.train()
    freeze(model, config.freeze)
    ranks = Ranks.join(device).within(config.timeout)
    with ranks.naming_lost():
        trainer = Trainer(
            *(model, config, directory, batches, loss, validate, report, ranks),
            *(validated_on, windows, copy),
        )
        return _trained(trainer, directory)


def _trained(trainer: "Trainer", directory: Path) -> Finished:
    """Train from the newest intact checkpoint to the end; see `fit`."""
    config, ranks = trainer.config, trainer.ranks
    broken: list[str] = []
    step = trainer.checkpoints.last_good(broken=broken)
    # Every rank has looked before what follows may write.
    remedy = f"give an --out that all share (rank {ranks.rank}: {directory})"
    ranks.require_equal("the newest checkpoint", step, remedy)
    if step is None:
        require(
            not broken,
            f"{''.join(broken[:1])} (no older checkpoint is whole either; to start again choose "
            "another --out)",
        )
        trainer.save()  # so that a rollback is always possible
    else:
        trainer.restore(step)
        require(
            step <= config.steps,
            f"training.steps is {config.steps}, step {step} is trained already; give no fewer",
        )
    if trainer.log is not None:
        trainer.log.forget_after(trainer.state.step)
        if broken:
            trainer.log.write({"step": trainer.state.step, "passed_over": broken}, None)
    trainer.report_other_threads()
    trainer.forget_other_validations()
    with ExitStack() as ending:  # in reverse order, each whatever becomes of the others
        ending.callback(trainer.stepper.release)
        if trainer.log is not None:
            ending.callback(trainer.log.close)
        ending.callback(trainer.checkpoints.wait)
        with stopped_by_signals(trainer.stop):
            trainer.run()
            return trainer.finish()


class Meter:
    """Measures time, tokens and loss between log records."""

    def __init__(self, seconds: float) -> None:
        self.began = time.perf_counter() - seconds
        self.forget()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def count(self, loss: float, tokens: int) -> None:
        self.losses.append(loss)
        self.tokens += tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the enclosed work, such as a validation, from the time of training."""
        began = self.seconds
        yield
        self.since += self.seconds - began

    def record(self, step: int, epoch: int, learning_rate: float) -> Event:
        passed = max(self.seconds - self.since, 1e-9)
        event = {
            "step": step,
            "epoch": epoch,
            "seconds": round(self.seconds, 2),
            "loss": sum(self.losses) / len(self.losses),
            "tokens_per_second": round(self.tokens / passed, 1),
            "learning_rate": learning_rate,
            "memory": peak_memory(),
            "waiting": round(self.waited / passed, 4),
        }
        self.forget()
        return event

    def forget(self) -> None:
        """Reset the counters, after a record or a rollback."""
        self.since, self.tokens, self.waited = self.seconds, 0, 0.0
        self.losses: list[float] = []


class Trainer:
    """One training run in one directory. Its callables come from a task; see `fit`."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        directory: Path,
        batches: Callable[..., Iterator[Any]],
        loss: LossOf,
        validate: Callable[[nn.Module], Report] | None,
        report: Callable[[Event], None],
        ranks: Ranks,
        validated_on: str = "",
        windows: int = 1,
        copy: Copy = no_copy,
    ) -> None:
        self.model, self.config, self.ranks, self.validated_on = model, config, ranks, validated_on
        self.batches, self.validate, self.windows = batches, validate, windows
        self.batches_per_step = config.batches_per_step or config.accumulate * ranks.world
        self.stepper = Stepper(model, config, loss, ranks, self._notify)
        trained = self.stepper.model  # another one where ranks hold pieces of the weights
        self.sharded = trained is not model
        self.ema = MovingAverage(trained, config.ema) if config.ema else None
        # Checkpoints are written by another thread, whose ranks need a group of their own.
        writers = ranks.within(ranks.timeout) if self.sharded else None
        self.checkpoints = Checkpoints(directory / storage.CHECKPOINTS, writers, copy)
        self.checkpoints.directory.mkdir(parents=True, exist_ok=True)
        self.log = RunLog(directory, report) if ranks.rank == 0 else None
        self.state = State(validated_on=validated_on, threads=torch.get_num_threads()).under(config)
        # Of the process that wrote the restored checkpoint; 0 if they do not matter.
        self.threads = 0
        self.stopping, self.scoring = False, False
        self.taken: list[tuple[Taken, int]] = []  # steps still to wait for, and their tokens
        # Steps that the host may be ahead of the device. A CPU is its own host; more than one step
        # would only hold more memory.
        self.ahead = 1 if self.stepper.device.type == "cuda" else 0

    def run(self) -> None:
        """Train from the current state to the end."""
        config, meter, began = self.config, Meter(self.state.seconds), self.state.step
        stream, saved = self._stream(), True
        if self.state.unvalidated:
            with meter.paused():
                self._milestones()
        while self.state.step < config.steps and not self._out_of_patience():
            waited = time.perf_counter()
            micro_batches, agreed, place = next(stream)
            meter.waited += time.perf_counter() - waited
            if agreed["stopping"]:  # any rank may have received the signal
                self._end(meter, saved)
            try:
                number = self.state.step + 1
                taken = self.stepper.take(
                    micro_batches, number, self.learning_rate(number), agreed["counts"]
                )
                if self.ema:
                    self.ema.update(self.stepper.model)
                scaling = self.stepper.scaling
                self.state = replace(self.state, step=number, **place, scaling=scaling)
                self.taken.append((taken, agreed["tokens"]))
                logged = self._logs(number)
                # The host prepares a step while the device computes the one before.
                due = logged or self._validates() or self._saves() or self.stopping
                self._settle(meter, 0 if due else self.ahead)
                if due:
                    self._check_checkpoint()
                if logged:
                    record = meter.record(number, self.state.epoch, self.learning_rate(number))
                    self._write(record, {"steps": config.steps})
                with meter.paused():
                    saved = self._milestones()
            except Diverged as problem:
                # The steps after the diverged one are given up with it.
                self.taken.clear()
                self._roll_back(problem)
                meter.forget()
                stream = self._stream()
                continue
            if self.stopping and self.ranks.world == 1:
                self._end(meter, saved)

        if began < self.state.step < config.steps:
            self._write({"step": self.state.step, "stopped": stopped_early(self.state, config)})

    def _end(self, meter: Meter, saved: bool) -> None:
        """End with a checkpoint, because of a signal."""
        if not saved:
            self._settle(meter, 0)
            self.save()
        self.wait()  # torchrun kills the other ranks soon after the first exits
        raise self._stopped()

    def stop(self) -> None:
        """Stop after the current step, with a checkpoint, or at once if the model is being scored.

        Raises:
            Interrupted: the model is being scored, in one process: other ranks would wait.
        """
        self.stopping = True
        if self.scoring and self.ranks.world == 1:
            raise Interrupted

    def _logs(self, number: int) -> bool:
        """Whether a step is logged. The first steps are, at growing distances: who begins a run
        wants to see it learn."""
        regular = number % self.config.log_every == 0 or number == self.config.steps
        return regular or (number < self.config.log_every and number & (number - 1) == 0)

    def _settle(self, meter: Meter, most: int) -> None:
        """Wait for the losses of the oldest steps taken, until at most `most` steps are left.

        Raises:
            Diverged: a loss or a gradient is not finite, or the loss is far above its best.
        """
        while len(self.taken) > most:
            taken, tokens = self.taken.pop(0)
            loss = taken.loss()
            self.state = replace(self.state.after(loss, taken.number), seconds=meter.seconds)
            meter.count(loss, tokens)

    def _validates(self) -> bool:
        """Whether the model is validated after this step."""
        every, step = self.config.validate_every, self.state.step
        due = step == self.config.steps or (every and step % every == 0)
        return bool(self.validate and due)

    def _saves(self) -> bool:
        """Whether it is saved after this step, however it scores."""
        step = self.state.step
        due = step == self.config.steps or step % self.config.checkpoint_every == 0
        return due or self._out_of_patience()

    def _milestones(self) -> bool:
        """Validate and save when due. Returns whether a checkpoint was saved."""
        better = self._validates() and self._validate()
        due = better or self._saves()
        if due:
            self.save()
        return due

    def _validate(self) -> bool:
        """Score the model. Returns whether `training.best` improved."""
        config, started = self.config, time.perf_counter()
        self.state = replace(self.state, unvalidated=False)
        try:
            # What is scored is what would be written: the moving average, if there is one.
            with self.averaged_weights():
                report = self._scored()
        except Interrupted:
            self.state = replace(self.state, unvalidated=True)
            self.save()
            self.wait()
            raise self._stopped("in its validation") from None
        finally:
            self.model.train()
        if report is None:
            raise Diverged(f"step {self.state.step}: {NotFinite()}")
        if not report.scores:  # no validation data
            return False
        event: Event = {
            "step": self.state.step,
            "epoch": self.state.epoch,
            "seconds": round(self.state.seconds, 2),
            "scores": dict(report.scores),
            "validation_seconds": round(time.perf_counter() - started, 2),
        }
        self._write(event, dict(report.details))
        return config.best is not None and self._improved(config.best, report)

    def _improved(self, name: str, report: Report) -> bool:
        """Whether the score of this name is the best so far. The state remembers it if so, and
        counts the validations without progress if not."""
        if name not in report.scores:
            self.save()  # before `_metric` refuses it, so that the run can go on
        _, sign = self._metric(report)
        # rank 0 decides: rounding may differ
        score, state = self.ranks.first(report.scores[name]), self.state
        loss = self.ranks.first(report.scores.get("loss", state.recent or 0.0))
        best = state.best_score
        better = not math.isnan(score) and (best is None or sign * score > sign * best)
        # Patience begins with the first score that says anything about the model.
        waited = 0 if better or report.hopeless(name) else state.without_progress + 1
        # Of equal scores that with the lower loss, then the later one.
        if better or (score == best and (state.best_loss is None or loss <= state.best_loss)):
            state = replace(state, best_score=score, best_step=state.step, best_loss=loss)
            better = True
        self.state = replace(state, without_progress=waited)
        return better

    def _scored(self) -> Report | None:
        """The scores of the model; None if its numbers are not finite on any rank. A signal stops
        the scoring at once."""
        assert self.validate is not None
        report, self.scoring = None, True
        try:
            if self.stopping:
                self.stop()
            with suppress(NotFinite):  # as in an average of finite weights that overflows
                report = self.validate(self.model.eval())
        finally:
            self.scoring = False
        return None if self.ranks.any(report is None) else report

    def _metric(self, report: Report) -> tuple[str, float]:
        """The score that chooses weights, and what makes a larger one better: 1 or -1.

        Raises:
            TrainingFailed: the validation does not give the score that `training.best` names.
        """
        name = self.config.best or next(iter(report.scores))
        require(
            name in report.scores,
            f"training.best is '{name}', the validation gives: {', '.join(report.scores)}; name "
            "one and go on with {resume}",
            TrainingFailed,
        )
        return name, -1.0 if name in report.lower_is_better else 1.0

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step, halved for each rollback."""
        c = self.config
        return self.state.rate_scale * scheduled(
            c.schedule, c.learning_rate, c.warmup, c.steps, step
        )

    def wait(self) -> None:
        """Wait until the newest checkpoint is complete, on all ranks."""
        self.checkpoints.wait()
        self._check_checkpoint()
        self.ranks.wait()

    def _check_checkpoint(self) -> None:
        """End if the newest checkpoint could not be written; warn if it could not be copied."""
        if problem := self.checkpoints.check():
            warning = f"warning: not copied, the next checkpoint tries again: {problem}"
            self._write({"step": self.state.step, "backup": warning})

    def finish(self) -> Finished:
        """Load the final weights into the model: the selected checkpoint, averaged with those
        before it.

        Where there is validation, as many are averaged as validate best. Without validation all of
        the window are, but for those from the warm-up, whose weights are far from the later ones.

        Also removes older checkpoints that a kill during the last write left behind.

        Raises:
            TransductError: a checkpoint of the window cannot be read.
            TrainingFailed: the validation does not give the score that `training.best` names.
        """
        self.wait()
        window = self._window(self.state.best_step or self.state.step)
        self._require_whole(window)
        averaged, metric, scores = self._choose_average(window)
        self._load_average(averaged)
        self.ranks.wait()  # until every rank has read them
        if self.ranks.rank == 0:
            self.checkpoints.prune(self._kept())
        if scores:
            found = {"metric": metric, "scores_by_count": scores, "averaged": averaged}
            self._write({"step": self.state.step, **found})
        return Finished(
            **vars(self.state), averaged=averaged, average_scores=scores, average_metric=metric
        )

    def _require_whole(self, window: list[int]) -> None:
        """Refuse a damaged checkpoint: a model made without it would be another one."""
        for place, step in enumerate(window, 1):
            try:
                self.checkpoints.require_whole(step)
            except TransductError as error:
                remedy = (
                    f"to leave it and older ones out: training.average={len(window) - place} "
                    "--resume"
                )
                if place == len(window):
                    patient = (
                        f" training.patience=0 training.steps={self.state.step}"
                        if self.config.patience
                        else ""
                    )
                    remedy = f"to end with the newest weights: training.best=null{patient} --resume"
                raise error.adding(f" ({remedy})") from error

    def _choose_average(self, window: list[int]) -> tuple[list[int], str, dict[int, float]]:
        """The steps to average, the score that chose them, and that score for each number of
        checkpoints averaged."""
        # Early weights move far between two checkpoints, and their mean is no model.
        settled = [*(step for step in window[:-1] if step > self.config.warmup), window[-1]]
        if self.validate is None or len(window) == 1:
            return settled, "", {}
        scores: dict[int, float] = {}
        metric, sign = "", 1.0
        # From the newest back: each count is a model that would be written, and is scored as such.
        for count in range(1, len(window) + 1):
            self._load_average(window[-count:])
            try:
                report = self._scored()
            except Interrupted:
                raise self._stopped("while averages were scored") from None
            if report is None:
                scores[count] = math.nan
                continue
            if not report.scores:  # no validation data
                return settled, "", {}
            metric, sign = self._metric(report)
            scores[count] = self.ranks.first(report.scores[metric])

        def merit(count: int) -> tuple[float, int]:
            # Of equal ones the largest count: averages generalise better than their parts.
            score = scores[count]
            return -math.inf if math.isnan(score) else sign * score, count

        chosen = max(scores, key=merit)
        if math.isnan(scores[chosen]):
            chosen = 1  # no average is a model; the newest weights are
        return window[-chosen:], metric, scores

    def _load_average(self, steps: list[int]) -> None:
        """Load the mean of the weights of these checkpoints, or of their moving averages, for
        use."""
        name = storage.EMA if self.ema else storage.WEIGHTS
        weights = storage.average(self.checkpoints.tensors(step)[name] for step in steps)
        place = self.checkpoints.path(steps[-1])
        if self.sharded:
            storage.fill(self.model, weights, place)
            self.model.to(self.stepper.device)
        else:
            storage.load_weights(self.model, weights, place)
        self.model.eval()

    def restore(self, step: int) -> None:
        """Load the run's state from a step's checkpoint."""
        trained = self.stepper.model
        tensors = self.checkpoints.tensors(step, storage.weights_of(trained))
        storage.load_weights(trained, tensors[storage.WEIGHTS], self.checkpoints.path(step))
        if self.ema:
            averages = tensors[storage.EMA]
            self.ema.weights = {
                name: averages[name].to(self.stepper.device, copy=True) for name in self.ema.weights
            }
        saved = self.checkpoints.state(step)
        # which an older checkpoint lacks
        defaults = asdict(State(validated_on=self.validated_on).under(self.config))
        self.state = State(**{name: saved.get(name, defaults[name]) for name in defaults}).under(
            self.config
        )
        self.stepper.restore(tensors[storage.OPTIMISER], self.state.scaling)
        self.threads = self.state.threads if self.stepper.device.type == "cpu" else 0
        use_threads(self.threads)
        self.state = replace(self.state, threads=torch.get_num_threads())

    def report_other_threads(self) -> None:
        """Report, without logging it, that the number of threads has changed."""
        if self.threads not in (0, self.state.threads):
            self._notify(
                f"the run was trained with {self.threads} CPU threads and goes on with "
                f"{self.state.threads}: its numbers will differ in their last digits; for the same "
                f"to the byte, resume with OMP_NUM_THREADS={self.threads}"
            )

    def forget_other_validations(self) -> None:
        """Forget which step was best if that was measured on other validation data and there are
        scores to come."""
        if (
            self.ranks.any(self.state.validated_on != self.validated_on)
            and self.state.step < self.config.steps
        ):
            if self.state.best_step is not None:
                notice = (
                    f"the validation data have changed: step {self.state.best_step} no longer "
                    "counts as the best"
                )
                self._write({"step": self.state.step, "notice": notice})
            self.state = replace(self.state.without_best(), validated_on=self.validated_on)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Put the moving average, if there is one, into the model for the duration of the block.
        Where ranks hold pieces of the weights, they are put together."""
        if self.sharded:
            pieces: Any = self.ema.weights if self.ema else storage.weights_of(self.stepper.model)
            whole = {name: piece.full_tensor() for name, piece in pieces.items()}
            storage.fill(self.model, whole, self.checkpoints.directory)
            try:
                yield
            finally:
                hollow(self.model)
            return
        if self.ema is None:
            yield
            return
        # Cloned, since loading copies into the model's own tensors.
        own = {name: tensor.clone() for name, tensor in storage.weights_of(self.model).items()}
        storage.load_weights(self.model, self.ema.weights, self.checkpoints.directory)
        try:
            yield
        finally:
            storage.load_weights(self.model, own, self.checkpoints.directory)

    def _stream(self) -> Iterator[Step]:
        """The steps from the current position on. Ranks agree on one while they compute the one
        before."""
        coming = self._positions()
        if self.ranks.world == 1:
            for batches, place in coming:
                yield batches, self._about(batches), place
        ahead: deque[tuple[list[Any], Callable[[], list[Event]], Event]] = deque()
        while True:
            # Beyond the last step there may be a whole plan to make.
            while len(ahead) < min(2, self.config.steps - self.state.step):
                batches, place = next(coming)
                ahead.append((batches, self.ranks.exchange(self._about(batches)), place))
            batches, agree, place = ahead.popleft()
            yield batches, self._agreed(agree()), place

    def _about(self, batches: list[Any]) -> Event:
        """What the other ranks must know of this rank's batches of a step."""
        return {
            "counts": counts_of(batches),
            "tokens": sum(batch.tokens for batch in filter(is_real, batches)),
            "stopping": self.stopping and self.ranks.world > 1,
            "turns": len(batches),
        }

    def _agreed(self, of_ranks: Sequence[Event]) -> Event:
        """The sums over ranks of what `_about` says.

        Raises:
            TrainingFailed: they would not compute equally often.
        """
        turns = [about["turns"] for about in of_ranks]
        require(
            min(turns) == max(turns),
            f"the ranks have {min(turns)} to {max(turns)} batches for a step; let `batches` give "
            "each the same number, as `data.batching.load` does",
            TrainingFailed,
        )
        return {
            "counts": total_counts(about["counts"] for about in of_ranks),
            "tokens": sum(about["tokens"] for about in of_ranks),
            "stopping": any(about["stopping"] for about in of_ranks),
        }

    def _positions(self) -> Iterator[tuple[list[Any], Event]]:
        """This rank's micro-batches of each step from the current position on, window after window
        and epoch after epoch, and the position after the step."""
        ranks, empty = self.ranks, 0  # windows without a batch, one after another
        turns = -(-self.batches_per_step // ranks.world)  # micro-batches of a rank in a step
        epoch, window, batch = self.state.epoch, self.state.window, self.state.batch
        while True:
            began = batch
            batches = self.batches(
                "train", epoch, batch, ranks.rank, ranks.world, self.batches_per_step, window
            )
            # prepare the next batch while the device computes
            if self.stepper.device.type in ACCELERATORS:
                if self.stepper.captured and self.stepper.device.type == "cuda":
                    batches = map(pinned, batches)
                batches = one_ahead(batches)
            while micro_batches := list(islice(batches, turns)):
                batch += self.batches_per_step
                yield micro_batches, {"epoch": epoch, "window": window, "batch": batch}
            require(
                began != batch or empty < self.windows,
                "no example was drawn in a whole epoch; raise the weights in data.train, or give "
                "more data",
                TrainingFailed,
            )
            empty = empty + 1 if batch == 0 else 0
            passed, window = divmod(window + 1, self.windows)
            epoch, batch = epoch + passed, 0

    def _window(self, step: int) -> list[int]:
        """The steps of the checkpoints averaged at `step`: it and the regular ones before it."""
        every = self.config.checkpoint_every
        regular = [
            s for s in self.checkpoints.steps(whole=False) if s < step and s % every == 0 and s > 0
        ]
        return [*regular, step][-self.config.average :]

    def save(self) -> None:
        """Write a checkpoint and drop those no longer needed."""
        if self.ranks.rank == 0 or self.sharded:
            optimiser, averages = self.stepper.tensors(), self.ema.weights if self.ema else None
            model, state = self.stepper.model, asdict(self.state)
            self.checkpoints.save(self.state.step, model, optimiser, state, averages, self._kept())

    def _kept(self) -> set[int]:
        """The steps of the checkpoints that are still needed, the current step's included."""
        steps = sorted({*self.checkpoints.steps(), self.state.step})
        regular = [step for step in steps if step % self.config.checkpoint_every == 0]
        regular = regular[-self.config.keep_checkpoints :]
        # a rollback target needs its own best
        bests = self.checkpoints.bests(regular) | {self.state.best_step}
        return {
            self.state.step,
            *regular,
            *(s for best in bests if best is not None for s in self._window(best)),
        }

    def _roll_back(self, problem: Diverged) -> None:
        """Return to the last intact regular checkpoint at half the learning rate, or fail if no
        tries are left."""
        scale, tries = self.state.rate_scale / 2, self.state.tries + 1
        require(
            tries <= self.config.divergence_tries,
            f"training diverged {tries} times ({problem}); lower training.learning_rate or raise "
            "training.warmup",
            TrainingFailed,
        )
        self.wait()
        steps, every = self.checkpoints.steps(), self.config.checkpoint_every
        if problem.since is not None:  # else to the oldest: from it the rate is halved at least
            steps = [s for s in steps if s <= max(problem.since, steps[0])]
        step = self.checkpoints.last_good(s for s in steps if s % every == 0)
        if step is None:  # `checkpoint_every` may have changed, so that no checkpoint is regular
            step = self.checkpoints.last_good(steps)
        if step is None:
            found = f"training diverged ({problem}) and no checkpoint is whole; start again"
            raise TrainingFailed(found)
        self.restore(step)
        self.forget_other_validations()
        self.state = replace(self.state, rate_scale=scale, tries=tries)
        self._write({"step": step, "diverged": str(problem), "rate_scale": scale, "try": tries})
        self.ranks.wait()  # until every rank has read the checkpoint
        if self.ranks.rank == 0:  # saved at once, so that a kill does not bring the old rate back
            self.checkpoints.forget_after(step)
            self.checkpoints.save_state(step, asdict(self.state))
        self.ranks.wait()

    def _stopped(self, when: str = "") -> TrainingFailed:
        place = " ".join(filter(None, (f"step {self.state.step}", when)))
        return TrainingFailed(f"stopped by a signal at {place}; go on with {{resume}}")

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.state.without_progress

    def _notify(self, notice: str) -> None:
        """Report, without logging it, how the steps run on this machine."""
        if self.log is not None:
            self.log.report({"step": self.state.step, "notice": notice, "details": {}})

    def _write(self, event: Event, details: Mapping[str, Any] | None = None) -> None:
        """Write an event to the log; the details go only to the `report` callback."""
        if self.log is not None:
            self.log.write(event, details)


class Interrupted(Exception):
    """A signal came while the model was being scored."""


def stopped_early(state: State, config: TrainingConfig) -> str:
    """Why training stopped before its last step, with which weights, and how to go on; "" if it did
    not. One line, for the terminal, the log and the card."""
    if not 0 < config.patience <= state.without_progress or state.step >= config.steps:
        return ""
    return (
        f"stopped early at step {state.step} of {config.steps}: {config.best} has not improved in "
        f"{state.without_progress} validation{'s' * (state.without_progress > 1)}; the weights are "
        f"those of step {state.best_step} "
        f"({config.best} {state.best_score:.4g}); to go on: --resume training.patience=0"
    )
