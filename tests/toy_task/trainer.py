"""A task outside the package, who trains: see `predictor`."""

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
from transduct.predictors.options import Family, PredictConfig
from transduct.tasks.base import Epoch, Task
from transduct.tasks.model import files_said
from transduct.tasks.sections import Sections


def batch_of(numbers, *, rows):
    return make_batch([rows[number] for number in numbers.tolist()])


class FirstLetterTask(Task):
    name, title = "first_letter", "Vowels"
    sections = Sections(DataConfig, PredictConfig)
    families = {"letters": Family(LettersConfig, {}, Letters)}
    scores = ["accuracy"]

    def prepare(self):
        self.rows = [row for source in self.data.train for row in rows_in(source, self.data.root)]
        self._validation = rows_in(self.data.valid, self.data.root) if self.data.valid else None

    def epoch(self, number):
        return Epoch(np.ones((len(self.rows), 1), np.int64), partial(batch_of, rows=self.rows))

    def loss(self, model, batch):
        loss = F.cross_entropy(model.table[batch.letters], batch.labels, reduction="sum")
        return {"labels": (loss, batch.counts["labels"], 1.0)}

    def predictor(self, model):
        return FirstLetter(model, self.decoding)

    def made_of(self):
        return files_said(self.data, {})
