"""The recurrent encoder-decoder with attention (Bahdanau et al. 2015; Luong et al. 2015) or without
(Cho et al. 2014).

Let N be source tokens and M target tokens of a batch, B its sources, R = B * beam the rows of a
search, V the target vocabulary. Embeddings and output have the width `d_model`, the memory and the
decoder's states `d_hidden`.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from transduct.blocks.attention import Memory
from transduct.blocks.embeddings import embedding_table, project, require_shared
from transduct.blocks.linear import Linear
from transduct.blocks.recurrent import (
    CELLS,
    CellKind,
    Recurrent,
    RecurrentAttention,
    RecurrentLayer,
    Schedule,
    ScoreKind,
)
from transduct.blocks.sizes import LONGEST, Layers, Length, Size
from transduct.blocks.transformer import initialise
from transduct.functional.dropout import dropout
from transduct.functional.lookup import lookup
from transduct.models.base import Model
from transduct.records import Checked, Probability, Range, Rate, refuse_if
from transduct.segments import Segments, flatten, pad, sources_of

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 128, "d_hidden": 256},
    "small": {"d_model": 256, "d_hidden": 512},
    "base": {"d_model": 512, "d_hidden": 1024, "encoder_layers": 2, "decoder_layers": 2},
}


@dataclass(frozen=True)
class Config(Checked):
    """The architecture of an RNN; the named `SIZES` change some defaults.

    Attributes:
        d_model: the width of the embeddings and of the output.
        d_hidden: the width of the decoder's state and of the memory; d_model by default.
        cell: the recurrent cell of encoder and decoder.
        memory_span: over about how many tokens an untrained LSTM remembers: its forget gates start
            that far open (Tallec and Ollivier 2018). By default their biases start at 1.
        bidirectional: whether the encoder reads in both directions, with half of d_hidden for each.
        attention: Luong's ("dot", "general", "concat"), Bahdanau's ("additive"), or "none": the
            source is one vector.
        scheduled_sampling: the probability of replacing a training token by the model's own
            prediction (Bengio et al. 2015).
        tie: which tables are shared. "all" is both embeddings and the output, "decoder" the target
            embedding and the output. "all" needs a shared vocabulary. Without one, "decoder" is the
            default of a recipe.
        max_length: the maximum number of tokens of a sequence, including its end.
    """

    source_size: Size
    target_size: Size
    d_model: Size = 256
    d_hidden: Size | None = None
    encoder_layers: Layers = 1
    decoder_layers: Layers = 1
    cell: CellKind = "gru"
    memory_span: Annotated[int, Range(2, LONGEST)] | None = None
    bidirectional: bool = True
    attention: Literal["none"] | ScoreKind = "general"
    dropout: Rate = 0.1
    scheduled_sampling: Probability = 0.0
    tie: Literal["all", "decoder", "none"] = "all"
    max_length: Length = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.bidirectional and self.width % 2,
            f"d_hidden is {self.width}, must be even: each of two directions has half of it",
        )
        refuse_if(
            self.memory_span is not None and self.cell != "lstm",
            f"memory_span is {self.memory_span}, but a {self.cell} cell has no forget gates; leave "
            "it out or set cell to lstm",
        )
        require_shared(self)

    @property
    def width(self) -> int:
        """d_hidden or its default."""
        return self.d_hidden or self.d_model


@dataclass
class DecoderState:
    """The state of a search: each layer's state for each row, and a memory for each source."""

    beam: int
    layers: list[Tensor]
    memory: Memory

    def select(self, rows: Tensor) -> None:
        """Keep these rows (R',), in this order: of each source all `beam` rows or, once it is
        finished, none."""
        if len(rows) < len(self.layers[0]):
            self.memory = self.memory.select(sources_of(rows, self.beam))
        self.layers = [layer.index_select(0, rows) for layer in self.layers]


class RNN(Model):
    """Encoder and decoder over segments: `encode`, `decode`, and `start` and `step` for search.

    The decoder is initialised from the encoder's last states, through a tanh layer. Luong's
    attention comes after the recurrence, so that teacher forcing needs no loop besides the
    recurrence itself; Bahdanau's comes before, and its context is concatenated to the token.
    Without attention, the context of every token is the encoder's last states (Cho et al. 2014).
    The six steps of attention are numbered in the code: 1 to 3 in `RecurrentAttention`, 4 to 6
    here.
    """

    captures_steps = True  # its loops have a fixed length for each shape of a batch

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, width, rate = config, config.width, config.dropout
        self.attention_names = [] if config.attention == "none" else ["decoder.0.cross"]
        self.context_before = config.attention in ("none", "additive")
        self.target_table = embedding_table(config.target_size, config.d_model)
        own_source, own_output = config.tie != "all", config.tie == "none"
        self.source_table = (
            embedding_table(config.source_size, config.d_model) if own_source else self.target_table
        )
        self.output_table = (
            embedding_table(config.target_size, config.d_model) if own_output else self.target_table
        )
        one_way, layers = width // (1 + config.bidirectional), config.encoder_layers
        self.encoder = Recurrent(
            config.cell, config.d_model, one_way, layers, config.bidirectional, rate
        )
        inputs = config.d_model + (width if self.context_before else 0)
        self.decoder = Recurrent(config.cell, inputs, width, config.decoder_layers, rate=rate)
        # Without attention the memory has a single position, whose weight is one whatever the
        # score.
        self.attention = RecurrentAttention(
            "dot" if config.attention == "none" else config.attention, width
        )
        self.bridge = Linear(width, config.decoder_layers * CELLS[config.cell].states * width)
        self.output = Linear(2 * width, config.d_model)
        initialise(self)
        if config.memory_span is not None:
            for layer in (*self.encoder.layers, *self.decoder.layers):
                cast(RecurrentLayer, layer).remember(config.memory_span)

    def encode(
        self,
        tokens: Tensor,
        segments: Segments,
        weights: list[Tensor] | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Source tokens (N,) -> memory (N, d_hidden); the encoder has no attention weights."""
        return self.encoder(self._embed(self.source_table, tokens), segments)

    def decode(
        self,
        tokens: Tensor,
        segments: Segments,
        memory: Tensor,
        memory_segments: Segments,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Target tokens (M,), memory (N, d_hidden) -> hidden (M, d_model), each of which predicts
        the next token."""
        state = self.start(memory, memory_segments, 1)
        sampled = self.training and self.config.scheduled_sampling > 0.0
        follow = (
            self._follow if sampled or self.config.attention == "additive" else self._follow_at_once
        )
        h, context = follow(tokens, segments, state, weights if self.attention_names else None)
        return self._hidden(h, context)

    def logits(self, hidden: Tensor) -> Tensor:
        """(M, d_model) -> (M, V)."""
        return project(hidden, self.output_table)  # 6. prediction

    def start(self, memory: Tensor, segments: Segments, beam: int) -> DecoderState:
        """Return the state before the first token, with `beam` rows for each source."""
        summary = self._summary(memory, segments)  # (B, d_hidden)
        # (R, all states)
        begin = self.bridge(summary).tanh().to(memory.dtype).repeat_interleave(beam, 0)
        if self.config.attention == "none":
            place = summary[:, None, None]  # (B, 1, 1, d_hidden)
            attended = Memory(place, place, None)
        else:
            attended = self.attention.remember(memory, segments)
        return DecoderState(beam, list(begin.chunk(self.config.decoder_layers, -1)), attended)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """The newest token of each row (R,) -> logits of the next (R, V), and the state after
        it."""
        h, context, layers = self._advance(
            self._embed(self.target_table, tokens), state.layers, state.memory
        )
        return self.logits(self._hidden(h, context)), replace(state, layers=layers)

    def _embed(self, table: Tensor, tokens: Tensor) -> Tensor:
        x = lookup(table, tokens) * math.sqrt(self.config.d_model)  # (N, d_model)
        return dropout(x, self.config.dropout, self.training)

    def _summary(self, memory: Tensor, segments: Segments) -> Tensor:
        """The last state of each encoder direction, zeros for an empty source: (N, d_hidden) -> (B,
        d_hidden)."""
        outside = torch.full_like(segments.lengths, len(memory))
        last = torch.where(segments.lengths > 0, segments.offsets[1:] - 1, outside)
        first = torch.where(segments.lengths > 0, segments.offsets[:-1], outside)
        memory = F.pad(memory, (0, 0, 0, 1))  # the row of zeros that empty sources read
        if not self.config.bidirectional:
            return memory.index_select(0, last)
        from_left, from_right = memory.chunk(2, -1)  # (N, d_hidden / 2) each
        return torch.cat((from_left.index_select(0, last), from_right.index_select(0, first)), -1)

    def _look(self, h: Tensor, memory: Memory, weights: list[Tensor] | None = None) -> Tensor:
        """The contexts of states (R, d_hidden), of which each source has the same number."""
        queries = h.view(len(memory.keys), 1, -1, h.shape[-1])  # (B, 1, beam, d_hidden)
        return self.attention(queries, memory, weights).view(h.shape)  # (R, d_hidden)

    def _hidden(self, h: Tensor, context: Tensor) -> Tensor:
        """States and contexts, (M, d_hidden) each -> hidden states (M, d_model)."""
        concatenated = torch.cat((context, h), -1)  # 4. concatenation [c_t; h_t]
        hidden = self.output(concatenated).tanh()  # 5. output layer
        return dropout(hidden, self.config.dropout, self.training)

    def _advance(
        self, x: Tensor, layers: list[Tensor], memory: Memory, weights: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """One embedded token per row (R, d_model) -> state and context (R, d_hidden), and the
        states of all layers."""
        if self.context_before:
            context = self._look(layers[-1][:, : self.config.width], memory, weights)
            h, layers = self.decoder.step(torch.cat((x, context), -1), layers)
        else:
            h, layers = self.decoder.step(x, layers)
            context = self._look(h, memory, weights)
        return h, context, layers

    def _follow_at_once(
        self, tokens: Tensor, segments: Segments, state: DecoderState, weights: list[Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """States and contexts (M, d_hidden) of all target tokens at once, if no state depends on a
        context."""
        x = self._embed(self.target_table, tokens)
        if self.context_before:  # the same for all tokens of a source
            x = torch.cat((x, state.memory.values[:, 0, 0].index_select(0, segments.sequence)), -1)
        h = self.decoder(x, segments, state.layers)
        # (B, 1, T, d_hidden)
        contexts = self.attention(pad(h, segments).unsqueeze(1), state.memory, weights)
        return h, flatten(contexts.squeeze(1), segments)  # (M, d_hidden) each

    def _follow(
        self, tokens: Tensor, segments: Segments, state: DecoderState, weights: list[Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """The same, one time step after the other; with scheduled sampling some tokens are replaced
        by predictions."""
        schedule, rate = (
            Schedule.of(segments),
            self.config.scheduled_sampling if self.training else 0.0,
        )
        memory, layers = (
            state.memory.select(schedule.order),
            [x.index_select(0, schedule.order) for x in state.layers],
        )
        embedded = self._embed(self.target_table, tokens)
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        looks: list[Tensor] = []
        for time, x in enumerate(schedule.by_time(embedded)):  # (B_t, d_model)
            if len(x) < len(memory.keys):  # some targets have ended
                memory = memory.select(torch.arange(len(x), device=x.device))
                layers = [layer[: len(x)] for layer in layers]
            if rate and time:
                with torch.no_grad():  # the model's own most likely tokens, (B_t,)
                    hidden = self._hidden(states[-1][: len(x)], contexts[-1][: len(x)])
                    predicted = self.logits(hidden).argmax(-1)
                replaced = torch.rand(len(x), 1, device=x.device) < rate
                x = torch.where(replaced, self._embed(self.target_table, predicted), x)
            h, context, layers = self._advance(x, layers, memory, looks)
            states.append(h)
            contexts.append(context)
        back = schedule.back
        if weights is not None:
            flat = torch.cat(looks).flatten(1).index_select(0, back)  # (M, S)
            weights.append(pad(flat, segments).unsqueeze(1))  # (B, 1, T, S)
        return torch.cat(states).index_select(0, back), torch.cat(contexts).index_select(0, back)
