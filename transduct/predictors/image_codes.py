"""Inference for image codes: pictures to codes and back, and how much of them is kept.

Let B be the pictures, P the codes of a picture.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from transduct.config import Recipe
from transduct.data.captioned_images import (
    Examples,
    PicturesConfig,
    PictureSource,
    Unread,
    pictures_given,
    read_examples,
)
from transduct.data.files import Refused
from transduct.data.images import Given, Picture, as_picture, fitted
from transduct.data.samples import PictureCorpus, find_corpus
from transduct.drawing.plots import SHOWN, sheet
from transduct.evaluation.bootstrap import Ratio, of_examples
from transduct.evaluation.classification import Scores
from transduct.inference.batches import answered
from transduct.models.dalle import CODES_SIZES, CodesConfig, DiscreteVAE
from transduct.predictors.base import Predictor, Report
from transduct.predictors.isolation import of_input
from transduct.predictors.model_directory import Family, OneModel, require_finite
from transduct.predictors.options import (
    NoOptions,
    check_inputs,
    data_with_test,
    policy_of,
    with_options,
)
from transduct.segments import Axis, FlatBatch

# of the Gumbel-softmax at the first step and after the last (Ramesh et al. 2021)
TEMPERATURES = 1.0, 1 / 16

AT_ONCE = 64  # pictures to encode or decode in one batch
CODE_ERRORS = frozenset({"reconstruction_error"})  # scores that are better when lower


@dataclass(frozen=True, eq=False)
class GeneratedPicture:
    """A generated picture: pixels (height, width, 3), 0 to 255; while it is drawn, its codes so
    far."""

    pixels: Picture
    codes: Sequence[int] = ()

    def __str__(self) -> str:
        height, width = self.pixels.shape[:2]
        return f"picture {width}x{height}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GeneratedPicture) and np.array_equal(self.pixels, other.pixels)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Batch(FlatBatch):
    """Pictures (B, height, width, 3), 0 to 255, `places` codes each, and the temperature of the
    Gumbel-softmax."""

    pictures: Annotated[Tensor, Axis("pictures")]
    places: int
    temperature: float = TEMPERATURES[0]

    @property
    def tokens(self) -> int:
        """The number of codes."""
        return len(self.pictures) * self.places

    @property
    def counts(self) -> dict[str, float]:
        """Reconstruction error and quantiser loss (van den Oord et al. 2017, equation 3) are
        averages over colour values."""
        return dict.fromkeys(("pixels", "codes"), float(self.pictures.numel()))


def as_tensor(pictures: np.ndarray | Tensor) -> Tensor:
    """Scale pictures (B, height, width, 3) from 0..255 to (B, 3, height, width) in -1..1."""
    # (B, 3, height, width)
    return torch.as_tensor(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1.0


def as_pictures(pixels: Tensor) -> np.ndarray:
    """The inverse of `as_tensor`, rounded and clamped to 0..255."""
    shown = ((pixels.float() + 1.0) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return shown.permute(0, 2, 3, 1).cpu().numpy()  # (B, height, width, 3)


@torch.inference_mode()
def codes_of(vae: DiscreteVAE, pictures: np.ndarray) -> np.ndarray:
    """Encode pictures (B, height, width, 3), 0 to 255, as codes (B, P)."""
    device, dtype = vae.codebook.device, vae.codebook.dtype

    def encode(numbers: list[int]) -> np.ndarray:
        return vae.encode(as_tensor(pictures[numbers]).to(device, dtype)).cpu().numpy()

    codes = answered(encode, [1] * len(pictures), AT_ONCE)
    return np.array(codes, np.int64).reshape(-1, vae.config.places)


@torch.inference_mode()
def pictures_of(vae: DiscreteVAE, codes: np.ndarray, at_once: int = AT_ONCE) -> np.ndarray:
    """Decode codes (B, P) to pictures (B, height, width, 3), 0 to 255.

    Raises:
        NotFinite: the model answers with NaN.
    """

    def decode(numbers: list[int]) -> np.ndarray:
        remade = vae.decode(torch.from_numpy(codes[numbers]).to(vae.codebook.device))
        require_finite(remade)
        return as_pictures(remade)

    return np.array(answered(decode, [1] * len(codes), at_once), np.uint8)


def code_score_names(valid: PictureSource | None) -> list[str]:
    """The names of the scores of a validation on these pictures; `attributes_right` needs generated
    scenes.

    Raises MissingExtra, before training begins, if generated scenes are to be scored and SciPy is
    not installed.
    """
    # a missing validation set is refused elsewhere
    ruled = valid is None or valid.generate is not None
    if valid is not None and valid.generate is not None:
        find_corpus(valid.generate, PictureCorpus).require()
    return ["reconstruction_error", "psnr", "code_usage", "code_perplexity"] + [
        "attributes_right"
    ] * ruled


def code_scores(
    vae: DiscreteVAE, pictures: np.ndarray, codes: np.ndarray, remade: np.ndarray
) -> dict[str, float]:
    """Reconstruction quality, and how much of the codebook is used.

    `reconstruction_error` is the mean squared error of colour values in 0..1, and `psnr` the same
    in decibels. `code_usage` is the percentage of codes that occur, `code_perplexity` the
    exponential of the entropy of the codes.
    """
    error = float(np.mean(np.square((pictures.astype(np.float64) - remade) / 255.0)))
    shares = np.bincount(codes.flatten(), minlength=vae.config.codes) / codes.size
    used = shares[shares > 0]
    return {
        "reconstruction_error": error,
        "psnr": -10.0 * math.log10(max(error, 1e-10)),
        "code_usage": 100.0 * len(used) / vae.config.codes,
        "code_perplexity": float(np.exp(-(used * np.log(used)).sum())),
    }


def scene_scores(shown: Examples, pictures: Sequence[GeneratedPicture]) -> Scores:
    """`attributes_right`, the percentage of pictures that show what the captions of generated
    scenes say.

    Empty for other pictures, which no rule can judge.
    """
    if shown.generated is None:
        return Scores({}, {}, [])
    made = find_corpus(shown.generated, PictureCorpus)
    scores: Scores = made.scores(shown.captions, [each.pixels for each in pictures])
    return scores


def right_of(ruled: Scores) -> dict[str, Ratio]:
    """What is right of each picture, where a rule can judge it."""
    return {"attributes_right": of_examples(ruled.right)} if ruled.right else {}


class ImageCodes(OneModel):
    """Encodes pictures as codes and decodes them, with one model."""

    reads, paints = "picture", True  # its inputs are files of pictures, its answers pictures
    decoding = NoOptions()
    verbs = Predictor.verbs | {"picture", "codes"}
    family = Family(CodesConfig, CODES_SIZES, DiscreteVAE)

    @classmethod
    def test_set(
        cls, files: Mapping[str, Any], recipe: Recipe | None, refused: Refused | None = None
    ) -> Examples | Unread:
        """The pictures in the folder or archive `source`, or the recipe's test set."""
        if files:
            return pictures_given(files, PicturesConfig, policy_of(refused))
        data = data_with_test(PicturesConfig, recipe, "--source, a folder or archive of pictures")
        return read_examples(data.test, replace(data, broken=policy_of(refused, data.broken)))

    def predict(self, inputs: Sequence[Given], **options: Any) -> list[GeneratedPicture]:
        """Reconstruct each picture from its codes.

        Args:
            inputs: pictures in any form that `as_picture` takes.

        Raises:
            TransductError: an input is not a picture, or an option is given (there are none).
        """
        check_inputs(inputs, "picture")
        with_options(NoOptions(), options)
        # one by one, so that an answer does not depend on its batch
        outputs = []
        for number, given in enumerate(inputs):
            with of_input(number):
                picture = self._read(given)
            outputs.append(GeneratedPicture(self._remade(picture[None])[0]))
        return outputs

    def codes(self, inputs: Sequence[Given], **options: Any) -> list[list[list[int]]]:
        """The codes of each picture, in rows; see `predict`."""
        check_inputs(inputs, "picture")
        with_options(NoOptions(), options)
        pictures = [self._read(given, "the picture") for given in inputs]
        side = math.isqrt(self.model.config.places)
        return [codes_of(self.model, one[None]).reshape(side, side).tolist() for one in pictures]

    def picture(self, given: Given, output: GeneratedPicture) -> Picture:
        """The picture as it was read, above its reconstruction."""
        return np.concatenate((self._read(given, "the picture"), output.pixels))

    def measured(self, data: Examples | Unread, options: Mapping[str, Any]) -> Report:
        """The scores of `code_scores` and, for generated scenes, `attributes_right`: the percentage
        of reconstructions that still show what their captions say."""
        with_options(NoOptions(), options)
        shown = data.at(self.model.config.picture_size)
        pictures = np.stack(shown.pictures)
        codes = codes_of(self.model, pictures)
        remade = pictures_of(self.model, codes)
        scores = code_scores(self.model, pictures, codes, remade)
        reconstructed = [GeneratedPicture(picture) for picture in remade]
        ruled = scene_scores(shown, reconstructed)
        details = {"pictures": len(codes), "left_out": shown.left_out, **ruled.details}
        return Report(scores | ruled.scores, details, reconstructed, CODE_ERRORS, right_of(ruled))

    def grid(self, pictures: Sequence[Picture]) -> Picture:
        """A sheet of up to `SHOWN` pictures, each above its reconstruction."""
        shown = np.stack([self._read(picture, "the picture") for picture in pictures[:SHOWN]])
        return sheet(list(zip(shown, self._remade(shown))))

    def _remade(self, pictures: np.ndarray) -> np.ndarray:
        return pictures_of(self.model, codes_of(self.model, pictures))

    def _read(self, given: Given, name: str | None = None) -> Picture:
        return fitted(as_picture(given, name), self.model.config.picture_size)
