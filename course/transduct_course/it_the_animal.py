"""What "it" looks at: a translator into German, which says "er", "sie" or "es" by what "it"
means."""

from collections.abc import Iterator, Sequence
from itertools import chain, product
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from transduct.drawing.plots import CURVE_COLOURS
from transduct.drawing.svg import Line, Picture, Shape, Text
from transduct.tasks.translation import Batch
from transduct_course import real, small
from transduct_course.charts import slide
from transduct_course.experiment import (
    Experiment,
    Measured,
    Row,
    Rows,
    Setting,
    Verdict,
    Words,
    mean,
)

ARTICLES = {
    "nominative": {"er": "der", "sie": "die", "es": "das"},
    "accusative": {"er": "den", "sie": "die", "es": "das"},
    "dative": {"er": "dem", "sie": "der", "es": "dem"},
}
PRONOUNS = tuple(ARTICLES["nominative"])
OTHERS = 12  # words of the longest sentence beside the templates
HEADS = 4
WIDTH: small.Changes = {"d_model": 128, "d_ff": 256, "num_heads": HEADS}


class Noun(NamedTuple):
    """A noun in both languages, and the German pronoun that stands for it."""

    english: str
    german: str
    pronoun: str

    def __format__(self, case: str) -> str:
        return f"{ARTICLES[case][self.pronoun]} {self.german}"


ANIMALS = (
    Noun("animal", "Tier", "es"),
    Noun("dog", "Hund", "er"),
    Noun("horse", "Pferd", "es"),
    Noun("child", "Kind", "es"),
    Noun("bird", "Vogel", "er"),
    Noun("cat", "Katze", "sie"),
)
PLACES = (Noun("street", "Straße", "sie"), Noun("river", "Fluss", "er"),
          Noun("bridge", "Brücke", "sie"), Noun("field", "Feld", "es"), Noun("path", "Weg", "er"),
          Noun("water", "Wasser", "es"))  # fmt: skip
ADJECTIVES = (
    {"tired": "müde", "hungry": "hungrig", "afraid": "ängstlich", "lazy": "faul", "ill": "krank",
     "young": "jung"},
    {"wide": "breit", "deep": "tief", "long": "lang", "busy": "belebt", "steep": "steil",
     "muddy": "schlammig"},
)  # fmt: skip
TEMPLATES = (
    ("the {0.english} didn't cross the {1.english} because it was too {2} .",
     "{0:nominative} überquerte {1:accusative} nicht , weil {3} zu {2} war ."),
    ("the {1.english} was not crossed by the {0.english} because it was too {2} .",
     "{1:nominative} wurde von {0:dative} nicht überquert , weil {3} zu {2} war ."),
    ("near the {1.english} the {0.english} stopped because it was too {2} .",
     "nahe {1:dative} blieb {0:nominative} stehen , weil {3} zu {2} war ."),
)  # fmt: skip


class Sentence(NamedTuple):
    """A sentence in which only the adjective tells what "it" means.

    Attributes:
        meant, other: the two nouns, in the order of "it" means and does not mean.
    """

    source: list[str]
    target: list[str]
    meant: Noun
    other: Noun
    adjective: str


def sentence(template: int, animal: int, place: int, adjective: int) -> Sentence:
    """One of 1,296. Adjectives from the seventh on are of places."""
    nouns = ANIMALS[animal], PLACES[place]
    english, german = [*(ADJECTIVES[0] | ADJECTIVES[1]).items()][adjective]
    meant, other = nouns if adjective < len(ADJECTIVES[0]) else nouns[::-1]
    source, target = TEMPLATES[template]
    words = target.format(*nouns, german, meant.pronoun)
    text = f"{words[0].upper()}{words[1:]}".split()
    return Sentence(source.format(*nouns, english).split(), text, meant, other, english)


def sentences(tested: bool) -> list[Sentence]:
    """Those to train on, or those to test on: animals and places that never stood together in
    training, whose pronouns differ."""
    return [
        sentence(template, animal, place, each)
        for template, animal, place in product(range(3), range(6), range(6))
        if ((animal + place) % 6 == 0) is tested
        and not (tested and ANIMALS[animal].pronoun == PLACES[place].pronoun)
        for each in range(12)
    ]


class Translated(NamedTuple):
    """What the translator is trained on: pairs as ids, templates and others, and its words."""

    templates: list[small.Pair]
    others: list[small.Pair]
    words: list[str]

    def ids(self, words: Sequence[str]) -> small.Ids:
        """The ids of words that it knows."""
        return [small.FIRST + self.words.index(word) for word in words]

    def pronoun(self, tokens: small.Ids) -> str:
        """The first pronoun of a translation; empty if it has none."""
        words = (self.words[token - small.FIRST] for token in tokens if token >= small.FIRST)
        return next((word for word in words if word in PRONOUNS), "")


def data(setting: Setting) -> Translated:
    """The templates and, where there are any, short everyday sentences of common words."""
    pairs = [(each.source, each.target) for each in sentences(tested=False)]
    words = sorted({word for pair in pairs for side in pair for word in side})
    texts: list[tuple[list[str], list[str]]] = []
    if folder := setting.found("tatoeba_en_de"):
        files = (folder / "train.en.xz", folder / "train.de.xz")
        texts = [
            (real.words_of(source.lower()), real.words_of(target))
            for source, target in real.short_pairs(files, OTHERS, setting.pick(100_000, 20_000, 60))
        ]
    common = (real.commonest((pair[side] for pair in texts), 2000) for side in (0, 1))
    words = [*dict.fromkeys(chain(words, *common))]
    numbers = {word: small.FIRST + place for place, word in enumerate(words)}
    templates, others = (
        [
            ([numbers[word] for word in source], [numbers[word] for word in target])
            for source, target in each
            if numbers.keys() >= {*source, *target}
        ]
        for each in (pairs, texts)
    )
    return Translated(templates, others, words)


def measure(setting: Setting) -> Measured:
    """Train translators, a quarter of whose sentences are templates where there are others; look
    at pairs of nouns that they have not seen, before and after."""
    known = data(setting)
    test = sentences(tested=True)[:: setting.pick(1, 1, 20)]
    for [seed] in setting.each():
        model = small.seeded(seed, small.transformer_of, len(known.words), **WIDTH)
        yield {"model": "untrained", "seed": seed, **looked(model, known, test)}
        small.train(model, mixed(known, seed), setting.pick(2000, 400, 3), seed=seed)
        yield {"model": "trained", "seed": seed, **looked(model, known, test)}


def mixed(known: Translated, seed: int) -> Iterator[Batch]:
    """Batches of which a quarter are templates; all where there is nothing else."""
    random = Random(f"mixed {seed}")
    while True:
        rows = random.choices(known.templates, k=8)
        yield small.batch_of([*rows, *random.choices(known.others or known.templates, k=24)])


def looked(model: small.Model, known: Translated, test: Sequence[Sentence]) -> Row:
    """How often the pronoun that the model writes is right; how often "it" in the encoder, and the
    German pronoun in the decoder, give more weight to the noun meant than to the other, in the head
    of each that does it best in sentences of training."""
    model.eval()
    trained = sentences(tested=False)[:: max(1, 1100 // len(test))]
    seen, new = ([at_meant(model, known, each) for each in part] for part in (trained, test))
    best = {side: int(torch.stack([e[side] for e in seen]).sum(0).argmax()) for side in seen[0]}
    written = small.answers(model, [known.ids(each.source) for each in test], 16)
    right = sum(
        known.pronoun(tokens) == each.meant.pronoun
        for tokens, each in zip(written, test, strict=True)
    )
    shown = sentence(0, 0, 0, 0), sentence(0, 0, 0, len(ADJECTIVES[0]))  # tired, wide
    return {
        "right": right / len(test),
        **{
            side: float(sum(each[side][head] for each in new) / len(test))
            for side, head in best.items()
        },
        "head": best["pronoun"] % HEADS,
        "panels": [panel(model, known, each, best["pronoun"] // HEADS) for each in shown],
    }


def maps(model: small.Model, known: Translated, each: Sentence, side: str) -> dict[str, Tensor]:
    """The weights (H, T, S) of the encoder or the decoder, which has the right words before."""
    batch = small.batch_of([(known.ids(each.source), known.ids(each.target))])
    found = small.attention_of(model, batch)
    return {name: weights[0] for name, weights in found.items() if name.startswith(side)}


def at_meant(model: small.Model, known: Translated, each: Sentence) -> dict[str, Tensor]:
    """For all heads whether the noun meant has more weight than the other: from "it" in the
    encoder, and from the pronoun in the decoder, to either sentence."""
    found = {}
    for side, part, place in (
        ("it", "encoder", each.source.index("it")),
        ("pronoun", "decoder", each.target.index(each.meant.pronoun)),
    ):
        heads = []
        for name, weights in maps(model, known, each, part).items():
            own = name.startswith("decoder") and name.endswith("self")
            meant, other = (
                1 + each.target.index(noun.german) if own else each.source.index(noun.english)
                for noun in (each.meant, each.other)
            )  # the inputs of the decoder begin one place earlier
            heads.append(weights[:, place, meant] > weights[:, place, other])
        found[side] = torch.cat(heads).float()
    return found


def panel(model: small.Model, known: Translated, each: Sentence, number: int) -> Row:
    """What the picture shows of a map of the decoder: words, and the pronoun's weights."""
    name, weights = [*maps(model, known, each, "decoder").items()][number]
    words = ["<begin>", *each.target[:-1]] if name.endswith("self") else each.source
    pronoun = weights[:, each.target.index(each.meant.pronoun), : len(words)]
    return {"words": words, "from": each.meant.pronoun, "name": name, "weights": pronoun.tolist()}


def lines_from(panel: Row, best: int) -> Picture:
    """Lines from the pronoun to the words, one colour for a head, as thick as the weight."""
    words, step, here = panel["words"], 24, 60 + 12 * len(panel["words"])
    shapes: list[Shape] = [Text(16, 28, f'"{panel["from"]}" in {panel["name"]}', 15, bold=True)]
    shapes += [Text(112, 64 + step * n, word, 12, "end") for n, word in enumerate(words)]
    shapes.append(Text(268, here + 4, panel["from"], 12, bold=True))
    for head, weights in enumerate(panel["weights"]):
        for number, weight in enumerate(weights):
            start = 56 + step * number + 2 * head
            if weight > 0.05:
                line = ((140.0, here + 2.0 * head - 4 - start),)
                shapes.append(Line(120, start, line, CURVE_COLOURS[head], 6 * weight))
        name = f"head {head + 1}{', the best' if head == best else ''}"
        shapes += [
            Line(272, 64 + 20 * head, ((20, 0),), CURVE_COLOURS[head], 3),
            Text(296, 68 + 20 * head, name, 11),
        ]
    return Picture(400, 64 + step * len(words), tuple(shapes))


def judge(rows: Rows) -> Iterator[Verdict]:
    """The pronoun tells whether the model knows what "it" means; a head must look at the noun
    meant clearly more often than chance, and than before training."""
    trained = [row for row in rows if row["model"] == "trained"]
    right = mean(trained, "right")
    yield Verdict.of(
        right > 0.9,
        Words(
            f"of nouns never seen together {right:.0%} of the pronouns that it writes are "
            "right (there are two to choose from: a guess has 50%)",
            f"함께 나온 적이 없는 명사들에 대해 번역한 대명사의 {right:.0%}가 맞다(둘 중 "
            "하나이므로 찍으면 50%다)",
        ),
        Words('it knows what "it" means', "it의 뜻을 안다"),
    )
    for side, part in (
        ("it", Words('"it" looks at what it means', "it이 가리키는 낱말을 본다")),
        ("pronoun", Words("the German pronoun does", "독일어 대명사가 가리키는 낱말을 본다")),
    ):
        after, before = mean(trained, side), mean(rows, side, model="untrained")
        because = Words(
            f"its best head gives the noun meant more weight than the other in {after:.0%} of the "
            f"sentences, {before:.0%} before training (chance: 50%)",
            "가장 좋은 헤드에서 가리키는 명사의 가중치가 다른 명사보다 큰 문장은 "
            f"{after:.0%}다(학습 전 {before:.0%}, 우연이면 50%)",
        )
        looks = after > 0.75 and after > before + 0.2
        yield Verdict.of(looks if right > 0.7 else None, because, part)


EXPERIMENT = Experiment(
    "it_the_animal",
    Words(
        'In "the animal didn\'t cross the street because it was too tired" a model learns by '
        'itself that "it" goes with "animal".',
        "'동물이 너무 피곤해서 길을 건너지 않았다'에서 it이 animal이라는 것을 모델이 스스로 "
        "배운다.",
    ),
    Words(
        'A small translator learns German, where the pronoun shows what "it" means: er, sie or '
        "es. A quarter of its sentences are of this form, and the others are everyday ones. "
        'Measured are right pronouns, and where "it" and the pronoun look, for nouns never seen '
        "together.",
        "작은 모델이 독일어 번역을 배운다. 독일어 대명사 er, sie, es는 it이 무엇인지 드러낸다. "
        "학습 문장의 4분의 1은 이런 문장이고, 나머지는 일상 문장이다. 함께 나온 적이 없는 "
        "명사들로 대명사가 맞는지, it과 대명사가 어디를 보는지 측정한다.",
    ),
    keys={"model": Words("model", "모델")},
    values={
        "right": Words("pronoun right", "맞은 대명사"),
        "it": Words('"it" looks at the noun meant', "it이 가리키는 명사를 봄"),
        "pronoun": Words("the pronoun does", "대명사가 가리키는 명사를 봄"),
    },
    measure=measure,
    # The sentence of the notes, and the same of a wide street: the heads beside the best one.
    draw=lambda rows: slide(*(lines_from(each, rows[-1]["head"]) for each in rows[-1]["panels"])),
    judge=judge,
    learnt=lambda row: bool(row["right"] > 0.7),
    korean={"untrained": "학습 전", "trained": "학습 후"},
)
