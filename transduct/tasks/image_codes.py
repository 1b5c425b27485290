"""Image codes: trains a discrete VAE that turns a picture into a small grid of codes, for a decoder
to generate.

Let B be the pictures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from transduct.data.batching import Indices
from transduct.data.captioned_images import (
    Examples,
    PicturesConfig,
    prepare,
    read_examples,
)
from transduct.data.corpus import Corpus, Ragged, inputs_of, ragged
from transduct.data.files import pack, unpack
from transduct.drawing.plots import pillow, save_sheet
from transduct.models.dalle import DiscreteVAE
from transduct.predictors.image_codes import (
    TEMPERATURES,
    Batch,
    ImageCodes,
    as_tensor,
    code_score_names,
)
from transduct.segments import Filler
from transduct.tasks.base import Epoch, Task
from transduct.tasks.sections import Sections
from transduct.training.distributed import Terms


def batch_of(numbers: Indices, *, corpus: Corpus, size: int, places: int) -> Batch:
    """Make a batch of the pictures with given numbers."""
    words, _ = corpus.columns(numbers)[0]
    shape = (len(numbers), size, size, 3)
    return Batch(torch.from_numpy(unpack(words, int(np.prod(shape))).reshape(shape)), places)


class ImageCodesTask(Task):
    """Trains a discrete VAE."""

    name, title, unit = "image_codes", "Image codes", "pictures"
    sections = Sections(PicturesConfig)
    families = {"discrete_vae": ImageCodes.family}
    derived = {"picture_size": "data.size"}

    def check(self) -> None:
        self.scores = code_score_names(self.data.valid)

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
        if self._validation is not None:
            rows = ([pack(each)] for each in self._validation.pictures)
            self.report_leaks("validation pictures", rows, 0)

    def epoch(self, number: int) -> Epoch[Batch]:  # noqa: ARG002 (pictures are always the same)
        places = self.model_config().places
        make = partial(batch_of, corpus=self.corpus, size=self.data.size, places=places)
        return Epoch(np.full((len(self.corpus), 1), places), make, self.corpus.weights)

    def batches(
        self,
        split: str,
        epoch: int,
        start: int,
        rank: int,
        world: int,
        a_step: int | None = None,
        window: int = 0,
    ) -> Iterator[Batch | Filler]:
        """This rank's batches, each with the temperature of its training step.

        Steps are counted as if every window of an epoch had as many as this one.
        """
        made = super().batches(split, epoch, start, rank, world, a_step, window)
        a_step, (order, _) = a_step or world, self.order(epoch, window)
        # the last step of a window may have fewer batches
        before = (epoch * self.windows + window) * -(-len(order) // a_step) + start // a_step
        for number, batch in enumerate(made):
            step = before + number // -(-a_step // world)
            filler = isinstance(batch, Filler)
            yield batch if filler else replace(batch, temperature=self._temperature(step))

    def _temperature(self, done: int) -> float:
        """The temperature after `done` steps: it decays exponentially."""
        first, last = TEMPERATURES
        return first * (last / first) ** min(1.0, done / self.training.steps)

    def part(self, numbers: Indices) -> Examples:
        return self._validation.part(numbers)

    def loss(self, model: DiscreteVAE, batch: Batch) -> Terms:
        """The squared error of colour values in -1..1, and the quantiser's loss."""
        pictures = as_tensor(batch.pictures)
        remade, _, penalty = model(pictures, batch.temperature)
        error = (remade.float() - pictures).square().sum()
        return {
            "pixels": (error, batch.counts["pixels"], 1.0),
            "codes": (penalty, batch.counts["codes"], 1.0),
        }

    def predictor(self, model: DiscreteVAE) -> ImageCodes:
        return ImageCodes(model)

    def files(self, model: DiscreteVAE) -> list[Path]:
        if self._validation is None:
            return []
        return [save_sheet(self.predictor(model).grid(self._validation.pictures), self.directory)]


def _packed(captions: Sequence[str], pictures: np.ndarray) -> list[Ragged]:  # noqa: ARG001
    return [ragged([pack(picture) for picture in pictures])]
