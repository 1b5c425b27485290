"""Without positions a Transformer does not see the order of its input."""

from collections.abc import Sequence
from random import Random

from transduct_course import small
from transduct_course.charts import Chart, by_kind, slide
from transduct_course.experiment import Experiment, Measured, Rows, Setting, Verdict, Words, mean

ADJECTIVES = ("small", "big", "old", "green", "tired", "hungry")
NOUNS = ("man", "dinosaur", "bird", "dog", "child", "fish")
VERBS = ("eats", "sees", "follows")
WORDS = (*ADJECTIVES, *NOUNS, *VERBS, "the", "today", "not")
RNN = "GRU"  # reads one word after another and needs no positions
SCHEMES = ("none", "sinusoidal", "learned", "relative", "alibi", RNN)
CHANGES = ("none", "missing", "shifted", "swapped")
SHOWN = {
    "right": "as it is",
    "missing": "a word missing",
    "shifted": "shifted by a word",
    "swapped": "two words swapped",
    "same_when_shuffled": "shuffled: same answer",
}


def ids(words: Sequence[str]) -> small.Ids:
    """The ids of words."""
    return [small.FIRST + WORDS.index(word) for word in words]


def sentence(random: Random) -> tuple[list[str], list[str]]:
    """A sentence such as "the small man eats the dinosaur" and who does it, what and to whom."""
    (subject, other), verb = random.sample(NOUNS, 2), random.choice(VERBS)
    of_subject, of_other = random.sample(ADJECTIVES, 2)
    words = ["the", of_subject, subject, verb, "the", of_other, other]
    return words, [subject, of_subject, verb, other, of_other]


def pair(random: Random) -> small.Pair:
    """A sentence and its meaning, as ids."""
    source, target = sentence(random)
    return ids(source), ids(target)


def changed(source: small.Ids, kind: str, random: Random) -> small.Ids:
    """A sentence with an article left out, a word before it, or two neighbours that change places
    without changing what it says."""
    place = random.choice([0, 4]) if kind in ("missing", "swapped") else 0
    article, adjective, *rest = source[place:]
    instead = {
        "missing": [adjective],
        "shifted": [*ids(["today"]), article, adjective],
        "swapped": [adjective, article],
    }
    return [*source[:place], *instead.get(kind, [article, adjective]), *rest]


def measure(setting: Setting) -> Measured:
    """Train to say who does what to whom, with each scheme of positions."""
    steps, count = setting.pick(1500, 300, 3), setting.pick(1000, 300, 8)
    test = small.pairs(pair, count, "test")
    for scheme, seed in setting.each(setting.pick(SCHEMES, (*SCHEMES[:3], RNN), SCHEMES[:2])):
        model, _ = small.train(
            small.seeded(seed, built, scheme), small.batches(pair, 60, seed), steps, seed=seed
        )
        random = Random(seed)
        scores = {
            kind: small.exact(model, [(changed(s, kind, random), t) for s, t in test])
            for kind in CHANGES
        }
        yield {
            "positions": scheme,
            "seed": seed,
            "right": scores.pop("none"),
            "same_when_shuffled": unmoved(model, test, random),
            **scores,
        }


def built(scheme: str) -> small.Model:
    """A Transformer with these positions, or a recurrent network whose source is one vector."""
    if scheme == RNN:
        return small.rnn_of(len(WORDS), attention="none")
    return small.transformer_of(len(WORDS), positions=scheme)


def unmoved(model: small.Model, test: Sequence[small.Pair], random: Random) -> float:
    """The share of sentences whose answer stays the same when all their words are shuffled."""
    shuffled = [random.sample(source, len(source)) for source, _ in test]
    before = small.answers(model, [source for source, _ in test])
    after = small.answers(model, shuffled)
    return sum(a == b for a, b in zip(before, after, strict=True)) / len(test)


def judge(rows: Rows) -> list[Verdict]:
    """It holds if without positions shuffling changes no answer and only with them they are
    right."""
    without, same = (
        mean(rows, value, positions="none") for value in ("right", "same_when_shuffled")
    )
    others = [row for row in rows if row["positions"] not in ("none", RNN)]
    best = max(mean(others, "right", positions=row["positions"]) for row in others)
    reads = mean(rows, "right", positions=RNN)
    return [
        Verdict.of(
            same > 0.99 and best > without + 0.2,
            Words(
                f"without positions {same:.0%} of the answers stay the same when the words are "
                f"shuffled, and {without:.0%} are right; the best scheme has {best:.0%} right",
                f"위치 인코딩이 없으면 단어를 뒤섞어도 답의 {same:.0%}가 그대로이고 정확도는 "
                f"{without:.0%}뿐이다. 가장 좋은 위치 인코딩은 {best:.0%}를 맞힌다",
            ),
            Words("a Transformer needs positions", "Transformer에는 위치 인코딩이 필요하다"),
        ),
        Verdict.of(
            reads > without + 0.2,
            Words(
                f"a GRU without positions and attention has {reads:.0%} right",
                f"위치 인코딩도 어텐션도 없는 GRU는 {reads:.0%}를 맞힌다",
            ),
            Words("a recurrent network sees order by itself", "순환 신경망은 스스로 순서를 안다"),
        ),
    ]


EXPERIMENT = Experiment(
    "order",
    Words(
        'Without positions a Transformer does not see the order of words: "small man eats '
        'dinosaur" '
        'and "small dinosaur eats man" are the same to it.',
        "위치 인코딩이 없으면 Transformer는 순서를 모른다. '작은 사람이 공룡을 먹는다'와 '작은 "
        "공룡이 사람을 먹는다'를 구별하지 못한다.",
    ),
    Words(
        "Small Transformers learn to say who does what to whom, with and without positions. "
        "Measured are the right answers, also with a word missing, shifted or swapped, and the "
        "answers that stay the same when all words are shuffled.",
        "작은 Transformer가 '누가 누구에게 무엇을 하는가'를 위치 인코딩이 있을 때와 없을 때 각각 "
        "배운다. 정확도, 단어가 빠지거나 밀리거나 바뀌었을 때의 정확도, 단어를 모두 "
        "뒤섞어도 그대로인 답의 비율을 측정한다.",
    ),
    keys={"positions": Words("positions", "위치 인코딩")},
    values={
        "right": Words("right", "정확도"),
        "same_when_shuffled": Words("same when shuffled", "뒤섞어도 같은 답"),
        "missing": Words("right, word missing", "단어가 빠졌을 때"),
        "shifted": Words("right, shifted", "한 칸 밀렸을 때"),
        "swapped": Words("right, swapped", "두 단어가 바뀌었을 때"),
    },
    measure=measure,
    draw=lambda rows: slide(
        Chart(
            by_kind(rows, SHOWN),
            "kind",
            "value",
            "positions",
            "Right answers, by change of the sentence",
            "",
            "%",
            100,
            bars=True,
        )
    ),
    judge=judge,
    learnt=lambda row: bool(row["right"] > 0.5),
    korean={
        "none": "없음",
        "learned": "학습한 벡터",
        "sinusoidal": "사인",
        "relative": "상대 위치",
        "alibi": "ALiBi",
    },
)
