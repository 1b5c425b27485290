"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), and later variants.

Let N be source tokens and M target tokens of a batch, B its sources, R = B * beam the rows of a
search, D the model width, V the target vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from transduct.blocks.attention import (
    AttentionPositions,
    AttentionScheme,
    MultiHeadAttention,
    split_scheme,
)
from transduct.blocks.embeddings import (
    Embedding,
    VectorScheme,
    embedding_table,
    require_shared,
)
from transduct.blocks.sizes import LARGEST, Layers, Length, Size
from transduct.blocks.transformer import (
    Activation,
    Decoder,
    DecoderLayer,
    DecoderSteps,
    Encoder,
    EncoderLayer,
    LayerShape,
    NormKind,
    final_norm,
    initialise,
    make_norm,
    names_of_attention,
)
from transduct.functional.positions import LENGTH_DEPENDENT
from transduct.models.base import Model
from transduct.records import Checked, Range, Rate, refuse_if
from transduct.segments import Segments

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"encoder_layers": 4, "decoder_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256},
    "small": {
        "encoder_layers": 3,
        "decoder_layers": 3,
        "d_model": 256,
        "num_heads": 4,
        "d_ff": 1024,
    },
    "base": {
        "encoder_layers": 6,
        "decoder_layers": 6,
        "d_model": 512,
        "num_heads": 8,
        "d_ff": 2048,
    },
    "big": {
        "encoder_layers": 6,
        "decoder_layers": 6,
        "d_model": 1024,
        "num_heads": 16,
        "d_ff": 4096,
        "dropout": 0.3,
    },
}


@dataclass(frozen=True)
class Config(Checked):
    """The architecture of a Transformer; the named `SIZES` change some defaults.

    Attributes:
        source_size, target_size: of the vocabularies.
        d_k: the width of a head's keys; d_model / num_heads by default.
        d_v: the width of a head's values; d_k by default.
        num_kv_heads: the number of key and value heads, each shared by a group of query heads;
            num_heads by default.
        attention_dropout: on the attention weights; above zero, attention runs without its fast
            kernels.
        first_position: the number of the first position, for computed vectors.
        buckets: how many distances "bucketed" positions tell apart.
        farthest: the distance from which they share one bucket.
        shared_positions: whether all layers of a stack share one table of buckets.
        embedding_scale: whether embeddings are multiplied by sqrt(d_model).
        embedding_norm: whether a norm follows the embedding.
        bias: whether linear layers have biases.
        norm_epsilon: added to the variance by norms; by default 1e-5, for `rms` 1e-6.
        final_norm: whether a norm follows each stack; by default after pre-norm layers only.
        position_mode: where position vectors enter: "add" to the embedding, "concatenate" to it
            and project, or, with "attention", add to query, key and value. The schemes rotary,
            alibi, relative and bucketed always act inside self-attention.
        tie: which tables are shared. "all" is both embeddings and the output, "decoder" the target
            embedding and the output, "embeddings" both embeddings. "all" and
            "embeddings" need a shared vocabulary. Without one, "decoder" is the default of a
            recipe.
        output_bias: whether the output projection has a bias.
        max_length: the maximum number of tokens of a sequence, including its end.
    """

    source_size: Size
    target_size: Size
    d_model: Size = 512
    num_heads: Size = 8
    d_ff: Size = 2048
    encoder_layers: Layers = 6
    decoder_layers: Layers = 6
    dropout: Rate = 0.1
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["none"] | VectorScheme | AttentionScheme = "sinusoidal"
    position_mode: Literal["add", "concatenate", "attention"] = "add"
    tie: Literal["all", "decoder", "embeddings", "none"] = "all"
    activation: Activation = "relu"
    norm_kind: NormKind = "layer"
    d_k: Size | None = None
    d_v: Size | None = None
    num_kv_heads: Size | None = None
    attention_dropout: Rate = 0.0
    max_length: Length = 256
    output_bias: bool = False
    bias: bool = True
    norm_epsilon: Annotated[float, Range(above=0, below=1)] | None = None
    final_norm: bool | None = None
    embedding_norm: bool = False
    embedding_scale: bool = True
    first_position: Annotated[int, Range(0, LARGEST)] = 0
    buckets: Annotated[int, Range(4, LARGEST)] = 32
    farthest: Size = 128
    shared_positions: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.farthest <= self.buckets // 2,
            f"farthest is {self.farthest}, must be above half of the {self.buckets} buckets",
        )
        refuse_if(
            self.d_k is None and self.d_model % self.num_heads,
            f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}; set d_k",
        )
        refuse_if(
            self.num_kv_heads is not None and self.num_heads % self.num_kv_heads,
            f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}",
        )
        require_shared(self)

    @property
    def vector_scheme(self) -> VectorScheme | None:
        """The position scheme of the embedding, if it has one."""
        return None if self.position_mode == "attention" else split_scheme(self.positions)[0]

    @property
    def length_dependent(self) -> bool:
        """Whether a position vector depends on the length of its sequence. No table can hold
        such vectors."""
        return self.positions in LENGTH_DEPENDENT

    @property
    def left_out(self) -> str | None:
        """The first deviation from the usual Transformer that formats of other tools cannot
        express, or None."""
        for name in ("bias", "embedding_scale"):
            if not getattr(self, name):
                return f"a model with {name}=false"
        if self.embedding_norm or self.final_norm not in (None, self.norm == "pre"):
            return "norms after embeddings, or after a stack of post-norm layers"
        return None if self.norm_epsilon is None else f"norm_epsilon {self.norm_epsilon}"

    @property
    def key_width(self) -> int:
        """d_k or its default."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """d_v or its default."""
        return self.d_v or self.key_width


class Transformer(DecoderSteps, Model):
    """Encoder and decoder over segments: `encode`; and, from `DecoderSteps`, `decode` for whole
    targets, `start` and `step` for search."""

    captures_search = True
    captures_steps = True
    compiles = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.attention_names = names_of_attention(config.encoder_layers, config.decoder_layers)
        shape = replace(
            LayerShape.of(config),
            bias=config.bias,
            norm_epsilon=config.norm_epsilon,
            final_norm=config.final_norm,
        )
        table = embedding_table(config.target_size, config.d_model)
        source_table = (
            table
            if config.tie in ("all", "embeddings")
            else embedding_table(config.source_size, config.d_model)
        )
        self.source_embedding = self._embedding(source_table, shape)
        self.target_embedding = self._embedding(table, shape)
        make_positions = self._attention_positions(causal=False)
        self.encoder = Encoder(
            EncoderLayer(shape, self._attention(make_positions()))
            for _ in range(config.encoder_layers)
        )
        make_causal = self._attention_positions(causal=True)
        self.decoder = Decoder(
            DecoderLayer(shape, self._attention(make_causal()), self._attention(None))
            for _ in range(config.decoder_layers)
        )
        self.encoder_norm, self.decoder_norm = final_norm(shape), final_norm(shape)
        self.output_table = (
            table
            if config.tie in ("all", "decoder")
            else embedding_table(config.target_size, config.d_model)
        )
        self.output_bias = (
            nn.Parameter(torch.zeros(config.target_size)) if config.output_bias else None
        )
        initialise(self)

    def encode(
        self, tokens: Tensor, segments: Segments, weights: list[Tensor] | None = None
    ) -> Tensor:
        """Source tokens (N,) -> memory (N, D)."""
        lengths = segments.lengths[segments.sequence]
        x = self.source_embedding(tokens, segments.positions, lengths)
        return self.encoder_norm(self.encoder(x, segments, weights))

    def _embedding(self, table: nn.Parameter, shape: LayerShape) -> Embedding:
        config = self.config
        mode: Literal["add", "concatenate"] = (
            "concatenate" if config.position_mode == "concatenate" else "add"
        )
        return Embedding(
            table,
            config.vector_scheme,
            mode,
            config.max_length,
            rate=config.dropout,
            scaled=config.embedding_scale,
            first=config.first_position,
            norm=make_norm(shape) if config.embedding_norm else None,
        )

    def _attention_positions(self, causal: bool) -> Callable[[], AttentionPositions | None]:
        """Return a function that makes the positions inside one layer's self-attention, if any; all
        layers of a stack may share one table."""
        config = self.config
        if config.positions == "none" or config.vector_scheme is not None:
            return lambda: None
        make = partial(
            AttentionPositions,
            config.positions,
            config.max_length,
            config.num_heads,
            d_k=config.key_width,
            d_v=config.value_width,
            buckets=config.buckets,
            farthest=config.farthest,
            causal=causal,
        )
        if config.positions == "bucketed" and config.shared_positions:
            return cache(make)
        return make

    def _attention(self, positions: AttentionPositions | None) -> MultiHeadAttention:
        config = self.config
        return MultiHeadAttention(
            config.d_model,
            config.num_heads,
            d_k=config.key_width,
            d_v=config.value_width,
            num_kv_heads=config.num_kv_heads,
            dropout=config.attention_dropout,
            positions=positions,
            bias=config.bias,
        )
