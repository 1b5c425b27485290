"""The same word with other neighbours gets another vector; a feed-forward layer alone cannot do
that."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import torch

from transduct.drawing.svg import Picture
from transduct.segments import Segments
from transduct_course import small
from transduct_course.charts import Chart, slide
from transduct_course.experiment import Experiment, Row, Setting, Verdict, Words, mean

AMBIGUOUS = ("bank", "bat", "spring", "match", "seal", "crane")
HINTS = (("river", "animal", "water", "wild", "nature", "bird"),
         ("money", "game", "steel", "letter", "office", "machine"))  # fmt: skip
WORDS = (*AMBIGUOUS, *HINTS[0], *HINTS[1])
LAYERS = 3


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


def measure(setting: Setting) -> Iterator[Row]:
    """Train to name the sense, with attention and without."""
    steps = setting.pick(600, 200, 3)
    rows = small.pairs(pair, setting.pick(600, 200, 24), "test")
    for name, seed in setting.each(("with attention", "feed-forward alone")):
        seen = apart if name == "feed-forward alone" else small.labelled
        test, model = seen(rows), small.seeded(seed, built)
        data = (seen(small.pairs(pair, 50, f"{seed} {n}")) for n in count())
        small.train(model, data, steps, 2e-3, loss=small.label_loss, seed=seed)
        by_layer = distances(model, test)
        yield {
            "model": name,
            "seed": seed,
            "accuracy": small.label_accuracy(model, test),
            "distance": by_layer[-1],
            "by_layer": by_layer,
        }


def built() -> Any:
    """An encoder of three layers that names senses."""
    return small.bert_of(len(WORDS), 2 * len(AMBIGUOUS), layers=LAYERS, positions="none")


def distances(model: Any, batch: small.Labelled) -> list[float]:
    """After the embedding and each layer, how far apart a word's mean vectors in its two senses
    lie, as a part of their length."""
    with torch.inference_mode():
        x = model.embedding(batch.tokens, batch.segments.positions)
        states = [x]
        for layer in model.encoder:
            states.append(layer(states[-1], batch.segments))
    found = []
    for state in states:
        parts = []
        for word in range(len(AMBIGUOUS)):
            one, other = (state[batch.labels == 2 * word + sense].mean(0) for sense in (0, 1))
            parts.append(float((one - other).norm() / (0.5 * (one.norm() + other.norm()))))
        known = [part for part in parts if part == part]
        found.append(sum(known) / max(1, len(known)))
    return found


def draw(rows: Sequence[Row]) -> Picture:
    """The distance of the two senses' vectors after each layer."""
    found = [
        {"model": row["model"], "layer": layer, "far": far}
        for row in rows
        for layer, far in enumerate(row["by_layer"])
    ]
    title = "One word in two senses: distance of its vectors"
    return slide(Chart(found, "layer", "far", "model", title, "layer (0: the embedding)"))


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """It holds if with attention the vectors differ and the senses are known, and without
    neither."""
    far, near = (mean(rows, "distance", model=m) for m in ("with attention", "feed-forward alone"))
    right, alone = (
        mean(rows, "accuracy", model=m) for m in ("with attention", "feed-forward alone")
    )
    because = Words(
        f"with attention the vectors of one word in two senses are {far:.2f} of their length apart "
        f"and {right:.0%} of the senses are right; feed-forward layers alone: {near:.2f} and "
        f"{alone:.0%}",
        f"어텐션이 있으면 같은 낱말의 두 뜻 벡터가 길이의 {far:.2f}배만큼 떨어지고 뜻을 "
        f"{right:.0%} 맞힌다. 피드포워드 층만 있으면 각각 {near:.2f}배, {alone:.0%}이다",
    )
    return [Verdict.of(far > 0.1 and near < 1e-3 and alone < 0.7, because)]


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
    draw=draw,
    judge=judge,
    learnt=lambda row: bool(row["accuracy"] > 0.9),
    korean={"with attention": "어텐션 있음", "feed-forward alone": "피드포워드만"},
)
