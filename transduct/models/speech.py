"""Speech to text: a Transformer over filterbanks with a convolutional stem, and a CTC head next to
its decoder.

The stem reduces the frame rate by four (Wang et al. 2020), positions are rotary (Su et al. 2021),
and CTC on the encoder is trained jointly with the attention decoder (Watanabe et al. 2017). Let N
be the frames or encoder tokens of a batch, M its target tokens (in filterbanks: the mel bins), B
its utterances, R = B * beam the rows of a search, D the model width, V the vocabulary.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from torch import Tensor, nn

from transduct.blocks.attention import MultiHeadAttention, self_attention
from transduct.blocks.embeddings import (
    Embedding,
    FilterbankStem,
    GroupedLinear,
    embedding_table,
)
from transduct.blocks.linear import Linear
from transduct.blocks.sizes import LONGEST, Headed, Layers, LayersOrNone, Size
from transduct.blocks.transformer import (
    Activation,
    Decoder,
    DecoderLayer,
    DecoderSteps,
    Encoder,
    EncoderLayer,
    LayerShape,
    final_norm,
    initialise,
    names_of_attention,
)
from transduct.functional.dropout import dropout
from transduct.models.base import Model
from transduct.records import Range, Rate, refuse_if
from transduct.segments import Segments

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"encoder_layers": 4, "decoder_layers": 2, "d_model": 128, "num_heads": 4, "d_ff": 512},
    "small": {
        "encoder_layers": 12,
        "decoder_layers": 6,
        "d_model": 256,
        "num_heads": 4,
        "d_ff": 2048,
    },
    "base": {
        "encoder_layers": 12,
        "decoder_layers": 6,
        "d_model": 512,
        "num_heads": 8,
        "d_ff": 2048,
    },
}


@dataclass(frozen=True)
class Config(Headed):
    """The architecture of a speech recogniser; the named `SIZES` change some defaults.

    Attributes:
        bands: M, the number of mel bins of the filterbanks.
        stem_layers: the number of residual convolutions in the stem.
        heads: with "bands" each attention head of the first layer sees only its own share of the
            bands, with "all" every head sees all of them.
        max_length: the maximum number of tokens of a text, including its end.
    """

    vocabulary_size: Size
    bands: Size = 80
    d_model: Size = 256
    num_heads: Size = 4
    d_ff: Size = 2048
    encoder_layers: Layers = 12
    decoder_layers: Layers = 6
    dropout: Rate = 0.1
    norm: Literal["pre", "post"] = "pre"
    activation: Activation = "relu"
    stem_layers: LayersOrNone = 3
    heads: Literal["all", "bands"] = "all"
    max_length: Annotated[int, Range(1, LONGEST)] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.heads == "bands" and self.bands % self.num_heads,
            f"bands is {self.bands}, must be a multiple of num_heads {self.num_heads} for "
            "heads=bands",
        )

    @property
    def groups(self) -> int:
        """The number of groups of bands that stay separate up to the first layer."""
        return self.num_heads if self.heads == "bands" else 1


class Speech(DecoderSteps, Model):
    """Encoder, decoder and CTC head over segments: `encode`, `ctc`, `decode`, and `start` and
    `step` for search."""

    captures_steps = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.attention_names = names_of_attention(config.encoder_layers, config.decoder_layers)
        shape = LayerShape(
            config.d_model, config.d_ff, config.dropout, config.activation, config.norm, "layer"
        )

        def rotary() -> MultiHeadAttention:
            return self_attention(config.d_model, config.num_heads, "rotary", config.max_length)

        self.stem = FilterbankStem(config.bands, config.d_model, config.stem_layers, config.groups)
        self.encoder = Encoder(EncoderLayer(shape, rotary()) for _ in range(config.encoder_layers))
        self.decoder = Decoder(
            DecoderLayer(shape, rotary(), MultiHeadAttention(config.d_model, config.num_heads))
            for _ in range(config.decoder_layers)
        )
        self.encoder_norm, self.decoder_norm = final_norm(shape), final_norm(shape)
        self.output_table = embedding_table(config.vocabulary_size, config.d_model)
        self.target_embedding = Embedding(
            self.output_table, None, "add", config.max_length, config.dropout
        )
        self.output_bias = None
        self.ctc_head = Linear(config.d_model, config.vocabulary_size)
        initialise(self)
        if config.heads == "bands":
            self._part_bands()

    def _part_bands(self) -> None:
        """Restrict the queries, keys and values of each head of the first layer to the channels of
        its own bands."""
        width, groups = self.config.d_model, self.config.groups
        first = cast(EncoderLayer, self.encoder[0])
        for name in ("query", "key", "value"):
            setattr(first.self_attention, name, GroupedLinear(width, width, groups))
        if self.config.norm == "pre":  # a norm over all channels would show each head all bands
            first.around_attention.norm = nn.GroupNorm(groups, width)

    def encode(
        self, features: Tensor, segments: Segments, weights: list[Tensor] | None = None
    ) -> tuple[Tensor, Segments]:
        """Filterbanks (N, M), each a multiple of four frames -> memory (N / 4, D) and its
        segments."""
        x, segments = self.stem(features, segments)
        x = dropout(x, self.config.dropout, self.training)
        return self.encoder_norm(self.encoder(x, segments, weights)), segments

    def ctc(self, memory: Tensor) -> Tensor:
        """Memory (N, D) -> log-probabilities (N, V) of the token in each frame; the begin token is
        the blank."""
        return self.ctc_head(memory).float().log_softmax(-1)  # (N, V)
