"""Reads a model in Hugging Face's format, of any architecture of `architectures`, one tensor at a
time.

A converted model differs from what was published in the order of its tokens, and where a constant
factor can be part of a weight; it computes the same.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduct import storage
from transduct.data.languages import find
from transduct.data.tokenizer import Tokenizer, tokenizer_files
from transduct.errors import TransductError, require
from transduct.inference.settings import DecodingConfig
from transduct.interop import weights as files_of
from transduct.interop.architectures import (
    ARCHITECTURES,
    SOURCE,
    Architecture,
    Names,
    kind_of,
    search_of,
    settings_of,
)
from transduct.interop.vocabularies import (
    TEMPLATE,
    Words,
    chat_template,
    languages_in,
    sides_of,
    special,
)
from transduct.interop.weights import Weights
from transduct.models.transformer import Config, Transformer
from transduct.predictors.languages import Languages
from transduct.records import record

GENERATION = "generation_config.json"
# A logit bias that makes a token's probability vanish, but keeps label-smoothed losses moderate.
NEVER = -100.0
TYPES = {"F16": torch.float16, "BF16": torch.bfloat16}
BEGIN = Tokenizer.BEGIN
TASK = re.compile(r"translate (\w+) to (\w+): ")  # how T5 is told its languages
NEAR = 1e-4  # float32 and float64 sinusoids differ by 3e-5 at 512 tokens, other vectors by far more


@dataclass(frozen=True)
class Source:
    """Where a weight of ours comes from: a weight of theirs, or a part of its rows."""

    name: str
    part: int = 0
    parts: int = 1


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


def configuration(directory: Path) -> tuple[dict[str, Any], str]:
    """The configuration of a folder with what it says of its search, and the names of the files."""
    where = directory / storage.CONFIG
    files_of.require_inside(where, directory)
    config = storage.read_object(where, "a model's configuration")
    if not (generation := directory / GENERATION).exists():
        return config, str(where)
    search = storage.read_object(generation, "how outputs are searched for")
    return config | search, f"{where} or {GENERATION}"


def read(directory: Path, out: Path) -> None:
    """Convert a published model to a model directory of ours.

    If `renormalize_logits` takes forbidden tokens out of the softmax, a bias of the output does so
    here.

    Raises:
        TransductError: if a file is missing, damaged or inconsistent with another, our Transformer
            lacks a part of the model, or `out` exists.
    """
    storage.require_absent(out)
    config, where = configuration(directory)
    kind = ARCHITECTURES[kind_of(config, where)]
    settings = settings_of(kind, config, where)
    begin = config.get("decoder_start_token_id", settings.decoder_start_token_id)
    if type(begin) is not int:
        raise TransductError(
            f"{where}: names no decoder_start_token_id; add the id that outputs begin after"
        )
    words = sides_of(directory, kind.name, settings, begin)
    languages, pair = _languages(kind, config, directory, words, begin)
    search, lacking = search_of(config, where)
    decoding = search.decoding(len(languages.begin)) | pair
    record(DecodingConfig, decoding, "decoding", where)
    forbidden = [own for each in search.forbidden if (own := words[1].ours(each)) is not None]
    with files_of.opened(directory) as weights:
        never = forbidden if search.renormalize_logits else []
        plan = _Plan(kind, settings, words, weights, never, where)
        content = files_of.content_of(plan.config, decoding, languages)
        content["forbidden"] = [token for token in forbidden if token > BEGIN]
        texts = [words[0].text] if words[0] == words[1] else [each.text for each in words]
        files = dict(zip(tokenizer_files(len(texts) == 1), texts, strict=True))
        if template := chat_template(directory):
            files[TEMPLATE] = template
        files["card.md"] = _card(directory, out, kind.name, content, len(texts) == 1, lacking)
        files_of.write_converted(out, content, files, plan.shapes, plan.tensor)


class _Plan:
    """Which weight of ours comes from where, checked before any is read.

    Args:
        words: the vocabularies of source and target.
        never: our ids of tokens that a bias of the output keeps from counting.
    """

    def __init__(
        self,
        kind: Architecture,
        settings: Any,
        words: Sequence[Words],
        weights: Weights,
        never: Sequence[int],
        where: str,
    ) -> None:
        self.kind, self.settings, self.words, self.weights = kind, settings, words, weights
        doubled = words[1].ids.count(words[1].ids[BEGIN]) > 1
        self.never = [*never, BEGIN] if doubled else [*never]
        self.bias = kind.bias if kind.bias and kind.bias in weights else None
        biased = self.bias is not None and bool(weights.tensor(self.bias).any())
        self.tie = self._tie()
        sections = settings.sections(kind) | {
            "source_size": len(words[0].ids),
            "target_size": len(words[1].ids),
            "tie": self.tie,
            "output_bias": biased or bool(self.never),
        }
        self.config = record(Config, sections, "model", where)
        layers = self.config.encoder_layers + self.config.decoder_layers
        if layers > len(weights.names):
            raise self._of_another("lacks the weights of layers")
        with torch.device("meta"):  # shapes are compared before anything is allocated
            self.own = storage.weights_of(Transformer(self.config))
        self.names = Names(kind.names)
        self.tables = kind.tables_of(self.tie)
        self.sources = {own: Source(self._table(names)) for own, names in self.tables.items()}
        self._find()
        for name in self.own:
            self._check(name)
        self.shapes = {name: (self._type(name), tuple(p.shape)) for name, p in self.own.items()}

    def _of_another(self, what: str) -> TransductError:
        return TransductError(f"{self.weights.where}: {what}; {storage.CONFIG} is of another model")

    def _tie(self) -> str:
        """Which tables are one: what a configuration says, T5's often wrongly, and the weights."""
        shared, encoder, decoder, output = self.kind.tables
        inputs = [name for name in (decoder, encoder, shared) if name in self.weights]
        reliable, both = self.kind.bias is not None, self.settings.share_encoder_decoder_embeddings
        tied = self.settings.tie_word_embeddings is not False
        if (tied if reliable else output not in self.weights) or not inputs:
            return "all" if both else "decoder"
        if both and all(self.weights.same(inputs[0], other) for other in inputs[1:]):
            one = output in self.weights and self.weights.same(inputs[0], output)
            return "all" if one else "embeddings"
        return "none"

    def _table(self, names: Sequence[str]) -> str:
        """The first of the names of a table that the weights have.

        Raises:
            TransductError: they have none, or two that differ.
        """
        known = [name for name in names if name in self.weights]
        if not known:
            raise self._of_another(f"lacks weight '{names[0]}'")
        for other in known[1:]:
            if self.tie != "none" and not self.weights.same(known[0], other):
                raise TransductError(
                    f"{self.weights.where}: {known[0]} and {other} differ, {storage.CONFIG} says "
                    "that they are tied; expected one table"
                )
        return known[0]

    def _find(self) -> None:
        """Match every weight of theirs with ours.

        Raises:
            TransductError: one is unknown.
        """
        tables, places = {*self.kind.tables, self.kind.bias}, dict[str, Tensor]()
        for theirs in self.weights.names:
            ours = self.names.ours(theirs)
            for part, own in enumerate(ours):
                self.sources[own] = Source(theirs, part, len(ours))
            if ours and not {*ours} & self.own.keys() and ours[0].endswith("positions.table"):
                places[theirs] = self.weights.tensor(theirs)
                continue
            idle = theirs in tables or any(re.fullmatch(each, theirs) for each in self.kind.idle)
            if not idle and not (ours and {*ours} <= self.own.keys()):
                raise self._of_another(f"has an unknown weight '{theirs}'")
        check_sinusoids(self.config, places, self.weights.where)

    def _check(self, name: str) -> None:
        """Compare the shape of a weight of ours with that of its source."""
        own = tuple(self.own[name].shape)
        if name == "output_bias":
            source, own = Source(self.bias or ""), (1, len(self.words[1].names))
            if not self.bias:
                return
        elif name not in self.sources:
            raise self._of_another(f"lacks weight {' or '.join(self.names.theirs(name))!r}")
        else:
            source = self.sources[name]
            if name in self.tables:
                own = (len(self.words[name != SOURCE].names), *own[1:])
            elif name.endswith("embedding.positions.table"):
                own = (own[0] + self.kind.rows, *own[1:])
        expected = (own[0] * source.parts, *own[1:])
        if (found := self.weights.shape(source.name)) != expected:
            raise self._of_another(
                f"weight '{source.name}' is {found}, {storage.CONFIG} says {expected}"
            )

    def _type(self, name: str) -> torch.dtype:
        """Weights stay as narrow as they are, unless they are changed."""
        if name == "output_bias" or self.kind.factor(name, self.settings) != 1.0:
            return torch.float32
        return TYPES.get(self.weights.type_of(self.sources[name].name), torch.float32)

    def tensor(self, name: str) -> Tensor:
        """A weight of ours."""
        rows = torch.tensor(self.words[name != SOURCE].ids)
        if name == "output_bias":
            size = len(self.words[1].names)
            found = torch.zeros(size) if self.bias is None else self.weights.tensor(self.bias)
            bias = found.float().view(-1).index_select(0, rows)
            bias[self.never] = NEVER
            return bias
        source = self.sources[name]
        tensor = self.weights.tensor(source.name)
        if name in self.tables:
            return tensor.index_select(0, rows)
        if name.endswith("embedding.positions.table"):
            return tensor[self.kind.rows :]
        tensor = tensor.chunk(source.parts)[source.part]
        factor = self.kind.factor(name, self.settings)
        return tensor if factor == 1.0 else tensor.float() * factor


def check_sinusoids(config: Config, tables: Mapping[str, Tensor], where: Path) -> None:
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
        near = max(NEAR, torch.finfo(table.dtype).eps)
        require(
            table.shape == own.shape and bool((table.float() - own).abs().max() <= near),
            f"{where}: '{name}' {tuple(table.shape)} holds no sinusoids; our Transformer does "
            "not support it",
        )


def _languages(
    kind: Architecture,
    config: Mapping[str, Any],
    directory: Path,
    words: Sequence[Words],
    begin: int,
) -> tuple[Languages, dict[str, str]]:
    """How the model is told its languages, and those that it takes where none are said."""
    settings, names = special(directory), words[1].names
    codes, token, text = languages_in(words[0].names)
    forced = config.get("forced_bos_token_id")
    forced = names[forced] if type(forced) is int and 0 <= forced < len(names) else None
    defaults: dict[str, str] = {}
    if token and kind.name in ("m2m_100", "mbart"):
        source, target = token.format("{from}"), token.format("{to}")
        known = {token.format(code): code for code in codes}
        if settings.get("src_lang") and settings.get("tgt_lang"):
            defaults = {
                "source_language": find(str(settings["src_lang"]), codes),
                "target_language": find(str(settings["tgt_lang"]), codes),
            }
        if names[begin] in known:  # a model of one target language, which its outputs begin after
            return Languages(codes, after=[source]), {
                **defaults, "target_language": known[names[begin]],
            }  # fmt: skip
        if forced in known:
            defaults["target_language"] = known[forced]
        if settings.get("legacy_behaviour"):
            return Languages(codes, after=[source], begin=[target]), defaults
        return Languages(codes, before=[source], begin=[target]), defaults
    first = [forced] if forced is not None else []
    if kind.name == "bart":  # it has learnt to begin so, whether that is forced or not
        start = [names[_start(config)]]
        return Languages(before=start, begin=start), defaults
    tasks = config.get("task_specific_params")
    prefixes = [
        task.get("prefix")
        for task in (tasks.values() if isinstance(tasks, dict) else ())
        if isinstance(task, dict)
    ]
    pairs = [found for each in prefixes if (found := TASK.fullmatch(str(each)))]
    if pairs and not codes:
        codes = [*dict.fromkeys(name for found in pairs for name in found.groups())]
        text = "translate {from} to {to}: "
    return Languages(codes if text else [], text=text, begin=first), defaults


def _start(config: Mapping[str, Any]) -> int:
    """The token before every text of BART's."""
    start = config.get("bos_token_id")
    return start if type(start) is int and 0 <= start < config["vocab_size"] else 0


def _card(
    directory: Path,
    out: Path,
    name: str,
    content: Mapping[str, Any],
    shared: bool,
    lacking: Sequence[str],
) -> str:
    """The model card: origin, differences, and a recipe for fine-tuning."""
    model = content["model"]
    derived = ("source_size", "target_size", "max_length")  # set by other sections
    sections = {
        "data": {"max_length": model["max_length"]},
        "tokenizer": {"shared": shared},
        "model": {"start_from": out.name}
        | {key: value for key, value in model.items() if key not in derived},
        "decoding": content["decoding"],
    }
    recipe = "\n".join(
        f"{key}: {json.dumps(section, ensure_ascii=False)}" for key, section in sections.items()
    )
    left = f"\nNot taken over: {', '.join(lacking)}.\n" if lacking else ""
    codes = content.get("languages", {}).get("codes", [])
    speaks = f"\nIt has {len(codes)} languages; see: transduct describe.\n" if codes else ""
    return f"""# Translation model

Converted from a model of the architecture {name} in Hugging Face's format,
{directory.resolve().name}.

It never writes its unknown token, and ends an output by force where it is as long as allowed.
Hypotheses are ranked and the search stops by Hugging Face's rules (`length_rule`, `stopping`).
{speaks}{left}
To train it further, add this to a recipe's data and training (`start_from` is this directory):

```yaml
{recipe}
```
"""
