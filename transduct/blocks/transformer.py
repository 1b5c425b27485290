"""The layers of encoders and decoders, and stacks of them (Vaswani et al. 2017, section 3.1).

A decoder either reads the memory of an encoder, as the Transformer's does, or continues a prompt,
as GPT does. Let N be tokens of a batch, B its sources, R = B * beam the rows of a search, D the
model width.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduct.blocks.attention import (
    Ancestry,
    KVCache,
    Memory,
    MemoryState,
    MultiHeadAttention,
    PromptState,
)
from transduct.blocks.embeddings import Embedding, project
from transduct.blocks.linear import Linear
from transduct.functional.dropout import activation_dropout, add_dropout, dropout
from transduct.segments import Segments

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh"]
GATED = ("swiglu", "geglu", "geglu_tanh")
NormKind = Literal["layer", "rms"]


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its approximation with tanh, as in GPT-2."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": gelu_tanh,
}


@dataclass(frozen=True)
class LayerShape:
    """The settings that all layers of a stack share.

    Attributes:
        bias: whether linear layers have biases.
        norm_epsilon: added to the variance by norms; by default 1e-5, for `rms` 1e-6.
        final_norm: whether a norm follows the stack; by default only one of pre-norm layers.
    """

    d_model: int
    d_ff: int
    dropout: float
    activation: Activation
    norm: Literal["pre", "post"]
    norm_kind: NormKind
    bias: bool = True
    norm_epsilon: float | None = None
    final_norm: bool | None = None

    @classmethod
    def of(cls, config: Any) -> Self:
        """Take the settings from a model's configuration, which has fields of the same names, at
        least for those without a default."""
        needed = (each.name for each in fields(cls) if each.default is MISSING)
        return cls(*(getattr(config, name) for name in needed))


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (equation 2), or with another activation; "swiglu" is
    gated, (SiLU(x W_1) * x W_3) W_2, and so is "geglu", with GELU (Shazeer 2020)."""

    def __init__(
        self, d_model: int, d_ff: int, rate: float, activation: Activation, bias: bool = True
    ) -> None:
        super().__init__()
        self.rate, self.name, self.activation = rate, activation, ACTIVATIONS[activation]
        self.inner = Linear(d_model, d_ff, bias)
        self.gate = Linear(d_model, d_ff, bias) if activation in GATED else None
        self.outer = Linear(d_ff, d_model, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, D)."""
        inner = self.inner(x)  # (N, F)
        if self.gate is None and self.training:
            return self.outer(activation_dropout(inner, self.activation, self.rate))
        inner = self.activation(inner)
        if self.gate is not None:
            inner = inner * self.gate(x)
        return self.outer(dropout(inner, self.rate) if self.training else inner)


class Residual(nn.Module):
    """A residual connection: LayerNorm(x + Sublayer(x)), the paper's post-norm, or x +
    Sublayer(LayerNorm(x)), pre-norm (Xiong et al. 2020), with dropout on the sublayer's output
    (section 5.4)."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.pre, self.rate = shape.norm == "pre", shape.dropout
        self.norm = make_norm(shape)

    def read(self, x: Tensor) -> Tensor:
        """The input of the sublayer: (N, D) -> (N, D)."""
        return self.norm(x) if self.pre else x

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(N, D) -> (N, D)."""
        y = sublayer(self.read(x))
        x = add_dropout(x, y, self.rate) if self.training else x + y
        return x if self.pre else self.norm(x)


def feed_forward(shape: LayerShape) -> FeedForward:
    """The feed-forward network of a layer."""
    return FeedForward(shape.d_model, shape.d_ff, shape.dropout, shape.activation, shape.bias)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each in a residual connection."""

    def __init__(self, shape: LayerShape, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.self_attention = attention
        self.feed_forward = feed_forward(shape)
        self.around_attention, self.around_feed_forward = Residual(shape), Residual(shape)

    def forward(
        self,
        x: Tensor,
        segments: Segments,
        causal: bool = False,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """(N, D) -> (N, D)."""
        x = self.around_attention(x, lambda y: self.self_attention(y, segments, causal, weights))
        return self.around_feed_forward(x, self.feed_forward)

    def remember_prompt(self, x: Tensor, segments: Segments) -> Memory:
        """The keys and values of prompts for `step`, from the inputs of this layer: (N, D) ->
        Memory."""
        return self.self_attention.remember_prompt(self.around_attention.read(x), segments)

    def step(
        self, x: Tensor, positions: Tensor, cache: KVCache, prompt: Memory, ancestry: Ancestry
    ) -> Tensor:
        """One new token per row, at positions (R,), with causal attention: (R, D) -> (R, D)."""
        x = self.around_attention(
            x, lambda y: self.self_attention.step(y, cache, prompt, positions, ancestry)
        )
        return self.around_feed_forward(x, self.feed_forward)


class Encoder(nn.ModuleList):
    """The layers of an encoder."""

    def forward(self, x: Tensor, segments: Segments, weights: list[Tensor] | None = None) -> Tensor:
        """(N, D) -> (N, D)."""
        for layer in self:
            x = layer(x, segments, weights=weights)
        return x


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention over the memory and feed-forward network, each in a residual
    connection."""

    def __init__(
        self, shape: LayerShape, attention: MultiHeadAttention, cross: MultiHeadAttention
    ) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = attention, cross
        self.feed_forward = feed_forward(shape)
        self.around_attention, self.around_cross = Residual(shape), Residual(shape)
        self.around_feed_forward = Residual(shape)

    def forward(
        self,
        x: Tensor,
        segments: Segments,
        memory: Tensor,
        memory_segments: Segments,
        weights: list[Tensor] | None = None,
        causal: bool = True,
        self_bias: Tensor | None = None,
        cross_bias: Tensor | None = None,
    ) -> Tensor:
        """(N, D), memory (M, D) -> (N, D). The biases (B, H, T, S) are added to the scores of each
        attention."""
        own, cross = self.self_attention, self.cross_attention.cross
        x = self.around_attention(x, lambda y: own(y, segments, causal, weights, self_bias))
        x = self.around_cross(
            x, lambda y: cross(y, segments, memory, memory_segments, weights, cross_bias)
        )
        return self.around_feed_forward(x, self.feed_forward)

    def step(self, x: Tensor, cache: KVCache, memory: Memory, ancestry: Ancestry) -> Tensor:
        """One new token per row: (R, D) -> (R, D)."""
        x = self.around_attention(
            x, lambda y: self.self_attention.step(y, cache, ancestry=ancestry)
        )
        x = self.around_cross(x, lambda y: self.cross_attention.recall(y, memory))
        return self.around_feed_forward(x, self.feed_forward)


class Decoder(nn.ModuleList):
    """The layers of a decoder that reads the memory of an encoder."""

    def forward(
        self,
        x: Tensor,
        segments: Segments,
        memory: Tensor,
        memory_segments: Segments,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """(N, D) over the memory (M, D) -> (N, D)."""
        for layer in self:
            x = layer(x, segments, memory, memory_segments, weights)
        return x

    def start(self, memory: Tensor, segments: Segments, beam: int) -> MemoryState:
        """Return the state before the first token, with `beam` rows for each source of the memory
        (N, D)."""
        memories = [
            cast(DecoderLayer, layer).cross_attention.remember(memory, segments) for layer in self
        ]
        return MemoryState(beam, [KVCache(beam) for _ in memories], memories, Ancestry(beam))

    def step(self, model: "DecoderSteps", tokens: Tensor, state: MemoryState) -> Tensor:
        """The newest token of each row (R,) -> logits of the next (R, V)."""
        state.ancestry.grow(len(tokens), tokens.device)
        x = model.target_embedding(tokens, state.positions)
        for layer, cache, memory in zip(self, state.caches, state.memories, strict=True):
            x = cast(DecoderLayer, layer).step(x, cache, memory, state.ancestry)
        return model.logits(model.decoder_norm(x))


class DecoderSteps:
    """A model whose `decode` and `step` run its `target_embedding`, decoder, norm and output table,
    and do nothing else.

    A faster search may then run the decoder by itself. A subclass with a `step` of its own keeps
    that.
    """

    target_embedding: Embedding
    decoder: Decoder
    decoder_norm: nn.Module
    output_table: Any  # a parameter, or packed `Rows`
    output_bias: Tensor | None

    def decode(
        self,
        tokens: Tensor,
        segments: Segments,
        memory: Tensor,
        memory_segments: Segments,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Target tokens (M,), memory (N, D) -> hidden states (M, D), each of which predicts the
        next token."""
        x = self.target_embedding(tokens, segments.positions)
        hidden: Tensor = self.decoder_norm(
            self.decoder(x, segments, memory, memory_segments, weights)
        )
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """(M, D) -> (M, V)."""
        return project(hidden, self.output_table, self.output_bias)

    def start(self, memory: Tensor, segments: Segments, beam: int) -> MemoryState:
        """Return the state before the first token, with `beam` rows for each source."""
        return self.decoder.start(memory, segments, beam)

    def step(self, tokens: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
        """The newest token of each row (R,) -> logits of the next (R, V), and the state after
        it."""
        return self.decoder.step(self, tokens, state), state


class PromptDecoder(nn.ModuleList):
    """The layers of a decoder that continues a prompt."""

    def forward(self, x: Tensor, segments: Segments, weights: list[Tensor] | None = None) -> Tensor:
        """(N, D) -> (N, D)."""
        for layer in self:
            x = layer(x, segments, causal=True, weights=weights)
        return x

    def inputs(self, x: Tensor, segments: Segments) -> Tensor:
        """The inputs of all layers for prompts with embeddings (N, D): -> (layers, N, D)."""
        inputs = [x]
        for layer in self[:-1]:
            inputs.append(layer(inputs[-1], segments, causal=True))
        return torch.stack(inputs)

    def start(self, inputs: Tensor, segments: Segments, beam: int) -> PromptState:
        """Return the state after the prompts, with `beam` rows for each, from their `inputs`
        (layers, N, D)."""
        prompts = [
            cast(EncoderLayer, layer).remember_prompt(x, segments)
            for layer, x in zip(self, inputs, strict=True)
        ]
        return PromptState(
            beam, [KVCache(beam) for _ in prompts], prompts, Ancestry(beam), segments.lengths
        )

    def step(self, x: Tensor, positions: Tensor, state: PromptState) -> Tensor:
        """Run the newest token of each row, at `positions` (R,), through all layers: (R, D) -> (R,
        D)."""
        state.ancestry.grow(len(x), x.device)
        for layer, cache, prompt in zip(self, state.caches, state.memories, strict=True):
            x = cast(EncoderLayer, layer).step(x, positions, cache, prompt, state.ancestry)
        return x


def names_of_attention(encoder_layers: int, decoder_layers: int = 0) -> list[str]:
    """The names of the attention weights of an encoder and a decoder, in the order of their
    computation."""
    names = [f"encoder.{i}.self" for i in range(encoder_layers)]
    return names + [
        f"decoder.{i}.{kind}" for i in range(decoder_layers) for kind in ("self", "cross")
    ]


def make_norm(shape: LayerShape) -> nn.Module:
    """Layer normalisation (Ba et al. 2016) or root-mean-square normalisation (Zhang and Sennrich
    2019)."""
    kind, usual = (nn.LayerNorm, 1e-5) if shape.norm_kind == "layer" else (nn.RMSNorm, 1e-6)
    return kind(shape.d_model, eps=usual if shape.norm_epsilon is None else shape.norm_epsilon)


def final_norm(shape: LayerShape) -> nn.Module:
    """The norm after a stack of pre-norm layers; post-norm layers do not need one."""
    needed = shape.norm == "pre" if shape.final_norm is None else shape.final_norm
    return make_norm(shape) if needed else nn.Identity()


def initialise(module: nn.Module) -> None:
    """Initialise all linear layers with Xavier-uniform weights and zero biases."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                torch.nn.init.zeros_(part.bias)


def is_exactly(module: Any, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of exactly one of these kinds and has neither hooks nor methods of its
    own.

    What replaces readable layers asks this first, because a subclass may compute anything.
    """
    if type(module) not in kinds or module._forward_hooks or module._forward_pre_hooks:
        return False
    methods = vars(type(module))  # found by a loop, which a compiler follows
    return not any(name in methods for name in vars(module))
