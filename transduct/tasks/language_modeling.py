"""Language modelling: trains a model that predicts each token of a text from those before; see
`language_model`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from transduct.config import Recipe, record
from transduct.data.batching import Indices, only_train, plan
from transduct.data.batching import load as load_batches
from transduct.data.corpus import Corpus, Ragged, build, inputs_of, write_rows
from transduct.data.files import names_of
from transduct.data.text import in_chunks, texts_of
from transduct.data.tokenizer import TOKENIZER, Tokenizer
from transduct.data.unknown import Share
from transduct.errors import TransductError
from transduct.functional.losses import projected_cross_entropy
from transduct.models.gpt import GPT, SIZES, Config
from transduct.predictors.base import Notify, Report
from transduct.predictors.language_modeling import (
    END,
    Batch,
    LanguageModel,
    TextConfig,
    WritingConfig,
    lines_of,
    make_batch,
    windows,
    with_ends,
)
from transduct.predictors.options import Family
from transduct.tasks.base import Task
from transduct.tasks.model import card, files_said, write_model
from transduct.tasks.sections import (
    ANY_SIZE,
    ModelSection,
    filled,
    tokenizer_section,
    training_section,
)
from transduct.tasks.text import single_tokenizer
from transduct.training.config import TrainingConfig
from transduct.training.step import Terms

FAMILIES = {"gpt": Family(Config, SIZES, GPT)}
# model fields that other sections decide
DERIVED = {"vocabulary_size": "tokenizer.size", "max_length": "data.context"}


def batch_of(corpus: Corpus, cuts: Indices, context: int, numbers: Indices) -> Batch:
    """Make a batch of the windows with given numbers: a pure function of the epoch's cuts; see
    `windows`.

    The corpus holds the text in rows of `context` tokens, and a window spans two rows at most.
    """
    starts, stops = cuts[numbers], cuts[numbers + 1]
    rows = np.stack((starts, stops), 1) // context  # (windows, 2)
    tokens, lengths = corpus.columns(rows.flatten())[0]
    firsts = (np.cumsum(lengths) - lengths)[::2] + starts % context
    ends = firsts + stops - starts + 1
    return make_batch([tokens[first:end] for first, end in zip(firsts, ends, strict=True)])


class LanguageModelingTask(Task):
    """The task of language modelling, for one recipe in one run directory; see `base.Task`."""

    def __init__(self, recipe: Recipe, directory: Path, notify: Notify) -> None:
        self.directory, self.notify = directory, notify
        self.data = record(TextConfig, recipe.data, "data")
        self.tokenizer_config = tokenizer_section(
            recipe.tokenizer, dropout="a text is encoded once"
        )
        self.training = training_section(
            TrainingConfig,
            recipe.training,
            ("nats_per_token", "nats_per_character", "perplexity"),
        )
        self.decoding = record(WritingConfig, recipe.decoding, "decoding")
        self.model = ModelSection(recipe.model, FAMILIES, DERIVED)
        self.recipe = filled(recipe, self, self._config(ANY_SIZE))
        self.tokenizer: Tokenizer
        self.corpus: Corpus
        self._validation: list[str] | None = None

    def prepare(self) -> None:
        """Read the validation text, train the tokenizer unless the run has one, and prepare the
        corpus.

        Raises:
            TransductError: a file is missing, damaged or not UTF-8, or the text is shorter than one
                window.
        """
        data = self.data
        if data.valid is not None:
            self._validation = list(texts_of([data.valid], Path(data.root)))
        self.tokenizer = single_tokenizer(self, self._lines())
        inputs = inputs_of(data, {"the tokenizer": self.tokenizer})

        def fill(folder: Path) -> dict[str, Any]:
            share = Share("lines")
            manifest = write_rows(folder, 1, [(1.0, in_rows(self._tokens(share), data.context))])
            if str(share):
                self.notify(f"corpus prepared{share}")
            return manifest

        self.corpus = build(self.directory / "corpus", inputs, fill, self.notify)
        if self.total <= data.context:
            raise TransductError(
                f"{', '.join(names_of(data.train))}: {self.total - 1} tokens of text, expected at "
                f"least a window of {data.context}; give more text, or set data.context lower"
            )

    @property
    def total(self) -> int:
        """The number of tokens in the corpus, including the end token before the text."""
        return int(self.corpus.lengths.sum())

    def _tokens(self, share: Share) -> Iterator[Indices]:
        """Yields the text's tokens in parts, with an end token before the text."""
        for chunk in in_chunks(self._lines(), len):
            run = with_ends(self.tokenizer, chunk)
            share.add(lines_of(run)[1:])
            yield np.array(run, np.int32)
        yield np.array([END], np.int32)

    def _lines(self) -> Iterator[str]:
        return texts_of(self.data.train, Path(self.data.root))

    def build_model(self) -> GPT:
        """The recipe's model for this vocabulary, with the weights of `model.start_from` if set."""
        return self.model.build(self._config(self.tokenizer.size), self.notify)

    def _config(self, vocabulary_size: int) -> Any:
        return self.model.config(vocabulary_size=vocabulary_size, max_length=self.data.context)

    def batches(self, split: str, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """This rank's batches of an epoch, from batch `start` on; each epoch draws where the
        windows begin."""
        only_train(split, "language modelling has")
        config, context = self.training, self.data.context
        cuts = windows(self.total, context, Random(f"{config.seed}/{epoch}").randint(1, context))
        order = plan(np.diff(cuts), config.seed, epoch, config.batch_tokens)
        return load_batches(
            order,
            partial(batch_of, self.corpus, cuts, context),
            start,
            rank,
            world,
            self.data.workers,
        )

    def loss(self, model: GPT, batch: Batch) -> Terms:
        """Cross-entropy, summed over tokens."""
        hidden = model.hidden(batch.inputs, batch.segments)
        smoothing = self.training.label_smoothing
        loss, _ = projected_cross_entropy(hidden, model.output_table, batch.outputs, smoothing)
        return {"tokens": (loss, batch.counts["tokens"], 1.0)}

    def _in_use(self, model: GPT) -> LanguageModel:
        return LanguageModel(model, self.tokenizer, self.decoding)

    def save(self, model: GPT, directory: Path, log: Mapping[str, Any]) -> Report:
        """Write the model directory, with a card of the final scores, and return them."""
        report = self.evaluate(model)
        made_of = f"{self.total - 1:,} tokens {files_said(self.data, {})}"
        how = f", in consecutive windows of {self.data.context} tokens"
        about = card("Language model", made_of, self.training, report.scores, log, how)
        settings = {"decoding": asdict(self.decoding)}
        write_model(
            directory, "language_modeling", model, settings, [self.directory / TOKENIZER], about
        )
        return report


def in_rows(parts: Iterable[Indices], size: int) -> Iterator[list[Ragged]]:
    """Yields a run of tokens, given in parts, in rows of `size`; the last row holds the rest."""
    rest = np.zeros(0, np.int32)
    for part in parts:
        rest = np.concatenate((rest, part))
        count = len(rest) // size
        if count:
            yield [(rest[: count * size], np.full(count, size))]
            rest = rest[count * size :]
    if len(rest):
        yield [(rest, np.array([len(rest)]))]
