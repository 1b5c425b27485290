"""Decoders, and the states that search carries from token to token.

A decoder either reads the memory of an encoder, as the Transformer's does, or continues a prompt,
as GPT does. Let N be tokens of a batch, B its sources, R = B * beam the rows of a search, D the
model width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from transduct.blocks.caches import Ancestry, KVCache, Memory, standing_still
from transduct.blocks.transformer import DecoderLayer, EncoderLayer
from transduct.segments import Segments, sources_of

ONLY_DECODER: set[Any] = set()


def only_decoder(step: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a model's `step` that is `decoder.step` and nothing else.

    A faster search may then run the decoder by itself. A step that somebody overrides or replaces
    is another function, without the mark.
    """
    ONLY_DECODER.add(step)
    return step


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

    def start(self, memory: Tensor, segments: Segments, beam: int) -> "MemoryState":
        """Return the state before the first token, with `beam` rows for each source of the memory
        (N, D)."""
        memories = [
            cast(DecoderLayer, layer).cross_attention.remember(memory, segments) for layer in self
        ]
        return MemoryState(beam, [KVCache(beam) for _ in memories], memories, Ancestry(beam))

    def step(self, model: Any, tokens: Tensor, state: "MemoryState") -> Tensor:
        """The newest token of each row (R,) -> logits of the next (R, V).

        Args:
            model: has a `target_embedding`, a `decoder_norm` and `logits`.
        """
        state.ancestry.grow(len(tokens), tokens.device)
        x = model.target_embedding(tokens, state.positions)
        for layer, cache, memory in zip(self, state.caches, state.memories, strict=True):
            x = cast(DecoderLayer, layer).step(x, cache, memory, state.ancestry)
        state.count_step()
        return model.logits(model.decoder_norm(x))


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

    def start(self, inputs: Tensor, segments: Segments, beam: int) -> "PromptState":
        """Return the state after the prompts, with `beam` rows for each, from their `inputs`
        (layers, N, D)."""
        prompts = [
            cast(EncoderLayer, layer).remember_prompt(x, segments)
            for layer, x in zip(self, inputs, strict=True)
        ]
        return PromptState(
            beam, [KVCache(beam) for _ in prompts], prompts, Ancestry(beam), segments.lengths
        )

    def step(self, x: Tensor, positions: Tensor, state: "PromptState") -> Tensor:
        """Run the newest token of each row, at `positions` (R,), through all layers: (R, D) -> (R,
        D)."""
        state.ancestry.grow(len(x), x.device)
        for layer, cache, prompt in zip(self, state.caches, state.memories, strict=True):
            x = cast(EncoderLayer, layer).step(x, positions, cache, prompt, state.ancestry)
        return x


@dataclass
class State:
    """The state of a search: for each layer a KV cache and a memory, and the ancestry of the
    rows."""

    beam: int
    caches: list[KVCache]
    memories: list[Memory]
    ancestry: Ancestry

    @property
    def length(self) -> int:
        """The number of tokens in each row; valid for growing buffers only."""
        return self.caches[0].length

    def select(self, rows: Tensor) -> None:
        """Keep these rows (R',), in this order: of each source all `beam` rows or, once it is
        finished, none."""
        if len(rows) < len(self.memories[0].keys) * self.beam:
            self.select_sources(sources_of(rows, self.beam))
        self.ancestry.select(rows)

    def select_sources(self, sources: Tensor) -> None:
        """Keep these sources, in this order."""
        self.memories = [memory.select(sources) for memory in self.memories]
        still = standing_still(sources)
        for cache in self.caches:
            cache.select(sources, still)


@dataclass
class MemoryState(State):
    """The state of a decoder that reads the memory of an encoder.

    Attributes:
        fixed_shapes: whether its caches have the shapes of a captured graph, in which the host does
            not know how many tokens there are.
        steps: the prepared kernel calls of a `FusedDecoder`.
    """

    fixed_shapes: ClassVar[bool] = False
    steps: Any = None

    def count_step(self) -> None:
        """Count a finished step; here nothing, because growing caches know their length."""

    @property
    def positions(self) -> Tensor:
        """(R,) the position of the next token of each row."""
        keys = self.memories[0].keys
        return self.caches[0].positions(len(keys) * self.beam, keys.device)


@dataclass
class PromptState(State):
    """The state of a decoder without an encoder: its memories are those of the prompts.

    Attributes:
        lengths: (B,) the length of each prompt.
    """

    lengths: Tensor

    @property
    def positions(self) -> Tensor:
        """(R,) the position of the next token of each row, counted from the start of its prompt."""
        return self.lengths.repeat_interleave(self.beam) + self.length

    def select_sources(self, sources: Tensor) -> None:
        """Keep these sources, in this order."""
        super().select_sources(sources)
        self.lengths = self.lengths.index_select(0, sources)
