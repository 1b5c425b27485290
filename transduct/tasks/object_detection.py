"""Object detection: labelled boxes in a picture, by a DETR (Carion et al. 2020)."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn import functional as F

from transduct.data.annotated_images import (
    Collage,
    Example,
    Scenes,
    SceneSource,
    packed,
    read_examples,
)
from transduct.data.batching import Indices
from transduct.data.corpus import Ragged, build, inputs_of, ragged, write_rows
from transduct.data.files import WORDS_AT_ONCE, Refused
from transduct.data.text import in_chunks
from transduct.errors import needing, require
from transduct.functional.losses import SET_WEIGHTS, set_losses
from transduct.models.detr import Config, Detr
from transduct.predictors.model_directory import three_of
from transduct.predictors.object_detection import (
    AnnotatedImagesConfig,
    Batch,
    DetectionConfig,
    Detector,
    SceneSet,
    make_batch,
)
from transduct.tasks.base import Epoch, Task
from transduct.tasks.model import LabelRows, files_summary
from transduct.tasks.sections import Sections
from transduct.training.distributed import Terms

LABELS = "labels.json"


def batch_of(numbers: Indices, *, scenes: Scenes, config: Config, epoch: int) -> Batch:
    """Make a batch of the scenes with given numbers: a pure function of (seed, epoch, scene)."""
    return make_batch([scenes.scene(number, epoch) for number in numbers.tolist()], config)


class ObjectDetectionTask(Task):
    """Trains a DETR. Its loss matches boxes on the host, so that no step can be captured."""

    name, title, unit = "object_detection", "Object detector", "pictures"
    sections = Sections(AnnotatedImagesConfig, DetectionConfig)
    families = {"detr": Detector.family}
    scores = "ap50", "ap"
    derived = {"classes": "data.train", "side": "data.side"}
    label_rows = LabelRows((), ("labels",), ("heads.*.classes.*", "places.*"))

    def check(self) -> None:
        """Refuse to begin without the library that the loss needs to match boxes."""
        with needing("vision", "SciPy"):
            import scipy.optimize  # noqa: F401

    def prepare(self) -> None:
        """Prepare the corpus unless it is up to date, and read the validation set.

        The test set is read too, unless it is generated, to find a mistake in it before hours of
        training.
        """
        data = self.data
        photographs = [  # the other settings of a collage do not change the corpus
            replace(each, collage=each.collage and Collage(photographs=each.collage.photographs))
            for each in data.train
        ]
        inputs = inputs_of(replace(data, train=photographs), {}, ignored=("flip",))
        self.corpus = build(self.directory / "corpus", inputs, self._fill, self.notify)
        self.labels = json.loads((self.corpus.directory / LABELS).read_text(encoding="utf-8"))
        queries = self.model_config().queries
        pasted = (source.collage.objects[1] for source in data.train if source.collage)
        most = max(int(self.corpus.lengths[:, 1].max()) // 4, *pasted, 0)  # a box is four numbers
        if most > queries:
            self.notify(
                f"a picture holds up to {most} objects, but {queries} queries find no more; raise "
                "model.queries"
            )
        if data.test is not None and data.test.boxes:
            self._read(data.test, "test")
        if data.valid is not None:
            self._validation = self._read(data.valid, "validation")

    def _fill(self, folder: Path) -> dict[str, Any]:
        """Write the training pictures, decoded, and their labels in order of appearance.

        Raises:
            TransductError: a file cannot be read, or nothing is left.
        """
        data, refused, labels = self.data, Refused(self.data.broken), dict[str, int]()

        def chunks(source: SceneSource) -> Iterator[list[Ragged]]:
            examples = read_examples(
                source,
                Path(data.root),
                data.side,
                lambda label: labels.setdefault(label, len(labels)),
                refused,
            )
            for chunk in in_chunks(map(packed, examples), lambda row: len(row[0]), WORDS_AT_ONCE):
                yield [ragged(column) for column in zip(*chunk, strict=True)]

        manifest = write_rows(folder, 3, ((1.0, chunks(source)) for source in data.train))
        refused.report(self.notify)
        origin = files_summary(data, refused.dropped)
        require(
            labels and not any(start == stop for start, stop, _ in manifest["weights"]),
            f"found no object to train on {origin}; check data.train",
        )
        (folder / LABELS).write_text(json.dumps([*labels], ensure_ascii=False), encoding="utf-8")
        self.notify(f"corpus prepared: {manifest['rows']:,} pictures {origin}")
        return manifest | {"dropped": refused.dropped}

    def _read(self, source: SceneSource, part: str) -> list[Example]:
        refused = Refused(self.data.broken)
        scenes = SceneSet(source, self.data.root).read(self.labels, self.data.side, refused)
        refused.report(self.notify, f"{part}: ")
        if source.collage is None:  # those made up for training are of other sizes
            self.report_leaks(f"{part} pictures", (packed(each)[:1] for each in scenes), 0)
        return scenes

    def epoch(self, number: int) -> Epoch[Batch]:
        data, config = self.data, self.model_config()
        scenes = Scenes(self.corpus, data.train, data.side, self.training.seed, data.flip)
        make = partial(batch_of, scenes=scenes, config=config, epoch=number)
        return Epoch(np.full((len(scenes), 1), config.places), make)

    def loss(self, model: Detr, batch: Batch) -> Terms:
        """DETR's set losses, summed over all decoder layers, and a cross-entropy over the labels of
        all grid cells.

        The latter teaches the backbone what objects look like from the first step, while queries
        still compete for them.
        """
        memory, grid = model.encode(batch.pictures)
        logits, boxes = model.decode(memory, grid)  # (layers, B, Q, ...)
        layers = len(logits)
        sums = set_losses(
            logits.flatten(0, 1),
            boxes.flatten(0, 1),
            batch.labels.repeat(layers),
            batch.boxes.repeat(layers, 1),
            batch.objects * layers,
            batch.config.no_object,
        )
        sums["places"] = F.cross_entropy(
            model.places(memory).float(), batch.places, reduction="sum"
        )
        return {
            name: (sums[name], count, SET_WEIGHTS.get(name, 1.0))
            for name, count in batch.counts.items()
        }

    def predictor(self, model: Detr) -> Detector:
        return Detector(model, self.labels, self.decoding)

    def samples(self, data: Sequence[Example], outputs: Sequence[Any]) -> list[tuple[str, ...]]:
        shown = three_of(len(data))
        return [(f"scene {i}", str(outputs[i]), self._described(data[i])) for i in shown]

    def _described(self, scene: Example) -> str:
        """The objects of a scene, written like a detector's answer."""
        objects = zip(scene.labels.tolist(), np.rint(scene.boxes).astype(int).tolist())
        return "; ".join(
            f"{self.labels[label]} [{' '.join(map(str, box))}]" for label, box in objects
        )

    def settings(self) -> dict[str, Any]:
        return {"labels": self.labels, **super().settings()}
