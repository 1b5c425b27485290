"""Where a run is: all that it needs, besides weights and optimiser state, to resume exactly."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Protocol

from transduct.training.config import TrainingConfig
from transduct.training.step import Diverged

WATCHED, FAR = 50, 2.0  # steps, and a factor; see `State.after`


class Report(Protocol):
    """The result of a validation."""

    @property
    def scores(self) -> Mapping[str, float]:
        """Name to number."""
        ...

    @property
    def details(self) -> Mapping[str, Any]:
        """Samples, intervals and the like, shown beside the scores."""
        ...

    @property
    def lower_is_better(self) -> Container[str]:
        """The names of the scores that improve as they fall."""
        ...

    def hopeless(self, name: str) -> bool:
        """Whether a score is the worst possible: 0, or 100 % of errors. A loss never is."""
        ...


@dataclass(frozen=True)
class State:
    """Everything a run needs besides weights and optimiser state to resume exactly.

    Attributes:
        chosen_by: the `training.best` that `best_step`, `best_score` and `without_progress` refer
            to.
        rates: the learning-rate settings that `rate_scale` and `tries` refer to.
        order: the seed and token budget that the epoch was planned with, which `batch` refers to.
        validated_on: a digest of the validation data that `best_step`, `best_score` and
            `without_progress` refer to.
        best_loss: the loss with `best_score`, which decides between equal scores.
        unvalidated: whether the validation that was due at `step` is still to be made.
        losses: the losses since the last multiple of `WATCHED` steps.
        recent: a moving average of the losses.
        lowest: the loss that the run has reached; see `after`.
        threads: CPU threads per rank; sums over parts of a tensor depend on them.
        scaling: the loss scale of float16; see `Stepper.scaling`.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    rate_scale: float = 1.0
    tries: int = 0
    best_step: int | None = None
    best_score: float | None = None
    best_loss: float | None = None
    without_progress: int = 0
    unvalidated: bool = False
    chosen_by: str | None = None
    rates: list[Any] = field(default_factory=list)
    order: list[Any] = field(default_factory=list)
    validated_on: str = ""
    losses: list[float] = field(default_factory=list)
    lowest: float | None = None
    recent: float | None = None
    threads: int = 0
    scaling: list[float] = field(default_factory=list)

    def after(self, loss: float, step: int) -> "State":
        """The state with the loss of a step, the first whose loss it lacks.

        A run has diverged if the median loss of `WATCHED` steps, counted from a multiple of that,
        is more than `FAR` times the lowest so far, plus 1. The lowest is that of the medians
        before, and of the first step, which precedes every update.

        Raises:
            Diverged: that is so. It may have begun in the steps before those.
        """
        lowest, losses = loss if self.lowest is None else self.lowest, [*self.losses, loss]
        recent = loss if self.recent is None else self.recent + (loss - self.recent) / WATCHED
        if step % WATCHED:
            return replace(self, losses=losses, lowest=lowest, recent=recent)
        usual = median(losses)
        if len(losses) == WATCHED and usual > FAR * lowest + 1.0:
            raise Diverged(
                f"step {step}: loss {usual:.4g} for {WATCHED} steps, it was {lowest:.4g}",
                step - 2 * WATCHED,
            )
        return replace(self, losses=[], lowest=min(lowest, usual), recent=recent)

    def under(self, config: TrainingConfig) -> "State":
        """The state with everything reset that changed settings have made meaningless."""
        state, rates = self, [config.schedule, config.learning_rate, config.warmup]
        order = [config.seed, config.batch_tokens]
        if self.chosen_by != config.best:  # different scores cannot be compared
            state = state.without_best()
        if self.rates != rates:  # changed after a divergence, as its error advises
            state = replace(state, rate_scale=1.0, tries=0)
        if self.order != order and self.batch:  # the rest of the epoch cannot be determined
            state = replace(state, epoch=state.epoch + 1, batch=0)
        return replace(state, chosen_by=config.best, rates=rates, order=order)

    def without_best(self) -> "State":
        """The state without its best score, which later ones cannot be compared with."""
        return replace(self, best_step=None, best_score=None, best_loss=None, without_progress=0)


@dataclass(frozen=True)
class Finished(State):
    """The state at the end of a run, and what its final weights are made of.

    Attributes:
        averaged: the steps of the checkpoints whose weights were averaged.
        average_scores: by the number of checkpoints averaged, the validation score of that average;
            empty if nothing was validated.
        average_metric: the name of that score.
    """

    averaged: list[int] = field(default_factory=list)
    average_scores: dict[int, float] = field(default_factory=dict)
    average_metric: str = ""
