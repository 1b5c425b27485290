"""Inference for text classification: labels, tags or spans for texts, with probabilities and
attention.

Let N be the tokens of a batch, B its sequences, A the positions of its answers, S the words of a
text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from transduct.config import Recipe
from transduct.data.files import DataSection, Refused, composed_labels, corpora
from transduct.data.lines import composed
from transduct.data.sources import TextSource, require_width
from transduct.data.text import read_rows
from transduct.data.tokenizer import Tokenizer
from transduct.errors import WrongData, count_warning, require
from transduct.evaluation.bootstrap import Ratio
from transduct.evaluation.classification import Scores, label_scores, span_scores
from transduct.inference.batches import answered, device_of, workers_for
from transduct.inference.engine import on_own_threads
from transduct.models.bert import SIZES, Bert, Config
from transduct.predictors.base import Attention, Predictor, Report, Trace
from transduct.predictors.model_directory import (
    Family,
    TextModel,
    check_labels_fit,
    require_finite,
    unknown_label,
)
from transduct.predictors.options import (
    PredictConfig,
    are_given,
    check_examples,
    check_inputs,
    data_with_test,
    tell_unknown,
    with_options,
)
from transduct.predictors.text import embed, encoder_input
from transduct.records import refuse_if
from transduct.segments import Axis, FlatBatch, Segments, Shape

Kind = Literal["sequence", "pair", "tokens", "span"]
Examples = tuple[list[str], list[str]]  # inputs (two texts are separated by a tab) and answers

# how many texts an example has
TEXTS: dict[Kind, int] = {"sequence": 1, "pair": 2, "tokens": 1, "span": 2}
LABELLING = ("sequence", "pair")  # kinds whose answer is one label
LONGEST_SPAN = 30  # the most words of an answer
QUICK = 8  # how many texts are classified in the time of one translation


@dataclass(frozen=True)
class LabelledTextConfig(DataSection):
    """The `data` section of a recipe for text classification.

    Attributes:
        kind: the content of a row. "sequence" is a text and its label, "pair" two texts and a
            label. "tokens" is words and as many tags, separated by blanks. "span" is a question, a
            text and the words of the text that answer it. Answers of more than 30 words are not
            trained on.
        max_length: the most tokens of a sequence, special tokens included; longer ones are
            truncated, or tagged in pieces.
        drop_duplicates: whether to train on only the first of equal rows, which may differ in white
            space and in their Unicode form.
        drop_validation: whether to leave the texts of `valid` and `test` out of training.
        broken: `stop` at a row that is wrong, such as a line that is not UTF-8, or `skip` it.
    """

    kind: Kind
    train: list[TextSource]
    valid: TextSource | None = None
    test: TextSource | None = None
    max_length: int = 128
    drop_duplicates: bool = False
    drop_validation: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        texts = TEXTS[self.kind]
        require_width(
            self, texts + 1, f"a row of kind '{self.kind}' ends in its answer; set columns"
        )
        refuse_if(
            any(corpus.alternatives for corpus in corpora(self)),
            "alternatives are references of a translation; here a row has one answer: remove them",
        )
        refuse_if(
            self.max_length < 1 + 2 * texts,
            f"max_length is {self.max_length}, must be at least {1 + 2 * texts} for '{self.kind}'",
        )


def inputs_and_answers(
    source: TextSource, root: str | Path, refused: Refused | None = None
) -> Examples:
    """The inputs of a corpus (two texts are separated by a tab) and the answers."""
    inputs, answers = [], []
    for *texts, answer in read_rows(source, Path(root), labelled=True, refused=refused):
        inputs.append("\t".join(text.replace("\t", " ") for text in texts))
        answers.append(answer)
    return inputs, answers


@dataclass(frozen=True)
class Answers:
    """The kind of answer, and the labels in the order of their ids (none for spans)."""

    kind: Kind
    labels: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", composed_labels(self.labels))


@dataclass(frozen=True)
class Encoded:
    """The model's input for an example.

    Attributes:
        first, second: BEGIN text END and an empty list, or BEGIN text END and other text END.
        starts, ends: the positions, in both together, of the first and last token of each word of
            the last text.
    """

    first: list[int]
    second: list[int]
    starts: list[int]
    ends: list[int]


@dataclass(frozen=True)
class Batch(FlatBatch):
    """Sequences and their answers.

    Attributes:
        ids, types: (N,) tokens, and their types: 0 up to the first END, then 1.
        places: (A,) the position of each answer: the first token of a sequence or word; a span's
            first and last.
        labels: (A,) the label of each answer; empty for spans.
        counted: (A,) 1.0 for an answer and 0.0 for filler; None without filler.
    """

    terms = {"labels": "answers"}
    ids: Annotated[Tensor, Axis("tokens", Tokenizer.END)]
    types: Annotated[Tensor, Axis("tokens")]
    segments: Annotated[Segments, Axis("tokens")]
    places: Annotated[Tensor, Axis("answers", within="tokens")]
    labels: Annotated[Tensor, Axis("labels")]
    counted: Annotated[Tensor | None, Axis("answers", marks=True)] = None


class Classifier(TextModel):
    """Labels texts, tags their words or finds answers in them, with one model and its tokenizer."""

    verbs, embed = Predictor.verbs | {"attention", "embed", "probabilities"}, embed
    family = Family(Config, SIZES, Bert)
    sections = {"answers": Answers, "decoding": PredictConfig}

    def __init__(
        self, model: Any, tokenizer: Tokenizer, answers: Answers, decoding: PredictConfig
    ) -> None:
        super().__init__(model, tokenizer, decoding)
        self.answers, self.verbs = answers, self.able({"answers": vars(answers)})

    @classmethod
    def able(cls, config: Mapping[str, Any]) -> frozenset[str]:
        labels = config.get("answers", {}).get("kind") in LABELLING
        return cls.verbs if labels else cls.verbs - {"probabilities"}

    @classmethod
    def parts(cls, directory: Path, config: Mapping[str, Any], model: Any) -> list[Any]:
        tokenizer, answers, decoding = super().parts(directory, config, model)
        if answers.kind != "span":
            check_labels_fit(directory, answers.labels, model)
        return [tokenizer, answers, decoding]

    @classmethod
    def test_set(
        cls, files: Mapping[str, Any], recipe: Recipe | None, refused: Refused | None = None
    ) -> Examples:
        """The texts and labels of two files, line by line, or the recipe's test set."""
        if are_given(files, "source", "reference"):
            pair = TextSource(source=files["source"], target=files["reference"])
            rows = list(read_rows(pair, Path(), refused=refused))
            return [text for text, _ in rows], [answer for _, answer in rows]
        data = data_with_test(LabelledTextConfig, recipe)
        return inputs_and_answers(data.test, data.root, refused)

    def measurable(self, data: Examples, refused: Refused) -> Examples:
        """The examples whose texts are as many as the model takes, with labels that it knows."""
        kept: Examples = [], []
        for number, (text, answer) in enumerate(zip(*data, strict=True)):
            with refused.each():
                check_labels(self.answers, ([text], [answer]), first=number)
                self._pair(text, number)
                kept[0].append(text)
                kept[1].append(answer)
        return kept

    def predict(self, inputs: Sequence[str], **options: Any) -> list[str]:
        """Predict the label of each text, or a tag for each word separated by blanks, or the words
        that answer.

        Args:
            inputs: texts; the texts of a pair, or a question and its text, are separated by a tab.
            options: fields of `PredictConfig`.

        Raises:
            TransductError: a second text is missing, or an option is unknown.
            NotFinite: the model answers with NaN.
        """
        texts = self._texts(inputs)
        outputs, cut = self._outputs(texts, options)
        longer = f"longer than {self.longest} tokens: cut, or tagged in pieces"
        count_warning(f"%d of %d texts are {longer}", cut, len(texts))
        empty = "%d of %d texts are empty: what is said of them is a guess"
        count_warning(empty, _empty(texts), len(texts))
        return [self._answer(*pair) for pair in zip(texts, outputs, strict=True)]

    def probabilities(self, inputs: Sequence[str], **options: Any) -> list[dict[str, float]]:
        """The probability of each label, for each text or pair of texts.

        Raises:
            TransductError: as `predict`, or the model does not predict one label for each text.
        """
        require(
            "probabilities" in self.verbs,
            f"probabilities are of labels of texts; this model's kind is '{self.answers.kind}': "
            "use predict",
        )
        outputs, _ = self._outputs(self._texts(inputs), options)
        return [
            dict(zip(self.answers.labels, scores[0].softmax(0).tolist(), strict=True))
            for [scores] in outputs
        ]

    def measured(self, data: Examples, options: Mapping[str, Any]) -> Report:
        """`accuracy` and macro `f1` of labels or tags, or `exact_match` and `f1` of spans.

        Raises:
            TransductError: as `predict`, or the model lacks a label, or the number of tags differs
                from that of words.
        """
        check_examples(data)
        data = data[0], [composed(answer.strip()) for answer in data[1]]
        check_labels(self.answers, data)
        texts = self._texts(data[0])
        outputs, cut = self._outputs(texts, options)
        found = [composed(self._answer(*pair)) for pair in zip(texts, outputs, strict=True)]
        scored, right = self._scores(found, data[1])
        details = {"examples": len(found), "cut": cut, "empty": _empty(texts), **scored.details}
        return Report(scored.scores, details, found, right={next(iter(scored.scores)): right})

    def check_against(self, other: "Classifier", data: Examples) -> None:
        super().check_against(other, data)
        ours, theirs = self.answers, other.answers
        require(
            (theirs.kind, {*theirs.labels}) == (ours.kind, {*ours.labels}),
            "the other model has other labels or another kind of answer; compare models of "
            "the same task",
        )

    def attention(self, text: str, **options: Any) -> Attention:
        """Every attention weight of a text, or of two separated by a tab.

        Options are those of `predict`; they are checked, but change nothing here.
        """
        return self.traced(text, **options).attention

    @torch.no_grad()  # not inference mode, whose tensors could not be changed or trained on
    def traced(self, text: str, target: None = None, **options: Any) -> Trace:
        """The tokens of a text and every attention weight; see `attention`.

        Raises:
            TransductError: a target is given.
        """
        require(target is None, "this model writes no text; leave the target out")
        with_options(self.decoding, options)
        encoded, _ = encode(self.tokenizer, self.answers.kind, self._texts([text]), self.longest)
        require(encoded[0], "found no words to attend to; give a text that holds some")
        example = encoded[0][0]
        batch = make_batch([(example.first, example.second, [], [])]).to(device_of(self.model))
        weights: list[Tensor] = []
        self.model.encode(batch.ids, batch.types, batch.segments, weights)
        ids = batch.ids.tolist()
        seen = Attention.of(self.model, weights, self.tokenizer.pieces(ids))
        return Trace(seen, (self.tokenizer, self.tokenizer), ids)

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return self.model.config.max_length

    def _texts(self, inputs: Sequence[str]) -> list[list[str]]:
        check_inputs(inputs)
        tell_unknown(inputs, self.unknown)
        if TEXTS[self.answers.kind] == 1:
            return [[text] for text in inputs]
        return [self._pair(text, number) for number, text in enumerate(inputs)]

    def _pair(self, text: str, number: int) -> list[str]:
        pair = text.split("\t", 1)
        require(
            len(pair) >= TEXTS[self.answers.kind],
            f"found one text, expected two with a tab between: {text:.40}",
            input=number,
        )
        return pair

    def _outputs(
        self, texts: list[list[str]], options: Mapping[str, Any]
    ) -> tuple[list[list[Tensor]], int]:
        """The scores of each piece of each example, (1, labels), (S, labels) or (S, 2); how many
        examples were cut."""
        decoding = with_options(self.decoding, options)
        encoded, cut = encode(self.tokenizer, self.answers.kind, texts, self.longest)
        pieces = list(chain.from_iterable(encoded))
        device = device_of(self.model)

        def scored(numbers: list[int]) -> list[np.ndarray]:
            return [part.numpy() for part in self._scored([pieces[i] for i in numbers], device)]

        lengths = [len(piece.first) + len(piece.second) for piece in pieces]
        workers = workers_for(device, len(pieces) // QUICK)
        with on_own_threads(self.model):
            rows = answered(scored, lengths, decoding.batch_tokens, workers)
        rest = map(torch.from_numpy, rows)
        return [list(islice(rest, len(each))) for each in encoded], cut

    @torch.inference_mode()
    def _scored(self, pieces: Sequence[Encoded], device: torch.device) -> list[Tensor]:
        batch = make_batch([(piece.first, piece.second, piece.starts, []) for piece in pieces]).to(
            device
        )
        scores = sum(votes_of(self.model, batch), scores_of(self.model, batch).float()).cpu()
        require_finite(scores)
        if self.model.config.head == "sequence":
            return list(torch.split(scores, 1))
        if self.model.config.head == "tokens":
            return list(torch.split(scores, [len(piece.starts) for piece in pieces]))
        each = zip(
            torch.split(scores, [len(p.first) + len(p.second) for p in pieces]), pieces, strict=True
        )
        return [torch.stack((part[p.starts, 0], part[p.ends, 1]), 1) for part, p in each]

    def _answer(self, texts: list[str], outputs: list[Tensor]) -> str:
        if self.answers.kind != "span":
            return " ".join(
                self.answers.labels[i] for scores in outputs for i in scores.argmax(1).tolist()
            )
        if not outputs:
            return ""
        first, last = best_span(outputs[0])
        return " ".join(texts[-1].split()[first : last + 1])

    def _scores(self, found: Sequence[str], answers: Sequence[str]) -> tuple[Scores, Ratio]:
        """The scores, and what is right of each example: the tags of a sentence are not
        independent."""
        sizes = np.ones(len(answers), np.int64)
        if self.answers.kind == "tokens":
            sizes = np.array([len(tags.split()) for tags in answers])
            found, answers = (
                [tag for tags in each for tag in tags.split()] for each in (found, answers)
            )
        scores = (span_scores if self.answers.kind == "span" else label_scores)(found, answers)
        examples = np.arange(len(sizes)).repeat(sizes)
        right = Ratio(np.bincount(examples, scores.right, len(sizes)), sizes)
        scores.details[next(iter(scores.scores))] = {"interval": right.interval()}
        return scores, right


def _empty(texts: Sequence[Sequence[str]]) -> int:
    return sum(not all(map(str.strip, each)) for each in texts)


def make_batch(rows: Sequence[tuple[Any, Any, Any, Any]]) -> Batch:
    """Make a batch of rows (first, second, places, labels), whose places count from the start of
    the row."""
    first, second, places, labels = zip(*rows, strict=True)
    texts = list(zip(first, second, strict=True))
    types = [np.repeat((0, 1), [*map(len, pair)]) for pair in texts]
    return Batch.of(ids=[*map(np.concatenate, texts)], types=types, places=places, labels=labels)


def fill_up(batch: Batch, kind: Kind, tokens: int, longest: int) -> Batch:
    """The batch filled up to one of a few shapes, for a captured graph; see `Shape.near`. As it is
    if its lengths are uncommon."""
    lengths = batch.segments.lengths.tolist()
    shape = Shape.near(lengths, tokens, longest)
    if shape is None:
        return batch
    answers = len(batch.places)
    # one of each sequence, or its first and last token, or some of its tokens
    most = (
        shape.rounded_up(answers)
        if kind == "tokens"
        else shape.sequences * (answers // len(lengths))
    )
    return batch.filled(tokens=shape, answers=most, labels=most if len(batch.labels) else 0)


def scores_of(model: Any, batch: Batch) -> Tensor:
    """Scores of labels, (B, labels) or (A, labels), or of tokens as the first and last of a span,
    (N, 2)."""
    x = model.encode(batch.ids, batch.types, batch.segments)
    match model.config.head:
        case "sequence":
            return model.classify(x, batch.segments)
        case "tokens":
            return model.tag(x.index_select(0, batch.places))
        case _:
            return model.span(x)


def votes_of(model: Any, batch: Batch) -> list[Tensor]:
    """Scores of labels, (B, labels), by the n-grams beside the encoder, if the model has them."""
    return [model.n_grams(batch.ids, batch.segments)] if model.config.n_grams else []


def best_span(scores: Tensor) -> tuple[int, int]:
    """The first and last word of the best span of at most `LONGEST_SPAN` words: (S, 2) -> two
    indices."""
    total = scores[:, None, 0] + scores[None, :, 1]  # (S, S)
    allowed = torch.ones_like(total, dtype=torch.bool).triu().tril(LONGEST_SPAN - 1)
    return divmod(int(total.masked_fill(~allowed, float("-inf")).argmax()), len(scores))


def encode(
    tokenizer: Tokenizer, kind: Kind, examples: Sequence[Sequence[str]], max_length: int
) -> tuple[list[list[Encoded]], int]:
    """The model's input for each example, in pieces, and how many examples were too long for one
    sequence.

    Words to tag are split into as many pieces as needed; other texts have one, and are truncated.
    An example of kind "tokens" or "span" without words has no piece.
    """
    last = [texts[-1] for texts in examples]
    pieces: list[list[list[list[int]]]]  # ids by example, piece and word
    if kind in ("tokens", "span"):
        written = tokenizer.encode([word for text in last for word in _words(text, tokenizer)])
        # A word of characters that nobody sees keeps its place, for answers count words.
        coded = iter([ids or [Tokenizer.UNKNOWN] for ids in written])
        words = [list(islice(coded, len(text.split()))) for text in last]
        pieces = [
            _pieces(each, max_length - 2) if kind == "tokens" else [each] if each else []
            for each in words
        ]
    else:  # the whole text counts as one word
        pieces = [[[ids]] for ids in tokenizer.encode(last)]
    flat = [list(chain.from_iterable(piece)) for piece in chain.from_iterable(pieces)]
    if not flat:
        return [[] for _ in examples], 0
    if TEXTS[kind] == 2:
        others = tokenizer.encode(
            [texts[0] for texts, each in zip(examples, pieces, strict=True) for _ in each]
        )
        tokens, types, segments, cut = encoder_input(others, flat, max_length)
    else:
        tokens, types, segments, cut = encoder_input(flat, None, max_length)
    lengths = segments.lengths.tolist()
    made = map(_encoded, torch.split(tokens, lengths), torch.split(types, lengths), chain(*pieces))
    if kind == "tokens":
        cut = sum(sum(map(len, chain.from_iterable(each))) > max_length - 2 for each in pieces)
    return [list(islice(made, len(each))) for each in pieces], cut


def _words(text: str, tokenizer: Tokenizer) -> list[str]:
    """The words of a text, with the blanks between them unless the tokenizer itself marks where a
    word starts."""
    blank = " " if tokenizer.kind in ("byte", "verbatim") else ""
    return [blank * (number > 0) + word for number, word in enumerate(text.split())]


def _encoded(tokens: Tensor, types: Tensor, words: list[list[int]]) -> Encoded:
    """A sequence, with the positions of the words of its last text that it holds."""
    ids, second = tokens.tolist(), int(types.sum())
    size = len(ids) - second
    begin, end = size if second else 1, len(ids) - 1
    borders = list(accumulate(map(len, words), initial=begin))
    spans = [(start, min(stop, end) - 1) for start, stop in pairwise(borders) if start < end]
    return Encoded(
        ids[:size], ids[size:], [start for start, _ in spans], [last for _, last in spans]
    )


def _pieces(words: list[list[int]], capacity: int) -> list[list[list[int]]]:
    """Group words into runs of at most `capacity` tokens; a longer word has a run of its own."""
    pieces: list[list[list[int]]] = []
    size = 0
    for word in words:
        if not pieces or size + len(word) > capacity:
            pieces.append([])
            size = 0
        pieces[-1].append(word)
        size += len(word)
    return pieces


def labels_of(kind: Kind, texts: Sequence[str], answer: str, **place: Any) -> list[str]:
    """The labels in an answer: one, one for each word, or none for a span.

    Raises:
        WrongData: there is no label, or the number of tags differs from that of words; `place` is
            where, as facts of the error.
    """
    if kind == "span":
        return []
    if kind != "tokens":
        if not answer.strip():
            raise WrongData("found no label, expected one; fix the row or set columns", **place)
        return [composed(answer.strip())]
    words, tags = len(texts[0].split()), composed(answer).split()
    if words != len(tags):
        found = f"found {words} words and {len(tags)} tags"
        raise WrongData(f"{found}, expected one tag for each word; fix the row", **place)
    return tags


def check_labels(answers: Answers, data: Examples, name: str = "", first: int = 0) -> None:
    """Check that answers fit their texts and hold known labels; `name` is that of the data and
    `first` the number of its first row, from 0, for errors.

    Raises:
        WrongData: as `labels_of`, or a label is unknown.
    """
    known = set(answers.labels)
    for number, (text, answer) in enumerate(zip(*data, strict=True), first):
        of_call = {"input": number, "unit": "row"}
        place: dict[str, Any] = {"file": f"{name}, row {number + 1}"} if name else of_call
        for label in labels_of(answers.kind, [text], answer, **place):
            if label not in known:
                remedy = "fix the row, or train on rows that have it"
                raise WrongData(f"{unknown_label(label, answers.labels)}; {remedy}", **place)
