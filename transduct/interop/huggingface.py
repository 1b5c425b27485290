"""Import of models in Hugging Face's format, and export of Marian ones, which OPUS-MT publishes.

Their decoders add a bias to the logits, start from the padding token and number tokens by
`vocab.json`; our vocabularies start with the unknown, begin and end tokens.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save
from torch import Tensor

from transduct import storage
from transduct.config import record
from transduct.data.tokenizer import (
    SIDE_TOKENIZERS,
    TOKENIZER,
    Tokenizer,
    tokenizer_files,
    tokenizers_in,
)
from transduct.errors import TransductError
from transduct.interop import published, sentencepiece
from transduct.interop import weights as files_of
from transduct.interop.architectures import kind_of
from transduct.interop.export import for_tool, loaded
from transduct.interop.marian import (
    ACTIVATIONS,
    BIAS,
    Marian,
    our_weights,
    their_config,
    their_weights,
    unsupported,
)
from transduct.models.transformer import Config, Transformer

BEGIN, END, UNKNOWN = Tokenizer.BEGIN, Tokenizer.END, Tokenizer.UNKNOWN
GENERATION, SPECIAL_NAMES = "generation_config.json", "tokenizer_config.json"
# The tokenizers that `convert` writes in the library's own format.
OWN = (TOKENIZER, SIDE_TOKENIZERS[1])
MODELS, VOCABULARIES = ("source.spm", "target.spm"), ("vocab.json", "target_vocab.json")
# a logit bias that makes a token's probability vanish, but keeps label-smoothed losses moderate
NEVER = -100.0
OBEYED = {  # search options of theirs that ours lacks, with the values that have no effect
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "num_beam_groups"), 1),
    **{key: [] for key in ("suppress_tokens", "begin_suppress_tokens")},
    **dict.fromkeys(("do_sample", "sequence_bias", "exponential_decay_length_penalty"), False),
}
TRAIN = (
    "train a model with model.norm=post model.positions=sinusoidal_concatenated, norm_kind=layer, "
    "position_mode=add, an even d_model, d_k, d_v and num_kv_heads left out, and activation=relu, "
    "gelu, gelu_tanh or silu"
)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of one side in our order (unknown, begin, end, then the others as before), and
    their original ids."""

    names: list[str]
    ids: list[int]


# vocabularies and tokenizers of source and target
Sided = tuple[tuple[Vocabulary, Vocabulary], list[str]]


def found_in(directory: Path) -> bool:
    """Whether a folder's `config.json` is in Hugging Face's format."""
    try:
        config = json.loads((directory / storage.CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return (
        isinstance(config, dict)
        and "task" not in config
        and ("model_type" in config or "architectures" in config or "vocab_size" in config)
    )


def read(directory: Path, out: Path) -> None:
    """Convert a model in Hugging Face's format to a model directory of ours.

    If `renormalize_logits` takes forbidden tokens out of the softmax, a logit bias does so here.

    Raises:
        TransductError: if a file is missing, damaged or inconsistent with another, the model is not
            Marian or of a kind that our Transformer does not support, or `out` exists.
    """
    storage.require_absent(out)
    kind = kind_of(*published.configuration(directory))
    if kind != "marian":
        published.read(directory, out, kind)
        return
    marian = _marian(directory)
    vocabularies, texts = _ours(directory, marian) or _theirs(directory, marian)
    source, target = vocabularies
    forbidden = _forbidden(marian, target, directory)
    tensors = _tensors(directory)
    if forbidden:
        tensors.setdefault(BIAS, torch.zeros(1, len(target.ids)))
    biased = bool(forbidden) or (BIAS in tensors and bool(tensors[BIAS].any()))
    config = _our_config(marian, vocabularies, biased, directory / storage.CONFIG)
    if config.encoder_layers + config.decoder_layers > len(tensors):
        raise TransductError(
            f"{directory / storage.WEIGHTS}: lacks the weights of layers; {storage.CONFIG} is of "
            "another model"
        )
    with torch.device("meta"):  # shapes are compared before anything is allocated
        model = Transformer(config)
    weights = our_weights(model, tensors, source.ids, target.ids, directory / storage.WEIGHTS)
    if forbidden:
        weights["output_bias"][forbidden] = NEVER
    shared = texts[0] == texts[1] and source is target
    penalty = 1.0 if marian.length_penalty is None else marian.length_penalty
    settings = {
        "format": storage.FORMAT,
        "task": "translation",
        "model": asdict(config),
        "family": "transformer",
        # They divide by a power of the length, we by one of (5 + length) / 6; long outputs are
        # ranked alike.
        "decoding": {
            "beam": 1 if marian.num_beams is None else marian.num_beams,
            "length_penalty": penalty,
            "no_repeat": marian.no_repeat_ngram_size or 0,
        },
        "replace": [],
    }
    content = {
        storage.CONFIG: storage.pack_json(settings),
        storage.WEIGHTS: storage.pack(weights),
        "card.md": _card(
            directory.resolve().name, out.name, settings, shared, marian.left_out()
        ).encode(),
        **{name: text.encode() for name, text in zip(tokenizer_files(shared), texts)},
    }
    storage.write_directory(out, content)


def _forbidden(marian: Marian, target: Vocabulary, directory: Path) -> list[int]:
    """Our ids of the forbidden tokens that count for nothing in the softmax.

    Raises:
        TransductError: if a token is forbidden that ours may write.
    """
    words = marian.bad_words_ids or []
    for word in words:
        if len(word) != 1 or word[0] not in target.ids[:END]:
            raise TransductError(
                f"{directory}: bad_words_ids forbids {word}; ours forbids <unk> and padding "
                "alone: leave it out"
            )
    return [target.ids.index(word[0]) for word in words] if marian.renormalize_logits else []


def _our_config(
    marian: Marian, vocabularies: Sequence[Vocabulary], bias: bool, where: Path
) -> Config:
    tie = (
        "none"
        if not marian.tie_word_embeddings
        else "all"
        if marian.share_encoder_decoder_embeddings
        else "decoder"
    )
    sections = {
        "source_size": len(vocabularies[0].ids),
        "target_size": len(vocabularies[1].ids),
        "d_model": marian.d_model,
        "num_heads": marian.encoder_attention_heads,
        "d_ff": marian.encoder_ffn_dim,
        "encoder_layers": marian.encoder_layers,
        "decoder_layers": marian.decoder_layers,
        "dropout": marian.dropout,
        "attention_dropout": marian.attention_dropout,
        "norm": "post",
        "positions": "sinusoidal_concatenated",
        "tie": tie,
        "activation": ACTIVATIONS[marian.activation],
        "max_length": marian.max_position_embeddings,
        "output_bias": bias,
    }
    return record(Config, sections, "model", str(where))


def _marian(directory: Path) -> Marian:
    """The configuration of a Marian model that our Transformer supports."""
    where = directory / storage.CONFIG
    config = storage.read_object(where, "a model's configuration")
    files = str(where)
    if (generation := directory / GENERATION).exists():
        config |= storage.read_object(generation, "how outputs are searched for")
        files += f" or {GENERATION}"
    known = {field.name for field in fields(Marian)}
    marian = record(
        Marian, {name: value for name, value in config.items() if name in known}, "", files
    )
    for name, neutral in OBEYED.items():
        if config.get(name) not in (None, neutral):
            raise TransductError(
                f"{files}: {name} is {config[name]!r:.40}; leave it out: our search has none"
            )
    if reason := marian.unsupported():
        raise TransductError(f"{files}: {reason}; our Transformer has no place for it")
    return marian


def _theirs(directory: Path, marian: Marian) -> Sided:
    """The tokenizers of a published model: SentencePiece models, and vocabularies that number their
    pieces."""
    vocabularies = _vocabularies(directory, marian)
    return vocabularies, [
        sentencepiece.read(directory / name, each.names) for name, each in zip(MODELS, vocabularies)
    ]


def _ours(directory: Path, marian: Marian) -> Sided | None:
    """The tokenizers of a model that `convert` wrote in the library's own format, or None."""
    paths = [directory / name for name in OWN]
    if (directory / MODELS[0]).exists() or not paths[0].exists():
        return None
    sizes = [marian.vocab_size, marian.decoder_vocab_size or marian.vocab_size]
    # one tokenizer may have two embedding tables
    if marian.share_encoder_decoder_embeddings or not paths[1].exists():
        paths[1] = paths[0]
    for path in paths:
        storage.check_file(path, "a tokenizer")
    sides = [Tokenizer.load(path) for path in paths]
    begin, end = marian.decoder_start_token_id, marian.eos_token_id
    for path, tokenizer, size in zip(paths, sides, sizes):
        if (tokenizer.size, begin, end) != (size, BEGIN, END):
            raise TransductError(
                f"{path}: {tokenizer.size} tokens, outputs begin after {BEGIN} and end with {END}; "
                f"{storage.CONFIG} says {size}, {begin} and {end}: copy both files again"
            )
    source, target = (
        Vocabulary(each.pieces(range(each.size)), [*range(each.size)]) for each in sides
    )
    return (source, source if paths[0] == paths[1] else target), [_unended(path) for path in paths]


def _vocabularies(directory: Path, marian: Marian) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target; a single object if both share their embeddings."""
    path = directory / SPECIAL_NAMES
    named = storage.read_object(path, "the names of special tokens") if path.exists() else {}
    begin, end = marian.decoder_start_token_id, marian.eos_token_id
    unknown = _name(named, "unk_token", "<unk>")
    apart = directory / VOCABULARIES[1]
    if marian.share_encoder_decoder_embeddings:
        if named.get("separate_vocabs") and apart.exists():
            raise TransductError(
                f"{apart}: a list of its own, {storage.CONFIG} says that both sides share theirs"
            )
        both = _vocabulary(directory / VOCABULARIES[0], marian.vocab_size, unknown, begin, end)
        return both, both
    size = marian.decoder_vocab_size or marian.vocab_size
    padding, last = _name(named, "pad_token", "<pad>"), _name(named, "eos_token", "</s>")
    return (
        _vocabulary(directory / VOCABULARIES[0], marian.vocab_size, unknown, padding, last),
        _vocabulary(
            apart if apart.exists() else directory / VOCABULARIES[0], size, unknown, begin, end
        ),
    )


def _name(named: Mapping[str, Any], key: str, default: str) -> str:
    """The name of a special token in `tokenizer_config.json`, where it is a string or a mapping
    with `content`."""
    token = named.get(key, default)
    return str(token.get("content", default) if isinstance(token, dict) else token)


def _vocabulary(path: Path, size: int, *specials: int | str) -> Vocabulary:
    """Read a vocabulary and put it into our order; `specials` are unknown, begin and end, by id or
    name."""
    numbers = storage.read_object(path, "the id of each token")
    found = {number for number in numbers.values() if type(number) is int}
    whole = all(name == name.encode("utf-8", "replace").decode() for name in numbers)
    if found == {*range(len(numbers))} and len(numbers) < size:
        raise TransductError(
            f"{path}: {len(numbers)} tokens, {storage.CONFIG} says {size}: copy both files again "
            "or, if the model's tables were enlarged, run "
            f"model.resize_token_embeddings({len(numbers)}) there and save it"
        )
    if len(numbers) != size or found != {*range(size)} or not whole:
        raise TransductError(
            f"{path}: {len(numbers)} tokens, {storage.CONFIG} says {size}; expected each id below "
            "that once, for a name of whole characters: copy both files again"
        )
    names = {number: name for name, number in numbers.items()}
    first = [numbers.get(special) if isinstance(special, str) else special for special in specials]
    if not {*first} <= names.keys() or len({*first}) < len(first):
        raise TransductError(
            f"{path}: unknown, padding and end of a sentence have the ids {first}; expected three "
            "different ones"
        )
    ids = [*first, *sorted(names.keys() - {*first})]
    return Vocabulary([names[number] for number in ids], ids)


def _tensors(directory: Path) -> dict[str, Tensor]:
    """The weights of a model, by name."""
    with files_of.opened(directory) as weights:
        return {name: weights.tensor(name).clone() for name in weights.names}


def _card(
    name: str, out: str, settings: Mapping[str, Any], shared: bool, left_out: Sequence[str]
) -> str:
    """The model card: origin, differences, and a recipe for fine-tuning."""
    model, decoding = settings["model"], settings["decoding"]
    derived = ("source_size", "target_size", "max_length")  # set by other sections
    sections = {
        "data": {"max_length": model["max_length"]},
        "tokenizer": {"shared": shared},
        "model": {"start_from": out}
        | {key: value for key, value in model.items() if key not in derived},
        "decoding": decoding,
    }
    recipe = "\n".join(
        f"{name}: {json.dumps(section, ensure_ascii=False)}" for name, section in sections.items()
    )
    lacks = f"\nNot taken over: {', '.join(left_out)}.\n" if left_out else ""
    return f"""# Translation model

Converted from a model in Hugging Face's format, {name}.

It never writes its unknown token. Here outputs end at {model["max_length"]} tokens, or at twice the
source's length plus 20. Hypotheses are ranked with Wu et al.'s length penalty, which differs from
Hugging Face's for short ones.
{lacks}
To train it further, add this to a recipe's data and training (`start_from` is this directory):

```yaml
{recipe}
```
"""


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
    if settings.get("replace"):
        raise TransductError(
            f"{directory}: text is changed before it is cut; Marian has no place for data.replace"
        )
    if reason := unsupported(config):
        raise TransductError(f"{directory}: Marian has no place for {reason}; {TRAIN}")
    content = {
        storage.CONFIG: storage.pack_json(their_config(config)),
        GENERATION: storage.pack_json(_their_generation(config, settings.get("decoding", {}))),
        storage.WEIGHTS: save(their_weights(loaded(directory, config)), {"format": "pt"}),
        **_their_tokenizers(tokenizers_in(directory), config),
    }
    storage.write_directory(out, content)


def _their_generation(config: Config, decoding: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "decoder_start_token_id": BEGIN,
        "pad_token_id": BEGIN,
        "eos_token_id": END,
        "forced_eos_token_id": END,
        "bad_words_ids": [[UNKNOWN], [BEGIN]],
        "num_beams": decoding.get("beam", 5),
        "length_penalty": decoding.get("length_penalty", 1.0),
        "no_repeat_ngram_size": decoding.get("no_repeat", 0),
        "max_length": config.max_length + 1,  # theirs counts the begin token
    }


def _their_tokenizers(paths: Sequence[Path], config: Config) -> dict[str, bytes]:
    """The tokenizer files that Hugging Face expects."""
    texts = [path.read_text(encoding="utf-8") for path in paths]
    pieces = [each for each in map(sentencepiece.held_in, texts) if each is not None]
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
    separate = config.tie != "all"
    content = {SPECIAL_NAMES: dump(settings | {"separate_vocabs": separate})}
    for side, tokenizer in enumerate((Tokenizer(texts[0]), Tokenizer(texts[-1]))):
        content[MODELS[side]] = sentencepiece.write((pieces[0], pieces[-1])[side])
        if side == 0 or separate:
            numbered = {
                name: number for number, name in enumerate(tokenizer.pieces(range(tokenizer.size)))
            }
            content[VOCABULARIES[side]] = dump(numbered)
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


def _unended(path: Path) -> str:
    """A tokenizer file without post-processor, padding and truncation, like ours."""
    file = storage.read_object(path, "a tokenizer") | dict.fromkeys(
        ("post_processor", "padding", "truncation")
    )
    return str(tokenizers.Tokenizer.from_str(json.dumps(file)).to_str())
