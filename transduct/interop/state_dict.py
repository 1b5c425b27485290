"""State dicts of models that others wrote in PyTorch, such as around `nn.Transformer`, by a table.

A YAML file says where the weights and the vocabulary are, what the model is in our words, and the
name of each of its weights there and here:

    weights: model.pt                       # or .safetensors; beside this file
    vocabulary: {file: vocab.json, unknown: <unk>, begin: <s>, end: </s>}
    before: [<s>]                           # tokens before every source; none by default
    padding: <pad>                          # what fills sources up to `padded` tokens, where
    padded: 256                             # the model was trained to look at it
    model: {d_model: 256, num_heads: 8, norm: post, final_norm: true, ..}
    decoding: {beam: 1}
    names:
      encoder.layers.{n}.linear1.{kind}: encoder.{n}.feed_forward.inner.{kind}
      encoder.layers.{n}.self_attn.in_proj_{kind}:      # three of ours, in equal parts
        - encoder.{n}.self_attention.query.{kind}
        - encoder.{n}.self_attention.key.{kind}
        - encoder.{n}.self_attention.value.{kind}
    ignore: [pos_encoding]                  # weights that nothing reads

`docs/published_models.md` has a whole one.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
import yaml
from tokenizers import decoders, models, normalizers

from transduct import storage
from transduct.data.pieces import HIDDEN
from transduct.data.tokenizer import TOKENIZER, Tokenizer
from transduct.errors import TransductError, require
from transduct.inference.settings import DecodingConfig
from transduct.interop.architectures import Names
from transduct.interop.weights import Weights, content_of, open_files, write_converted
from transduct.models.transformer import Config, Transformer
from transduct.predictors.languages import Languages
from transduct.records import record

ROWS = ("output_table", "source_embedding.table", "target_embedding.table", "output_bias")
ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class Vocabulary:
    """A JSON file that numbers characters, and the names of the special tokens in it."""

    file: str
    unknown: str = "<unk>"
    begin: str = "<s>"
    end: str = "</s>"


@dataclass(frozen=True)
class Table:
    """The table of a state dict; see the text of this file."""

    weights: str
    vocabulary: Vocabulary
    model: dict[str, Any]
    names: dict[str, Any]
    before: list[str] = field(default_factory=list)
    padding: str = ""
    padded: int = 0
    decoding: dict[str, Any] = field(default_factory=dict)
    ignore: list[str] = field(default_factory=list)


def is_table(given: str) -> bool:
    """Whether it is the path of a table."""
    return given.endswith(ENDINGS) and Path(given).is_file()


def read(path: Path, out: Path) -> None:
    """Convert the state dict that a table describes to a model directory of ours.

    Raises:
        TransductError: the table is wrong, or the weights do not fit it.
    """
    storage.require_absent(out)
    table = _table(path)
    ids, text = _vocabulary(path.parent / table.vocabulary.file, table.vocabulary)
    sizes = {"source_size": len(ids), "target_size": len(ids)}
    config = record(Config, {**table.model, **sizes}, "model", str(path))
    decoding = record(DecodingConfig, table.decoding, "decoding", str(path))
    with ExitStack() as stack:
        weights = open_files(stack, [path.parent / table.weights])
        with torch.device("meta"):
            own = storage.weights_of(Transformer(config))
        sources = _sources(table, weights, own, path)
        shapes = {name: (torch.float32, tuple(each.shape)) for name, each in own.items()}
        rows = torch.tensor(ids)

        def tensor(name: str) -> torch.Tensor:
            theirs, part, parts = sources[name]
            found = weights.tensor(theirs).float().chunk(parts)[part]
            return found.index_select(0, rows) if name in ROWS else found

        languages = Languages(before=table.before, padding=table.padding, padded=table.padded)
        card = f"# Translation model\n\nConverted from {table.weights} by {path.name}.\n"
        content = content_of(config, asdict(decoding), languages)
        write_converted(out, content, {TOKENIZER: text, "card.md": card}, shapes, tensor)


def _table(path: Path) -> Table:
    try:
        content = yaml.safe_load(storage.read_file(path, "a table of names"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = " ".join(str(error).split())
        raise TransductError(f"{path}: not valid YAML ({line:.120})") from error
    table = record(Table, content, "", str(path))
    for theirs, ours in table.names.items():
        listed = [ours] if isinstance(ours, str) else ours
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise TransductError(
                f"{path}: names.{theirs} is {ours!r:.40}; expected a name of ours, or a list"
            )
    return table


def _sources(
    table: Table, weights: Weights, own: Mapping[str, torch.Tensor], path: Path
) -> dict[str, tuple[str, int, int]]:
    """Of each weight of ours the weight of theirs, and which of how many parts.

    Raises:
        TransductError: one of theirs is in no line, one of ours is in none or in two, or a shape
            differs.
    """
    names, found = Names(table.names), dict[str, tuple[str, int, int]]()
    for theirs in weights.names:
        ours = names.ours(theirs)
        if theirs in table.ignore:
            continue
        require(
            ours,
            f"{path}: no line of names is for their weight '{theirs}', of the shape "
            f"{weights.shape(theirs)}; add one, or list it in ignore",
        )
        for part, name in enumerate(ours):
            require(
                name in own,
                f"{path}: names '{name}' for their '{theirs}'; the model has no such weight",
            )
            if name in found:
                raise TransductError(
                    f"{path}: names '{name}' for '{found[name][0]}' and for '{theirs}'"
                )
            expected = list(own[name].shape)
            if name in ROWS:
                expected[0] = weights.shape(theirs)[0]
            expected[0] *= len(ours)
            require(
                list(weights.shape(theirs)) == expected,
                f"{path}: '{theirs}' is {weights.shape(theirs)}, for '{name}' it must be "
                f"{tuple(expected)}",
            )
            found[name] = theirs, part, len(ours)
    if missing := [name for name in own if name not in found]:
        raise TransductError(
            f"{path}: no weight of theirs is for our '{missing[0]}', of the shape "
            f"{tuple(own[missing[0]].shape)}; add a line to names"
        )
    return found


def _vocabulary(path: Path, entry: Vocabulary) -> tuple[list[int], str]:
    """Their ids in our order, and a tokenizer of characters.

    Raises:
        TransductError: the file numbers no characters, or a special token is missing.
    """
    numbers = storage.read_object(path, "the id of each character")
    require(
        {*numbers.values()} == {*range(len(numbers))},
        f"{path}: expected each id below {len(numbers)} once",
    )
    special = [entry.unknown, entry.begin, entry.end]
    if missing := [name for name in special if name not in numbers]:
        raise TransductError(f"{path}: has no token '{missing[0]}'; name it in vocabulary")
    names = sorted(numbers, key=numbers.__getitem__)
    others = [name for name in names if name not in special]
    ids = [numbers[name] for name in (*special, *others)]
    clash = {name: HIDDEN + name for name in Tokenizer.SPECIALS}
    own = [*Tokenizer.SPECIALS, *(clash.get(name, name) for name in others)]
    entries = {name: number for number, name in enumerate(own)}
    library = tokenizers.Tokenizer(models.BPE(entries, [], unk_token=own[0]))
    library.normalizer = normalizers.NFC()
    library.decoder = decoders.Fuse()
    library.add_special_tokens([name for name in own if len(name) > 1])
    return ids, library.to_str()
