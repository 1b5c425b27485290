"""A loaded model made ready for inference: the one place that says what replaces its layers.

The results do not change, up to rounding. On a CPU all layers are packed for the processor, and
stacks of layers that the kernels know run in one call.
"""

import torch
from torch import nn

from transduct.inference.fused import fuse
from transduct.inference.packed import join_attention, pack_layers, remember_positions
from transduct.inference.quantised import pack_quantised


def prepare(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model to a device and replace its layers by faster ones, in place."""
    if device.type != "cpu":
        settle(model)
    model.to(device, dtype).eval()
    if device.type == "cpu":
        pack_layers(model)
        pack_quantised(model)
        # Last, because it takes only what is packed.
        fuse(model)


def settle(model: nn.Module) -> None:
    """Prepare a model for inference on a GPU: fuse the query, key and value projections and
    tabulate positions.

    The results do not change. On a CPU `pack_layers` does this, and more.
    """
    join_attention(model)
    remember_positions(model, torch.float32)
