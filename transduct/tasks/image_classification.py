"""Image classification: one label for a picture, by a ViT (Dosovitskiy et al. 2021).

Let B be the pictures, P the patches of each.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from transduct.data.augmentation import Augmentation, augmented, mixed
from transduct.data.batching import Indices, random_of
from transduct.data.corpus import Corpus, Ragged, build, inputs_of, ragged, write_rows
from transduct.data.files import WORDS_AT_ONCE, Refused, pack
from transduct.data.images import ImageSource, fitted, read_labelled
from transduct.data.text import in_chunks
from transduct.errors import require
from transduct.functional.losses import label_smoothed_cross_entropy
from transduct.models.vit import ViT
from transduct.predictors.image_classification import (
    About,
    Batch,
    HeldOut,
    LabelledImagesConfig,
    LabelledPictures,
    PictureClassifier,
    PictureConfig,
    rows_of,
)
from transduct.records import record
from transduct.tasks.base import Epoch, Task
from transduct.tasks.model import LabelRows, files_summary
from transduct.tasks.sections import Sections
from transduct.training.distributed import Terms

ABOUT = "pictures.json"


def batch_of(
    numbers: Indices,
    *,
    corpus: Corpus,
    trained: int,
    size: int,
    patches: int,
    how: Augmentation,
    seed: int,
    epoch: int,
) -> Batch:
    """Make a batch of the examples with given numbers: a pure function of (seed, epoch, example).

    Args:
        trained: how many rows are for training; the pictures to mix in are drawn from them.
    """
    generators = [random_of(seed, epoch, number) for number in numbers.tolist()]
    pictures, labels = rows_of(corpus, numbers, size)
    changed = [augmented(picture, how, random) for picture, random in zip(pictures, generators)]
    others, shares = labels.copy(), np.ones(len(labels), np.float32)
    chosen = [i for i, random in enumerate(generators) if how.mix and random.random() < how.mix]
    partners = np.array([generators[i].randrange(trained) for i in chosen], np.int64)
    for i, other, label in zip(chosen, *rows_of(corpus, partners, size), strict=True):
        changed[i], shares[i] = mixed(
            changed[i], augmented(other, how, generators[i]), generators[i]
        )
        others[i] = label
    stacked, own, second, parts = map(torch.from_numpy, (np.stack(changed), labels, others, shares))
    return Batch(stacked, own, second, parts, patches)


class PictureRows:
    """Streams the training pictures as rows of packed pixels and label, then the held-out ones.

    `labels` are numbered in the order of their first picture. Held-out pictures are buffered in
    `file`.
    """

    def __init__(self, data: LabelledImagesConfig, file: BinaryIO) -> None:
        self.data, self.refused = data, Refused(data.broken)
        self.labels: dict[str, int] = {}
        self._held: list[
            tuple[str, str]
        ] = []  # name and label of each picture in the file, in order
        self._file = file
        self._sums, self._pixels = np.zeros((2, 3)), 0  # sums of the colours and of their squares

    def sources(self) -> Iterator[tuple[float, Iterator[list[Ragged]]]]:
        """Yields the weight and the columns of each source; held-out pictures have the weight 0."""
        for source in self.data.train:
            yield source.weight, _chunks(self._trained(source))
        for name, label in self._held:
            require(
                label in self.labels,
                f"{name}: held out, but no other picture has its label '{label}'; lower hold_out",
            )
        yield 0.0, _chunks(self._held_out())

    def about(self) -> About:
        """The labels, and the mean and standard deviation of the colours."""
        mean, square = self._sums / self._pixels / [[255.0], [255.0**2]]
        deviation = (square - mean**2).clip(1e-6) ** 0.5  # not 0 where all pixels are alike
        return About(list(self.labels), mean.round(4).tolist(), deviation.round(4).tolist())

    def _held_out(self) -> Iterator[tuple[np.ndarray, int]]:
        size = self._file.tell() // max(1, len(self._held))  # bytes of each picture
        self._file.seek(0)
        for _, label in self._held:
            yield np.frombuffer(self._file.read(size), np.int32), self.labels[label]

    def _trained(self, source: ImageSource) -> Iterator[tuple[np.ndarray, int]]:
        for name, picture, label in read_labelled(source, Path(self.data.root), self.refused):
            square = fitted(picture, self.data.size)
            if fraction(name) < self.data.hold_out:
                self._held.append((f"{source.images}: {name}", label))
                self._file.write(pack(square).tobytes())
                continue
            colours = square.reshape(-1, 3).T.astype(np.float64)  # (3, pixels)
            self._sums += colours.sum(1), np.einsum("cp,cp->c", colours, colours)
            self._pixels += self.data.size**2
            yield pack(square), self.labels.setdefault(label, len(self.labels))


def _chunks(rows: Iterator[tuple[np.ndarray, int]]) -> Iterator[list[Ragged]]:
    for chunk in in_chunks(rows, lambda row: len(row[0]), WORDS_AT_ONCE):
        yield [ragged([words for words, _ in chunk]), ragged([[label] for _, label in chunk])]


def fraction(name: str) -> float:
    """A pseudo-random number from 0 to 1 that depends on nothing but the name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) / 2**64


class ImageClassificationTask(Task):
    """Trains a ViT."""

    name, title, unit = "image_classification", "Picture classifier", "pictures"
    validated_in_part = False
    sections = Sections(LabelledImagesConfig, PictureConfig)
    families = {"vit": PictureClassifier.family}
    scores = "accuracy", "f1"
    derived = {"image_size": "data.size", "labels": "data.train"}
    label_rows = LabelRows((), ("pictures", "labels"), ("output.*",))
    about: About

    def prepare(self) -> None:
        """Prepare the corpus unless it is up to date, and check the pictures to validate and test
        on.

        Checking them first finds a mistake before hours of training.
        """
        inputs = inputs_of(self.data, {}, ignored=("augmentation",))
        self.corpus = build(self.directory / "corpus", inputs, self._fill, self.notify)
        about = (self.corpus.directory / ABOUT).read_text(encoding="utf-8")
        self.about = record(About, json.loads(about), "pictures", ABOUT)
        self.labels = self.about.labels
        for source in filter(None, (self.data.valid, self.data.test)):
            refused = Refused(self.data.broken)
            read = self._labelled(source).read(self.about.labels, refused)
            name = "validation" if source is self.data.valid else "test"
            rows = ([pack(fitted(picture, self.data.size))] for picture, _ in read)
            self.report_leaks(f"{name} pictures", rows, 0)
            refused.report(self.notify)
        if self.data.valid:
            self._validation = self._labelled(self.data.valid)
        elif self.examples() < len(self.corpus):
            self._validation = HeldOut(self.corpus, self.examples(), self.data.size)

    def _fill(self, folder: Path) -> dict[str, Any]:
        """Write the training pictures, decoded and resized, and `ABOUT` them.

        Raises:
            TransductError: an archive or a picture cannot be read, there is only one label, or
                nothing is left.
        """
        with tempfile.TemporaryFile(dir=folder) as file:
            rows = PictureRows(self.data, file)
            manifest = write_rows(folder, 2, rows.sources())
        rows_left, held_out = manifest["rows"], self.data.hold_out
        origin = files_summary(self.data, rows.refused.dropped)
        require(
            rows.labels,
            f"no picture is left to train on {origin}; check data.train and data.hold_out",
        )
        require(
            len(rows.labels) > 1,
            f"found one label to train on ('{next(iter(rows.labels))}'), expected at least 2; "
            "check data.train",
        )
        trained, _, _ = manifest["weights"][-1]  # before what is held out
        require(
            not held_out or trained != rows_left,
            f"data.hold_out is {held_out}, which keeps back none of {trained:,} pictures; raise it",
        )
        (folder / ABOUT).write_text(
            json.dumps(asdict(rows.about()), ensure_ascii=False), encoding="utf-8"
        )
        self.notify(f"corpus prepared: {trained:,} pictures of {len(rows.labels)} labels {origin}")
        rows.refused.report(self.notify)
        if trained < rows_left:
            self.notify(f"held out: {rows_left - trained:,} pictures")
        return manifest | {"dropped": rows.refused.dropped}

    def _labelled(self, source: ImageSource) -> LabelledPictures:
        # `prepare` has reported
        return LabelledPictures(source, self.data.root, self.data.broken, reported=True)

    def examples(self) -> int:
        """How many rows of the corpus are for training; the rest are held out."""
        return self.corpus.weights[-1][0]

    def epoch(self, number: int) -> Epoch[Batch]:
        patches = self.model_config().grid ** 2
        make = partial(
            batch_of,
            corpus=self.corpus,
            trained=self.examples(),
            size=self.data.size,
            patches=patches,
            how=self.data.augmentation,
            seed=self.training.seed,
            epoch=number,
        )
        lengths = np.broadcast_to(patches, (len(self.corpus), 1))
        return Epoch(lengths, make, self.corpus.weights)

    def loss(self, model: ViT, batch: Batch) -> Terms:
        """Label-smoothed cross-entropy, summed over pictures; mixed pictures weight both labels by
        their shares."""
        scores = model.classify(*model.encode(self.about.read(batch.pictures))).float()
        own, other = (
            label_smoothed_cross_entropy(scores, labels, self.training.label_smoothing)
            for labels in (batch.labels, batch.others)
        )
        loss = batch.shares * own + (1.0 - batch.shares) * other  # (B,)
        return {"labels": (loss.sum(), batch.counts["labels"], 1.0)}

    def predictor(self, model: ViT) -> PictureClassifier:
        return PictureClassifier(model, self.about, self.decoding)

    def settings(self) -> dict[str, Any]:
        return {"pictures": asdict(self.about), **super().settings()}
