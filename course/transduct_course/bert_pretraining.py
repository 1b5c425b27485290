"""Pre-training on plain text helps where labels are few, and less where there are many; in three
tasks and in translation, also where it does not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from transduct.data.sources import TextSource
from transduct.data.text import read_lines, read_rows
from transduct.data.tokenizer import Tokenizer
from transduct.drawing.plots import curves, page
from transduct.drawing.svg import Picture
from transduct.functional.losses import label_smoothed_cross_entropy
from transduct.models import bert
from transduct.segments import Movable, Segments
from transduct.tasks.translation import as_source_side
from transduct.training.combining import Terms
from transduct_course import real, small
from transduct_course.experiment import Experiment, Row, Setting, Verdict, Words, grouped, mean

VOCABULARY, LONGEST = 3000, 48
ALONE, AFTER = "from scratch", "pre-trained"
MADE, CAPTIONS = "generated", "multi30k, English to German"
REAL = {"SST-2": "sst2", "NSMC": "nsmc_raw_sentiment", "tags": "wsj_treebank_sample"}
IN_KOREAN = {
    AFTER: "사전 학습",
    ALONE: "처음부터",
    MADE: "만든 글",
    "tags": "품사",
    CAPTIONS: "multi30k 영어-독일어",
}
Example = tuple[small.Ids, Any]  # with a label, or one for each word


class Labelled(NamedTuple):
    """A data set of labelled texts.

    Attributes:
        texts: what is read before any label.
        counts: how many labelled texts are learnt from.
        head: whether a text has a label, or each of its words.
        labels: how many different labels there are.
    """

    texts: list[small.Ids]
    train: list[Example]
    test: list[Example]
    counts: Sequence[int]
    head: Literal["sequence", "tokens"] = "sequence"
    labels: int = 2


@dataclass(frozen=True)
class Reviews(Movable):
    """Texts and the label of each."""

    tokens: Tensor
    labels: Tensor  # (B,)
    segments: Segments

    @property
    def counts(self) -> dict[str, float]:
        """The loss is an average over texts."""
        return {"texts": float(len(self.labels))}


def generated(setting: Setting) -> Labelled:
    """Rows of words from two topics of 40 words each; the label is the topic of most of them."""
    parts = []
    for part, size in (("train", setting.pick(2000, 1000, 20)), ("test", 300)):
        random, rows = Random(part), []
        for _ in range(size):
            label = random.randrange(2)
            topics = [label if random.random() < 0.65 else 1 - label for _ in range(12)]
            rows.append(([1 + 40 * topic + random.randrange(40) for topic in topics], label))
        parts.append(rows)
    train, test = parts
    counts = setting.pick((100, 500, 2000), (100, 1000), (10,))
    return Labelled([ids for ids, _ in train], train, test, counts)


def sst2(setting: Setting, folder: Path) -> Labelled:
    """English film reviews as ids of their commonest words."""
    rows = {
        part: [line.split("\t") for line in read_lines(folder / f"{part}.tsv.xz")]
        for part in ("train", "dev")
    }
    words = {part: [text.lower().split()[:LONGEST] for _, text in rows[part]] for part in rows}
    known = numbered(words["train"])
    train, test = (
        [
            ([known.get(word, 0) for word in text], int(label))
            for text, (label, _) in zip(words[part], rows[part], strict=True)
        ]
        for part in ("train", "dev")
    )
    counts = setting.pick((100, 1000, 6920), (100, 1000), (10,))
    return Labelled([ids for ids, _ in train], train, test, counts)


def nsmc(setting: Setting, folder: Path) -> Labelled:
    """Korean film reviews as ids of pieces, for Korean words have too many forms."""
    parts = [
        [line.split("\t")[1:] for line in islice(read_lines(folder / f"{part}.tsv.xz"), count)]
        for part, count in (("train", setting.pick(20_000, 8000, 50)), ("dev", 1000))
    ]
    tokenizer = Tokenizer.train((text for _, text in parts[0]), "bpe", VOCABULARY)
    train, test = (
        [
            (ids[:LONGEST], int(label))
            for ids, (label, _) in zip(
                tokenizer.encode([text for _, text in part]), part, strict=True
            )
            if ids
        ]
        for part in parts
    )
    counts = setting.pick((100, 2000), (100, 1000), (10,))
    return Labelled([ids for ids, _ in train], train, test, counts)


def tags(setting: Setting, folder: Path) -> Labelled:
    """English newspaper text; each word's label is its part of speech."""
    parts = []
    for part in ("train", "dev"):
        source = TextSource(trees=f"{part}.mrg.xz", columns=["words", "tags"])
        read = read_rows(source, folder)
        parts.append([(w.lower().split()[:LONGEST], t.split()[:LONGEST]) for w, t in read if w])
    known, kinds = numbered([words for words, _ in parts[0]]), sorted(
        {kind for _, found in parts[0] for kind in found}
    )  # fmt: skip
    train, test = (
        [
            (
                [known.get(word, 0) for word in words],
                [kinds.index(kind) if kind in kinds else -1 for kind in found],
            )
            for words, found in part
        ]
        for part in parts
    )
    texts = [ids for ids, _ in train]
    counts = setting.pick((100, 3199), (100,), (10,))
    return Labelled(texts, train, test, counts, "tokens", max(2, len(kinds)))


def numbered(texts: Sequence[Sequence[str]]) -> dict[str, int]:
    """The ids of the commonest words; 0 is left for others."""
    return {word: 1 + i for i, word in enumerate(real.commonest(texts, VOCABULARY - 2))}


READERS: dict[str, Callable[[Setting, Path], Labelled]] = {
    "SST-2": sst2,
    "NSMC": nsmc,
    "tags": tags,
}


def measure(setting: Setting) -> Iterator[Row]:
    """Fine-tune on growing parts of the labels, after pre-training on all texts and without it; on
    each data set there is, and in translation."""
    if setting.data is None:
        yield from labelling(setting, MADE, generated(setting))
        return
    there = [name for name, folder in REAL.items() if setting.has(folder)]
    captions = setting.has("multi30k")
    if not there and not captions:
        setting.folder("sst2")  # says what is missing
    for name in there:
        yield from labelling(setting, name, READERS[name](setting, setting.folder(REAL[name])))
    if captions:
        yield from translating(setting)


def labelling(setting: Setting, name: str, data: Labelled) -> Iterator[Row]:
    """Learn labels with and without pre-training."""
    few = setting.data is not None  # then there are more data sets than one
    read, steps = setting.pick((3000, 600), (150, 60) if few else (300, 120), (3, 3))
    for seed in setting.seeds:
        setting.report(f"bert_pretraining: {name}, seed {seed}, pre-training")
        known = small.seeded(seed, lambda: bert.Bert(config_of("masked")))
        texts = real.hidden(data.texts, VOCABULARY, seed, 24)
        small.train(known, texts, read, 3e-3, loss=real.hidden_loss, seed=seed)
        for count in data.counts:
            for kind in (AFTER, ALONE):
                setting.report(f"bert_pretraining: {name}, seed {seed}, {count} labels, {kind}")
                model = small.seeded(seed, lambda: bert.Bert(config_of(data.head, data.labels)))
                if kind == AFTER:
                    model.load_state_dict(known.state_dict(), strict=False)
                batches, loss = drawn(data, count, seed), loss_of(data)
                small.train(model, batches, steps, 2e-3, loss=loss, seed=seed)
                right = accuracy(model, data)
                about = {"data": name, "labels": count, "model": kind, "seed": seed}
                yield {**about, "accuracy": right, "chrf": None, "loss": None}


def translating(setting: Setting) -> Iterator[Row]:
    """Learn to translate few captions, with an encoder that has read all English ones and with a
    new one; neither with R-Drop."""
    count = setting.pick(3000, 1500, 30)
    folder = setting.folder("multi30k")
    text = real.captions(folder, count, setting.pick(300, 50, 4))
    plain = [line for line in read_lines(folder / "train.en.gz") if 0 < len(line.split()) <= 16]
    read_texts = text.tokenizer.encode(plain[: setting.pick(None, 8000, 50)])
    texts = [ids[:LONGEST] for ids in read_texts]
    read, steps = setting.pick((800, 500), (120, 80), (2, 2))
    for seed in setting.seeds:
        setting.report(f"bert_pretraining: translation, seed {seed}, pre-training")
        size = text.tokenizer.size
        config = replace(config_of("masked"), vocabulary_size=size, activation="relu")
        known = small.seeded(seed, lambda: bert.Bert(config))  # noqa: B023
        hidden = real.hidden(texts, size, seed, 32)
        small.train(known, hidden, read, 3e-3, loss=real.hidden_loss, seed=seed)
        for kind in (AFTER, ALONE):
            setting.report(f"bert_pretraining: translation, seed {seed}, {kind}")
            model = small.seeded(
                seed,
                lambda: small.transformer_of(
                    text.vocabulary, dropout=0.1, tie="decoder", positions="rotary"
                ),
            )
            if kind == AFTER:
                weights = {name: each.detach() for name, each in known.named_parameters()}
                as_source_side(weights)
                model.load_state_dict(weights, strict=False)
            pairs = real.batches(text.train, 32, seed)
            losses = small.train(model, pairs, steps, 2e-3, seed=seed)
            about = {"data": CAPTIONS, "labels": count, "model": kind, "seed": seed}
            yield {
                **about, "accuracy": None, **real.scored(model, text), "curve": small.every(losses)
            }  # fmt: skip


def config_of(head: Any, labels: int = 2) -> bert.Config:
    """A small BERT; with a label for each sequence it takes the mean of all tokens."""
    shape: dict[str, Any] = {
        "d_model": 64,
        "num_heads": 4,
        "d_ff": 128,
        "layers": 2,
        "dropout": 0.1,
        "positions": "rotary",
    }
    return bert.Config(
        VOCABULARY, head=head, labels=labels, pool="mean", max_length=LONGEST + 2, **shape
    )


def drawn(data: Labelled, count: int, seed: int) -> Iterator[Any]:
    """Batches of the first labelled texts, without end."""
    random = Random(f"reviews {seed}")
    while True:
        yield gathered(random.choices(data.train[:count], k=24), data.head)


def gathered(rows: Sequence[Example], head: str) -> Any:
    """The batch of these texts."""
    if head == "tokens":
        return small.labelled(rows)
    tokens = torch.tensor([token for ids, _ in rows for token in ids])
    labels = torch.tensor([label for _, label in rows])
    return Reviews(tokens, labels, Segments.of([len(ids) for ids, _ in rows]))


def review_logits(model: Any, batch: Reviews) -> Tensor:
    """(B, 2)."""
    x = model.encode(batch.tokens, torch.zeros_like(batch.tokens), batch.segments)
    logits: Tensor = model.classify(x, batch.segments)
    return logits


def review_loss(model: nn.Module, batch: Reviews) -> Terms:
    """The cross-entropy of the labels."""
    losses = label_smoothed_cross_entropy(review_logits(model, batch), batch.labels, 0.0)
    return {"texts": (losses.sum(), batch.counts["texts"], 1.0)}


def loss_of(data: Labelled) -> Callable[[nn.Module, Any], Terms]:
    """The loss of the labels of texts, or of their words."""
    return small.label_loss if data.head == "tokens" else review_loss


def accuracy(model: Any, data: Labelled) -> float:
    """The share of labels that are right."""
    batch = gathered(data.test, data.head)
    if data.head == "tokens":
        return small.label_accuracy(model, batch)
    with torch.inference_mode():
        return float((review_logits(model, batch).argmax(-1) == batch.labels).float().mean())


def draw(rows: Sequence[Row]) -> Picture:
    """Accuracy by the number of labels, for each data set; of translation, the training loss."""
    parts = []
    for (data,), group in grouped(rows, "data").items():
        names, counts = list(dict.fromkeys(row["model"] for row in group)), sorted(
            {row["labels"] for row in group}
        )  # fmt: skip
        if data == CAPTIONS:
            lines = {
                name: [
                    sum(each) / len(each)
                    for each in zip(
                        *(row["curve"] for row in group if row["model"] == name), strict=False
                    )
                ]
                for name in names
            }
            shortest = min(map(len, lines.values()))
            lines = {name: line[:shortest] for name, line in lines.items()}
            parts.append(curves(range(shortest), lines, f"{data}: training loss", "time", "loss"))
            continue
        lines = {
            name: [100 * mean(group, "accuracy", model=name, labels=count) for count in counts]
            for name in names
        }
        x, title = [f"{count:,}" for count in counts], f"{data}: labels right, %"
        parts.append(curves(x, lines, title, "labelled texts to learn from"))
    return page(parts)


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """It holds if on most data sets the pre-trained model is better, with few labels or with all:
    by two points of accuracy or one of chrF."""
    english, korean, gains = [], [], []
    for (data,), group in grouped(rows, "data").items():
        few, all_ = min(row["labels"] for row in group), max(row["labels"] for row in group)
        if data == CAPTIONS:
            after, alone = (mean(group, "chrf", model=name) for name in (AFTER, ALONE))
            gains.append((after - alone) / 50)  # a point of chrF counts as two of accuracy
            english.append(f"{data}, {few:,} pairs: chrF {after:.1f} and {alone:.1f}")
            korean.append(f"{IN_KOREAN[data]} {few:,}쌍: chrF {after:.1f}, {alone:.1f}")
            continue
        found = [
            [mean(group, "accuracy", model=name, labels=count) for name in (AFTER, ALONE)]
            for count in dict.fromkeys((few, all_))
        ]
        gains.append(max(after - alone for after, alone in found))
        counts = dict.fromkeys((few, all_))
        told = [
            (f"{after:.1%} and {alone:.1%} with {count:,} labels",
             f"레이블 {count:,}개에 {after:.1%}, {alone:.1%}")
            for count, (after, alone) in zip(counts, found, strict=True)
        ]  # fmt: skip
        english.append(f"{data}: {', '.join(each for each, _ in told)}")
        korean.append(f"{IN_KOREAN.get(data, data)}: {', '.join(each for _, each in told)}")
    because = Words(
        f"right after pre-training and without it: {'; '.join(english)}",
        f"사전 학습을 했을 때와 하지 않았을 때를 차례로 적는다. {'. '.join(korean)}",
    )
    if sum(gain > 0.02 for gain in gains) > len(gains) / 2:
        return [Verdict("holds", because)]
    return [Verdict.of(False if max(gains) < 0.005 else None, because)]


EXPERIMENT = Experiment(
    "bert_pretraining",
    Words(
        "Pre-training on text without labels helps the task after it.",
        "레이블이 없는 글로 먼저 학습하면(사전 학습) 그다음 과제를 더 잘한다.",
    ),
    Words(
        "A small BERT guesses hidden words, then learns from few or many labels whether a film "
        "review is kind, or the parts of speech, or, as the encoder of a translator, from few "
        "pairs; another learns from these alone. Measured is how well they do on other texts.",
        "작은 BERT가 가려진 낱말을 맞히고 나서 적거나 많은 레이블로 영화평의 호불호나 품사를 "
        "배우고, 번역기의 인코더가 되어 적은 문장쌍으로 번역을 배운다. 다른 하나는 사전 학습 "
        "없이 배운다. 처음 보는 글에서 둘을 비교한다.",
    ),
    keys={
        "data": Words("data", "데이터"),
        "labels": Words("labels", "레이블 수"),
        "model": Words("model", "모델"),
    },
    values={
        "accuracy": Words("accuracy", "정확도"),
        "chrf": Words("chrF", "chrF"),
        "loss": Words("loss", "손실"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    main=lambda row: row["labels"] == 100,
    korean=IN_KOREAN,
)
