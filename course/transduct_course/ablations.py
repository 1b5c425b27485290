"""Transformers that lack a part, to ask what it is for. Everything else, and the weights that they
start from under a seed, is as in the whole model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.embeddings import embedding_table
from transduct.blocks.linear import Linear
from transduct.blocks.transformer import Residual, initialise
from transduct.functional.dropout import dropout
from transduct.models.transformer import Config, Transformer
from transduct.segments import Segments


class UnscaledQuery(Linear):
    """The queries of attention without 1 / sqrt(d_k): times the sqrt(d_k) that kernels divide by.

    As it is not exactly `Linear`, faster layers leave the attention around it as it is.
    """

    factor: float

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, H * K)."""
        return super().forward(x) * self.factor


class Unscaled(Transformer):
    """Its attention does not divide scores by sqrt(d_k)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for part in self.modules():
            if isinstance(part, MultiHeadAttention):
                plain = part.query
                with torch.device("meta"):  # so that no weight is drawn
                    query = UnscaledQuery(
                        plain.in_features, plain.out_features, plain.bias is not None
                    )
                query.weight, query.bias, query.factor = plain.weight, plain.bias, part.d_k**0.5
                part.query = query


class BareSublayer(Residual):
    """A sublayer with its norm and without the connection around it: its input is not added."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(N, D) -> (N, D)."""
        x = dropout(sublayer(self.read(x)), self.rate, self.training)
        return x if self.pre else self.norm(x)


class WithoutResiduals(Transformer):
    """The input of a sublayer is not added to its output."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for part in self.modules():
            if isinstance(part, Residual):
                part.__class__ = BareSublayer


class WithoutNorms(Transformer):
    """Nothing normalises. Its config says post-norm, so that no norm follows a stack either."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for part in self.modules():
            if isinstance(part, Residual):
                part.norm = nn.Identity()


class Nothing(nn.Module):
    """Stands where a feed-forward network is left out: adds nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, D)."""
        return torch.zeros_like(x)


class WithoutFeedForward(Transformer):
    """Its layers are attention alone. What is left draws the weights that it would draw if there
    had never been more."""

    def __init__(self, config: Config) -> None:
        before = torch.get_rng_state()
        super().__init__(config)
        torch.set_rng_state(before)
        layers: list[Any] = [*self.encoder, *self.decoder]
        for layer in layers:
            layer.feed_forward = Nothing()
        with torch.no_grad():
            self.output_table.copy_(embedding_table(*self.output_table.shape))
        for part in self.modules():
            if isinstance(part, Linear):
                part.reset_parameters()
        initialise(self)


class SeesAll(MultiHeadAttention):
    """Attention that no mask keeps from the future."""

    def forward(
        self,
        x: Tensor,
        segments: Segments,
        causal: bool = False,  # noqa: ARG002
        *more: Any,
        **named: Any,
    ) -> Tensor:
        """(N, D) -> (N, D)."""
        return super().forward(x, segments, False, *more, **named)


class WithoutMask(Transformer):
    """Each place of its decoder sees all places, those after it too."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for layer in self.decoder:
            layer.self_attention.__class__ = SeesAll
