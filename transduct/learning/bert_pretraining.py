"""Pre-training on plain text helps where labels are few, and less where there are many."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from transduct.data.text import read_lines
from transduct.drawing.plots import curves
from transduct.drawing.svg import Picture
from transduct.functional.losses import label_smoothed_cross_entropy
from transduct.learning import small
from transduct.learning.experiment import Experiment, Row, Setting, Verdict, Words, mean
from transduct.models import bert
from transduct.segments import Movable, Segments
from transduct.training.step import Terms

VOCABULARY, LONGEST = 3000, 48
Review = tuple[small.Ids, int]


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


def read(setting: Setting) -> tuple[list[Review], list[Review]]:
    """Film reviews as ids of their commonest words: those to train on, and those to test. Without
    data, generated ones."""
    if setting.size == "miniature" or setting.data is None:
        return generated("train", setting.pick(2000, 1000, 20)), generated("test", 300)
    folder = setting.folder("sst2")
    rows = {
        part: [line.split("\t") for line in read_lines(folder / f"{part}.tsv.xz")]
        for part in ("train", "dev")
    }
    counts = Counter(word for _, text in rows["train"] for word in text.lower().split())
    known = {word: 1 + i for i, (word, _) in enumerate(counts.most_common(VOCABULARY - 2))}

    def reviews_of(part: str) -> list[Review]:
        words = [(text.lower().split()[:LONGEST], int(label)) for label, text in rows[part]]
        return [([known.get(word, 0) for word in text], label) for text, label in words]

    return reviews_of("train"), reviews_of("dev")


def generated(part: str, count: int) -> list[Review]:
    """Rows of words from two topics of 40 words each; the label is the topic of most of them."""
    random = Random(part)
    rows = []
    for _ in range(count):
        label = random.randrange(2)
        topics = [label if random.random() < 0.65 else 1 - label for _ in range(12)]
        rows.append(([1 + 40 * topic + random.randrange(40) for topic in topics], label))
    return rows


def measure(setting: Setting) -> Iterator[Row]:
    """Fine-tune on growing parts of the labels, after pre-training on all texts and without it."""
    train, test = read(setting)
    counts = [
        n for n in setting.pick((100, 500, 2000, 6920), (100, 1000), (10,)) if n <= len(train)
    ]
    for seed in setting.seeds:
        setting.report(f"bert_pretraining: seed {seed}, pre-training")
        pretrained = small.seeded(seed, lambda: bert.Bert(config_of("masked")))
        small.train(
            pretrained, masked(train, seed), setting.pick(2000, 300, 3), 2e-3,
            loss=masked_loss, seed=seed,
        )  # fmt: skip
        for count in counts:
            for name in ("pre-trained", "from scratch"):
                setting.report(f"bert_pretraining: seed {seed}, {count} labels, {name}")
                model = small.seeded(seed, lambda: bert.Bert(config_of("sequence")))
                if name == "pre-trained":
                    model.load_state_dict(pretrained.state_dict(), strict=False)
                data = reviews(train[:count], seed)
                steps = setting.pick(400, 120, 3)
                small.train(model, data, steps, 1e-3, loss=review_loss, seed=seed)
                right = accuracy(model, test)
                yield {"model": name, "labels": count, "seed": seed, "accuracy": right}


def config_of(head: Any) -> bert.Config:
    """A small BERT; with a label for each sequence it takes the mean of all tokens."""
    shape: dict[str, Any] = {
        "d_model": 64,
        "num_heads": 4,
        "d_ff": 128,
        "layers": 2,
        "dropout": 0.1,
    }
    return bert.Config(
        VOCABULARY, head=head, labels=2, pool="mean", max_length=LONGEST + 2, **shape
    )  # fmt: skip


def masked(rows: Sequence[Review], seed: int) -> Iterator[small.Labelled]:
    """Batches of texts in which a fifth of the words is hidden; these are the labels."""
    random = Random(f"masked {seed}")
    while True:
        pairs = []
        for ids, _ in random.choices(rows, k=24):
            hidden = {
                random.randrange(len(ids)),
                *(i for i in range(len(ids)) if random.random() < 0.2),
            }
            tokens = [VOCABULARY if i in hidden else token for i, token in enumerate(ids)]
            pairs.append((tokens, [ids[i] if i in hidden else -1 for i in range(len(ids))]))
        yield small.labelled(pairs)


def masked_loss(model: Any, batch: small.Labelled) -> Terms:
    """The cross-entropy of the hidden words."""
    there = batch.labels >= 0
    x = model.encode(batch.tokens, torch.zeros_like(batch.tokens), batch.segments)
    logits = model.masked_logits(x[there])
    losses = label_smoothed_cross_entropy(logits, batch.labels[there], 0.0)
    return {"labels": (losses.sum(), batch.counts["labels"], 1.0)}


def reviews(rows: Sequence[Review], seed: int) -> Iterator[Reviews]:
    """Batches of labelled texts."""
    random = Random(f"reviews {seed}")
    while True:
        yield gathered(random.choices(rows, k=24))


def gathered(rows: Sequence[Review]) -> Reviews:
    """The batch of these texts."""
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


def accuracy(model: Any, rows: Sequence[Review]) -> float:
    """The share of labels that are right."""
    with torch.inference_mode():
        batch = gathered(rows)
        return float((review_logits(model, batch).argmax(-1) == batch.labels).float().mean())


def draw(rows: Sequence[Row]) -> Picture:
    """Accuracy by the number of labels."""
    counts = sorted({row["labels"] for row in rows})
    lines = {
        name: [100 * mean(rows, "accuracy", model=name, labels=count) for count in counts]
        for name in dict.fromkeys(row["model"] for row in rows)
    }
    return curves(counts, lines, "Reviews labelled right, %", "labelled reviews to learn from")


def judge(rows: Sequence[Row]) -> Verdict:
    """It holds if the pre-trained model is better, by more than seeds differ, with few labels and
    with all."""
    few, all_ = min(row["labels"] for row in rows), max(row["labels"] for row in rows)
    gains = {}
    for count in (few, all_):
        one, other = (
            mean(rows, "accuracy", model=name, labels=count)
            for name in ("pre-trained", "from scratch")
        )
        gains[count] = (one, other)
    (one, other), (late, plain) = gains[few], gains[all_]
    because = Words(
        f"with {few} labels {one:.1%} are right after pre-training and {other:.1%} without; with "
        f"{all_} labels {late:.1%} and {plain:.1%}",
        f"정답이 {few}개이면 사전 학습 뒤 {one:.1%}, 사전 학습 없이 {other:.1%}를 맞힌다. "
        f"{all_}개이면 각각 {late:.1%}, {plain:.1%}이다",
    )
    best = max(one - other, late - plain)
    if best > 0.02:
        return Verdict("holds", because)
    return Verdict("does not hold" if best < 0.005 else "not decided", because)


EXPERIMENT = Experiment(
    "bert_pretraining",
    Words(
        "Pre-training on text without labels helps the task after it.",
        "정답이 없는 글로 먼저 학습하면(사전 학습) 그다음 과제를 더 잘한다.",
    ),
    Words(
        "A small BERT guesses hidden words of film reviews, then learns from few or many labels "
        "whether a review is kind; another learns from the labels alone. Measured is the accuracy "
        "on other reviews.",
        "작은 BERT가 영화평의 가려진 낱말을 맞히고 나서 적거나 많은 정답으로 호평인지 혹평인지를 "
        "배운다. 다른 하나는 정답만으로 배운다. 다른 영화평에서 정확도를 잰다.",
    ),
    keys={"labels": Words("labels", "정답 수"), "model": Words("model", "모델")},
    values={"accuracy": Words("accuracy", "정확도")},
    measure=measure,
    draw=draw,
    judge=judge,
)
