"""Text to image: trains a decoder that generates the codes of a picture after its caption.

The codes are those of a discrete VAE trained before, a model of `image_codes`. Let N be the tokens
of a batch, A the codes of its pictures.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct import storage
from transduct.data.batching import Indices, random_of
from transduct.data.captioned_images import (
    Examples,
    prepare,
    read_examples,
)
from transduct.data.corpus import Corpus, Ragged, inputs_of, lists_of, ragged
from transduct.data.files import Refused
from transduct.data.text_warnings import UnknownRate
from transduct.data.tokenizer import TokenizerConfig
from transduct.devices import pick_device
from transduct.drawing.plots import pillow, save_sheet
from transduct.errors import TransductError, require
from transduct.functional.losses import projected_cross_entropy
from transduct.models.dalle import DALLE, CodesConfig, DiscreteVAE
from transduct.predictors.image_codes import code_score_names, codes_of
from transduct.predictors.text_to_image import (
    Batch,
    CaptionedConfig,
    Painter,
    PaintingConfig,
    fill_up,
    make_batch,
)
from transduct.records import record
from transduct.tasks.base import Epoch
from transduct.tasks.sections import Sections
from transduct.tasks.text import TextTask
from transduct.training.distributed import Terms


def batch_of(
    numbers: Indices,
    *,
    corpus: Corpus,
    begin: int,
    drop: float,
    seed: int,
    epoch: int,
    capacity: int,
    longest: int,
) -> Batch:
    """Make a batch of the examples with given numbers; dropped captions are drawn from (seed,
    epoch, example).

    Args:
        capacity: the tokens of a shape to fill the batch up to; 0 for none.
        longest: the most tokens of a caption.
    """
    captions, pictures = map(lists_of, corpus.columns(numbers))
    kept = [random_of(seed, epoch, number).random() >= drop for number in numbers]
    shown: list[Any] = [words + begin + 1 if keep else [] for words, keep in zip(captions, kept)]
    batch = make_batch(shown, pictures, begin)
    return fill_up(batch, capacity, longest) if capacity else batch


class TextToImageTask(TextTask):
    """Trains a DALL-E on the codes of a discrete VAE."""

    name, title, unit = "text_to_image", "Text to image", "pictures with captions"
    sections = Sections(CaptionedConfig, PaintingConfig, TokenizerConfig)
    families = {"dalle": Painter.family}
    against_dropout = "captions are encoded once"
    hypotheses = 1
    derived = {
        "vocabulary_size": "tokenizer.size",
        "max_length": "data.max_length",
        "vae": "model.start_from",
    }

    def check(self) -> None:
        super().check()
        self.scores = ["nats_per_code", *code_score_names(self.data.valid)]

    def sizes(self) -> Mapping[str, Any]:
        sizes = {"vocabulary_size": self.vocabulary, "max_length": self.data.max_length}
        return {**sizes, "vae": asdict(self.vae)}

    @cached_property
    def vae(self) -> CodesConfig:
        """The configuration of the discrete VAE to start from; a placeholder while a stage has yet
        to train it."""
        start = self.model.start
        if start is None or (not start.exists() and self.directory in start.parents):
            return record(CodesConfig, {"picture_size": self.data.size, "channels": [1]}, "model")
        # a finished run holds a copy
        if not start.exists() and (self.directory / "model").exists():
            start = self.directory / "model"
        path = start / storage.CONFIG
        config = storage.read_json(
            path, "the configuration of a model of image_codes or text_to_image"
        )
        model = config.get("model")
        if config.get("task") == "text_to_image" and isinstance(model, Mapping):
            model = model.get("vae")
        else:
            require(
                config.get("task") == "image_codes",
                f"{start}: a model of {config.get('task')}; start from one of image_codes or "
                "text_to_image",
            )
        vae = record(CodesConfig, model, "model", str(path))
        require(
            vae.picture_size == self.data.size,
            f"{start}: its pictures have {vae.picture_size} pixels a side, data.size is "
            f"{self.data.size}; give both the same",
        )
        return vae

    def check_data(self) -> None:
        data, refused = self.data, Refused(self.data.broken)  # reported when the corpus is prepared
        for source in filter(None, (data.valid, *data.train)):
            if source.images is not None:
                deque(source.read(data, refused), maxlen=0)

    def prepare(self) -> None:
        """Read the validation set, train the tokenizer unless the run has one, and encode all
        pictures as codes.

        Raises:
            TransductError: a file is missing or broken, a caption has no picture or a picture no
                caption, or Pillow is not installed.
        """
        data, start = self.data, self.model.start
        if start is None:
            raise TransductError(
                "{key} is missing; name a model of image_codes, or train one in a stage before",
                key="model.start_from",
            )
        pillow()
        if data.valid is not None:
            self._validation = read_examples(data.valid, data, self.notify)
        refused = Refused(data.broken)  # reported when the corpus is prepared
        captions = (text for source in data.train for text, _ in source.read(data, refused))
        self.make_tokenizer(captions)
        inputs = inputs_of(data, {"the tokenizer": self.tokenizer}, ignored=("drop_captions",))
        weights = _codes_weights(start)
        inputs["the codes"] = sha256((start / storage.WEIGHTS).read_bytes()).hexdigest()
        vae = DiscreteVAE(self.vae)
        with torch.no_grad():
            storage.load_weights(vae, weights, start)
        vae.to(pick_device(self.training.device)).eval()

        cut, unknown = 0, UnknownRate("captions")

        def columns(captions: Sequence[str], pictures: np.ndarray) -> list[Ragged]:
            nonlocal cut
            words = self.tokenizer.encode(captions)
            cut += sum(len(ids) > data.max_length for ids in words)
            unknown.add(words)
            return [
                ragged([ids[: data.max_length] for ids in words]),
                ragged(list(codes_of(vae, pictures))),
            ]

        self.corpus = prepare(data, columns, inputs, self.directory / "corpus", self.notify)
        if str(unknown):
            self.notify(f"corpus prepared{unknown}")
        if cut:
            self.notify(
                f"{cut:,} captions are longer than data.max_length, {data.max_length} tokens: "
                "they lose their ends"
            )
        if (valid := self._validation) is not None:
            both = columns(valid.captions, np.stack(valid.pictures))
            self.report_leaks("validation pictures", zip(*map(lists_of, both)), 0, 1)

    def rename(self, weights: dict[str, Tensor]) -> None:
        """A discrete VAE to start from is a part of this model."""
        if not any(name.startswith("vae.") for name in weights):
            for name in [*weights]:
                weights[f"vae.{name}"] = weights.pop(name)

    def epoch(self, number: int) -> Epoch[Batch]:
        """The pictures of an epoch; some lose their captions."""
        make = partial(
            batch_of,
            corpus=self.corpus,
            begin=self.vae.codes,
            drop=self.data.drop_captions,
            seed=self.training.seed,
            epoch=number,
            capacity=self.capacity,
            longest=self.data.max_length,
        )
        return Epoch(self.corpus.lengths.sum(1, keepdims=True), make, self.corpus.weights)

    def part(self, numbers: Indices) -> Examples:
        return self._validation.part(numbers)

    def loss(self, model: DALLE, batch: Batch) -> Terms:
        hidden = model.hidden(batch.tokens_in, batch.segments).index_select(0, batch.places)
        loss, _ = projected_cross_entropy(
            hidden,
            model.output_table,
            batch.codes,
            self.training.label_smoothing,
            batch.counted,
        )
        return {"codes": (loss, batch.counts["codes"], 1.0)}

    def predictor(self, model: DALLE) -> Painter:
        return Painter(model, self.tokenizer, self.decoding)

    def files(self, model: DALLE) -> list[Path]:
        files = super().files(model)
        if self._validation is not None:
            grid = self.predictor(model).grid(self._validation.captions)
            files.append(save_sheet(grid, self.directory))
        return files


def _codes_weights(start: Path) -> dict[str, Tensor]:
    """The weights of the discrete VAE in a model, without the prefix they have inside a DALL-E."""
    weights = storage.read_tensors(start / storage.WEIGHTS)
    inside = {name: weight for name, weight in weights.items() if name.startswith("vae.")}
    return {name.removeprefix("vae."): weight for name, weight in (inside or weights).items()}
