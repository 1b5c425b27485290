"""The training step: accumulate the gradients of micro-batches, normalised by their total counts,
clip and update."""

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from subprocess import CalledProcessError
from typing import Any

import torch
from torch import Tensor, nn

from transduct.errors import TrainingFailed
from transduct.kernels import triton
from transduct.kernels.cuda_graphs import Replay, beside
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks
from transduct.training.joined import join, separate
from transduct.training.optim import load_optimiser, make_optimiser, optimiser_tensors

NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# the steps without an overflow after which a loss scale is doubled, and the largest scale
PATIENT, LARGEST = 2000, 2.0**24
# PyTorch's compiler raises its own RuntimeErrors, those of its C compiler, and assertions.
COMPILER_FAILS = (RuntimeError, OSError, AssertionError, CalledProcessError)

Terms = Mapping[str, tuple[Tensor, float, float]]


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
        say: called with a line where the plain path is taken instead of a faster one.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        loss: Callable[[nn.Module, Any], Terms],
        ranks: Ranks,
        say: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.model, self.config, self.ranks, self.say = model, config, ranks, say
        self.captured, compiled = config.capture is True, config.compile is True
        self.fixed = self.captured or compiled  # whether inputs are copied to tensors in place
        self.loss = triton.compiled(loss) if compiled else loss
        self._plain_loss = loss if compiled else None  # until compared with the compiled one
        self.device = next(model.parameters()).device
        self.joined = join(model) if self.device.type == "cuda" else []
        betas = (config.betas[0], config.betas[1])
        precision = NARROW.get(config.precision, torch.float32)
        muon = precision if config.optimiser == "muon" else None
        self.optimiser = make_optimiser(
            model, betas, config.epsilon, config.weight_decay, self.captured, muon
        )
        self.scale = LossScale() if config.precision == "float16" else None
        self._set_up()

    def take(self, micro_batches: list[Any], number: int, rate: float) -> float:
        """`launch` a step and wait for its loss."""
        return self.launch(micro_batches, number, rate)()

    def launch(self, micro_batches: list[Any], number: int, rate: float) -> Callable[[], float]:
        """Take step `number` over this rank's micro-batches. Returns a function that waits for the
        loss: the weighted sum of the terms' averages. Until it is called a GPU may still compute.

        The counts are summed over micro-batches and ranks before the first backward, so that
        averages are taken once.

        Args:
            micro_batches: each has `counts`, the denominator of each term of the loss, and a method
                `to(device)`.

        Raises:
            Diverged: by the function, if the loss or the gradient norm is not finite; this step has
                changed no weight.
            TrainingFailed: if a term of the loss is counted otherwise than in its batch.
        """
        set_rate(self.optimiser, rate)
        totals: dict[str, float] = {}
        for batch in micro_batches:
            for name, count in batch.counts.items():
                totals[name] = totals.get(name, 0.0) + count
        if self.ranks.world > 1:
            totals = self.ranks.total(totals)
        if self._plain_loss is not None and micro_batches:
            self._try_compiled(self._plain_loss, micro_batches[0], totals)
            self._plain_loss = None
        found = self._attempt(micro_batches, number, totals)
        # Only float16 waits here: it must know of an overflow before it may take the next step.
        while self.scale is not None:
            value, norm = found()
            if math.isfinite(value) and math.isfinite(norm):
                self.scale = self.scale.after_success()
                break
            self.scale = self.scale.lower()
            if self.scale is None:
                self.say(f"step {number}: no loss scale serves float16; it goes on in float32")
                self._set_up()  # what is captured computes in float16
            found = self._attempt(micro_batches, number, totals)

        def wait() -> float:
            value, norm = found()
            if not (math.isfinite(value) and math.isfinite(norm)):
                raise Diverged(f"step {number}: loss {value:.4g}, gradient norm {norm:.4g}")
            return value

        return wait

    def _attempt(
        self, micro_batches: list[Any], number: int, totals: Mapping[str, float]
    ) -> Callable[[], tuple[float, float]]:
        """Take a step unless the loss or the gradient norm is not finite. Returns a function that
        waits for both."""
        self.optimiser.zero_grad(set_to_none=not self.captured)
        losses = []
        for place, batch in enumerate(micro_batches):
            # Dropout is a function of the step, so a resumed run draws what an uninterrupted one
            # does.
            seed_generators(self.config.seed, number, place, self.ranks.rank)
            losses.append(self._backward(batch, totals, self._factor))
        if self.ranks.world > 1:
            self.ranks.sum_gradients(self.model)
        if not (self.captured or (self.device.type == "cuda" and self.config.optimiser == "adam")):
            both = self._update(losses)
            return lambda: both
        # On the device, without a look at it: a step that diverged changes no weight by itself.
        loss = torch.stack([torch.zeros((), device=self.device), *losses]).sum()  # may be no batch
        return _arriving(self._guarded_step(self.ranks.sum(loss), self._factor))

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
        del self._backward, self._guarded_step
        separate(self.joined)

    def _set_up(self) -> None:
        """Build the step functions; repeated after `restore`, because graphs hold the addresses of
        the old tensors."""
        self._backward: Callable[[Any, Mapping[str, Any], Any], Tensor] = self._accumulate
        if self.fixed:
            self._backward = Replay(self._accumulate, self.device, self.captured, self.say)
        if self.captured:
            for parameter in self.model.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        step = partial(guarded_step, self.model, self.optimiser, self.config.clip)
        self._guarded_step = Replay(step, self.device, self.captured, self.say)

    def _accumulate(self, batch: Any, totals: Mapping[str, Any], factor: Any) -> Tensor:
        """Accumulate the gradients of a micro-batch, times a factor. Returns its share of the
        loss."""
        total = self._total(self.loss, batch, totals)
        scaled = total if factor is None else total * factor
        scaled.backward()
        return total.detach()

    def _total(
        self, loss: Callable[[nn.Module, Any], Terms], batch: Any, totals: Mapping[str, Any]
    ) -> Tensor:
        narrow = NARROW.get(self.config.precision)
        if self.config.precision == "float16" and self.scale is None:
            narrow = None
        with torch.autocast(self.device.type, narrow, enabled=narrow is not None):
            terms = loss(self.model, batch.to(self.device))
        _check_counts(terms, batch.counts)
        return sum(
            (weight * s / totals[name] for name, (s, _, weight) in terms.items()), torch.zeros(())
        )

    def _try_compiled(
        self, plain: Callable[[nn.Module, Any], Terms], batch: Any, totals: Mapping[str, Any]
    ) -> None:
        """Go on with the plain loss if the compiled one fails or is wrong."""
        # On the capture's side stream: leftover gradients would tie a later capture to the default
        # stream.
        captured = self.captured and self.device.type == "cuda"
        try:
            with beside(self.device) if captured else nullcontext():
                problem = self._compare(plain, batch, totals)
        except COMPILER_FAILS as error:
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
        if problem:
            self.loss = plain
            self._set_up()
            self.say(f"the loss is not compiled: {problem}")

    def _compare(
        self, plain: Callable[[nn.Module, Any], Terms], batch: Any, totals: Mapping[str, Any]
    ) -> str:
        """What is wrong with a compiled loss, if anything: it may give some weight no gradient
        where the plain loss gives one. A compiler bug may leave the loss itself correct, so that
        nothing else would show it."""
        weights = {
            name: weight for name, weight in self.model.named_parameters() if weight.requires_grad
        }
        has_gradient = []
        for loss in (plain, self.loss):
            # Gradients as values, not in `.grad`: the first real step starts from none.
            total = self._total(loss, batch, totals)
            gradients = torch.autograd.grad(total, [*weights.values()], allow_unused=True)
            has_gradient.append(
                [gradient is not None and bool(gradient.any()) for gradient in gradients]
            )
        lost = [name for name, before, after in zip(weights, *has_gradient) if before and not after]
        if self.device.type == "cuda":  # do not report the plain loss's memory as the run's peak
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        if not lost:
            return ""
        return (
            f"by PyTorch {torch.__version__} it has no gradient for {len(lost)} weights "
            f"({lost[0]}, ...)"
        )

    def _update(self, losses: list[Tensor]) -> tuple[float, float]:
        """Clip and take the step unless the loss or the gradient norm is not finite. Returns
        both."""
        # In the order of micro-batches, so that the sum is the same in every run.
        value = sum(map(float, losses))
        if self.ranks.world > 1:
            value = self.ranks.sum_of(value)
        if self.scale is not None:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            torch._foreach_div_(gradients, self.scale.factor)
        norm = clip_gradients(self.model, self.config.clip)
        if math.isfinite(value) and math.isfinite(norm):
            self.optimiser.step()
        return value, norm


@dataclass(frozen=True)
class LossScale:
    """The factor of the loss in float16, whose gradients would otherwise vanish (Micikevicius et
    al. 2018).

    A step whose gradients overflow is taken again with half the factor, and after `PATIENT` steps
    without an overflow it is doubled.
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


def _arriving(both: Tensor) -> Callable[[], tuple[float, float]]:
    """A function that waits for two numbers (2,), which are copied to the host meanwhile."""
    if both.device.type != "cuda":
        value, norm = both.tolist()
        return lambda: (value, norm)
    # Pinned, or the copy would wait for all that the device has still to do.
    host = torch.empty(2, pin_memory=True)
    host.copy_(both, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()

    def read() -> tuple[float, float]:
        event.synchronize()
        value, norm = host.tolist()
        return value, norm

    return read


def seed_generators(*numbers: int) -> None:
    """Seed torch's default generators from (seed, step, micro-batch, rank)."""
    key = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(key, "big") >> 1)


def set_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of the next step, in place if it is a tensor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


@torch.no_grad()
def clip_gradients(model: nn.Module, most: float) -> float:
    """Scale all gradients so that their total norm is at most `most` (0 does not clip). Returns the
    norm before."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients))
    if 0.0 < most < norm and math.isfinite(norm):
        torch._foreach_mul_(gradients, most / norm)
    return norm


@torch.no_grad()
def guarded_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    most: float,
    loss: Tensor,
    factor: Any = None,
) -> Tensor:
    """Clip and take a step without waiting for the device. If the loss or the norm is not finite,
    no weight changes.

    Args:
        factor: what the gradients are too large by, see `LossScale`; None for nothing.

    Returns:
        (2,) the loss and the total norm of the gradients before clipping.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if factor is not None:
        norm = norm / factor
        torch._foreach_div_(gradients, factor)
    if most > 0.0:
        torch._foreach_mul_(gradients, (most / norm).clamp(max=1.0))
    optimiser.found_inf = (~(loss.isfinite() & norm.isfinite())).float()  # type: ignore[attr-defined]
    optimiser.step()
    return torch.stack((loss, norm))


def _check_counts(terms: Terms, counts: Mapping[str, float]) -> None:
    """Refuse a term whose average would be taken over something else than its own count."""
    for name, (_, count, _) in terms.items():
        if name not in counts:
            found = (
                f"the loss has a term '{name}', its batch counts {', '.join(counts) or 'nothing'}"
            )
            raise TrainingFailed(f"{found}; add it to the batch's counts")
        # reading a tensor would wait for the device
        if isinstance(count, int | float) and count != counts[name]:
            found = f"the loss counts {count:g} of '{name}', its batch {counts[name]:g}"
            raise TrainingFailed(f"{found}; let the loss take its counts from the batch")
