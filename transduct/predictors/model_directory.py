"""Model directories: read one for use, on a device and in a precision; several, as an ensemble.

An ensemble is a directory of several translation models with one vocabulary, which decide together:
`config.json`, `card.md`, and in `1/`, `2/` ... a complete model directory for each member.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from transduct import storage
from transduct.config import Recipe, record, refusal
from transduct.data.tokenizer import Tokenizer, tokenizers_in, tokenizers_of
from transduct.decoding.shortlist import Shortlist
from transduct.devices import forget_shapes, keep_freed_memory
from transduct.errors import NotFinite, TransductError
from transduct.inference.fused import prepare
from transduct.inference.quantised import quantise
from transduct.predictors.base import configuration, members_in

SHOWN, LONGEST = 12, 40  # the most labels in a message, and characters of each
ENSEMBLE, MEMBERS = "ensemble", "members"  # the family of several models, and their names
Record = TypeVar("Record")


def shown_labels(labels: Sequence[str]) -> str:
    """Labels for a message, abridged: there may be many, and wrong columns may hold whole
    sentences."""
    shown = [
        label if len(label) <= LONGEST else f"{label[:LONGEST]}..." for label in labels[:SHOWN]
    ]
    return ", ".join([*shown, "..."] if len(labels) > SHOWN else shown)


def unknown_label(label: str, known: Sequence[str]) -> str:
    """What is wrong with a label that is not among those of a model."""
    return f"unknown label '{label}'; training has: {shown_labels(known)}"


def three_of(count: int) -> range:
    """Up to three evenly spaced indices below `count`, of examples to show as samples."""
    return range(0, count, max(1, count // 3))[:3]


def require_finite(*answers: Tensor) -> None:
    """Check a model's answers.

    Raises:
        NotFinite: one holds NaN or infinity.
    """
    if not all(bool(each.isfinite().all()) for each in answers):
        raise NotFinite


def blank(build: Callable[[Any], nn.Module], config: Any, source: str | None = None) -> Any:
    """Build a model on the meta device, without memory for its weights; `read_weights` fills it.

    Args:
        source: the file of the configuration, for errors; None for a recipe.

    Raises:
        TransductError: the configuration is inconsistent.
    """
    try:
        with torch.device("meta"):
            return build(config)
    except ValueError as error:
        raise refusal(error, vars(config), "model", source) from error


def section(settings: Mapping[str, Any], name: str, kind: type[Record], directory: Path) -> Record:
    """A section of the settings in a model directory's `config.json`, as a record.

    Raises:
        TransductError: it is missing or wrong.
    """
    return record(kind, settings.get(name), name, str(directory / storage.CONFIG))


def unfit(directory: Path, found: str) -> TransductError:
    """The error for a `config.json` that is not that of the model beside it."""
    source = directory / storage.CONFIG
    return TransductError(f"{source}: {found}; they do not belong together: copy the model again")


def blank_of(
    settings: Mapping[str, Any], build: Callable[[Any], nn.Module], kind: type, directory: Path
) -> Any:
    """Like `blank`, from the settings in a model directory's `config.json`; `kind` is the
    configuration record."""
    return blank(
        build, section(settings, "model", kind, directory), str(directory / storage.CONFIG)
    )


def read_weights(model: nn.Module, directory: Path, device: torch.device, precision: str) -> None:
    """Fill a blank model with the weights of a model directory and make it ready for inference on a
    device."""
    path = directory / storage.WEIGHTS
    # others copy by themselves
    storage.fill(model, storage.read_tensors(path), path, copy=device.type == "cpu")
    if device.type == "cpu":
        keep_freed_memory()
        forget_shapes()
    else:  # cuDNN's attention plans anew for every shape, and shapes rarely repeat here
        torch.backends.cuda.enable_cudnn_sdp(False)
    prepare(model, device, torch.bfloat16 if precision == "bfloat16" else torch.float32)


def read_translator(
    directory: Path,
    config: dict[str, Any],
    families: Mapping[str, Any],
    device: torch.device,
    precision: str,
) -> tuple[Any, list[Tokenizer], bool]:
    """Load the translation model in a directory, of one of the families, its tokenizers (the
    source's first), and whether it writes backwards."""
    source = str(directory / storage.CONFIG)
    if not isinstance(backwards := config.get("backwards", False), bool):
        raise TransductError(f"{source}: backwards is {backwards!r:.40}, expected true or false")
    name = config.get("family", "transformer")
    if not isinstance(name, str) or name not in families:
        raise TransductError(f"{source}: unknown family '{name}'; known are: {', '.join(families)}")
    family = families[name]
    model = blank_of(config, family.build, family.config, directory)
    if quantised := config.get("quantised"):
        if quantised != "int8" or precision != "float32":
            raise TransductError(
                f"{source}: quantised to {quantised!r} and asked for {precision}; ask for float32"
            )
        quantise(model)
    tokenizers = tokenizers_of(directory, (model.config.source_size, model.config.target_size))
    read_weights(model, directory, device, precision)
    return model, tokenizers, backwards


def read_shortlist(path: Path, tokenizers: Sequence[Tokenizer]) -> Shortlist:
    """Load the shortlist in a file of a model directory, whose tokenizers are given.

    Raises:
        TransductError: the file holds none, or one of other vocabularies.
    """
    # the file may be replaced
    held = {name: tensor.clone() for name, tensor in storage.read_tensors(path).items()}
    known, special = (
        {each.name for each in fields(Shortlist)},
        {*Tokenizer.UNWRITTEN, Tokenizer.END},
    )
    if held.keys() == known and (made := Shortlist(**held)).fits(
        tokenizers[0].size, tokenizers[-1].size, special
    ):
        return made
    raise TransductError(
        f"{path}: is not a shortlist of this model; make one: transduct convert MODEL OUT "
        "--shortlist TEXT"
    )


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
        if stage.data["replace"] != first.data["replace"] or stage.tokenizer != first.tokenizer:
            raise TransductError(
                f"stages[{number}]: its data.replace or its tokenizer is not that of stages[0]; "
                "all members need the same tokenizer: set it above `stages`"
            )
        # a stage of this run, with the common vocabulary
        if other is None or run in Path(other).parents:
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
    if len(directories) < 2:
        raise TransductError("an ensemble needs at least two models; name another")
    settings = [configuration(directory) for directory in directories]
    first = settings[0]
    for directory, own in zip(directories, settings, strict=True):
        if own["task"] != "translation" or own.get("family") == ENSEMBLE:
            raise TransductError(
                f"{directory}: only translation models, none of them an ensemble, decide together"
            )
        if own.get("replace", []) != first.get("replace", []):
            raise TransductError(
                f"{directory}: its data.replace is not that of {directories[0]}; train both on one"
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
            if not path.exists():
                raise TransductError(f"{member}: holds no {path.name}; copy the member again")
            Tokenizer.load(path)
    check_vocabularies(members)
    return members


def check_vocabularies(directories: Sequence[Path]) -> None:
    """Refuse models with different tokenizers."""

    def tokenizers(directory: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tokenizers_in(directory)}

    for directory in directories[1:]:
        if tokenizers(directory) != tokenizers(directories[0]):
            raise TransductError(
                f"{directory}: its tokenizers are not those of {directories[0]}; train one from "
                "the other (model.start_from), or both on the same text with the same tokenizer "
                "of any kind but unigram"
            )
