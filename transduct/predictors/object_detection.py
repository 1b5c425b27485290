"""Inference for object detection: finds labelled boxes in pictures, and draws them.

Let B be the pictures of a batch, A their objects, Q the queries of a picture, P the cells of its
feature grid (its "places"), C the classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from transduct import storage
from transduct.config import Recipe
from transduct.data.annotated_images import Example, SceneSource, read_scenes
from transduct.data.files import DataSection, Policy, Refused, composed_labels, corpora
from transduct.data.images import Given, Picture, Side, as_picture, resized
from transduct.errors import needing, require
from transduct.evaluation.bootstrap import Resampled
from transduct.evaluation.detection import MOST_DETECTIONS, Objects, detection_scores
from transduct.functional.boxes import to_centres, to_corners
from transduct.functional.losses import set_counts
from transduct.inference.batches import answered, device_of
from transduct.models.detr import SIZES, Config, Detr
from transduct.predictors.base import Attention, Panel, Predictor, Report
from transduct.predictors.isolation import of_input
from transduct.predictors.model_directory import Family, OneModel, require_finite, unknown_label
from transduct.predictors.options import (
    PredictConfig,
    are_given,
    check_inputs,
    data_with_test,
    policy_of,
    with_options,
)
from transduct.records import Probability, refuse_if
from transduct.segments import Axis, FlatBatch


@dataclass(frozen=True)
class AnnotatedImagesConfig(DataSection):
    """The `data` section of a recipe for object detection.

    Attributes:
        side: height and width in pixels to which every picture is resized.
        flip: whether training scenes are mirrored at random.
        broken: `stop` at a broken picture or line, or `skip` it.
    """

    train: list[SceneSource]
    valid: SceneSource | None = None
    test: SceneSource | None = None
    side: Side = 96
    flip: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for source in corpora(self):
            smallest = source.collage.sizes[0] if source.collage else 0
            refuse_if(
                smallest > self.side,
                f"sizes begins at {smallest}, but a canvas has {self.side} pixels on a side; make "
                "one smaller, or data.side larger",
            )


@dataclass(frozen=True)
class DetectionConfig(PredictConfig):
    """The `decoding` section; `batch_tokens` counts cells of feature grids.

    Attributes:
        threshold: the least score of a detection.
    """

    threshold: Probability = 0.5


@dataclass(frozen=True)
class Detection:
    """An object: its label, its score, and its corners (x0, y0, x1, y1) in pixels of the
    picture."""

    label: str
    score: float
    box: tuple[int, int, int, int]

    def __str__(self) -> str:
        return f"{self.label} {self.score:.2f} [{' '.join(map(str, self.box))}]"


class Detections(list[Detection]):
    """The objects of a picture, highest score first; as text "cat 0.98 [12 30 44 62]; ..."."""

    def __str__(self) -> str:
        return "; ".join(map(str, self))


def query_panels(
    found: Attention, objects: Sequence[tuple[Detection, int]], picture: Picture
) -> list[Panel]:
    """For each detection and decoder layer, the cross-attention of its query, the mean over heads.

    Args:
        objects: the detections, each with its query.
    """
    panels = []
    for detection, query in objects:
        for name, weights in found.items():
            if name.endswith("cross"):
                rows = int(weights.shape[-1] ** 0.5)
                looked = weights[:, query].mean(0).view(rows, rows)  # (rows, columns)
                title = f"{detection}, {name}"
                panels.append(Panel(title, looked, picture=picture, query=query))
    return panels


@dataclass(frozen=True)
class Batch(FlatBatch):
    """Scenes and the objects in them.

    Attributes:
        pictures: (B, side, side, 3), 0 to 255.
        labels: (A,) the labels of all objects, picture after picture.
        boxes: (A, 4) centre, width and height relative to the picture's.
        objects: how many each picture holds.
        places: (B * P,) the label of the object in each cell of the grids, C for none.
        config: the configuration of the model they are for.
    """

    pictures: Annotated[Tensor, Axis("pictures")]
    labels: Annotated[Tensor, Axis("objects")]
    boxes: Annotated[Tensor, Axis("objects")]
    objects: list[int]
    places: Annotated[Tensor, Axis("places")]
    config: Config

    @property
    def tokens(self) -> int:
        """The number of grid cells."""
        return len(self.pictures) * self.config.places

    @property
    def counts(self) -> dict[str, float]:
        """The losses are averages over weighted queries, over objects and over grid cells."""
        counts = set_counts(self.objects, self.config.queries, self.config.no_object)
        return {**counts, "places": float(len(self.places))}


def make_batch(examples: Sequence[Example], config: Config) -> Batch:
    """Make a batch of scenes of `config.side` pixels."""
    boxes = torch.from_numpy(np.concatenate([example.boxes for example in examples]))
    return Batch(
        torch.from_numpy(np.stack([example.picture for example in examples])),
        torch.from_numpy(np.concatenate([example.labels for example in examples])),
        to_centres(boxes / config.side),
        [len(example.labels) for example in examples],
        torch.from_numpy(
            np.concatenate([labels_of_places(example, config) for example in examples])
        ),
        config,
    )


def labels_of_places(example: Example, config: Config) -> np.ndarray:
    """The label (P,) of the object around the centre of each grid cell: the last of several, C if
    there is none."""
    rows = config.side // config.stride
    grid = np.full((rows, rows), config.classes)
    for box, label in zip(example.boxes, example.labels):
        left, top, right, bottom = np.ceil(box / config.stride - 0.5).astype(int).clip(0)
        grid[top:bottom, left:right] = label
    return grid.ravel()


@dataclass(frozen=True)
class SceneSet:
    """Scenes to evaluate on, read once a model's labels and side are known."""

    source: SceneSource
    root: str = "."
    broken: Policy = "stop"

    def read(self, labels: Sequence[str], side: int, refused: Refused) -> list[Example]:
        """The scenes, with their labels as numbers.

        Raises:
            TransductError: `read_scenes` fails, a label is not one of `labels`, or there is no
                object at all.
        """
        numbers = {label: number for number, label in enumerate(labels)}

        def number_of(label: str) -> int:
            require(label in numbers, f"{unknown_label(label, labels)}; fix the line")
            return numbers[label]

        scenes = read_scenes(self.source, Path(self.root), side, number_of, refused)
        require(
            any(len(scene.labels) for scene in scenes),
            f"{self.source.boxes or self.source.images}: found no object to measure on; give some "
            "pictures with boxes",
        )
        return scenes


class Detector(OneModel):
    """Detects objects in pictures, with one model."""

    reads = "picture"  # the kind of file that its inputs are
    verbs = Predictor.verbs | {"attention", "picture"}
    family, sections = Family(Config, SIZES, Detr), {"decoding": DetectionConfig}

    def __init__(self, model: Any, labels: Sequence[str], decoding: DetectionConfig) -> None:
        super().__init__(model)
        self.labels, self.decoding = list(labels), decoding

    @classmethod
    def parts(cls, directory: Path, config: Mapping[str, Any], model: Any) -> list[Any]:
        labels: Any = config.get("labels")
        require(
            isinstance(labels, list) and len(labels) == model.config.classes,
            f"found labels {labels!r:.60}, its model tells {model.config.classes} apart; "
            "copy it again",
            file=str(directory / storage.CONFIG),
        )
        return [composed_labels(labels), *super().parts(directory, config, model)]

    @classmethod
    def test_set(
        cls, files: Mapping[str, Any], recipe: Recipe | None, refused: Refused | None = None
    ) -> SceneSet:
        """The pictures of a folder or archive (`source`) and their boxes (`reference`), or the
        recipe's test set."""
        if are_given(files, "source", "reference"):
            source = SceneSource(files["source"], files["reference"])
            return SceneSet(source, broken=policy_of(refused))
        data = data_with_test(AnnotatedImagesConfig, recipe)
        return SceneSet(data.test, data.root, policy_of(refused, data.broken))

    def predict(self, inputs: Sequence[Given], **options: Any) -> list[Detections]:
        """Detect the objects in each picture.

        Args:
            inputs: paths, contents of files, or arrays (height, width, 3) of uint8; see
                `as_picture`.
            options: fields of `DetectionConfig`.

        Raises:
            TransductError: an input is not a picture, or an option is unknown.
            NotFinite: the model answers with NaN.
        """
        check_inputs(inputs, "picture")
        decoding = with_options(self.decoding, options)
        squares, shapes = [], []  # all that is kept of a photograph
        for number, each in enumerate(inputs):
            with of_input(number):
                picture = as_picture(each)
            squares.append(self._square(picture))
            shapes.append(picture.shape)
        return [
            self._detections(*each, decoding)
            for each in zip(self._detected(squares, decoding), shapes, strict=True)
        ]

    def measured(self, data: "SceneSet | Sequence[Example]", options: Mapping[str, Any]) -> Report:
        """COCO's average precision in percent, whatever the threshold: `ap`, the mean over IoU .50
        to .95, and `ap50`.

        Args:
            data: scenes yet to be read, or scenes read for this model's labels and side.

        Raises:
            TransductError: the data cannot be read or hold no object, or an option is unknown.
        """
        decoding = with_options(self.decoding, options)
        refused = Refused(data.broken if isinstance(data, SceneSet) else "stop", advise=False)
        scenes = data.read(self.labels, self.side, refused) if isinstance(data, SceneSet) else data
        found = self._detected([scene.picture for scene in scenes], decoding)
        predicted = [Objects(each.boxes * self.side, each.labels, each.scores) for each in found]
        expected = [Objects(each.boxes, each.labels, np.ones(len(each.labels))) for each in scenes]
        scored = detection_scores(predicted, expected, self.labels)
        details = {**scored.details, "left_out": refused.dropped}
        outputs = [self._detections(f, e.picture.shape, decoding) for f, e in zip(found, scenes)]
        right = {"ap50": Resampled(scored.resampled, len(scenes))}
        return Report(scored.scores, details, outputs, right=right, refused=refused)

    def check_against(self, other: "Detector", data: "SceneSet | Sequence[Example]") -> None:
        super().check_against(other, data)
        require(
            {*other.labels} == {*self.labels},
            "the other model has other labels; compare models of the same task",
        )
        if not isinstance(data, SceneSet):
            require(
                (other.labels, other.side) == (self.labels, self.side),
                "these scenes were read for one of the two models; give a SceneSet, which "
                "both read",
            )
            return
        require(
            other.side == self.side or not data.source.collage,
            f"on canvases of {self.side} and of {other.side} pixels other scenes are drawn; "
            "compare models of one data.side, or on pictures as they are",
        )

    @torch.no_grad()  # not inference mode, whose tensors could not be changed or trained on
    def attention(self, given: Given, **options: Any) -> Attention:
        """Every attention weight of a picture, and its detections: at least the one with the
        highest score."""
        decoding, picture = with_options(self.decoding, options), as_picture(given, "the picture")
        weights: list[Tensor] = []
        logits, boxes = self._forward([self._square(picture)], weights)
        # sorted by score, so the threshold keeps the first ones
        found, queries = _answers(logits[0], boxes[0])
        decoding = replace(decoding, threshold=min(decoding.threshold, float(found.scores[0])))
        objects = list(zip(self._detections(found, picture.shape, decoding), queries.tolist()))
        draw = partial(query_panels, objects=objects, picture=picture)
        return Attention.of(self.model, weights, draw=draw)

    def picture(self, given: Given, output: Detections) -> Picture:
        """Draw the boxes of `output` on the picture, each class in its own colour."""
        with needing("vision", "Pillow"):
            from PIL import Image, ImageDraw
        image = Image.fromarray(as_picture(given, "the picture"))
        draw = ImageDraw.Draw(image)
        for detection in reversed(output):  # the highest score on top
            colour = (
                f"hsv({360 * self.labels.index(detection.label) // len(self.labels)}, 90%, 90%)"
            )
            x0, y0, x1, y1 = detection.box
            draw.rectangle(
                (x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)),
                outline=colour,
                width=max(1, image.width // 200),
            )
            text = f"{detection.label} {detection.score:.2f}"
            draw.rectangle(draw.textbbox((x0 + 1, y0), text), fill=colour)
            draw.text((x0 + 1, y0), text, fill="black")
        return np.array(image)

    @property
    def side(self) -> int:
        """The height and width in pixels to which pictures are resized."""
        return self.model.config.side

    def _square(self, picture: Picture) -> Picture:
        return resized(picture, self.side, self.side)

    def _detected(self, pictures: Sequence[Picture], decoding: DetectionConfig) -> list[Objects]:
        """Detect objects in square pictures; boxes are relative to their sides."""

        def objects(numbers: list[int]) -> list[Objects]:
            each = zip(*self._forward([pictures[number] for number in numbers]), strict=True)
            return [_answers(*one)[0] for one in each]

        sizes = [self.model.config.places] * len(pictures)
        return answered(objects, sizes, decoding.batch_tokens)

    @torch.no_grad()  # not inference mode: `attention` hands out its weights
    def _forward(
        self, pictures: Sequence[Picture], weights: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The last layer's answer to square pictures: logits (B, Q, C + 1) and boxes (B, Q, 4)."""
        device = device_of(self.model)
        memory, grid = self.model.encode(torch.from_numpy(np.stack(pictures)).to(device), weights)
        logits, boxes = self.model.decode(memory, grid, weights)
        answer = logits[-1].cpu(), boxes[-1].cpu()
        require_finite(*answer)
        return answer

    def _detections(
        self, found: Objects, shape: Sequence[int], decoding: DetectionConfig
    ) -> Detections:
        """Detections above the threshold in a picture of a shape (height, width, 3)."""
        height, width = shape[:2]
        size = np.array([width, height, width, height])
        kept = found.scores >= decoding.threshold
        corners = np.rint(found.boxes[kept] * size).astype(int).tolist()
        each = zip(found.labels[kept].tolist(), found.scores[kept].tolist(), corners, strict=True)
        return Detections(
            Detection(self.labels[label], round(score, 4), tuple(box)) for label, score, box in each
        )


def _answers(logits: Tensor, boxes: Tensor) -> tuple[Objects, np.ndarray]:
    """The `MOST_DETECTIONS` best pairs of query and class, from (Q, C + 1) and (Q, 4), and the
    query of each."""
    scores = logits.softmax(-1)[:, :-1]  # (Q, C)
    best = scores.flatten().sort(descending=True, stable=True)
    values, places = best.values[:MOST_DETECTIONS].numpy(), best.indices[:MOST_DETECTIONS].numpy()
    queries, labels = places // scores.shape[1], places % scores.shape[1]
    return Objects(to_corners(boxes).clamp(0, 1).numpy()[queries], labels, values), queries
