"""Inference for image classification: labels for pictures, with probabilities and attention.

Let B be the pictures, S the tokens of each (the class token if there is one, then the patches), H
the heads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from transduct.config import Recipe
from transduct.data.augmentation import Augmentation
from transduct.data.batching import Indices
from transduct.data.corpus import Corpus
from transduct.data.files import DataSection, Policy, Refused, composed_labels, unpack
from transduct.data.images import (
    Given,
    ImageSource,
    Picture,
    Side,
    as_picture,
    fitted,
    read_labelled,
)
from transduct.errors import require
from transduct.evaluation.bootstrap import of_examples
from transduct.evaluation.classification import label_scores
from transduct.inference.batches import device_of, shared
from transduct.models.vit import SIZES, Config, ViT
from transduct.predictors.base import Attention, Panel, Predictor, Report
from transduct.predictors.isolation import of_input
from transduct.predictors.model_directory import (
    Family,
    OneModel,
    check_labels_fit,
    require_finite,
    unknown_label,
)
from transduct.predictors.options import (
    PredictConfig,
    check_inputs,
    data_with_test,
    policy_of,
    with_options,
)
from transduct.records import Rate, refuse_if
from transduct.segments import Axis, FlatBatch

CHUNK = 1024  # how many pictures an evaluation holds at once


@dataclass(frozen=True)
class LabelledImagesConfig(DataSection):
    """The `data` section of a recipe for image classification.

    Attributes:
        size: height and width in pixels; other pictures are centre-cropped to a square and resized.
        hold_out: without `valid`, the share of the training pictures, chosen by a hash of the name,
            to validate on.
        broken: `stop` at a picture that cannot be read or has no label, or `skip` it.
        augmentation: how training pictures are augmented.
    """

    train: list[ImageSource]
    valid: ImageSource | None = None
    test: ImageSource | None = None
    size: Side = 224
    hold_out: Rate = 0.0
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.augmentation.crop > self.size,
            f"augmentation.crop is {self.augmentation.crop}, must be at most size ({self.size})",
        )
        refuse_if(
            self.hold_out and self.valid,
            "hold_out and valid are both set; pictures are held out where valid names none: remove "
            "one of them",
        )


@dataclass(frozen=True)
class Batch(FlatBatch):
    """Pictures and their labels.

    Attributes:
        pictures: (B, height, width, 3), 0 to 255.
        labels, others: (B,) the label of each picture, and of the picture mixed into it.
        shares: (B,) the weight of each picture's own label; the other label has the rest.
        patches: P.
    """

    terms = {"labels": "pictures"}
    pictures: Annotated[Tensor, Axis("pictures")]
    labels: Annotated[Tensor, Axis("pictures")]
    others: Annotated[Tensor, Axis("pictures")]
    shares: Annotated[Tensor, Axis("pictures")]
    patches: int

    @property
    def tokens(self) -> int:
        """The number of patches."""
        return len(self.pictures) * self.patches


@dataclass(frozen=True)
class PictureConfig(PredictConfig):
    """How pictures are classified.

    Attributes:
        mirrored: whether to average the scores of each picture and its mirror image.
    """

    mirrored: bool = False


@dataclass(frozen=True)
class About:
    """Facts about the training pictures: labels in the order of their ids, mean and standard
    deviation of colours."""

    labels: list[str]
    mean: list[float]
    deviation: list[float]

    def __post_init__(self) -> None:
        refuse_if(
            len(self.mean) != 3 or len(self.deviation) != 3,
            f"mean is {self.mean} and deviation {self.deviation}, must be of three colours "
            "each; copy the model again",
        )
        object.__setattr__(self, "labels", composed_labels(self.labels))

    def read(self, pictures: Tensor) -> Tensor:
        """Normalise pictures for the model: (B, height, width, 3) in 0..255 -> (B, 3, height,
        width)."""
        mean, deviation = (
            torch.tensor(x, device=pictures.device) for x in (self.mean, self.deviation)
        )
        return ((pictures / 255.0 - mean) / deviation).movedim(3, 1)  # (B, 3, height, width)


def rows_of(corpus: Corpus, numbers: Indices, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The pictures (n, size, size, 3) of some rows of a corpus, and their labels (n,)."""
    (words, _), (labels, _) = corpus.columns(numbers)
    kept = size * size * 3
    unpacked = unpack(words, 4 * len(words)).reshape(len(numbers), kept + -kept % 4)
    return unpacked[:, :kept].reshape(-1, size, size, 3), labels


@dataclass(frozen=True)
class LabelledPictures:
    """Labelled pictures in files, read anew by each evaluation.

    Attributes:
        reported: whether broken files have been reported before.
    """

    source: ImageSource
    root: str
    broken: Policy = "stop"
    reported: bool = False

    def read(self, known: Sequence[str], refused: Refused) -> Iterator[tuple[Picture, str]]:
        """Yields each picture and its label.

        Raises:
            TransductError: `read_labelled` fails, a label is not one of `known`, or there is no
                picture at all.
        """
        labels, count = set(known), 0
        for name, picture, label in read_labelled(self.source, Path(self.root), refused):
            with refused.each():
                require(
                    label in labels,
                    f"{self.source.images}: {name}: {unknown_label(label, known)}; fix it, or "
                    "train on pictures that have it",
                )
                yield picture, label
                count += 1
        require(
            count,
            f"{self.source.images}: found no picture to measure on "
            f"({refused.summary() or 'there is none'}); give one that holds some",
        )


@dataclass(frozen=True)
class HeldOut:
    """Held-out pictures: the rows of a corpus from `start` on, which training never sees."""

    corpus: Corpus
    start: int
    size: int
    broken: ClassVar[Policy] = "stop"
    reported: ClassVar[bool] = True

    def read(
        self,
        known: Sequence[str],
        refused: Refused,  # noqa: ARG002
    ) -> Iterator[tuple[Picture, str]]:
        """Yields each picture and its label."""
        for number in range(self.start, len(self.corpus)):
            pictures, labels = rows_of(self.corpus, np.array([number]), self.size)
            yield pictures[0], known[labels[0]]


def attended(found: Attention, picture: Picture, grid: int) -> list[Panel]:
    """The attention of the class token, or the mean of all patches without one: last layer, and
    all layers.

    The latter is attention rollout (Abnar and Zuidema 2020): the product of the layers' attention
    matrices, each averaged with the identity for the residual connection.

    Args:
        picture: cropped and resized for the model.
        grid: the number of patches on each side.
    """
    means = [weights.mean(0) for weights in found.weights.values()]  # (S, S) each
    rollout = torch.eye(len(means[0]))
    for mean in means:
        rollout = (0.5 * mean + 0.5 * torch.eye(len(mean))) @ rollout

    def of_patches(weights: Tensor) -> Tensor:
        """(S, S) -> (grid, grid)."""
        classified = weights[0] if len(weights) > grid**2 else weights.mean(0)
        return classified[-(grid**2) :].view(grid, grid)

    last = f"{list(found.weights)[-1]}, mean of heads"
    titled = {last: means[-1], "rollout of all layers": rollout}
    return [Panel(title, of_patches(each), picture=picture) for title, each in titled.items()]


class PictureClassifier(OneModel):
    """Classifies pictures, with one model."""

    reads = "picture"  # the kind of file that its inputs are
    verbs = Predictor.verbs | {"attention", "probabilities"}
    family = Family(Config, SIZES, ViT)
    sections = {"pictures": About, "decoding": PictureConfig}

    def __init__(self, model: ViT, about: About, decoding: PictureConfig) -> None:
        super().__init__(model)
        self.about, self.decoding = about, decoding

    @classmethod
    def parts(cls, directory: Path, config: Mapping[str, Any], model: Any) -> list[Any]:
        about, decoding = super().parts(directory, config, model)
        check_labels_fit(directory, about.labels, model)
        return [about, decoding]

    @classmethod
    def test_set(
        cls, files: Mapping[str, Any], recipe: Recipe | None, refused: Refused | None = None
    ) -> LabelledPictures:
        """The pictures of a folder or archive (`source`) and their labels (`reference`), or the
        recipe's test set."""
        if "source" in files:
            source = ImageSource(files["source"], files.get("reference"))
            return LabelledPictures(source, ".", policy_of(refused))
        require(not files, "--reference holds the labels of --source; give both")
        data = data_with_test(
            LabelledImagesConfig, recipe, "--source, with a folder for each label"
        )
        return LabelledPictures(data.test, data.root, policy_of(refused, data.broken))

    def predict(self, inputs: Sequence[Given], **options: Any) -> list[str]:
        """Predict the label of each picture.

        Args:
            inputs: paths, contents of files, or arrays (height, width, 3) of uint8; see
                `as_picture`.
            options: fields of `PictureConfig`; `batch_tokens` counts patches.

        Raises:
            TransductError: an input is not a complete picture, or an option is unknown.
            NotFinite: the model answers with NaN.
        """
        return [self.about.labels[i] for i in self._scores(inputs, options).argmax(1).tolist()]

    def probabilities(self, inputs: Sequence[Given], **options: Any) -> list[dict[str, float]]:
        """The probability of each label, for each picture; arguments and errors as for
        `predict`."""
        rows = self._scores(inputs, options).softmax(1).tolist()
        return [dict(zip(self.about.labels, row, strict=True)) for row in rows]

    def measured(self, data: LabelledPictures | HeldOut, options: Mapping[str, Any]) -> Report:
        """`accuracy` and macro `f1` in percent. Pictures are read in parts, for all would not fit
        into memory.

        Raises:
            TransductError: as `predict`; a picture has no label, or one that the model does not
                know; or the other model has other labels.
        """
        refused = Refused(data.broken, advise=False)
        outputs, answers = list[str](), list[str]()
        stream = (  # photographs are reduced to what the model sees
            (self._picture(picture, "the picture"), label)
            for picture, label in data.read(self.about.labels, refused)
        )
        while chunk := list(islice(stream, CHUNK)):
            outputs += self.predict([picture for picture, _ in chunk], **options)
            answers += [label for _, label in chunk]
        found = label_scores(outputs, answers)
        details = {"examples": len(answers), "left_out": refused.dropped, **found.details}
        right = {"accuracy": of_examples(found.right)}
        told = None if data.reported else refused
        return Report(found.scores, details, outputs, right=right, refused=told)

    def check_against(self, other: "PictureClassifier", data: Any) -> None:
        super().check_against(other, data)
        require(
            {*other.about.labels} == {*self.about.labels},
            "the other model has other labels; compare models of the same task",
        )

    @torch.no_grad()  # not inference mode, whose tensors could not be changed or trained on
    def attention(self, given: Given, **options: Any) -> Attention:
        """Every attention weight of a picture; options as for `predict`.

        Raises:
            NotFinite: the model answers with NaN.
        """
        with_options(self.decoding, options)  # they change nothing here, but are checked
        picture = self._picture(given, "the picture")
        weights: list[Tensor] = []
        self.model.encode(self._read([picture]), weights)
        require_finite(*weights)
        draw = partial(attended, picture=picture, grid=self.model.config.grid)
        return Attention.of(self.model, weights, draw=draw)

    @torch.inference_mode()
    def _scores(self, inputs: Sequence[Given], options: Mapping[str, Any]) -> Tensor:
        """The scores of each label (B, labels)."""
        check_inputs(inputs, "picture")
        decoding = with_options(self.decoding, options)
        step = max(1, decoding.batch_tokens // self.model.config.grid**2)
        every = list(inputs)

        def scored(numbers: Sequence[int]) -> Iterator[np.ndarray]:
            for start in range(0, len(numbers), step):
                pictures = []
                for number in numbers[start : start + step]:
                    with of_input(number):
                        pictures.append(self._picture(every[number]))
                yield from self._classified(self._read(pictures), decoding).float().cpu().numpy()

        # by pictures, not batches: a validation set may be a single batch, which ranks share
        rows = shared(scored, range(len(every)))
        scores = torch.from_numpy(np.array(rows)).view(-1, len(self.about.labels))
        require_finite(scores)
        return scores

    def _classified(self, pictures: Tensor, decoding: PictureConfig) -> Tensor:
        """The scores of pictures: (B, 3, height, width) -> (B, labels)."""
        ways = [pictures, pictures.flip(-1)] if decoding.mirrored else [pictures]
        return torch.stack([self.model.classify(*self.model.encode(each)) for each in ways]).mean(0)

    def _picture(self, given: Given, name: str | None = None) -> Picture:
        return fitted(as_picture(given, name), self.model.config.image_size)

    def _read(self, pictures: Sequence[Picture]) -> Tensor:
        device = device_of(self.model)
        return self.about.read(torch.from_numpy(np.stack(pictures)).to(device))
