"""Object detection: labelled boxes in a picture, by a DETR (Carion et al. 2020)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn import functional as F

from transduct.config import Recipe, record
from transduct.data.annotated_images import (
    Collage,
    Example,
    Scenes,
    SceneSource,
    packed,
    read_examples,
)
from transduct.data.batching import Indices, only_train, plan
from transduct.data.batching import load as load_batches
from transduct.data.corpus import Corpus, Ragged, build, inputs_of, ragged, write_rows
from transduct.data.files import WORDS_AT_ONCE, Refused
from transduct.data.text import in_chunks
from transduct.errors import TransductError, needing
from transduct.functional.losses import SET_WEIGHTS, set_losses
from transduct.models.detr import SIZES, Config, Detr
from transduct.predictors.base import Notify, Report
from transduct.predictors.model_directory import three_of
from transduct.predictors.object_detection import (
    AnnotatedImagesConfig,
    Batch,
    DetectionConfig,
    Detector,
    SceneSet,
    make_batch,
)
from transduct.predictors.options import Family, NoOptions
from transduct.tasks.base import Task
from transduct.tasks.model import LabelRows, card, files_said, write_model
from transduct.tasks.sections import (
    ModelSection,
    filled,
    training_section,
)
from transduct.training.config import TrainingConfig
from transduct.training.step import Terms

LABELS = "labels.json"
FAMILIES = {"detr": Family(Config, SIZES, Detr)}
DERIVED = {"classes": "data.train", "side": "data.side"}  # model fields that other sections decide


def batch_of(scenes: Scenes, config: Config, epoch: int, numbers: Indices) -> Batch:
    """Make a batch of the scenes with given numbers: a pure function of (seed, epoch, scene)."""
    return make_batch([scenes.scene(number, epoch) for number in numbers.tolist()], config)


def prepare(data: AnnotatedImagesConfig, directory: Path, notify: Notify) -> Corpus:
    """Prepare the training pictures, decoded, as a corpus, with their labels in `LABELS`, in order
    of appearance.

    Raises:
        TransductError: a file cannot be read, or nothing is left.
    """

    def fill(folder: Path) -> dict[str, Any]:
        labels: dict[str, int] = {}
        refused = Refused(data.broken)

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
        refused.report(notify)
        if not labels or any(start == stop for start, stop, _ in manifest["weights"]):
            raise TransductError(
                f"found no object to train on {files_said(data, refused.dropped)}; check data.train"
            )
        (folder / LABELS).write_text(json.dumps([*labels], ensure_ascii=False), encoding="utf-8")
        notify(
            f"corpus prepared: {manifest['rows']:,} pictures {files_said(data, refused.dropped)}"
        )
        return manifest | {"dropped": refused.dropped}

    photographs = [  # the other settings of a collage do not change the corpus
        replace(each, collage=each.collage and Collage(photographs=each.collage.photographs))
        for each in data.train
    ]
    return build(
        directory, inputs_of(replace(data, train=photographs), {}, apart=("flip",)), fill, notify
    )


class ObjectDetectionTask(Task):
    """The task of object detection, for one recipe in one run directory; see `base.Task`."""

    def __init__(self, recipe: Recipe, directory: Path, notify: Notify) -> None:
        with needing("vision", "SciPy"):
            import scipy.optimize  # noqa: F401  the loss uses it to match boxes
        self.directory, self.notify = directory, notify
        self.data = record(AnnotatedImagesConfig, recipe.data, "data")
        self.training = training_section(TrainingConfig, recipe.training, ("ap50", "ap"))
        self.decoding = record(DetectionConfig, recipe.decoding, "decoding")
        self.model = ModelSection(recipe.model, FAMILIES, DERIVED)
        record(NoOptions, recipe.tokenizer, "tokenizer")  # there is no text
        # an impossible model fails before anything is written
        self.recipe = filled(recipe, self, self._config(1))
        self.corpus: Corpus
        self.labels: list[str]
        self._validation: list[Example] | None = None

    def prepare(self) -> None:
        """Prepare the corpus unless it is up to date, and read the validation set.

        The test set is read too, unless it is generated, to find a mistake in it before hours of
        training.
        """
        data = self.data
        self.corpus = prepare(data, self.directory / "corpus", self.notify)
        self.labels = json.loads((self.corpus.directory / LABELS).read_text(encoding="utf-8"))
        queries = self._config(len(self.labels)).queries
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

    def _read(self, source: SceneSource, part: str) -> list[Example]:
        refused = Refused(self.data.broken)
        scenes = SceneSet(source, self.data.root).read(self.labels, self.data.side, refused)
        refused.report(self.notify, f"{part}: ")
        return scenes

    def build_model(self) -> Detr:
        """The recipe's model for these labels, with the weights of `model.start_from` if set."""
        labels = LabelRows(self.labels, ("labels",), ("heads.*.classes.*", "places.*"))
        return self.model.build(self._config(len(self.labels)), self.notify, labels=labels)

    def _config(self, classes: int) -> Any:
        return self.model.config(classes=classes, side=self.data.side)

    def batches(self, split: str, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """This rank's batches of an epoch, from batch `start` on."""
        only_train(split, "object detection has")
        data, seed, config = self.data, self.training.seed, self._config(len(self.labels))
        scenes = Scenes(self.corpus, data.train, data.side, seed, data.flip)
        lengths = np.full((len(scenes), 1), config.places)
        order = plan(lengths, seed, epoch, self.training.batch_tokens)
        return load_batches(
            order, partial(batch_of, scenes, config, epoch), start, rank, world, data.workers
        )

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

    def evaluate(self, model: Detr, data: Sequence[Example] | None = None) -> Report:
        """`ap` and `ap50` on `data`, by default the validation set, and a few samples."""
        data = self._validation if data is None else data
        if data is None:
            return Report({})
        report = self._in_use(model).evaluate(data)
        samples = [
            (f"scene {i}", str(report.outputs[i]), self._said(data[i])) for i in three_of(len(data))
        ]
        return replace(report, details={**report.details, "samples": samples})

    def _said(self, scene: Example) -> str:
        """The objects of a scene, written like a detector's answer."""
        objects = zip(scene.labels.tolist(), np.rint(scene.boxes).astype(int).tolist())
        return "; ".join(
            f"{self.labels[label]} [{' '.join(map(str, box))}]" for label, box in objects
        )

    def _in_use(self, model: Detr) -> Detector:
        return Detector(model, self.labels, self.decoding)

    def save(self, model: Detr, directory: Path, log: Mapping[str, Any]) -> Report:
        """Write the model directory, with a card of the final scores, and return them."""
        report = self.evaluate(model)
        made_of = f"{len(self.corpus):,} pictures {files_said(self.data, self.corpus.dropped)}"
        about = card("Object detector", made_of, self.training, report.scores, log)
        settings = {"labels": self.labels, "decoding": asdict(self.decoding)}
        write_model(directory, "object_detection", model, settings, [], about)
        return report
