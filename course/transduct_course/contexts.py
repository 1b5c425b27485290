"""The same word with other neighbours gets another vector; a feed-forward layer alone cannot do
that."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import fmean

import torch
from torch import Tensor

from transduct.segments import Segments
from transduct_course import small
from transduct_course.charts import Chart, by_place, slide
from transduct_course.experiment import Experiment, Measured, Rows, Setting, Verdict, Words, mean

AMBIGUOUS = ("bank", "bat", "spring", "match", "seal", "crane")
HINTS = (("river", "animal", "water", "wild", "nature", "bird"),
         ("money", "game", "steel", "letter", "office", "machine"))  # fmt: skip
WORDS = (*AMBIGUOUS, *HINTS[0], *HINTS[1])
LAYERS = 3
ATTENTION, ALONE = "with attention", "feed-forward alone"


def pair(random: Random) -> small.Pair:
    """An ambiguous word among three that hint at one of its two senses; it is labelled with its
    sense."""
    word, sense = random.choice(AMBIGUOUS), random.randrange(2)
    row = random.choices(HINTS[sense], k=3)
    place = random.randrange(4)
    row.insert(place, word)
    labels = [-1] * 4
    labels[place] = 2 * AMBIGUOUS.index(word) + sense
    return [small.FIRST + WORDS.index(each) for each in row], labels


def apart(rows: Sequence[small.Pair]) -> small.Labelled:
    """The words of sequences, each a sequence of its own: attention sees only the word itself, and
    all that is left are feed-forward layers."""
    batch = small.labelled(rows)
    return replace(batch, segments=Segments.of([1] * len(batch.tokens)))


def measure(setting: Setting) -> Measured:
    """Train to name the sense, with attention and without."""
    rows = small.pairs(pair, setting.pick(600, 200, 24), "test")
    for name, seed in setting.each((ATTENTION, ALONE)):
        seen = apart if name == ALONE else small.labelled
        model, _ = small.train(
            small.seeded(seed, built),
            small.batches(pair, 50, seed, make=seen),
            setting.pick(600, 200, 3),
            loss=small.label_loss,
            seed=seed,
        )
        by_layer = distances(model, test := seen(rows))
        yield {
            "model": name,
            "seed": seed,
            "accuracy": small.label_accuracy(model, test),
            "distance": by_layer[-1],
            "by_layer": by_layer,
        }


def built() -> small.Model:
    """An encoder of three layers that names senses."""
    return small.bert_of(len(WORDS), 2 * len(AMBIGUOUS), layers=LAYERS, positions="none")


@torch.inference_mode()
def distances(model: small.Model, batch: small.Labelled) -> list[float]:
    """After the embedding and each layer, how far apart a word's mean vectors in its two senses
    lie, as a part of their length."""
    states = [model.embedding(batch.tokens, batch.segments.positions)]
    for layer in model.encoder:
        states.append(layer(states[-1], batch.segments))
    return [
        fmean(between(state, batch.labels, word) for word in range(len(AMBIGUOUS)))
        for state in states
    ]


def between(state: Tensor, labels: Tensor, word: int) -> float:
    """The distance of the mean vectors of a word's two senses."""
    one, other = (state[labels == 2 * word + sense].mean(0) for sense in (0, 1))
    return float((one - other).norm() / (0.5 * (one.norm() + other.norm())))


def judge(rows: Rows) -> list[Verdict]:
    """It holds if with attention the vectors differ and the senses are known, and without
    neither."""
    (far, right), (near, alone) = (
        [mean(rows, value, model=name) for value in ("distance", "accuracy")]
        for name in (ATTENTION, ALONE)
    )
    return [
        Verdict.of(
            far > 0.1 and near < 1e-3 and alone < 0.7,
            Words(
                f"with attention the vectors of one word in two senses are {far:.2f} of their "
                f"length apart and {right:.0%} of the senses are right; feed-forward layers alone: "
                f"{near:.2f} and {alone:.0%}",
                f"어텐션이 있으면 같은 낱말의 두 뜻 벡터가 길이의 {far:.2f}배만큼 떨어지고 뜻을 "
                f"{right:.0%} 맞힌다. 피드포워드 층만 있으면 각각 {near:.2f}배, {alone:.0%}이다",
            ),
        )
    ]


EXPERIMENT = Experiment(
    "contexts",
    Words(
        "The same word with other neighbours gets another vector; a feed-forward layer cannot do "
        "that.",
        "같은 단어라도 이웃이 다르면 다른 벡터가 된다. 피드포워드 층만으로는 그렇게 할 수 없다.",
    ),
    Words(
        'A small encoder names the sense of words such as "bank" among words that hint at it, '
        "with attention and with each word by itself. Measured are right senses, and how far "
        "apart the vectors of one word in two senses lie.",
        "작은 인코더가 bank처럼 뜻이 둘인 낱말의 뜻을 주변 낱말로 알아맞힌다. 어텐션이 있을 때와 "
        "낱말을 따로따로 볼 때, 뜻을 맞힌 비율과 두 뜻의 벡터가 떨어진 정도를 측정한다.",
    ),
    keys={"model": Words("model", "모델")},
    values={
        "accuracy": Words("sense right", "뜻을 맞힘"),
        "distance": Words("distance of the two vectors", "두 벡터의 거리"),
    },
    measure=measure,
    draw=lambda rows: slide(
        Chart(
            by_place(rows, "by_layer"),
            "place",
            "value",
            "model",
            "One word in two senses: distance of its vectors",
            "layer (0: the embedding)",
        )
    ),
    judge=judge,
    learnt=lambda row: bool(row["accuracy"] > 0.9),
    korean={ATTENTION: "어텐션 있음", ALONE: "피드포워드만"},
)
