"""Translation: trains an encoder-decoder on pairs of texts.

Let N and M be the source and target tokens of a batch.
"""

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from transduct.blocks.embeddings import output_of
from transduct.config import Recipe, absolute_path
from transduct.data.batching import Indices, random_of
from transduct.data.corpus import Corpus, Ragged, growth, lists_of, opened_for
from transduct.data.files import Refused
from transduct.data.prepared import folder_of_corpus
from transduct.data.preparing import (
    CORPUS,
    JOB,
    held_out_of,
    inputs_for,
    prepare,
)
from transduct.data.replacements import changes_of, of_references
from transduct.data.sources import DataConfig
from transduct.data.splits import Engine, in_this_process
from transduct.data.text import read_examples, read_pairs
from transduct.data.tokenizer import (
    NO_SPECIAL_TOKENS,
    SIDE_TOKENIZERS,
    TOKENIZER,
    SpecialTokens,
    Tokenizer,
    TokenizerConfig,
    tokenizer_files,
    train_tokenizers,
)
from transduct.errors import require
from transduct.evaluation.text import ERROR_METRICS, check_metrics, corpus_scores, meaningful
from transduct.functional.losses import projected_cross_entropy
from transduct.inference.batches import device_of, in_batches, shared
from transduct.inference.engine import captures
from transduct.inference.settings import EXPANSION, WIDEST, DecodingConfig
from transduct.predictors.base import Notify, Report, configuration, model_directory
from transduct.predictors.ensembles import check_alike, combine, take_vocabularies
from transduct.predictors.languages import Languages, special_tokens_of
from transduct.predictors.likelihood import DualCrossEntropy
from transduct.predictors.model_directory import three_of
from transduct.predictors.translation import DERIVED, FAMILIES, Translator
from transduct.records import record, refusal
from transduct.segments import Axis, FlatBatch, Segments, Shape
from transduct.storage import CONFIG, read_object
from transduct.tasks.base import Epoch, Task
from transduct.tasks.model import searched
from transduct.tasks.sections import ANY_SIZE, Sections
from transduct.tasks.text import SPARE, TextTraining, capacity_of, run_tokenizer
from transduct.training.distributed import Terms

ONE_VOCABULARY = (
    "{key} is 'all', which needs one shared vocabulary; set tokenizer.shared=true or "
    "model.tie=decoder"
)
MEASURED = 100_000  # pairs whose lengths are looked at to find `DecodingConfig.expansion`
VALIDATION_METRICS = ("bleu", "chrf", "exact_match")  # may choose the best step in any case


@dataclass(frozen=True)
class Batch(FlatBatch):
    """Pairs of source and target texts.

    Attributes:
        source: (N,) source tokens, with end tokens.
        inputs, outputs: (M,) target tokens with begin tokens before them, and with end tokens after
            them.
        counted: (M,) 1.0 for a target token and 0.0 for filler; None without filler.
    """

    unit, terms = "targets", {"tokens": "targets"}
    source: Annotated[Tensor, Axis("sources", Tokenizer.END)]
    source_segments: Annotated[Segments, Axis("sources")]
    inputs: Annotated[Tensor, Axis("targets", Tokenizer.END)]
    outputs: Annotated[Tensor, Axis("targets", Tokenizer.END)]
    target_segments: Annotated[Segments, Axis("targets")]
    counted: Annotated[Tensor | None, Axis("targets", marks=True)] = None


def make_batch(
    sources: Sequence[Any],
    targets: Sequence[Any],
    shape: Shape | None = None,
    special: SpecialTokens = NO_SPECIAL_TOKENS,
) -> Batch:
    """Make a batch of lists of ids without special tokens; with a shape, both sides are filled up
    to it.

    Args:
        special: what stands around each source, and with what each target begins.

    Raises:
        ValueError: they do not fit into the shape.
    """
    end = (Tokenizer.END,)
    batch = Batch.of(
        source=_between(special.before, sources, end + special.after),
        inputs=_between((Tokenizer.BEGIN, *special.begin), targets, ()),
        outputs=_between(special.begin, targets, end),
    )
    return batch if shape is None else batch.filled(sources=shape, targets=shape)


def _between(before: Sequence[int], rows: Sequence[Any], after: Sequence[int]) -> list[np.ndarray]:
    first, last = np.array(before, np.int64), np.array(after, np.int64)
    return [np.concatenate((first, row, last)) for row in rows]


@dataclass(frozen=True)
class MakeBatch:
    """Makes a batch of the examples with given numbers: a pure function of (seed, epoch, example).

    Attributes:
        shape: the one to fill each batch up to, if any.
        capacity: without one, the tokens of one of a few shapes to fill it up to; 0 for none.
    """

    corpus: Corpus
    tokenizers: tuple[Tokenizer, Tokenizer]
    max_length: int
    dropout: float
    seed: int
    epoch: int
    shape: Shape | None = None
    backwards: bool = False
    special: SpecialTokens = NO_SPECIAL_TOKENS
    capacity: int = 0

    def __call__(self, numbers: Indices) -> Batch:
        columns = self.corpus.columns(numbers)
        source, target = (self._side(side, numbers, each) for side, each in enumerate(columns))
        shape = self._near(source, target) if self.capacity else self.shape
        written = [row[::-1] for row in target] if self.backwards else target
        return make_batch(source, written, shape, self.special)

    def _near(self, *sides: list[Any]) -> Shape | None:
        """The shape near both sides; None if their lengths are uncommon."""
        shapes = [
            Shape.near([len(row) + 1 for row in rows], self.capacity, self.max_length)
            for rows in sides
        ]
        near = [shape for shape in shapes if shape is not None]
        if len(near) < len(shapes):
            return None
        sequences = max(shape.sequences for shape in near)
        longest = max(shape.longest for shape in near)
        return Shape(near[0].tokens, sequences, longest, longest)

    def _side(self, side: int, numbers: Indices, column: Ragged) -> list[Any]:
        """One side of the examples, with BPE dropout: a row that it makes too long stays whole."""
        rows: list[Any] = lists_of(column)
        if not self.dropout:
            return rows
        free = math.inf
        if self.shape is not None:
            free = self.shape.tokens - len(column[0]) - len(rows)
        for place, number in enumerate(numbers.tolist()):
            generator, row = random_of(self.seed, self.epoch, number, side), rows[place].tolist()
            pieces = self.tokenizers[side].resegment(row, self.dropout, generator)
            longer = len(pieces) - len(row)
            if len(pieces) < self.max_length and longer <= free:
                rows[place], free = pieces, free - longer
        return rows


class TranslationTask(Task):
    """Trains an encoder-decoder.

    Attributes:
        engine, parts: how the corpus is prepared, as for `data.preparing.prepare`.
    """

    name, title, unit = "translation", "Translation model", "pairs"
    sections = Sections(DataConfig, DecodingConfig, TokenizerConfig, TextTraining)
    families = FAMILIES
    derived = DERIVED
    training: TextTraining
    ensembles = prepares = True
    engine: Engine = staticmethod(in_this_process)
    parts: Path | None = None
    check_alike = staticmethod(check_alike)
    take_vocabularies = staticmethod(take_vocabularies)
    combine = staticmethod(combine)
    vocabularies = ANY_SIZE, ANY_SIZE
    tokenizers: tuple[Tokenizer, Tokenizer]
    special = SpecialTokens()

    def model_section(self, recipe: Recipe) -> Mapping[str, Any]:
        """The section, with a default: without a shared vocabulary only the target's tables can be
        one."""
        tied = {} if self.tokenizer_config.shared else {"tie": "decoder"}
        # The two tokenizers of a model to start from may be alike, so `prepare` checks them.
        brought = recipe.model.get("start_from") or (self.directory / SIDE_TOKENIZERS[1]).exists()
        require(
            not tied or recipe.model.get("tie") != "all" or brought,
            ONE_VOCABULARY,
            key="model.tie",
        )
        return {**tied, **recipe.model}

    def check(self) -> None:
        try:
            captures(self.model.model, self.decoding)
        except ValueError as error:
            raise refusal(error, vars(self.decoding), "decoding", None) from error
        require(
            not self.decoding.shortlist,
            "{key} is true, but a shortlist is made of a trained model, by transduct convert; "
            "set it to false",
            key="decoding.shortlist",
        )
        require(
            not self.data.backwards or self.decoding.constraint == "none",
            "{key} is true, but a tree begins with its root; set decoding.constraint to none",
            key="data.backwards",
        )
        check_metrics(self.data.metrics, self.data.bleu_tokenize)
        best = self.training.best
        self.metrics = [metric for metric in self.data.metrics if metric != "ter"]
        known = ["loss", "perplexity", *VALIDATION_METRICS, *self.metrics]
        self.scores = [*dict.fromkeys(known)]
        if best in VALIDATION_METRICS and best not in self.metrics:
            self.metrics.append(best)
        if self.data.backwards:
            self.title += " that writes from the end on"
        self.languages, self.forbidden = brought_languages(self.model.start)
        self.hypotheses = self.decoding.validation_beam
        if self.data.corpus:
            self.data = replace(self.data, corpus=absolute_path(self.data.corpus))
            self.reads_train = False

    def sizes(self) -> Mapping[str, Any]:
        source, target = self.vocabularies
        return {"source_size": source, "target_size": target, "max_length": self.data.max_length}

    def check_data(self) -> None:
        if not self.reads_train:
            return
        root = Path(self.data.root)
        if self.data.valid is not None:
            read_examples(self.data.valid, root, self.data.replace, Refused(self.data.broken))
        for corpus in self.data.train:
            deque(read_pairs(corpus, root, (), Refused(self.data.broken)), maxlen=0)

    def prepare(self) -> None:
        """Read the validation set, train the tokenizers unless the run has them, and prepare the
        corpus.

        Reading the validation set first finds a mistake in it before hours of work.
        """
        if self.data.valid is not None:
            refused = Refused(self.data.broken)
            self._validation = read_examples(
                self.data.valid, Path(self.data.root), self.data.replace, refused
            )
            refused.report(self.notify, "data.valid: ")
        start = self.model.start
        if start is not None and (start / CONFIG).exists():
            tied = not self.tokenizer_config.shared and self.model.values.get("tie") == "all"
            # A translation model brings both tokenizers, which may be alike; an encoder brings one.
            both = (start / SIDE_TOKENIZERS[1]).exists()
            require(both or not tied, ONE_VOCABULARY, key="model.tie")
        if self.data.corpus:
            folder = folder_of_corpus(self.data.corpus, self.notify)
            check_prepared(folder, self.tokenizer_config, self.model.start)
            self.data = replace(self.data, corpus=str(folder))
        self.tokenizers = prepare_tokenizers(
            self.data, self.tokenizer_config, self.directory, self.model.start, self.notify
        )
        self.special = special_tokens_of(self.languages, self.decoding, self.tokenizers)
        self.vocabularies = self.tokenizers[0].size, self.tokenizers[1].size
        require(
            not self.special.padded,
            f"model.start_from: {self.model.start} fills its sources with padding, which "
            "training here does not; start from another model",
        )
        models = [str(model_directory(path)) for path in self.data.filters.models]
        data = replace(
            self.data,
            max_length=self.data.max_length - self.special.size,
            filters=replace(self.data.filters, models=models),
        )
        folder = self.directory / CORPUS
        if self.data.corpus:
            settings = inputs_for(data, self.tokenizers, content=False)
            self.corpus = opened_for(folder, Path(self.data.corpus) / CORPUS, settings)
        else:
            self.corpus = prepare(
                data,
                *self.tokenizers,
                folder,
                self.notify,
                engine=self.engine,
                parts=self.parts,
                judge=partial(DualCrossEntropy, models, self.training.device) if models else None,
            )
        held_out = held_out_of(self.corpus)
        if held_out is not None:
            self._validation = read_examples(held_out, Path(), self.data.replace)
        if not self.decoding.expansion:
            self.decoding = replace(self.decoding, expansion=_expansion(self.corpus.lengths))

    def rename(self, weights: dict[str, Tensor]) -> None:
        """An encoder to start from becomes the source side."""
        as_source_side(weights)

    def epoch(self, number: int) -> Epoch[Batch]:
        corpus, dropout = self.corpus, self.tokenizer_config.dropout
        # Batches are filled up to one shape for a compiler, to one of a few for a graph, else not.
        make = MakeBatch(
            corpus,
            self.tokenizers,
            self.data.max_length,
            dropout,
            seed=self.training.seed,
            epoch=number,
            shape=self.shape if self.one_shape else None,
            backwards=self.data.backwards,
            special=self.special,
            capacity=0 if self.one_shape else capacity_of(self.training, dropout),
        )
        added = 1 + self.special.size  # the end token, and those around a text
        return Epoch(corpus.lengths, make, corpus.weights, self.growth, added)

    @cached_property
    def growth(self) -> list[float]:
        """The factor by which BPE dropout lengthens each side of the corpus."""
        return [
            growth(self.corpus, [side], 1, tokenizer, self.tokenizer_config.dropout)
            for side, tokenizer in enumerate(self.tokenizers)
        ]

    @property
    def one_shape(self) -> bool:
        """Whether every batch of training must have the same shape."""
        asked = self.training.compile is True or self.training.capture is True
        return asked and self.model.model.compiles

    @cached_property
    def shape(self) -> Shape:
        """The shape that holds every batch of the corpus."""
        budget = self.training.batch_tokens
        most = budget // int(self.corpus.lengths.min(0).max() + 1) + 1
        tokens = int(budget * SPARE) if self.tokenizer_config.dropout else budget
        return Shape.around(tokens, most, self.data.max_length)

    def loss(self, model: Any, batch: Batch) -> Terms:
        """Label-smoothed cross-entropy, summed over target tokens; with R-Drop, the mean of two
        forward passes plus their divergence."""
        config = self.training
        loss, _ = losses_of(model, batch, config.label_smoothing, config.r_drop)
        return {"tokens": (loss, batch.counts["tokens"], 1.0)}

    def evaluate(self, model: Any, data: tuple[list[str], list[list[str]]] | None = None) -> Report:
        """Loss, BLEU and chrF on `data` (sources and references), by default the validation set,
        and a few samples."""
        data = self._validation if data is None else data
        if data is None:
            return Report({})
        sources, references = data
        translator = self.predictor(model)
        translator.decoding = replace(self.decoding, beam=self.decoding.validation_beam)
        outputs = translator.predict(sources)
        scores = {"loss": self._validation_loss(model, sources, [r[0] for r in references])}
        scores["perplexity"] = math.exp(min(scores["loss"], 100.0))
        names = meaningful(self.metrics, self.data.bleu_tokenize, references)
        found = corpus_scores(outputs, references, names, self.data.bleu_tokenize, intervals=False)
        samples = [(sources[i], outputs[i], references[i][0]) for i in three_of(len(sources))]
        return Report(
            scores | found.scores,
            {"samples": samples, **found.details},
            outputs,
            ERROR_METRICS | {"loss", "perplexity"},
        )

    @torch.inference_mode()
    def _validation_loss(self, model: Any, sources: list[str], targets: list[str]) -> float:
        """The negative log-likelihood per target token; texts longer than the model takes are
        truncated."""
        longest, rules = self.data.max_length - 1 - self.special.size, self.data.replace
        # References have been changed already by those rules that apply to them.
        done = of_references(rules)
        change_source = changes_of("source", rules)
        change_target = changes_of("target", [rule for rule in rules if rule not in done])
        read, written = self.tokenizers
        source_ids = [ids[:longest] for ids in read.encode([*map(change_source, sources)])]
        target_ids = [ids[:longest] for ids in written.encode([*map(change_target, targets)])]
        device, order = device_of(model), -1 if self.data.backwards else 1
        lengths = [max(len(s), len(t)) + 1 for s, t in zip(source_ids, target_ids, strict=True)]

        def losses(batches: Sequence[list[int]]) -> Iterator[tuple[float, float]]:
            for numbers in batches:
                batch = make_batch(
                    [source_ids[i] for i in numbers],
                    [target_ids[i][::order] for i in numbers],
                    special=self.special,
                ).to(device)
                yield float(losses_of(model, batch, 0.0)[1]), batch.counts["tokens"]

        found = shared(losses, [*in_batches(lengths, self.training.batch_tokens)])
        return sum(loss for loss, _ in found) / sum(count for _, count in found)

    def predictor(self, model: Any) -> Translator:
        return Translator(
            model,
            *self.tokenizers,
            self.decoding,
            self.data.replace,
            backwards=self.data.backwards,
            languages=self.languages,
            forbidden=self.forbidden,
        )

    def measured(self, report: Report) -> str:
        """The search of validations, and the signatures of scores."""
        signatures = [
            f"{name} {report.details[name]['signature']}"
            for name in report.scores.keys() & report.details
        ]
        return "; ".join([f", {searched(self.decoding.validation_beam)}", *sorted(signatures)])

    def settings(self) -> dict[str, Any]:
        settings = {
            "family": self.model.name,
            **super().settings(),
            "replace": [asdict(change) for change in self.data.replace],
            "metrics": self.data.metrics,
            "bleu_tokenize": self.data.bleu_tokenize,
            "backwards": self.data.backwards,
        }
        if self.languages is not None:
            settings["languages"] = asdict(self.languages)
        elif self.data.languages is not None:
            source, target = self.data.languages
            settings |= {"source_language": source, "target_language": target}
        return settings | ({"forbidden": self.forbidden} if self.forbidden else {})


def losses_of(
    model: Any, batch: Batch, smoothing: float, agreement: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The label-smoothed cross-entropy and the negative log-likelihood of an encoder-decoder,
    summed over targets.

    Args:
        agreement: alpha of R-Drop; above 0, the batch is read twice, with different dropout.
    """
    source, sources = batch.source, batch.source_segments
    inputs, targets = batch.inputs, batch.target_segments
    if agreement:  # both readings as one batch of twice the size, (2N,) and (2M,)
        source, sources = source.repeat(2), sources.twice()
        inputs, targets = inputs.repeat(2), targets.twice()
    # (M, D) or (2M, D)
    hidden = model.decode(inputs, targets, model.encode(source, sources), sources)
    table, bias = output_of(model)
    return projected_cross_entropy(
        hidden, table, batch.outputs, smoothing, batch.counted, agreement, bias
    )


def _expansion(lengths: np.ndarray) -> float:
    """The `DecodingConfig.expansion` that suffices for all but one in a thousand pairs of a corpus
    of these lengths (pairs, 2).

    It is large if the target's tokens are finer than the source's, such as characters for words.
    """
    source, target = lengths[:: max(1, len(lengths) // MEASURED)].T + 1  # with the end tokens
    needed = math.ceil(10 * float(np.quantile((target - EXPANSION[1]) / source, 0.999))) / 10
    return min(max(EXPANSION[0], needed), WIDEST)


def brought_languages(start: Path | None) -> tuple[Languages | None, list[int]]:
    """How the model to start from marks its languages, and the tokens that it never writes."""
    if start is None or not (start / CONFIG).exists():
        return None, []
    config = configuration(start)
    languages, forbidden = config.get("languages"), config.get("forbidden", [])
    source = str(start / CONFIG)
    return languages and record(Languages, languages, "languages", source), list(forbidden)


def check_prepared(corpus: Path, config: TokenizerConfig, start: Path | None) -> None:
    """Check that a corpus has been prepared with the tokenizers that a run is to have.

    Raises:
        TransductError: it has not, or not been prepared at all.
    """
    made = read_object(corpus / JOB, "the corpus that data.corpus names; run transduct prepare")
    for key, value in json.loads(json.dumps(asdict(config))).items():
        require(
            key == "dropout" or made["tokenizer"].get(key) == value,
            f"{{key}} is {value}, {corpus} was prepared with {made['tokenizer'].get(key)}; make "
            "them equal",
            key=f"tokenizer.{key}",
        )
    for name in tokenizer_files(config.shared):
        require(
            not (start and (start / name).exists())
            or Tokenizer.load(start / name).digest == Tokenizer.load(corpus / name).digest,
            f"{{key}}: {corpus} was prepared with other tokenizers than {start} has; prepare a "
            "corpus with model.start_from",
            key="data.corpus",
        )


def prepare_tokenizers(
    data: DataConfig, config: TokenizerConfig, directory: Path, start: Path | None, notify: Notify
) -> tuple[Tokenizer, Tokenizer]:
    """The run's tokenizers: taken from the model to start from (an encoder has the source's only),
    or trained."""

    @cache
    def trained() -> tuple[Tokenizer, Tokenizer]:
        root, refused = Path(data.root), Refused(data.broken)
        parts = (read_pairs(corpus, root, data.replace, refused) for corpus in data.train)
        return train_tokenizers(
            (pair for chunks in parts for chunk in chunks for pair in chunk), config
        )

    # The file that only a translation model has, as an encoder has the source's alone.
    other = tokenizer_files(not config.shared)[-1]
    require(
        start is None
        or not (start / other).exists()
        or configuration(start)["task"] != "translation",
        f"model.start_from: {start} shares tokenizers differently; set tokenizer.shared to "
        f"{str(not config.shared).lower()}",
    )
    start = Path(data.corpus) if data.corpus else start
    made = [
        run_tokenizer(
            directory / name,
            start,
            lambda side=side: trained()[side],  # type: ignore[misc]
            notify,
            config.dropout,
            (name, TOKENIZER) if side == 0 else (name,),
        )
        for side, name in enumerate(tokenizer_files(config.shared))
    ]
    return made[0], made[-1]


def as_source_side(weights: dict[str, Tensor]) -> None:
    """Rename the weights of an encoder (`models/bert.py`) to those of a translation model's source
    side, in place.

    The vector of the first token type is added to all token embeddings; the embedding of the mask
    token is dropped.
    """
    if "types" not in weights:
        return
    table, types = weights.pop("embedding.table"), weights.pop("types")
    weights["source_embedding.table"] = (table + types[0] / math.sqrt(table.shape[1]))[:-1]
    for name in [name for name in weights if name.startswith("embedding.")]:
        weights[f"source_{name}"] = weights.pop(name)
