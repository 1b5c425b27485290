"""Encoder and decoder layers run in one call of the C kernels; for one sentence or a small model Python's calls would
take most of the time.

Let N be tokens, R the rows of a running search, D the model width, V the vocabulary.
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

TURNS = 1024  # rotary positions that are held
LONGEST = 128  # tokens of a sequence; attention over more of them is faster as matrix products


class FusedEncoder(Encoder):
    """The same layers, through which short sequences go in one call."""

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
        # Computed apart, so that no sentence depends on its batch: in 8-bit steps a rounding apart becomes visible.
        parts = list(torch.split(x, segments.lengths.tolist()))
        short = [place for place, part in enumerate(parts) if len(part) <= limit]
        if short:
            several = Segments.of([len(parts[place]) for place in short])
            found = self.packed.encode(torch.cat([parts[place] for place in short]), several.offsets, several.longest)
            for place, part in zip(short, torch.split(found, several.lengths.tolist()), strict=True):
                parts[place] = part
        for place, part in enumerate(parts):
            if len(part) > limit:
                parts[place] = super().forward(part, Segments.of([len(part)]))
        return torch.cat(parts)


class FusedNorm(nn.Module):
    """The norm after an encoder. PyTorch would wake a thread of its own for it, which then stays awake for half a
    millisecond on a core that the next products want."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.packed = kernels.PackedNorm(_norm(norm))

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, D)."""
        return self.packed(x)


class FusedDecoder(Decoder):
    """The same layers, whose `step` is one call, and several steps of a search too."""

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
        """Steps until an output may end, or the caches are full; see `Steps.ahead`."""
        if state.lineage.clock is not None or state.length >= self.packed.longest or state.beam > WIDEST_BEAM:
            return None
        assert run.history.shape[1] == state.length + 1, "the caches hold all but the newest token"
        state.lineage.grow(len(run.history), run.history.device)
        found = self._ready(model, state).ahead(run, state.lineage.slots)
        state.lineage.slots = found.slots
        for cache in state.caches:
            cache.length = found.history.shape[1]
        return found

    def _ready(self, model: Any, state: MemoryState) -> Steps:
        """The steps over the caches, made ready anew where these were full or their sources are others."""
        memories, caches = state.memories, state.caches
        if caches[0].full:
            own: Any = self[0].self_attention
            for cache in caches:
                cache.grow(memories[0].keys, len(memories[0].keys), own.num_kv_heads, own.d_k, own.d_v)
        if state.steps is None or state.steps.keys is not caches[0].keys:  # all others move with them
            buffers, held = [cache.buffers for cache in caches], [(memory.keys, memory.values) for memory in memories]
            output = model.output_table.packed
            state.steps = Steps(self.packed, output, buffers, held, memories[0].lengths)
        return state.steps


def fuse(model: nn.Module) -> None:
    """Make single calls of the encoder and the decoder of a model that has been laid out, where the kernels know all of
    their parts."""
    for name, part in list(model.named_children()):
        if isinstance(part, Encoder) and (layers := packed_layers(part)) is not None:
            setattr(model, name, FusedEncoder(part, layers))
            norm = getattr(model, "encoder_norm", None)
            if isinstance(norm, nn.LayerNorm | nn.RMSNorm):
                model.encoder_norm = FusedNorm(norm)
        if isinstance(part, Decoder) and (packed := packed_decoder(model, part)) is not None:
            setattr(model, name, FusedDecoder(part, packed))


def packed_decoder(model: Any, layers: Decoder) -> kernels.PackedDecoder | None:
    """The decoder of a model from tokens to logits; None if a part of it is unknown to the kernels."""
    embedding, table = model.target_embedding, model.target_embedding.table
    places = embedding.positions and embedding.positions.table
    last, packed = model.decoder_norm, packed_layers(layers)
    plain = embedding.projection is None and (embedding.positions is None or places is not None)
    if not plain or packed is None or not isinstance(model.output_table.packed, kernels.Packed):
        return None
    norm = None if isinstance(last, nn.Identity) else _norm(last)
    places = None if places is None else places.detach()
    if isinstance(table, QuantisedTable):
        return kernels.PackedDecoder(packed, table.weight, table.steps, embedding.factor, places, norm)
    assert isinstance(table, PackedTable)
    return kernels.PackedDecoder(packed, table.numbers, None, embedding.factor, places, norm)


def packed_layers(layers: nn.ModuleList) -> kernels.PackedLayers | None:
    """Layers of an encoder or a decoder as the kernels read them; None if a part of one is unknown to them."""
    held = []
    for layer in layers:
        packed = _packed_layer(layer)
        if packed is None:
            return None
        held.append(packed)
    if not held:  # an encoder may have no layer
        return None
    first: Any = layers[0]
    own, forward = first.self_attention, first.feed_forward
    activation = kernels.ACTIVATIONS.index(forward.name)
    heads = own.num_heads, own.num_kv_heads, own.d_k, own.d_v
    sizes = (forward.outer.packed.size, *heads, first.around_attention.pre, activation)
    return kernels.PackedLayers(sizes, held, None if own.positions is None else turns(TURNS, own.d_k))


def _packed_layer(layer: Any) -> tuple[list[kernels.Norm | None], list[kernels.Packed | None]] | None:
    own, forward, reads = layer.self_attention, layer.feed_forward, isinstance(layer, DecoderLayer)
    between = [layer.cross_attention.query, layer.cross_attention.output] if reads else [None, None]
    packed = [
        getattr(linear, "packed", None) for linear in (own.joint, own.output, *between, forward.inner, forward.outer)
    ]
    known = sum(isinstance(each, kernels.Packed) for each in packed) == (6 if reads else 4)
    places = own.positions is None or own.positions.scheme == "rotary"
    if not places or forward.name not in kernels.ACTIVATIONS or not known:
        return None
    middle = _norm(layer.around_cross.norm) if reads else None
    return [_norm(layer.around_attention.norm), middle, _norm(layer.around_feed_forward.norm)], packed


def _norm(norm: Any) -> kernels.Norm:
    return norm.weight.detach(), norm.bias.detach() if isinstance(norm, nn.LayerNorm) else None, norm.eps
