"""Backward passes that have no derivative of their own."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd.function import once_differentiable

NO_SECOND = (
    "this backward pass has no second derivative; compute it from the plain formula, "
    "without kernels"
)


def first_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward pass of an `autograd.Function` whose result depends on the saved
    tensors.

    `once_differentiable` alone raises only where the incoming gradient has a graph; for a gradient
    that is constant, such as that of a loss, a second derivative would silently be zero.

    Raises:
        RuntimeError: in the backward pass, if its graph is asked for (`create_graph=True`).
    """
    once = once_differentiable(backward)

    @wraps(backward)
    def guarded(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(NO_SECOND)
        return once(ctx, *grads)

    return guarded
