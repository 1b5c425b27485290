"""The linear layer, everywhere in the house."""

from torch import Tensor, nn

from transduct.functional.products import linear


class Linear(nn.Linear):
    """x W^T + b, by the faster matrix library."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) -> (..., F)."""
        return linear(input, self.weight, self.bias)
