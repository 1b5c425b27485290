"""Text classification: a label for a text or a pair of texts, a tag for each word, or the words
that answer a question.

`data.kind` selects one of these; the model is a BERT with the matching head (Devlin et al. 2019,
figure 4).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from transduct.data.batching import Indices, random_of
from transduct.data.corpus import (
    Corpus,
    Ragged,
    build,
    growth,
    inputs_of,
    lists_of,
    ragged,
    write_rows,
)
from transduct.data.files import Refused
from transduct.data.filters import Seen, hashes, hashes_of_rows, leaked
from transduct.data.lines import composed
from transduct.data.sources import TextSource
from transduct.data.text import in_chunks, read_rows
from transduct.data.text_warnings import UnknownRate
from transduct.data.tokenizer import Tokenizer, TokenizerConfig
from transduct.errors import require
from transduct.functional.losses import label_smoothed_cross_entropy, symmetric_divergence
from transduct.models.bert import Bert
from transduct.predictors.model_directory import shown_labels, three_of
from transduct.predictors.options import PredictConfig
from transduct.predictors.text_classification import (
    LONGEST_SPAN,
    Answers,
    Batch,
    Classifier,
    Encoded,
    Examples,
    Kind,
    LabelledTextConfig,
    check_labels,
    encode,
    fill_up,
    inputs_and_answers,
    labels_of,
    make_batch,
    scores_of,
    votes_of,
)
from transduct.segments import flatten, pad
from transduct.tasks.base import Epoch
from transduct.tasks.model import LabelRows, files_summary
from transduct.tasks.sections import Sections
from transduct.tasks.text import TextTask, TextTraining
from transduct.training.distributed import Terms

LABELS = "labels.json"


def batch_of(
    numbers: Indices,
    *,
    corpus: Corpus,
    tokenizer: Tokenizer,
    kind: Kind,
    max_length: int,
    dropout: float,
    seed: int,
    epoch: int,
    capacity: int,
) -> Batch:
    """Make a batch of the examples with given numbers: a pure function of (seed, epoch, example).

    BPE dropout segments a row anew, unless that makes it too long.

    Args:
        capacity: the tokens of a shape to fill the batch up to; 0 for none.
    """
    rows: list[Any] = list(zip(*map(lists_of, corpus.columns(numbers)), strict=True))
    for place, number in enumerate(numbers.tolist() if dropout else ()):
        random, (*texts, places, labels) = random_of(seed, epoch, number), rows[place]
        resegmented = [tokenizer.resegment(text.tolist(), dropout, random) for text in texts]
        if sum(map(len, resegmented)) <= max_length:
            rows[place] = (*resegmented, places, labels)
    batch = make_batch(rows)
    return fill_up(batch, kind, capacity, max_length) if capacity else batch


def span_loss(scores: Tensor, batch: Batch, smoothing: float) -> Tensor:
    """Label-smoothed cross-entropy of the first and last tokens of spans in second texts, summed:
    (N, 2) -> ()."""
    # (B, L, 1)
    candidates = pad((batch.types == 1) & (batch.ids != Tokenizer.END), batch.segments)[..., None]
    # filler has none, and a softmax over nothing is not finite
    candidates = candidates | ~candidates.any(1, keepdim=True)
    logits = pad(scores, batch.segments).masked_fill(~candidates, float("-inf"))  # (B, L, 2)
    log_probabilities = logits.log_softmax(1)
    right = flatten(log_probabilities, batch.segments).index_select(0, batch.places)  # (A, 2)
    uniform = log_probabilities.masked_fill(~candidates, 0.0).sum(1) / candidates.sum(1)  # (B, 2)
    if batch.counted is not None:
        right = right.masked_fill(batch.counted[:, None] == 0.0, 0.0)
        uniform = uniform * batch.counted[0::2, None]
    return (
        -(1.0 - smoothing) * (right[0::2, 0].sum() + right[1::2, 1].sum())
        - smoothing * uniform.sum()
    )


def read_examples(
    source: TextSource, data: LabelledTextConfig, refused: Refused | None = None
) -> Iterator[tuple[list[str], str, list[str]]]:
    """Yields the texts of each row, its answer, and the labels in the answer; `refused` takes the
    rows that are wrong."""
    name, refused = _name(source), refused or Refused(data.broken)
    rows = read_rows(source, Path(data.root), labelled=True, refused=refused)
    for number, (*texts, answer) in enumerate(rows, 1):
        found = None
        with refused.each():
            found = labels_of(data.kind, texts, answer, file=f"{name}, row {number}")
        if found is not None:
            yield texts, answer.strip(), found


def _name(source: TextSource) -> str:
    return ", ".join(source.files()) or "the generated corpus"


def find_run(words: Sequence[str], run: Sequence[str]) -> tuple[int, int] | None:
    """The first and last index of the first occurrence of a run of words, in either Unicode form,
    or None."""
    words, run = ([composed(word) for word in each] for each in (words, run))
    starts = (i for i in range(len(words) - len(run) + 1) if words[i : i + len(run)] == run)
    start = next(starts, None) if run else None
    return None if start is None else (start, start + len(run) - 1)


class TextRows:
    """Streams the training examples as rows of first, second, places and labels (see
    `predictors.text_classification.make_batch`).

    `dropped` counts the examples left out, `cut` those too long for one sequence.

    Args:
        evaluated: the hashes of the texts to validate and test on, which are left out of training.
    """

    def __init__(
        self,
        data: LabelledTextConfig,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        evaluated: np.ndarray,
    ) -> None:
        self.data, self.tokenizer = data, tokenizer
        self.ids = {label: number for number, label in enumerate(labels)}
        self.dropped = dict.fromkeys(
            ("empty", "duplicate", "answer_not_found", "answer_too_long"), 0
        )
        if data.drop_validation:
            self.dropped["held_out"] = 0
        self._evaluated = evaluated
        self.cut, self.unknown = 0, UnknownRate("texts")
        self._seen, self.refused = Seen(), Refused(data.broken)

    def chunks(self, source: TextSource) -> Iterator[list[Ragged]]:
        """Yields the columns of the rows of a source that are kept."""
        for chunk in in_chunks(
            read_examples(source, self.data, self.refused),
            lambda example: sum(map(len, example[0])),
        ):
            kept = self._kept(chunk)
            texts = [texts for texts, _, _ in kept]
            encoded, cut = encode(self.tokenizer, self.data.kind, texts, self.data.max_length)
            self.cut += cut
            self.unknown.add([*each.first, *each.second] for each in chain.from_iterable(encoded))
            rows = [
                row
                for example, pieces in zip(kept, encoded, strict=True)
                for row in self._rows(*example, pieces)
            ]
            if rows:
                yield [ragged(column) for column in zip(*rows, strict=True)]

    def _kept(
        self, chunk: list[tuple[list[str], str, list[str]]]
    ) -> list[tuple[list[str], str, list[str]]]:
        """The examples without empty texts and, if so configured, without those to validate on and
        without duplicates."""
        full = [example for example in chunk if all(map(str.strip, example[0]))]
        self.dropped["empty"] += len(chunk) - len(full)
        if self.data.drop_validation:
            known = np.isin(hashes(_one_text(texts) for texts, _, _ in full), self._evaluated)
            self.dropped["held_out"] += int(known.sum())
            full = list(compress(full, ~known))
        if not self.data.drop_duplicates:
            return full
        new = self._seen.add(hashes_of_rows([*texts, answer] for texts, answer, _ in full))
        self.dropped["duplicate"] += len(full) - int(new.sum())
        return list(compress(full, new))

    def _rows(
        self, texts: list[str], answer: str, labels: list[str], pieces: list[Encoded]
    ) -> list[tuple[list[int], ...]]:
        if self.data.kind == "span":
            [piece] = pieces
            run = find_run(texts[-1].split(), answer.split())
            if run is None or run[1] >= len(piece.starts):
                self.dropped["answer_not_found"] += 1
                return []
            if run[1] - run[0] >= LONGEST_SPAN:
                self.dropped["answer_too_long"] += 1
                return []
            return [(piece.first, piece.second, [piece.starts[run[0]], piece.ends[run[1]]], [])]
        ids = iter([self.ids[label] for label in labels])
        if self.data.kind == "tokens":
            return [(p.first, p.second, p.starts, list(islice(ids, len(p.starts)))) for p in pieces]
        [piece] = pieces
        return [(piece.first, piece.second, [0], list(ids))]


def _one_text(texts: Sequence[str]) -> str:
    """The texts of a row as one, to compare it with others."""
    return "\t".join(texts)


def labels_in(data: LabelledTextConfig) -> list[str]:
    """The labels of the training examples, except those with an empty text.

    Raises:
        TransductError: a file cannot be read, an answer does not fit its text, or there is only one
            label.
    """
    examples = chain.from_iterable(read_examples(source, data) for source in data.train)
    labels = sorted(
        {label for texts, _, found in examples if all(map(str.strip, texts)) for label in found}
    )
    require(
        len(labels) != 1,
        f"found one label to train on ('{''.join(labels)}'), expected at least 2; check data.train",
    )
    return labels


class TextClassificationTask(TextTask):
    """Trains a BERT with the head for its kind of answer."""

    name, title = "text_classification", "Text classifier"
    sections = Sections(LabelledTextConfig, PredictConfig, TokenizerConfig, TextTraining)
    families = {"bert": Classifier.family}
    derived = {
        "vocabulary_size": "tokenizer.size",
        "max_length": "data.max_length",
        "head": "data.kind",
        "labels": "data.train",
    }
    label_rows = LabelRows((), ("answers", "labels"), ("output.*", "n_grams.votes"))
    training: TextTraining

    def check(self) -> None:
        kind = self.data.kind
        self.scores = "exact_match" if kind == "span" else "accuracy", "f1"
        if kind in ("tokens", "span"):
            self.against_dropout = f"it would move what the answers of '{kind}' stand at"
        super().check()
        require(
            not self.training.r_drop or kind != "span",
            "{key} is for labels, not for spans; set it to 0",
            key="training.r_drop",
        )

    def sizes(self) -> Mapping[str, Any]:
        head = "sequence" if self.data.kind == "pair" else self.data.kind
        return {**super().sizes(), "head": head}

    def check_data(self) -> None:
        self._check_labels(labels_in(self.data), self._short())

    def prepare(self) -> None:
        """Read the validation and test sets, train the tokenizer unless the run has one, and
        prepare the corpus.

        The labels of all three are compared here, to find a mistake before hours of training.
        """
        data, short = self.data, self._short()
        rows = chain.from_iterable(read_examples(source, data) for source in data.train)
        self.make_tokenizer(text for texts, _, _ in rows for text in texts)
        # As before there was this key, so that older corpora are still those of their runs.
        ignored = [] if data.drop_validation else ["drop_validation"]
        inputs = inputs_of(data, {"the tokenizer": self.tokenizer}, ignored)
        evaluated = hashes(text for _, (texts, _) in short for text in texts)
        if data.drop_validation:
            digest = blake2b(evaluated.tobytes(), digest_size=16).hexdigest()
            inputs["the texts of valid and test"] = digest
        fill = partial(self._fill, evaluated=evaluated)
        self.corpus = build(self.directory / "corpus", inputs, fill, self.notify)
        labels = json.loads((self.corpus.directory / LABELS).read_text(encoding="utf-8"))
        self.answers = self._check_labels(labels, short)
        self.labels = self.answers.labels
        self._validation = next(
            (examples for source, examples in short if source is data.valid), None
        )
        for source, (texts, _) in () if data.drop_validation else short:
            rows = chain.from_iterable(read_examples(each, data) for each in data.train)
            what = "validation texts" if source is data.valid else "test texts"
            if report := leaked(texts, (_one_text(row) for row, _, _ in rows), what):
                self.notify(report)

    def _fill(self, folder: Path, evaluated: np.ndarray) -> dict[str, Any]:
        """Write the training examples and their labels.

        Raises:
            TransductError: as `labels_in`, or nothing is left.
        """
        data, labels = self.data, labels_in(self.data)
        (folder / LABELS).write_text(json.dumps(labels, ensure_ascii=False), encoding="utf-8")
        rows = TextRows(data, self.tokenizer, labels, evaluated)
        manifest = write_rows(
            folder, 4, ((source.weight, rows.chunks(source)) for source in data.train)
        )
        rows.refused.report(self.notify)
        rows.dropped |= {name: count for name, count in rows.refused.dropped.items() if count}
        origin = files_summary(data, rows.dropped)
        require(manifest["rows"], f"no example is left to train on {origin}; check data.train")
        cut = f"; {rows.cut:,} longer than {data.max_length} tokens" if rows.cut else ""
        self.notify(f"corpus prepared: {manifest['rows']:,} examples {origin}{cut}{rows.unknown}")
        if labels:
            self.notify(f"labels: {len(labels):,} ({shown_labels(labels)})")
        return manifest | {"dropped": rows.dropped}

    def _short(self) -> list[tuple[TextSource, Examples]]:
        data = self.data
        return [
            (each, inputs_and_answers(each, data.root, Refused(data.broken)))
            for each in (data.valid, data.test)
            if each
        ]

    def _check_labels(self, labels: list[str], short: list[tuple[TextSource, Examples]]) -> Answers:
        """The possible answers, after checking that the validation and test sets have no others."""
        answers = Answers(self.data.kind, labels)
        for source, examples in short:
            check_labels(answers, examples, _name(source))
        return answers

    def epoch(self, number: int) -> Epoch[Batch]:
        make = partial(
            batch_of,
            corpus=self.corpus,
            tokenizer=self.tokenizer,
            kind=self.data.kind,
            max_length=self.data.max_length,
            dropout=self.tokenizer_config.dropout,
            seed=self.training.seed,
            epoch=number,
            capacity=self.capacity,
        )
        lengths = self.corpus.lengths[:, :2].sum(1)
        return Epoch(lengths, make, self.corpus.weights, [self.growth])

    @cached_property
    def growth(self) -> float:
        """The factor by which BPE dropout lengthens the texts of the corpus."""
        return growth(self.corpus, [0, 1], 0, self.tokenizer, self.tokenizer_config.dropout)

    def loss(self, model: Bert, batch: Batch) -> Terms:
        """Label-smoothed cross-entropy, summed over labels, or over the first and last tokens of
        spans.

        With R-Drop, it is the mean of two forward passes plus their divergence. N-gram votes have a
        loss of their own.
        """
        config, count = self.training, batch.counts["labels"]
        scores, smoothing = scores_of(model, batch).float(), config.label_smoothing
        if self.data.kind == "span":
            return {"labels": (span_loss(scores, batch, smoothing), count, 1.0)}
        loss = label_smoothed_cross_entropy(scores, batch.labels, smoothing)
        if config.r_drop:
            others = scores_of(model, batch).float()
            loss = 0.5 * (loss + label_smoothed_cross_entropy(others, batch.labels, smoothing))
            loss += 0.5 * config.r_drop * symmetric_divergence(scores, others)
        # trained apart from the encoder, so that their errors differ
        for votes in votes_of(model, batch):
            loss = loss + label_smoothed_cross_entropy(votes.float(), batch.labels, smoothing)
        if batch.counted is not None:
            loss = loss * batch.counted
        return {"labels": (loss.sum(), count, 1.0)}

    def predictor(self, model: Bert) -> Classifier:
        return Classifier(model, self.tokenizer, self.answers, self.decoding)

    def samples(self, data: Examples, outputs: Sequence[str]) -> list[tuple[str, ...]]:
        return [(data[0][i], outputs[i], data[1][i]) for i in three_of(len(data[0]))]

    def settings(self) -> dict[str, Any]:
        return {"answers": asdict(self.answers), **super().settings()}
