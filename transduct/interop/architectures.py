"""The published architectures: what their configurations say, and what their weights are called.

One table for each family of names. In a pattern {n} stands for the number of a layer and {kind}
for weight or bias. The left side is theirs, the right side ours; a list of ours takes the rows of
one weight of theirs in equal parts. `interop/state_dict.py` reads such tables from YAML.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, ClassVar, Literal

from transduct.errors import TransductError
from transduct.records import record

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}  # theirs -> ours
GATED = {"gelu": "geglu_tanh", "gelu_new": "geglu_tanh", "silu": "swiglu", "swish": "swiglu"}
OUTPUT, SOURCE, TARGET = "output_table", "source_embedding.table", "target_embedding.table"  # ours
BART_NAMES: dict[str, str | list[str]] = {
    "model.{side}.embed_positions.weight": "{side}_embedding.positions.table",
    "model.{side}.layernorm_embedding.{kind}": "{side}_embedding.norm.{kind}",
    "model.{side}.layer_norm.{kind}": "{side}_norm.{kind}",
    "model.{side}.layers.{n}.self_attn.q_proj.{kind}": "{side}.{n}.self_attention.query.{kind}",
    "model.{side}.layers.{n}.self_attn.k_proj.{kind}": "{side}.{n}.self_attention.key.{kind}",
    "model.{side}.layers.{n}.self_attn.v_proj.{kind}": "{side}.{n}.self_attention.value.{kind}",
    "model.{side}.layers.{n}.self_attn.out_proj.{kind}": (
        "{side}.{n}.self_attention.output.{kind}"
    ),
    "model.{side}.layers.{n}.self_attn_layer_norm.{kind}": (
        "{side}.{n}.around_attention.norm.{kind}"
    ),
    "model.{side}.layers.{n}.encoder_attn.q_proj.{kind}": (
        "{side}.{n}.cross_attention.query.{kind}"
    ),
    "model.{side}.layers.{n}.encoder_attn.k_proj.{kind}": "{side}.{n}.cross_attention.key.{kind}",
    "model.{side}.layers.{n}.encoder_attn.v_proj.{kind}": (
        "{side}.{n}.cross_attention.value.{kind}"
    ),
    "model.{side}.layers.{n}.encoder_attn.out_proj.{kind}": (
        "{side}.{n}.cross_attention.output.{kind}"
    ),
    "model.{side}.layers.{n}.encoder_attn_layer_norm.{kind}": (
        "{side}.{n}.around_cross.norm.{kind}"
    ),
    "model.{side}.layers.{n}.fc1.{kind}": "{side}.{n}.feed_forward.inner.{kind}",
    "model.{side}.layers.{n}.fc2.{kind}": "{side}.{n}.feed_forward.outer.{kind}",
    "model.{side}.layers.{n}.final_layer_norm.{kind}": (
        "{side}.{n}.around_feed_forward.norm.{kind}"
    ),
}
T5_NAMES: dict[str, str | list[str]] = {
    "{side}.final_layer_norm.weight": "{side}_norm.weight",
    "{side}.block.{n}.layer.0.SelfAttention.relative_attention_bias.weight": (
        "{side}.{n}.self_attention.positions.table"
    ),
    **{
        f"{{side}}.block.{{n}}.layer.0.SelfAttention.{theirs}.weight": (
            f"{{side}}.{{n}}.self_attention.{ours}.weight"
        )
        for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
    },
    "{side}.block.{n}.layer.0.layer_norm.weight": "{side}.{n}.around_attention.norm.weight",
    **{
        f"decoder.block.{{n}}.layer.1.EncDecAttention.{theirs}.weight": (
            f"decoder.{{n}}.cross_attention.{ours}.weight"
        )
        for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
    },
    "decoder.block.{n}.layer.1.layer_norm.weight": "decoder.{n}.around_cross.norm.weight",
    **{
        f"{side}.block.{{n}}.layer.{number}.DenseReluDense.{theirs}.weight": (
            f"{side}.{{n}}.feed_forward.{ours}.weight"
        )
        for side, number in (("encoder", 1), ("decoder", 2))
        for theirs, ours in (("wi", "inner"), ("wi_0", "inner"), ("wi_1", "gate"), ("wo", "outer"))
    },
    "encoder.block.{n}.layer.1.layer_norm.weight": "encoder.{n}.around_feed_forward.norm.weight",
    "decoder.block.{n}.layer.2.layer_norm.weight": "decoder.{n}.around_feed_forward.norm.weight",
}
# Weights that older versions saved and that nothing reads.
BART_IDLE = (
    r"model\.(en|de)coder\.embed_positions\.weights",
    r"model\.(en|de)coder\.version",
    r"(en|de)coder\.embed_positions\._float_tensor",
)
T5_IDLE = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
PLACEHOLDERS = {"side": "encoder|decoder", "n": r"\d+", "kind": "weight|bias"}
T5_KEYS = ("d_kv", "num_layers", "relative_attention_num_buckets")
SIDES = {"encoder": "source", "decoder": "target"}  # how our embeddings name the sides


class Names:
    """A table of names, theirs -> ours, both with placeholders."""

    def __init__(self, table: Mapping[str, str | Sequence[str]]) -> None:
        self.table = {
            theirs: [ours] if isinstance(ours, str) else [*ours] for theirs, ours in table.items()
        }
        self.patterns = [(re.compile(_regex(theirs)), ours) for theirs, ours in self.table.items()]

    def ours(self, theirs: str) -> list[str]:
        """Our names for the equal parts of a weight of theirs; none if the table has none."""
        for pattern, ours in self.patterns:
            if found := pattern.fullmatch(theirs):
                return [_sided(each.format(**found.groupdict()), SIDES) for each in ours]
        return []

    def theirs(self, ours: str) -> list[str]:
        """Their names for a weight of ours, or for what it is a part of."""
        name = _sided(ours, {own: side for side, own in SIDES.items()})
        return [
            theirs.format(**found.groupdict())
            for theirs, parts in self.table.items()
            for part in parts
            if (found := re.fullmatch(_regex(part), name))
        ]


def _regex(pattern: str) -> str:
    """The regular expression of a pattern; a placeholder that comes twice stands for the same."""
    parts = re.split(r"\{(\w+)\}", pattern)
    seen: set[str] = set()
    out = []
    for number, part in enumerate(parts):
        if number % 2 == 0:  # the text between placeholders
            out.append(re.escape(part))
        elif part in seen:
            out.append(f"(?P={part})")
        else:
            seen.add(part)
            out.append(f"(?P<{part}>{PLACEHOLDERS.get(part, '[^.]+')})")
    return "".join(out)


def _sided(name: str, sides: Mapping[str, str]) -> str:
    """The name of a weight, with the side of an embedding renamed: ours belong to the source or the
    target, theirs to the encoder or the decoder."""
    side, _, rest = name.partition("_embedding.")
    return f"{sides.get(side, side)}_embedding.{rest}" if rest else name


@dataclass(frozen=True)
class Bart:
    """The settings of BART and its relatives, under the names used there."""

    vocab_size: int
    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    pad_token_id: int
    eos_token_id: int
    activation_function: str = "gelu"
    max_position_embeddings: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    scale_embedding: bool = False
    decoder_start_token_id: int | None = None
    decoder_vocab_size: int | None = None
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True

    def unsupported(self) -> str | None:
        """A part that our Transformer does not have, or None."""
        for part in ("attention_heads", "ffn_dim"):
            sides = [vars(self)[f"{side}_{part}"] for side in ("encoder", "decoder")]
            if sides[0] != sides[1]:
                return f"encoder_{part} {sides[0]} and decoder_{part} {sides[1]}"
        if self.activation_function not in ACTIVATIONS:
            return f"activation_function '{self.activation_function}'"
        return f"an odd d_model, {self.d_model}" if self.d_model % 2 else None

    def sections(self, kind: "Architecture") -> dict[str, Any]:
        """The fields of our configuration."""
        computed = kind.positions != "learned"
        return {
            "d_model": self.d_model,
            "num_heads": self.encoder_attention_heads,
            "d_ff": self.encoder_ffn_dim,
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": ACTIVATIONS[self.activation_function],
            "max_length": self.max_position_embeddings,
            "norm": kind.norm,
            "positions": kind.positions,
            "first_position": self.pad_token_id + 1 if kind.counts_padding else 0,
            "embedding_norm": kind.embedding_norm,
            "embedding_scale": self.scale_embedding,
        } | ({} if computed else {"first_position": 0})


@dataclass(frozen=True)
class T5:
    """The settings of T5 and its relatives, under the names used there."""

    share_encoder_decoder_embeddings: ClassVar[bool] = True
    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_heads: int
    num_decoder_layers: int | None = None
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = ""
    n_positions: int = 1024
    pad_token_id: int = 0
    eos_token_id: int = 1
    decoder_start_token_id: int | None = 0
    tie_word_embeddings: bool | None = None
    scale_decoder_outputs: bool | None = None

    def unsupported(self) -> str | None:
        """A part that our Transformer does not have, or None."""
        gated, _, name = self.feed_forward_proj.rpartition("-")
        if gated not in ("", "gated") or (
            self.feed_forward_proj and name not in (GATED if gated else ACTIVATIONS)
        ):
            return f"feed_forward_proj '{self.feed_forward_proj}'"
        return None

    def scales(self, kind: "Architecture") -> bool:
        """Whether hidden states are multiplied by d_model^-0.5 before the output."""
        if not kind.scales_output:
            return False
        if self.scale_decoder_outputs is not None:
            return self.scale_decoder_outputs
        return self.tie_word_embeddings is not False

    def sections(self, kind: "Architecture") -> dict[str, Any]:
        """The fields of our configuration."""
        gated, _, name = (self.feed_forward_proj or kind.activation).rpartition("-")
        return {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_k": self.d_kv,
            "d_v": self.d_kv,
            "d_ff": self.d_ff,
            "encoder_layers": self.num_layers,
            "decoder_layers": self.num_decoder_layers or self.num_layers,
            "dropout": self.dropout_rate,
            "activation": GATED[name] if gated else ACTIVATIONS[name],
            "max_length": max(self.n_positions, 1024),
            "norm": "pre",
            "norm_kind": "rms",
            "norm_epsilon": self.layer_norm_epsilon,
            "positions": "bucketed",
            "buckets": self.relative_attention_num_buckets,
            "farthest": self.relative_attention_max_distance,
            "shared_positions": kind.shared_positions,
            "embedding_scale": False,
            "bias": False,
        }


@dataclass(frozen=True)
class Architecture:
    """A published architecture.

    Attributes:
        settings: the record of its configuration.
        names: its weights, theirs -> ours.
        tables: the names of the shared embedding, of the encoder's, the decoder's, and the output.
        bias: the name of the bias of its output, if it has one.
        idle: patterns of weights that nothing reads.
        norm, positions, embedding_norm, shared_positions: of our configuration; theirs lacks them.
        activation: in their words, if a configuration names none.
        scales_output: whether hidden states may be scaled before the output; see `T5.scales`.
        counts_padding: whether positions are counted from after the id of the padding token.
        rows: how many rows of its learned positions come before the first position.
        like: keys of a configuration by which it is recognised where it says no `model_type`.
        only: the one value that each of these keys of a configuration may have.
    """

    name: str
    settings: type[Bart] | type[T5]
    names: Mapping[str, str | list[str]]
    tables: tuple[str, str, str, str]
    bias: str | None = None
    idle: tuple[str, ...] = ()
    norm: str = "pre"
    positions: str = "learned"
    embedding_norm: bool = False
    counts_padding: bool = False
    rows: int = 0
    shared_positions: bool = True
    scales_output: bool = False
    activation: str = "relu"
    like: tuple[str, ...] = ()
    only: Mapping[str, bool] = field(default_factory=dict)

    def tables_of(self, tie: str) -> dict[str, tuple[str, ...]]:
        """Our embedding tables by the kind of weight tying, each with the names that it may have
        there."""
        shared, encoder, decoder, output = self.tables
        tables: dict[str, dict[str, tuple[str, ...]]] = {
            "all": {OUTPUT: (shared, decoder, encoder, output)},
            "embeddings": {OUTPUT: (output,), SOURCE: (shared, decoder, encoder)},
            "decoder": {OUTPUT: (decoder, output), SOURCE: (encoder,)},
            "none": {OUTPUT: (output,), TARGET: (decoder, shared), SOURCE: (encoder, shared)},
        }
        return tables[tie]

    def factor(self, name: str, settings: Any) -> float:
        """The factor by which a weight, under our name, is multiplied. Our attention divides scores
        by sqrt(d_k), T5's does not. T5 may divide hidden states before the output."""
        if not isinstance(settings, T5):
            return 1.0
        if name.endswith("attention.query.weight"):
            return math.sqrt(settings.d_kv)
        scaled = name == "decoder_norm.weight" and settings.scales(self)
        return settings.d_model**-0.5 if scaled else 1.0


_BART: dict[str, Any] = {
    "settings": Bart,
    "names": BART_NAMES,
    "tables": (
        "model.shared.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    ),
    "bias": "final_logits_bias",
    "idle": BART_IDLE,
    "like": ("encoder_ffn_dim", "decoder_ffn_dim", "scale_embedding"),
}
_T5: dict[str, Any] = {
    "settings": T5,
    "names": T5_NAMES,
    "tables": (
        "shared.weight",
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight",
    ),
    "idle": T5_IDLE,
    "positions": "bucketed",
    "like": ("d_kv", "relative_attention_num_buckets", "feed_forward_proj"),
}
ARCHITECTURES: dict[str, Architecture] = {
    each.name: each
    for each in (
        Architecture(
            "marian",
            norm="post",
            positions="sinusoidal_concatenated",
            only={"static_position_embeddings": True}
            | dict.fromkeys(
                ("normalize_before", "normalize_embedding", "add_final_layer_norm"), False
            ),
            **_BART,
        ),
        Architecture("bart", norm="post", embedding_norm=True, rows=2, **_BART),
        Architecture("mbart", embedding_norm=True, rows=2, **_BART),
        Architecture(
            "m2m_100",
            positions="sinusoidal_inclusive",
            counts_padding=True,
            **_BART,
        ),
        Architecture("pegasus", positions="sinusoidal_concatenated", **_BART),
        Architecture("t5", scales_output=True, **_T5),
        Architecture("mt5", activation="gated-gelu", **_T5),
        Architecture(
            "umt5",
            scales_output=True,
            activation="gated-gelu",
            shared_positions=False,
            **_T5,
        ),
    )
}
# Search settings of theirs that ours lacks, with the values that have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), (0, None)),
    **dict.fromkeys(
        ("repetition_penalty", "encoder_repetition_penalty", "num_beam_groups"), (1, None)
    ),
    **dict.fromkeys(("begin_suppress_tokens", "force_words_ids", "constraints"), (None, [])),
    **dict.fromkeys(
        ("do_sample", "sequence_bias", "exponential_decay_length_penalty"), (None, False)
    ),
    "diversity_penalty": (None, 0),
}
# Unsupported relatives, and how each differs from the nearest that is known.
DIFFERENT = {
    "blenderbot": ("mbart", "positions without the two rows before them, and chats"),
    "blenderbot-small": ("bart", "embedding norms in another place"),
    "bigbird_pegasus": ("pegasus", "sparse attention"),
    "longt5": ("t5", "local attention"),
    "switch_transformers": ("t5", "experts instead of feed-forward networks"),
    "nllb-moe": ("m2m_100", "experts instead of feed-forward networks"),
    "led": ("bart", "sparse attention"),
    "pegasus_x": ("pegasus", "sparse attention"),
    "fsmt": ("marian", "vocabularies of its own kind"),
    "prophetnet": ("bart", "several tokens predicted at once"),
    "plbart": ("mbart", "vocabularies of its own kind"),
    "t5gemma": ("t5", "rotary positions and grouped heads"),
    "seamless_m4t": ("m2m_100", "speech"),
}


def kind_of(config: Mapping[str, Any], where: str) -> str:
    """The `model_type` of a configuration, or what its keys say where it is missing.

    Raises:
        TransductError: it is of no known architecture; the nearest is named.
    """
    kind = config.get("model_type")
    if kind in ARCHITECTURES:
        return str(kind)
    if kind is None:
        if guessed := _recognised(config):
            return guessed
        raise TransductError(
            f"{where}: names no model_type, and its keys are of no known one; known are: "
            f"{', '.join(ARCHITECTURES)}"
        )
    near, what = DIFFERENT.get(str(kind), ("", ""))
    if not near:
        near = _recognised(config) or next(
            iter(get_close_matches(str(kind), ARCHITECTURES, 1, 0.3)), ""
        )
        like = ARCHITECTURES[near].like if near else ()
        lacking = [key for key in like if key not in config]
        what = f"its configuration lacks {', '.join(lacking)}" if lacking else "its name"
    nearest = f"; the nearest is '{near}', from which it differs by {what}" if near else ""
    raise TransductError(
        f"{where}: model_type is {kind!r:.40}{nearest}; known are: {', '.join(ARCHITECTURES)}"
    )


def _recognised(config: Mapping[str, Any]) -> str:
    """The architecture to which the class or the keys of a configuration belong; "" if unknown."""
    classes = config.get("architectures")
    named = str(classes[0]).lower() if isinstance(classes, list) and classes else ""
    for kind in ARCHITECTURES:
        if named.startswith(kind.replace("_", "")):
            return kind
    if all(key in config for key in T5_KEYS):
        return "t5"
    if "encoder_ffn_dim" not in config or "decoder_ffn_dim" not in config:
        return ""
    if config.get("static_position_embeddings"):
        start = config.get("decoder_start_token_id")
        return "marian" if start == config.get("pad_token_id") and start != 0 else "pegasus"
    if config.get("normalize_before") or config.get("add_final_layer_norm"):
        return "mbart"
    if config.get("activation_function") == "relu" and config.get("scale_embedding"):
        return "m2m_100"
    return "bart"


def settings_of(kind: Architecture, config: Mapping[str, Any], where: str) -> Any:
    """The settings of a published configuration.

    Raises:
        TransductError: one is missing, of a wrong type, or not supported.
    """
    settings = record(kind.settings, _known(kind.settings, config), "", where)
    odd = (f"{key} {config[key]}" for key, own in kind.only.items() if config.get(key, own) != own)
    if reason := settings.unsupported() or next(odd, None):
        raise TransductError(f"{where}: {reason}; our Transformer does not support it")
    return settings


def _known(kind: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that a record of it takes."""
    known = {each.name for each in fields(kind)}
    given = {name: config[name] for name in known if config.get(name) is not None}
    if isinstance(end := given.get("eos_token_id"), list) and len(end) == 1:
        given["eos_token_id"] = end[0]
    return given


@dataclass(frozen=True)
class Search:
    """What a published model says of its search, under the names used there."""

    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    no_repeat_ngram_size: int = 0
    max_length: int = 0
    max_new_tokens: int = 0
    forced_eos_token_id: int | list[int] | None = None
    bad_words_ids: list[list[int]] = field(default_factory=list)
    suppress_tokens: list[int] = field(default_factory=list)
    renormalize_logits: bool = False

    def decoding(self, begun: int) -> dict[str, Any]:
        """Our settings; `begun` tokens are forced before the first choice."""
        longest = max(0, (self.max_new_tokens or self.max_length - 1) - begun)
        return {
            "length_rule": "power",
            "beam": self.num_beams,
            "length_penalty": self.length_penalty,
            "stopping": {False: "estimate", True: "early", "never": "never"}[self.early_stopping],
            **({"no_repeat": self.no_repeat_ngram_size} if self.no_repeat_ngram_size else {}),
            **({"max_length": longest} if longest else {}),
            "at_limit": "cut" if self.forced_eos_token_id is None else "free",
        }

    @property
    def forbidden(self) -> list[int]:
        """The tokens that may not be written."""
        return [*(word[0] for word in self.bad_words_ids if len(word) == 1), *self.suppress_tokens]


def search_of(config: Mapping[str, Any], where: str) -> tuple[Search, list[str]]:
    """What a configuration says of its search, and what of that our search lacks.

    Raises:
        TransductError: a setting is of a wrong type.
    """
    search = record(Search, _known(Search, config), "", where)
    lacking = [
        f"{name} {config[name]!r:.40}"
        for name, neutral in NEUTRAL.items()
        if config.get(name) not in neutral
    ]
    if long := sum(len(word) != 1 for word in search.bad_words_ids):
        lacking.append(f"bad_words_ids of several tokens, {long}")
    return search, lacking
