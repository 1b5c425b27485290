"""Layers with int8 weights, for inference: a quarter of the size of float32, and faster.

A row is stored as integers from -127 to 127 and a step, its largest magnitude / 127. Activations
have a step per row too: one for the whole batch would make a sentence depend on its neighbours. Let
N be tokens, D the input width, F the output width, V the vocabulary.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduct.blocks.transformer import DecoderLayer
from transduct.inference.packed import exchange
from transduct.kernels import cpu

STEPS = 127  # in each direction
SMALLEST = 1e-12  # the least magnitude, so that a row of zeros has a step
EXACT = 2**24 // STEPS**2  # products of two bytes whose sum is an exact float32, whatever the order
WIDENED = 2**18  # weights that are float32 at a time, so that they stay in the cache


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise each row: (N, D) -> int8 (N, D) and the steps (N,)."""
    largest = x.abs().amax(-1, keepdim=True).float().clamp(min=SMALLEST)  # (N, 1)
    # (N, D), (N,)
    return (x * (STEPS / largest)).round().to(torch.int8), (largest / STEPS).squeeze(1)


def int8_linear(x: Tensor, weight: Tensor, steps: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, with int8 inputs and int32 sums: (..., D) -> (..., F).

    On a GPU the weights are dequantised first, because there PyTorch's int8 product does not
    support all shapes.

    Args:
        weight, steps: (F, D) and (F,), as returned by `quantise_rows`.
    """
    if not x.is_cpu:
        return F.linear(x, (weight * steps[:, None]).to(x.dtype), bias)
    rows, row_steps = quantise_rows(x.flatten(0, -2))  # (N, D), (N,)
    product = integer_product(rows, weight).float().mul_(steps).mul_(row_steps[:, None])  # (N, F)
    return (
        (product if bias is None else product + bias).to(x.dtype).view(*x.shape[:-1], len(weight))
    )  # (..., F)


def integer_product(rows: Tensor, weight: Tensor) -> Tensor:
    """The exact product of int8 matrices from -127 to 127: (N, D) and (F, D) -> int32 (N, F).

    Where PyTorch's own product is slow or not exact, the integers are multiplied as float32. Each
    sum stays below 2^24, where float32 holds every integer.
    """
    if use_int_mm():
        if rows.shape[1] == 1:  # for which PyTorch 2.13's product is wrong
            rows, weight = (F.pad(x, (0, 1)) for x in (rows, weight))
        return torch._int_mm(rows, weight.T)
    out = rows.new_zeros(len(rows), len(weight), dtype=torch.int32)
    # Autocast would round the sums to bfloat16. TF32 and bfloat16 as the precision of products do
    # no harm: they hold every byte, and sum in float32.
    with torch.autocast("cpu", enabled=False):
        for first in range(0, rows.shape[1], EXACT):
            part, weights = (x[:, first : first + EXACT] for x in (rows, weight))
            floats, most = part.float(), max(WIDENED // part.shape[1], 1)
            for row in range(0, len(weight), most):
                sums = floats @ weights[row : row + most].float().T  # (N, most)
                out[:, row : row + most] += sums.to(torch.int32)
    return out


@cache
def use_int_mm() -> bool:
    """Whether `torch._int_mm` is fast and exact here. Without VNNI it is a plain loop, twelve times
    slower than float32. With it, but with oneDNN limited to older instructions, it saturates."""
    if not torch.cpu._is_vnni_supported():
        return False
    most = torch.full((2, 4), STEPS, dtype=torch.int8)
    return bool((torch._int_mm(most, most.T) == 4 * STEPS**2).all())


class QuantisedLinear(nn.Module):
    """A linear layer of int8 weights with a step for each output; the bias is not quantised."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        if weight.is_meta:  # loaded later
            integers, steps = (
                weight.new_empty(weight.shape, dtype=torch.int8),
                weight.new_empty(len(weight)),
            )
        else:
            integers, steps = quantise_rows(weight.detach())
        self.weight, self.steps = nn.Parameter(integers, False), nn.Parameter(steps, False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), False)
        self.packed: cpu.Packed | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, F)."""
        if self.packed is not None:
            return self.packed(x).to(x.dtype)
        return int8_linear(x, self.weight, self.steps, self.bias)

    def pack(self) -> None:
        """Pack the weights for the processor, if there is a kernel that is faster than PyTorch."""
        if cpu.supports(self.steps):
            self.packed = cpu.Packed(self.weight, self.steps, self.bias)


class QuantisedTable(QuantisedLinear):
    """An int8 embedding table with a step for each row, which can also be the output projection."""

    @property
    def shape(self) -> torch.Size:
        """(V, D)."""
        return self.weight.shape

    @property
    def numbers(self) -> Tensor:
        """(V, D), dequantised."""
        return self.weight * self.steps[:, None]

    def rows(self, tokens: Tensor) -> Tensor:
        """Look up embeddings: (N,) -> (N, D)."""
        return self.weight.index_select(0, tokens) * self.steps.index_select(0, tokens)[:, None]

    def select(self, tokens: Tensor) -> "QuantisedTable":
        """Return the table of these tokens only."""
        chosen = QuantisedTable(self.weight[:0].float())
        chosen.weight = nn.Parameter(self.weight.index_select(0, tokens), False)
        chosen.steps = nn.Parameter(self.steps.index_select(0, tokens), False)
        if self.bias is not None:
            chosen.bias = nn.Parameter(self.bias.index_select(0, tokens), False)
        if self.packed is not None:
            chosen.pack()
        return chosen


def pack_quantised(model: nn.Module) -> None:
    """Pack the quantised layers of a model for the processor, except tables that are only looked
    up."""
    outputs = {id(module._modules.get("output_table")) for module in model.modules()}
    for module in list(model.modules()):
        if isinstance(module, QuantisedLinear) and (
            not isinstance(module, QuantisedTable) or id(module) in outputs
        ):
            module.pack()


def quantise(model: nn.Module) -> None:
    """Quantise all linear layers and embedding tables of a model, in place, but for changed ones;
    see `exchange`.

    Norms, biases and positions are not quantised. KV caches of decoders over a memory become
    float16 where the kernels read them: that takes much of the time, and int8 rounds more coarsely.
    """
    for module in model.modules():
        if isinstance(module, DecoderLayer):
            module.self_attention.cache_dtype = module.cross_attention.cache_dtype = torch.float16
    exchange(model, lambda layer: QuantisedLinear(layer.weight, layer.bias), QuantisedTable)
