"""What a researcher may change in a Transformer: subclasses, hooks, and parts of other kinds or
sizes."""

from fnmatch import fnmatch

import torch
from torch import nn

from transduct.blocks.attention import AttentionPositions, MultiHeadAttention
from transduct.blocks.embeddings import Embedding, PositionVectors
from transduct.blocks.linear import Linear
from transduct.blocks.transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    Residual,
)
from transduct.models.transformer import Transformer


class Gated(FeedForward):
    def forward(self, x):
        return super().forward(x) * x.sigmoid()


class Scaled(Residual):
    def forward(self, x, sublayer):
        return super().forward(x, lambda y: 0.5 * sublayer(y))


class NormedHeads(MultiHeadAttention):
    def project(self, x, positions, lengths):
        query, key, value = super().project(x, positions, lengths)
        return nn.functional.normalize(query, dim=-1), nn.functional.normalize(key, dim=-1), value


class NormedKeys(MultiHeadAttention):
    def _keys_and_values(self, x):
        key, value = super()._keys_and_values(x)
        return nn.functional.normalize(key, dim=-1), value


class LowRank(Linear):
    def forward(self, input):
        return super().forward(input) + 0.2 * input[..., :1]


class Twice(Encoder):
    def forward(self, x, segments, weights=None):
        return super().forward(super().forward(x, segments, weights), segments, weights)


class Bounded(Decoder):
    def step(self, model, tokens, state):
        return super().step(model, tokens, state).tanh()


class BoundedEncoderLayer(EncoderLayer):
    def forward(self, *args, **named):
        return super().forward(*args, **named).tanh()


class BoundedDecoderLayer(DecoderLayer):
    def forward(self, *args, **named):
        return super().forward(*args, **named).tanh()

    def step(self, *args, **named):
        return super().step(*args, **named).tanh()


class Halved(Embedding):
    def forward(self, tokens, positions, lengths=None):
        return 0.5 * super().forward(tokens, positions, lengths)


class Spread(AttentionPositions):
    def apply_to(self, query, key, value, positions, lengths):
        return super().apply_to(query, key, value, 3 * positions, lengths)


class Faint(PositionVectors):
    def forward(self, positions, lengths):
        return 0.5 * super().forward(positions, lengths)


class Peeking(EncoderLayer):
    def forward(self, x, *args, **named):
        return super().forward(x, *args, **named) + self.self_attention.value(x)[..., : x.shape[-1]]


class Relative(Transformer):
    def logits(self, hidden):
        return super().logits(hidden) / hidden.abs().max()


class Capped(Transformer):
    def logits(self, hidden):
        return super().logits(hidden).clamp(max=1.0)


class Cooled(Transformer):
    def step(self, tokens, state):
        logits, state = super().step(tokens, state)
        return 0.1 * logits, state


def becomes(kind, names="*"):
    """Makes all parts of these names, if they are of its base class, of this kind."""

    def change(model):
        for name, part in model.named_modules():
            if type(part) is kind.__base__ and fnmatch(name, names):
                part.__class__ = kind

    return change


def hooked(names):
    """Halves what all parts of these names give."""

    def change(model):
        for name, part in model.named_modules():
            if fnmatch(name, names):
                part.register_forward_hook(lambda _, given, found: 0.5 * found)

    return change


def hooked_before(names):
    """Halves what all parts of these names are given."""

    def change(model):
        for name, part in model.named_modules():
            if fnmatch(name, names):
                part.register_forward_pre_hook(lambda _, given: (0.5 * given[0], *given[1:]))

    return change


def exchanged(names, make):
    """Puts another part in the place of all of these names."""

    def change(model):
        torch.manual_seed(3)
        for name, _ in list(model.named_modules()):
            if fnmatch(name, names):
                model.set_submodule(name, make())

    return change


def sets(names, **attributes):
    """Gives all parts of these names other attributes."""

    def change(model):
        for name, part in model.named_modules():
            if fnmatch(name, names):
                vars(part).update(attributes)

    return change


def gated(model):
    torch.manual_seed(3)
    for layer in (*model.encoder, *model.decoder):
        layer.feed_forward.gate = Linear(16, 32)


def doubled_keys(model):
    for layer in model.decoder:
        own = layer.cross_attention._keys_and_values
        layer.cross_attention._keys_and_values = lambda x, own=own: tuple(
            2.0 * part for part in own(x)
        )


def capped(model):
    model.logits = lambda hidden: Transformer.logits(model, hidden).clamp(max=1.0)


CHANGES = {
    "feed-forward": becomes(Gated),
    "residual": becomes(Scaled),
    "attention": becomes(NormedHeads, "*.self_attention"),
    "cross-attention": becomes(NormedKeys, "*.cross_attention"),
    "linear": becomes(LowRank, "*.inner"),
    "query": becomes(LowRank, "*.query"),
    "key": becomes(LowRank, "*.cross_attention.key"),
    "encoder": becomes(Twice),
    "decoder": becomes(Bounded),
    "encoder layer": becomes(BoundedEncoderLayer, "*.1"),
    "decoder layer": becomes(BoundedDecoderLayer, "*.1"),
    "embedding": becomes(Halved),
    "position vectors": becomes(Faint),
    "logits": becomes(Capped),
    "logits of this model": capped,
    "a hook on a feed-forward": hooked("*.feed_forward"),
    "a hook on a linear": hooked("*.self_attention.value"),
    "a hook before a linear": hooked_before("*.inner"),
    "a hook before an encoder": hooked_before("encoder"),
    "a hook on the last norms": hooked("?????er_norm"),
    "a hook on an embedding": hooked("target_embedding"),
    "a hook on positions": hooked("*.positions"),
    "another activation": sets("*.feed_forward", activation=torch.tanh),
    "a gate": gated,
    "a method": sets("*.around_attention", read=torch.tanh),
    "activations by layer": sets("*.1.feed_forward", name="gelu", activation=nn.functional.gelu),
    "norms by sublayer": sets("*.around_feed_forward", pre=False),
    "a layer that reads its attention": becomes(Peeking, "*.1"),
    "logits by the largest": becomes(Relative),
    "keys of this attention": doubled_keys,
    "a hook on keys of sources": hooked("*.cross_attention.key"),
    "widths inside by layer": exchanged(
        "*.1.feed_forward", lambda: FeedForward(16, 2000, 0.0, "relu")
    ),
    "positions of one number": exchanged(
        "target_embedding.positions", lambda: PositionVectors("index", 48, None)
    ),
    "heads by layer": exchanged("*.1.self_attention", lambda: MultiHeadAttention(16, 2)),
    "heads by attention": exchanged("*.cross_attention", lambda: MultiHeadAttention(16, 2)),
    "no biases of norms": exchanged("*.norm", lambda: nn.LayerNorm(16, bias=False)),
    "norms that learn nothing": exchanged(
        "*.norm", lambda: nn.LayerNorm(16, elementwise_affine=False)
    ),
    "norms without an epsilon": exchanged("*.norm", lambda: nn.RMSNorm(16)),
    "no norms": exchanged("*.around_feed_forward.norm", nn.Identity),
    "no biases of last norms": exchanged("?????er_norm", lambda: nn.LayerNorm(16, bias=False)),
    "no last norms": exchanged("?????er_norm", nn.Identity),
    "no bias of keys": exchanged("*.key", lambda: Linear(16, 64, bias=False)),
    "layers of torch": exchanged("*.inner", lambda: nn.Linear(16, 32)),
}
OF_ROTARY = {
    "positions in attention": becomes(Spread),
    "positions by layer": sets("*.1.self_attention", positions=None),
}
