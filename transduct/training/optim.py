"""The optimiser and its learning-rate schedules."""

import math
from typing import Literal

import torch
from torch import nn

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
    model: nn.Module, betas: tuple[float, float], epsilon: float, weight_decay: float
) -> torch.optim.AdamW:
    """Adam (Kingma and Ba 2015); decoupled weight decay (Loshchilov and Hutter 2019) on matrices only.

    What is frozen (`requires_grad=False`) is left out.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim > 1]
    vectors = [p for p in trained if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], betas=betas, eps=epsilon, fused=True)


@torch.no_grad()
def clip_gradients(model: nn.Module, most: float) -> float:
    """Scale all gradients so that their joint norm is at most `most` (0 leaves them); returns the norm before."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients))
    if 0.0 < most < norm and math.isfinite(norm):
        torch._foreach_mul_(gradients, most / norm)
    return norm


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
