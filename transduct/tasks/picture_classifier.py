"""A trained picture classifier in use: pictures in, labels out, with probabilities and attention.

Let B be pictures, S the tokens of each (its patches, and the class token before them if there is one), H heads.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.config import record
from transduct.data.batching import Indices
from transduct.data.corpus import Corpus
from transduct.data.files import Policy, Refused, unpack
from transduct.data.images import Given, ImageSource, Picture, as_picture, fitted, read_labelled
from transduct.errors import TransductError
from transduct.evaluation.classification import label_scores, mcnemar
from transduct.models.vit import Config, ViT
from transduct.tasks.base import Report
from transduct.tasks.model import blank_of, named_weights, read_weights, require_finite, shown_labels
from transduct.tasks.sections import PredictConfig, check_inputs, with_options
from transduct.tasks.showing import Panel
from transduct.training import checkpoint

log = logging.getLogger("transduct")
CHUNK = 1024  # pictures that are scored together


@dataclass(frozen=True)
class PictureConfig(PredictConfig):
    """How pictures are classified.

    Attributes:
        mirrored: whether each is seen a second time as in a mirror, and answered by the mean of both.
    """

    mirrored: bool = False


@dataclass(frozen=True)
class About:
    """What is known of the training pictures: their labels in order of the ids, their colours' mean and deviation."""

    labels: list[str]
    mean: list[float]
    deviation: list[float]

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.deviation) != 3:
            raise ValueError(f"mean is {self.mean} and deviation {self.deviation}, must be of three colours each")

    def read(self, pictures: Tensor) -> Tensor:
        """What a model is given of pictures: (B, height, width, 3) of 0 to 255 -> (B, 3, height, width), normalised."""
        mean, deviation = (torch.tensor(x, device=pictures.device) for x in (self.mean, self.deviation))
        return ((pictures / 255.0 - mean) / deviation).movedim(3, 1)  # (B, 3, height, width)


def rows_of(corpus: Corpus, numbers: Indices, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of a corpus (n, size, size, 3), and their labels (n,)."""
    (words, _), (labels, _) = corpus.columns(numbers)
    kept = size * size * 3
    held = unpack(words, 4 * len(words)).reshape(len(numbers), kept + -kept % 4)
    return held[:, :kept].reshape(-1, size, size, 3), labels


@dataclass(frozen=True)
class Labelled:
    """Pictures with their labels, read anew each time they are gone through.

    Attributes:
        said: whether what is broken has been named before.
    """

    source: ImageSource
    root: str
    broken: Policy = "stop"
    said: bool = False

    def read(self, known: Sequence[str], refused: Refused) -> Iterator[tuple[Picture, str]]:
        """Each picture and its label.

        Raises:
            TransductError: as `read_labelled`, a label is none of those that are known, or there is no picture at all.
        """
        labels, count = set(known), 0
        for name, picture, label in read_labelled(self.source, Path(self.root), refused):
            with refused.each():
                if label not in labels:
                    place, remedy = f"{self.source.images}: {name}", "mend it, or train on pictures that have it"
                    has = shown_labels(known)
                    raise TransductError(f"{place}: unknown label '{label}'; training has: {has}; {remedy}")
                yield picture, label
                count += 1
        if not count:
            found = f"found no picture to measure on ({refused.said() or 'there is none'})"
            raise TransductError(f"{self.source.images}: {found}; give one that holds some")


@dataclass(frozen=True)
class HeldOut:
    """The last rows of a corpus, from `start` on, which training never sees."""

    corpus: Corpus
    start: int
    size: int
    broken: Policy = "stop"
    said: bool = True

    def read(self, known: Sequence[str], refused: Refused) -> Iterator[tuple[Picture, str]]:  # noqa: ARG002
        """Each picture and its label."""
        for number in range(self.start, len(self.corpus)):
            pictures, labels = rows_of(self.corpus, np.array([number]), self.size)
            yield pictures[0], known[labels[0]]


@dataclass(frozen=True)
class PictureAttention:
    """Every attention weight of one picture, by the plain formula.

    Attributes:
        weights: "encoder.0.self", ...: (H, S, S) each.
        picture: what the model was given of the picture.
        grid: patches on each side.
    """

    weights: dict[str, Tensor]
    picture: Picture
    grid: int

    def panels(self) -> list[Panel]:
        """Where the class token looks, or all patches where there is none: in the last layer, and through all of them.

        The second is attention rollout (Abnar and Zuidema 2020): layer by layer what has been gathered is gathered
        again, with half of each token left where it is.
        """
        means = [weights.mean(0) for weights in self.weights.values()]  # (S, S) each
        rollout = torch.eye(len(means[0]))
        for mean in means:
            rollout = (0.5 * mean + 0.5 * torch.eye(len(mean))) @ rollout
        last = list(self.weights)[-1]
        return [
            Panel(title, self._of_patches(weights), picture=self.picture)
            for title, weights in ((f"{last}, mean of heads", means[-1]), ("rollout of all layers", rollout))
        ]

    def _of_patches(self, weights: Tensor) -> Tensor:
        """(S, S) -> (grid, grid)."""
        patches = self.grid**2
        classified = weights[0] if len(weights) > patches else weights.mean(0)
        return classified[-patches:].view(self.grid, self.grid)


class PictureClassifier:
    """A trained model in use: pictures in, labels out, with probabilities and attention."""

    reads = "picture"  # what its inputs are files of

    def __init__(self, model: ViT, about: About, decoding: PictureConfig) -> None:
        self.model, self.about, self.decoding = model.eval(), about, decoding

    @classmethod
    def load(cls, directory: Path, config: dict[str, Any], device: torch.device, precision: str) -> "PictureClassifier":
        """The model in a directory whose `config.json` has been read."""
        source = str(directory / checkpoint.CONFIG)
        model = blank_of(config, ViT, Config, directory)
        about = record(About, config.get("pictures"), "pictures", source)
        if len(about.labels) != model.config.labels:
            found = f"names {len(about.labels)} labels, its model tells {model.config.labels} apart"
            raise TransductError(f"{source}: {found}; they do not belong together: copy the model again")
        decoding = record(PictureConfig, config.get("decoding"), "decoding", source)
        read_weights(model, directory, device, precision)
        return cls(model, about, decoding)

    def predict(self, inputs: Sequence[Given], **options: Any) -> list[str]:
        """The label of each picture.

        Args:
            inputs: as `as_picture` takes them: paths, contents of files, arrays (height, width, 3) of uint8.
            options: fields of `PictureConfig`; `batch_tokens` counts patches.

        Raises:
            TransductError: an input is no whole picture, or an option unknown.
            NotFinite: the model answers with NaN.
        """
        return [self.about.labels[i] for i in self._scores(inputs, options).argmax(1).tolist()]

    def probabilities(self, inputs: Sequence[Given], **options: Any) -> list[dict[str, float]]:
        """The probability of each label of each picture; arguments and errors are those of `predict`."""
        rows = self._scores(inputs, options).softmax(1).tolist()
        return [dict(zip(self.about.labels, row, strict=True)) for row in rows]

    def evaluate(self, data: Labelled | HeldOut, against: "PictureClassifier | None" = None, **options: Any) -> Report:
        """`accuracy` and macro `f1`, with the 95 % interval of the accuracy.

        Args:
            against: another model; the details then hold its scores and the p-value of McNemar's test.
            options: as for `predict`.

        Raises:
            TransductError: as `predict`; a picture has no label, or one that the model does not know; the other model
                has other labels.
        """
        if against is not None and {*against.about.labels} != {*self.about.labels}:
            raise TransductError("the other model has other labels; compare equals")
        refused = Refused(data.broken, advise=False)
        models = [self] if against is None else [self, against]
        found: list[list[str]] = [[] for _ in models]
        answers: list[str] = []
        stream = (  # of a photograph no more is kept than what the models see
            ([each._picture(picture, "the picture") for each in models], label)
            for picture, label in data.read(self.about.labels, refused)
        )
        while chunk := list(islice(stream, CHUNK)):
            for each, said, pictures in zip(models, found, zip(*(pictures for pictures, _ in chunk))):
                said += each.predict(pictures, **options)
            answers += [label for _, label in chunk]
        if not data.said:
            refused.report(log.warning)
        ours = label_scores(found[0], answers)
        details: dict[str, Any] = {"examples": len(answers), "left_out": refused.dropped, **ours.details}
        if against is not None:
            other = label_scores(found[1], answers)
            details |= {"against": other.scores, "p_values": {"accuracy": mcnemar(ours.right, other.right)}}
        return Report(ours.scores, details, found[0])

    @torch.inference_mode()
    def attention(self, given: Given, **options: Any) -> PictureAttention:
        """The attention weights of a picture as it is given, layer by layer and head by head; options as for `predict`.

        Raises:
            NotFinite: the model answers with NaN.
        """
        with_options(self.decoding, options)  # which change nothing here, and are to be right all the same
        picture = self._picture(given, "the picture")
        weights: list[Tensor] = []
        self.model.encode(self._read([picture]), weights)
        require_finite(*weights)
        named = named_weights(self.model, weights)
        return PictureAttention(named, picture, self.model.config.grid)

    @torch.inference_mode()
    def _scores(self, inputs: Sequence[Given], options: Mapping[str, Any]) -> Tensor:
        """(B, labels)."""
        check_inputs(inputs, "picture")
        decoding = with_options(self.decoding, options)
        step = max(1, decoding.batch_tokens // self.model.config.grid**2)
        parts, every = [torch.empty(0, len(self.about.labels))], list(inputs)
        for start in range(0, len(every), step):
            some = enumerate(every[start : start + step], start + 1)
            pictures = [self._picture(given, f"input {number}") for number, given in some]
            parts.append(self._seen(self._read(pictures), decoding).float().cpu())
        scores = torch.cat(parts)
        require_finite(scores)
        return scores

    def _seen(self, pictures: Tensor, decoding: PictureConfig) -> Tensor:
        """(B, 3, height, width) -> (B, labels)."""
        ways = [pictures, pictures.flip(-1)] if decoding.mirrored else [pictures]
        return torch.stack([self.model.classify(*self.model.encode(each)) for each in ways]).mean(0)

    def _picture(self, given: Given, name: str) -> Picture:
        return fitted(as_picture(given, name), self.model.config.image_size)

    def _read(self, pictures: Sequence[Picture]) -> Tensor:
        device = next(self.model.parameters()).device
        return self.about.read(torch.from_numpy(np.stack(pictures)).to(device))
