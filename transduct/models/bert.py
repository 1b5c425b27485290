"""BERT: an encoder that reads a text in both directions (Devlin et al. 2019), and a head for each thing asked of it.

A sequence is BEGIN text END, or BEGIN text END text END; what stands after the first END is of type 1, the rest of 0.
Let N be tokens of a batch, B its sequences, K masked tokens, D the model width, V the tokenizer's vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from transduct.blocks.attention import AttentionScheme, MultiHeadAttention, positions_inside, split_scheme
from transduct.blocks.embeddings import Embedding, VectorScheme
from transduct.blocks.linear import Linear
from transduct.blocks.ngrams import NGrams
from transduct.blocks.sizes import require_heads, require_rate, require_size
from transduct.blocks.tables import embedding_table, project
from transduct.blocks.transformer import (
    ACTIVATIONS,
    Activation,
    Encoder,
    EncoderLayer,
    LayerShape,
    NormKind,
    initialise,
    make_norm,
    names_of_attention,
)
from transduct.functional.dropout import dropout
from transduct.functional.lookup import lookup
from transduct.functional.segments import Segments, pad

Head = Literal["none", "masked", "pretraining", "sequence", "tokens", "span"]

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 512},
    "small": {"layers": 4, "d_model": 256, "num_heads": 4, "d_ff": 1024},
    "base": {"layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 3072},
}


@dataclass(frozen=True)
class Config:
    """What a BERT is made of; the defaults are the base size in pre-norm.

    The published models are `norm="post"`, `positions="learned"`, `embedding_norm=True`.

    Attributes:
        vocabulary_size: V, the tokenizer's; the model adds one row for the mask, whose id is V.
        embedding_norm: whether the sum of embeddings is normalised before its dropout.
        max_length: tokens of the longest sequence, BEGIN and END included.
        head: masked tokens alone, these and the next sentence, a label for a sequence or for each token, or where a
            span starts and ends.
        labels: how many labels the head tells apart, for sequences and tokens.
        pool: what stands for a sequence: its first token, as published, or the mean of its tokens. Masked tokens alone
            teach nothing about the first.
        n_grams: the longest runs of tokens that vote on a sequence's label beside the encoder (of 1 and more tokens,
            hashed; Joulin et al. 2017); 0 for none. Each learns as if it were alone, and their scores are added.
    """

    vocabulary_size: int
    d_model: int = 768
    num_heads: int = 12
    d_ff: int = 3072
    layers: int = 12
    dropout: float = 0.1
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["none"] | VectorScheme | AttentionScheme = "sinusoidal"
    activation: Activation = "gelu"
    norm_kind: NormKind = "layer"
    embedding_norm: bool = False
    max_length: int = 256
    head: Head = "none"
    labels: int = 0
    pool: Literal["class", "mean"] = "class"
    n_grams: int = 0

    def __post_init__(self) -> None:
        require_size(1, self, "vocabulary_size", "d_model", "num_heads", "d_ff", "layers")
        require_size(5 if self.head == "span" else 3, self, "max_length")  # a token of each text, and their ends
        require_size(0, self, "n_grams")
        require_rate(self, "dropout")
        require_heads(self)
        if self.n_grams and self.head != "sequence":
            raise ValueError(f"n_grams is {self.n_grams}, but the head '{self.head}' labels no sequence; set it to 0")
        if self.head in ("sequence", "tokens") and self.labels < 2:
            raise ValueError(f"labels is {self.labels}, must be at least 2 for the head '{self.head}'")

    @property
    def mask(self) -> int:
        """The id of the mask."""
        return self.vocabulary_size


class Bert(nn.Module):
    """Encoder over segments: `encode`, and the methods of the head that the configuration names.

    The encoder's parameters are named like those of a Transformer's source side, save `types` and `embedding_norm`.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        shape, (vectors, _) = LayerShape.of(config), split_scheme(config.positions)
        table = embedding_table(config.vocabulary_size + 1, d_model)
        self.embedding = Embedding(table, vectors, "add", config.max_length, rate=0.0)
        self.types = embedding_table(2, d_model)
        self.embedding_norm = make_norm(shape) if config.embedding_norm else nn.Identity()
        self.encoder = Encoder(EncoderLayer(shape, self._attention()) for _ in range(config.layers))
        self.encoder_norm = make_norm(shape) if config.norm == "pre" else nn.Identity()
        if config.head in ("masked", "pretraining"):
            self.transform = Linear(d_model, d_model)
            self.transform_norm = make_norm(shape)
            self.bias = nn.Parameter(torch.zeros(config.vocabulary_size + 1))
        if config.head in ("pretraining", "sequence"):
            self.pooler = Linear(d_model, d_model)
        if config.head == "pretraining":
            self.next_sentence = Linear(d_model, 2)
        if config.head in ("sequence", "tokens", "span"):
            self.output = Linear(d_model, 2 if config.head == "span" else config.labels)
        if config.n_grams:
            self.n_grams = NGrams(config.n_grams, config.labels)
        initialise(self)

    @property
    def attention_names(self) -> list[str]:
        """The names of the weights that `encode` hands over, in order."""
        return names_of_attention(self.config.layers)

    def encode(self, tokens: Tensor, types: Tensor, segments: Segments, weights: list[Tensor] | None = None) -> Tensor:
        """Tokens (N,) and their types (N,) -> (N, D)."""
        x = self.embedding(tokens, segments.positions, segments.lengths[segments.sequence])
        x = self.embedding_norm(x + lookup(self.types, types))  # (N, D)
        x = dropout(x, self.config.dropout, self.training)
        return self.encoder_norm(self.encoder(x, segments, weights))

    def masked_logits(self, x: Tensor) -> Tensor:
        """The token at each masked place, by the table of the embeddings: (K, D) -> (K, V + 1)."""
        hidden = self.transform_norm(ACTIVATIONS[self.config.activation](self.transform(x)))  # (K, D)
        return project(hidden, self.embedding.table) + self.bias

    def follows(self, x: Tensor, segments: Segments) -> Tensor:
        """Whether the second sentence of each pair follows the first (0) or not (1): (N, D) -> (B, 2)."""
        return self.next_sentence(self.pool(x, segments))

    def pool(self, x: Tensor, segments: Segments) -> Tensor:
        """A vector for each sequence, from its first token or from all: (N, D) -> (B, D)."""
        if self.config.pool == "mean":
            pooled = pad(x, segments).sum(1) / segments.lengths[:, None].to(x.dtype)
        else:
            pooled = x.index_select(0, segments.offsets[:-1])
        return self.pooler(pooled).tanh()

    def classify(self, x: Tensor, segments: Segments) -> Tensor:
        """The label of each sequence, by the encoder: (N, D) -> (B, labels)."""
        return self.output(dropout(self.pool(x, segments), self.config.dropout, self.training))

    def tag(self, x: Tensor) -> Tensor:
        """The label of each token: (N, D) -> (N, labels)."""
        return self.output(dropout(x, self.config.dropout, self.training))

    def span(self, x: Tensor) -> Tensor:
        """How well each token begins and how well it ends the span: (N, D) -> (N, 2)."""
        return self.output(x)

    def _attention(self) -> MultiHeadAttention:
        config = self.config
        inside = positions_inside(config.positions, config.max_length, config.d_model, config.num_heads)
        return MultiHeadAttention(config.d_model, config.num_heads, positions=inside)
