"""Several heads look at different things; what that gains, on a generated task and in translation,
and that it makes nothing faster."""

import time
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from random import Random
from statistics import median
from typing import Any

from torch import Tensor

from transduct.drawing.plots import curves, grid, page
from transduct.drawing.svg import Picture
from transduct.tasks.translation import Batch
from transduct_course import real, small
from transduct_course.experiment import Experiment, Row, Setting, Verdict, Words, mean

SYMBOLS, LENGTH, WIDTH = 12, 10, 64
COUNTS, FULL = (1, 2, 4, 8), "4 of full width"
SUMS, CAPTIONS = "sums of two places", "multi30k, English to German"


def two_places(random: Random) -> small.Pair:
    """At each place the sum of its symbol and of its mirror image's, modulo the symbols: two looks
    at once."""
    row = [random.randrange(SYMBOLS) for _ in range(LENGTH)]
    sums = [(a + b) % SYMBOLS for a, b in zip(row, row[::-1], strict=True)]
    return [small.FIRST + value for value in row], [small.FIRST + value for value in sums]


def measure(setting: Setting) -> Iterator[Row]:
    """Train with one to eight heads that share a width of 64, and with four that have it each; on
    the generated task, and on captions where there are any."""
    kinds = [*(f"{count}" for count in COUNTS), FULL]
    test = small.pairs(two_places, setting.pick(300, 100, 4), "test")
    for kind in setting.pick(kinds, kinds, kinds[1:3]):
        for seed in setting.seeds:
            setting.report(f"heads: {kind}, seed {seed}")
            data = small.batches(two_places, 40, seed)
            model, found = trained(SYMBOLS, kind, seed, setting.pick(1500, 250, 3), data, test[:20])
            score = {"accuracy": small.accuracy(model, test), "loss": small.loss_on(model, test)}
            yield {"data": SUMS, "heads": kind, "seed": seed, "chrf": None, **score, **found}
    if not setting.has("multi30k"):
        return
    text = real.captions(
        setting.folder("multi30k"), setting.pick(8000, 2000, 50), setting.pick(150, 30, 5)
    )
    for kind in setting.pick(kinds[:-1], kinds[:3:2], kinds[1:2]):
        for seed in setting.seeds:
            setting.report(f"heads: translation, {kind}, seed {seed}")
            steps, data = setting.pick(400, 100, 2), real.batches(text.train, 32, seed)
            model, found = trained(text.vocabulary, kind, seed, steps, data, text.test[:20])
            score = {"accuracy": small.accuracy(model, text.test), **real.scored(model, text)}
            yield {"data": CAPTIONS, "heads": kind, "seed": seed, **score, **found}


def trained(
    vocabulary: int,
    kind: str,
    seed: int,
    steps: int,
    data: Iterator[Batch],
    looked_at: Sequence[small.Pair],
) -> tuple[Any, Row]:
    """A model of this kind of heads after training, and the time of a step, and how its heads look
    at some pairs."""
    count = int(kind.split()[0])
    changes: dict[str, Any] = {"num_heads": count, "d_model": WIDTH}
    if kind == FULL:
        changes["d_k"] = WIDTH
    model = small.seeded(seed, lambda: small.transformer_of(vocabulary, **changes))
    moments: list[float] = []
    losses = small.train(
        model, data, steps, 2e-3, seed=seed,
        watch=lambda *_: moments.append(time.process_time()),
    )  # fmt: skip
    found = small.attention_of(model, small.batch_of(looked_at))
    steps_taken = [after - before for before, after in pairwise(moments)]
    length = len(looked_at[0][0]) + 1  # with the end
    maps = found["encoder.0.self"][0, :, :length, :length].tolist()
    return model, {
        "apart": distance_between_heads(found),
        "step_ms": 1000 * median(steps_taken),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "curve": small.every(losses),
        "maps": maps if count > 1 else [],
    }


def distance_between_heads(found: dict[str, Tensor]) -> float | None:
    """How differently the heads of a layer look, over all pairs: half the sum of the differences of
    their weights, 0 for the same map and 1 for maps that share nothing; none for one head."""
    parts = [
        float(0.5 * (weights[:, a] - weights[:, b]).abs().sum(-1).mean())
        for weights in found.values()
        for a, b in combinations(range(weights.shape[1]), 2)
    ]
    return sum(parts) / len(parts) if parts else None


def draw(rows: Sequence[Row]) -> Picture:
    """The trained heads of the first encoder layer side by side, for one input; and the loss of
    translation by the number of heads."""
    row = next((row for row in rows if row["heads"] == "4" and row["maps"]), rows[-1])
    maps = row["maps"] or [[[1.0] * LENGTH]]
    places = [str(place + 1) for place in range(len(maps[0]))]
    panels = [
        (f"head {number + 1}", matrix, places[: len(matrix)], None)
        for number, matrix in enumerate(maps)
    ]
    heads = grid(panels, per_row=4, title=f"First encoder layer, {row['heads']} heads")
    found = [row for row in rows if row["data"] == CAPTIONS]
    if not found:
        return heads
    counts = list(dict.fromkeys(row["heads"] for row in found))
    lines = {"loss": [mean(found, "loss", heads=count) for count in counts]}
    return page([heads, curves(counts, lines, "Captions translated: loss on others", "heads")])


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """The time of a step judges whether four are four times faster."""
    made = [row for row in rows if row["data"] == SUMS]
    times = {str(count): mean(made, "step_ms", heads=str(count)) for count in COUNTS}
    one, four = (mean(made, "accuracy", heads=name) for name in ("1", "4"))
    apart, faster = mean(made, "apart", heads="4"), times["1"] / times["4"]
    translated = translation(rows)
    differ = Words(
        f"the maps of four heads are {apart:.0%} apart",
        f"헤드 네 개의 어텐션은 서로 {apart:.0%} 다르다",
    )
    accurate = Words(
        f"four heads are {four:.0%} right, one {one:.0%}{translated.english}",
        f"헤드 네 개의 정확도는 {four:.0%}, 하나는 {one:.0%}다{translated.korean}",
    )
    fast = Words(
        f"a step with four is {faster:.2f} times as fast: the products are as large, only divided",
        f"네 헤드의 속도는 한 헤드의 {faster:.2f}배다. 곱셈의 양은 같고 나누어 할 뿐이다",
    )
    return [
        Verdict.of(apart > 0.1, differ, Words("other things", "서로 다른 것을 본다")),
        Verdict.of(four > one + 0.01, accurate, Words("more accurate", "더 정확하다")),
        Verdict.of(faster > 3, fast, Words("four times faster", "네 배 빠르다")),
    ]


def translation(rows: Sequence[Row]) -> Words:
    """What captions show, if they were translated."""
    found = [row for row in rows if row["data"] == CAPTIONS]
    if not found:
        return Words("", "")
    counts = list(dict.fromkeys(row["heads"] for row in found))
    losses = ", ".join(f"{mean(found, 'loss', heads=count):.2f}" for count in counts)
    times = ", ".join(f"{mean(found, 'step_ms', heads=count):.0f}" for count in counts)
    numbers = ", ".join(counts)
    return Words(
        f"; captions translated with {numbers} heads: loss {losses}, {times} ms a step",
        f". 사진 설명을 번역할 때 헤드가 {numbers}개이면 손실은 {losses}, 한 단계는 {times}ms이다",
    )


EXPERIMENT = Experiment(
    "heads",
    Words(
        "Heads look at different things, more heads are more accurate, and four are four times "
        "faster.",
        "헤드마다 다른 것을 보고, 헤드가 많을수록 정확하며, 네 개면 네 배 빠르다.",
    ),
    Words(
        "Transformers with 1 to 8 heads, of the same total width or each of the full one, learn a "
        "task that needs two looks at once and, where data is given, translate captions. Measured "
        "are accuracy, how far the maps of the heads lie apart, and the time of a training step.",
        "헤드가 1개에서 8개인 Transformer(전체 폭을 나누어 쓰거나 헤드마다 전체 폭을 쓰는)가 "
        "동시에 두 곳을 보아야 하는 과제를 배우고, 데이터가 있으면 사진 설명도 번역한다. 정확도, "
        "헤드끼리 어텐션이 다른 정도, 학습 한 단계의 시간을 잰다.",
    ),
    keys={"data": Words("data", "데이터"), "heads": Words("heads", "헤드")},
    values={
        "accuracy": Words("accuracy", "정확도"),
        "loss": Words("loss", "손실"),
        "chrf": Words("chrF", "chrF"),
        "apart": Words("maps apart", "헤드 사이 거리"),
        "step_ms": Words("ms a step", "단계당 ms"),
        "parameters": Words("parameters", "매개변수"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    learnt=lambda row: bool(row["accuracy"] > 0.3),
    korean={SUMS: "두 자리의 합", CAPTIONS: "multi30k 영어-독일어", FULL: "4개, 저마다 전체 폭"},
)
