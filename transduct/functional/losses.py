"""Losses over flat tokens.

Let N be tokens, D the model width, V the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 2**21  # logits that exist at a time: 8 MiB of float32, which a small machine's cache still holds


def label_smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy against (1 - e) one-hot + e / V (Szegedy et al. 2016; the paper's section 5.4): (N, V) -> (N,)."""
    log_probabilities = logits.log_softmax(-1)  # (N, V)
    nll = -log_probabilities.gather(-1, targets[:, None]).squeeze(-1)  # (N,)
    return (1.0 - smoothing) * nll - smoothing * log_probabilities.mean(-1)  # (N,)


def projected_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The output projection and `label_smoothed_cross_entropy` in one, with never more than a piece of the logits.

    Args:
        hidden: (N, D).
        weight: (V, D), the output embedding.
        targets: (N,) token ids.
        smoothing: e, the weight of the uniform distribution.

    Returns:
        The sum of the smoothed losses, to be differentiated, and the sum of the plain negative log-likelihoods (a
        number to report: it carries no gradient).
    """
    dtype = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else None
    loss, nll = _ProjectedCrossEntropy.apply(hidden, weight, targets, smoothing, dtype or hidden.dtype)  # type: ignore[no-untyped-call]
    return loss, nll


class _ProjectedCrossEntropy(torch.autograd.Function):
    """The gradient is made in the forward pass, piece by piece: the logits are needed nowhere else."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        size = weight.shape[0]
        cast = weight.to(dtype)  # (V, D)
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        loss = hidden.new_zeros((), dtype=torch.float32)
        nll = hidden.new_zeros((), dtype=torch.float32)
        hidden_grad = torch.empty_like(hidden) if wanted else hidden.new_empty(0)
        weight_grad = torch.zeros_like(weight) if wanted else hidden.new_empty(0)
        step = max(1, CHUNK // size)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, hidden.shape[0], step):
                rows = slice(start, start + step)
                piece, labels = hidden[rows].to(dtype), targets[rows, None]
                logits = F.linear(piece, cast).float()  # (n, V)
                logits -= logits.amax(-1, keepdim=True)
                chosen = logits.gather(1, labels).sum()
                total = logits.sum() if smoothing else chosen
                exponentials = logits.exp_()
                mass = exponentials.sum(-1, keepdim=True)  # (n, 1)
                log_mass = mass.log().sum()
                nll += log_mass - chosen
                loss += log_mass - (1.0 - smoothing) * chosen - (smoothing / size) * total
                if wanted:  # d loss / d logits = softmax - (1 - e) one-hot - e / V
                    grad = exponentials.div_(mass).sub_(smoothing / size)
                    grad.scatter_(1, labels, grad.gather(1, labels) + (smoothing - 1.0))
                    grad = grad.to(dtype)
                    hidden_grad[rows] = grad @ cast
                    weight_grad += grad.T @ piece
        ctx.save_for_backward(hidden_grad, weight_grad)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_grad, weight_grad = ctx.saved_tensors
        return hidden_grad * grads[0], weight_grad * grads[0], None, None, None
