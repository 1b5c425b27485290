"""Export of translation models to Hugging Face's Marian format, which OPUS-MT publishes in.

Marian's decoder adds a bias to the logits and starts from the padding token.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from transduct import storage
from transduct.data.tokenizer import Tokenizer, tokenizers_in
from transduct.errors import TransductError, require
from transduct.interop import sentencepiece
from transduct.interop.architectures import ARCHITECTURES, Names
from transduct.interop.export import for_tool, loaded
from transduct.interop.published import GENERATION
from transduct.interop.vocabularies import LISTED, OWN, SIDES, SPECIAL_NAMES
from transduct.models.transformer import Config, Transformer

MARIAN = ARCHITECTURES["marian"]
BEGIN, END, UNKNOWN = Tokenizer.BEGIN, Tokenizer.END, Tokenizer.UNKNOWN
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "silu": "silu"}
TRAIN = (
    "train a model with model.norm=post model.positions=sinusoidal_concatenated, norm_kind=layer, "
    "position_mode=add, an even d_model, d_k, d_v and num_kv_heads left out, and activation=relu, "
    "gelu, gelu_tanh or silu"
)


def convert(directory: Path, out: Path) -> None:
    """Write the translation model in a model directory as a Hugging Face Marian model with its
    tokenizers.

    Tokenizers that came from SentencePiece models are written as such, others in the tokenizers
    library's format. The begin token also serves as padding.

    Raises:
        TransductError: if the model is not a translation Transformer or is already quantised,
            Marian does not support a part of it or its text replacements, or `out` exists.
    """
    settings, config = for_tool("Marian", directory, out)
    require(
        not settings.get("replace"),
        f"{directory}: text is changed before it is cut; Marian does not support data.replace",
    )
    reason = unsupported(config)
    require(reason is None, f"{directory}: Marian does not support {reason}; {TRAIN}")
    content = {
        storage.CONFIG: storage.pack_json(their_config(config)),
        GENERATION: storage.pack_json(_their_generation(config, settings.get("decoding", {}))),
        storage.WEIGHTS: save(their_weights(loaded(directory, config)), {"format": "pt"}),
        **_their_tokenizers(tokenizers_in(directory), config),
    }
    storage.write_directory(out, content)


def unsupported(config: Config) -> str | None:
    """A part of our model that Marian does not support, or None."""
    heads, groups = config.num_heads, config.num_kv_heads
    parts = {
        f"norms of the kind '{config.norm_kind}' that stand '{config.norm}'": (
            (config.norm, config.norm_kind) != ("post", "layer")
        ),
        f"positions '{config.positions}'": config.positions != "sinusoidal_concatenated",
        "positions that are not added to the embedding": config.position_mode != "add",
        f"heads of the widths d_k {config.d_k} and d_v {config.d_v}": (
            {config.key_width, config.value_width} != {config.d_model // heads}
        ),
        f"groups of heads ({groups} for keys, {heads} for queries)": groups not in (None, heads),
        f"activation '{config.activation}'": config.activation not in ACTIVATIONS,
        f"an odd d_model, {config.d_model}": config.d_model % 2 == 1,
    }
    return next((part for part, there in parts.items() if there), config.left_out)


def their_config(config: Config) -> dict[str, Any]:
    """The `config.json` for a model of ours."""
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": config.source_size,
        "decoder_vocab_size": config.target_size,
        "d_model": config.d_model,
        **{f"{side}_layers": getattr(config, f"{side}_layers") for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": config.num_heads for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": config.d_ff for side in ("encoder", "decoder")},
        "activation_function": ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": 0.0,
        "max_position_embeddings": config.max_length,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": config.tie in ("all", "embeddings"),
        "tie_word_embeddings": config.tie in ("all", "decoder"),
        "is_encoder_decoder": True,
        "pad_token_id": BEGIN,
        "decoder_start_token_id": BEGIN,
        "eos_token_id": END,
        "forced_eos_token_id": END,
        "dtype": "float32",
    }


def their_weights(model: Transformer) -> dict[str, Tensor]:
    """Our weights under Marian's names."""
    names, tie, size = Names(MARIAN.names), model.config.tie, model.config.target_size
    tables, bias = MARIAN.tables_of(tie), str(MARIAN.bias)
    weights = {bias: torch.zeros(size)}
    for name, weight in storage.weights_of(model).items():
        theirs = tables.get(name) or names.theirs(name) or [bias]
        # Where the output has a table of its own, nothing there is tied: the sides get theirs too.
        for each in theirs if tie == "embeddings" else theirs[:1]:
            weights[each] = weight.detach().clone()
    return weights | {bias: weights[bias].view(1, -1)}


def _their_generation(config: Config, decoding: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "decoder_start_token_id": BEGIN,
        "pad_token_id": BEGIN,
        "eos_token_id": END,
        "forced_eos_token_id": None if decoding.get("at_limit") == "cut" else END,
        "bad_words_ids": [[UNKNOWN], [BEGIN]],
        "num_beams": decoding.get("beam", 5),
        "length_penalty": decoding.get("length_penalty", 1.0),
        "early_stopping": {"early": True, "never": "never"}.get(
            decoding.get("stopping", ""), False
        ),
        "no_repeat_ngram_size": decoding.get("no_repeat", 0),
        # theirs counts the begin token
        "max_length": (decoding.get("max_length") or config.max_length) + 1,
    }


def _their_tokenizers(paths: Sequence[Path], config: Config) -> dict[str, bytes]:
    """The tokenizer files that Hugging Face expects."""
    texts = [path.read_text(encoding="utf-8") for path in paths]
    pieces = [each for each in map(sentencepiece.model_in, texts) if each is not None]
    if pieces and len(pieces) < len(texts):
        raise TransductError(
            f"{paths[0].parent}: one of its tokenizers was SentencePiece's, one is ours; Marian "
            "takes both of a kind"
        )
    settings: dict[str, Any] = {
        "tokenizer_class": "MarianTokenizer" if pieces else "PreTrainedTokenizerFast",
        "unk_token": Tokenizer.SPECIALS[UNKNOWN],
        "pad_token": Tokenizer.SPECIALS[BEGIN],
        "eos_token": Tokenizer.SPECIALS[END],
        "model_max_length": config.max_length,
        "split_special_tokens": True,  # the name of a special token in a text is plain text
        "clean_up_tokenization_spaces": False,
    }
    dump = storage.pack_json
    if not pieces:
        return {SPECIAL_NAMES: dump(settings)} | {
            name: dump(_ending(text)) for name, text in zip(OWN, texts)
        }
    separate = config.tie in ("decoder", "none")
    content = {SPECIAL_NAMES: dump(settings | {"separate_vocabs": separate})}
    for side, tokenizer in enumerate((Tokenizer(texts[0]), Tokenizer(texts[-1]))):
        content[SIDES[side]] = sentencepiece.write((pieces[0], pieces[-1])[side])
        if side == 0 or separate:
            numbered = {
                name: number for number, name in enumerate(tokenizer.pieces(range(tokenizer.size)))
            }
            content[LISTED[side]] = dump(numbered)
    return content


def _ending(text: str) -> dict[str, Any]:
    """A tokenizer file, changed to append the end token to every text."""
    file: dict[str, Any] = json.loads(text)
    end = Tokenizer.SPECIALS[END]
    file["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": end, "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {end: {"id": end, "ids": [END], "tokens": [end]}},
    }
    return file
