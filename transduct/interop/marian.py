"""Hugging Face's Marian: its configuration and weights, and their names in our Transformer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduct import storage
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError
from transduct.models.transformer import Config, Transformer

BEGIN, END = Tokenizer.BEGIN, Tokenizer.END
# theirs -> ours
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}
SYNONYMS = {"swish": "silu", "gelu_new": "gelu_pytorch_tanh"}
ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
LAYER = {  # the parts of a layer, ours -> theirs
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "around_attention.norm": "self_attn_layer_norm",
    "around_cross.norm": "encoder_attn_layer_norm",
    "around_feed_forward.norm": "final_layer_norm",
    **{f"{a}.{p}": f"{ATTENTIONS[a]}.{PROJECTIONS[p]}" for a in ATTENTIONS for p in PROJECTIONS},
}
ENCODER, DECODER = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
SHARED, OUTPUT, BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
# For each kind of weight tying, our embedding tables and their possible names there; we write the
# first.
TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "all": {"output_table": (SHARED, DECODER, ENCODER, OUTPUT)},
    "decoder": {"output_table": (DECODER, OUTPUT), "source_embedding.table": (ENCODER,)},
    "none": {
        "output_table": (OUTPUT,),
        "target_embedding.table": (DECODER, SHARED),
        "source_embedding.table": (ENCODER, SHARED),
    },
}
PLACES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
NEAR = 1e-4  # float32 and float64 sinusoids differ by 3e-5 at 512 tokens, other vectors by far more


@dataclass(frozen=True)
class Marian:
    """The settings read from `config.json` and, overriding it, `generation_config.json`, under the
    names used there."""

    vocab_size: int
    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    activation_function: str
    max_position_embeddings: int
    decoder_start_token_id: int
    pad_token_id: int
    eos_token_id: int
    decoder_vocab_size: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    scale_embedding: bool = False
    static_position_embeddings: bool = True
    normalize_before: bool = False
    normalize_embedding: bool = False
    add_final_layer_norm: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    forced_bos_token_id: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    bad_words_ids: list[list[int]] | None = None
    renormalize_logits: bool = False
    early_stopping: bool | str | None = None
    max_length: int | None = None
    max_new_tokens: int | None = None

    @property
    def activation(self) -> str:
        """The activation's name, with synonyms resolved."""
        return SYNONYMS.get(self.activation_function, self.activation_function)

    def left_out(self) -> list[str]:
        """The search settings that change outputs there and that a model of ours does not hold."""
        found = [f"early_stopping {self.early_stopping}"] if self.early_stopping else []
        # theirs obeys the latter
        name = "max_length" if self.max_new_tokens is None else "max_new_tokens"
        if (longest := getattr(self, name)) is not None and longest < self.max_position_embeddings:
            found.append(f"{name} {longest}")
        return found

    def unsupported(self) -> str | None:
        """A part of the model that our Transformer does not support, or None."""
        heads, widths = (
            (getattr(self, f"encoder_{name}"), getattr(self, f"decoder_{name}"))
            for name in ("attention_heads", "ffn_dim")
        )
        named = ("normalize_before", "normalize_embedding", "add_final_layer_norm")
        wrong = {
            f"encoder_attention_heads {heads[0]} and decoder_attention_heads {heads[1]}": heads[0]
            != heads[1],
            f"encoder_ffn_dim {widths[0]} and decoder_ffn_dim {widths[1]}": widths[0] != widths[1],
            f"activation_function '{self.activation_function}'": self.activation not in ACTIVATIONS,
            "scale_embedding false": not self.scale_embedding,
            "static_position_embeddings false": not self.static_position_embeddings,
            **{f"{name} true": getattr(self, name) for name in named},
            f"an odd d_model, {self.d_model}": self.d_model % 2 == 1,
            "a decoder_start_token_id that is not pad_token_id": self.decoder_start_token_id
            != self.pad_token_id,
            f"forced_bos_token_id {self.forced_bos_token_id}": self.forced_bos_token_id is not None,
            f"no_repeat_ngram_size {self.no_repeat_ngram_size}": (self.no_repeat_ngram_size or 0)
            < 0,
            f"num_beams {self.num_beams}": self.num_beams is not None
            and not 1 <= self.num_beams <= 1000,
            f"length_penalty {self.length_penalty}": not abs(self.length_penalty or 0.0) <= 20.0,
        }
        return next((reason for reason, found in wrong.items() if found), None)


def unsupported(config: Config) -> str | None:
    """A part of our model that Marian does not support, or None."""
    if config.norm != "post" or config.norm_kind != "layer":
        return f"norms of the kind '{config.norm_kind}' that stand '{config.norm}'"
    if config.positions != "sinusoidal_concatenated":
        return f"positions '{config.positions}'"
    if config.position_mode != "add":
        return "positions that are not added to the embedding"
    if {config.key_width, config.value_width} != {config.d_model // config.num_heads}:
        return f"heads of the widths d_k {config.d_k} and d_v {config.d_v}"
    if config.num_kv_heads not in (None, config.num_heads):
        return f"groups of heads ({config.num_kv_heads} for keys, {config.num_heads} for queries)"
    if config.activation not in ACTIVATIONS.values():
        return f"activation '{config.activation}'"
    if config.d_model % 2:
        return f"an odd d_model, {config.d_model}"
    return config.left_out


def their_config(config: Config) -> dict[str, Any]:
    """The `config.json` for a model of ours."""
    activations = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": config.source_size,
        "decoder_vocab_size": config.target_size,
        "d_model": config.d_model,
        **{f"{side}_layers": getattr(config, f"{side}_layers") for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": config.num_heads for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": config.d_ff for side in ("encoder", "decoder")},
        "activation_function": activations[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": 0.0,
        "max_position_embeddings": config.max_length,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": config.tie == "all",
        "tie_word_embeddings": config.tie != "none",
        "is_encoder_decoder": True,
        "pad_token_id": BEGIN,
        "decoder_start_token_id": BEGIN,
        "eos_token_id": END,
        "forced_eos_token_id": END,
        "dtype": "float32",
    }


def our_weights(
    model: Transformer,
    tensors: dict[str, Tensor],
    source: Sequence[int],
    target: Sequence[int],
    where: Path,
) -> dict[str, Tensor]:
    """Marian's weights under our names, without the position tables.

    Args:
        source, target: their ids of our tokens, in our order.

    Raises:
        TransductError: if a weight is missing, unknown, not finite or of another shape, tied tables
            differ, or the position tables are not sinusoids.
    """
    places = {name: tensors.pop(name) for name in PLACES if name in tensors}
    weights, used = {}, {BIAS, SHARED}  # a zero bias and an unshared `model.shared` may go unread
    for name, own in storage.weights_of(model).items():
        aliases = _theirs(name, model.config.tie)
        known = [tensors[alias] for alias in aliases if alias in tensors]
        if not known:
            raise TransductError(
                f"{where}: lacks weight '{aliases[0]}'; {storage.CONFIG} is of another model"
            )
        found, *others = known
        if model.config.tie != "none" and not all(torch.equal(other, found) for other in others):
            raise TransductError(
                f"{where}: {' and '.join(aliases)} differ, {storage.CONFIG} says that they are "
                "tied; expected one table"
            )
        shape = (1, *own.shape) if name == "output_bias" else tuple(own.shape)
        if tuple(found.shape) != shape:
            raise TransductError(
                f"{where}: weight '{aliases[0]}' is {tuple(found.shape)}, {storage.CONFIG} says "
                f"{shape}; {storage.CONFIG} is of another model"
            )
        if name in ("output_bias", *TABLES[model.config.tie]):
            rows = torch.tensor(source if name == "source_embedding.table" else target)
            found = found.view(own.shape).index_select(0, rows)
        weights[name] = found.float()
        if not found.is_floating_point() or not bool(weights[name].isfinite().all()):
            raise TransductError(
                f"{where}: weight '{aliases[0]}' holds values that are not numbers; copy it again"
            )
        used |= {*aliases}
    if odd := sorted(tensors.keys() - used):
        raise TransductError(
            f"{where}: has an unknown weight '{odd[0]}'; {storage.CONFIG} is of another model"
        )
    check_sinusoids(model.config, places, where)
    return weights


def their_weights(model: Transformer) -> dict[str, Tensor]:
    """Our weights under Marian's names."""
    weights = {BIAS: torch.zeros(1, model.config.target_size)}
    for name, weight in storage.weights_of(model).items():
        weights[_theirs(name, model.config.tie)[0]] = weight.contiguous()
    weights[BIAS] = weights[BIAS].view(1, -1)
    return weights


def _theirs(name: str, tie: str) -> tuple[str, ...]:
    """The possible Marian names of one of our weights, the one we write first:
    encoder.0.feed_forward.inner.bias is model.encoder.layers.0.fc1.bias."""
    if name == "output_bias":
        return (BIAS,)
    if name in TABLES[tie]:
        return TABLES[tie][name]
    side, number, part, layer, kind = name.split(".")
    return (f"model.{side}.layers.{number}.{LAYER[f'{part}.{layer}']}.{kind}",)


def check_sinusoids(config: Config, tables: dict[str, Tensor], where: Path) -> None:
    """Reject position tables that differ from the sinusoids our model computes."""
    if not tables:
        return
    small = replace(
        config, source_size=3, target_size=3, encoder_layers=1, decoder_layers=1, d_ff=1
    )
    positions, places = (
        Transformer(small).source_embedding.positions,
        torch.arange(config.max_length),
    )
    assert positions is not None
    own = positions(places, places)
    for name, table in tables.items():
        near = max(NEAR, torch.finfo(table.dtype).eps) if table.is_floating_point() else 0.0
        if table.shape != own.shape or not bool((table.float() - own).abs().max() <= near):
            raise TransductError(
                f"{where}: '{name}' {tuple(table.shape)} holds no sinusoids; our Transformer has "
                "no place for it"
            )
