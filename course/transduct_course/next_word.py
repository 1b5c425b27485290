"""The linear layer and softmax give a probability to every next word; then the likeliest is taken,
or one is drawn, or several beginnings are kept."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

from transduct.data.tokenizer import Tokenizer
from transduct.drawing.plots import FAINT
from transduct.drawing.svg import INK, Line, Picture, Shape, Text, moved
from transduct.inference.engine import generate
from transduct.inference.settings import DecodingConfig
from transduct_corpora.texts import english_number, korean_number
from transduct_course import real, small
from transduct_course.charts import cells, slide
from transduct_course.experiment import Experiment, Row, Setting, Verdict, Words

LARGEST, SHOWN, BEAM = 10_000, 2025, 3
KOREAN = ("<end>", *"영일이삼사오육칠팔구십백천만")
ENGLISH = sorted({word for n in range(LARGEST) for word in english_number(n).split()})


QUESTION = "are you tired ?"  # of a German "you" there are three
TEMPERATURES = (0.5, 1.0, 2.0)
NUMBERS, REAL = "numbers", "tatoeba, English to German"


class Node(NamedTuple):
    """A beginning that beam search kept: its last token, log-probability and parent."""

    token: str
    score: float
    parent: int


class Translator(NamedTuple):
    """A trained model, and what is shown of it.

    Attributes:
        source: the words that it translates, as ids.
        right: the translations that count as right.
        shown: the source as it is shown.
        word: the word of an id; a blank joins them where `joint` says so.
    """

    data: str
    model: Any
    source: small.Ids
    right: list[small.Ids]
    shown: str
    word: Callable[[int], str]
    joint: str


def pair_of(number: int) -> small.Pair:
    """The English name of a number and the Korean one, as ids."""
    source = [small.FIRST + ENGLISH.index(word) for word in english_number(number).split()]
    target = [small.FIRST + len(ENGLISH) + KOREAN.index(each) for each in korean_number(number)]
    return source, target


def draw_pair(random: Random) -> small.Pair:
    """A random number below ten thousand; never the one that is shown."""
    number = random.randrange(LARGEST)
    return pair_of(number if number != SHOWN else number + 1)


def named(words: Sequence[str]) -> Callable[[int], str]:
    """The word of an id, when the ids of words begin after the special tokens."""
    return lambda token: (
        words[token - small.FIRST]
        if token >= small.FIRST
        else KOREAN[0]
        if token == Tokenizer.END
        else f"<{token}>"
    )


def of_numbers(setting: Setting) -> Translator:
    """A translator of the names of numbers."""
    model = small.seeded(1, lambda: small.transformer_of(len(ENGLISH) + len(KOREAN)))
    steps = setting.pick(2500, 500, 3)
    small.train(model, small.batches(draw_pair, 60, 1), steps, 2e-3)
    source, target = pair_of(SHOWN)
    word = named([*ENGLISH, *KOREAN])
    return Translator(NUMBERS, model, source, [target], english_number(SHOWN), word, "")


def of_sentences(setting: Setting, folder: Path) -> Translator:
    """A translator of short everyday sentences of common words, of which the one that is shown is
    left out."""
    texts = [
        (real.words_of(source.lower()), real.words_of(target))
        for source, target in real.short_pairs(
            (folder / "train.en.xz", folder / "train.de.xz"), 6, setting.pick(80_000, 20_000, 60)
        )
    ]
    sides = [real.commonest((pair[side] for pair in texts), 1500) for side in (0, 1)]
    words = ["<end>", *sides[0], *sides[1]]
    known = [
        {each: small.FIRST + place for place, each in enumerate(words) if here <= place < there}
        for here, there in ((1, 1 + len(sides[0])), (1 + len(sides[0]), len(words)))
    ]

    def ids(side: int, text: Sequence[str]) -> small.Ids:
        return [known[side].get(each, Tokenizer.UNKNOWN) for each in text]

    asked, rows, right = QUESTION.split(), [], []
    for source, target in texts:
        pair = ids(0, source), ids(1, target)
        if source == asked:
            right.append(pair[1])
        elif Tokenizer.UNKNOWN not in (*pair[0], *pair[1]):
            rows.append(pair)
    model = small.seeded(1, lambda: small.transformer_of(len(words)))
    small.train(model, real.batches(rows, 48, 1), setting.pick(2500, 400, 3), 2e-3)

    return Translator(REAL, model, ids(0, asked), right, QUESTION, named(words), " ")


def measure(setting: Setting) -> Iterator[Row]:
    """A translation step by step, its beams, and draws at three temperatures; of a number and,
    where there are any, of a sentence."""
    setting.report("next_word: training a translator of numbers")
    yield from shown_of(setting, of_numbers(setting))
    if setting.has("tatoeba_en_de"):
        setting.report("next_word: training a translator of short sentences")
        yield from shown_of(setting, of_sentences(setting, setting.folder("tatoeba_en_de")))


def shown_of(setting: Setting, translator: Translator) -> Iterator[Row]:
    """The steps of a translation, its beams, and draws."""
    data, model, source, right, about, word, joint = translator
    written = small.answers(model, [source], 12)[0]
    nodes = beams(model, source, setting.pick(8, 8, 3), word)
    for place, found in enumerate(distributions(model, source, [*written, Tokenizer.END])):
        top = found.topk(6)
        words = [(word(i), p) for i, p in zip(top.indices.tolist(), top.values.tolist())]
        row = row_of(f"step {place + 1} of {about}", words, float(found.sum()))
        first = place == 0
        yield row | {
            "data": data, "beams": nodes if first else None, "right": written in right
        }  # fmt: skip
    for temperature in TEMPERATURES:
        config = DecodingConfig(beam=setting.pick(200, 100, 4), temperature=temperature, workers=1)
        sources = [[*source, Tokenizer.END]]
        [drawn] = generate(model, sources, [12], config, Tokenizer.BEGIN, Tokenizer.END)
        share = sum([*each.tokens] in right for each in drawn) / len(drawn)
        texts = [joint.join(map(word, each.tokens)) for each in drawn]
        counted = sorted(((texts.count(t) / len(texts), t) for t in {*texts}), reverse=True)
        row = row_of(f"draws at temperature {temperature}", [(t, p) for p, t in counted[:6]], 1.0)
        yield row | {"data": data, "share_right": share}


def row_of(what: str, top: list[tuple[str, float]], total: float | None = None) -> Row:
    """A distribution by its likeliest words."""
    total = sum(p for _, p in top) if total is None else total
    second = top[1][1] if len(top) > 1 else 0.0
    about = {"likeliest": top[0][0], "first": top[0][1], "second": second, "total": total}
    return {"what": what, **about, "share_right": None, "top": [list(each) for each in top]}


def distributions(model: Any, source: small.Ids, target: small.Ids) -> list[torch.Tensor]:
    """The probabilities of all words at each place of a target."""
    with torch.inference_mode():
        return [*small.forced_logits(model, small.batch_of([(source, target[:-1])])).softmax(-1)]


def beams(
    model: Any, source: small.Ids, steps: int, word: Callable[[int], str]
) -> list[list[Node]]:
    """What beam search keeps, step by step, the plain way: every beginning by itself."""
    kept: list[tuple[small.Ids, float]] = [([], 0.0)]
    levels: list[list[Node]] = []
    for _ in range(steps):
        found: list[tuple[float, int, int]] = []
        for number, (ids, score) in enumerate(kept):
            if ids[-1:] == [Tokenizer.END]:
                found.append((score, number, Tokenizer.END))
                continue
            last = distributions(model, source, [*ids, Tokenizer.END])[len(ids)].log()
            top = last.topk(BEAM)
            found += [
                (score + p, number, t) for p, t in zip(top.values.tolist(), top.indices.tolist())
            ]
        best = sorted(found, reverse=True)[:BEAM]
        levels.append([Node(word(token), score, parent) for score, parent, token in best])
        kept = [
            (kept[parent][0] if kept[parent][0][-1:] == [Tokenizer.END] else
             [*kept[parent][0], token], score)
            for score, parent, token in best
        ]  # fmt: skip
        if all(ids[-1] == Tokenizer.END for ids, _ in kept):
            break
    return levels


def draw(rows: Sequence[Row]) -> Picture:
    """Of the last translation: the likeliest words of each step, the kept beginnings as a tree, and
    what was drawn most often."""
    own = [row for row in rows if row["data"] == rows[-1]["data"]]
    steps, drawn = ([row for row in own if row["what"].startswith(kind)] for kind in ("st", "dr"))
    lines = [[(f"{word} {share:.0%}", share) for word, share in row["top"][:4]] for row in steps]
    beams: Any = next((row["beams"] for row in steps if row.get("beams")), [])
    shapes = [*slide(cells(lines, f"{own[0]['data']}: likeliest next words", 94),
                     Picture(400, 225, tuple(tree(beams))), rows_of=2).shapes]  # fmt: skip
    if drawn:
        often = [
            [(f"{share:.0%} {text}", share) if share > 0.005 else ("", 0.0)
             for text, share in [*row["top"], *[("", 0.0)] * 5][:5]]
            for row in drawn
        ]  # fmt: skip
        columns = [[(row["what"], 0.0) for row in drawn], *map(list, zip(*often, strict=True))]
        shapes += moved(cells(columns, "Drawn most often", 776 / len(drawn)).shapes, 0, 236)
    return Picture(800, 450, tuple(shapes))


def tree(levels: Sequence[Sequence[Any]]) -> list[Shape]:
    """Each beginning a line from its parent; the best on top. Those that led nowhere are pale."""
    alive: list[set[int]] = [{0}]
    for level in reversed(levels):
        alive.insert(0, {level[number][2] for number in alive[0]})
    shapes: list[Shape] = [Text(12, 20, f"Beam search, {BEAM} beginnings", 13, bold=True)]
    step = 376 / max(1, len(levels))
    for depth, level in enumerate(levels):
        for number, (token, score, parent) in enumerate(level):
            x, y = 12 + step * (depth + 0.5), 60 + 50 * number
            if depth:
                best, before = number in alive[depth + 1], 68 + 50 * parent
                line = ((step * 0.4, float(y + 8 - before)),)
                colour, width = (INK, 2) if best else (FAINT, 1)
                shapes.append(Line(x - step * 0.7, before, line, colour, width))
            shapes.append(Text(x, y, token, 11, "middle", bold=number in alive[depth + 1]))
            shapes.append(Text(x, y + 24, f"{score:.1f}", 9, "middle"))
    return shapes


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """It is shown if all probabilities sum to one."""
    furthest = max(abs(row["total"] - 1) for row in rows)
    because = Words(
        f"all {len(rows)} distributions sum to one{f', within {furthest:.0e}' if furthest else ''}",
        f"{len(rows)}개 분포의 합은 모두 {f'오차 {furthest:.0e} 안에서' if furthest else '정확히'} "
        "1이다",
    )
    return [Verdict("shown" if furthest < 1e-3 else "does not hold", because)]


EXPERIMENT = Experiment(
    "next_word",
    Words(
        "A linear layer and softmax give every next word a probability; all sum to one.",
        "선형 층과 소프트맥스가 다음 단어마다 확률을 주고, 그 합은 1이다.",
    ),
    Words(
        "Small Transformers learn to translate numbers and, where data is given, short sentences. "
        "Shown are the probabilities at each step, the beginnings that beam search keeps, and "
        "draws at three temperatures.",
        "작은 Transformer가 수의 이름을, 데이터가 있으면 짧은 문장도 "
        "번역하는 법을 배운다. 단계마다 확률, 빔 서치가 남기는 후보, 세 온도에서 뽑은 결과를 "
        "보인다.",
    ),
    keys={"data": Words("data", "데이터"), "what": Words("what", "무엇")},
    values={
        "likeliest": Words("likeliest", "가장 유력한 것"),
        "first": Words("its probability", "그 확률"),
        "second": Words("the next", "그다음"),
        "total": Words("sum of all", "모든 확률의 합"),
        "share_right": Words("draws right", "정답이 뽑힌 비율"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    main=lambda row: "draws" in row["what"],
    by_seed=False,
    korean={
        NUMBERS: "수의 이름",
        REAL: "tatoeba 영어-독일어",
        **{f"draws at temperature {t}": f"온도 {t}에서 뽑기" for t in TEMPERATURES},
        **{
            f"step {n} of {about}": f"{n}단계: {about}"
            for n in range(1, 14)
            for about in (english_number(SHOWN), QUESTION)
        },
    },
)
