"""GPT: a decoder-only language model (Radford et al. 2018, 2019).

Let N be tokens of a batch, B its sequences, R = B * beam the rows of a search, D the model width, V
the vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from transduct.blocks.attention import AttentionScheme, PromptState, self_attention, split_scheme
from transduct.blocks.embeddings import Embedding, VectorScheme, embedding_table, project
from transduct.blocks.sizes import Headed, Layers, Length, Size
from transduct.blocks.transformer import (
    Activation,
    EncoderLayer,
    LayerShape,
    NormKind,
    PromptDecoder,
    final_norm,
    initialise,
)
from transduct.models.base import Model
from transduct.records import Rate
from transduct.segments import Segments

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 512},
    "small": {"layers": 6, "d_model": 384, "num_heads": 6, "d_ff": 1536},
    "base": {"layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 3072},
}


@dataclass(frozen=True)
class Config(Headed):
    """The architecture of a GPT; the defaults are those of GPT-2.

    Attributes:
        positions: vector schemes are added to the embedding; rotary, alibi and relative act inside
            self-attention.
        tie: whether embedding and output projection share one table.
        max_length: the maximum number of tokens of a sequence.
    """

    vocabulary_size: Size
    d_model: Size = 768
    num_heads: Size = 12
    d_ff: Size = 3072
    layers: Layers = 12
    dropout: Rate = 0.1
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["none"] | VectorScheme | AttentionScheme = "learned"
    tie: bool = True
    activation: Activation = "gelu_tanh"
    norm_kind: NormKind = "layer"
    max_length: Length = 1024


class GPT(Model):
    """A decoder over segments: `hidden` and `logits` for whole sequences, `encode`, `start` and
    `step` for search.

    A search continues prompts: `encode` takes each prompt without its last token, which may leave
    it empty, and the first `step` takes that token.
    """

    captures_steps = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.attention_names = [f"decoder.{i}.self" for i in range(config.layers)]
        shape = LayerShape.of(config)
        table = embedding_table(config.vocabulary_size, config.d_model)
        vectors, _ = split_scheme(config.positions)
        self.embedding = Embedding(table, vectors, "add", config.max_length, config.dropout)
        self.decoder = PromptDecoder(
            EncoderLayer(
                shape,
                self_attention(
                    config.d_model,
                    config.num_heads,
                    config.positions,
                    config.max_length,
                ),
            )
            for _ in range(config.layers)
        )
        self.decoder_norm = final_norm(shape)
        self.output_table = (
            table if config.tie else embedding_table(config.vocabulary_size, config.d_model)
        )
        initialise(self)

    def hidden(
        self, tokens: Tensor, segments: Segments, weights: list[Tensor] | None = None
    ) -> Tensor:
        """Tokens (N,) -> hidden states (N, D), each of which predicts the next token."""
        return self.decoder_norm(
            self.decoder(self.embedding(tokens, segments.positions), segments, weights)
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, D) -> (N, V)."""
        return project(hidden, self.output_table)

    def encode(self, tokens: Tensor, segments: Segments) -> Tensor:
        """Prompts without their last tokens (N,) -> the inputs of all layers (layers, N, D)."""
        return self.decoder.inputs(self.embedding(tokens, segments.positions), segments)

    def start(self, memory: Tensor, segments: Segments, beam: int) -> PromptState:
        """Return the state before the last token of each prompt, with `beam` rows per prompt."""
        return self.decoder.start(memory, segments, beam)

    def step(self, tokens: Tensor, state: PromptState) -> tuple[Tensor, PromptState]:
        """The newest token of each row (R,) -> logits of the next (R, V), and the state after it.

        Finished rows may still be stepped with longer ones; their positions stop at the last one.
        """
        positions = state.positions.clamp(max=self.config.max_length - 1)
        x = self.decoder.step(self.embedding(tokens, positions), positions, state)
        return self.logits(self.decoder_norm(x)), state
