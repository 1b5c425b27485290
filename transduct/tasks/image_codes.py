"""Image codes: trains a discrete VAE that turns a picture into a small grid of codes, for a decoder
to generate.

Let B be the pictures.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transduct.config import Recipe, record
from transduct.data.batching import Indices, only_train, plan
from transduct.data.batching import load as load_batches
from transduct.data.captioned_images import (
    Examples,
    PicturesConfig,
    prepare,
    read_examples,
)
from transduct.data.corpus import Corpus, Ragged, inputs_of, ragged
from transduct.data.files import pack, unpack
from transduct.drawing.plots import pillow, save_sheet
from transduct.models.dalle import CODES_SIZES, CodesConfig, DiscreteVAE
from transduct.predictors.base import Notify, Report
from transduct.predictors.image_codes import (
    TEMPERATURES,
    Batch,
    ImageCodes,
    as_tensor,
    code_score_names,
)
from transduct.predictors.options import Family, NoOptions
from transduct.tasks.base import Task
from transduct.tasks.model import card, files_said, write_model
from transduct.tasks.sections import ModelSection, filled, training_section
from transduct.training.config import TrainingConfig
from transduct.training.step import Terms

FAMILIES = {"discrete_vae": Family(CodesConfig, CODES_SIZES, DiscreteVAE)}
DERIVED = {"picture_size": "data.size"}  # model fields that other sections decide


def batch_of(corpus: Corpus, size: int, places: int, numbers: Indices) -> Batch:
    """Make a batch of the pictures with given numbers."""
    words, _ = corpus.columns(numbers)[0]
    shape = (len(numbers), size, size, 3)
    return Batch(torch.from_numpy(unpack(words, int(np.prod(shape))).reshape(shape)), places)


class ImageCodesTask(Task):
    """The task of learning image codes, for one recipe in one run directory; see `base.Task`."""

    def __init__(self, recipe: Recipe, directory: Path, notify: Notify) -> None:
        self.directory, self.notify = directory, notify
        self.data = record(PicturesConfig, recipe.data, "data")
        self.training = training_section(
            TrainingConfig,
            recipe.training,
            code_score_names(self.data.valid),
        )
        record(NoOptions, recipe.tokenizer, "tokenizer")  # there is no text
        record(NoOptions, recipe.decoding, "decoding")
        self.model = ModelSection(recipe.model, FAMILIES, DERIVED)
        self.config: CodesConfig = self.model.config(picture_size=self.data.size)
        self.recipe = filled(recipe, self, self.config)
        self.corpus: Corpus
        self._validation: Examples | None = None

    def prepare(self) -> None:
        """Read the validation set and prepare the corpus.

        Raises:
            TransductError: a file is missing or broken, or Pillow is not installed.
        """
        pillow()
        if self.data.valid is not None:
            self._validation = read_examples(self.data.valid, self.data, self.notify)
        inputs = inputs_of(self.data, {})
        self.corpus = prepare(self.data, _packed, inputs, self.directory / "corpus", self.notify)

    def build_model(self) -> DiscreteVAE:
        """The recipe's model, with the weights of `model.start_from` if set."""
        return self.model.build(self.config, self.notify)

    def batches(self, split: str, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """This rank's batches of an epoch, from batch `start` on, each with the temperature of its
        training step.

        Steps are counted as if every epoch had as many as this one.
        """
        only_train(split, "image codes have")
        config, data, places = self.training, self.data, self.config.places
        order = plan(
            np.full((len(self.corpus), 1), places),
            config.seed,
            epoch,
            config.batch_tokens,
            self.corpus.weights,
        )
        make = partial(batch_of, self.corpus, data.size, places)
        made = load_batches(order, make, start, rank, world, data.workers)
        a_step = config.accumulate * world
        # the last step of an epoch may have fewer batches
        before = epoch * -(-len(order) // a_step)
        for number, batch in zip(count(start, world), made):
            yield replace(batch, temperature=self._temperature(before + number // a_step))

    def _temperature(self, done: int) -> float:
        """The temperature after `done` steps: it decays exponentially."""
        first, last = TEMPERATURES
        return first * (last / first) ** min(1.0, done / self.training.steps)

    def loss(self, model: DiscreteVAE, batch: Batch) -> Terms:
        """The squared error of colour values in -1..1, and the quantiser's loss."""
        pictures = as_tensor(batch.pictures)
        remade, _, penalty = model(pictures, batch.temperature)
        error = (remade.float() - pictures).square().sum()
        return {
            "pixels": (error, batch.counts["pixels"], 1.0),
            "codes": (penalty, batch.counts["codes"], 1.0),
        }

    def _in_use(self, model: DiscreteVAE) -> ImageCodes:
        return ImageCodes(model)

    def save(self, model: DiscreteVAE, directory: Path, log: Mapping[str, Any]) -> Report:
        """Write the model directory, with a card of the final scores, which are returned, and a
        sheet of pictures."""
        report = self.evaluate(model)
        made_of = f"{len(self.corpus):,} pictures {files_said(self.data, self.corpus.dropped)}"
        about = card("Image codes", made_of, self.training, report.scores, log)
        beside: list[Path] = []
        if self._validation is not None:
            beside.append(
                save_sheet(self._in_use(model).grid(self._validation.pictures), self.directory)
            )
        write_model(directory, "image_codes", model, {}, beside, about)
        return report


def _packed(captions: Sequence[str], pictures: np.ndarray) -> list[Ragged]:  # noqa: ARG001 (pictures suffice)
    return [ragged([pack(picture) for picture in pictures])]
