"""A trained detector in use: pictures in, boxes with labels out, drawn on the picture or as text.

Let B be pictures of a batch, A their objects, Q the queries for each picture, P the places of its grid.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.config import record
from transduct.data.collages import Example, SceneSource, read_scenes
from transduct.data.files import Policy, Refused
from transduct.data.images import Given, Picture, as_picture, resized
from transduct.decoding.engine import in_batches
from transduct.errors import TransductError, missing_extra
from transduct.evaluation.bootstrap import p_value
from transduct.evaluation.detection import MOST_DETECTIONS, Objects, Scores, detection_scores
from transduct.functional.boxes import to_centres, to_corners
from transduct.functional.losses import set_counts
from transduct.models.detr import Config, Detr
from transduct.tasks.base import Report
from transduct.tasks.model import Movable, blank_of, named_weights, read_weights, require_finite, shown_labels
from transduct.tasks.sections import PredictConfig, check_inputs, with_options
from transduct.tasks.showing import Panel
from transduct.training import checkpoint

log = logging.getLogger("transduct")


@dataclass(frozen=True)
class DetectionConfig(PredictConfig):
    """The `decoding` section; `batch_tokens` counts places of pictures.

    Attributes:
        threshold: the score from which a detection counts.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold is {self.threshold}, must be in [0, 1]")


@dataclass(frozen=True)
class Detection:
    """An object: its label, how sure the model is, and its corners (x0, y0, x1, y1) in pixels of the picture."""

    label: str
    score: float
    box: tuple[int, int, int, int]

    def __str__(self) -> str:
        return f"{self.label} {self.score:.2f} [{' '.join(map(str, self.box))}]"


class Detections(list[Detection]):
    """The objects of a picture, the surest first; as text "cat 0.98 [12 30 44 62]; ..."."""

    def __str__(self) -> str:
        return "; ".join(map(str, self))


@dataclass(frozen=True)
class SceneAttention:
    """Where a model looked.

    Attributes:
        weights: "encoder.0.self" (H, P, P), "decoder.0.self" (H, Q, Q), "decoder.0.cross" (H, Q, P), ...
        picture: the picture as the model saw it.
        found: its detections and, of each, the query it came from.
    """

    weights: dict[str, Tensor]
    picture: Picture
    found: list[tuple[Detection, int]]

    def panels(self) -> list[Panel]:
        """Of each detection, where its query looked in each layer of the decoder, the mean over heads."""
        panels = []
        for detection, query in self.found:
            for name, weights in self.weights.items():
                if name.endswith("cross"):
                    rows = int(weights.shape[-1] ** 0.5)
                    looked = weights[:, query].mean(0).view(rows, rows)  # (rows, columns)
                    panels.append(Panel(f"{detection}, {name}", looked, picture=self.picture))
        return panels


@dataclass(frozen=True)
class Batch(Movable):
    """Scenes and the objects in them.

    Attributes:
        pictures: (B, side, side, 3) of 0 to 255.
        labels: (A,) of all objects, picture after picture.
        boxes: (A, 4) centre, width and height as shares of the picture's.
        sizes: how many objects each picture holds.
        places: (B * P,) the label of the object that each place of the grids lies in, C for none.
        config: of the model they are for.
    """

    pictures: Tensor
    labels: Tensor
    boxes: Tensor
    sizes: list[int]
    places: Tensor
    config: Config

    @property
    def tokens(self) -> int:
        """Places of the grids that are read."""
        return len(self.pictures) * self.config.places

    @property
    def counts(self) -> dict[str, float]:
        """The loss is an average over weighted queries, over objects and over places."""
        counts = set_counts(self.sizes, self.config.queries, self.config.no_object)
        return {**counts, "places": float(len(self.places))}


def make_batch(examples: Sequence[Example], config: Config) -> Batch:
    """Scenes of `config.side` pixels as a batch."""
    boxes = torch.from_numpy(np.concatenate([example.boxes for example in examples]))
    return Batch(
        torch.from_numpy(np.stack([example.picture for example in examples])),
        torch.from_numpy(np.concatenate([example.labels for example in examples])),
        to_centres(boxes / config.side),
        [len(example.labels) for example in examples],
        torch.from_numpy(np.concatenate([labels_of_places(example, config) for example in examples])),
        config,
    )


def labels_of_places(example: Example, config: Config) -> np.ndarray:
    """(P,) the label of the object that the middle of each place lies in, of several that of the last; C for none."""
    rows = config.side // config.stride
    grid = np.full((rows, rows), config.classes)
    for box, label in zip(example.boxes, example.labels):
        left, top, right, bottom = np.ceil(box / config.stride - 0.5).astype(int).clip(0)
        grid[top:bottom, left:right] = label
    return grid.ravel()


@dataclass(frozen=True)
class SceneSet:
    """Scenes to be measured on, read when it is known what their labels may be."""

    source: SceneSource
    root: str = "."
    broken: Policy = "stop"

    def read(self, labels: Sequence[str], side: int, refused: Refused) -> list[Example]:
        """The scenes, with the numbers of their labels.

        Raises:
            TransductError: as `read_scenes`, a label is none of those that are known, or there is no object at all.
        """
        numbers = {label: number for number, label in enumerate(labels)}

        def number_of(label: str) -> int:
            if label not in numbers:
                raise TransductError(f"unknown label '{label}'; training has: {shown_labels(labels)}; mend the line")
            return numbers[label]

        scenes = read_scenes(self.source, Path(self.root), side, number_of, refused)
        if not any(len(scene.labels) for scene in scenes):
            where = self.source.boxes or self.source.images
            raise TransductError(f"{where}: found no object to measure on; give some pictures with boxes")
        return scenes


class Detector:
    """Finds objects in pictures, with one model."""

    reads = "picture"  # what its inputs are files of

    def __init__(self, model: Any, labels: Sequence[str], decoding: DetectionConfig) -> None:
        self.model, self.labels, self.decoding = model.eval(), list(labels), decoding

    @classmethod
    def load(cls, directory: Path, config: dict[str, Any], device: torch.device, precision: str) -> "Detector":
        """The model in a directory whose `config.json` has been read."""
        source = str(directory / checkpoint.CONFIG)
        model = blank_of(config, Detr, Config, directory)
        labels, decoding = config.get("labels"), record(DetectionConfig, config.get("decoding"), "decoding", source)
        if not isinstance(labels, list) or len(labels) != model.config.classes:
            raise TransductError(
                f"{source}: found labels {labels!r:.60}, its model tells {model.config.classes} apart; copy it again"
            )
        read_weights(model, directory, device, precision)
        return cls(model, labels, decoding)

    def predict(self, inputs: Sequence[Given], **options: Any) -> list[Detections]:
        """The objects in each picture.

        Args:
            inputs: as `as_picture` takes them: paths, contents of files, arrays (height, width, 3) of uint8.
            options: fields of `DetectionConfig`.

        Raises:
            TransductError: an input is no picture, or an option unknown.
            NotFinite: the model answers with NaN.
        """
        check_inputs(inputs, "picture")
        decoding = with_options(self.decoding, options)
        squares, shapes = [], []  # of a photograph no more is kept
        for number, each in enumerate(inputs, 1):
            picture = as_picture(each, f"input {number}")
            squares.append(self._square(picture))
            shapes.append(picture.shape)
        return [self._detections(*each, decoding) for each in zip(self._found(squares, decoding), shapes, strict=True)]

    def evaluate(
        self, data: "SceneSet | Sequence[Example]", against: "Detector | None" = None, **options: Any
    ) -> Report:
        """COCO's average precision, `ap` over IoU .50 to .95 and `ap50`, in percent; the threshold counts for nothing.

        Args:
            data: scenes to be read, or such as have been read for this model's labels and side.
            against: another model; the details then hold its scores and the p-value of `ap50` by paired bootstrap.
            options: as for `predict`.

        Raises:
            TransductError: the data cannot be read or hold no object, an option is unknown, or the other model has
                other labels, or another side where scenes are drawn, or reads what has been read for this one alone.
        """
        decoding = with_options(self.decoding, options)
        if against is not None and {*against.labels} != {*self.labels}:
            raise TransductError("the other model has other labels; compare equals")
        alike = against is None or (against.labels, against.side) == (self.labels, self.side)
        if not alike and not isinstance(data, SceneSet):
            raise TransductError("these scenes were read for one of the two models; give a SceneSet, which both read")
        if against is not None and against.side != self.side and isinstance(data, SceneSet) and data.source.collage:
            raise TransductError(
                f"on canvases of {self.side} and of {against.side} pixels other scenes are drawn; compare models of "
                "one data.side, or on pictures as they are"
            )
        refused = Refused(data.broken if isinstance(data, SceneSet) else "stop", advise=False)
        scenes, found, ours = self._measured(data, decoding, refused)
        refused.report(log.warning)
        details = {**ours.details, "left_out": refused.dropped}
        if against is not None:
            again = Refused(refused.policy, advise=False)
            *_, theirs = against._measured(data, with_options(against.decoding, options), again)
            details["against"] = theirs.scores
            details["p_values"] = {"ap50": p_value(ours.drawn, theirs.drawn, len(scenes))}
        return Report(
            ours.scores, details, [self._detections(f, e.picture.shape, decoding) for f, e in zip(found, scenes)]
        )

    def _measured(
        self, data: "SceneSet | Sequence[Example]", decoding: DetectionConfig, refused: Refused
    ) -> tuple[Sequence[Example], list[Objects], Scores]:
        """The scenes as this model sees them, what it finds in them, and the scores."""
        scenes = data.read(self.labels, self.side, refused) if isinstance(data, SceneSet) else data
        found = self._found([scene.picture for scene in scenes], decoding)
        whole = [Objects(each.boxes * self.side, each.labels, each.scores) for each in found]
        there = [Objects(each.boxes, each.labels, np.ones(len(each.labels))) for each in scenes]
        return scenes, found, detection_scores(whole, there, self.labels)

    @torch.inference_mode()
    def attention(self, given: Given, **options: Any) -> SceneAttention:
        """Every attention weight for a picture, and what was found in it, at least what the model is surest of."""
        decoding, picture = with_options(self.decoding, options), as_picture(given, "the picture")
        weights: list[Tensor] = []
        logits, boxes = self._forward([self._square(picture)], weights)
        found, queries = _answers(logits[0], boxes[0])  # the surest first, so that those kept are the first ones
        decoding = replace(decoding, threshold=min(decoding.threshold, float(found.scores[0])))
        named = named_weights(self.model, weights)
        return SceneAttention(
            named, picture, list(zip(self._detections(found, picture.shape, decoding), queries.tolist()))
        )

    def picture(self, given: Given, output: Detections) -> Picture:
        """The picture with the boxes of `output` drawn on it, each class in a colour of its own."""
        try:
            from PIL import Image, ImageDraw
        except ImportError as error:
            raise missing_extra("Pillow", "vision") from error
        image = Image.fromarray(as_picture(given, "the picture"))
        draw = ImageDraw.Draw(image)
        for detection in reversed(output):  # the surest on top
            colour = f"hsv({360 * self.labels.index(detection.label) // len(self.labels)}, 90%, 90%)"
            x0, y0, x1, y1 = detection.box
            draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=colour, width=max(1, image.width // 200))
            text = f"{detection.label} {detection.score:.2f}"
            draw.rectangle(draw.textbbox((x0 + 1, y0), text), fill=colour)
            draw.text((x0 + 1, y0), text, fill="black")
        return np.array(image)

    @property
    def side(self) -> int:
        """Pixels on each side of what the model is shown."""
        side: int = self.model.config.side
        return side

    def _square(self, picture: Picture) -> Picture:
        return resized(picture, self.side, self.side)

    def _found(self, pictures: Sequence[Picture], decoding: DetectionConfig) -> list[Objects]:
        """What is found in square pictures, boxes as shares of their sides."""
        found: dict[int, Objects] = {}
        for numbers in in_batches([self.model.config.places] * len(pictures), decoding.batch_tokens):
            logits, boxes = self._forward([pictures[number] for number in numbers])
            for number, *each in zip(numbers, logits, boxes, strict=True):
                found[number], _ = _answers(*each)
        return [found[number] for number in range(len(pictures))]

    @torch.inference_mode()
    def _forward(self, pictures: Sequence[Picture], weights: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """What the last layer says of square pictures: logits (B, Q, C + 1) and boxes (B, Q, 4)."""
        device = next(self.model.parameters()).device
        memory, grid = self.model.encode(torch.from_numpy(np.stack(pictures)).to(device), weights)
        logits, boxes = self.model.decode(memory, grid, weights)
        answer = logits[-1].cpu(), boxes[-1].cpu()
        require_finite(*answer)
        return answer

    def _detections(self, found: Objects, shape: Sequence[int], decoding: DetectionConfig) -> Detections:
        """What is found in a picture of a shape (height, width, 3), as far as it counts."""
        height, width = shape[:2]
        size = np.array([width, height, width, height])
        kept = found.scores >= decoding.threshold
        corners = np.rint(found.boxes[kept] * size).astype(int).tolist()
        each = zip(found.labels[kept].tolist(), found.scores[kept].tolist(), corners, strict=True)
        return Detections(Detection(self.labels[label], round(score, 4), tuple(box)) for label, score, box in each)


def _answers(logits: Tensor, boxes: Tensor) -> tuple[Objects, np.ndarray]:
    """The surest `MOST_DETECTIONS` pairs of query and class, (Q, C + 1) and (Q, 4), and the query of each."""
    scores = logits.softmax(-1)[:, :-1]  # (Q, C)
    best = scores.flatten().sort(descending=True, stable=True)
    values, places = best.values[:MOST_DETECTIONS].numpy(), best.indices[:MOST_DETECTIONS].numpy()
    queries, labels = places // scores.shape[1], places % scores.shape[1]
    return Objects(to_corners(boxes).clamp(0, 1).numpy()[queries], labels, values), queries
