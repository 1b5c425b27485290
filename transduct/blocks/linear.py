"""The linear layer that all models use, the one way from `blocks` to `kernels`."""

from torch import Tensor, nn

from transduct.kernels.cpu_products import linear


class Linear(nn.Linear):
    """`nn.Linear`, x W^T + b, by the faster matrix library of the processor."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) -> (..., F)."""
        return linear(input, self.weight, self.bias)
