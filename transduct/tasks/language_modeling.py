"""Language modelling: a text to a model that predicts each token of it from those before, and so goes on from prompts.

A text is its lines, each ended by the end token, which stands for the line feed. It is read after an end token, as
if a line had just been finished, and at most `context` tokens of it are seen at once. Let N be the tokens of a batch.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.blocks.tables import numbers_of
from transduct.config import Recipe, record
from transduct.data.batching import Indices, plan
from transduct.data.batching import load as load_batches
from transduct.data.corpus import Corpus, Ragged, build, inputs_of, write_rows
from transduct.data.files import check_section, names_of
from transduct.data.sources import TextSource
from transduct.data.text import in_chunks, texts_of
from transduct.data.tokenizer import Tokenizer, train_tokenizer
from transduct.decoding import engine
from transduct.decoding.engine import DecodingConfig
from transduct.decoding.search import FixedLength
from transduct.errors import TransductError, WrongData
from transduct.functional.losses import projected_cross_entropy
from transduct.functional.segments import Segments
from transduct.models.gpt import GPT, SIZES, Config
from transduct.tasks.base import Notify, Report
from transduct.tasks.model import Movable, card, files_said, only_train, write_model
from transduct.tasks.sections import (
    ANY_SIZE,
    Family,
    ModelSection,
    asked_for,
    check_inputs,
    data_with_test,
    filled,
    tokenizer_section,
    training_section,
)
from transduct.tasks.text import TOKENIZER, read_model, run_tokenizer
from transduct.training import checkpoint
from transduct.training.config import TrainingConfig
from transduct.training.step import Terms

END = Tokenizer.END
FAMILIES = {"gpt": Family(Config, SIZES, GPT)}
DERIVED = {"vocabulary_size": "tokenizer.size", "max_length": "data.context"}  # of the model, and what says it
log = logging.getLogger("transduct")
SHOWN = 100  # tokens written to show how the model is doing


@dataclass(frozen=True)
class TextConfig:
    """The `data` section of a recipe for plain text, given as files of `text` or as one column of `pairs`.

    Attributes:
        context: tokens of a window, the most that the model looks back.
    """

    train: list[TextSource]
    valid: TextSource | None = None
    test: TextSource | None = None
    root: str = "."
    context: int = 256
    workers: int = 1

    def __post_init__(self) -> None:
        check_section(self)
        for source in [*self.train, *filter(None, (self.valid, self.test))]:
            if source.width != 1:
                raise ValueError(f"a corpus gives {source.width} texts a row, must be 1: give text, or name one column")
            if source.weight != 1.0:
                raise ValueError(f"weight is {source.weight}, must be 1: an epoch shows every token once")
        if self.context < 2:
            raise ValueError(f"context is {self.context}, must be at least 2")


@dataclass(frozen=True)
class WritingConfig(DecodingConfig):
    """How a text is continued.

    Attributes:
        length: how many tokens to write, line feeds included.
    """

    length: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise ValueError(f"length is {self.length}, must be at least 1")
        self.without_memory()


@dataclass(frozen=True)
class Batch(Movable):
    """Tokens of windows (N,), and the token after each (N,)."""

    inputs: Tensor
    outputs: Tensor
    segments: Segments

    @property
    def tokens(self) -> int:
        """Tokens that are predicted."""
        return self.segments.total

    @property
    def counts(self) -> dict[str, float]:
        """The loss is an average over tokens."""
        return {"tokens": float(self.tokens)}


@dataclass(frozen=True)
class MakeBatch:
    """Window numbers to a batch, by nothing but the cuts of the epoch; see `windows`.

    The corpus holds the text in rows of `context` tokens, of which a window touches two at most.
    """

    corpus: Corpus
    cuts: Indices
    context: int

    def __call__(self, numbers: Indices) -> Batch:
        starts, stops = self.cuts[numbers], self.cuts[numbers + 1]
        rows = np.stack((starts, stops), 1) // self.context  # (windows, 2)
        tokens, lengths = self.corpus.columns(rows.flatten())[0]
        firsts = (np.cumsum(lengths) - lengths)[::2] + starts % self.context
        ends = firsts + stops - starts + 1
        return make_batch([tokens[first:end] for first, end in zip(firsts, ends, strict=True)])


def make_batch(runs: Sequence[Any]) -> Batch:
    """Runs of at least two tokens as a batch: all but the last of each are read, all but the first predicted."""
    inputs = np.concatenate([run[:-1] for run in runs]).astype(np.int64)
    outputs = np.concatenate([run[1:] for run in runs]).astype(np.int64)
    return Batch(torch.from_numpy(inputs), torch.from_numpy(outputs), Segments.of([len(run) - 1 for run in runs]))


def windows(total: int, context: int, first: int) -> Indices:
    """Where to cut a run of tokens: window i reads from cuts[i] on and predicts up to cuts[i + 1].

    The first window predicts `first` tokens, the others `context`, the last what is left: all but token 0, once each.
    """
    return np.concatenate(([0], np.arange(first, total - 1, context), [total - 1]))


def with_ends(tokenizer: Tokenizer, lines: Sequence[str]) -> list[int]:
    """The tokens of some lines, an end before each."""
    return [token for ids in tokenizer.encode(lines) for token in (END, *ids)]


def lines_of(ids: Iterable[int]) -> list[list[int]]:
    """Tokens as lines, the ends between them left out."""
    lines: list[list[int]] = [[]]
    for token in ids:
        if token == END:
            lines.append([])
        else:
            lines[-1].append(token)
    return lines


class LanguageModel:
    """Goes on from prompts and measures texts, with one model and its tokenizer."""

    def __init__(self, model: GPT, tokenizer: Tokenizer, decoding: WritingConfig) -> None:
        self.model, self.tokenizer, self.decoding = model.eval(), tokenizer, decoding
        self.context = model.config.max_length

    @classmethod
    def load(cls, directory: Path, config: dict[str, Any], device: torch.device, precision: str) -> "LanguageModel":
        """The model in a directory whose `config.json` has been read."""
        source = str(directory / checkpoint.CONFIG)
        model, tokenizer = read_model(GPT, Config, directory, config, device, precision)
        decoding = record(WritingConfig, config.get("decoding"), "decoding", source)
        return cls(model, tokenizer, decoding)

    def predict(self, inputs: Sequence[str], **options: Any) -> list[str]:
        """What comes after each prompt, the prompt itself left out; an empty one begins a line.

        Once the context is full, its last half is the prompt that is continued.

        Args:
            options: fields of `WritingConfig`, such as length=500, temperature=0.8, top_k=10, seed=3.

        Raises:
            TransductError: an option is unknown or has a wrong value.
        """
        check_inputs(inputs)
        decoding = asked_for(self.decoding, options, "predict")
        prompts = [with_ends(self.tokenizer, text.split("\n")) for text in inputs]
        if long := sum(len(prompt) >= self.context for prompt in prompts):
            said = "%d of %d prompts do not fit into %d tokens: continued from their last %d"
            log.warning(said, long, len(prompts), self.context, self.context // 2)
        written = self._write(prompts, decoding)
        return [self._text(prompt, ids) for prompt, ids in zip(prompts, written, strict=True)]

    def evaluate(self, data: Sequence[str], against: "LanguageModel | None" = None, **options: Any) -> Report:
        """The scores of a text, given as its lines, and a sample of how the model goes on from its start.

        Args:
            against: another model, whose scores the details then hold.
            options: as for `predict`, of the sample.

        Raises:
            WrongData: there is no line.
            TransductError: an option is unknown or has a wrong value.
        """
        if not data:
            raise WrongData("there is no line to measure; give some text")
        length = min(self.decoding.length, SHOWN)
        decoding = asked_for(self.decoding, {"length": length, **options}, "evaluate")
        run = with_ends(self.tokenizer, [*data, ""])
        prompt, reference = run[: self.context // 2], run[self.context // 2 :][: decoding.length]
        [written] = self._write([prompt], decoding)
        shown = (self._text([], prompt[1:]), self._text(prompt, written), self._text(prompt, reference))
        unknown = run.count(Tokenizer.UNKNOWN)
        details: dict[str, Any] = {"tokens": len(run) - 1, "unknown": unknown, "context": self.context}
        details["samples"] = [shown]
        if against is not None:
            details["against"] = against.measure(data, decoding)
        scores = self.measure(data, decoding)
        return Report(scores, details, [shown[1]], frozenset(scores))

    @torch.inference_mode()
    def measure(self, lines: Sequence[str], decoding: WritingConfig | None = None) -> dict[str, float]:
        """Negative log-likelihood of a text, cut into consecutive windows, a token and a character.

        Of `decoding`, the model's own if not given, the tokens that are read together count.

        Characters are those of the text as it is given, line feeds included, whatever the tokenizer makes of them; one
        that it does not know is predicted as the unknown token.
        """
        run = with_ends(self.tokenizer, [*lines, ""])
        cuts = windows(len(run), self.context, self.context)
        total, device = 0.0, next(self.model.parameters()).device
        for numbers in engine.in_batches(np.diff(cuts).tolist(), (decoding or self.decoding).budget(device)):
            batch = make_batch([run[cuts[i] : cuts[i + 1] + 1] for i in numbers]).to(device)
            hidden = self.model.hidden(batch.inputs, batch.segments)
            total += float(projected_cross_entropy(hidden, numbers_of(self.model.output_table), batch.outputs)[1])
        nats, characters = total / (len(run) - 1), sum(len(line) + 1 for line in lines)
        perplexity = math.exp(min(nats, 100.0))
        return {"nats_per_token": nats, "nats_per_character": total / characters, "perplexity": perplexity}

    def _write(self, prompts: Sequence[list[int]], decoding: WritingConfig) -> list[list[int]]:
        """The tokens that follow each prompt, as many as are asked for."""
        runs, budget = [list(prompt) for prompt in prompts], decoding.budget(next(self.model.parameters()).device)
        goals = [len(prompt) + decoding.length for prompt in prompts]
        while unfinished := [i for i, goal in enumerate(goals) if len(runs[i]) < goal]:
            for batch in engine.in_batches([self.context] * len(unfinished), budget):
                numbers = [unfinished[i] for i in batch]
                seen = [runs[i] if len(runs[i]) < self.context else runs[i][-(self.context // 2) :] for i in numbers]
                room = [min(goals[i] - len(runs[i]), self.context - len(p)) for i, p in zip(numbers, seen, strict=True)]
                for i, ids in zip(numbers, self._go_on(seen, room, decoding), strict=True):
                    runs[i] += ids
        return [run[len(prompt) :] for run, prompt in zip(runs, prompts, strict=True)]

    def _go_on(self, prompts: list[list[int]], counts: list[int], decoding: WritingConfig) -> list[list[int]]:
        """So many tokens after each prompt, as fit into the context with it.

        The begin token, which no text holds, ends what is written: the end token is a line feed here.
        """
        limits, device = [count + 1 for count in counts], next(self.model.parameters()).device
        begin, unknown = Tokenizer.BEGIN, Tokenizer.UNKNOWN

        def constrain(numbers: Sequence[int]) -> FixedLength:
            return FixedLength(begin, [limits[i] for i in numbers for _ in range(decoding.beam)], device)

        known, last = [prompt[:-1] for prompt in prompts], [prompt[-1] for prompt in prompts]
        found = engine.generate(self.model, known, limits, decoding, last, begin, [unknown], constrain)
        return [hypotheses[0].tokens for hypotheses in found]

    def _text(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of some tokens; what stands before them on their first line says whether a word begins there."""
        start, lines = lines_of(before)[-1], lines_of(ids)
        known, first, *rest = self.tokenizer.decode([start, [*start, *lines[0]], *lines[1:]])
        return "\n".join([first[len(known) :], *rest])


class LanguageModelingTask:
    """The task of language modelling, for one recipe in one run directory; see `base.Task`."""

    def __init__(self, recipe: Recipe, directory: Path, notify: Notify) -> None:
        self.directory, self.notify = directory, notify
        self.data = record(TextConfig, recipe.data, "data")
        self.tokenizer_config = tokenizer_section(recipe.tokenizer, dropout="a text is encoded once")
        self.training = training_section(
            TrainingConfig, recipe.training, ("nats_per_token", "nats_per_character", "perplexity")
        )
        self.decoding = record(WritingConfig, recipe.decoding, "decoding")
        self.model = ModelSection(recipe.model, FAMILIES, DERIVED)
        model = self.model.resolved(self._config(ANY_SIZE))
        self.recipe = filled(
            recipe, self.data, model, tokenizer=self.tokenizer_config, training=self.training, decoding=self.decoding
        )
        self.tokenizer: Tokenizer
        self.corpus: Corpus
        self._validation: list[str] | None = None

    def prepare(self) -> None:
        """Read what is short, train the tokenizer if the run has none yet, and prepare the corpus.

        Raises:
            TransductError: a file is missing, damaged or not UTF-8, or the text is shorter than one window.
        """
        data = self.data
        if data.valid is not None:
            self._validation = list(texts_of([data.valid], Path(data.root)))
        path, start = self.directory / TOKENIZER, self.model.start
        self.tokenizer = run_tokenizer(path, start, self._trained_tokenizer, self.notify)
        inputs = inputs_of(data, {"the tokenizer": self.tokenizer})

        def fill(folder: Path) -> dict[str, Any]:
            return write_rows(folder, 1, [(1.0, in_rows(self._tokens(), data.context))])

        self.corpus = build(self.directory / "corpus", inputs, fill, self.notify)
        if self.total <= data.context:
            raise TransductError(
                f"{', '.join(names_of(data.train))}: {self.total - 1} tokens of text, expected at least a window of "
                f"{data.context}; give more text, or set data.context lower"
            )

    @property
    def total(self) -> int:
        """Tokens of the corpus, the end before the text among them."""
        return int(self.corpus.lengths.sum())

    def _trained_tokenizer(self) -> Tokenizer:
        return train_tokenizer(self._lines(), self.tokenizer_config)

    def _tokens(self) -> Iterator[Indices]:
        """The text in parts, an end before it."""
        for chunk in in_chunks(self._lines(), len):
            yield np.array(with_ends(self.tokenizer, chunk), np.int32)
        yield np.array([END], np.int32)

    def _lines(self) -> Iterator[str]:
        return texts_of(self.data.train, Path(self.data.root))

    def build_model(self) -> GPT:
        """The model of the recipe for the tokenizer's vocabulary, begun from another's weights if it says so."""
        model: GPT = self.model.build(self._config(self.tokenizer.size), self.notify)
        return model

    def _config(self, vocabulary_size: int) -> Any:
        return self.model.config(vocabulary_size=vocabulary_size, max_length=self.data.context)

    def batches(self, split: str, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """This rank's batches of an epoch, from number `start` on. Where windows begin is drawn anew each epoch."""
        only_train(split, "language modelling has")
        config, context = self.training, self.data.context
        cuts = windows(self.total, context, Random(f"{config.seed}/{epoch}").randint(1, context))
        order = plan(np.diff(cuts), config.seed, epoch, config.batch_tokens)
        return load_batches(order, MakeBatch(self.corpus, cuts, context), start, rank, world, self.data.workers)

    def loss(self, model: GPT, batch: Batch) -> Terms:
        """Cross-entropy, summed over tokens."""
        hidden = model.hidden(batch.inputs, batch.segments)
        smoothing = self.training.label_smoothing
        loss, _ = projected_cross_entropy(hidden, model.output_table, batch.outputs, smoothing)
        return {"tokens": (loss, batch.counts["tokens"], 1.0)}

    def evaluate(self, model: GPT, data: Sequence[str] | None = None) -> Report:
        """The scores of a text, given as its lines, or of the validation text; and a sample."""
        lines = self._validation if data is None else data
        return Report({}) if lines is None else self._in_use(model).evaluate(lines)

    def predict(self, model: GPT, inputs: Sequence[str]) -> list[str]:
        """What comes after each prompt."""
        return self._in_use(model).predict(inputs)

    def _in_use(self, model: GPT) -> LanguageModel:
        return LanguageModel(model, self.tokenizer, self.decoding)

    def save(self, model: GPT, directory: Path, log: Mapping[str, Any]) -> None:
        """Write the model directory, with the scores of the final weights on its card."""
        made_of = f"{self.total - 1:,} tokens {files_said(names_of(self.data.train), {})}"
        how = f", in consecutive windows of {self.data.context} tokens"
        about = card("Language model", made_of, self.training, self.evaluate(model).scores, log, how)
        settings = {"decoding": asdict(self.decoding)}
        write_model(directory, "language_modeling", model, settings, [self.directory / TOKENIZER], about)


def in_rows(parts: Iterable[Indices], size: int) -> Iterator[list[Ragged]]:
    """A run of tokens that comes in parts, in rows of `size`; the last holds what is left."""
    rest = np.zeros(0, np.int32)
    for part in parts:
        rest = np.concatenate((rest, part))
        count = len(rest) // size
        if count:
            yield [(rest[: count * size], np.full(count, size))]
            rest = rest[count * size :]
    if len(rest):
        yield [(rest, np.array([len(rest)]))]


create, load = LanguageModelingTask, LanguageModel.load  # which `base.py` and `runs.py` call by name


def test_set(files_given: Mapping[str, str], recipe: Recipe | None) -> list[str]:
    """The lines of a text: of the file given as `source`, or of the recipe's test set."""
    if files_given.keys() == {"source"}:
        return list(texts_of([TextSource(text=files_given["source"])], Path()))
    if files_given:
        raise TransductError("a language model is measured on one text; give --source and no --reference")
    data = data_with_test(TextConfig, recipe, "--source")
    return list(texts_of([data.test], Path(data.root)))
