"""The Transformer in a model directory of ours, to be written as another tool has it."""

from pathlib import Path
from typing import Any

import torch

from transduct.config import record
from transduct.data.tokenizer import tokenizers_of
from transduct.errors import TransductError
from transduct.models.transformer import Config, Transformer
from transduct.training import checkpoint


def configured(directory: Path, out: Path, limit: str) -> tuple[dict[str, Any], Config]:
    """The settings of the model in a directory, and its configuration.

    Args:
        out: where it is to be written.
        limit: what is said of other models, such as "no other is quantised yet".

    Raises:
        TransductError: it is no Transformer for translation or quantised already, its tokenizers are missing or
            another model's, or `out` exists.
    """
    checkpoint.require_absent(out)
    source = directory / checkpoint.CONFIG
    settings = checkpoint.read_json(source, "a model's configuration")
    if settings.get("task") != "translation" or settings.get("family", "transformer") != "transformer":
        raise TransductError(f"{directory}: no Transformer for translation; {limit}")
    if settings.get("quantised"):
        raise TransductError(f"{directory}: quantised already; give the model it was made of")
    config = record(Config, settings.get("model"), "model", str(source))
    tokenizers_of(directory, (config.source_size, config.target_size))
    return settings, config


def for_tool(tool: str, directory: Path, out: Path) -> tuple[dict[str, Any], Config]:
    """What `configured` gives, of a model that another tool may be given.

    Raises:
        TransductError: as there, or it writes backwards, which nothing outside would turn round.
    """
    settings, config = configured(directory, out, f"{tool} takes no other of our models")
    if settings.get("backwards"):
        raise TransductError(f"{directory}: writes from the end on, which {tool} does not know; train a model forwards")
    return settings, config


def loaded(directory: Path, config: Config) -> Transformer:
    """The model of a configuration with the weights in its directory.

    Raises:
        TransductError: they are damaged or another model's, or its widths do not fit together.
    """
    path = directory / checkpoint.WEIGHTS
    try:
        with torch.device("meta"):  # nothing is allocated that the file does not hold
            model = Transformer(config)
    except ValueError as error:
        raise TransductError(f"{directory / checkpoint.CONFIG}: model: {error}") from error
    checkpoint.fill(model, checkpoint.read_tensors(path), path)
    return model
