"""The training step: accumulate the gradients of micro-batches, normalised by their total counts,
clip and update."""

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transduct.errors import TrainingFailed
from transduct.kernels import triton
from transduct.kernels.cuda_graphs import Replay, beside
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks
from transduct.training.optim import load_optimiser, make_optimiser, optimiser_tensors

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
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        loss: Callable[[nn.Module, Any], Terms],
        ranks: Ranks,
    ) -> None:
        self.model, self.config, self.ranks = model, config, ranks
        self.loss = triton.compiled(loss) if config.compile else loss
        self._plain_loss = loss if config.compile else None  # until compared with the compiled one
        self.device = next(model.parameters()).device
        betas = (config.betas[0], config.betas[1])
        precision = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
        muon = precision if config.optimiser == "muon" else None
        self.optimiser = make_optimiser(
            model, betas, config.epsilon, config.weight_decay, config.capture, muon
        )
        self._set_up()

    def take(self, micro_batches: list[Any], number: int, rate: float) -> float:
        """Take step `number` over this rank's micro-batches. Returns the loss: the weighted sum of
        the terms' averages.

        The counts are summed over micro-batches and ranks before the first backward, so that
        averages are taken once.

        Args:
            micro_batches: each has `counts`, the denominator of each term of the loss, and a method
                `to(device)`.

        Raises:
            Diverged: if the loss or the gradient norm is not finite; no weight has changed.
            TrainingFailed: if a term of the loss is counted otherwise than in its batch.
        """
        config = self.config
        set_rate(self.optimiser, rate)
        self.optimiser.zero_grad(set_to_none=not config.capture)
        totals: dict[str, float] = {}
        for batch in micro_batches:
            for name, count in batch.counts.items():
                totals[name] = totals.get(name, 0.0) + count
        if self.ranks.world > 1:
            totals = self.ranks.total(totals)
        if self._plain_loss is not None and micro_batches:
            # On the capture's side stream: leftover gradients would tie a later capture to the
            # default stream.
            captured = config.capture and self.device.type == "cuda"
            with beside(self.device) if captured else nullcontext():
                self._compare(self._plain_loss, micro_batches[0], totals)
            self._plain_loss = None
        losses = []
        for place, batch in enumerate(micro_batches):
            seed_generators(config.seed, number, place, self.ranks.rank)
            losses.append(self._backward(batch, totals))
        if self.ranks.world > 1:
            self.ranks.sum_gradients(self.model)
        at_once = config.capture or (self.device.type == "cuda" and config.optimiser == "adam")
        value, norm = self._update_at_once(losses) if at_once else self._update(losses)
        if not (math.isfinite(value) and math.isfinite(norm)):
            raise Diverged(f"step {number}: loss {value:.4g}, gradient norm {norm:.4g}")
        return value

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's state, by the names a checkpoint uses."""
        return optimiser_tensors(self.model, self.optimiser)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the optimiser's state."""
        load_optimiser(self.model, self.optimiser, tensors)
        self._set_up()

    def release(self) -> None:
        """Break the reference cycles through the step functions, which would keep the optimiser's
        tensors and graphs alive until the next garbage collection."""
        del self._backward, self._guarded_step

    def _set_up(self) -> None:
        """Build the step functions; repeated after `restore`, because graphs hold the addresses of
        the old tensors."""
        config = self.config
        self._backward: Callable[[Any, Mapping[str, Any]], Tensor] = self._accumulate
        if config.compile or config.capture:
            self._backward = Replay(self._accumulate, self.device, config.capture)
        if config.capture:
            for parameter in self.model.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        step = partial(guarded_step, self.model, self.optimiser, config.clip)
        self._guarded_step = Replay(step, self.device, config.capture)

    def _accumulate(self, batch: Any, totals: Mapping[str, Any]) -> Tensor:
        """Accumulate the gradients of a micro-batch. Returns its share of the loss."""
        total = self._total(self.loss, batch, totals)
        total.backward()  # type: ignore[no-untyped-call]
        return total.detach()

    def _total(
        self, loss: Callable[[nn.Module, Any], Terms], batch: Any, totals: Mapping[str, Any]
    ) -> Tensor:
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"
        ):
            terms = loss(self.model, batch.to(self.device))
        _check_counts(terms, batch.counts)
        return sum(
            (weight * s / totals[name] for name, (s, _, weight) in terms.items()), torch.zeros(())
        )

    def _compare(
        self, plain: Callable[[nn.Module, Any], Terms], batch: Any, totals: Mapping[str, Any]
    ) -> None:
        """Reject a compiled loss that gives some weight no gradient where the plain loss gives one:
        a compiler bug may leave the loss itself correct, so that nothing else would show it."""
        weights = {
            name: weight for name, weight in self.model.named_parameters() if weight.requires_grad
        }
        has_gradient = []
        for loss in (plain, self.loss):
            total = self._total(loss, batch, totals)
            gradients = torch.autograd.grad(total, [*weights.values()], allow_unused=True)
            has_gradient.append(
                [gradient is not None and bool(gradient.any()) for gradient in gradients]
            )
        lost = [name for name, before, after in zip(weights, *has_gradient) if before and not after]
        if lost:
            raise TrainingFailed(
                f"compiled by PyTorch {torch.__version__} the loss has no gradient for "
                f"{len(lost)} weights ({lost[0]}, "
                "...); set training.compile to false"
            )
        if self.device.type == "cuda":  # do not report the plain loss's memory as the run's peak
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def _update(self, losses: list[Tensor]) -> tuple[float, float]:
        """Clip and take the step unless the loss or the gradient norm is not finite. Returns
        both."""
        value = sum(map(float, losses))
        if self.ranks.world > 1:
            value = self.ranks.sum_of(value)
        norm = clip_gradients(self.model, self.config.clip)
        if math.isfinite(value) and math.isfinite(norm):
            self.optimiser.step()
        return value, norm

    def _update_at_once(self, losses: list[Tensor]) -> tuple[float, float]:
        """The same in one call, with a single synchronisation with the device."""
        loss = torch.stack(
            [torch.zeros((), device=self.device), *losses]
        ).sum()  # a rank may have no batch
        value, norm = self._guarded_step(self.ranks.sum(loss)).tolist()
        return value, norm


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
    model: nn.Module, optimiser: torch.optim.Optimizer, most: float, loss: Tensor
) -> Tensor:
    """Clip and take a step without waiting for the device. If the loss or the norm is not finite,
    no weight changes.

    Returns:
        (2,) the loss and the total norm of the gradients before clipping.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
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
        if (
            isinstance(count, int | float) and count != counts[name]
        ):  # reading a tensor would wait for the device
            found = f"the loss counts {count:g} of '{name}', its batch {counts[name]:g}"
            raise TrainingFailed(f"{found}; let the loss take its counts from the batch")
