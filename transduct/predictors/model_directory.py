"""Model directories: read one for use, on a device and in a precision."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from transduct import storage
from transduct.data.tokenizer import Tokenizer, tokenizers_of
from transduct.devices import forget_shapes, keep_freed_memory
from transduct.errors import TransductError, require
from transduct.inference.fused import prepare
from transduct.inference.quantised import quantise
from transduct.records import record, refusal

Record = TypeVar("Record")


@dataclass(frozen=True)
class Family:
    """A family of models: its configuration record, its named sizes, and the function that builds a
    model."""

    config: type
    sizes: Mapping[str, Mapping[str, Any]]
    build: Callable[[Any], Any]


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
    require(
        isinstance(name, str) and name in families,
        f"{source}: unknown family '{name}'; known are: {', '.join(families)}",
    )
    family = families[name]
    model = blank_of(config, family.build, family.config, directory)
    if quantised := config.get("quantised"):
        require(
            quantised == "int8" and precision == "float32",
            f"{source}: quantised to {quantised!r} and asked for {precision}; ask for float32",
        )
        quantise(model)
    tokenizers = tokenizers_of(directory, (model.config.source_size, model.config.target_size))
    read_weights(model, directory, device, precision)
    return model, tokenizers, backwards
