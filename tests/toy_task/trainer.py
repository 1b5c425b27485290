"""A task outside the package, who trains: see `predictor`."""

from dataclasses import asdict
from functools import partial

import numpy as np
from torch.nn import functional as F

from tests.toy_task.predictor import (
    DataConfig,
    FirstLetter,
    Letters,
    LettersConfig,
    make_batch,
    rows_in,
)
from transduct.config import record
from transduct.data.batching import load, only_train, plan
from transduct.predictors.options import Family, PredictConfig
from transduct.tasks.base import Task
from transduct.tasks.model import card, files_said, write_model
from transduct.tasks.sections import ModelSection, filled, training_section
from transduct.training.config import TrainingConfig


def batch_of(rows, numbers):
    return make_batch([rows[number] for number in numbers.tolist()])


class FirstLetterTask(Task):
    def __init__(self, recipe, directory, notify):
        self.data = record(DataConfig, recipe.data, "data")
        self.training = training_section(TrainingConfig, recipe.training, ["accuracy"])
        self.decoding = record(PredictConfig, recipe.decoding, "decoding")
        self.model = ModelSection(recipe.model, {"letters": Family(LettersConfig, {}, Letters)}, {})
        self.recipe = filled(recipe, self, self.model.config())
        self.notify = notify

    def prepare(self):
        self.rows = [row for source in self.data.train for row in rows_in(source, self.data.root)]
        self._validation = rows_in(self.data.valid, self.data.root) if self.data.valid else None

    def build_model(self):
        return self.model.build(self.model.config(), self.notify)

    def batches(self, split, epoch, start, rank, world):
        only_train(split, "first letters have")
        lengths = np.ones((len(self.rows), 1), np.int64)
        order = plan(lengths, self.training.seed, epoch, self.training.batch_tokens)
        return load(order, partial(batch_of, self.rows), start, rank, world, 0)

    def loss(self, model, batch):
        loss = F.cross_entropy(model.table[batch.letters], batch.labels, reduction="sum")
        return {"labels": (loss, batch.counts["labels"], 1.0)}

    def _in_use(self, model):
        return FirstLetter(model, self.decoding)

    def save(self, model, directory, log):
        report = self.evaluate(model)
        about = card("Vowels", files_said(self.data, {}), self.training, report.scores, log)
        settings = {"decoding": asdict(self.decoding)}
        write_model(directory, "first_letter", model, settings, [], about)
        return report
