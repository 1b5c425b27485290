"""The linear layer that all models use: the one way from `blocks` to `kernels`, and so a file."""

from torch import Tensor, nn

from transduct.kernels.cpu_products import linear


class Linear(nn.Linear):
    """`nn.Linear`, x W^T + b, by the faster matrix library of the processor."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) -> (..., F)."""
        return linear(input, self.weight, self.bias)


def apart(layer: nn.Module, x: Tensor, wanted: bool) -> tuple[Tensor, Tensor | None]:
    """The product of a layer and its bias, for what adds it later, if that is wanted and the layer
    is a plain `Linear`; else its output and None."""
    if wanted and type(layer) is Linear and not (layer._forward_hooks or layer._forward_pre_hooks):
        return nn.functional.linear(x, layer.weight), layer.bias
    return layer(x), None
