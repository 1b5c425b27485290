"""Ways to number places, and the weakness of each: trained on short rows, tested on long ones."""

import math
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import torch
from torch import Tensor

from transduct.blocks.embeddings import PositionVectors, VectorScheme
from transduct.drawing.svg import Photograph, Picture, Text, moved
from transduct.functional import positions as formulas
from transduct_course import small
from transduct_course.charts import Chart, by_place, slide
from transduct_course.experiment import (
    Experiment,
    Measured,
    Row,
    Rows,
    Setting,
    Verdict,
    Words,
    change,
    mean,
)

SYMBOLS, TRAINED, COUNT, WIDTH = 12, 16, 5000, 128
REVERSAL, MARK = "reversal", "two left of the mark"
SCHEMES = (
    "none",
    "index",
    "normalised_index",
    "binary",
    "one_hot",
    "learned",
    "sinusoidal",
    "sinusoidal_concatenated",
    "rotary",
    "alibi",
    "relative",
)
NUMBERS: tuple[VectorScheme, ...] = ("index", "normalised_index", "binary", "one_hot")
QUICK = ("none", "index", "one_hot", "sinusoidal", "relative")
WEAKNESSES = {
    "index": Words("an index is too large", "순번은 너무 커진다"),
    "normalised_index": Words(
        "the step of a normalised index depends on the length",
        "정규화한 순번은 간격이 길이에 따라 달라진다",
    ),
    "binary": Words("binary is unfit for dot products", "이진수는 내적에 맞지 않는다"),
}
PLACES = 32  # of the rows with a mark


class Placed(PositionVectors):
    """The positions of the notes so that they can work: of the mean length of sinusoids, and a
    number along one direction of mean zero. A number that is added to all dimensions vanishes in
    the first norm, which takes the mean away."""

    factor = 1.0

    def forward(self, positions: Tensor, lengths: Tensor) -> Tensor:
        """(N,), (N,) -> (N, width)."""
        vectors = super().forward(positions, lengths) * self.factor
        if self.scheme_width == 1:
            vectors = vectors * (1 - 2 * (torch.arange(vectors.shape[1]) % 2))
        return vectors


def built(scheme: str, longest: int, places: int | None = None) -> small.Model:
    """A Transformer with these positions, for so many tokens. Given a number of places, the vectors
    are `Placed`: over these places their mean length is that of sinusoids."""
    model = small.transformer_of(SYMBOLS + bool(places), positions=scheme, max_length=longest)
    for known in NUMBERS:
        if places and scheme == known:
            for part in (model.source_embedding, model.target_embedding):
                vectors = part.positions = Placed(known, longest, model.config.d_model)
                found = vectors(torch.arange(places), torch.full((places,), places))
                vectors.factor = float((model.config.d_model / 2) ** 0.5 / found.norm(dim=1).mean())
    return model


def marked(random: Random, shortest: int, longest: int) -> small.Pair:
    """A row of symbols with a mark; the answer is the symbol two to the left of it, so that a step
    must be the same everywhere."""
    length = random.randint(shortest, longest)
    row = [small.FIRST + random.randrange(SYMBOLS) for _ in range(length)]
    place = random.randrange(2, length)
    return [*row[:place], small.FIRST + SYMBOLS, *row[place + 1 :]], [row[place - 2]]


def echoed(random: Random, shortest: int, longest: int) -> small.Pair:
    """A row of symbols, and the same again in reverse order: places must be told apart."""
    length = random.randint(shortest, longest)
    row = [small.FIRST + random.randrange(SYMBOLS) for _ in range(length)]
    return row, row[::-1]


# The vectors of the first positions by their formula, where a scheme has such vectors.
VECTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "index": formulas.index,
    "normalised_index": lambda at: formulas.normalised_index(at, torch.full_like(at, len(at))),
    "binary": lambda at: formulas.binary(at, max(1, (len(at) - 1).bit_length())),
    "one_hot": lambda at: formulas.one_hot(at, len(at)),
    "sinusoidal": lambda at: formulas.sinusoidal(at, WIDTH),
    "sinusoidal_concatenated": lambda at: formulas.sinusoidal_concatenated(at, WIDTH),
}


def least_distance(rows: Tensor) -> float:
    """The least distance between any two rows, a block at a time; in double precision, so that the
    fast way by products is exact enough."""
    rows, least = rows.double(), math.inf
    for start in range(0, len(rows), 500):
        block = rows[start : start + 500]
        far = torch.cdist(block, rows, compute_mode="use_mm_for_euclid_dist")
        far[:, start : start + 500].fill_diagonal_(math.inf)
        least = min(least, float(far.min()))
    return least


def measure(setting: Setting) -> Measured:
    """The vectors themselves; models trained with them to reverse rows of up to 16 symbols, and to
    look two to the left of a mark in rows of up to 32."""
    lengths = setting.pick((8, 16, 20, 24, 32, 48), (8, 16, 24), (8, 16))
    for scheme in setting.pick(SCHEMES, QUICK, ("none", "sinusoidal")):
        numbers: Row = {}
        if scheme in VECTORS:
            found = VECTORS[scheme](torch.arange(setting.pick(COUNT, COUNT, 50)))
            numbers = {"least": least_distance(found), "largest": float(found.abs().max())}
        for _, seed in setting.each((scheme,)):
            model, steps = small.seeded(seed, built, scheme, 64), setting.pick(1500, 400, 3)
            small.train(model, small.batches(echoed, 32, seed, 2, TRAINED), steps, seed=seed)
            right = [
                small.accuracy(model, small.pairs(echoed, 100, "test", n, n), small.FIRST)
                for n in lengths
            ]
            yield {
                "task": REVERSAL,
                "places": TRAINED,
                "scheme": scheme,
                **numbers,
                "seed": seed,
                "short": right[lengths.index(TRAINED)],
                "long": right[-1],
                "lengths": [*lengths],
                "by_length": right,
            }
    for scheme, seed in setting.each((*NUMBERS[:3], "sinusoidal")):
        model, _ = small.train(
            small.seeded(seed, built, scheme, PLACES + 8, PLACES),
            small.batches(marked, 32, seed, 4, PLACES),
            setting.pick(2400, 400, 3),
            seed=seed,
            watch=small.until(0.01),
        )
        test = small.pairs(marked, 300, "test", 4, PLACES)
        yield {
            "task": MARK,
            "places": PLACES,
            "scheme": scheme,
            "seed": seed,
            "short": small.accuracy(model, test, small.FIRST),
        }


def heat(title: str, values: Tensor, width: float, height: float) -> Picture:
    """A heat map from blue (-1) through white (0) to red (1)."""
    part = values.clamp(-1, 1)[..., None].numpy()
    blue, red = np.array((27, 79, 143)), np.array((152, 24, 47))
    mixed = np.where(part < 0, 247 + (247 - blue) * part, 247 - (247 - red) * part)
    dots = Photograph(0, 20, width, height, np.rint(mixed).astype(np.uint8))
    return Picture(width, height + 20, (Text(0, 12, title, 12, bold=True), dots))


def draw(rows: Rows) -> Picture:
    """Accuracy by length and with a mark; beneath, the heat maps of the notes: 128 positions of 512
    numbers in both layouts, their dot products, and positions of 4 numbers."""
    made, marks = ([row for row in rows if row["task"] == task] for task in (REVERSAL, MARK))
    charts = [
        Chart(by_place(made, "by_length", "lengths"), "place", "value", "scheme",
              f"Reversal, trained on 2 to {TRAINED}", "length", "% right", 100),
        Chart(marks, "places", "short", "scheme", "Two to the left of the mark",
              "places", "% right", 100, bars=True),
    ][: 1 + bool(marks)]  # fmt: skip
    places = torch.arange(128)
    interleaved = formulas.sinusoidal(places, 512)
    products = interleaved @ interleaved.T / 256
    maps = (
        (12, 0, heat("sin and cos in turn: 128 positions (down) x 512", interleaved, 376, 86)),
        (12, 112, heat("all sines, then all cosines (July 2020)",
                       formulas.sinusoidal_concatenated(places, 512), 376, 86)),
        (412, 0, heat("dot products of 128 positions", products, 376, 118)),
        (412, 144, heat("4 numbers (down) at 32 positions (across)",
                        formulas.sinusoidal(torch.arange(32), 4).T, 376, 54)),
    )  # fmt: skip
    shapes = [*slide(*charts, rows_of=2).shapes]
    for left, down, part in maps:
        shapes += moved(part.shapes, left, 228 + down)
    return Picture(800, 450, tuple(shapes))


def judge(rows: Rows) -> Iterator[Verdict]:
    """What the notes say of sinusoids, and the weakness of each other scheme: it holds where only
    sinusoids learn, and not where the scheme itself does."""
    made, found = ([row for row in rows if row["task"] == task] for task in (REVERSAL, MARK))
    least = mean(made, "least", scheme="sinusoidal")
    yield Verdict.of(
        least > 0.1,
        Words(
            f"no two of {COUNT:,} sinusoids are nearer than {least:.2f} and no number exceeds 1",
            f"사인 벡터 {COUNT:,}개 가운데 어느 둘도 {least:.2f}보다 가깝지 않고 값은 1을 넘지 "
            "않는다",
        ),
        Words("sinusoids are bounded and all different", "사인은 범위가 정해져 있고 모두 다르다"),
    )
    for scheme, part in WEAKNESSES.items():
        own, sines = (mean(found, "short", scheme=s) for s in (scheme, "sinusoidal"))
        weak = sines > 0.9 and own < sines - 0.05
        because = Words(
            f"two to the left of a mark, in up to {PLACES} places: {own:.0%} right, sinusoids "
            f"{sines:.0%}",
            f"최대 {PLACES}자리에서 표시의 두 칸 왼쪽을 찾을 때 {own:.0%}, 사인은 {sines:.0%}를 "
            "맞힌다",
        )
        yield Verdict.of(weak if max(own, sines) > 0.9 else None, because, part)
    beyond = [row for row in by_place(made, "by_length", "lengths") if row["place"] > TRAINED]
    next_place = min((row["place"] for row in beyond), default=0)
    for scheme, name, part, fails in (
        ("one_hot", Words("one-hot", "원-핫"),
         Words("one-hot fails on longer rows", "원-핫은 더 긴 시퀀스에서 실패한다"), True),
        ("sinusoidal", Words("sinusoids", "사인"),
         Words("sinusoids do not", "사인은 그렇지 않다"), False),
    ):  # fmt: skip
        own = mean(made if beyond else (), "short", scheme=scheme)
        far = mean(beyond, "value", scheme=scheme, place=next_place)
        moves = change(own, far)
        because = Words(
            f"just beyond the trained length the accuracy of {name.english} {moves.english}",
            f"학습한 길이를 조금만 넘으면 {name.korean}의 정확도는 {moves.korean}",
        )
        holds = (far < own - 0.1) is fails if own > 0.3 else None
        yield Verdict.of(holds, because, part)


MAIN = ("none", "index", "binary", "one_hot", "sinusoidal", "rotary")  # of the short table

EXPERIMENT = Experiment(
    "positions",
    Words(
        "Index, normalised, binary and one-hot positions each have a weakness that sinusoids do "
        "not.",
        "순번, 정규화한 순번, 이진수, 원-핫은 저마다 약점이 있고 사인·코사인 위치 인코딩에는 그 "
        "약점이 없다.",
    ),
    Words(
        "For each scheme, the least distance between any two of 5,000 positions and the largest "
        "number are computed. Transformers trained with it reverse short and longer rows, and "
        "find the symbol two to the left of a mark.",
        "방식마다 5,000개 위치 가운데 가장 가까운 둘의 거리와 가장 큰 수를 계산한다. 그 방식으로 "
        "학습한 Transformer가 짧은 기호열과 긴 기호열을 뒤집고, 표시의 두 칸 왼쪽 기호를 찾는다.",
    ),
    keys={
        "task": Words("task", "과제"),
        "places": Words("places", "자리"),
        "scheme": Words("positions", "위치 인코딩"),
    },
    values={
        "least": Words("least distance", "가장 가까운 거리"),
        "largest": Words("largest number", "가장 큰 수"),
        "short": Words("accuracy, trained lengths", "정확도, 학습한 길이"),
        "long": Words("accuracy, longest", "정확도, 가장 긴 길이"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    main=lambda row: row["task"] == "reversal" and row["scheme"] in MAIN,
    learnt=lambda row: bool(row["short"] > 0.5),
    korean={
        REVERSAL: "뒤집기",
        MARK: "표시의 두 칸 왼쪽",
        "none": "없음",
        "index": "순번",
        "normalised_index": "정규화한 순번",
        "binary": "이진수",
        "one_hot": "원-핫",
        "learned": "학습한 벡터",
        "sinusoidal": "사인(번갈아)",
        "sinusoidal_concatenated": "사인(이어 붙임)",
        "rotary": "회전",
        "alibi": "ALiBi",
        "relative": "상대 위치",
    },
)
