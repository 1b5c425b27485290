"""What stabilises training: the learning rates at which a Transformer learns, by where its norms
stand and with or without warm-up. Two chapters judge the same trainings."""

from dataclasses import replace

from transduct.drawing.svg import Picture
from transduct_course import small
from transduct_course.ablations import WithoutNorms
from transduct_course.charts import Chart, by_place, slide
from transduct_course.experiment import (
    Experiment,
    Measured,
    Row,
    Rows,
    Setting,
    Verdict,
    Words,
    grouped,
    mean,
)
from transduct_course.residual import WIDTH
from transduct_course.scale import SYMBOLS, reverse

NORMS: dict[str, small.Changes] = {
    "pre-norm": {},
    "post-norm": {"norm": "post"},
    "no norm": {"norm": "post", "kind": WithoutNorms},
}
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
DEEP = 16  # layers
WARM_UPS = (0.0, 0.3)  # the share of the steps in which the rate rises
LEARNT, GUESS = 0.9, 2.5  # an accuracy; the loss of a training that does not get going


def measure(setting: Setting) -> Measured:
    """Train at each rate until it is learnt, with gradients clipped; what is no better than a guess
    at half of the steps is given up. In a full run deep models, too, at the two lowest rates."""
    steps, layers = setting.pick(2000, 300, 3), setting.pick(6, 2, 1)
    trials = [(name, layers, warm_up) for name in NORMS for warm_up in WARM_UPS]
    trials += [(name, DEEP, WARM_UPS[1]) for name in setting.pick(("pre-norm", "no norm"), (), ())]
    test = small.pairs(reverse, 100, "test")
    for (name, layers, warm_up), seed in setting.each(trials):
        rates = setting.pick(RATES[:2] if layers == DEEP else RATES, RATES[1:3], RATES[:2])
        found: list[tuple[float, int]] = []  # accuracy and steps at each rate
        for rate in rates:
            shape = {**WIDTH, **NORMS[name], "encoder_layers": layers}
            model = small.seeded(seed, small.transformer_of, SYMBOLS, **shape)
            _, losses = small.train(
                model, small.batches(reverse, 24, seed), steps, rate,
                round(steps * warm_up), seed=seed,
                watch=small.until(0.1, (steps // 2, GUESS)),
            )  # fmt: skip
            lost = losses[-1] != losses[-1]
            found.append((0.0 if lost else small.accuracy(model, test), len(losses)))
        best, taken, best_rate = max(
            (right, -taken, rate) for (right, taken), rate in zip(found, rates, strict=True)
        )
        yield {
            "norm": name,
            "layers": layers,
            "warm_up": bool(warm_up),
            "seed": seed,
            "rates": sum(right > LEARNT for right, _ in found),
            "best": best,
            "best_rate": best_rate,
            "steps": -taken,
            "tried": rates,
            "accuracies": [right for right, _ in found],
            "taken": [taken for _, taken in found],
        }


def draw(rows: Rows) -> Picture:
    """The accuracy by rate, at each depth without and with warm-up."""
    return slide(
        *(
            Chart(
                by_place(group, "accuracies", "tried"), "place", "value", "norm",
                f"{layers} layers, {'with warm-up' if warm_up else 'without warm-up'}",
                "learning rate", "% right", 100, bars=True,
            )
            for (layers, warm_up), group in grouped(rows, "layers", "warm_up").items()
        )
    )  # fmt: skip


def compared(rows: Rows, part: Words, lacks: Words, whole: Row, bare: Row) -> Verdict:
    """It holds if the whole learns at more rates, or clearly more at the best rate of each."""
    (many, best), (few, worse) = (
        [mean(rows, value, **chosen) for value in ("rates", "best")] for chosen in (whole, bare)
    )
    tried = len(rows[0]["tried"])
    because = Words(
        f"it learns at {many:.3g} of {tried} rates and gets {best:.0%} right at its best; "
        f"{lacks.english} at {few:.3g}, and {worse:.0%}",
        f"학습률 {tried}개 가운데 {many:.3g}개에서 배우고 가장 좋을 때 정확도는 {best:.0%}다. "
        f"{lacks.korean} {few:.3g}개, {worse:.0%}다",
    )
    return Verdict.of(many >= few + 0.5 or best > worse + 0.05, because, part)


def judge_norm(rows: Rows) -> list[Verdict]:
    """At each depth, with and without warm-up, each kind of norm against none."""
    return [
        compared(
            own,
            Words(
                f"{norm}, {layers} layers, {'with' if warm_up else 'without'} warm-up",
                f"{layers}층, {norm}, 웜업 {'있음' if warm_up else '없음'}",
            ),
            Words("without norms", "정규화가 없으면"),
            {"norm": norm},
            {"norm": "no norm"},
        )
        for (layers, warm_up), own in grouped(rows, "layers", "warm_up").items()
        for (norm,) in grouped(own, "norm")
        if norm != "no norm"
    ]


def judge_warm_up(rows: Rows) -> list[Verdict]:
    """Each kind of norm with warm-up against the same without, at the depth that has both."""
    return [
        compared([row for row in rows if row["layers"] < DEEP],
                 Words(f"{norm} needs it", f"{norm}에는 필요하다"),
                 Words("without warm-up", "웜업이 없으면"),
                 {"norm": norm, "warm_up": True}, {"norm": norm, "warm_up": False})
        for norm in ("post-norm", "pre-norm")
    ]  # fmt: skip


NORM = Experiment(
    "norm",
    Words(
        "Layer normalisation stabilises training: more learning rates work.",
        "층 정규화는 학습을 안정시킨다. 더 많은 학습률에서 학습이 된다.",
    ),
    Words(
        "Transformers learn to reverse a row of symbols at several learning rates, with norms "
        "before or after each part or none, with warm-up and without. Measured is at how many of "
        "the rates they learn, and how well at the best one.",
        "Transformer가 여러 학습률로 기호열 뒤집기를 배운다. 정규화는 각 부분의 앞이나 뒤에 "
        "두거나 빼고, 웜업은 넣거나 뺀다. 배우는 데 성공한 학습률의 수와 가장 좋은 학습률에서의 "
        "정확도를 측정한다.",
    ),
    {
        "norm": Words("model", "모델"),
        "layers": Words("layers", "층 수"),
        "warm_up": Words("warm-up", "웜업"),
    },
    {
        "rates": Words("rates that learn", "배운 학습률의 수"),
        "best": Words("accuracy at the best", "가장 좋을 때 정확도"),
        "best_rate": Words("best rate", "가장 좋은 학습률"),
        "steps": Words("steps there", "그때의 단계 수"),
    },
    measure,
    draw,
    judge_norm,
    {"no norm": "정규화 없음"},
    learnt=lambda row: bool(row["best"] > 0.3),
    main=lambda row: row["layers"] < DEEP,
)
WARM_UP = replace(
    NORM,
    name="warm_up",
    claim=Words(
        "Training needs a warm-up of the learning rate.",
        "학습률은 처음에 서서히 올려야 한다(웜업).",
    ),
    judge=judge_warm_up,
    main=lambda row: row["layers"] < DEEP and row["norm"] != "no norm",
)
