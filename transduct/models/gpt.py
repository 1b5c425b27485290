"""GPT: a decoder alone, which goes on from what it has read (Radford et al. 2018, 2019).

Let N be tokens of a batch, B its sequences, R = B * beam the rows of a search, D the model width, V the vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from transduct.blocks.attention import AttentionScheme, MultiHeadAttention, positions_inside, split_scheme
from transduct.blocks.decoders import PromptState, layer_inputs
from transduct.blocks.embeddings import Embedding, VectorScheme
from transduct.blocks.sizes import require_heads, require_rate, require_size
from transduct.blocks.tables import embedding_table, project
from transduct.blocks.transformer import Activation, EncoderLayer, LayerShape, NormKind, initialise, make_norm
from transduct.functional.segments import Segments

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 512},
    "small": {"layers": 6, "d_model": 384, "num_heads": 6, "d_ff": 1536},
    "base": {"layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 3072},
}


@dataclass(frozen=True)
class Config:
    """What a GPT is made of; the defaults are GPT-2's, for a vocabulary and a length of one's own.

    Attributes:
        positions: vector schemes are added to the embedding; rotary, alibi and relative act inside self-attention.
        tie: whether the embedding is the output table too.
        max_length: tokens of the longest sequence.
    """

    vocabulary_size: int
    d_model: int = 768
    num_heads: int = 12
    d_ff: int = 3072
    layers: int = 12
    dropout: float = 0.1
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["none"] | VectorScheme | AttentionScheme = "learned"
    tie: bool = True
    activation: Activation = "gelu_tanh"
    norm_kind: NormKind = "layer"
    max_length: int = 1024

    def __post_init__(self) -> None:
        require_size(1, self, "vocabulary_size", "d_model", "num_heads", "d_ff", "layers")
        require_size(2, self, "max_length")  # a token, and the one before it
        require_rate(self, "dropout")
        require_heads(self)


class GPT(nn.Module):
    """A decoder over segments: `hidden` and `logits` at once, or `encode`, `start` and `step` for search.

    A search goes on from prompts: `encode` is given each without its last token, possibly none at all, and the first
    `step` is given that token.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        shape = LayerShape.of(config)
        table = embedding_table(config.vocabulary_size, config.d_model)
        vectors, _ = split_scheme(config.positions)
        self.embedding = Embedding(table, vectors, "add", config.max_length, config.dropout)
        self.decoder = nn.ModuleList(EncoderLayer(shape, self._attention()) for _ in range(config.layers))
        self.decoder_norm = make_norm(shape) if config.norm == "pre" else nn.Identity()
        self.output_table = table if config.tie else embedding_table(config.vocabulary_size, config.d_model)
        initialise(self)

    @property
    def attention_names(self) -> list[str]:
        """The names of the weights that `hidden` hands over, in order."""
        return [f"decoder.{i}.self" for i in range(self.config.layers)]

    def hidden(self, tokens: Tensor, segments: Segments, weights: list[Tensor] | None = None) -> Tensor:
        """Tokens (N,) -> hidden (N, D); each predicts the token after it."""
        x = self.embedding(tokens, segments.positions)
        for layer in self.decoder:
            x = layer(x, segments, causal=True, weights=weights)
        return self.decoder_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, D) -> (N, V)."""
        return project(hidden, self.output_table)

    def encode(self, tokens: Tensor, segments: Segments) -> Tensor:
        """Prompts without their last tokens (N,) -> what each layer is given of them (layers, N, D)."""
        return layer_inputs(self.decoder, self.embedding(tokens, segments.positions), segments)

    def start(self, memory: Tensor, segments: Segments, beam: int) -> PromptState:
        """The state before the last tokens of the prompts, with `beam` rows for each."""
        return PromptState.start(self.decoder, memory, segments, beam)

    def step(self, tokens: Tensor, state: PromptState) -> tuple[Tensor, PromptState]:
        """The newest token of each row (R,) -> logits of the next (R, V), and the state after it.

        A row that is finished may be stepped on beside longer ones; it stays at the last position there is.
        """
        positions = state.positions.clamp(max=self.config.max_length - 1)
        x = state.step(self.decoder, self.embedding(tokens, positions), positions)
        return self.logits(self.decoder_norm(x)), state

    def _attention(self) -> MultiHeadAttention:
        config = self.config
        inside = positions_inside(config.positions, config.max_length, config.d_model, config.num_heads)
        return MultiHeadAttention(config.d_model, config.num_heads, positions=inside)
