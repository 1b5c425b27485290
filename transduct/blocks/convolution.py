"""Convolutional layers for pictures of equal size, (B, C, H, W).

They normalise over groups of channels, never over the batch, so that a picture's features do not
depend on others.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduct.blocks.sizes import GROUP


class ResidualBlock(nn.Module):
    """x + Conv(SiLU(Norm(Conv(SiLU(Norm(x)))))), 3 x 3 each (He et al. 2016), with the norms of Wu
    and He 2018.

    By default the first convolution has the stride. If `pooled`, it has none and is followed by max
    pooling over stride x stride pixels, with average pooling in the shortcut.
    """

    def __init__(
        self, channels_in: int, channels_out: int, stride: int = 1, pooled: bool = False
    ) -> None:
        super().__init__()
        self.first_norm, self.second_norm = group_norm(channels_in), group_norm(channels_out)
        self.first = convolution(channels_in, channels_out, 3, 1 if pooled else stride)
        self.second = convolution(channels_out, channels_out, 3)
        nn.init.zeros_(self.second.weight)  # at first the block is its shortcut
        same = channels_in == channels_out and stride == 1
        self.shortcut = nn.Identity() if same else convolution(channels_in, channels_out, 1)
        self.stride, self.pooled = stride, pooled

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        inner = self.first(F.silu(self.first_norm(x)))
        if self.stride > 1:
            # The 1 x 1 convolution of the shortcut has no stride of its own: with a stride and few
            # channels, its gradient in oneDNN 3.12 writes past the end of a buffer.
            x = F.avg_pool2d(x, self.stride if self.pooled else 1, self.stride)
            inner = F.max_pool2d(inner, self.stride) if self.pooled else inner
        return self.shortcut(x) + self.second(F.silu(self.second_norm(inner)))


class Backbone(nn.Module):
    """A residual network from a picture to a coarse grid of features, with `depth` blocks per entry
    of `channels`.

    The first block of each level halves the resolution, by a stride or, if `pooled`, by pooling.
    """

    def __init__(self, channels: Sequence[int], depth: int = 1, pooled: bool = False) -> None:
        super().__init__()
        self.first = convolution(3, channels[0], 3)
        blocks: list[nn.Module] = []
        for narrow, wide in zip([channels[0], *channels], channels):
            blocks.append(ResidualBlock(narrow, wide, 2, pooled))
            blocks.extend(ResidualBlock(wide, wide) for _ in range(depth - 1))
        self.blocks = nn.Sequential(*blocks)
        self.norm = group_norm(channels[-1])

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C, H / 2^levels, W / 2^levels)."""
        return F.silu(self.norm(self.blocks(self.first(pictures))))


def convolution(channels_in: int, channels_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution with output size H / stride, W / stride, initialised as in He et al. 2015."""
    layer = nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2)
    if not layer.weight.is_meta:  # drawing nothing would import a compiler
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    torch.nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation (Wu and He 2018) over about `GROUP` channels at a time."""
    return nn.GroupNorm(max(1, channels // GROUP), channels)
