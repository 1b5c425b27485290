"""Layers of a Transformer in fewer passes over memory, for training on a GPU.

Bias, activation and dropout of a feed-forward network become one pass. So do dropout, the sum of a
residual connection and the norm that reads it: its own in post-norm layers, that of the next
sublayer in pre-norm ones. What is computed stays the same but for rounding and what is drawn.
`fuse_passes` puts this in the place of the readable `forward`, as `inference.fused` does for use.

Let N be tokens of a batch, D the model width, F the inner width.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from transduct.blocks.linear import Linear
from transduct.blocks.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
    gelu_tanh,
    is_exactly,
)
from transduct.errors import require
from transduct.functional.dropout import add_dropout
from transduct.functional.fast import takes

WIDEST = 8192  # numbers in a row that the kernel with a norm holds at once
# The activations that are one pass with dropout, and the kernel's names of them.
ACTIVATIONS: dict[Callable[[Tensor], Tensor], str] = {
    F.relu: "relu",
    F.gelu: "gelu",
    gelu_tanh: "gelu_tanh",
}


class FusedResidual:
    """The `forward` of a residual connection that takes its sum and a norm in one pass.

    Attributes:
        following: the connection of the next sublayer, if both are pre-norm.
        known: a sum, and what this connection reads of it, from the connection before.
    """

    def __init__(self, around: Residual) -> None:
        self.around = around
        self.following: FusedResidual | None = None
        self.known: tuple[Tensor | None, Tensor | None] = (None, None)

    def __call__(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(N, D) -> (N, D)."""
        around, (total, read) = self.around, self.known
        self.known = None, None
        if not around.training:
            return Residual.forward(around, x, sublayer)
        # Whatever else comes between two sublayers gives another tensor, whose norm is not known.
        y = sublayer(read if read is not None and total is x else around.read(x))
        if not around.pre:
            return add_norm(x, y, around.rate, around.norm, False)[1]
        if self.following is None:
            return add_dropout(x, y, around.rate)
        total, read = add_norm(x, y, around.rate, self.following.around.norm, True)
        self.following.known = total, read
        return total


def fuse_passes(model: nn.Module) -> list[nn.Module]:
    """Join the passes of all layers of a model that nobody has changed. Returns the modules whose
    `forward` is another one now, for `restore_layers`."""
    changed: list[nn.Module] = []
    for module in model.modules():
        if (
            isinstance(module, FeedForward)
            and is_exactly(module, FeedForward)
            and is_exactly(module.inner, Linear)
            and module.activation in ACTIVATIONS
            and module.gate is None
        ):
            module.forward = partial(feed_forward, module)  # type: ignore[method-assign]
            changed.append(module)
        if not isinstance(module, nn.ModuleList):
            continue
        # The layers of a list follow one another, and so do the sublayers of each.
        around = [each for each in module.modules() if isinstance(each, Residual)]
        fused = [FusedResidual(each) if is_exactly(each, Residual) else None for each in around]
        for one, other in pairwise(fused):
            if one and other and one.around.pre and other.around.pre:
                one.following = other
        for each in filter(None, fused):
            each.around.forward = each  # type: ignore[method-assign]
            changed.append(each.around)
    return changed


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of the Transformers in a model, each of which is computed by its `forward`."""
    return [each for each in model.modules() if isinstance(each, EncoderLayer | DecoderLayer)]


def recompute_layers(model: nn.Module) -> list[nn.Module]:
    """Keep only the inputs of each layer, which the backward pass computes again. Returns the
    layers, for `restore_layers`.

    Raises:
        TransductError: the model has none.
    """
    layers = layers_of(model)
    require(
        layers, "training.recompute is true, this model has no Transformer layers; leave it out"
    )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return layers


def restore_layers(changed: Sequence[nn.Module]) -> None:
    """Give modules that were changed the `forward` of their class again."""
    for module in changed:
        del module.forward


def feed_forward(network: FeedForward, x: Tensor) -> Tensor:
    """The `forward` of a feed-forward network: (N, D) -> (N, D)."""
    name, inner = ACTIVATIONS[network.activation], network.inner
    if not (network.training and x.ndim == 2 and takes("triton_dropout", x, name)):
        return FeedForward.forward(network, x)
    from transduct.kernels.triton_dropout import dropped

    # Without its bias, which comes with the activation: the pass back sums up its gradient too.
    product = F.linear(x, inner.weight)  # (N, F)
    return network.outer(dropped(product, network.rate, name, inner.bias))


def add_norm(
    residual: Tensor, x: Tensor, rate: float, norm: nn.Module, narrow: bool
) -> tuple[Tensor, Tensor]:
    """s = residual + dropout(x) and norm(s): (N, D), (N, D) -> (N, D), (N, D).

    Args:
        narrow: whether the norm is read by linear layers alone, so that under autocast it may have
            the dtype in which they multiply.
    """
    fits = residual.dtype in (x.dtype, torch.float32) and x.shape == residual.shape
    if not (fits and takes_norm(residual, norm)):
        s = add_dropout(residual, x, rate)
        return s, norm(s)
    from transduct.kernels.triton_norms import sum_and_norm

    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    assert norm.eps is not None
    dtype, rms = residual.dtype, isinstance(norm, nn.RMSNorm)
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda") if narrow else torch.float32
    shift = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return sum_and_norm(residual, x, rate, norm.weight, shift, norm.eps, rms, dtype)


def takes_norm(x: Tensor, norm: nn.Module) -> bool:
    """Whether the kernel takes such a sum (N, D) and this norm."""
    return (
        is_exactly(norm, nn.LayerNorm, nn.RMSNorm)
        and norm.normalized_shape == x.shape[1:]
        and norm.weight is not None
        and norm.eps is not None
        and x.shape[1] <= WIDEST
        and takes("triton_norms", x, x.shape[1], isinstance(norm, nn.RMSNorm))
    )
