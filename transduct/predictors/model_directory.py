"""Model directories: read one for use, on a device and in a precision."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from transduct import storage
from transduct.config import record
from transduct.data.tokenizer import Tokenizer
from transduct.decoding.shortlist import Shortlist
from transduct.devices import forget_shapes, keep_freed_memory
from transduct.errors import NotFinite, TransductError
from transduct.inference.prepare import prepare

SHOWN, LONGEST = 12, 40  # the most labels in a message, and characters of each
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


def named_weights(model: Any, weights: Sequence[Tensor]) -> dict[str, Tensor]:
    """The attention weights that a model collected, in its order, by name: those of a batch's first
    sequence."""
    return {
        name: held[0].float().cpu()
        for name, held in zip(model.attention_names, weights, strict=True)
    }


def require_finite(*answers: Tensor) -> None:
    """Check a model's answers.

    Raises:
        NotFinite: one holds NaN or infinity.
    """
    if not all(bool(each.isfinite().all()) for each in answers):
        raise NotFinite


def blank(build: Callable[[Any], nn.Module], config: Any, where: str) -> Any:
    """Build a model on the meta device, without memory for its weights; `read_weights` fills it.

    Args:
        where: the source of the configuration, for errors.

    Raises:
        TransductError: the configuration is inconsistent.
    """
    try:
        with torch.device("meta"):
            return build(config)
    except ValueError as error:
        raise TransductError(f"{where}: model: {error}") from error


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
    storage.fill(
        model, storage.read_tensors(path), path, copy=device.type == "cpu"
    )  # others copy by themselves
    if device.type == "cpu":
        keep_freed_memory()
        forget_shapes()
    else:  # cuDNN's attention plans anew for every shape, and shapes rarely repeat here
        torch.backends.cuda.enable_cudnn_sdp(False)
    prepare(model, device, torch.bfloat16 if precision == "bfloat16" else torch.float32)


def read_shortlist(path: Path, tokenizers: Sequence[Tokenizer]) -> Shortlist:
    """Load the shortlist in a file of a model directory, whose tokenizers are given.

    Raises:
        TransductError: the file holds none, or one of other vocabularies.
    """
    held = {
        name: tensor.clone() for name, tensor in storage.read_tensors(path).items()
    }  # the file may be replaced
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
