"""Masked language modelling: plain text to an encoder that knows its language, for other tasks to start from.

Some tokens of each line are hidden and predicted from those on both sides of them; if wished, the model also says
whether one line follows another (Devlin et al. 2019, section 3.1).
Let N be the tokens of a batch, B its sequences, K its masked tokens, V the tokenizer's vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transduct.config import Recipe, record
from transduct.data.batching import Indices, plan, random_of
from transduct.data.batching import load as load_batches
from transduct.data.corpus import Corpus, lists_of
from transduct.data.dropout import growth
from transduct.data.files import names_of
from transduct.data.masking import (
    Masking,
    PlainTextConfig,
    check_enough,
    encoded_lines,
    prepare_plain_text,
    second_lines,
)
from transduct.data.pieces import BLANK
from transduct.data.sources import TextSource
from transduct.data.text import texts_of
from transduct.data.tokenizer import Tokenizer, train_tokenizer
from transduct.decoding.engine import in_batches
from transduct.errors import TransductError
from transduct.evaluation.classification import mcnemar, wilson_interval
from transduct.functional.segments import Segments
from transduct.models.bert import SIZES, Bert, Config
from transduct.tasks.base import Notify, Report, naming_files
from transduct.tasks.model import (
    Movable,
    card,
    files_said,
    only_train,
    require_finite,
    three_of,
    write_model,
)
from transduct.tasks.sections import (
    ANY_SIZE,
    Family,
    ModelSection,
    NoOptions,
    check_inputs,
    data_with_test,
    filled,
    tokenizer_section,
    training_section,
)
from transduct.tasks.text import TOKENIZER, encoder_input, read_model, run_tokenizer
from transduct.training.config import TrainingConfig
from transduct.training.step import Terms

MASK = "[MASK]"
MEASURING_SEED = 0  # of the masks that a text is measured with, whatever seed a model was trained with
BATCH_TOKENS = 8192  # read together outside training
SUBSTITUTE = "\x1a"  # the control character that stands where another cannot: no text holds it
SCORES = {"tokens": "masked_accuracy", "pairs": "accuracy"}  # of the terms of the loss
FAMILIES = {"bert": Family(Config, SIZES, Bert)}
DERIVED = {  # of the model, and what says it
    "vocabulary_size": "tokenizer.size",
    "max_length": "data.max_length",
    "head": "data.next_sentence",
    "labels": "data.next_sentence",
}


@dataclass(frozen=True)
class Batch(Movable):
    """Sequences with masks in them.

    Attributes:
        ids, types: (N,) tokens, and 0 up to the first end, 1 from there on.
        places: (K,) which of the N tokens are to be predicted.
        targets: (K,) what stood there.
        apart: (B,) 1 where the second line does not follow the first; None for single lines.
    """

    ids: Tensor
    types: Tensor
    segments: Segments
    places: Tensor
    targets: Tensor
    apart: Tensor | None

    @property
    def tokens(self) -> int:
        """Tokens that are read."""
        return self.segments.total

    @property
    def counts(self) -> dict[str, float]:
        """The loss is an average over masked tokens and, if there are any, one over pairs of lines."""
        pairs = {} if self.apart is None else {"pairs": float(len(self.apart))}
        return {"tokens": float(len(self.places)), **pairs}


@dataclass(frozen=True)
class MakeBatch:
    """Example numbers to a batch, by nothing but (seed, epoch, example), in this process or in a loader's worker."""

    corpus: Corpus
    tokenizer: Tokenizer
    masking: Masking
    max_length: int
    dropout: float
    shown: Indices | None  # see `second_lines`

    def __call__(self, numbers: Indices) -> Batch:
        first, masking = self._lines(0, numbers, numbers), self.masking
        if self.shown is None:
            return make_batch(numbers.tolist(), first, None, None, masking, self.max_length)
        rows = self.shown[numbers]
        second = self._lines(1, numbers, rows)
        return make_batch(numbers.tolist(), first, second, rows != numbers, masking, self.max_length)

    def _lines(self, side: int, numbers: Indices, rows: Indices) -> list[Any]:
        """What the examples of these numbers show of one side of these rows."""
        lines = lists_of(self.corpus.columns(rows)[side])
        if not self.dropout:
            return lines
        randoms = (random_of(self.masking.seed, self.masking.epoch, number, side) for number in numbers.tolist())
        return [self.tokenizer.resegment(line.tolist(), self.dropout, r) for line, r in zip(lines, randoms)]


def make_batch(
    numbers: Sequence[int],
    first: Sequence[Any],
    second: Sequence[Any] | None,
    apart: Any,
    masking: Masking,
    max_length: int,
) -> Batch:
    """Lists of ids, without special tokens, as the batch of the examples of these numbers."""
    tokens, types, segments, _ = encoder_input(first, second, max_length)
    ids, places = masking.hide(tokens.tolist(), segments.offsets.tolist(), numbers)
    following = None if second is None else torch.tensor(apart, dtype=torch.int64)
    return Batch(torch.tensor(ids), types, segments, torch.tensor(places), tokens[places], following)


def answers(model: Bert, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
    """Logits and what is right: of "tokens" (K, V + 1) and (K,), of "pairs", if there are any, (B, 2) and (B,)."""
    x = model.encode(batch.ids, batch.types, batch.segments)
    found = {"tokens": (model.masked_logits(x.index_select(0, batch.places)).float(), batch.targets)}
    if batch.apart is not None:
        found["pairs"] = (model.follows(x, batch.segments).float(), batch.apart)
    return found


class MaskedLanguageModel:
    """Fills in masked tokens and measures texts, with one model and its tokenizer."""

    def __init__(self, model: Bert, tokenizer: Tokenizer, share: float) -> None:
        self.model, self.tokenizer, self.share = model.eval(), tokenizer, share
        self.max_length = model.config.max_length

    @classmethod
    def load(
        cls, directory: Path, config: dict[str, Any], device: torch.device, precision: str
    ) -> "MaskedLanguageModel":
        """The model in a directory whose `config.json` has been read."""
        model, tokenizer = read_model(Bert, Config, directory, config, device, precision)
        return cls(model, tokenizer, config.get("mask", PlainTextConfig.mask))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.bias.device

    @torch.inference_mode()
    def predict(self, inputs: Sequence[str], **options: Any) -> list[str]:
        """Each text with every "[MASK]" in it replaced by the likeliest token, as the tokenizer writes it.

        Each mask is filled in as if the others stayed. A text without any comes back unchanged.

        Raises:
            TransductError: a text with a mask is longer than the model, or an option is given: there are none.
            NotFinite: the model answers with NaN.
        """
        record(NoOptions, options, "decoding", "predict")
        check_inputs(inputs)
        outputs, longest = list(inputs), self.max_length - 2
        asked = [number for number, text in enumerate(inputs) if MASK in text]
        for number in asked:
            if (count := inputs[number].count(MASK)) > longest:  # each of which is looked for in the text before it
                raise TransductError(f"text {number + 1}: {count} masks, the model takes {longest} tokens; shorten it")
        rows = [self._masked(inputs[number]) for number in asked]
        for number, (ids, _) in zip(asked, rows):
            if len(ids) > longest:
                raise TransductError(f"text {number + 1}: {len(ids)} tokens, the model takes {longest}; shorten it")
        for batch in in_batches([len(ids) + 2 for ids, _ in rows], BATCH_TOKENS):
            tokens, types, segments, _ = encoder_input([rows[i][0] for i in batch], None, self.max_length)
            places = torch.tensor(
                [start + 1 + place for start, i in zip(segments.offsets.tolist(), batch) for place in rows[i][1]]
            )
            x = self.model.encode(tokens.to(self.device), types.to(self.device), segments.to(self.device))
            logits = self.model.masked_logits(x.index_select(0, places.to(self.device)))
            require_finite(logits)
            first = Tokenizer.END + 1
            tokens[places] = first + logits[:, first : self.tokenizer.size].argmax(-1).cpu()
            filled = [row[1:-1].tolist() for row in torch.split(tokens, segments.lengths.tolist())]
            for i, text in zip(batch, self.tokenizer.decode(filled), strict=True):
                outputs[asked[i]] = text
        return outputs

    def evaluate(self, data: Sequence[str], against: Any = None, **options: Any) -> Report:
        """Scores of the lines of a text; its masks, and the lines that do not follow, are always the same.

        Args:
            against: another such model, whose scores and the p-values of McNemar's test the details then hold.
            options: there are none.

        Raises:
            TransductError: the text is too short, an option is given, or the other model is asked for other tokens.
        """
        record(NoOptions, options, "decoding", "evaluate")
        scores, right = self._measure(data)
        details: dict[str, Any] = {name: {"interval": wilson_interval(sum(r), len(r))} for name, r in right.items()}
        details |= {"masked": len(right["masked_accuracy"]), **self._left_out(data), "samples": self._samples(data)}
        if against is not None:
            if getattr(against, "_asked_for", None) != self._asked_for:
                raise TransductError("the other model would be asked for other tokens; compare models of one recipe")
            details["against"], other = against._measure(data)
            details["p_values"] = {name: mcnemar(ours, other[name]) for name, ours in right.items()}
        return Report(scores, details, lower_is_better=frozenset({"nats_per_token"}))

    def _left_out(self, lines: Sequence[str]) -> dict[str, int]:
        """How many lines are passed over, for they are blank, and of how many the end is, for they are too long."""
        lengths = [len(ids) for ids in encoded_lines(lines, self.tokenizer)]
        room = self.max_length - (3 if self.model.config.head == "pretraining" else 2)
        return {"empty": len(lines) - len(lengths), "cut": sum(length > room for length in lengths)}

    @property
    def _asked_for(self) -> tuple[Any, ...]:
        """What decides which tokens of a text are asked for."""
        return self.tokenizer.digest, self.max_length, self.share, self.model.config.head

    def _masked(self, text: str) -> tuple[list[int], list[int]]:
        """The ids of a text with masks in it, and the places of the masks.

        Each mask is encoded as a character that the tokenizer does not know, which merges with none of its neighbours.
        The blank before it becomes part of it, as of the token it stands for. Some tokenizers make one unknown of
        several side by side.

        Raises:
            TransductError: they did.
        """
        *befores, whole = accumulate(part + SUBSTITUTE for part in text.split(MASK))
        *befores_ids, ids = self.tokenizer.encode([*befores, whole.removesuffix(SUBSTITUTE)])
        hidden = {len(before) - 1 for before in befores_ids}
        joined = self.tokenizer.kind in ("bpe", "unigram")
        found: list[int] = []
        places = []
        for place, token in enumerate(ids):
            if place in hidden:
                if joined and self.tokenizer.pieces(found[-1:]) == [BLANK]:
                    found.pop()
                places.append(len(found))
            found.append(self.tokenizer.size if place in hidden else token)
        if len(places) < text.count(MASK):
            raise TransductError(f"this model sees masks side by side as one; put blanks between them: {text:.60}")
        return found, places

    def _samples(self, lines: Sequence[str]) -> list[tuple[str, str, str]]:
        """A few lines with a word hidden, filled in, and as they are."""
        most = self.max_length - 3  # bytes: a text has no more tokens than these
        short = [line for line in lines if len(line.split()) > 1 and len(line.encode()) <= most and MASK not in line]
        shown = [short[i] for i in three_of(len(short))]
        words = [line.split() for line in shown]
        hidden = [" ".join([*w[: len(w) // 2], MASK, *w[len(w) // 2 + 1 :]]) for w in words]
        return list(zip(hidden, self.predict(hidden), shown))

    @torch.inference_mode()
    def _measure(self, lines: Sequence[str]) -> tuple[dict[str, float], dict[str, list[bool]]]:
        """The scores of a text, and by their names what was right."""
        ids, in_pairs = encoded_lines(lines, self.tokenizer), self.model.config.head == "pretraining"
        count = len(ids) - in_pairs
        check_enough(count, in_pairs)
        shown = second_lines(count, MEASURING_SEED, 0) if in_pairs else np.arange(count)
        second = [ids[i + in_pairs] for i in shown] if in_pairs else [[]] * count
        masking = Masking(self.share, self.tokenizer.size, MEASURING_SEED, 0)
        nats, right = 0.0, dict[str, list[bool]]()
        for numbers in in_batches([len(a) + len(b) for a, b in zip(ids, second)], BATCH_TOKENS):
            first, others = ([side[i] for i in numbers] for side in (ids, second))
            apart = shown[numbers] != numbers
            batch = make_batch(numbers, first, others if in_pairs else None, apart, masking, self.max_length)
            for term, (logits, expected) in answers(self.model, batch.to(self.device)).items():
                require_finite(logits)
                right.setdefault(SCORES[term], []).extend((logits.argmax(-1) == expected).tolist())
                if term == "tokens":
                    nats += float(F.cross_entropy(logits, expected, reduction="sum"))
        scores = {name: 100.0 * sum(found) / len(found) for name, found in right.items()}
        return {"nats_per_token": nats / len(right["masked_accuracy"]), **scores}, right


class MaskedLanguageModelingTask:
    """The task of masked language modelling, for one recipe in one run directory; see `base.Task`."""

    def __init__(self, recipe: Recipe, directory: Path, notify: Notify) -> None:
        self.directory, self.notify = directory, notify
        self.data = record(PlainTextConfig, recipe.data, "data")
        self.tokenizer_config = tokenizer_section(recipe.tokenizer)
        scores = [SCORES[term] for term in (("tokens", "pairs") if self.data.next_sentence else ("tokens",))]
        self.training = training_section(TrainingConfig, recipe.training, ["nats_per_token", *scores])
        record(NoOptions, recipe.decoding, "decoding")  # masked tokens are not searched for
        self.model = ModelSection(recipe.model, FAMILIES, DERIVED)
        model = self.model.resolved(self._config(ANY_SIZE))
        self.recipe = filled(recipe, self.data, model, tokenizer=self.tokenizer_config, training=self.training)
        self.tokenizer: Tokenizer
        self.corpus: Corpus
        self._validation: list[str] | None = None

    def prepare(self) -> None:
        """Read what is short, train the tokenizer if the run has none yet, and prepare the corpus.

        Raises:
            TransductError: a file is missing, damaged or not UTF-8, or there is too little text.
        """
        data = self.data
        if data.valid is not None:
            self._validation = list(texts_of([data.valid], Path(data.root)))
        path, start = self.directory / TOKENIZER, self.model.start
        dropout = self.tokenizer_config.dropout
        self.tokenizer = run_tokenizer(path, start, self._trained_tokenizer, self.notify, dropout)
        if self._validation is not None:
            lines = encoded_lines(self._validation, self.tokenizer)
            with naming_files(names_of([data.valid])):
                check_enough(len(lines) - data.next_sentence, data.next_sentence)
        self.corpus = prepare_plain_text(data, self.tokenizer, self.directory / "corpus", self.notify)

    def build_model(self) -> Bert:
        """The model of the recipe for the tokenizer's vocabulary, begun from another's weights if it says so."""
        model: Bert = self.model.build(self._config(self.tokenizer.size), self.notify)
        return model

    def _config(self, vocabulary_size: int) -> Any:
        head = "pretraining" if self.data.next_sentence else "masked"
        derived = {"vocabulary_size": vocabulary_size, "max_length": self.data.max_length, "head": head}
        return self.model.config(**derived, labels=0)

    def batches(self, split: str, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """This rank's batches of an epoch of the training text, from number `start` on."""
        only_train(split, "masked language modeling has")
        config, data, lengths = self.training, self.data, self.corpus.lengths
        totals, shown = lengths[:, 0] + 2, None
        if data.next_sentence:
            shown = second_lines(len(lengths), config.seed, epoch)
            totals = totals + lengths[shown, 1] + 1
        totals = np.minimum(totals, data.max_length)
        order = plan(totals, config.seed, epoch, config.batch_tokens, self.corpus.weights, growth=[self.growth])
        masking = Masking(data.mask, self.tokenizer.size, config.seed, epoch)
        dropout = self.tokenizer_config.dropout
        make = MakeBatch(self.corpus, self.tokenizer, masking, data.max_length, dropout, shown)
        return load_batches(order, make, start, rank, world, data.workers)

    @cached_property
    def growth(self) -> float:
        """How many times as long BPE dropout makes the lines of the corpus."""
        sides = [0, 1] if self.data.next_sentence else [0]
        return growth(self.corpus, sides, 1 + len(sides), self.tokenizer, self.tokenizer_config.dropout)

    def loss(self, model: Bert, batch: Batch) -> Terms:
        """Label-smoothed cross-entropy, summed over masked tokens and, if there are any, over pairs of lines."""
        smoothing = self.training.label_smoothing
        return {
            term: (F.cross_entropy(*pair, reduction="sum", label_smoothing=smoothing), batch.counts[term], 1.0)
            for term, pair in answers(model, batch).items()
        }

    def evaluate(self, model: Bert, data: Sequence[str] | None = None) -> Report:
        """Scores on the lines of `data` or of the validation text, and a few samples."""
        data = self._validation if data is None else data
        return Report({}) if data is None else MaskedLanguageModel(model, self.tokenizer, self.data.mask).evaluate(data)

    def predict(self, model: Bert, inputs: Sequence[str]) -> list[str]:
        """Each text with its masks filled in."""
        return MaskedLanguageModel(model, self.tokenizer, self.data.mask).predict(inputs)

    def save(self, model: Bert, directory: Path, log: Mapping[str, Any]) -> None:
        """Write the model directory, with the scores of the final weights on its card."""
        scores = self.evaluate(model).scores
        made_of = f"{len(self.corpus):,} {self.data.unit} {files_said(names_of(self.data.train), self.corpus.dropped)}"
        about = card("Masked language model", made_of, self.training, scores, log)
        tokenizers = [self.directory / TOKENIZER]
        write_model(directory, "masked_language_modeling", model, {"mask": self.data.mask}, tokenizers, about)

    def _trained_tokenizer(self) -> Tokenizer:
        return train_tokenizer(texts_of(self.data.train, Path(self.data.root)), self.tokenizer_config)


create, load = MaskedLanguageModelingTask, MaskedLanguageModel.load  # which `base.py` and `runs.py` call by name


def test_set(files_given: Mapping[str, str], recipe: Recipe | None) -> list[str]:
    """The lines to measure: of the file given, or of the test set of the recipe."""
    if files_given.keys() == {"source"}:
        return list(texts_of([TextSource(text=files_given["source"])], Path()))
    if files_given:
        raise TransductError("plain text has no reference; give --source alone")
    data = data_with_test(PlainTextConfig, recipe, "--source")
    return list(texts_of([data.test], Path(data.root)))
