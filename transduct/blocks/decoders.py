"""What search carries through the layers of a decoder, from token to token.

A decoder reads a memory beside itself, as the Transformer's, or goes on from a prompt, as GPT's. Let N be tokens of a
batch, B its sources, R = B * beam the rows of a search, D the model width.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from transduct.blocks.attention import KVCache, Lineage, Memory
from transduct.blocks.transformer import DecoderLayer, EncoderLayer
from transduct.functional.segments import Segments


class Decoder(nn.ModuleList):
    """The layers of a decoder that reads a memory beside itself."""

    def step(self, model: Any, tokens: Tensor, state: "MemoryState") -> Tensor:
        """The newest token of each row (R,) -> logits of the next (R, V).

        The model has, around these layers, a `target_embedding`, a `decoder_norm` and `logits`.
        """
        state.lineage.grow(len(tokens), tokens.device)
        x = model.target_embedding(tokens, torch.full_like(tokens, state.length))
        for layer, cache, memory in zip(self, state.caches, state.memories, strict=True):
            x = cast(DecoderLayer, layer).step(x, cache, memory, state.lineage)
        return model.logits(model.decoder_norm(x))


@dataclass
class MemoryState:
    """A cache a layer of what the rows have written, a memory a layer of each source, and who descends from whom."""

    beam: int
    caches: list[KVCache]
    memories: list[Memory]
    lineage: Lineage

    @classmethod
    def start(cls, decoder: Decoder, memory: Tensor, segments: Segments, beam: int) -> "MemoryState":
        """The state before the first token, with `beam` rows for each source of the memory (N, D)."""
        memories = [cast(DecoderLayer, layer).cross_attention.remember(memory, segments) for layer in decoder]
        return cls(beam, [KVCache(beam) for _ in memories], memories, Lineage(beam))

    @property
    def length(self) -> int:
        """How many tokens each row holds."""
        return self.caches[0].length

    def select(self, rows: Tensor) -> None:
        """Keep these rows (R',), in this order; a source has `beam` rows or, once it is finished, none."""
        if len(rows) < len(self.memories[0].keys) * self.beam:
            sources = rows[:: self.beam] // self.beam
            self.memories = [memory.select(sources) for memory in self.memories]
            for cache in self.caches:
                cache.select(sources)
        self.lineage.select(rows)


@dataclass
class PromptState:
    """A cache a layer of what each row has added, a memory a layer of each prompt, which is kept once a source.

    Attributes:
        lengths: (B,) tokens of each prompt.
    """

    beam: int
    lengths: Tensor
    caches: list[KVCache]
    prompts: list[Memory]
    lineage: Lineage

    @classmethod
    def start(cls, decoder: Iterable[nn.Module], inputs: Tensor, segments: Segments, beam: int) -> "PromptState":
        """The state after the prompts, of which each layer was given its inputs (layers, N, D); see `layer_inputs`."""
        layers = [cast(EncoderLayer, layer) for layer in decoder]
        prompts = [layer.remember_prompt(x, segments) for layer, x in zip(layers, inputs, strict=True)]
        return cls(beam, segments.lengths, [KVCache(beam) for _ in layers], prompts, Lineage(beam))

    @property
    def positions(self) -> Tensor:
        """(R,) where the next token of each row stands, counted from the start of its prompt."""
        return self.lengths.repeat_interleave(self.beam) + self.caches[0].length

    def step(self, decoder: Iterable[nn.Module], x: Tensor, positions: Tensor) -> Tensor:
        """The newest token of each row, at positions (R,), through all layers: (R, D) -> (R, D)."""
        self.lineage.grow(len(x), x.device)
        for layer, cache, prompt in zip(decoder, self.caches, self.prompts, strict=True):
            x = cast(EncoderLayer, layer).step(x, positions, cache, prompt, self.lineage)
        return x

    def select(self, rows: Tensor) -> None:
        """Keep these rows (R',), in this order; a source has `beam` rows or, once it is finished, none."""
        if len(rows) < len(self.lengths) * self.beam:
            sources = rows[:: self.beam] // self.beam
            self.lengths = self.lengths.index_select(0, sources)
            self.prompts = [prompt.select(sources) for prompt in self.prompts]
            for cache in self.caches:
                cache.select(sources)
        self.lineage.select(rows)


def layer_inputs(decoder: nn.ModuleList, x: Tensor, segments: Segments) -> Tensor:
    """What each layer is given of prompts whose embeddings are (N, D): (layers, N, D)."""
    inputs = [x]
    for layer in decoder[:-1]:
        inputs.append(layer(inputs[-1], segments, True))
    return torch.stack(inputs)
