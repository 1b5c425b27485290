"""Cross-attention: where the decoder looks in the source, and what it writes if it cannot look."""

from collections.abc import Iterator, Sequence
from random import Random

from transduct.drawing.plots import heatmap
from transduct.drawing.svg import Picture
from transduct_corpora.texts import english_number, korean_number
from transduct_course import small
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

LARGEST, SHOWN = 10_000, 2025
KOREAN = ("<end>", *"영일이삼사오육칠팔구십백천만")
ENGLISH = sorted({word for n in range(LARGEST) for word in english_number(n).split()})
UNTRAINED, TRAINED, BLIND = "untrained", "trained", "trained, without a source"


def pair_of(number: int, blind: bool = False) -> small.Pair:
    """The English name of a number, or a source that does not tell which it is, and the Korean one,
    as ids."""
    words = [small.FIRST + ENGLISH.index(word) for word in english_number(number).split()]
    target = [small.FIRST + len(ENGLISH) + KOREAN.index(each) for each in korean_number(number)]
    return [small.FIRST] if blind else words, target


def random_pair(random: Random, blind: bool) -> small.Pair:
    """Of a random number below ten thousand; never the one that is shown."""
    number = random.randrange(LARGEST)
    return pair_of(number if number != SHOWN else number + 1, blind)


def measure(setting: Setting) -> Measured:
    """Train to translate the names of numbers, and without a source; compare where syllables look
    with the words that they translate."""
    random = Random("cross")
    numbers = [SHOWN, *random.sample(range(1000, LARGEST), setting.pick(200, 100, 4))]
    for name, seed in setting.each((UNTRAINED, TRAINED, BLIND)):
        model = small.seeded(
            seed, small.transformer_of, len(ENGLISH) + len(KOREAN), decoder_layers=1
        )
        blind = name == BLIND
        if name != UNTRAINED:
            steps = setting.pick(1000, 500, 8) // (4 if blind else 1)
            small.train(model, small.batches(random_pair, 60, seed, blind), steps, seed=seed)
        yield {
            "model": name,
            "seed": seed,
            "exact": small.exact(model, [pair_of(number, blind) for number in numbers]),
            **({} if blind else looked(model, numbers)),
        }


def parts(number: int) -> Iterator[tuple[int, int]]:
    """For each part of a name, thousands, hundreds and the rest, how many English words and Korean
    syllables it has."""
    for value in (1000, 100):
        if digit := number // value % 10:
            yield 2, len(korean_number(digit * value))
    if rest := number % 100:
        yield 1 + ("and" in english_number(number).split()), len(korean_number(rest))


def looked(model: small.Model, numbers: Sequence[int]) -> Row:
    """The share of syllables whose greatest weight, over the mean of all heads, is at a word of
    their own part; and the map of one number."""
    right, total, maps = 0, 0, []
    for number in numbers:
        found = small.attention_of(model, small.batch_of([pair_of(number)]))
        weights = found["decoder.0.cross"][0].mean(0)
        maps.append(weights.round(decimals=3).tolist())
        word = syllable = 0
        for words, syllables in parts(number):
            tops = weights[syllable : syllable + syllables].argmax(-1)
            right += int(((tops >= word) & (tops < word + words)).sum())
            word, syllable, total = word + words, syllable + syllables, total + syllables
    return {"aligned": right / total, "map": maps[0]}


def draw(rows: Rows) -> Picture:
    """The map of a trained translator: from each syllable to the words."""
    row = next((row for row in rows if row["model"] == TRAINED), rows[0])
    syllables = [*korean_number(SHOWN), "<end>"]
    title = "Each syllable (down) looks at a word (across)"
    return heatmap(row["map"], syllables, [*english_number(SHOWN).split(), "<end>"], title)


def judge(rows: Rows) -> list[Verdict]:
    """The map must follow the words that are translated, and the decoder need it."""
    aligned, before = (mean(rows, "aligned", model=name) for name in (TRAINED, UNTRAINED))
    exact, alone = (mean(rows, "exact", model=name) for name in (TRAINED, BLIND))
    return [
        Verdict.of(
            aligned > before + 0.2,
            Words(
                f"{aligned:.0%} of the syllables look most at a word that they translate, "
                f"{before:.0%} before training",
                f"음절의 {aligned:.0%}가 자신이 번역하는 단어를 가장 많이 본다(학습 전 "
                f"{before:.0%})",
            ),
            Words("it finds the word to translate", "번역할 단어를 찾는다"),
        ),
        Verdict.of(
            exact > alone + 0.5,
            Words(
                f"{exact:.0%} of the numbers are translated exactly, {alone:.0%} by a decoder "
                "without a source",
                f"수의 {exact:.0%}를 정확히 번역하고, 원문을 볼 수 없는 디코더는 {alone:.0%}를 "
                "맞힌다",
            ),
            Words("the decoder needs it", "디코더에 필요하다"),
        ),
    ]


EXPERIMENT = Experiment(
    "cross_attention",
    Words(
        "In cross-attention the queries come from the decoder, the keys and values from the top of "
        "the encoder: so each output word finds what it translates.",
        "인코더-디코더 어텐션에서 쿼리는 디코더에서, 키와 밸류는 인코더의 맨 위층에서 온다. 그래서 "
        "출력 단어마다 번역할 단어를 찾는다.",
    ),
    Words(
        "A small Transformer learns to translate the names of numbers from English into Korean, "
        "and once without a source. Measured are exact translations, and whether a syllable looks "
        "most at a word that it translates.",
        "작은 Transformer가 영어로 쓴 수를 한국어로 옮기는 법을 배운다. 한 번은 원문 없이 배운다. "
        "정확한 번역의 비율과, 음절이 자신이 번역하는 단어를 가장 많이 보는지를 측정한다.",
    ),
    keys={"model": Words("model", "모델")},
    values={
        "exact": Words("translated exactly", "정확한 번역"),
        "aligned": Words("looks at the word translated", "번역하는 단어를 봄"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    learnt=lambda row: bool(row["exact"] > 0.5),
    korean={UNTRAINED: "학습 전", TRAINED: "학습 후", BLIND: "원문 없이 학습"},
)
