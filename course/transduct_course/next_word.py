"""The linear layer and softmax give a probability to every next word; then the likeliest is taken,
or one is drawn, or several beginnings are kept. Shown with our sentence and its translator."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from transduct.data.tokenizer import Tokenizer
from transduct.drawing.plots import FAINT
from transduct.drawing.svg import INK, Line, Picture, Shape, Text, moved
from transduct.inference.engine import generate
from transduct.inference.settings import DecodingConfig
from transduct_course import ours, small
from transduct_course.charts import cells, slide
from transduct_course.experiment import Experiment, Measured, Row, Rows, Setting, Verdict, Words

BEAM, LONGEST = 3, 12
RIGHT = (ours.TRANSLATION, "Sind Sie müde?", "Seid ihr müde?")  # German has three words for "you"
TEMPERATURES = (0.5, 1.0, 2.0)


def measure(setting: Setting) -> Measured:
    """The translation step by step, its beams, and draws at three temperatures."""
    setting.report(f"next_word: {ours.SENTENCE}")
    batch, kept = ours.batch(), [*beams(setting.pick(LONGEST, LONGEST, 3))]
    for place, found in enumerate(small.forced_logits(ours.model(), batch).softmax(-1)):
        top = found.topk(6)
        words = list(zip(ours.pieces(top.indices), top.values.tolist(), strict=True))
        yield row_of(f"step {place + 1}", words, float(found.sum())) | {
            "beams": None if place else kept
        }
    for temperature in TEMPERATURES:
        config = DecodingConfig(beam=setting.pick(200, 100, 4), temperature=temperature, workers=1)
        sources = [batch.source.tolist()]
        [drawn] = generate(ours.model(), sources, [LONGEST], config, Tokenizer.BEGIN, Tokenizer.END)
        made = ours.translator().target_tokenizer.decode([[*each.tokens] for each in drawn])
        texts = ["".join(c if c.isprintable() else "\ufffd" for c in text) for text in made]
        shares = sorted(((texts.count(t) / len(texts), t) for t in {*texts}), reverse=True)
        row = row_of(f"draws at temperature {temperature}", [(t, p) for p, t in shares[:6]], 1.0)
        yield row | {"share_right": sum(text in RIGHT for text in texts) / len(texts)}


def row_of(what: str, top: Sequence[tuple[str, float]], total: float) -> Row:
    """A distribution by its likeliest words."""
    (word, first), (_, second) = [*top, ("", 0.0)][:2]
    about = {"likeliest": word, "first": first, "second": second, "total": total}
    return {"what": what, **about, "share_right": None, "top": [list(each) for each in top]}


def beams(steps: int) -> Iterator[list[tuple[str, float, int]]]:
    """What beam search keeps, step by step, the plain way: every beginning by itself. Of each its
    last piece, its log-probability, and the number of its parent."""
    source, _ = ours.pair()
    kept: list[tuple[float, int, small.Ids]] = [(0.0, 0, [])]
    for _ in range(steps):
        found = []
        for number, (score, _, ids) in enumerate(kept):
            if ids[-1:] == [Tokenizer.END]:
                found.append((score, number, ids))
                continue
            logits = small.forced_logits(ours.model(), small.batch_of([(source, ids)]))
            top = logits[-1].log_softmax(-1).topk(BEAM)
            found += [
                (score + p, number, [*ids, token])
                for p, token in zip(top.values.tolist(), top.indices.tolist(), strict=True)
            ]
        kept = sorted(found, reverse=True)[:BEAM]
        last = ours.pieces(torch.tensor([ids[-1] for *_, ids in kept]))
        yield [(piece, p, n) for piece, (p, n, _) in zip(last, kept, strict=True)]
        if all(ids[-1] == Tokenizer.END for *_, ids in kept):
            break


def draw(rows: Rows) -> Picture:
    """The likeliest pieces of each step, the kept beginnings as a tree, and what was drawn most
    often."""
    steps, drawn = ([row for row in rows if row["what"].startswith(kind)] for kind in ("st", "dr"))
    lines = [[(f"{word} {share:.0%}", share) for word, share in row["top"][:4]] for row in steps]
    table = cells(lines, f"{ours.SENTENCE}: likeliest next words", 94)
    kept = Picture(400, 225, tuple(tree(rows[0]["beams"])))
    shapes = [*slide(table, kept, rows_of=2).shapes]
    if drawn:
        often = [
            [(f"{share:.0%} {text}", share) if share > 0.005 else ("", 0.0)
             for text, share in [*row["top"], *[("", 0.0)] * 5][:5]]
            for row in drawn
        ]  # fmt: skip
        columns = [[(row["what"], 0.0) for row in drawn], *map(list, zip(*often, strict=True))]
        shapes += moved(cells(columns, "Drawn most often", 776 / len(drawn)).shapes, 0, 236)
    return Picture(800, 450, tuple(shapes))


def tree(levels: Sequence[Sequence[Any]]) -> Iterator[Shape]:
    """Each beginning a line from its parent; the best on top. Those that led nowhere are pale."""
    alive: list[set[int]] = [{0}]
    for level in reversed(levels):
        alive.insert(0, {level[number][2] for number in alive[0]})
    yield Text(12, 20, f"Beam search, {BEAM} beginnings", 13, bold=True)
    step = 376 / max(1, len(levels))
    for depth, level in enumerate(levels):
        for number, (token, score, parent) in enumerate(level):
            x, y = 12 + step * (depth + 0.5), 60 + 50 * number
            best = number in alive[depth + 1]
            if depth:
                before = 68 + 50 * parent
                line = ((step * 0.4, float(y + 8 - before)),)
                colour, width = (INK, 2) if best else (FAINT, 1)
                yield Line(x - step * 0.7, before, line, colour, width)
            yield Text(x, y, token, 11, "middle", bold=best)
            yield Text(x, y + 24, f"{score:.1f}", 9, "middle")


def judge(rows: Rows) -> list[Verdict]:
    """It is shown if all probabilities sum to one."""
    furthest = max(abs(row["total"] - 1) for row in rows)
    return Verdict.shown(
        furthest < 1e-3,
        Words(
            f"all {len(rows)} distributions sum to one"
            f"{f', within {furthest:.0e}' if furthest else ''}",
            f"{len(rows)}개 분포의 합은 모두 "
            f"{f'오차 {furthest:.0e} 안에서' if furthest else '정확히'} 1이다",
        ),
    )


EXPERIMENT = Experiment(
    "next_word",
    Words(
        "A linear layer and softmax give every next word a probability; all sum to one.",
        "선형 층과 소프트맥스가 다음 단어마다 확률을 주고, 그 합은 1이다.",
    ),
    Words(
        'The small translator of the course is asked "Are you tired?". Shown are the probabilities '
        "at each step, the beginnings that beam search keeps, and draws at three temperatures.",
        "이 과정의 작은 번역기에 'Are you tired?'를 준다. 단계마다 확률, 빔 서치가 남기는 후보, "
        "세 온도에서 뽑은 결과를 보인다.",
    ),
    keys={"what": Words("what", "무엇")},
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
        **{f"draws at temperature {t}": f"온도 {t}에서 뽑기" for t in TEMPERATURES},
        **{f"step {n}": f"{n}단계" for n in range(1, LONGEST + 1)},
    },
)
