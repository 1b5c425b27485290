"""Exports the Transformer to CTranslate2, to run in its engine or compare with it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transduct import storage
from transduct.data.tokenizer import Tokenizer, tokenizers_in, tokenizers_of
from transduct.errors import TransductError, needing
from transduct.inference.settings import EXPANSION, DecodingConfig
from transduct.interop.export import for_tool, loaded
from transduct.models.transformer import Config, Transformer
from transduct.records import record

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "swiglu": "SWISH",
}
INSIDE = "rotary", "relative"  # positions that are part of attention
BEGIN, END, UNKNOWN = Tokenizer.BEGIN, Tokenizer.END, Tokenizer.UNKNOWN
NEVER = -1e4  # a logit bias that is finite in float16


def convert(directory: Path, out: Path) -> None:
    """Write the translation model in a model directory as a CTranslate2 model with its tokenizers.

    Sources are passed to it as the pieces of our tokenizer; it adds the end token. Its
    `config.json` notes what CTranslate2 itself ignores: under `replace` the text replacements to
    apply before tokenization, as in ours, and under `search` our rules of a search, which the
    program in docs/migrating.md obeys.

    Raises:
        TransductError: if the model is not a translation Transformer, is already quantised or has a
            part that CTranslate2 does not support, `out` exists, or the disk is full.
    """
    with needing("ctranslate2"):
        from ctranslate2 import specs
    settings, config = for_tool("CTranslate2", directory, out)
    if reason := unsupported(config):
        raise TransductError(
            f"{directory}: CTranslate2 does not support {reason}; train a model without it"
        )
    model = loaded(directory, config)
    paths, tokenizers = (
        tokenizers_in(directory),
        tokenizers_of(directory, (config.source_size, config.target_size)),
    )
    with storage.new_directory(out) as folder:
        spec = _specification(specs, model, tokenizers)
        spec.config.add_attribute("replace", settings.get("replace", []))
        spec.config.add_attribute("search", _search(settings, config, str(directory)))
        spec.save(str(folder))
        for path in paths:
            shutil.copyfile(path, folder / path.name)


def _search(settings: Mapping[str, Any], config: Config, where: str) -> dict[str, Any]:
    """Our rules of a search. An output has at most `expansion` tokens for each of its source, and
    `more`, but never more than `most`; ends are counted."""
    decoding = record(DecodingConfig, settings.get("decoding", {}), "decoding", where)
    names = ("beam", "length_rule", "length_penalty", "stopping", "at_limit")
    fixed = decoding.max_length and not decoding.expansion
    return {name: getattr(decoding, name) for name in names} | {
        "expansion": 0.0 if fixed else decoding.expansion or EXPANSION[0],
        "more": decoding.limit(0),
        "most": min(config.max_length, decoding.limit(config.max_length)),
    }


def unsupported(config: Config) -> str | None:
    """A part of the model that CTranslate2 does not support, or None."""
    vectors = config.positions not in ("none", *INSIDE)
    parts = {
        "positions 'alibi' in an encoder": config.positions == "alibi",
        f"positions '{config.positions}' that are not added to the embedding": (
            vectors and config.position_mode != "add"
        ),
        "positions that depend on the length of the sentence": config.length_dependent,
        f"heads of the widths d_k {config.d_k} and d_v {config.d_v}": (
            config.key_width != config.value_width
        ),
    }
    return next((part for part, there in parts.items() if there), config.left_out)


def _specification(specs: Any, model: Transformer, tokenizers: list[Tokenizer]) -> Any:
    config = model.config
    shape = {
        "num_heads": config.num_heads,
        "num_heads_kv": config.num_kv_heads,
        "head_dim": config.d_k,
        "pre_norm": config.norm == "pre",
        "activation": getattr(specs.common_spec.Activation, ACTIVATIONS[config.activation]),
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm_kind == "rms",
        "relative_position": config.positions == "relative",
        "rotary_dim": 0 if config.positions == "rotary" else None,  # 0: the whole head
        "rotary_interleave": False,
    }
    spec = specs.TransformerSpec(
        specs.transformer_spec.TransformerEncoderSpec(config.encoder_layers, **shape),
        specs.transformer_spec.TransformerDecoderSpec(config.decoder_layers, **shape),
    )
    for side, table, embedding, layers, norm in (
        (
            spec.encoder,
            spec.encoder.embeddings[0],
            model.source_embedding,
            model.encoder,
            model.encoder_norm,
        ),
        (
            spec.decoder,
            spec.decoder.embeddings,
            model.target_embedding,
            model.decoder,
            model.decoder_norm,
        ),
    ):
        _embedding(table, side, embedding, config)
        for spec_layer, layer in zip(side.layer, layers, strict=True):
            _layer(spec_layer, layer)
        if config.norm == "pre":
            _norm(side.layer_norm, norm)
    spec.decoder.projection.weight = model.output_table.detach().numpy()
    bias = _output_bias(model)
    if bias is not None:
        spec.decoder.projection.bias = bias.numpy()
    spec.register_source_vocabulary(tokenizers[0].pieces(range(config.source_size)))
    spec.register_target_vocabulary(tokenizers[-1].pieces(range(config.target_size)))
    begin, end, unknown = tokenizers[-1].pieces([BEGIN, END, UNKNOWN])
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = begin, end, unknown
    spec.config.decoder_start_token, spec.config.add_source_eos = begin, True
    if config.norm_kind == "rms":
        spec.config.layer_norm_epsilon = 1e-6
    spec.validate()
    spec.optimize()
    return spec


def _embedding(spec: Any, side: Any, embedding: Any, config: Config) -> None:
    spec.weight = embedding.table.detach().numpy()
    if config.positions in INSIDE:
        return
    places = torch.arange(config.max_length)
    if embedding.positions is None:  # without these zeros CTranslate2 would add sinusoids
        vectors = torch.zeros(config.max_length, config.d_model)
    else:
        vectors = embedding.positions(places, places).detach().float()
    side.position_encodings.encodings = vectors.numpy()


def _output_bias(model: Transformer) -> torch.Tensor | None:
    """The bias of the logits. Marian's padding, our begin token, often has a row of zeros: its
    logit may be the highest, and CTranslate2 forbids no token."""
    bias = None if model.output_bias is None else model.output_bias.detach()
    if not bool(model.output_table[BEGIN].any()):
        bias = torch.zeros(model.config.target_size) if bias is None else bias.clone()
        bias[BEGIN] = NEVER
    return bias


def _layer(spec: Any, layer: Any) -> None:
    own = layer.self_attention
    _fused(spec.self_attention.linear[0], [own.query, own.key, own.value])
    _fused(spec.self_attention.linear[1], [own.output])
    if hasattr(spec.self_attention, "relative_position_keys"):
        table = own.positions.table.detach()
        spec.self_attention.relative_position_keys = table.numpy()
        spec.self_attention.relative_position_values = torch.zeros_like(
            table
        ).numpy()  # ours has none
    _norm(spec.self_attention.layer_norm, layer.around_attention.norm)
    if hasattr(layer, "cross_attention"):
        cross = layer.cross_attention
        _fused(spec.attention.linear[0], [cross.query])
        _fused(spec.attention.linear[1], [cross.key, cross.value])
        _fused(spec.attention.linear[2], [cross.output])
        _norm(spec.attention.layer_norm, layer.around_cross.norm)
    _fused(spec.ffn.linear_0, [layer.feed_forward.inner])
    _fused(spec.ffn.linear_1, [layer.feed_forward.outer])
    if layer.feed_forward.gate is not None:
        _fused(spec.ffn.linear_0_noact, [layer.feed_forward.gate])
    _norm(spec.ffn.layer_norm, layer.around_feed_forward.norm)


def _fused(spec: Any, layers: list[nn.Linear]) -> None:
    """Concatenate linear layers that read the same input into one."""
    spec.weight = torch.cat([layer.weight.detach() for layer in layers]).numpy()
    spec.bias = torch.cat([layer.bias.detach() for layer in layers]).numpy()


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = norm.weight.detach().numpy()
    if isinstance(norm, nn.LayerNorm):
        spec.beta = norm.bias.detach().numpy()
