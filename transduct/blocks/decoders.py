"""Decoders, and the states that search carries from token to token.

A decoder either reads the memory of an encoder, as the Transformer's does, or continues a prompt,
as GPT does. Let N be tokens of a batch, B its sources, R = B * beam the rows of a search, D the
model width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from transduct.blocks.caches import Clock, KVCache, Lineage, Memory, standing_still
from transduct.blocks.transformer import DecoderLayer, EncoderLayer
from transduct.segments import Segments, sources_of

ONLY_DECODER: set[Any] = set()


def only_decoder(step: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a model's `step` that is `decoder.step` and nothing else.

    A faster search may then run the decoder by itself. A step that somebody overrides or replaces is
    another function, without the mark.
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
        return MemoryState(beam, [KVCache(beam) for _ in memories], memories, Lineage(beam))

    def step(self, model: Any, tokens: Tensor, state: "MemoryState") -> Tensor:
        """The newest token of each row (R,) -> logits of the next (R, V).

        Args:
            model: has a `target_embedding`, a `decoder_norm` and `logits`.
        """
        state.lineage.grow(len(tokens), tokens.device)
        x = model.target_embedding(tokens, state.positions)
        for layer, cache, memory in zip(self, state.caches, state.memories, strict=True):
            x = cast(DecoderLayer, layer).step(x, cache, memory, state.lineage)
        if state.lineage.clock is not None:
            state.lineage.clock.now.add_(1)
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
            beam, [KVCache(beam) for _ in prompts], prompts, Lineage(beam), segments.lengths
        )

    def step(self, x: Tensor, positions: Tensor, state: "PromptState") -> Tensor:
        """Run the newest token of each row, at `positions` (R,), through all layers: (R, D) -> (R,
        D)."""
        state.lineage.grow(len(x), x.device)
        for layer, cache, prompt in zip(self, state.caches, state.memories, strict=True):
            x = cast(EncoderLayer, layer).step(x, positions, cache, prompt, state.lineage)
        return x


@dataclass
class State:
    """The state of a search: for each layer a KV cache and a memory, and the ancestry of the
    rows."""

    beam: int
    caches: list[KVCache]
    memories: list[Memory]
    lineage: Lineage

    @property
    def length(self) -> int:
        """The number of tokens in each row; valid for growing buffers only."""
        return self.caches[0].length

    def select(self, rows: Tensor) -> None:
        """Keep these rows (R',), in this order: of each source all `beam` rows or, once it is
        finished, none."""
        if len(rows) < len(self.memories[0].keys) * self.beam:
            self.select_sources(sources_of(rows, self.beam))
        self.lineage.select(rows)

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
        steps: the prepared kernel calls of a `FusedDecoder`.
    """

    steps: Any = None

    @property
    def positions(self) -> Tensor:
        """(R,) the position of the next token of each row."""
        keys = self.memories[0].keys
        return self.caches[0].positions(len(keys) * self.beam, keys.device)

    def fixed(self, sources: int, longest: int, capacity: int) -> "FixedState":
        """Return buffers for up to `sources` sources of `longest` tokens, and `capacity` output
        tokens per row."""
        return FixedState(self, sources, longest, capacity)


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


class FixedState:
    """A `MemoryState` with fixed shapes and addresses, for replaying a captured graph on one batch
    after the other.

    `admit` starts a new batch, which may have fewer and shorter sources than there is room for.

    Args:
        like: a started state, from which beam, heads, device and dtype are taken.
    """

    def __init__(self, like: MemoryState, sources: int, longest: int, capacity: int) -> None:
        first = like.memories[0].keys
        self.beam, self.now = like.beam, torch.zeros(1, dtype=torch.int64, device=first.device)
        self.slots = torch.full(
            (sources, like.beam, capacity), -1, dtype=torch.int32, device=first.device
        )
        # Kept here rather than in `part`, because a graph reads it at the address of its capture.
        self.own = torch.arange(like.beam, dtype=torch.int32, device=first.device).repeat(sources)[
            :, None
        ]  # (R, 1)
        self.bias = first.new_zeros(sources, 1, 1, longest)  # shared by all layers, in their dtype
        self.memories, self.caches = [], []
        for memory in like.memories:
            both = [(x.shape[1], x.shape[3]) for x in (memory.keys, memory.values)]
            self.memories.append(
                [first.new_zeros(sources, heads, longest, width) for heads, width in both]
            )
            self.caches.append(
                [
                    first.new_zeros(sources, heads, capacity, like.beam, width)
                    for heads, width in both
                ]
            )

    def admit(self, state: MemoryState, lengths: Tensor) -> None:
        """Start a new batch, with the sources of a state that has just been started, of lengths
        (B,)."""
        self.now.zero_()
        self.slots.fill_(-1)
        for (keys, values), cache, new in zip(
            self.memories, self.caches, state.memories, strict=True
        ):
            sources, _, longest, _ = new.keys.shape
            for x in (
                cache
            ):  # masked places have weight zero, but zero times a NaN of an earlier search is NaN
                x[:sources].zero_()
            keys[:sources, :, :longest], values[:sources, :, :longest] = new.keys, new.values
        places = torch.arange(self.bias.shape[3], device=lengths.device)
        hidden = (
            places >= lengths.clamp(min=1)[:, None]
        )  # (B, S); an empty source keeps one: softmax needs it
        self.bias.zero_()[: len(lengths)].masked_fill_(hidden[:, None, None], float("-inf"))

    @property
    def nbytes(self) -> int:
        """The size of all keys and values in bytes."""
        return sum(x.nbytes for pair in (*self.memories, *self.caches) for x in pair)

    def part(self, sources: int, reach: int) -> MemoryState:
        """The state of the first `sources` sources, with attention over `reach` tokens; a view,
        nothing is copied."""
        clock = Clock(self.now, reach)
        caches = [
            KVCache(self.beam, keys[:sources], values[:sources], clock=clock)
            for keys, values in self.caches
        ]
        memories = [
            Memory(keys[:sources], values[:sources], self.bias[:sources])
            for keys, values in self.memories
        ]
        rows = sources * self.beam
        slots = self.slots.flatten(0, 1)[:rows, :reach]  # (R, reach)
        lineage = Lineage(self.beam, slots, clock, self.bias.dtype, self.own[:rows])
        return MemoryState(self.beam, caches, memories, lineage)

    def gather(self, sources: Tensor) -> None:
        """Move these sources to the front, in this order."""
        for x in (
            self.slots,
            self.bias,
            *(x for pair in (*self.memories, *self.caches) for x in pair),
        ):
            x[: len(sources)] = x.index_select(0, sources)
