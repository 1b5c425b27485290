"""What recurrence loses over distance and attention does not: steps until something far away is
recalled."""

from random import Random

import torch

from transduct.drawing.svg import Picture
from transduct_course import small
from transduct_course.charts import Chart, slide
from transduct_course.experiment import (
    Experiment,
    Measured,
    Row,
    Rows,
    Setting,
    Verdict,
    Words,
    mean,
    shown,
)

SYMBOLS = 10  # what must be remembered; as many others fill the distance
LEARNT = 0.95  # the share of symbols that are right
FIRST, COPY = "first word", "copy"
TANH, OPEN, ATTENDING, TRANSFORMER = "tanh", "LSTM, open gates", "GRU + attention", "Transformer"
RECURRENT: dict[str, small.Changes] = {
    TANH: {"cell": "tanh"},
    "GRU": {},
    "LSTM": {"cell": "lstm"},
    OPEN: {"cell": "lstm"},
    ATTENDING: {"attention": "general"},
}
MODELS = {FIRST: (*RECURRENT, TRANSFORMER), COPY: ("GRU", ATTENDING, TRANSFORMER)}


def built(name: str, distance: int) -> small.Model:
    """A model that reads from left to right alone."""
    if name == TRANSFORMER:
        return small.transformer_of(2 * SYMBOLS, tie="none")
    spans = {"memory_span": distance} if name == OPEN else {}
    shape = {"bidirectional": False, "tie": "none", "d_hidden": 64, "attention": "none"}
    return small.rnn_of(2 * SYMBOLS, **{**shape, **RECURRENT[name], **spans})


def recalled(random: Random, task: str, distance: int) -> small.Pair:
    """A row and what is to be recalled: its answer lies this many words away from where it is
    needed."""
    row = [small.FIRST + random.randrange(SYMBOLS) for _ in range(distance)]
    if task == COPY:
        return row, row
    return [row[0], *(each + SYMBOLS for each in row[1:])], row[:1]


def measure(setting: Setting) -> Measured:
    """Train each model at growing distances until it fails at one; look at the gradient of the
    first word at all of them."""
    distances = setting.pick((4, 16, 64, 256), (4, 16, 64), (4, 8))
    trials = [(task, name) for task, names in MODELS.items() for name in names]
    for (task, name), seed in setting.each(trials):
        learnt = True
        for distance in distances if task == FIRST else distances[:3]:
            row = looked(task, name, distance, seed, setting, learnt)
            learnt = row["steps"] is not None
            yield row


def looked(task: str, name: str, distance: int, seed: int, setting: Setting, train: bool) -> Row:
    """The gradient of the first word in a new model, and how many steps it takes to learn; none if
    it does not in all its steps, or if it failed nearer already and is not trained."""
    model = small.seeded(seed, built, name, distance)
    row: Row = {"task": task, "model": name, "distance": distance, "seed": seed, "steps": None,
           "accuracy": None, "gradient": share_of_first(model, distance)}  # fmt: skip
    if not train:
        return row
    test = small.pairs(recalled, setting.pick(100, 100, 4), "test", task, distance)

    def known(step: int, loss: float, model: small.Model) -> bool:  # noqa: ARG001
        if step % 25:
            return False
        row["accuracy"] = small.accuracy(model.eval(), test, small.FIRST)
        model.train()
        return bool(row["accuracy"] >= LEARNT)

    # Long rows come in smaller batches: of equal ones the longest would take most of the time.
    size = max(8, min(32, 4096 // (distance + len(test[0][1]))))
    steps = setting.pick(1000, 300, 3)
    data = small.batches(recalled, size, seed, task, distance)
    _, losses = small.train(model, data, steps, 3e-3, seed=seed, watch=known)
    return row | {"steps": len(losses) if (row["accuracy"] or 0.0) >= LEARNT else None}


def share_of_first(model: small.Model, distance: int) -> float:
    """How much of the gradient reaches the vector of the first word: its part of the norm over all
    source words. The first word is of a kind that comes only there."""
    batch = small.batch_of(small.pairs(recalled, 20, "gradient", FIRST, distance))
    table = model.source_table if "source_table" in dict(model.named_parameters()) else (
        model.source_embedding.table
    )  # fmt: skip
    with torch.enable_grad():
        loss = small.losses_by_token(model, batch)[batch.outputs >= small.FIRST].mean()
        [gradient] = torch.autograd.grad(loss, [table])
    own = gradient[small.FIRST : small.FIRST + SYMBOLS].norm()
    return float(own / gradient.norm().clamp_min(1e-30))


def draw(rows: Rows) -> Picture:
    """Steps until the first word is recalled, and the gradient that reaches it, by distance; a
    line ends where a model fails, or where the gradient is below what a float can hold."""
    rows = [row for row in rows if row["task"] == FIRST]
    there = [row for row in rows if row["gradient"] > 1e-30]
    charts = (
        Chart(rows, "distance", "steps", "model",
              f"Steps until {LEARNT:.0%} of first words are right", "distance in words"),
        Chart(there, "distance", "gradient", "model", "Share of the gradient at the first word",
              "distance in words", log=True),
    )  # fmt: skip
    return slide(*charts[not any(row["steps"] for row in rows) :])


def reach(rows: Rows, name: str, task: str = FIRST) -> int:
    """The farthest distance that a model learnt from every seed; 0 if none."""
    own = [row for row in rows if (row["task"], row["model"]) == (task, name)]
    failed = [row["distance"] for row in own if row["steps"] is None]
    return max((row["distance"] for row in own if row["distance"] not in failed), default=0)


def judge(rows: Rows) -> list[Verdict]:
    """A plain network, gated ones and attention, each by how far it recalls; and the gradient."""
    far = min(64, max(row["distance"] for row in rows if row["task"] == FIRST))
    plain, gru, lstm, opened, attending, transformer = (reach(rows, name) for name in MODELS[FIRST])
    share, other = (
        mean(rows, "gradient", task=FIRST, model=name, distance=far) for name in (TANH, TRANSFORMER)
    )
    return [
        Verdict.of(
            plain < transformer,
            Words(
                f"tanh recalls the first word over {plain} words, the Transformer over "
                f"{transformer}",
                f"첫 단어를 tanh는 {plain}단어, Transformer는 {transformer}단어 거리까지 기억해 "
                "낸다",
            ),
            Words("a plain RNN loses it", "기본 순환 신경망은 잃는다"),
        ),
        Verdict.of(
            share < 1e-3 * other,
            Words(
                f"before training, at {far} words, {shown(share)} of tanh's gradient reaches the "
                f"first word, and {shown(other)} of the Transformer's",
                f"학습 전 {far}단어 거리에서 첫 단어까지 전달되는 기울기의 비율은 tanh "
                f"{shown(share)}, Transformer {shown(other)}이다",
            ),
            Words("its gradient vanishes", "기울기가 사라진다"),
        ),
        Verdict.of(
            max(gru, lstm, opened) < transformer,
            Words(
                f"a GRU recalls over {gru} words, an LSTM over {lstm}, and one whose forget gates "
                f"start open over {opened}",
                f"GRU는 {gru}단어, LSTM은 {lstm}단어, 망각 게이트를 열고 시작한 LSTM은 "
                f"{opened}단어 거리까지 기억해 낸다",
            ),
            Words("gated networks lose it too", "게이트가 있어도 잃는다"),
        ),
        Verdict.of(
            attending > gru,
            Words(
                f"a GRU with attention recalls over {attending} words, without it over {gru}",
                f"어텐션을 붙인 GRU는 {attending}단어, 붙이지 않은 GRU는 {gru}단어 거리까지 "
                "기억해 낸다",
            ),
            Words("attention keeps it", "어텐션은 잃지 않는다"),
        ),
    ]


EXPERIMENT = Experiment(
    "distance",
    Words(
        "Recurrence loses what is far away (vanishing gradient); attention does not.",
        "순환 신경망은 멀리 있는 정보를 잃지만(기울기 소실) 어텐션은 잃지 않는다.",
    ),
    Words(
        "Recurrent networks with and without gates or attention, and a Transformer, recall the "
        "first word of a row, or copy the row. Measured are the steps until they can, and the "
        "share of the gradient that reaches the first word.",
        "게이트나 어텐션이 있거나 없는 순환 신경망과 Transformer가 첫 단어를 기억해 내거나 "
        "전체를 베낀다. 해낼 때까지 걸린 학습 단계 수와, 첫 단어까지 전달되는 기울기의 비율을 "
        "측정한다.",
    ),
    keys={
        "task": Words("task", "과제"),
        "model": Words("model", "모델"),
        "distance": Words("distance", "거리"),
    },
    values={
        "steps": Words("steps to 95%", "95%까지의 단계"),
        "accuracy": Words("accuracy at the end", "마지막 정확도"),
        "gradient": Words("gradient at the first word, before", "첫 단어의 기울기, 학습 전"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    learnt=lambda row: row["steps"] is not None,
    korean={
        FIRST: "첫 단어",
        COPY: "베끼기",
        OPEN: "LSTM, 열린 게이트",
        ATTENDING: "GRU + 어텐션",
    },
)
