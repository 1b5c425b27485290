"""An ensemble: several translation models with one vocabulary, which decide together.

It is a directory of `config.json`, `card.md`, and in `1/`, `2/` ... a complete model directory for
each member.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transduct import storage
from transduct.config import Recipe
from transduct.data.tokenizer import Tokenizer, tokenizers_in, tokenizers_of
from transduct.errors import TransductError, require
from transduct.predictors.base import ENSEMBLE, MEMBERS, configuration, members_in


def check_alike(stages: Mapping[Path, Recipe]) -> None:
    """Check that the models of some stages will read text alike.

    Args:
        stages: recipes with every default filled in, by their folders in the run.

    Raises:
        TransductError: their tokenizers or changes of text differ, or those of the models they
            start from.
    """
    first, *others = stages.values()
    run, start = next(iter(stages)).parent, first.model.get("start_from")
    for number, stage in enumerate(others, 1):
        other = stage.model.get("start_from")
        # a stage of this run has the common vocabulary
        brings = other is not None and run not in Path(other).parents
        trained = start is None and not brings
        require(
            stage.data["replace"] == first.data["replace"]
            and (not trained or stage.tokenizer == first.tokenizer),
            f"stages[{number}]: its data.replace or its tokenizer is not that of stages[0]; "
            "all members need the same tokenizer: set it above `stages`",
        )
        if other is None or not brings:
            continue
        if start is None:
            raise TransductError(
                f"stages[{number}]: model.start_from is {other}, whose tokenizers stages[0] would "
                "not have; let stages[0] start from a model too"
            )
        # A missing model is refused elsewhere.
        if all((Path(each) / storage.CONFIG).exists() for each in (start, other)):
            check_vocabularies([Path(start), Path(other)])


def take_vocabularies(first: Path, run: Path) -> None:
    """Copy to `run` the tokenizers of the ensemble's first run that it lacks.

    Raises:
        TransductError: `run` has different tokenizers.
    """
    for path in tokenizers_in(first):
        if not (run / path.name).exists():
            storage.write_file(run / path.name, path.read_bytes())
    check_vocabularies([first, run])


def combine(directories: Sequence[Path], out: Path) -> None:
    """Write several models as an ensemble, with the changes of text and the decoding settings of
    the first.

    Raises:
        TransductError: there is only one; one is not a translation model, or is an ensemble; a
            tokenizer is missing or does not fit its model; tokenizers or changes of text differ; or
            `out` exists or cannot be written.
    """
    storage.require_absent(out)
    require(len(directories) >= 2, "an ensemble needs at least two models; name another")
    settings = [configuration(directory) for directory in directories]
    first = settings[0]
    for directory, own in zip(directories, settings, strict=True):
        require(
            own["task"] == "translation" and own.get("family") != ENSEMBLE,
            f"{directory}: only translation models, none of them an ensemble, decide together; "
            "leave it out",
        )
        require(
            own.get("replace", []) == first.get("replace", []),
            f"{directory}: its data.replace is not that of {directories[0]}; train both "
            "with the same one",
        )
        model = own.get("model")
        sizes = model if isinstance(model, dict) else {}
        tokenizers_of(directory, (sizes.get("source_size"), sizes.get("target_size")))
    check_vocabularies(directories)
    decoding = {**first.get("decoding", {}), "shortlist": False, "captured": "auto"}
    taken = {
        key: first[key]
        for key in ("format", "task", "transduct", "replace", "metrics", "bleu_tokenize")
        if key in first
    }
    config = taken | {
        "family": ENSEMBLE,
        MEMBERS: [str(i + 1) for i in range(len(directories))],
        "decoding": decoding,
    }
    content = {
        storage.CONFIG: storage.pack_json(config),
        "card.md": (
            f"# {len(directories)} translation models that decide together\n\nEach has its own "
            "card.\n"
        ).encode(),
    }
    for name, directory in zip(config[MEMBERS], directories, strict=True):
        content |= {f"{name}/{file}": data for file, data in storage.files_in(directory).items()}
    storage.write_directory(out, content)


def members_of(directory: Path, config: dict[str, Any]) -> list[Path]:
    """The directories of an ensemble's members.

    Raises:
        TransductError: none are named, a file of one is missing or damaged, or their tokenizers
            differ.
    """
    members = [directory / name for name in members_in(directory, {MEMBERS: None} | config)]
    for member in members:
        storage.read_json(member / storage.CONFIG, "a member of the ensemble; copy it again")
        for path in tokenizers_in(member):
            require(path.exists(), f"{member}: holds no {path.name}; copy the member again")
            Tokenizer.load(path)
    check_vocabularies(members)
    return members


def check_vocabularies(directories: Sequence[Path]) -> None:
    """Refuse models with different tokenizers."""

    def tokenizers(directory: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tokenizers_in(directory)}

    for directory in directories[1:]:
        require(
            tokenizers(directory) == tokenizers(directories[0]),
            f"{directory}: its tokenizers are not those of {directories[0]}; train one from "
            "the other (model.start_from), or both on the same text with the same tokenizer "
            "of any kind but unigram",
        )
