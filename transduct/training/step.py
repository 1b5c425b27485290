"""The training step: accumulate the gradients of micro-batches, normalised by their total counts,
clip and update; and the state of a run after it."""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from transduct.kernels import triton
from transduct.kernels.cuda_graphs import Replay
from transduct.segments import Filler
from transduct.training.config import TrainingConfig
from transduct.training.distributed import LossOf, Ranks, combined
from transduct.training.fused import fuse_passes, recompute_layers, restore_layers
from transduct.training.optim import load_optimiser, make_optimiser, optimiser_tensors

NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# the steps without an overflow after which a loss scale is doubled, and the largest scale
PATIENT, LARGEST = 2000, 2.0**24
WATCHED, FAR = 50, 2.0  # steps, and a factor; see `State.after`


class Diverged(Exception):
    """The loss or a gradient is not a finite number, or the loss stays far above its best.

    Attributes:
        since: the step after which it may have gone wrong, if that is not the newest one.
    """

    def __init__(self, message: str, since: int | None = None) -> None:
        super().__init__(message)
        self.since = since


class Stepper:
    """Updates a model's weights, one step at a time.

    Args:
        loss: (model, batch) -> {name: (sum, count, weight)}.
        notify: called with a line where the plain path is taken instead of a faster one.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        loss: LossOf,
        ranks: Ranks,
        notify: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.config, self.ranks, self.notify = config, ranks, notify
        self.captured = config.capture is True
        loss = triton.CompiledLoss(loss, notify) if config.compile is True else loss
        self.combined = combined(model, loss, ranks, self.captured, config.shard)
        # Where ranks hold pieces of the weights, `combined` makes another module.
        self.model = model = self.combined.model
        self.device = next(model.parameters()).device
        self.fused: list[nn.Module] = []
        if config.recompute:
            self.fused = recompute_layers(model)
        # Fused passes read the norm of the next layer, which may not be whole yet.
        elif self.device.type == "cuda" and not config.sharded:
            self.fused = fuse_passes(model)
        betas = (config.betas[0], config.betas[1])
        precision = NARROW.get(config.precision, torch.float32)
        muon = precision if config.optimiser == "muon" else None
        self.optimiser = make_optimiser(
            model, betas, config.epsilon, config.weight_decay, self.captured, muon
        )
        self.scale = LossScale() if config.precision == "float16" else None
        self._set_up()

    def take(
        self,
        micro_batches: list[Any],
        number: int,
        rate: float,
        totals: Mapping[str, float] | None = None,
    ) -> "Taken":
        """Take step `number` over this rank's micro-batches, unless the loss or a gradient is not
        finite. A GPU may still compute when this returns.

        Counts are summed over micro-batches and ranks before the first backward, so that averages
        are taken once.

        Args:
            micro_batches: each has `counts`, the denominator of each term of the loss, and a method
                `to(device)`, or is a filler.
            totals: the counts of all ranks together; of these micro-batches if not given.

        Raises:
            TrainingFailed: if a term of the loss is counted otherwise than in its batch.
        """
        set_rate(self.optimiser, rate)
        totals = counts_of(micro_batches) if totals is None else totals
        while True:
            self.optimiser.zero_grad(set_to_none=not self.captured)
            losses = [torch.zeros((), device=self.device)]  # a rank may have no batch
            for turn, batch in enumerate(micro_batches):
                # Dropout is a function of the batch's place in the step, so a resumed run draws the
                # same numbers, on any number of ranks.
                place = self.ranks.rank + turn * self.ranks.world
                seed_generators(self.config.seed, number, place, 0)
                inputs, divisors = _inputs_and_divisors(batch, totals)
                with self.combined.before(last=turn + 1 == len(micro_batches)):
                    losses.append(self._backward(inputs, divisors, self._factor))
            loss = self.combined.after(torch.stack(losses).sum())
            taken = Taken(number, self._update(loss, self._factor))
            # Only float16 waits here: it must know of an overflow before it takes the next step.
            if self.scale is None or self._fits_float16(self.scale, taken):
                return taken

    def _fits_float16(self, scale: "LossScale", taken: "Taken") -> bool:
        """Whether a step has not overflowed. Adapts the loss scale; without a lower one, the run
        goes on in float32."""
        finite = taken.is_finite()
        self.scale = scale.after_success() if finite else scale.lower()
        if self.scale is None:
            self.notify(f"step {taken.number}: no loss scale serves float16; it goes on in float32")
            self._set_up()  # captured graphs would still compute in float16
        return finite

    @property
    def _factor(self) -> float | None:
        """What the loss is multiplied by before its gradients are computed; None for nothing."""
        return None if self.scale is None else self.scale.factor

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's state, by the names a checkpoint uses."""
        return optimiser_tensors(self.model, self.optimiser)

    def restore(self, tensors: Mapping[str, Tensor], scaling: Sequence[float]) -> None:
        """Load the optimiser's state and that of the loss scale, see `scaling`."""
        load_optimiser(self.model, self.optimiser, tensors)
        if self.config.precision == "float16" and scaling:
            self.scale = LossScale(scaling[0], int(scaling[1])) if scaling[0] else None
        self._set_up()

    @property
    def scaling(self) -> list[float]:
        """The loss scale and the steps since its last change; 0 for the scale in float32, and
        nothing where float16 was not asked for."""
        if self.config.precision != "float16":
            return []
        return [0.0, 0.0] if self.scale is None else [self.scale.factor, float(self.scale.steps)]

    def release(self) -> None:
        """Break the reference cycles through the step functions, which would keep the optimiser's
        tensors and graphs alive until the next garbage collection, and give the model its readable
        layers again."""
        del self._backward, self._update
        restore_layers(self.fused)

    def _set_up(self) -> None:
        """Build the step functions; repeated after `restore`, because graphs hold the addresses of
        the old tensors."""
        if self.captured:
            for parameter in self.model.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        norm = self.combined.norm
        update = partial(guarded_step, self.model, self.optimiser, self.config.clip, norm_of=norm)
        self._backward, self._update = self._replayed(self._accumulate), self._replayed(update)

    def _replayed(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A step function, whose inputs stay in place for a graph or a compiler."""
        if not (self.captured or self.config.compile is True):
            return function
        return Replay(function, self.device, self.captured, self.notify)

    def _accumulate(self, batch: Any, totals: Mapping[str, Any], factor: Any) -> Tensor:
        """Accumulate the gradients of a micro-batch, times a factor. Returns its share of the
        loss: the weighted sum of the terms' averages."""
        narrow = NARROW.get(self.config.precision)
        if self.config.precision == "float16" and self.scale is None:
            narrow = None
        with torch.autocast(self.device.type, narrow, enabled=narrow is not None):
            total: Tensor = self.combined.module(batch.to(self.device), totals)
        scaled = total if factor is None else total * factor
        scaled.backward()
        return total.detach()


@torch.no_grad()
def guarded_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    most: float,
    loss: Tensor,
    factor: Any = None,
    norm_of: Callable[[list[Tensor]], Tensor] = torch.nn.utils.get_total_norm,
) -> Tensor:
    """Clip and take a step without waiting for the device. If the loss or the norm is not finite,
    no weight changes.

    Args:
        factor: what the gradients are too large by, see `LossScale`; None for nothing.
        norm_of: the total norm of gradients.

    Returns:
        (2,) the loss and the total norm of the gradients before clipping.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = norm_of(gradients)
    if factor is not None:
        norm = norm / factor
        torch._foreach_div_(gradients, factor)
    if most > 0.0 and gradients:  # none where the only rank has no batch
        # In float64 as on a host, so that every device clips alike.
        ratio = torch.full_like(norm, most, dtype=torch.float64) / norm
        torch._foreach_mul_(gradients, ratio.clamp(max=1.0).to(norm.dtype))
    found = (~(loss.isfinite() & norm.isfinite())).float()
    optimiser.found_inf = found  # type: ignore[attr-defined]
    optimiser.step()
    return torch.stack((loss, norm))


class Taken:
    """A step that has been taken, though its numbers may still be on their way from a GPU.

    Args:
        number: of the step.
        loss_and_norm: (2,) the loss, and the norm of the gradients.
    """

    def __init__(self, number: int, loss_and_norm: Tensor) -> None:
        self.number, self._loss_and_norm = number, loss_and_norm
        self._event: Any = None
        if loss_and_norm.is_cuda:
            # Pinned, or the copy would wait for all that the device has still to do.
            pinned = torch.empty(2, pin_memory=True)
            self._loss_and_norm = pinned.copy_(loss_and_norm, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def is_finite(self) -> bool:
        """Wait for the step. Returns whether it has changed the weights."""
        if self._event is not None:
            self._event.synchronize()
        return bool(self._loss_and_norm.isfinite().all())

    def loss(self) -> float:
        """Wait for the loss: the weighted sum of the terms' averages, over all ranks.

        Raises:
            Diverged: it or the gradient norm is not finite; this step has changed no weight.
        """
        finite = self.is_finite()
        loss, norm = self._loss_and_norm.tolist()
        if not finite:
            raise Diverged(f"step {self.number}: loss {loss:.4g}, gradient norm {norm:.4g}")
        return loss


@dataclass(frozen=True)
class LossScale:
    """The factor of the loss in float16, whose gradients would otherwise vanish (Micikevicius et
    al. 2018).

    A step whose gradients overflow is taken again with half the factor, and after `PATIENT` steps
    without an overflow it is doubled. PyTorch's own scaler (torch.amp) would skip that step
    and lose its batch. It has no largest factor either, and no end where float16 does not serve.
    """

    factor: float = 2.0**16
    steps: int = 0

    def after_success(self) -> "LossScale":
        """The scale after a step that did not overflow."""
        if self.steps + 1 < PATIENT or self.factor >= LARGEST:
            return LossScale(self.factor, self.steps + 1)
        # Upwards too: early gradients are the largest, and a low scale loses the small ones later.
        return LossScale(2.0 * self.factor)

    def lower(self) -> "LossScale | None":
        """The scale after an overflow; None if it cannot be lower."""
        return LossScale(self.factor / 2.0) if self.factor > 1.0 else None


@dataclass(frozen=True)
class State:
    """Everything a run needs besides weights and optimiser state to resume exactly.

    Attributes:
        chosen_by: the `training.best` that `best_step`, `best_score` and `without_progress` refer
            to.
        rates: the learning-rate settings that `rate_scale` and `tries` refer to.
        window: of the epoch, which `batch` refers to.
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
    window: int = 0
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
        if self.order != order and (self.window or self.batch):  # the rest cannot be determined
            state = replace(state, epoch=state.epoch + 1, window=0, batch=0)
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


def counts_of(micro_batches: Sequence[Any]) -> dict[str, float]:
    """The counts of several batches together, by the name of the term; a filler has none."""
    return total_counts(batch.counts for batch in filter(is_real, micro_batches))


def total_counts(several: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of several counts, by the name of the term."""
    totals: dict[str, float] = {}
    for counts in several:
        for name, count in counts.items():
            totals[name] = totals.get(name, 0.0) + count
    return totals


def is_real(batch: Any) -> bool:
    """Whether a batch counts, and is no filler."""
    return not isinstance(batch, Filler)


def _inputs_and_divisors(
    batch: Any, totals: Mapping[str, float]
) -> tuple[Any, Mapping[str, float]]:
    """A batch, and what its terms are divided by: infinity for a filler, so that it adds zeros."""
    if is_real(batch):
        return batch, totals
    return batch.batch, dict.fromkeys(batch.batch.counts, math.inf)


def seed_generators(*numbers: int) -> None:
    """Seed torch's default generators from (seed, step, place in the step, 0)."""
    key = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(key, "big") >> 1)


def set_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of the next step, in place if it is a tensor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value
