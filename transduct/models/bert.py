"""BERT: a bidirectional encoder (Devlin et al. 2019), with a head for each task.

A sequence is BEGIN text END or BEGIN text END text END; the tokens up to the first END have type 0,
the others type 1. Let N be tokens of a batch, B its sequences, K masked tokens, D the model width,
V the tokenizer's vocabulary.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from transduct.blocks.attention import AttentionScheme, self_attention, split_scheme
from transduct.blocks.embeddings import Embedding, VectorScheme, embedding_table, project
from transduct.blocks.linear import Linear
from transduct.blocks.sizes import LARGEST, LONGEST, Headed, Layers, Size
from transduct.blocks.transformer import (
    ACTIVATIONS,
    Activation,
    Encoder,
    EncoderLayer,
    LayerShape,
    NormKind,
    final_norm,
    initialise,
    make_norm,
    names_of_attention,
)
from transduct.functional.dropout import dropout
from transduct.functional.lookup import lookup
from transduct.models.base import Model
from transduct.records import Range, Rate, refuse_if
from transduct.segments import Segments, pad

Head = Literal["none", "masked", "pretraining", "sequence", "tokens", "span"]

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 512},
    "small": {"layers": 4, "d_model": 256, "num_heads": 4, "d_ff": 1024},
    "base": {"layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 3072},
}

BITS = 20  # of the hash of an n-gram
# Knuth's, of linear congruential generators: the high bits of its products are well mixed
MULTIPLIER = 6364136223846793005
# factor of the votes: Adam moves each by about the learning rate, and few n-grams are frequent
STRENGTH = 20.0


@dataclass(frozen=True)
class Config(Headed):
    """The architecture of a BERT; the defaults are the base size in pre-norm.

    The published models have `norm="post"`, `positions="learned"`, `embedding_norm=True`.

    Attributes:
        vocabulary_size: V, the tokenizer's; the model adds a row for the mask, whose id is V.
        embedding_norm: whether to normalise the sum of the embeddings before dropout.
        max_length: the maximum number of tokens of a sequence, including BEGIN and END.
        head: predicts masked tokens, these and whether a sentence follows another ("pretraining"),
            a label for each sequence or for each token, or the start and end of a span.
        labels: the number of labels of sequences or tokens.
        pool: the vector of a sequence: that of its first token ("class"), as published, or the mean
            of all. Training on masked tokens alone does not train the first.
        n_grams: the maximum length of hashed n-grams that vote on the label of a sequence with the
            encoder (Joulin et al. 2017); 0 for none. Encoder and n-grams are
            trained as separate classifiers, and their scores are added.
    """

    vocabulary_size: Size
    d_model: Size = 768
    num_heads: Size = 12
    d_ff: Size = 3072
    layers: Layers = 12
    dropout: Rate = 0.1
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["none"] | VectorScheme | AttentionScheme = "sinusoidal"
    activation: Activation = "gelu"
    norm_kind: NormKind = "layer"
    embedding_norm: bool = False
    max_length: Annotated[int, Range(3, LONGEST)] = 256
    head: Head = "none"
    labels: int = 0
    pool: Literal["class", "mean"] = "class"
    n_grams: Annotated[int, Range(0, LARGEST)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.head == "span" and self.max_length < 5,
            f"max_length is {self.max_length}, must be at least 5 for the head 'span': a token "
            "of each text, the begin and two ends",
        )
        refuse_if(
            self.n_grams and self.head != "sequence",
            f"n_grams is {self.n_grams}, but only the head 'sequence' has n-grams; set it to 0",
        )
        refuse_if(
            self.head in ("sequence", "tokens") and self.labels < 2,
            f"labels is {self.labels}, must be at least 2 for the head '{self.head}'",
        )

    @property
    def mask(self) -> int:
        """The id of the mask."""
        return self.vocabulary_size


class NGrams(nn.Module):
    """Text classification by a linear model of hashed n-grams (fastText; Joulin et al. 2017).

    Scores labels by votes of all n-grams of a sequence, from single tokens up to n = `longest`.

    The votes are in one table, indexed by a hash of the n-gram (Weinberger et al. 2009); colliding
    n-grams share votes.
    """

    def __init__(self, longest: int, labels: int) -> None:
        super().__init__()
        self.longest = longest
        self.votes = nn.Parameter(torch.zeros(labels, 2**BITS))

    def forward(self, tokens: Tensor, segments: Segments) -> Tensor:
        """The score of each label: STRENGTH times the sum of votes / sqrt(their count); (N,) -> (B,
        labels)."""
        votes = lookup(self.votes.T, self.rows(tokens).flatten()).view(
            len(tokens), self.longest, -1
        )  # (N, n, labels)
        # (N, n)
        whole = segments.positions[:, None] >= torch.arange(self.longest, device=tokens.device)
        votes = (votes * whole[:, :, None]).sum(1)  # (N, labels)
        # sequences that fill up a batch may be empty
        count = pad(whole.sum(1), segments).sum(1, keepdim=True).clamp(min=1)  # (B, 1)
        return STRENGTH * pad(votes, segments).sum(1) / count.sqrt()

    def rows(self, tokens: Tensor) -> Tensor:
        """The table row of each n-gram that ends at each token, a column for each length: (N,) ->
        (N, n)."""
        codes = [tokens + 1]
        for _ in range(1, self.longest):
            codes.append(codes[-1].roll(1) * MULTIPLIER + tokens + 1)  # modulo 2^64
        return (torch.stack(codes, 1) * MULTIPLIER >> (64 - BITS)) & (2**BITS - 1)


class Bert(Model):
    """An encoder over segments: `encode`, followed by the methods of the configured head.

    Except `types` and `embedding_norm`, the encoder's parameters are named like those of a
    Transformer's encoder.
    """

    captures_steps = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.attention_names = names_of_attention(config.layers)
        d_model = config.d_model
        shape, (vectors, _) = LayerShape.of(config), split_scheme(config.positions)
        table = embedding_table(config.vocabulary_size + 1, d_model)
        self.embedding = Embedding(table, vectors, "add", config.max_length, rate=0.0)
        self.types = embedding_table(2, d_model)
        self.embedding_norm = make_norm(shape) if config.embedding_norm else nn.Identity()
        self.encoder = Encoder(
            EncoderLayer(
                shape,
                self_attention(d_model, config.num_heads, config.positions, config.max_length),
            )
            for _ in range(config.layers)
        )
        self.encoder_norm = final_norm(shape)
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

    def encode(
        self, tokens: Tensor, types: Tensor, segments: Segments, weights: list[Tensor] | None = None
    ) -> Tensor:
        """Tokens (N,) and their types (N,) -> (N, D)."""
        x = self.embedding(tokens, segments.positions, segments.lengths[segments.sequence])
        x = self.embedding_norm(x + lookup(self.types, types))  # (N, D)
        x = dropout(x, self.config.dropout, self.training)
        return self.encoder_norm(self.encoder(x, segments, weights))

    def masked_logits(self, x: Tensor) -> Tensor:
        """The logits of masked tokens, by the embedding table: (K, D) -> (K, V + 1)."""
        # (K, D)
        hidden = self.transform_norm(ACTIVATIONS[self.config.activation](self.transform(x)))
        return project(hidden, self.embedding.table) + self.bias

    def follows(self, x: Tensor, segments: Segments) -> Tensor:
        """The logits of next-sentence prediction, follows (0) or not (1): (N, D) -> (B, 2)."""
        return self.next_sentence(self.pool(x, segments))

    def pool(self, x: Tensor, segments: Segments) -> Tensor:
        """A vector for each sequence, from its first token or the mean of all: (N, D) -> (B, D).

        That of an empty sequence, which fills up a batch, means nothing.
        """
        if self.config.pool == "mean":
            pooled = pad(x, segments).sum(1) / segments.lengths[:, None].clamp(min=1).to(x.dtype)
        else:
            pooled = x.index_select(0, segments.offsets[:-1].clamp(max=len(x) - 1))
        return self.pooler(pooled).tanh()

    def classify(self, x: Tensor, segments: Segments) -> Tensor:
        """The logits of the label of each sequence, by the encoder alone: (N, D) -> (B, labels)."""
        return self.output(dropout(self.pool(x, segments), self.config.dropout, self.training))

    def tag(self, x: Tensor) -> Tensor:
        """The logits of the label of each token: (N, D) -> (N, labels)."""
        return self.output(dropout(x, self.config.dropout, self.training))

    def span(self, x: Tensor) -> Tensor:
        """The logits of the start and of the end of a span: (N, D) -> (N, 2)."""
        return self.output(x)
