"""Masked language modelling: pre-trains an encoder on plain text, for other tasks to start from.

Some tokens of each line are masked and predicted from those on both sides. Optionally, the model
also predicts whether one line follows another (Devlin et al. 2019, section 3.1).
"""

from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn import functional as F

from transduct.data.batching import Indices, random_of
from transduct.data.corpus import Corpus, growth, lists_of
from transduct.data.files import Refused, names_of
from transduct.data.masking import (
    Masking,
    PlainTextConfig,
    check_enough,
    encoded_lines,
    prepare_plain_text,
    second_lines,
)
from transduct.data.text import texts_of
from transduct.data.tokenizer import Tokenizer, TokenizerConfig
from transduct.models.bert import Bert
from transduct.predictors.base import naming_files
from transduct.predictors.masked_language_modeling import (
    SCORES,
    Batch,
    MaskedLanguageModel,
    answers,
    fill_up,
    make_batch,
)
from transduct.tasks.base import Epoch
from transduct.tasks.sections import Sections
from transduct.tasks.text import TextTask
from transduct.training.distributed import Terms


def batch_of(
    numbers: Indices,
    *,
    corpus: Corpus,
    tokenizer: Tokenizer,
    masking: Masking,
    max_length: int,
    dropout: float,
    shown: Indices | None,
    capacity: int,
) -> Batch:
    """Make a batch of the examples with given numbers: a pure function of (seed, epoch, example).

    Args:
        shown: see `second_lines`; None for single lines.
        capacity: the tokens of a shape to fill the batch up to; 0 for none.
    """
    examples = numbers.tolist()

    def lines(side: int, rows: Indices) -> list[Any]:
        """One side of these rows, with BPE dropout drawn for these examples."""
        found = lists_of(corpus.columns(rows)[side])
        if not dropout:
            return found
        randoms = (random_of(masking.seed, masking.epoch, number, side) for number in examples)
        return [
            tokenizer.resegment(line.tolist(), dropout, random)
            for line, random in zip(found, randoms)
        ]

    first = lines(0, numbers)
    if shown is None:
        batch = make_batch(examples, first, None, None, masking, max_length)
    else:
        rows = shown[numbers]
        unrelated = rows != numbers
        batch = make_batch(examples, first, lines(1, rows), unrelated, masking, max_length)
    return fill_up(batch, capacity, max_length) if capacity else batch


class MaskedLanguageModelingTask(TextTask):
    """Pre-trains an encoder."""

    name, title = "masked_language_modeling", "Masked language model"
    validated_in_part = False
    sections = Sections(PlainTextConfig, tokenizer=TokenizerConfig)
    families = {"bert": MaskedLanguageModel.family}
    derived = {
        "vocabulary_size": "tokenizer.size",
        "max_length": "data.max_length",
        "head": "data.next_sentence",
        "labels": "data.next_sentence",
    }

    def check(self) -> None:
        super().check()
        terms = ("tokens", "pairs") if self.data.next_sentence else ("tokens",)
        self.scores = ["nats_per_token", *(SCORES[term] for term in terms)]
        self.unit = self.data.unit

    def sizes(self) -> Mapping[str, Any]:
        head = "pretraining" if self.data.next_sentence else "masked"
        return {**super().sizes(), "head": head, "labels": 0}

    def prepare(self) -> None:
        """Read the validation text, train the tokenizer unless the run has one, and prepare the
        corpus.

        Raises:
            TransductError: a file is missing, damaged or not UTF-8, or there is too little text.
        """
        data = self.data
        self.read_validation()
        texts = texts_of(data.train, Path(data.root), Refused(data.broken))
        self.make_tokenizer(texts)
        if self._validation is not None:
            lines = encoded_lines(self._validation, self.tokenizer)
            with naming_files(names_of([data.valid])):
                check_enough(len(lines) - data.next_sentence, data.next_sentence)
        self.corpus = prepare_plain_text(
            data, self.tokenizer, self.directory / "corpus", self.notify
        )
        self.report_known_lines()

    def epoch(self, number: int) -> Epoch[Batch]:
        """The lines of an epoch, or pairs of lines; some are put together anew."""
        data, lengths, seed = self.data, self.corpus.lengths, self.training.seed
        totals, shown = lengths[:, 0] + 2, None
        if data.next_sentence:
            shown = second_lines(len(lengths), seed, number)
            totals = totals + lengths[shown, 1] + 1
        make = partial(
            batch_of,
            corpus=self.corpus,
            tokenizer=self.tokenizer,
            masking=Masking(data.mask, self.tokenizer.size, seed, number),
            max_length=data.max_length,
            dropout=self.tokenizer_config.dropout,
            shown=shown,
            capacity=self.capacity,
        )
        totals = np.minimum(totals, data.max_length)
        return Epoch(totals, make, self.corpus.weights, [self.growth])

    @cached_property
    def growth(self) -> float:
        """The factor by which BPE dropout lengthens the lines of the corpus."""
        sides = [0, 1] if self.data.next_sentence else [0]
        dropout = self.tokenizer_config.dropout
        return growth(self.corpus, sides, 1 + len(sides), self.tokenizer, dropout)

    def loss(self, model: Bert, batch: Batch) -> Terms:
        """Label-smoothed cross-entropy, summed over masked tokens and, as a second term, over pairs
        of lines."""
        smoothing = self.training.label_smoothing
        return {
            term: (
                F.cross_entropy(*pair, reduction="sum", label_smoothing=smoothing),
                batch.counts[term],
                1.0,
            )
            for term, pair in answers(model, batch).items()
        }

    def predictor(self, model: Bert) -> MaskedLanguageModel:
        return MaskedLanguageModel(model, self.tokenizer, self.data.mask)

    def settings(self) -> dict[str, Any]:
        """The share of masked tokens; evaluations mask as many."""
        return {"mask": self.data.mask}
