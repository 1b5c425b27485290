"""The sentence and the small translator of the page with sliders, which go through all chapters."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from transduct.models.transformer import Config, Transformer
from transduct.predictors.base import load
from transduct.storage import WEIGHTS, read_json, read_tensors
from transduct.tasks.translation import Batch
from transduct_course import small
from transduct_course.sliders import TRANSLATOR

SENTENCE, TRANSLATION = "Are you tired?", "Bist du müde?"


@cache
def translator() -> Any:
    """The translator, as `transduct translate` takes it."""
    return load(TRANSLATOR, "cpu")


@cache
def model() -> Transformer:
    """The same in float32: its 8-bit rows times their steps. It can be taken apart."""
    made = Transformer(Config(**read_json(TRANSLATOR / "config.json", "a config")["model"]))
    kept, found = read_tensors(TRANSLATOR / WEIGHTS), dict[str, Tensor]()
    for name, weight in kept.items():
        if weight.dtype == torch.int8:
            weight = weight * kept[name.replace("weight", "steps")][:, None]
        parts = weight.chunk(3) if ".joint." in name else [weight]
        for part, each in zip(("query", "key", "value"), parts, strict=False):
            found[name.replace("joint", part)] = each
    table = found.pop("source_embedding.table.weight")
    for name, own in made.named_parameters():
        own.data = table if name.endswith("table") else found[name]
    return made.requires_grad_(False).eval()


def pair(source: str = SENTENCE, target: str = TRANSLATION) -> small.Pair:
    """A pair of sentences as ids of pieces."""
    read, written = translator().source_tokenizer.encode([source, target])
    return read, written


def batch(source: str = SENTENCE, target: str = TRANSLATION) -> Batch:
    """A pair of sentences as its decoder learns from it."""
    return small.batch_of([pair(source, target)])


def pieces(ids: Tensor) -> list[str]:
    """The pieces of words of these ids."""
    return list(translator().source_tokenizer.pieces(ids.tolist()))


@torch.no_grad()
def vectors(source: str = SENTENCE) -> list[Tensor]:
    """(N, D) of a sentence's pieces, after the embedding and after each layer of the encoder."""
    given, own = batch(source), model()
    found = [own.source_embedding(given.source, given.source_segments.positions)]
    for layer in own.encoder:
        found.append(layer(found[-1], given.source_segments))
    return found


def maps() -> dict[str, Tensor]:
    """The weights of all heads for our sentence, by name: (H, T, S)."""
    return {name: each[0] for name, each in small.attention_of(model(), batch()).items()}
