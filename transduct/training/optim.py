"""The optimiser and its learning-rate schedules."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

Schedule = Literal["inverse_sqrt", "linear", "cosine", "constant"]


def paper_rate(d_model: int, warmup: int, step: int) -> float:
    """d_model^-0.5 * min(step^-0.5, step * warmup^-1.5): equation 3 of Vaswani et al. 2017.

    It is `inverse_sqrt` with a peak of (d_model * warmup)^-0.5.
    """
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def rate(schedule: Schedule, peak: float, warmup: int, steps: int, step: int) -> float:
    """The learning rate of step 1, 2, ..., `steps`: a straight way up to `peak` at step `warmup`, then
    down with the inverse square root of the step, straight down to zero, down to zero along a cosine, or flat.
    """
    if step < warmup:
        return peak * step / warmup
    if schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    gone = (step - warmup) / max(1, steps - warmup)
    if schedule == "linear":
        return peak * max(0.0, 1.0 - gone)
    if schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * min(1.0, gone)))
    return peak


def make_optimiser(
    model: nn.Module, betas: tuple[float, float], epsilon: float, weight_decay: float, captured: bool = False
) -> torch.optim.AdamW:
    """Adam (Kingma and Ba 2015); decoupled weight decay (Loshchilov and Hutter 2019) on matrices only.

    What is frozen (`requires_grad=False`) is left out. One that is `captured` has its learning rate in a tensor.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim > 1]
    vectors = [p for p in trained if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    device = next(model.parameters()).device
    first_rate = torch.zeros((), device=device) if captured else 1e-3  # every step sets its own
    optimiser = torch.optim.AdamW(
        [g for g in groups if g["params"]], first_rate, betas, epsilon,
        fused=True, capturable=captured and device.type == "cuda",
    )  # fmt: skip
    optimiser._warned_capturable_if_run_uncaptured = True  # the first step, before the capture, is meant
    return optimiser


def set_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """The learning rate of the next step; where it is a tensor, that tensor stays."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


@torch.no_grad()
def clip_gradients(model: nn.Module, most: float) -> float:
    """Scale all gradients so that their joint norm is at most `most` (0 leaves them); returns the norm before."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients))
    if 0.0 < most < norm and math.isfinite(norm):
        torch._foreach_mul_(gradients, most / norm)
    return norm


@torch.no_grad()
def guarded_step(model: nn.Module, optimiser: torch.optim.Optimizer, most: float, loss: Tensor) -> Tensor:
    """Clip and take a step without waiting for the device; where the loss or the norm is not finite nothing moves.

    Returns:
        (2,) the loss and the joint norm of the gradients before they were clipped.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if most > 0.0:
        torch._foreach_mul_(gradients, (most / norm).clamp(max=1.0))
    optimiser.found_inf = (~(loss.isfinite() & norm.isfinite())).float()  # type: ignore[attr-defined]
    optimiser.step()
    return torch.stack((loss, norm))


class MovingAverage:
    """An exponential moving average of the weights: decay * average + (1 - decay) * weight after each step."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights after a step."""
        held = list(self.weights.values())
        torch._foreach_lerp_(held, [p.detach() for p in model.parameters()], 1.0 - self.decay)
