"""Text to image: trains a decoder that generates the codes of a picture after its caption.

The codes are those of a discrete VAE trained before, a model of `image_codes`. Let N be the tokens
of a batch, A the codes of its pictures.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct import storage
from transduct.config import Recipe, record
from transduct.data.batching import Indices, only_train, plan, random_of
from transduct.data.batching import load as load_batches
from transduct.data.captioned_images import (
    Examples,
    prepare,
    read_examples,
)
from transduct.data.corpus import Corpus, Ragged, inputs_of, lists_of, ragged
from transduct.data.files import Refused
from transduct.data.tokenizer import TOKENIZER, Tokenizer
from transduct.data.unknown import Share
from transduct.devices import pick_device
from transduct.drawing.plots import pillow, save_sheet
from transduct.errors import TransductError
from transduct.functional.losses import projected_cross_entropy
from transduct.models.dalle import DALLE, SIZES, CodesConfig, Config, DiscreteVAE
from transduct.predictors.base import Notify, Report
from transduct.predictors.image_codes import code_score_names, codes_of
from transduct.predictors.options import Family
from transduct.predictors.text_to_image import (
    Batch,
    CaptionedConfig,
    Painter,
    PaintingConfig,
    fill_up,
    make_batch,
)
from transduct.tasks.base import Task
from transduct.tasks.model import card, files_said, write_model
from transduct.tasks.sections import (
    ANY_SIZE,
    ModelSection,
    filled,
    tokenizer_section,
    training_section,
)
from transduct.tasks.text import room_of, single_tokenizer
from transduct.training.config import TrainingConfig
from transduct.training.step import Terms

FAMILIES = {"dalle": Family(Config, SIZES, DALLE)}
DERIVED = {  # model fields that other sections decide
    "vocabulary_size": "tokenizer.size",
    "max_length": "data.max_length",
    "vae": "model.start_from",
}


def batch_of(
    corpus: Corpus,
    begin: int,
    drop: float,
    seed: int,
    epoch: int,
    room: int,
    longest: int,
    numbers: Indices,
) -> Batch:
    """Make a batch of the examples with given numbers; dropped captions are drawn from (seed,
    epoch, example).

    Args:
        room: the tokens of a shape to fill the batch up to; 0 for none.
        longest: the most tokens of a caption.
    """
    captions, pictures = map(lists_of, corpus.columns(numbers))
    kept = [random_of(seed, epoch, number).random() >= drop for number in numbers]
    shown: list[Any] = [words + begin + 1 if keep else [] for words, keep in zip(captions, kept)]
    batch = make_batch(shown, pictures, begin)
    return fill_up(batch, room, longest) if room else batch


class TextToImageTask(Task):
    """The task of text to image, for one recipe in one run directory; see `base.Task`."""

    def __init__(self, recipe: Recipe, directory: Path, notify: Notify) -> None:
        self.directory, self.notify = directory, notify
        self.data = record(CaptionedConfig, recipe.data, "data")
        self.tokenizer_config = tokenizer_section(
            recipe.tokenizer, dropout="captions are encoded once"
        )
        scores = ["nats_per_code", *code_score_names(self.data.valid)]
        self.training = training_section(TrainingConfig, recipe.training, scores)
        self.decoding = record(PaintingConfig, recipe.decoding, "decoding")
        self.model = ModelSection(recipe.model, FAMILIES, DERIVED)
        self.vae = self._codes_config(self.model.start)
        self.recipe = filled(recipe, self, self._config(ANY_SIZE))
        self.tokenizer: Tokenizer
        self.corpus: Corpus
        self._validation: Examples | None = None

    def _codes_config(self, start: Path | None) -> CodesConfig:
        """The configuration of the discrete VAE to start from; a placeholder while a stage has yet
        to train it."""
        if start is None or (not start.exists() and self.directory in start.parents):
            return record(CodesConfig, {"picture_size": self.data.size, "channels": [1]}, "model")
        # a finished run holds a copy
        if not start.exists() and (self.directory / "model").exists():
            start = self.directory / "model"
        path = start / storage.CONFIG
        config = storage.read_json(
            path, "the configuration of a model of image_codes or text_to_image"
        )
        held = config.get("model")
        if config.get("task") == "text_to_image" and isinstance(held, Mapping):
            held = held.get("vae")
        elif config.get("task") != "image_codes":
            raise TransductError(
                f"{start}: a model of {config.get('task')}; start from one of image_codes or "
                "text_to_image"
            )
        vae = record(CodesConfig, held, "model", str(path))
        if vae.picture_size != self.data.size:
            raise TransductError(
                f"{start}: its pictures have {vae.picture_size} pixels a side, data.size is "
                f"{self.data.size}; give both the same"
            )
        return vae

    def check_data(self) -> None:
        """Read the files of pictures and captions, to find a mistake before another stage is
        trained."""
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
                "recipe: model.start_from is missing; name a model of image_codes, or train one "
                "in a stage before"
            )
        pillow()
        if data.valid is not None:
            self._validation = read_examples(data.valid, data, self.notify)
        refused = Refused(data.broken)  # reported when the corpus is prepared
        captions = (text for source in data.train for text, _ in source.read(data, refused))
        self.tokenizer = single_tokenizer(self, captions)
        inputs = inputs_of(data, {"the tokenizer": self.tokenizer}, apart=("drop_captions",))
        weights = _codes_weights(start)
        inputs["the codes"] = sha256((start / storage.WEIGHTS).read_bytes()).hexdigest()
        vae = DiscreteVAE(self.vae)
        with torch.no_grad():
            storage.load_weights(vae, weights, start)
        vae.to(pick_device(self.training.device)).eval()

        cut, share = 0, Share("captions")

        def columns(captions: Sequence[str], pictures: np.ndarray) -> list[Ragged]:
            nonlocal cut
            words = self.tokenizer.encode(captions)
            cut += sum(len(ids) > data.max_length for ids in words)
            share.add(words)
            return [
                ragged([ids[: data.max_length] for ids in words]),
                ragged(list(codes_of(vae, pictures))),
            ]

        self.corpus = prepare(data, columns, inputs, self.directory / "corpus", self.notify)
        if str(share):
            self.notify(f"corpus prepared{share}")
        if cut:
            self.notify(
                f"{cut:,} captions are longer than data.max_length, {data.max_length} tokens: "
                "they lose their ends"
            )

    def build_model(self) -> DALLE:
        """The recipe's model, with the weights of `model.start_from`: a discrete VAE, or a model of
        its own kind."""

        def rename(held: dict[str, Tensor]) -> None:
            if not any(name.startswith("vae.") for name in held):
                for name in [*held]:
                    held[f"vae.{name}"] = held.pop(name)

        return self.model.build(self._config(self.tokenizer.size), self.notify, rename)

    def _config(self, vocabulary_size: int) -> Any:
        return self.model.config(
            vocabulary_size=vocabulary_size, max_length=self.data.max_length, vae=asdict(self.vae)
        )

    def batches(self, split: str, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """This rank's batches of an epoch, from batch `start` on."""
        only_train(split, "text to image has")
        config = self.training
        lengths = self.corpus.lengths.sum(1, keepdims=True)
        order = plan(lengths, config.seed, epoch, config.batch_tokens, self.corpus.weights)
        data = self.data
        rules = data.drop_captions, config.seed, epoch, room_of(config), data.max_length
        make = partial(batch_of, self.corpus, self.vae.codes, *rules)
        return load_batches(order, make, start, rank, world, data.workers)

    def loss(self, model: DALLE, batch: Batch) -> Terms:
        """Cross-entropy, summed over codes."""
        hidden = model.hidden(batch.tokens_in, batch.segments).index_select(0, batch.places)
        loss, _ = projected_cross_entropy(
            hidden,
            model.output_table,
            batch.codes,
            self.training.label_smoothing,
            batch.counted,
        )
        return {"codes": (loss, batch.counts["codes"], 1.0)}

    def _in_use(self, model: DALLE) -> Painter:
        return Painter(model, self.tokenizer, self.decoding)

    def save(self, model: DALLE, directory: Path, log: Mapping[str, Any]) -> Report:
        """Write the model directory, with a card of the final scores, and return them and a sheet
        of pictures."""
        report = self.evaluate(model)
        made_of = (
            f"{len(self.corpus):,} pictures with captions "
            f"{files_said(self.data, self.corpus.dropped)}"
        )
        about = card("Text to image", made_of, self.training, report.scores, log)
        beside = [self.directory / TOKENIZER]
        if self._validation is not None:
            beside.append(
                save_sheet(self._in_use(model).grid(self._validation.captions), self.directory)
            )
        write_model(
            directory, "text_to_image", model, {"decoding": asdict(self.decoding)}, beside, about
        )
        return report


def _codes_weights(start: Path) -> dict[str, Tensor]:
    """The weights of the discrete VAE in a model, without the prefix they have inside a DALL-E."""
    held = storage.read_tensors(start / storage.WEIGHTS)
    inside = {
        name.removeprefix("vae."): weight
        for name, weight in held.items()
        if name.startswith("vae.")
    }
    return inside or held
