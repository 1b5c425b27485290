"""DALL-E: a discrete VAE that turns pictures into grids of codes, and a decoder that continues a
text with such codes.

Ramesh et al. 2021; the codes are learned by Gumbel-softmax as there, or by vector quantisation (van
den Oord et al. 2017). Let N be the tokens of a batch, B its sequences, P the cells of a picture's
grid, R = B * beam the rows of a search, D the model width, V the number of codes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduct.blocks.attention import MultiHeadAttention, PromptState
from transduct.blocks.convolution import Backbone, ResidualBlock, convolution, group_norm
from transduct.blocks.embeddings import embedding_table
from transduct.blocks.sizes import LONGEST, Headed, Layers, Side, Size, require_channels
from transduct.blocks.transformer import (
    Activation,
    EncoderLayer,
    LayerShape,
    NormKind,
    PromptDecoder,
    final_norm,
    initialise,
)
from transduct.functional.dropout import dropout
from transduct.functional.lookup import lookup
from transduct.functional.losses import (
    divergence_from_uniform,
    gumbel_softmax,
    nearest_codes,
    vector_quantise,
)
from transduct.models.base import Model
from transduct.records import Checked, NotNegative, Range, Rate
from transduct.segments import Segments

CODES_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"channels": [16, 64], "codes": 256, "d_code": 8},
    "small": {"channels": [64, 128], "codes": 512, "d_code": 16},
    "base": {"channels": [128, 256, 512], "codes": 8192, "d_code": 32},
}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 512},
    "small": {"layers": 6, "d_model": 384, "num_heads": 6, "d_ff": 1536},
    "base": {"layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 3072},
}


@dataclass(frozen=True)
class CodesConfig(Checked):
    """The architecture of a discrete VAE.

    Attributes:
        picture_size: the side of a picture in pixels.
        channels: of each level of the encoder; every level halves the resolution, the last yields
            the grid of codes.
        codes: the number of codes.
        d_code: the width of a code's vector.
        quantiser: how a cell gets its code: the nearest vector ("vq"), or a sample by
            Gumbel-softmax ("gumbel").
        beta: with "vq" the weight of the commitment loss, with "gumbel" that of the KL divergence
            from the uniform distribution.
    """

    picture_size: Side = 64
    channels: list[int] = field(default_factory=lambda: [64, 128])
    codes: Size = 512
    d_code: Size = 32
    quantiser: Literal["vq", "gumbel"] = "vq"
    beta: NotNegative = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        require_channels(self, "channels")
        if self.picture_size % 2 ** len(self.channels):
            divisor = f"{2 ** len(self.channels)} for {len(self.channels)} levels"
            raise ValueError(
                f"picture_size is {self.picture_size}, must be a multiple of {divisor}"
            )

    @property
    def side(self) -> int:
        """The side of the grid in codes."""
        return self.picture_size // 2 ** len(self.channels)

    @property
    def places(self) -> int:
        """P, the number of cells of the grid."""
        return self.side**2


class DiscreteVAE(Model):
    """Encodes pictures as codes and decodes them: a convolutional encoder, a codebook and a
    convolutional decoder."""

    captures_steps = True

    def __init__(self, config: CodesConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Backbone(config.channels)
        self.to_codes = convolution(
            config.channels[-1], config.codes if self._gumbel else config.d_code, 1
        )
        self.codebook = embedding_table(config.codes, config.d_code)
        self.decoder = nn.Sequential(*_decoder(config))

    def forward(self, pictures: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruct pictures from their codes.

        Args:
            pictures: (B, 3, height, width), from -1 to 1.
            temperature: of the Gumbel-softmax.

        Returns:
            The reconstructions (B, 3, height, width), the codes (B, P), and the loss of the
            quantiser, summed over the codes.
        """
        features = self._features(pictures)
        # distances and low temperatures need full precision
        with torch.autocast(pictures.device.type, enabled=False):
            vectors, codes, penalty = self._quantised(features.float(), temperature)
        return self._pictures(vectors), codes.view(len(pictures), -1), penalty

    def encode(self, pictures: Tensor) -> Tensor:
        """Pictures (B, 3, height, width) from -1 to 1 -> their codes, row by row, (B, P)."""
        features = self._features(pictures)
        codes = features.argmax(1) if self._gumbel else nearest_codes(features, self.codebook)
        return codes.view(len(pictures), -1)  # (B, P)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (B, P) -> pictures (B, 3, height, width), from about -1 to 1."""
        return self._pictures(lookup(self.codebook, codes.flatten()))  # (B, 3, height, width)

    @property
    def _gumbel(self) -> bool:
        return self.config.quantiser == "gumbel"

    def _features(self, pictures: Tensor) -> Tensor:
        """(B, 3, height, width) -> vectors (B * P, d_code) or, with "gumbel", logits of the codes
        (B * P, V)."""
        return self.to_codes(self.encoder(pictures)).permute(0, 2, 3, 1).flatten(0, 2)  # (B * P, C)

    def _pictures(self, vectors: Tensor) -> Tensor:
        """(B * P, d_code) -> (B, 3, height, width)."""
        side = self.config.side
        # (B, C, side, side)
        grid = vectors.view(-1, side, side, self.config.d_code).permute(0, 3, 1, 2)
        return self.decoder(grid.contiguous())

    def _quantised(self, features: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        if not self._gumbel:
            return vector_quantise(features, self.codebook, self.config.beta)
        shares = gumbel_softmax(features, temperature)  # (B * P, V)
        return (
            shares @ self.codebook,
            features.argmax(1),
            self.config.beta * divergence_from_uniform(features).sum(),
        )


def _decoder(config: CodesConfig) -> Iterator[nn.Module]:
    """The levels of the encoder in reverse; pixel shuffle doubles the resolution (Shi et al.
    2016)."""
    widths = config.channels[::-1]
    yield convolution(config.d_code, widths[0], 1)
    for width, narrower in zip(widths, [*widths[1:], widths[-1]]):
        yield ResidualBlock(width, width)
        yield group_norm(width)
        yield nn.SiLU()
        yield convolution(width, 4 * narrower, 3)
        yield nn.PixelShuffle(2)
    yield group_norm(widths[-1])
    yield nn.SiLU()
    yield convolution(widths[-1], 3, 3)


@dataclass(frozen=True)
class Config(Headed):
    """The architecture of a DALL-E.

    Attributes:
        vocabulary_size: of the texts.
        max_length: the maximum number of tokens of a text.
        vae: the discrete VAE, whose weights are frozen.
    """

    vocabulary_size: Size
    vae: CodesConfig
    max_length: Annotated[int, Range(1, LONGEST)] = 64
    d_model: Size = 384
    num_heads: Size = 6
    d_ff: Size = 1536
    layers: Layers = 6
    dropout: Rate = 0.1
    norm: Literal["pre", "post"] = "pre"
    activation: Activation = "gelu_tanh"
    norm_kind: NormKind = "layer"

    @property
    def begin(self) -> int:
        """The token between text and picture. Codes are the smaller ids, words of the text the
        larger ones."""
        return self.vae.codes


class DALLE(Model):
    """A decoder over a text, the token `begin` and the codes of its picture, each predicted from
    all before it.

    `hidden` and `logits` take whole sequences. In a search, `encode` takes the texts and the first
    `step` the token `begin`. It always ends after P codes: `begin` also serves as the end token,
    which is never predicted.
    """

    captures_steps = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.attention_names = [f"decoder.{i}.self" for i in range(config.layers)]
        shape = LayerShape.of(config)
        width = config.d_model
        self.table = embedding_table(config.begin + 1 + config.vocabulary_size, width)
        self.row_positions = embedding_table(config.vae.side, width)
        self.column_positions = embedding_table(config.vae.side, width)
        self.text_positions = embedding_table(config.max_length, width)
        self.decoder = PromptDecoder(
            EncoderLayer(shape, MultiHeadAttention(width, config.num_heads))
            for _ in range(config.layers)
        )
        self.decoder_norm = final_norm(shape)
        initialise(self)
        self.vae = DiscreteVAE(config.vae).requires_grad_(False)

    @property
    def output_table(self) -> Tensor:
        """(V, D): only codes are predicted."""
        return self.table[: self.config.begin]

    def hidden(
        self, tokens: Tensor, segments: Segments, weights: list[Tensor] | None = None
    ) -> Tensor:
        """Texts, `begin` and codes (N,) -> hidden states (N, D); from `begin` on, each predicts the
        next code."""
        words = (tokens > self.config.begin).long()
        before = F.pad(words.cumsum(0), (1, 0)).index_select(0, segments.offsets)  # (B + 1,)
        x = self._embedded(tokens, segments.positions - before.diff()[segments.sequence])
        return self.decoder_norm(self.decoder(x, segments, weights))

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, D) -> (N, V + 1); the last logit, that of `begin`, is minus infinity."""
        return F.pad(F.linear(hidden, self.output_table), (0, 1), value=float("-inf"))

    def encode(self, tokens: Tensor, segments: Segments) -> Tensor:
        """Texts (N,) -> the inputs of all layers (layers, N, D)."""
        places = segments.positions - segments.lengths[segments.sequence]
        return self.decoder.inputs(self._embedded(tokens, places), segments)

    def start(self, memory: Tensor, segments: Segments, beam: int) -> PromptState:
        """Return the state before `begin`, with `beam` rows for each text."""
        return self.decoder.start(memory, segments, beam)

    def step(self, tokens: Tensor, state: PromptState) -> tuple[Tensor, PromptState]:
        """The newest token of each row (R,) -> logits of the next (R, V + 1), and the state after
        it."""
        places = torch.full_like(tokens, state.length)
        x = self.decoder.step(self._embedded(tokens, places), places, state)
        return self.logits(self.decoder_norm(x)), state

    def _embedded(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Embed tokens (N,) at `places` relative to `begin`, whose place is 0: -> (N, D).

        A word has a position vector, counted from the end of its text; a code has one for its row
        and one for its column; `begin` has none.
        """
        grid = (self.row_positions[:, None] + self.column_positions).flatten(0, 1)  # (P, D)
        # (max_length + 1 + P, D)
        vectors = torch.cat((self.text_positions, torch.zeros_like(grid[:1]), grid))
        x = lookup(self.table, tokens) * self.config.d_model**0.5
        x = x + lookup(vectors, places + self.config.max_length).to(x.dtype)
        return dropout(x, self.config.dropout, self.training)


def guided_logits(unconditional: Tensor, conditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance, u + scale (c - u) of logits u without and c with a text (Ho and
    Salimans 2022): 0 ignores the text, 1 changes nothing, more than 1 exaggerates the text."""
    return unconditional.lerp(conditional, scale)


@dataclass
class GuidedState:
    """The states of a guided search: rows with their texts, and the same rows without."""

    conditional: PromptState
    unconditional: PromptState

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self.conditional.select(rows)
        self.unconditional.select(rows)


class Guided(Model):
    """A DALL-E with classifier-free guidance; see `guided_logits`."""

    def __init__(self, model: DALLE, scale: float) -> None:
        super().__init__()
        self.model, self.scale = model, scale

    def encode(self, tokens: Tensor, segments: Segments) -> Tensor:
        """Texts (N,) -> the inputs of all layers (layers, N, D)."""
        return self.model.encode(tokens, segments)

    def start(self, memory: Tensor, segments: Segments, beam: int) -> GuidedState:
        """Return the states before `begin`, with `beam` rows for each text."""
        empty = Segments.of([0] * len(segments), memory.device)
        unconditional = self.model.start(memory[:, :0], empty, beam)
        return GuidedState(self.model.start(memory, segments, beam), unconditional)

    def step(self, tokens: Tensor, state: GuidedState) -> tuple[Tensor, GuidedState]:
        """The newest token of each row (R,) -> logits of the next (R, V + 1), and the state after
        it."""
        conditional, _ = self.model.step(tokens, state.conditional)
        unconditional, _ = self.model.step(tokens, state.unconditional)
        mixed = guided_logits(unconditional[:, :-1], conditional[:, :-1], self.scale)
        return F.pad(mixed, (0, 1), value=float("-inf")), state
