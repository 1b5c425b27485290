"""The linear layer that all models use, the one way from `blocks` to `kernels`. And whether a
module is exactly what its class says."""

from typing import Any

from torch import Tensor, nn

from transduct.kernels.cpu_products import linear


class Linear(nn.Linear):
    """`nn.Linear`, x W^T + b, by the faster matrix library of the processor."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) -> (..., F)."""
        return linear(input, self.weight, self.bias)


def is_exactly(module: Any, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of exactly one of these kinds and has neither hooks nor methods of its
    own.

    What replaces readable layers asks this first, because a subclass may compute anything.
    """
    if type(module) not in kinds or module._forward_hooks or module._forward_pre_hooks:
        return False
    methods = vars(type(module))  # found by a loop, which a compiler follows
    return not any(name in methods for name in vars(module))
