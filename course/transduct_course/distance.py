"""Recurrence loses information over distance, attention does not."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import torch

from transduct.drawing.plots import curves, page
from transduct.drawing.svg import Picture
from transduct_course import small
from transduct_course.experiment import (
    Experiment,
    Row,
    Setting,
    Verdict,
    Words,
    grouped,
    mean,
    shown,
)

SYMBOLS = 10  # what must be remembered; as many others fill the distance
SHAPE: dict[str, Any] = {
    "bidirectional": False,
    "tie": "none",
    "d_hidden": 64,
}  # read from left to right alone
MODELS: dict[str, Callable[[], Any]] = {
    **{
        f"{cell}{'' if attention == 'none' else ' + attention'}": partial(
            small.rnn_of, 2 * SYMBOLS, cell=cell, attention=attention, **SHAPE
        )
        for cell in ("tanh", "gru", "lstm")
        for attention in ("none", "general")
    },
    "transformer": lambda: small.transformer_of(2 * SYMBOLS, tie="none"),
}
QUICK = ("tanh", "gru", "gru + attention", "transformer")


def symbol(random: Random) -> int:
    """One of the symbols to be remembered."""
    return small.FIRST + random.randrange(SYMBOLS)


def tasks(distance: int) -> dict[str, small.Draw]:
    """Tasks in which an answer lies about this many words away from where it is needed."""

    def first(random: Random) -> small.Pair:
        row = [symbol(random), *(symbol(random) + SYMBOLS for _ in range(distance - 1))]
        return row, row[:1]

    def copy(random: Random) -> small.Pair:
        row = [symbol(random) for _ in range(distance)]
        return row, row

    def reverse(random: Random) -> small.Pair:
        row = [symbol(random) for _ in range(distance)]
        return row, row[::-1]

    def seen_before(random: Random) -> small.Pair:
        row = [symbol(random), *(symbol(random) + SYMBOLS for _ in range(distance - 1))]
        asked = row[0] if random.random() < 0.5 else symbol(random)
        return [*row, asked], [small.FIRST + (asked == row[0])]

    return {"first word": first, "copy": copy, "reverse": reverse, "seen before": seen_before}


def measure(setting: Setting) -> Iterator[Row]:
    """Train each model at each distance, and look at the gradient of the first word."""
    models = setting.pick([*MODELS], QUICK, QUICK)
    distances = setting.pick((4, 16, 64, 256), (4, 16, 64), (4,))
    for task in ("first word", "copy", "reverse", "seen before"):
        first = task == "first word"
        for distance in distances if first or setting.size == "full" else ():
            for name in models if first else QUICK:
                for seed in setting.seeds:
                    setting.report(f"distance: {task}, {distance} words, {name}, seed {seed}")
                    yield trained(task, distance, name, seed, setting)


def trained(task: str, distance: int, name: str, seed: int, setting: Setting) -> Row:
    """One training; the test set is of the same distance."""
    draw = tasks(distance)[task]
    model = small.seeded(seed, MODELS[name])
    test = small.pairs(draw, setting.pick(200, 100, 4), "test")
    before = share_of_first(model, distance)
    # Long rows come in smaller batches: of equal ones the longest would take most of the time.
    size = max(8, min(32, 4096 // (distance + len(test[0][1]))))
    data = small.batches(draw, size, seed)
    small.train(model, data, setting.pick(250, 200, 3), 3e-3, seed=seed)
    return {
        "task": task,
        "model": name,
        "distance": distance,
        "seed": seed,
        "accuracy": of_symbols(model, test),
        "gradient_before": before,
        "gradient_after": share_of_first(model, distance),
    }


def of_symbols(model: Any, test: Sequence[small.Pair]) -> float:
    """The share of symbols that are right; the end of the answer does not count."""
    with torch.inference_mode():
        batch = small.batch_of(test)
        counted = batch.outputs >= small.FIRST
        right = small.predicted(model, batch) == batch.outputs
        return float(right[counted].float().mean())


def share_of_first(model: Any, distance: int) -> float:
    """How much of the gradient reaches the vector of the first word: its part of the norm over all
    source words. The first word is of a kind that comes only there."""
    batch = small.batch_of(small.pairs(tasks(distance)["first word"], 20, "gradient"))
    table = model.source_table if "source_table" in dict(model.named_parameters()) else (
        model.source_embedding.table
    )  # fmt: skip
    with torch.enable_grad():
        loss = small.losses_by_token(model, batch)[batch.outputs >= small.FIRST].mean()
        [gradient] = torch.autograd.grad(loss, [table])
    own = gradient[small.FIRST : small.FIRST + SYMBOLS].norm()
    return float(own / gradient.norm().clamp_min(1e-30))


def draw(rows: Sequence[Row]) -> Picture:
    """Accuracy of each task, and the gradient that reaches the first word, by distance."""
    parts = []
    for (task,), group in grouped(rows, "task").items():
        distances = sorted({row["distance"] for row in group})
        x, names = [*map(str, distances)], dict.fromkeys(row["model"] for row in group)

        def lines_of(value: str, factor: float) -> dict[str, list[float]]:
            return {
                name: [
                    factor * mean(group, value, model=name, distance=d)  # noqa: B023
                    for d in distances  # noqa: B023
                ]
                for name in names  # noqa: B023
            }

        title, below = f"{task}: % right", "distance in words"
        parts.append(curves(x, lines_of("accuracy", 100), title, below))
        if task == rows[0]["task"]:
            for moment in ("before", "after"):
                title = f"Share of the gradient that reaches the first word, {moment} training"
                found = lines_of(f"gradient_{moment}", 1)
                parts.append(curves(x, found, title, below))
    return page(parts)


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """It holds if at the farthest distance plain recurrence recalls worse than the Transformer."""
    farthest = max(row["distance"] for row in rows if row["task"] == "first word")
    at = {
        name: mean(rows, "accuracy", task="first word", model=name, distance=farthest)
        for name in dict.fromkeys(row["model"] for row in rows)
    }
    reach = mean(rows, "gradient_before", task="first word", model="tanh", distance=farthest)
    because = Words(
        f"at {farthest} words the first is recalled by tanh in {at['tanh']:.0%}, GRU "
        f"{at['gru']:.0%}, GRU with attention {at['gru + attention']:.0%}, Transformer "
        f"{at['transformer']:.0%}; before training the share of a tanh network's gradient that "
        f"reaches it is {shown(reach)}",
        f"{farthest}단어 떨어지면 첫 단어를 tanh는 {at['tanh']:.0%}, GRU는 {at['gru']:.0%}, "
        f"어텐션을 붙인 GRU는 {at['gru + attention']:.0%}, Transformer는 {at['transformer']:.0%} "
        f"맞힌다. 학습 전 tanh 신경망에서 첫 단어에 닿는 기울기의 비율은 {shown(reach)}이다",
    )
    return [Verdict.of(at["tanh"] < 0.5 if at["transformer"] > 0.9 else None, because)]


EXPERIMENT = Experiment(
    "distance",
    Words(
        "Recurrence loses what is far away (vanishing gradient); attention does not.",
        "순환 신경망은 멀리 있는 정보를 잃지만(기울기 소실) 어텐션은 잃지 않는다.",
    ),
    Words(
        "Plain (tanh), GRU and LSTM networks, with and without attention, and a Transformer must "
        "recall, copy, reverse or recognise words at growing distances. Measured are accuracy and "
        "the share of the gradient that reaches the first word, before and after training.",
        "tanh, GRU, LSTM 신경망(어텐션이 있을 때와 없을 때)과 Transformer가 점점 멀어지는 단어를 "
        "기억하고, 베끼고, 뒤집고, 알아보아야 한다. 정확도와, 첫 단어에 닿는 기울기의 비율을 학습 "
        "전후에 잰다.",
    ),
    keys={
        "task": Words("task", "과제"),
        "distance": Words("distance", "거리"),
        "model": Words("model", "모델"),
    },
    values={
        "accuracy": Words("accuracy", "정확도"),
        "gradient_before": Words("gradient at the first word, before", "첫 단어의 기울기, 학습 전"),
        "gradient_after": Words("after", "학습 후"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    learnt=lambda row: row["task"] == "first word" and bool(row["accuracy"] > 0.5),
    korean={
        "first word": "첫 단어",
        "copy": "베끼기",
        "reverse": "뒤집기",
        "seen before": "이미 나왔는지",
        "tanh + attention": "tanh + 어텐션",
        "gru": "GRU",
        "gru + attention": "GRU + 어텐션",
        "lstm": "LSTM",
        "lstm + attention": "LSTM + 어텐션",
        "transformer": "Transformer",
    },
)
