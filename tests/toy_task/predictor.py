"""A task outside the package, who answers: does a text begin with a vowel?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn

from transduct import segments
from transduct.data.files import DataSection, Workers
from transduct.data.sources import TextSource
from transduct.data.text import read_rows
from transduct.models.base import Model
from transduct.predictors.base import Predictor, Report
from transduct.predictors.model_directory import blank_of, read_weights, section
from transduct.predictors.options import (
    PredictConfig,
    are_given,
    check_against,
    check_inputs,
    data_with_test,
    with_options,
)
from transduct.segments import Axis

LABELS = ["consonant", "vowel"]


@dataclass(frozen=True)
class LettersConfig:
    letters: int = 256


class Letters(Model):
    """The score of each label for a letter."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.table = nn.Parameter(torch.zeros(config.letters, len(LABELS)))


@dataclass(frozen=True)
class DataConfig(DataSection):
    train: list[TextSource]
    valid: TextSource | None = None
    test: TextSource | None = None
    root: str = "."
    workers: Workers = 0


@dataclass(frozen=True)
class Batch(segments.Batch):
    unit, terms = "words", {"labels": "words"}
    letters: Annotated[Tensor, Axis("words")]
    labels: Annotated[Tensor, Axis("words")]


def make_batch(rows: Sequence[tuple[str, str]]) -> Batch:
    letters = torch.tensor([first_of(text) for text, _ in rows])
    return Batch(letters, torch.tensor([LABELS.index(label) for _, label in rows]))


def first_of(text):
    return text.encode()[0] if text else 0


def rows_in(source, root):
    return [(text, label) for text, label in read_rows(source, Path(root), labelled=True)]


class FirstLetter(Predictor):
    """Says of each text whether it begins with a vowel."""

    def __init__(self, model, decoding):
        self.model, self.decoding = model.eval(), decoding

    @classmethod
    def load(cls, directory, config, device, precision):
        model = blank_of(config, Letters, LettersConfig, directory)
        read_weights(model, directory, device, precision)
        return cls(model, section(config, "decoding", PredictConfig, directory))

    @classmethod
    def test_set(cls, files, recipe, refused=None):
        if are_given(files, "source", "reference"):
            pair = TextSource(source=files["source"], target=files["reference"])
            return rows_in(pair, ".")
        data = data_with_test(DataConfig, recipe)
        return rows_in(data.test, data.root)

    def predict(self, inputs, **options):
        check_inputs(inputs)
        with_options(self.decoding, options)
        letters = torch.tensor([first_of(text) for text in inputs], dtype=torch.int64)
        return [LABELS[i] for i in self.model.table[letters].argmax(1).tolist()]

    def evaluate(self, data, against=None, **options):
        check_against(self, against)
        outputs = self.predict([text for text, _ in data], **options)
        right = sum(output == label for output, (_, label) in zip(outputs, data, strict=True))
        details = {} if against is None else {"against": against.evaluate(data).scores}
        return Report({"accuracy": 100.0 * right / len(data)}, details, outputs)
