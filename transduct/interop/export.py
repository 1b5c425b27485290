"""Loads the Transformer from a model directory, for export to another tool."""

from pathlib import Path
from typing import Any

import torch

from transduct import storage
from transduct.data.tokenizer import tokenizers_of
from transduct.errors import require, rewording
from transduct.models.transformer import Config, Transformer
from transduct.records import record


def configured(directory: Path, out: Path, limit: str) -> tuple[dict[str, Any], Config]:
    """The contents of a model directory's `config.json`, and the model configuration in it.

    Args:
        out: the output path.
        limit: the end of the error message for other models, such as "no other model is quantised
            yet".

    Raises:
        TransductError: if the model is not a translation Transformer or is already quantised, its
            tokenizers are missing or belong to another model, or `out` exists.
    """
    storage.require_absent(out)
    source = directory / storage.CONFIG
    settings = storage.read_json(source, "a model's configuration")
    require(
        settings.get("task") == "translation"
        and settings.get("family", "transformer") == "transformer",
        f"{directory}: no Transformer for translation; {limit}",
    )
    require(
        not settings.get("quantised"),
        f"{directory}: quantised already; give the model it was made of",
    )
    config = record(Config, settings.get("model"), "model", str(source))
    tokenizers_of(directory, (config.source_size, config.target_size))
    return settings, config


def for_tool(tool: str, directory: Path, out: Path) -> tuple[dict[str, Any], Config]:
    """Like `configured`, for export to another tool.

    Raises:
        TransductError: also if the model writes right to left, because another tool would not
            reverse its output.
    """
    settings, config = configured(directory, out, f"{tool} takes no other of our models")
    require(
        not settings.get("backwards"),
        f"{directory}: writes right to left, which {tool} does not support; train a model forwards",
    )
    return settings, config


def loaded(directory: Path, config: Config) -> Transformer:
    """Build the model and load its weights.

    Raises:
        TransductError: if the weights are damaged or belong to another model, or the configuration
            is inconsistent.
    """
    path = directory / storage.WEIGHTS
    with (
        rewording(ValueError, "model: {error}", file=str(directory / storage.CONFIG)),
        torch.device("meta"),  # allocates nothing; the weights come from the file
    ):
        model = Transformer(config)
    storage.fill(model, storage.read_tensors(path), path)
    return model
