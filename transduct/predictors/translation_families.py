"""The families of translation models, and how a model of one is read from its directory."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from transduct import storage
from transduct.data.tokenizer import Tokenizer, tokenizers_of
from transduct.decoding.shortlist import Shortlist
from transduct.errors import TransductError
from transduct.inference.quantised import quantise
from transduct.models import rnn, transformer
from transduct.predictors.model_directory import blank_of, read_weights
from transduct.predictors.options import Family

FAMILIES = {
    "transformer": Family(transformer.Config, transformer.SIZES, transformer.Transformer),
    "rnn": Family(rnn.Config, rnn.SIZES, rnn.RNN),
}
DERIVED = {  # model fields that other sections decide
    "source_size": "tokenizer.size",
    "target_size": "tokenizer.size",
    "max_length": "data.max_length",
}


def read_model(
    directory: Path, config: dict[str, Any], device: torch.device, precision: str
) -> tuple[Any, list[Tokenizer], bool]:
    """Load the model in a directory, its tokenizers (the source's first), and whether it writes
    backwards."""
    source = str(directory / storage.CONFIG)
    if not isinstance(backwards := config.get("backwards", False), bool):
        raise TransductError(f"{source}: backwards is {backwards!r:.40}, expected true or false")
    name = config.get("family", "transformer")
    if not isinstance(name, str) or name not in FAMILIES:
        raise TransductError(f"{source}: unknown family '{name}'; known are: {', '.join(FAMILIES)}")
    family = FAMILIES[name]
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
