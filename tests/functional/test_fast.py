"""What has no second derivative says so."""

import re

import pytest
import torch

from transduct.functional.attention import segment_attention
from transduct.functional.fast import first_only
from transduct.functional.losses import projected_cross_entropy
from transduct.kernels import cpu, cpu_products
from transduct.kernels.cpu import NO_SECOND
from transduct.segments import Segments


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @first_only
    def backward(ctx, *grads):
        return 2 * ctx.saved_tensors[0] * grads[0]


def losses():
    """Functions of one tensor (4, 8) that are computed with a backward pass of our own."""
    weight, targets, segments = torch.randn(8, 8), torch.tensor([1, 2, 3, 4]), Segments.of([1, 3])
    found = {
        "square": lambda x: Square.apply(x).sum(),
        "cross-entropy": lambda x: projected_cross_entropy(x, weight, targets)[0],
        "product": lambda x: cpu_products._Linear.apply(
            x, weight.requires_grad_(), None, cpu_products._by_onednn
        ).sum(),
    }
    if cpu.library() is not None:
        found["attention"] = lambda x: segment_attention(
            *[x.view(4, 2, 4)] * 3, segments, segments, causal=True
        ).sum()
    return found


@pytest.mark.parametrize("name", losses())
def test_a_second_derivative_that_there_is_not_is_refused(name):
    loss, x = losses()[name], torch.randn(4, 8, requires_grad=True)
    [first] = torch.autograd.grad(loss(x), x)
    assert first.abs().sum() > 0
    with pytest.raises(RuntimeError, match=re.escape(NO_SECOND)):
        torch.autograd.grad(loss(x), x, create_graph=True)
