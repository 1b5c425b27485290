"""Language modelling: trains a model that predicts each token of a text from those before; see
`models.gpt`."""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from transduct.data.batching import Indices
from transduct.data.corpus import Corpus, Ragged, build, inputs_of, write_rows
from transduct.data.files import Refused, names_of
from transduct.data.text import in_chunks, texts_of
from transduct.data.text_warnings import UnknownRate
from transduct.data.tokenizer import TokenizerConfig
from transduct.errors import require
from transduct.functional.losses import projected_cross_entropy
from transduct.models.gpt import GPT
from transduct.predictors.base import Report
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
from transduct.tasks.base import Epoch
from transduct.tasks.sections import Sections
from transduct.tasks.text import TextTask
from transduct.training.distributed import Terms


def batch_of(numbers: Indices, *, corpus: Corpus, cuts: Indices, context: int) -> Batch:
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


class LanguageModelingTask(TextTask):
    """Trains a model that continues texts."""

    name, title, unit = "language_modeling", "Language model", "tokens"
    sections = Sections(TextConfig, WritingConfig, TokenizerConfig)
    families = {"gpt": LanguageModel.family}
    against_dropout = "a text is encoded once"
    validated_in_part = False
    scores = "nats_per_token", "nats_per_character", "perplexity"
    derived = {"vocabulary_size": "tokenizer.size", "max_length": "data.context"}

    def prepare(self) -> None:
        """Read the validation text, train the tokenizer unless the run has one, and prepare the
        corpus.

        Raises:
            TransductError: a file is missing, damaged or not UTF-8, or the text is shorter than one
                window.
        """
        data = self.data
        self.read_validation()
        self.make_tokenizer(self._lines(Refused(data.broken)))
        inputs = inputs_of(data, {"the tokenizer": self.tokenizer})

        def fill(folder: Path) -> dict[str, Any]:
            unknown, refused = UnknownRate("lines"), Refused(data.broken)
            tokens = self._tokens(unknown, refused)
            manifest = write_rows(folder, 1, [(1.0, in_rows(tokens, data.context))])
            refused.report(self.notify)
            if str(unknown):
                self.notify(f"corpus prepared{unknown}")
            return manifest

        self.corpus = build(self.directory / "corpus", inputs, fill, self.notify)
        self.report_known_lines()
        require(
            self.total > data.context,
            f"{', '.join(names_of(data.train))}: {self.total - 1} tokens of text, expected at "
            f"least a window of {data.context}; give more text, or set data.context lower",
        )

    @property
    def total(self) -> int:
        """The number of tokens in the corpus, including the end token before the text."""
        return int(self.corpus.lengths.sum())

    def _tokens(self, unknown: UnknownRate, refused: Refused) -> Iterator[Indices]:
        """Yields the text's tokens in parts, with an end token before the text."""
        for chunk in in_chunks(self._lines(refused), len):
            run = with_ends(self.tokenizer, chunk)
            unknown.add(lines_of(run)[1:])
            yield np.array(run, np.int32)
        yield np.array([END], np.int32)

    def _lines(self, refused: Refused) -> Iterator[str]:
        return texts_of(self.data.train, Path(self.data.root), refused)

    def epoch(self, number: int) -> Epoch[Batch]:
        """The windows of an epoch, which draws where they begin."""
        context = self.data.context
        first = Random(f"{self.training.seed}/{number}").randint(1, context)
        cuts = windows(self.total, context, first)
        return Epoch(
            np.diff(cuts), partial(batch_of, corpus=self.corpus, cuts=cuts, context=context)
        )

    def loss(self, model: GPT, batch: Batch) -> Terms:
        hidden = model.hidden(batch.inputs, batch.segments)
        smoothing = self.training.label_smoothing
        loss, _ = projected_cross_entropy(hidden, model.output_table, batch.outputs, smoothing)
        return {"tokens": (loss, batch.counts["tokens"], 1.0)}

    def predictor(self, model: GPT) -> LanguageModel:
        return LanguageModel(model, self.tokenizer, self.decoding)

    def examples(self) -> int:
        """The tokens of the text, without the end token before it."""
        return self.total - 1

    def measured(self, report: Report) -> str:  # noqa: ARG002
        """How the text is cut."""
        return f", in consecutive windows of {self.data.context} tokens"


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
