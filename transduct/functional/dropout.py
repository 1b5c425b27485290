"""Dropout with sixteen random bits per element, alone and in one pass with its neighbours."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from transduct.functional.fast import cpu, cpu_training, dropped, takes


def dropout(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """Zero each element with probability `rate` and scale the others by 1 / (1 - rate) (Srivastava
    et al. 2014).

    On a CPU the Bernoulli draws of `torch.nn.functional.dropout` take a fifth of a small model's
    training step, and on a GPU a ninth of a large one's. Here sixteen bits decide about an element,
    so the rate is rounded to a multiple of 1 / 65536. They are drawn by a kernel of ours or,
    without it, on a CPU by PyTorch, 64 bits at a time.
    """
    if not training or rate == 0.0:
        return x
    if _at_once(x):
        return dropped(x.reshape(-1, x.shape[-1]), rate).view(x.shape)
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    threshold = cpu.threshold(rate)
    if cpu.trainable(x):
        return cpu_training.dropped(x, threshold) if threshold else x
    threshold -= 32768
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= threshold
    return x * kept.to(x.dtype).mul_(65536 / (32768 - threshold))


def activation_dropout(x: Tensor, activation: Callable[[Tensor], Tensor], rate: float) -> Tensor:
    """`dropout(activation(x))`, of ReLU on a CPU in one pass over memory."""
    threshold = cpu.threshold(rate)
    if threshold and activation is F.relu and cpu.trainable(x):
        return cpu_training.dropped(x, threshold, relu=True)
    return dropout(activation(x), rate)


def add_dropout(residual: Tensor, x: Tensor, rate: float) -> Tensor:
    """`residual + dropout(x)`, where there is a kernel for it in one pass over memory."""
    threshold = cpu.threshold(rate)
    if threshold and cpu.trainable(x, residual) and x.shape == residual.shape:
        return cpu_training.dropped(x, threshold, added=residual)
    fits = residual.dtype in (x.dtype, torch.float32) and x.shape == residual.shape
    if threshold and fits and x.ndim == 2 and _at_once(x):
        return dropped(x, rate, "none", None, residual)
    return residual + dropout(x, rate)


def _at_once(x: Tensor) -> bool:
    """Whether Triton's kernel takes this tensor."""
    return x.device.type == "cuda" and x.ndim > 0 and takes("triton_dropout", x, "none")
