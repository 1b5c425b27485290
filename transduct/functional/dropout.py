"""Dropout with sixteen random bits per element, alone and in one pass with its neighbours."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduct.functional.fast import (
    KERNEL_TYPES,
    cpu,
    cpu_training,
    dropped,
    sum_and_norm,
    trusted,
)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its approximation with tanh, as in GPT-2."""
    return F.gelu(x, approximate="tanh")


WIDEST = 8192  # numbers in a row that the kernel with a norm holds at once
# The activations that a GPU computes in one pass with dropout.
JOINED: dict[Callable[[Tensor], Tensor], str] = {
    F.relu: "relu",
    F.gelu: "gelu",
    gelu_tanh: "gelu_tanh",
}


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
    threshold = _threshold(rate)
    if cpu.trainable(x):
        return cpu_training.dropped(x, threshold) if threshold else x
    threshold -= 32768
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= threshold
    return x * kept.to(x.dtype).mul_(65536 / (32768 - threshold))


def relu_dropout(x: Tensor, rate: float) -> Tensor:
    """`dropout(relu(x))`, on a CPU in one pass over memory."""
    threshold = _threshold(rate)
    if threshold and cpu.trainable(x):
        return cpu_training.dropped(x, threshold, relu=True)
    return dropout(F.relu(x), rate)


def activation_dropout(
    x: Tensor, bias: Tensor | None, activation: Callable[[Tensor], Tensor], rate: float
) -> Tensor:
    """`dropout(activation(x + bias))`: (N, F), (F,) -> (N, F), in one pass where there is a kernel
    for it."""
    if takes_bias(x, activation):
        return dropped(x, rate, JOINED[activation], bias)
    x = x if bias is None else x + bias
    return relu_dropout(x, rate) if activation is F.relu else dropout(activation(x), rate)


def takes_bias(x: Tensor, activation: Callable[[Tensor], Tensor]) -> bool:
    """Whether `activation_dropout` of such a tensor is one pass, which may as well add a bias and
    sum up its gradient."""
    return activation in JOINED and x.ndim == 2 and _at_once(x, JOINED[activation])


def add_dropout(residual: Tensor, x: Tensor, rate: float) -> Tensor:
    """`residual + dropout(x)`, where there is a kernel for it in one pass over memory."""
    threshold = _threshold(rate)
    if threshold and cpu.trainable(x, residual) and x.shape == residual.shape:
        return cpu_training.dropped(x, threshold, added=residual)
    fits = residual.dtype in (x.dtype, torch.float32) and x.shape == residual.shape
    if threshold and fits and x.ndim == 2 and _at_once(x):
        return dropped(x, rate, "none", None, residual)
    return residual + dropout(x, rate)


def add_norm(
    residual: Tensor, x: Tensor, rate: float, norm: nn.Module, narrow: bool
) -> tuple[Tensor, Tensor]:
    """s = residual + dropout(x) and norm(s): (N, D), (N, D) -> (N, D), (N, D), where there is a
    kernel for it in one pass.

    Args:
        narrow: whether the norm is read by linear layers alone, so that under autocast it may have
            the dtype in which they multiply.
    """
    fits = residual.dtype in (x.dtype, torch.float32) and x.shape == residual.shape
    if not (fits and joins_norm(residual, norm)):
        s = add_dropout(residual, x, rate)
        return s, norm(s)
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    dtype = residual.dtype
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda") if narrow else torch.float32
    rms = isinstance(norm, nn.RMSNorm)
    shift = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return sum_and_norm(residual, x, None, rate, norm.weight, shift, norm.eps, rms, dtype)


def joins_norm(x: Tensor, norm: nn.Module) -> bool:
    """Whether `add_norm` of such a tensor is one pass."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm) or norm._forward_hooks:
        return False
    if norm._forward_pre_hooks or type(norm) not in (nn.LayerNorm, nn.RMSNorm):
        return False  # it may compute anything
    fits = norm.normalized_shape == x.shape[1:] and x.shape[1] <= WIDEST
    if not fits or norm.weight is None or norm.eps is None:
        return False
    return _norms_at_once(x, isinstance(norm, nn.RMSNorm))


def _threshold(rate: float) -> int:
    """The number of 65536 equally likely draws that drop an element, not all of them."""
    return min(round(rate * 65536), 65535)


def _at_once(x: Tensor, activation: str = "none") -> bool:
    """Whether Triton's kernel takes this tensor before this activation."""
    if x.device.type != "cuda" or x.dtype not in KERNEL_TYPES or not x.ndim:
        return False
    return trusted("triton_dropout", x.device, x.dtype, activation)


def _norms_at_once(x: Tensor, rms: bool) -> bool:
    """Whether Triton's kernel takes rows like these."""
    if x.device.type != "cuda" or x.dtype not in KERNEL_TYPES:
        return False
    return trusted("triton_norms", x.device, x.dtype, x.shape[1], rms)
