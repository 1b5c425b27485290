"""Image codes: pictures to a discrete VAE that keeps each as a small grid of codes, for a decoder to write.

Let B be pictures, P the places of a picture's grid of codes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.config import Recipe, record
from transduct.data.batching import Indices, plan
from transduct.data.batching import load as load_batches
from transduct.data.corpus import Corpus, Ragged, inputs_of, ragged
from transduct.data.files import names_of, pack, unpack
from transduct.data.images import Given, Picture, as_picture, fitted
from transduct.data.pictures import Examples, PicturesConfig, Unread, pictures_given, prepare, read_examples
from transduct.data.scenes import COLOURS
from transduct.evaluation.classification import mcnemar
from transduct.evaluation.scenes import attribute_scores
from transduct.models.dalle import CODES_SIZES, CodesConfig, DiscreteVAE
from transduct.tasks.base import Notify, Report
from transduct.tasks.model import Movable, blank_of, card, files_said, only_train, read_weights, write_model
from transduct.tasks.painter import (
    CODE_ERRORS,
    SHOWN,
    Drawn,
    as_tensor,
    code_score_names,
    code_scores,
    codes_of,
    pictures_of,
    pillow,
    save_sheet,
    sheet,
)
from transduct.tasks.sections import (
    Family,
    ModelSection,
    NoOptions,
    check_inputs,
    data_with_test,
    filled,
    training_section,
    with_options,
)
from transduct.training.config import TrainingConfig
from transduct.training.step import Terms

FAMILIES = {"discrete_vae": Family(CodesConfig, CODES_SIZES, DiscreteVAE)}
DERIVED = {"picture_size": "data.size"}  # of the model, and what says it
TEMPERATURES = 1.0, 1 / 16  # of the Gumbel-softmax in the first step and after the last (Ramesh et al. 2021)


@dataclass(frozen=True)
class Batch(Movable):
    """Pictures (B, height, width, 3) of 0 to 255, of `places` codes each, and the temperature these are drawn at."""

    pictures: Tensor
    places: int
    temperature: float = TEMPERATURES[0]

    @property
    def tokens(self) -> int:
        """Codes that are made."""
        return len(self.pictures) * self.places

    @property
    def counts(self) -> dict[str, float]:
        """Error and what the quantiser adds are sums over a picture (van den Oord et al. 2017, equation 3); both are
        averaged over its colours."""
        return dict.fromkeys(("pixels", "codes"), float(self.pictures.numel()))


@dataclass(frozen=True)
class MakeBatch:
    """Numbers of pictures to a batch."""

    corpus: Corpus
    size: int
    places: int

    def __call__(self, numbers: Indices) -> Batch:
        words, _ = self.corpus.columns(numbers)[0]
        shape = (len(numbers), self.size, self.size, 3)
        return Batch(torch.from_numpy(unpack(words, int(np.prod(shape))).reshape(shape)), self.places)


class ImageCodes:
    """Turns pictures to codes and back, with one model."""

    reads, paints = "picture", True  # as a `Detector`, as a `Painter`

    def __init__(self, model: DiscreteVAE) -> None:
        self.model = model.eval()

    @classmethod
    def load(cls, directory: Path, config: dict[str, Any], device: torch.device, precision: str) -> "ImageCodes":
        """The model in a directory whose `config.json` has been read."""
        model = blank_of(config, DiscreteVAE, CodesConfig, directory)
        read_weights(model, directory, device, precision)
        return cls(model)

    def predict(self, inputs: Sequence[Given], **options: Any) -> list[Drawn]:
        """What the codes of each picture, given as `as_picture` takes it, keep of it.

        Raises:
            TransductError: an input is no picture, or there is an option.
        """
        check_inputs(inputs, "picture")
        with_options(NoOptions(), options)
        # one by one, so that a picture's answer is the same alone and in any batch
        pictures = (self._read(given, f"input {number}") for number, given in enumerate(inputs, 1))
        return [Drawn(self._remade(picture[None])[0]) for picture in pictures]

    def picture(self, given: Given, output: Drawn) -> Picture:
        """The picture as it was read above what its codes keep of it."""
        return np.concatenate((self._read(given, "the picture"), output.pixels))

    def evaluate(self, data: Examples | Unread, against: "ImageCodes | None" = None, **options: Any) -> Report:
        """How well codes keep pictures and how many are in use (see `code_scores`), and of generated scenes the
        percentage that still show what they showed, `attributes_right`.

        Args:
            against: another model; the details then hold its scores and, of generated scenes, the p-value of McNemar's
                test.
        """
        with_options(NoOptions(), options)
        scores, details, remade, right = self._measured(data)
        if against is not None:
            details["against"], _, _, theirs = against._measured(data)
            details["p_values"] = {"attributes_right": mcnemar(right, theirs)} if right else {}
        return Report(scores, details, remade, CODE_ERRORS)

    def _measured(self, data: Examples | Unread) -> tuple[dict[str, float], dict[str, Any], list[Drawn], list[bool]]:
        """Scores, details, what codes keep of the pictures, and where a rule can tell whether it shows the same."""
        shown = data.at(self.model.config.picture_size)
        pictures = np.stack(shown.pictures)
        codes = codes_of(self.model, pictures)
        remade = pictures_of(self.model, codes)
        scores = code_scores(self.model, pictures, codes, remade)
        details: dict[str, Any] = {"pictures": len(codes)}
        drawn = [Drawn(picture) for picture in remade]
        if shown.generated != "scenes":
            return scores, details, drawn, []
        found = attribute_scores(shown.captions, list(remade), COLOURS)
        return scores | found.scores, details | found.details, drawn, found.right

    def grid(self, pictures: Sequence[Picture]) -> Picture:
        """Pictures, each above what its codes keep of it, on one page."""
        shown = np.stack([self._read(picture, "the picture") for picture in pictures[:SHOWN]])
        return sheet(list(zip(shown, self._remade(shown))))

    def _remade(self, pictures: np.ndarray) -> np.ndarray:
        return pictures_of(self.model, codes_of(self.model, pictures))

    def _read(self, given: Given, name: str) -> Picture:
        return fitted(as_picture(given, name), self.model.config.picture_size)


class ImageCodesTask:
    """Learns codes for pictures; see `tasks.base.Task`."""

    def __init__(self, recipe: Recipe, directory: Path, notify: Notify) -> None:
        self.directory, self.notify = directory, notify
        self.data = record(PicturesConfig, recipe.data, "data")
        self.training = training_section(TrainingConfig, recipe.training, code_score_names(self.data.valid))
        record(NoOptions, recipe.tokenizer, "tokenizer")  # codes are made without a text
        record(NoOptions, recipe.decoding, "decoding")
        self.model = ModelSection(recipe.model, FAMILIES, DERIVED)
        self.config: CodesConfig = self.model.config(picture_size=self.data.size)
        self.recipe = filled(recipe, self.data, self.model.resolved(self.config), training=self.training)
        self.corpus: Corpus
        self._validation: Examples | None = None

    def prepare(self) -> None:
        """Read what is short, and prepare the corpus.

        Raises:
            TransductError: a file is missing or broken, or Pillow is.
        """
        pillow()
        if self.data.valid is not None:
            self._validation = read_examples(self.data.valid, self.data, captioned=False, notify=self.notify)
        inputs = inputs_of(self.data, {})
        self.corpus = prepare(self.data, _packed, inputs, self.directory / "corpus", self.notify, captioned=False)

    def build_model(self) -> DiscreteVAE:
        """The model of the recipe, begun from another's weights if it says so."""
        model: DiscreteVAE = self.model.build(self.config, self.notify)
        return model

    def batches(self, split: str, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """This rank's batches of an epoch, from number `start` on, each at the temperature of its step, counted as if
        every epoch had as many steps as this one."""
        only_train(split, "image codes have")
        config, data, places = self.training, self.data, self.config.places
        order = plan(
            np.full((len(self.corpus), 1), places), config.seed, epoch, config.batch_tokens, self.corpus.weights
        )
        made = load_batches(order, MakeBatch(self.corpus, data.size, places), start, rank, world, data.workers)
        a_step = config.accumulate * world
        before = epoch * -(-len(order) // a_step)  # the last step of an epoch may have fewer batches
        for number, batch in zip(count(start, world), made):
            yield replace(batch, temperature=self._temperature(before + number // a_step))

    def _temperature(self, done: int) -> float:
        """The temperature after so many steps: it falls by the same factor with each."""
        first, last = TEMPERATURES
        return first * (last / first) ** min(1.0, done / self.training.steps)

    def loss(self, model: DiscreteVAE, batch: Batch) -> Terms:
        """The squared error of colours of -1 to 1, and what the quantiser adds."""
        pictures = as_tensor(batch.pictures)
        remade, _, penalty = model(pictures, batch.temperature)
        error = (remade.float() - pictures).square().sum()
        return {"pixels": (error, batch.counts["pixels"], 1.0), "codes": (penalty, batch.counts["codes"], 1.0)}

    def evaluate(self, model: DiscreteVAE, data: Examples | None = None) -> Report:
        """Scores on `data` or on the validation set."""
        data = self._validation if data is None else data
        return Report({}) if data is None else ImageCodes(model).evaluate(data)

    def predict(self, model: DiscreteVAE, inputs: Sequence[Any]) -> list[Drawn]:
        """What the codes of each picture keep of it."""
        return ImageCodes(model).predict(inputs)

    def save(self, model: DiscreteVAE, directory: Path, log: Mapping[str, Any]) -> None:
        """Write the model directory, with the scores of the final weights on its card and a sheet of pictures."""
        made_of = f"{len(self.corpus):,} pictures {files_said(names_of(self.data.train), self.corpus.dropped)}"
        about = card("Image codes", made_of, self.training, self.evaluate(model).scores, log)
        beside: list[Path] = []
        if self._validation is not None:
            beside.append(save_sheet(ImageCodes(model).grid(self._validation.pictures), self.directory))
        write_model(directory, "image_codes", model, {}, beside, about)


def _packed(captions: Sequence[str], pictures: np.ndarray) -> list[Ragged]:  # noqa: ARG001 (none is needed)
    return [ragged([pack(picture) for picture in pictures])]


create, load = ImageCodesTask, ImageCodes.load  # which `base.py` and `runs.py` call by name


def test_set(files_given: Mapping[str, str], recipe: Recipe | None) -> Examples | Unread:
    """The pictures in the folder or archive given as `source`, or the test set of the recipe."""
    if files_given:
        return pictures_given(files_given, captioned=False)
    data = data_with_test(PicturesConfig, recipe, "--source, a folder or archive of pictures")
    return read_examples(data.test, data, captioned=False)
