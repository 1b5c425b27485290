"""A task outside the package: does a word begin with a vowel?"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from torch import Tensor, nn, tensor, zeros

from transduct.evaluation.classification import label_scores
from transduct.models.base import Model
from transduct.predictors import text_classification as texts
from transduct.predictors.base import Report
from transduct.predictors.model_directory import Family, OneModel
from transduct.predictors.options import NoOptions, with_options
from transduct.segments import Axis, FlatBatch
from transduct.tasks.base import Epoch, Task
from transduct.tasks.sections import Sections

LABELS = ["consonant", "vowel"]


class Letters(Model):
    def __init__(self, config):
        super().__init__()
        self.config, self.table = config, nn.Parameter(zeros(256, len(LABELS)))


class FirstLetter(OneModel):
    decoding, test_set = NoOptions(), texts.Classifier.test_set
    family = Family(NoOptions, {}, Letters)

    def predict(self, inputs, **options):
        with_options(self.decoding, options)
        scores = self.model.table[[text.encode()[0] for text in inputs]]
        return [LABELS[i] for i in scores.argmax(1).tolist()]

    def measured(self, data, options):
        outputs = self.predict(data[0], **options)
        return Report(label_scores(outputs, data[1]).scores, {}, outputs)


@dataclass(frozen=True)
class Words(FlatBatch):
    unit, terms = "words", {"labels": "words"}
    letters: Annotated[Tensor, Axis("words")]
    labels: Annotated[Tensor, Axis("words")]


def batch_of(numbers, *, words):
    return Words(words.letters[numbers], words.labels[numbers])


class FirstLetterTask(Task):
    name, title, scores = "first_letter", "First letters", ["accuracy", "f1"]
    sections, families = Sections(texts.LabelledTextConfig), {"own": FirstLetter.family}

    def prepare(self):
        words, labels = texts.inputs_and_answers(self.data.train[0], self.data.root)
        self._validation = texts.inputs_and_answers(self.data.valid, self.data.root)
        labels = tensor([LABELS.index(label) for label in labels])
        self.words = Words(tensor([word.encode()[0] for word in words]), labels)

    def epoch(self, number):
        return Epoch([1] * self.words.tokens, partial(batch_of, words=self.words))

    def loss(self, model, batch):
        loss = nn.functional.cross_entropy(
            model.table[batch.letters], batch.labels, reduction="sum"
        )
        return {"labels": (loss, batch.counts["labels"], 1.0)}

    def predictor(self, model):
        return FirstLetter(model)

    def made_of(self):
        return f"{self.words.tokens} words"
