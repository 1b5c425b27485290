"""Encoders and decoders that run in one call of the C kernels.

For a single sentence or a small model, Python's calls would take most of the time. Let N be tokens, R the rows of a
running search, D the model width, V the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from transduct.blocks.decoders import Decoder, MemoryState
from transduct.blocks.packed import PackedTable
from transduct.blocks.quantised import QuantisedTable
from transduct.blocks.transformer import DecoderLayer, Encoder
from transduct.functional import kernels
from transduct.functional.positions import turns
from transduct.functional.segments import Segments
from transduct.functional.stepping import WIDEST_BEAM, Ahead, Run, Steps

TURNS = 1024  # rotary positions in the table
LONGEST = 128  # tokens of a sequence; attention over longer ones is faster as matrix products


class FusedEncoder(Encoder):
    """An encoder that runs short sequences through all layers in one call."""

    def __init__(self, layers: Encoder, packed: kernels.PackedLayers) -> None:
        super().__init__(layers)
        self.packed = packed

    def forward(self, x: Tensor, segments: Segments, weights: list[Tensor] | None = None) -> Tensor:
        """(N, D) -> (N, D)."""
        limit = min(LONGEST, self.packed.longest)
        if weights is not None:
            return super().forward(x, segments, weights)
        if segments.longest <= limit:
            return self.packed.encode(x, segments.offsets, segments.longest)
        # Long sequences run one by one, so that no result depends on the batch: int8 amplifies rounding differences.
        parts = list(torch.split(x, segments.lengths.tolist()))
        short = [place for place, part in enumerate(parts) if len(part) <= limit]
        if short:
            layout = Segments.of([len(parts[place]) for place in short])
            encoded = self.packed.encode(torch.cat([parts[place] for place in short]), layout.offsets, layout.longest)
            for place, part in zip(short, torch.split(encoded, layout.lengths.tolist()), strict=True):
                parts[place] = part
        for place, part in enumerate(parts):
            if len(part) > limit:
                parts[place] = super().forward(part, Segments.of([len(part)]))
        return torch.cat(parts)


class FusedNorm(nn.Module):
    """The norm after an encoder. PyTorch would wake one of its threads for it, which then spins for half a millisecond
    on a core that the next kernel needs."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.packed = kernels.PackedNorm(_norm(norm))

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, D)."""
        return self.packed(x)


class FusedDecoder(Decoder):
    """A decoder that runs a step, or several steps of a search, in one call."""

    def __init__(self, layers: Decoder, packed: kernels.PackedDecoder) -> None:
        super().__init__(layers)
        self.packed = packed

    def step(self, model: Any, tokens: Tensor, state: MemoryState) -> Tensor:
        """The newest token of each row (R,) -> logits of the next (R, V)."""
        if state.lineage.clock is not None or state.length >= self.packed.longest:
            return super().step(model, tokens, state)
        state.lineage.grow(len(tokens), tokens.device)
        logits = self._ready(model, state)(tokens, state.length, state.lineage.slots)
        for cache in state.caches:
            cache.length += 1
        return logits

    def ahead(self, model: Any, state: MemoryState, run: Run) -> Ahead | None:
        """Take steps until an output may end or the caches are full; see `Steps.ahead`."""
        if state.lineage.clock is not None or state.length >= self.packed.longest or state.beam > WIDEST_BEAM:
            return None
        assert run.history.shape[1] == state.length + 1, "the caches hold all but the newest token"
        state.lineage.grow(len(run.history), run.history.device)
        result = self._ready(model, state).ahead(run, state.lineage.slots)
        state.lineage.slots = result.slots
        for cache in state.caches:
            cache.length = result.history.shape[1]
        return result

    def _ready(self, model: Any, state: MemoryState) -> Steps:
        """The prepared steps, prepared again if the caches were full or their sources have changed."""
        memories, caches = state.memories, state.caches
        if caches[0].full:
            attention: Any = self[0].self_attention
            sizes = len(memories[0].keys), attention.num_kv_heads, attention.d_k, attention.d_v
            for cache in caches:
                cache.grow(memories[0].keys, *sizes)
        if state.steps is None or state.steps.keys is not caches[0].keys:  # the others move with them
            pasts, sources = [cache.buffers for cache in caches], [(memory.keys, memory.values) for memory in memories]
            state.steps = Steps(self.packed, model.output_table.packed, pasts, sources, memories[0].lengths)
        return state.steps


def fuse(model: nn.Module) -> None:
    """Replace the encoder and the decoder of a packed model by fused ones, if the kernels support all of their
    parts."""
    for name, part in list(model.named_children()):
        if isinstance(part, Encoder) and (layers := packed_layers(part)) is not None:
            setattr(model, name, FusedEncoder(part, layers))
            norm = getattr(model, "encoder_norm", None)
            if isinstance(norm, nn.LayerNorm | nn.RMSNorm):
                model.encoder_norm = FusedNorm(norm)
        if isinstance(part, Decoder) and (packed := packed_decoder(model, part)) is not None:
            setattr(model, name, FusedDecoder(part, packed))


def packed_decoder(model: Any, layers: Decoder) -> kernels.PackedDecoder | None:
    """The decoder of a model, from tokens to logits, for the kernels; None if they do not support a part of it."""
    embedding, table = model.target_embedding, model.target_embedding.table
    positions = embedding.positions and embedding.positions.table
    last, packed = model.decoder_norm, packed_layers(layers)
    plain = embedding.projection is None and (embedding.positions is None or positions is not None)
    if not plain or packed is None or not isinstance(model.output_table.packed, kernels.Packed):
        return None
    norm = None if isinstance(last, nn.Identity) else _norm(last)
    positions = None if positions is None else positions.detach()
    if isinstance(table, QuantisedTable):
        return kernels.PackedDecoder(packed, table.weight, table.steps, embedding.factor, positions, norm)
    assert isinstance(table, PackedTable)
    return kernels.PackedDecoder(packed, table.numbers, None, embedding.factor, positions, norm)


def packed_layers(layers: nn.ModuleList) -> kernels.PackedLayers | None:
    """The layers of an encoder or a decoder for the kernels; None if they do not support a part of them."""
    per_layer = []
    for layer in layers:
        packed = _packed_layer(layer)
        if packed is None:
            return None
        per_layer.append(packed)
    if not per_layer:  # an encoder may have no layers
        return None
    first: Any = layers[0]
    own, forward = first.self_attention, first.feed_forward
    activation = kernels.ACTIVATIONS.index(forward.name)
    heads = own.num_heads, own.num_kv_heads, own.d_k, own.d_v
    sizes = (forward.outer.packed.size, *heads, first.around_attention.pre, activation)
    return kernels.PackedLayers(sizes, per_layer, None if own.positions is None else turns(TURNS, own.d_k))


def _packed_layer(layer: Any) -> tuple[list[kernels.Norm | None], list[kernels.Packed | None]] | None:
    own, forward, crosses = layer.self_attention, layer.feed_forward, isinstance(layer, DecoderLayer)
    cross = [layer.cross_attention.query, layer.cross_attention.output] if crosses else [None, None]
    packed = [
        getattr(linear, "packed", None) for linear in (own.joint, own.output, *cross, forward.inner, forward.outer)
    ]
    all_packed = sum(isinstance(each, kernels.Packed) for each in packed) == (6 if crosses else 4)
    supported = own.positions is None or own.positions.scheme == "rotary"
    if not supported or forward.name not in kernels.ACTIVATIONS or not all_packed:
        return None
    middle = _norm(layer.around_cross.norm) if crosses else None
    return [_norm(layer.around_attention.norm), middle, _norm(layer.around_feed_forward.norm)], packed


def _norm(norm: Any) -> kernels.Norm:
    return norm.weight.detach(), norm.bias.detach() if isinstance(norm, nn.LayerNorm) else None, norm.eps
