"""Reads a published model of any architecture of `architectures`, one tensor at a time.

A converted model differs from what was published in the order of its tokens, and where a constant
factor can be part of a weight; it computes the same.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduct import storage
from transduct.config import record
from transduct.data.languages import find
from transduct.data.tokenizer import TOKENIZER, Tokenizer
from transduct.errors import TransductError
from transduct.interop import weights as files_of
from transduct.interop.architectures import ARCHITECTURES, Architecture, Names, Search, settings_of
from transduct.interop.marian import check_sinusoids
from transduct.interop.vocabularies import Words, languages_in, special, words_of
from transduct.interop.weights import Weights
from transduct.models.transformer import Config, Transformer
from transduct.predictors.options import Languages

GENERATION = "generation_config.json"
# A logit bias that makes a token's probability vanish, but keeps label-smoothed losses moderate.
NEVER = -100.0
TYPES = {"F16": torch.float16, "BF16": torch.bfloat16}
BEGIN = Tokenizer.BEGIN
TASK = re.compile(r"translate (\w+) to (\w+): ")  # how T5 is told its languages
TABLES = ("output_table", "source_embedding.table", "target_embedding.table", "output_bias")


@dataclass(frozen=True)
class Source:
    """Where a weight of ours comes from: a weight of theirs, or a part of its rows."""

    name: str
    part: int = 0
    parts: int = 1


def configuration(directory: Path) -> tuple[dict[str, Any], str]:
    """The configuration of a folder with what it says of its search, and the names of the files."""
    where = directory / storage.CONFIG
    files_of.require_inside(where, directory)
    config = storage.read_object(where, "a model's configuration")
    if not (generation := directory / GENERATION).exists():
        return config, str(where)
    said = storage.read_object(generation, "how outputs are searched for")
    return config | said, f"{where} or {GENERATION}"


def read(directory: Path, out: Path, name: str) -> None:
    """Convert a published model of the architecture `name` to a model directory of ours.

    Raises:
        TransductError: if a file is missing, damaged or inconsistent with another, our Transformer
            lacks a part of the model, or `out` exists.
    """
    config, where = configuration(directory)
    kind = ARCHITECTURES[name]
    settings = settings_of(kind, config, where)
    begin = config.get("decoder_start_token_id", settings.decoder_start_token_id)
    if type(begin) is not int:
        raise TransductError(
            f"{where}: names no decoder_start_token_id; add the id that outputs begin after"
        )
    words = words_of(directory, name, settings, begin, directory / storage.CONFIG)
    languages, told = _languages(kind, config, directory, words, begin)
    search = Search.of(config, len(languages.begin))
    forbidden = [words.ours(token) for token in search.forbidden]
    with files_of.opened(directory) as weights:
        plan = _Plan(kind, settings, words, weights, where)
        content = {
            "format": storage.FORMAT,
            "task": "translation",
            "model": asdict(plan.config),
            "family": "transformer",
            "decoding": {**search.decoding, **told},
            "replace": [],
            "forbidden": [token for token in forbidden if token is not None and token > BEGIN],
        } | ({"languages": asdict(languages)} if languages != Languages() else {})
        shared = {
            storage.CONFIG: storage.pack_json(content),
            "card.md": _card(directory, out, name, content, search).encode(),
            TOKENIZER: words.text.encode(),
        }
        with storage.new_directory(out) as folder:
            for file, data in shared.items():
                (folder / file).write_bytes(data)
            storage.write_tensors(folder / storage.WEIGHTS, plan.shapes, plan.tensor)


class _Plan:
    """Which weight of ours comes from where, checked before any is read."""

    def __init__(
        self, kind: Architecture, settings: Any, words: Words, weights: Weights, where: str
    ) -> None:
        self.kind, self.settings, self.words, self.weights = kind, settings, words, weights
        self.doubled = words.ids.count(words.ids[BEGIN]) > 1
        table, output = self._tables()
        self.bias = kind.bias if kind.bias and kind.bias in weights else None
        biased = self.doubled or (self.bias is not None and bool(weights.tensor(self.bias).any()))
        sections = settings.sections(kind) | {
            "source_size": len(words.ids),
            "target_size": len(words.ids),
            "tie": "all" if output is None else "embeddings",
            "output_bias": biased,
        }
        self.config = record(Config, sections, "model", where)
        layers = self.config.encoder_layers + self.config.decoder_layers
        if layers > len(weights.names):
            raise TransductError(
                f"{weights.where}: lacks the weights of layers; {storage.CONFIG} is of another "
                "model"
            )
        with torch.device("meta"):  # shapes are compared before anything is allocated
            self.own = storage.weights_of(Transformer(self.config))
        self.sources = {"output_table": Source(table if output is None else output)}
        if output is not None:
            self.sources["source_embedding.table"] = Source(table)
        self._find()
        for name in self.own:
            self._check(name)
        self.shapes = {name: (self._type(name), tuple(p.shape)) for name, p in self.own.items()}

    def _tables(self) -> tuple[str, str | None]:
        """The names of the embeddings, and of the output if it has its own table.

        Raises:
            TransductError: there is none, or two that should be one differ.
        """
        shared, *sides, output = self.kind.tables
        held = [name for name in (shared, *sides) if name in self.weights]
        if not held and output in self.weights:
            held = [output]
        if not held:
            raise TransductError(
                f"{self.weights.where}: lacks weight '{shared}'; {storage.CONFIG} is of another "
                "model"
            )
        for other in held[1:]:
            if not self.weights.same(held[0], other):
                raise TransductError(
                    f"{self.weights.where}: {held[0]} and {other} differ; expected one table for "
                    "both sides"
                )
        tied = self.settings.tie_word_embeddings
        if output not in self.weights:
            if tied is False and self.kind.bias:
                raise TransductError(
                    f"{self.weights.where}: lacks weight '{output}'; {storage.CONFIG} says that "
                    "it has a table of its own"
                )
            return held[0], None
        if self.weights.same(held[0], output):
            return held[0], None
        if tied is not False and self.kind.bias:
            raise TransductError(
                f"{self.weights.where}: {held[0]} and {output} differ, {storage.CONFIG} says that "
                "they are tied; expected one table"
            )
        return held[0], output

    def _find(self) -> None:
        """Match every weight of theirs with ours.

        Raises:
            TransductError: one is unknown.
        """
        names, tables = Names(self.kind.names), {*self.kind.tables, self.kind.bias}
        places: dict[str, Tensor] = {}
        for theirs in self.weights.names:
            ours = names.ours(theirs)
            for part, own in enumerate(ours):
                self.sources[own] = Source(theirs, part, len(ours))
            if ours and not {*ours} & self.own.keys() and ours[0].endswith("positions.table"):
                places[theirs] = self.weights.tensor(theirs)
                continue
            idle = theirs in tables or any(re.fullmatch(each, theirs) for each in self.kind.idle)
            if not idle and not (ours and {*ours} <= self.own.keys()):
                raise TransductError(
                    f"{self.weights.where}: has an unknown weight '{theirs}'; {storage.CONFIG} is "
                    "of another model"
                )
        check_sinusoids(self.config, places, self.weights.where)

    def _check(self, name: str) -> None:
        """Compare the shape of a weight of ours with that of its source."""
        own = tuple(self.own[name].shape)
        if name == "output_bias":
            if self.bias and self.weights.shape(self.bias) != (1, self.settings.vocab_size):
                self._wrong(self.bias, (1, self.settings.vocab_size))
            return
        if name not in self.sources:
            named = [each for each in self.kind.names if name in _filled(self.kind, each, name)]
            raise TransductError(
                f"{self.weights.where}: lacks the weight that is our '{name}'"
                f"{f', {named[0]}' if named else ''}; {storage.CONFIG} is of another model"
            )
        source = self.sources[name]
        if name in TABLES:
            own = (self.settings.vocab_size, *own[1:])
        elif name.endswith("embedding.positions.table"):
            own = (own[0] + self.kind.rows, *own[1:])
        expected = (own[0] * source.parts, *own[1:])
        if self.weights.shape(source.name) != expected:
            self._wrong(source.name, expected)

    def _wrong(self, name: str, expected: tuple[int, ...]) -> None:
        raise TransductError(
            f"{self.weights.where}: weight '{name}' is {self.weights.shape(name)}, "
            f"{storage.CONFIG} says {expected}; {storage.CONFIG} is of another model"
        )

    def _type(self, name: str) -> torch.dtype:
        """Weights stay as narrow as they are, unless they are changed."""
        if name == "output_bias" or self.kind.factor(name, self.settings) != 1.0:
            return torch.float32
        return TYPES.get(self.weights.type_of(self.sources[name].name), torch.float32)

    def tensor(self, name: str) -> Tensor:
        """A weight of ours."""
        rows = torch.tensor(self.words.ids)
        if name == "output_bias":
            size = self.settings.vocab_size
            held = torch.zeros(size) if self.bias is None else self.weights.tensor(self.bias)
            bias = held.float().view(-1).index_select(0, rows)
            if self.doubled:
                bias[BEGIN] = NEVER
            return bias
        source = self.sources[name]
        tensor = self.weights.tensor(source.name)
        if name in TABLES:
            return tensor.index_select(0, rows)
        if name.endswith("embedding.positions.table"):
            return tensor[self.kind.rows :]
        tensor = tensor.chunk(source.parts)[source.part]
        factor = self.kind.factor(name, self.settings)
        return tensor if factor == 1.0 else tensor.float() * factor


def _filled(kind: Architecture, theirs: str, name: str) -> list[str]:
    """Our names for a pattern of theirs that is filled with what a name of ours holds."""
    found = re.search(r"\.(\d+)\.", name)
    side = re.match(r"encoder|decoder|source|target", name)
    sides = {"source": "encoder", "target": "decoder"}
    filled = theirs.format(
        n=found[1] if found else "0",
        side=sides.get(side[0], side[0]) if side else "",
        kind=name.rpartition(".")[2],
    )
    return Names(kind.names).ours(filled)


def _languages(
    kind: Architecture,
    config: Mapping[str, Any],
    directory: Path,
    words: Words,
    begin: int,
) -> tuple[Languages, dict[str, str]]:
    """How the model is told its languages, and those that it takes where none are said."""
    said, names = special(directory), words.names
    codes, token, text = languages_in(names)
    forced = config.get("forced_bos_token_id")
    forced = names[forced] if type(forced) is int and 0 <= forced < len(names) else None
    told: dict[str, str] = {}
    if token and kind.name in ("m2m_100", "mbart"):
        source, target = token.format("{from}"), token.format("{to}")
        known = {token.format(code): code for code in codes}
        if said.get("src_lang") and said.get("tgt_lang"):
            told = {
                "source_language": find(str(said["src_lang"]), codes),
                "target_language": find(str(said["tgt_lang"]), codes),
            }
        if names[begin] in known:  # a model of one target language, which its outputs begin after
            return Languages(codes, after=[source]), {
                **told, "target_language": known[names[begin]],
            }  # fmt: skip
        if forced in known:
            told["target_language"] = known[forced]
        if said.get("legacy_behaviour"):
            return Languages(codes, after=[source], begin=[target]), told
        return Languages(codes, before=[source], begin=[target]), told
    first = [forced] if forced is not None else []
    if kind.name == "bart":  # it has learnt to begin so, whether that is forced or not
        start = [names[_start(config)]]
        return Languages(before=start, begin=start), told
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
    return Languages(codes if text else [], text=text, begin=first), told


def _start(config: Mapping[str, Any]) -> int:
    """The token before every text of BART's."""
    start = config.get("bos_token_id")
    return start if type(start) is int and 0 <= start < config["vocab_size"] else 0


def _card(directory: Path, out: Path, name: str, content: Mapping[str, Any], search: Search) -> str:
    """The model card: origin, differences, and a recipe for fine-tuning."""
    model = content["model"]
    derived = ("source_size", "target_size", "max_length")  # set by other sections
    sections = {
        "data": {"max_length": model["max_length"]},
        "tokenizer": {"shared": True},
        "model": {"start_from": out.name}
        | {key: value for key, value in model.items() if key not in derived},
        "decoding": content["decoding"],
    }
    recipe = "\n".join(
        f"{key}: {json.dumps(section, ensure_ascii=False)}" for key, section in sections.items()
    )
    left = f"\nNot taken over: {', '.join(search.left_out)}.\n" if search.left_out else ""
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
