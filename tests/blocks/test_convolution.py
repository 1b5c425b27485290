"""Convolutions equal torch's, have the right sizes, and do not depend on the other pictures of a
batch."""

import pytest
import torch
from torch import nn

from transduct.blocks.convolution import Backbone, ResidualBlock, convolution, group_norm


@pytest.mark.parametrize(
    ("channels", "stride"), [((16, 16), 1), ((16, 32), 1), ((16, 32), 2), ((16, 16), 2)]
)
def test_a_block_begins_as_its_shortcut(channels, stride):
    torch.manual_seed(1)
    block = ResidualBlock(*channels, stride)
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(block(x), block.shortcut(x[:, :, ::stride, ::stride]))
    assert block(x).shape == (2, channels[1], 8 // stride, 8 // stride)


def test_a_block_is_its_formula():
    torch.manual_seed(1)
    block = ResidualBlock(16, 32)
    nn.init.normal_(block.second.weight)
    x = torch.randn(2, 16, 6, 6)
    silu = nn.SiLU()
    inner = nn.functional.conv2d(
        silu(block.first_norm(x)), block.first.weight, block.first.bias, padding=1
    )
    inner = nn.functional.conv2d(
        silu(block.second_norm(inner)), block.second.weight, block.second.bias, padding=1
    )
    shortcut = nn.functional.conv2d(x, block.shortcut.weight, block.shortcut.bias)
    torch.testing.assert_close(block(x), shortcut + inner)


def test_a_shortcut_with_a_stride_is_a_convolution_that_has_it():
    torch.manual_seed(1)
    block, x = ResidualBlock(16, 32, 2), torch.randn(2, 16, 6, 8)
    torch.testing.assert_close(
        block(x), nn.functional.conv2d(x, block.shortcut.weight, block.shortcut.bias, stride=2)
    )


def test_a_block_that_pools_sees_every_pixel():
    torch.manual_seed(1)
    block, x = ResidualBlock(16, 32, 2, pooled=True), torch.randn(2, 16, 6, 8)
    nn.init.normal_(block.second.weight)
    silu, functional = nn.SiLU(), nn.functional
    inner = functional.conv2d(
        silu(block.first_norm(x)), block.first.weight, block.first.bias, padding=1
    )
    inner = inner.unfold(2, 2, 2).unfold(3, 2, 2).amax((-1, -2))
    inner = functional.conv2d(
        silu(block.second_norm(inner)), block.second.weight, block.second.bias, padding=1
    )
    mean = x.unfold(2, 2, 2).unfold(3, 2, 2).mean((-1, -2))
    shortcut = functional.conv2d(mean, block.shortcut.weight, block.shortcut.bias)
    torch.testing.assert_close(block(x), shortcut + inner)


def test_narrow_levels_train():
    """With the stride in the 1 x 1 layer, oneDNN 3.12 would crash the process."""
    backbone = Backbone([8, 8, 16])
    for _ in range(15):
        backbone(torch.randn(4, 64, 64, 3).movedim(3, 1)).square().sum().backward()


def test_a_backbone_halves_the_picture_at_each_level():
    backbone = Backbone([16, 32, 48])
    assert backbone(torch.randn(2, 3, 32, 64)).shape == (2, 48, 4, 8)


def test_only_the_first_block_of_a_level_halves():
    backbone = Backbone([16, 32], depth=3)
    sizes = [(block.first.stride[0], *block.first.weight.shape[1::-1]) for block in backbone.blocks]
    assert sizes == [(2, 16, 16), (1, 16, 16), (1, 16, 16), (2, 16, 32), (1, 32, 32), (1, 32, 32)]
    assert backbone(torch.randn(1, 3, 16, 16)).shape == (1, 32, 4, 4)


def test_a_backbone_that_pools_halves_as_one_that_strides():
    backbone = Backbone([16, 32], 2, pooled=True)
    assert backbone(torch.randn(1, 3, 16, 24)).shape == (1, 32, 4, 6)
    assert [block.pooled for block in backbone.blocks] == [True, False, True, False]


@pytest.mark.parametrize("pooled", [False, True])
def test_a_picture_is_the_same_alone_and_in_a_batch(pooled):
    torch.manual_seed(1)
    backbone = Backbone([16, 32], pooled=pooled)
    pictures = torch.randn(3, 3, 16, 16)
    together = backbone(pictures)
    pictures[1:] *= 100.0
    torch.testing.assert_close(backbone(pictures)[:1], together[:1])
    torch.testing.assert_close(backbone(pictures[:1]), together[:1])


def test_norms_are_of_groups_of_channels():
    assert group_norm(48).num_groups == 3
    assert group_norm(8).num_groups == 1
    assert not convolution(3, 4, 3).bias.any()
