"""Encoders and decoders that run in one call of the C kernels, in place of stacks of packed layers.

The results do not change, up to rounding. For a single sentence or a small model, Python's calls
would take most of the time. Let N be tokens, R the rows of a running search, D the model width, V
the vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transduct.blocks.attention import (
    Ancestry,
    AttentionPositions,
    KVCache,
    Memory,
    MemoryState,
    MultiHeadAttention,
)
from transduct.blocks.embeddings import Embedding, PositionVectors
from transduct.blocks.transformer import (
    ACTIVATIONS,
    Decoder,
    DecoderLayer,
    DecoderSteps,
    Encoder,
    EncoderLayer,
    FeedForward,
    Residual,
    is_exactly,
)
from transduct.functional.attention import padding_bias
from transduct.functional.positions import turns
from transduct.inference.packed import JointAttention, PackedLinear, PackedTable
from transduct.inference.quantised import QuantisedLinear, QuantisedTable
from transduct.kernels import cpu
from transduct.kernels.cpu_search import WIDEST_BEAM, Ahead, Run, Steps
from transduct.segments import Segments

TURNS = 1024  # rotary positions in the table
LONGEST = 128  # tokens of a sequence; attention over longer ones is faster as matrix products


class FusedEncoder(Encoder):
    """An encoder that runs short sequences through all layers in one call."""

    def __init__(self, layers: Encoder, packed: cpu.PackedLayers) -> None:
        super().__init__(layers)
        self.packed = packed

    def forward(self, x: Tensor, segments: Segments, weights: list[Tensor] | None = None) -> Tensor:
        """(N, D) -> (N, D)."""
        limit, readable = min(LONGEST, self.packed.longest), super().forward
        if weights is not None:
            return readable(x, segments, weights)
        if segments.longest <= limit:
            return self.packed.encode(x, segments.offsets, segments.longest)
        # Long sequences run one by one, so that no result depends on the batch: int8 amplifies
        # rounding differences.
        parts = x.split(segments.lengths.tolist())
        short = [part for part in parts if len(part) <= limit]
        layout = Segments.of([*map(len, short)])
        together = torch.cat([x[:0], *short])
        if short:
            together = self.packed.encode(together, layout.offsets, layout.longest)
        found = iter(together.split(layout.lengths.tolist()))
        return torch.cat(
            [
                next(found) if len(part) <= limit else readable(part, Segments.of([len(part)]))
                for part in parts
            ]
        )


class FusedNorm(nn.Module):
    """The norm after an encoder. PyTorch would wake one of its threads for it, which then spins for
    half a millisecond on a core that the next kernel needs."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.packed = cpu.PackedNorm(_norm(norm))

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, D)."""
        return self.packed(x)


@dataclass
class FusedState(MemoryState):
    """The state of a `FusedDecoder`, with its prepared kernel calls."""

    steps: Steps | None = None


class FusedDecoder(Decoder):
    """A decoder that runs a step, or several steps of a search, in one call."""

    def __init__(self, layers: Decoder, packed: cpu.PackedDecoder) -> None:
        super().__init__(layers)
        self.packed = packed

    def start(self, memory: Tensor, segments: Segments, beam: int) -> MemoryState:
        """Return the state before the first token, with `beam` rows for each source of the memory
        (N, D)."""
        memories = [_remember(layer, memory, segments) for layer in self]
        return FusedState(beam, [KVCache(beam) for _ in memories], memories, Ancestry(beam))

    def step(self, model: Any, tokens: Tensor, state: MemoryState) -> Tensor:
        """The newest token of each row (R,) -> logits of the next (R, V)."""
        if not isinstance(state, FusedState) or state.length >= self.packed.longest:
            return super().step(model, tokens, state)
        state.ancestry.grow(len(tokens), tokens.device)
        logits = self._ready(model, state)(tokens, state.length, state.ancestry.writers)
        for cache in state.caches:
            cache.length += 1
        return logits

    def ahead(self, model: Any, state: MemoryState, run: Run) -> Ahead | None:
        """Take steps until an output may end or the caches are full; see `Steps.ahead`."""
        if (
            not isinstance(state, FusedState)
            or state.length >= self.packed.longest
            or state.beam > WIDEST_BEAM
        ):
            return None
        assert run.history.shape[1] == state.length + 1, "the caches hold all but the newest token"
        state.ancestry.grow(len(run.history), run.history.device)
        result = self._ready(model, state).ahead(run, state.ancestry.writers)
        state.ancestry.writers = result.slots
        for cache in state.caches:
            cache.length = result.history.shape[1]
        return result

    def _ready(self, model: Any, state: FusedState) -> Steps:
        """The prepared steps, prepared again if the caches were full or their sources have
        changed."""
        memories, caches = state.memories, state.caches
        if caches[0].full:
            attention: Any = self[0].self_attention
            sizes = len(memories[0].keys), attention.num_kv_heads, attention.d_k, attention.d_v
            for cache in caches:
                cache.grow(memories[0].keys, *sizes)
        # the others move with them
        if state.steps is None or state.steps.keys is not caches[0].keys:
            pasts, sources = (
                [cache.buffers for cache in caches],
                [(memory.keys, memory.values) for memory in memories],
            )
            state.steps = Steps(
                self.packed, model.output_table.packed, pasts, sources, memories[0].lengths
            )
        return state.steps


def _remember(layer: Any, memory: Tensor, segments: Segments) -> Memory:
    """What the layer's cross attention remembers, projected, padded and rounded in one call."""
    cross = layer.cross_attention
    if not (is_packed(cross.key) and is_packed(cross.value)):
        remembered: Memory = cross.remember(memory, segments)
        return remembered
    layout = segments.offsets, segments.longest, cross.num_kv_heads, cross.cache_dtype
    keys, values = cpu.remember(cross.key.packed, cross.value.packed, memory, *layout)
    return Memory(keys, values, padding_bias(segments), segments.lengths)


def fused_decoder(model: Any) -> FusedDecoder | None:
    """The decoder that a model's `step` runs and does nothing else, if it is fused."""
    if "step" in vars(model) or type(model).step is not DecoderSteps.step:
        return None
    return next((part for part in model.children() if isinstance(part, FusedDecoder)), None)


def fuse(model: nn.Module) -> None:
    """Replace the encoder and the decoder of a packed model by fused ones, if the kernels compute
    what all of their parts do."""
    children: list[tuple[str, Any]] = list(model.named_children())
    for name, part in children:
        if is_exactly(part, Encoder) and (layers := packed_layers(part)) is not None:
            setattr(model, name, FusedEncoder(part, layers))
            norm: Any = model._modules.get("encoder_norm")
            if _supported_norm(norm):
                model.encoder_norm = FusedNorm(norm)
        if is_exactly(part, Decoder) and (packed := packed_decoder(model, part)) is not None:
            setattr(model, name, FusedDecoder(part, packed))


def packed_decoder(model: Any, layers: Decoder) -> cpu.PackedDecoder | None:
    """The decoder of a model, from tokens to logits, for the kernels; None if they do not support a
    part of it."""
    embedding: Any = model._modules.get("target_embedding")
    last: Any = model._modules.get("decoder_norm")
    supported = _supported_embedding(embedding) and (
        is_exactly(last, nn.Identity) or _supported_norm(last)
    )
    packed = packed_layers(layers) if supported else None
    if packed is None or not _projects(model, packed.width):
        return None
    norm = None if isinstance(last, nn.Identity) else _norm(last)
    table, positions = (
        embedding.table,
        None if embedding.positions is None else embedding.positions.table.detach(),
    )
    weight, steps = (
        (table.weight, table.steps) if isinstance(table, QuantisedTable) else (table.numbers, None)
    )
    return cpu.PackedDecoder(packed, weight, steps, embedding.factor, positions, norm)


def packed_layers(layers: nn.ModuleList) -> cpu.PackedLayers | None:
    """The layers of an encoder or a decoder for the kernels; None if they do not support a part of
    them."""
    if not all(map(_supported_layer, layers)):
        return None
    shapes = {shape for layer in layers for shape in _shapes(layer)}
    if len(shapes) != 1:  # layers differ, or an encoder has none
        return None
    [(sizes, rotary, _)] = shapes
    per_layer = []
    for layer in layers:
        norms: list[Any] = [_norm(each.norm) for each in _residuals(layer)]
        linears: list[Any] = [each.packed for each in _linears(layer)]
        if len(norms) == 2:  # no cross-attention
            norms[1:1], linears[2:2] = [None], [None, None]
        per_layer.append((norms, linears))
    return cpu.PackedLayers(sizes, per_layer, turns(TURNS, sizes[3]) if rotary else None)


def _supported_layer(layer: Any) -> bool:
    if not is_exactly(layer, EncoderLayer, DecoderLayer):
        return False
    network, positions = layer.feed_forward, layer.self_attention.positions
    return (
        is_exactly(network, FeedForward)
        and network.gate is None
        and network.name in cpu.ACTIVATIONS
        and network.activation is ACTIVATIONS[network.name]
        and is_exactly(layer.self_attention, JointAttention)
        and all(is_exactly(each, MultiHeadAttention) for each in _attentions(layer)[1:])
        and all(is_exactly(each, Residual) for each in _residuals(layer))
        and all(_supported_norm(each.norm) for each in _residuals(layer))
        and all(map(is_packed, _linears(layer)))
        and (positions is None or is_exactly(positions, AttentionPositions))
        and (positions is None or positions.scheme == "rotary")
    )


def _supported_norm(norm: Any) -> bool:
    return (
        is_exactly(norm, nn.LayerNorm, nn.RMSNorm)
        and norm.weight is not None
        and norm.eps is not None
        and (isinstance(norm, nn.RMSNorm) or norm.bias is not None)
    )


def _supported_embedding(embedding: Any) -> bool:
    if not is_exactly(embedding, Embedding):
        return False
    table, positions = embedding.table, embedding.positions
    tabulated = is_exactly(positions, PositionVectors) and positions.table is not None
    return (
        embedding.projection is None
        and embedding.norm is None
        and isinstance(table, PackedTable | QuantisedTable)
        and (positions is None or (tabulated and positions.table.shape[1] == table.shape[1]))
    )


def _projects(model: Any, width: int) -> bool:
    """Whether `logits` hands hidden states to the output table and returns what it gets, tried with
    one."""
    table, calls = model._modules.get("output_table"), []
    known = isinstance(table, PackedTable | QuantisedTable) and isinstance(table.packed, cpu.Packed)
    if not known or table._forward_hooks or table._forward_pre_hooks:
        return False
    with table.register_forward_hook(lambda _, given, found: calls.append((*given, found))):
        hidden = torch.zeros(1, width)
        logits = model.logits(hidden)
    return len(calls) == 1 and calls[0][0] is hidden and calls[0][1] is logits


def is_packed(part: Any) -> bool:
    """Whether a linear layer is in the layout of the kernels."""
    return is_exactly(part, PackedLinear, QuantisedLinear) and isinstance(part.packed, cpu.Packed)


def _attentions(layer: Any) -> list[Any]:
    return [
        layer.self_attention,
        *([layer.cross_attention] if isinstance(layer, DecoderLayer) else []),
    ]


def _residuals(layer: Any) -> list[Any]:
    middle = [layer.around_cross] if isinstance(layer, DecoderLayer) else []
    return [layer.around_attention, *middle, layer.around_feed_forward]


def _linears(layer: Any) -> list[Any]:
    inner, *crosses = _attentions(layer)
    middle = [part for cross in crosses for part in (cross.query, cross.output)]
    return [inner.joint, inner.output, *middle, layer.feed_forward.inner, layer.feed_forward.outer]


def _shapes(layer: Any) -> set[tuple[Any, bool, int]]:
    """What all parts of all layers must have in common: the sizes of `PackedLayers`, whether
    positions are rotary, and the width inside the feed-forward network, since they share their
    scratch space."""
    width, activation = (
        layer.feed_forward.outer.packed.size,
        cpu.ACTIVATIONS.index(layer.feed_forward.name),
    )
    inside = layer.feed_forward.inner.packed.size
    heads = [(each.num_heads, each.num_kv_heads, each.d_k, each.d_v) for each in _attentions(layer)]
    rotary, orders = (
        layer.self_attention.positions is not None,
        [each.pre for each in _residuals(layer)],
    )
    return {((width, *each, pre, activation), rotary, inside) for each in heads for pre in orders}


def _norm(norm: Any) -> cpu.Norm:
    return (
        norm.weight.detach(),
        norm.bias.detach() if isinstance(norm, nn.LayerNorm) else None,
        norm.eps,
    )
