"""What "it" looks at: encoder heads on sentences in which only the last word tells what it "
"means."""

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import Any

import torch

from transduct.drawing.plots import CURVE_COLOURS
from transduct.drawing.svg import Line, Picture, Shape, Text
from transduct.learning import small
from transduct.learning.experiment import Experiment, Row, Setting, Verdict, Words, mean

ANIMALS = ("animal", "dog", "horse", "child", "bird", "cat")
PLACES = ("street", "river", "bridge", "field", "road", "canal")
OF_ANIMALS = ("tired", "hungry", "afraid", "lazy", "ill", "young")
OF_PLACES = ("wide", "deep", "long", "busy", "steep", "muddy")
TEMPLATES = (
    "the {animal} didn't cross the {place} because it was too {adjective}",
    "the {place} was not crossed by the {animal} because it was too {adjective}",
    "near the {place} the {animal} stopped because it was too {adjective}",
)
WORDS = sorted(
    {*ANIMALS, *PLACES, *OF_ANIMALS, *OF_PLACES}
    | {word for text in TEMPLATES for word in text.split() if "{" not in word}
)


def sentence(random: Random) -> tuple[list[str], str, str]:
    """A sentence, what its "it" means, and the adjective that tells."""
    animal, place = random.choice(ANIMALS), random.choice(PLACES)
    meant, adjectives = random.choice([(animal, OF_ANIMALS), (place, OF_PLACES)])
    adjective = random.choice(adjectives)
    text = random.choice(TEMPLATES).format(animal=animal, place=place, adjective=adjective)
    return text.split(), meant, adjective


def pair(random: Random) -> small.Pair:
    """A sentence as ids; "it" is labelled with the word that it means."""
    words, meant, _ = sentence(random)
    labels = [WORDS.index(meant) if word == "it" else -1 for word in words]
    return [small.FIRST + WORDS.index(word) for word in words], labels


def measure(setting: Setting) -> Iterator[Row]:
    """Train an encoder to say what "it" means, and see where "it" looks; so also before "
    "training."""
    random = Random("test")
    sentences = [sentence(random) for _ in range(setting.pick(200, 100, 6))]
    test = small.labelled(small.pairs(pair, setting.pick(500, 200, 8), "test"))
    for seed in setting.seeds:
        setting.report(f"it_the_animal: seed {seed}")
        model = small.seeded(seed, lambda: small.bert_of(len(WORDS), len(WORDS)))
        yield {"model": "untrained", "seed": seed, **seen(model, sentences, test)}
        data = (small.labelled(small.pairs(pair, 40, f"{seed} {n}")) for n in count())
        small.train(model, data, setting.pick(800, 250, 3), 2e-3, loss=small.label_loss, seed=seed)
        yield {"model": "trained", "seed": seed, **seen(model, sentences, test)}


def seen(
    model: Any, sentences: Sequence[tuple[list[str], str, str]], test: small.Labelled
) -> dict[str, Any]:
    """How often a head's greatest weight from "it" is at what it means, and another's at the
    adjective; and all heads' weights for the sentence of the notes."""
    model.eval()
    found = {"referent": 0, "adjective": 0, "both": 0}
    for words, meant, adjective in sentences:
        tops = [max(zip(row, words, strict=True))[1] for row in from_it(model, words)]
        found["referent"] += meant in tops
        found["adjective"] += adjective in tops
        found["both"] += meant in tops and adjective in tops
    shown = TEMPLATES[0].format(animal="animal", place="street", adjective="tired").split()
    return {
        "accuracy": small.label_accuracy(model, test),
        **{name: times / len(sentences) for name, times in found.items()},
        "words": shown,
        "weights": from_it(model, shown),
    }


def from_it(model: Any, words: list[str]) -> list[list[float]]:
    """The weights of "it" in every head of every layer, layer by layer: (layers * H, S)."""
    weights: list[torch.Tensor] = []
    batch = small.labelled(
        [([small.FIRST + WORDS.index(word) for word in words], [-1] * len(words))]
    )
    with torch.inference_mode():
        small.label_logits(model, batch, weights)
    return [row for layer in weights for row in layer[0, :, words.index("it")].tolist()]


def draw(rows: Sequence[Row]) -> Picture:
    """Lines from "it" to the words, one colour for a head, as thick as the weight; a layer a
    column."""
    row = rows[-1]
    words, weights = row["words"], row["weights"]
    heads = len(weights) // 2
    shapes: list[Shape] = [Text(16, 28, f'Where "it" looks ({row["model"]})', 15, bold=True)]
    for layer in range(2):
        left, top, step = 130 + layer * 360, 84, 24
        here = top + step * words.index("it")
        shapes.append(Text(left - 30, 60, f"layer {layer + 1}", 12, bold=True))
        for number, word in enumerate(words):
            shapes.append(Text(left - 8, top + step * number + 4, word, 12, "end"))
        shapes.append(Text(left + 138, here + 4, "it", 12, bold=True))
        for head in range(heads):
            for number, weight in enumerate(weights[layer * heads + head]):
                if weight > 0.1:
                    start = top + step * number + 3 * head - 4
                    line = ((130.0, here - start + 3.0 * head - 4),)
                    shapes.append(Line(left, start, line, CURVE_COLOURS[head], 4 * weight))
    bottom = 84 + 24 * len(words) + 20
    for head in range(heads):
        shapes += [
            Line(130 + 90 * head, bottom, ((20, 0),), CURVE_COLOURS[head], 3),
            Text(155 + 90 * head, bottom + 4, f"head {head + 1}", 11),
        ]
    return Picture(720, bottom + 24, tuple(shapes))


def judge(rows: Sequence[Row]) -> Verdict:
    """It holds if in most sentences one head looks at the word meant and another at the adjective,
    more than before training."""
    after, before = mean(rows, "both", model="trained"), mean(rows, "both", model="untrained")
    right = mean(rows, "accuracy", model="trained")
    because = Words(
        f'in {after:.0%} of the sentences some head of "it" looks most at the word that it means '
        f"and another at the adjective; before training {before:.0%}; {right:.0%} of the meanings "
        "are right",
        f"문장의 {after:.0%}에서 'it'의 한 헤드는 가리키는 낱말을, 다른 헤드는 형용사를 가장 많이 "
        f"본다. 학습 전에는 {before:.0%}였다. 뜻을 맞힌 비율은 {right:.0%}이다",
    )
    if right < 0.9:
        return Verdict("not decided", because)
    return Verdict("holds" if after > 0.5 and after > before + 0.2 else "does not hold", because)


EXPERIMENT = Experiment(
    "it_the_animal",
    Words(
        'In "the animal didn\'t cross the street because it was too tired", "it" looks at '
        '"animal" in '
        'one head and at "tired" in another.',
        "'길이 아니라 동물이 피곤해서'라는 뜻의 문장에서 it의 한 헤드는 animal을, 다른 헤드는 "
        "tired를 본다.",
    ),
    Words(
        'A small encoder learns what "it" means in sentences where only the adjective tells. '
        'Measured is how often a head\'s greatest weight from "it" is at the word meant, and '
        "another's at the adjective.",
        "작은 인코더가 형용사를 보아야만 'it'의 뜻을 알 수 있는 문장에서 그 뜻을 배운다. 'it'에서 "
        "가장 큰 가중치가 가리키는 낱말에 있는 헤드와 형용사에 있는 헤드가 함께 있는 비율을 잰다.",
    ),
    keys={"model": Words("model", "모델")},
    values={
        "accuracy": Words("meaning right", "뜻을 맞힘"),
        "referent": Words("a head at the word meant", "가리키는 낱말을 보는 헤드"),
        "adjective": Words("a head at the adjective", "형용사를 보는 헤드"),
        "both": Words("both", "둘 다"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
)
