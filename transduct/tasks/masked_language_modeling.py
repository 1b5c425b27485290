"""Masked language modelling: pre-trains an encoder on plain text, for other tasks to start from.

Some tokens of each line are masked and predicted from those on both sides. Optionally, the model
also predicts whether one line follows another (Devlin et al. 2019, section 3.1).
"""

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn import functional as F

from transduct.config import Recipe, record
from transduct.data.batching import Indices, only_train, plan, random_of
from transduct.data.batching import load as load_batches
from transduct.data.corpus import Corpus, growth, lists_of
from transduct.data.files import names_of
from transduct.data.masking import (
    Masking,
    PlainTextConfig,
    check_enough,
    encoded_lines,
    prepare_plain_text,
    second_lines,
)
from transduct.data.text import texts_of
from transduct.data.tokenizer import TOKENIZER, Tokenizer
from transduct.models.bert import SIZES, Bert, Config
from transduct.predictors.base import Notify, Report, naming_files
from transduct.predictors.masked_language_modeling import (
    SCORES,
    Batch,
    MaskedLanguageModel,
    answers,
    fill_up,
    make_batch,
)
from transduct.predictors.options import Family, NoOptions
from transduct.tasks.base import Task
from transduct.tasks.model import card, files_said, write_model
from transduct.tasks.sections import (
    ANY_SIZE,
    ModelSection,
    filled,
    tokenizer_section,
    training_section,
)
from transduct.tasks.text import room_of, single_tokenizer
from transduct.training.config import TrainingConfig
from transduct.training.step import Terms

FAMILIES = {"bert": Family(Config, SIZES, Bert)}
DERIVED = {  # model fields that other sections decide
    "vocabulary_size": "tokenizer.size",
    "max_length": "data.max_length",
    "head": "data.next_sentence",
    "labels": "data.next_sentence",
}


def batch_of(
    corpus: Corpus,
    tokenizer: Tokenizer,
    masking: Masking,
    max_length: int,
    dropout: float,
    shown: Indices | None,
    room: int,
    numbers: Indices,
) -> Batch:
    """Make a batch of the examples with given numbers: a pure function of (seed, epoch, example).

    Args:
        shown: see `second_lines`; None for single lines.
        room: the tokens of a shape to fill the batch up to; 0 for none.
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
        apart = rows != numbers
        batch = make_batch(examples, first, lines(1, rows), apart, masking, max_length)
    return fill_up(batch, room, max_length) if room else batch


class MaskedLanguageModelingTask(Task):
    """The task of masked language modelling, for one recipe in one run directory; see
    `base.Task`."""

    def __init__(self, recipe: Recipe, directory: Path, notify: Notify) -> None:
        self.directory, self.notify = directory, notify
        self.data = record(PlainTextConfig, recipe.data, "data")
        self.tokenizer_config = tokenizer_section(recipe.tokenizer)
        scores = [
            SCORES[term]
            for term in (("tokens", "pairs") if self.data.next_sentence else ("tokens",))
        ]
        self.training = training_section(
            TrainingConfig,
            recipe.training,
            ["nats_per_token", *scores],
        )
        record(NoOptions, recipe.decoding, "decoding")  # nothing is searched for
        self.model = ModelSection(recipe.model, FAMILIES, DERIVED)
        self.recipe = filled(recipe, self, self._config(ANY_SIZE))
        self.tokenizer: Tokenizer
        self.corpus: Corpus
        self._validation: list[str] | None = None

    def prepare(self) -> None:
        """Read the validation text, train the tokenizer unless the run has one, and prepare the
        corpus.

        Raises:
            TransductError: a file is missing, damaged or not UTF-8, or there is too little text.
        """
        data = self.data
        if data.valid is not None:
            self._validation = list(texts_of([data.valid], Path(data.root)))
        self.tokenizer = single_tokenizer(self, texts_of(data.train, Path(data.root)))
        if self._validation is not None:
            lines = encoded_lines(self._validation, self.tokenizer)
            with naming_files(names_of([data.valid])):
                check_enough(len(lines) - data.next_sentence, data.next_sentence)
        self.corpus = prepare_plain_text(
            data, self.tokenizer, self.directory / "corpus", self.notify
        )

    def build_model(self) -> Bert:
        """The recipe's model for this vocabulary, with the weights of `model.start_from` if set."""
        return self.model.build(self._config(self.tokenizer.size), self.notify)

    def _config(self, vocabulary_size: int) -> Any:
        head = "pretraining" if self.data.next_sentence else "masked"
        derived = {
            "vocabulary_size": vocabulary_size,
            "max_length": self.data.max_length,
            "head": head,
        }
        return self.model.config(**derived, labels=0)

    def batches(self, split: str, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """This rank's batches of an epoch, from batch `start` on."""
        only_train(split, "masked language modelling has")
        config, data, lengths = self.training, self.data, self.corpus.lengths
        totals, shown = lengths[:, 0] + 2, None
        if data.next_sentence:
            shown = second_lines(len(lengths), config.seed, epoch)
            totals = totals + lengths[shown, 1] + 1
        totals = np.minimum(totals, data.max_length)
        order = plan(
            totals,
            config.seed,
            epoch,
            config.batch_tokens,
            self.corpus.weights,
            growth=[self.growth],
        )
        masking = Masking(data.mask, self.tokenizer.size, config.seed, epoch)
        dropout = self.tokenizer_config.dropout
        room = room_of(config, dropout)
        make = partial(
            batch_of, self.corpus, self.tokenizer, masking, data.max_length, dropout, shown, room
        )
        return load_batches(order, make, start, rank, world, data.workers)

    @cached_property
    def growth(self) -> float:
        """The factor by which BPE dropout lengthens the lines of the corpus."""
        sides = [0, 1] if self.data.next_sentence else [0]
        return growth(
            self.corpus, sides, 1 + len(sides), self.tokenizer, self.tokenizer_config.dropout
        )

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

    def _in_use(self, model: Bert) -> MaskedLanguageModel:
        return MaskedLanguageModel(model, self.tokenizer, self.data.mask)

    def save(self, model: Bert, directory: Path, log: Mapping[str, Any]) -> Report:
        """Write the model directory, with a card of the final scores, and return them."""
        report = self.evaluate(model)
        made_of = (
            f"{len(self.corpus):,} {self.data.unit} {files_said(self.data, self.corpus.dropped)}"
        )
        about = card("Masked language model", made_of, self.training, report.scores, log)
        tokenizers = [self.directory / TOKENIZER]
        write_model(
            directory,
            "masked_language_modeling",
            model,
            {"mask": self.data.mask},
            tokenizers,
            about,
        )
        return report
