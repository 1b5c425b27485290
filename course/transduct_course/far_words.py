"""Attention falls with distance: the mean weight by distance in a trained language model, layer by
layer and head by head."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch

from transduct.data.text import read_lines
from transduct.drawing.plots import curves, page
from transduct.drawing.svg import Picture
from transduct.models import gpt
from transduct.segments import Segments
from transduct_corpora.texts import english_number
from transduct_course import small
from transduct_course.experiment import Experiment, Row, Setting, Verdict, Words, averaged, grouped

CONTEXT, LAYERS, HEADS = 128, 3, 4


def text_of(data: Path | None) -> str:
    """Shakespeare's plays where they are, or else numbers in words."""
    path = data and data / "tinyshakespeare" / "train.txt.xz"
    if path and path.exists():
        return "\n".join(read_lines(path))
    random = Random(1)
    return ", ".join(english_number(random.randrange(10**6)) for _ in range(4000))


def measure(setting: Setting) -> Iterator[Row]:
    """Train to predict the next character; then average the attention over many places."""
    text = text_of(setting.data)
    letters = sorted({*text})
    ids = torch.tensor([letters.index(each) for each in text[:500_000]])
    context = setting.pick(CONTEXT, 64, 16)
    for seed in setting.seeds:
        setting.report(f"far_words: seed {seed}")
        shape: dict[str, Any] = {
            "d_model": 64,
            "num_heads": HEADS,
            "d_ff": 128,
            "layers": LAYERS,
            "dropout": 0.0,
        }
        config = gpt.Config(len(letters), positions="sinusoidal", max_length=CONTEXT, **shape)
        model = small.seeded(seed, lambda: gpt.GPT(config))  # noqa: B023
        untrained = by_distance(model, windows(ids, context, 16, "test"), context)
        data = (windows(ids, context, 8, f"{seed} {n}") for n in count())
        steps = setting.pick(1500, 300, 3)
        losses = small.train(model, data, steps, 2e-3, loss=small.next_loss, seed=seed)
        found = by_distance(model, windows(ids, context, 16, "test"), context)
        for layer in range(LAYERS):
            for head in range(HEADS):
                line = found[layer][head]
                yield {
                    "layer": layer + 1,
                    "head": head + 1,
                    "seed": seed,
                    "near": sum(line[:8]),
                    "far": sum(line[context // 2 :]),
                    "nearer": falling(line),
                    "nearer_before": falling(untrained[layer][head]),
                    "loss": losses[-1],
                    "line": line,
                }


def windows(ids: torch.Tensor, context: int, size: int, seed: str) -> small.Labelled:
    """Random stretches of the text; each character is labelled with the next."""
    random = Random(seed)
    starts = [random.randrange(len(ids) - context - 1) for _ in range(size)]
    parts = [ids[start : start + context + 1] for start in starts]
    tokens, labels = torch.cat([p[:-1] for p in parts]), torch.cat([p[1:] for p in parts])
    return small.Labelled(tokens, labels, Segments.of([context] * size))


def by_distance(model: Any, batch: small.Labelled, context: int) -> list[list[list[float]]]:
    """For each layer and head the mean weight at distance 0, 1, 2, ... of the queries that have
    words so far back: those of the second half."""
    weights: list[torch.Tensor] = []
    with torch.inference_mode():
        model.eval().hidden(batch.tokens, batch.segments, weights)
    found = []
    for layer in weights:
        own = layer[:, :, context // 2 :].mean(0)  # (H, T / 2, S)
        queries = own.shape[1]
        lines = torch.zeros(own.shape[0], context)
        for row in range(queries):
            place = context // 2 + row
            lines[:, : place + 1] += own[:, row, : place + 1].flip(-1) / queries
        found.append(lines.tolist())
    return found


def falling(line: Sequence[float]) -> float:
    """The mean weight of the nearest quarter over that of the farthest quarter that all queries
    have; 1 is flat."""
    reach = len(line) // 2
    quarter = max(1, reach // 4)
    near, far = sum(line[:quarter]) / quarter, sum(line[reach - quarter : reach]) / quarter
    return near / max(far, 1e-9)


def draw(rows: Sequence[Row]) -> Picture:
    """Each layer's mean over heads, and then its heads, by distance."""
    reach = len(rows[0]["line"]) // 2
    lines, heads = {}, []
    for (layer,), group in grouped(rows, "layer").items():
        lines[f"layer {layer}"] = averaged(row["line"][:reach] for row in group)
        own = {f"head {head}": averaged(row["line"][:reach] for row in each)
               for (head,), each in grouped(group, "head").items()}  # fmt: skip
        heads.append(curves(range(reach), own, f"Layer {layer}", "characters back", "weight"))
    whole = curves(range(reach), lines, "Mean attention by distance", "characters back", "weight")
    return page([whole, *heads])


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """It holds if nearly all heads give the near more than the far, and more so than untrained."""
    share = sum(row["nearer"] > 1.5 for row in rows) / len(rows)
    after, before = (median(row[kind] for row in rows) for kind in ("nearer", "nearer_before"))
    because = Words(
        f"{share:.0%} of the heads give the nearest quarter over 1.5 times the weight of the "
        f"farthest; the middle head {after:.0f} times, before training {before:.1f}",
        f"헤드의 {share:.0%}가 가까운 4분의 1에 먼 4분의 1보다 1.5배 넘는 가중치를 준다. "
        f"중앙값은 {after:.0f}배이고 학습 전에는 {before:.1f}배였다",
    )
    return [Verdict.of(share > 0.75 if abs(share - 0.575) > 0.175 else None, because)]


EXPERIMENT = Experiment(
    "far_words",
    Words(
        "Attention falls with distance, so a sine that repeats does no harm.",
        "거리가 멀수록 어텐션이 작아지므로 사인이 되풀이되어도 문제가 없다.",
    ),
    Words(
        "A small language model learns to predict the next character of plays (or, without data, "
        "of numbers in words). Measured is the mean attention at each distance, by layer and head.",
        "작은 언어 모델이 희곡(데이터가 없으면 수의 이름)의 다음 글자를 맞히는 법을 배운다. 층과 "
        "헤드마다 거리별 평균 어텐션을 잰다.",
    ),
    keys={"layer": Words("layer", "층"), "head": Words("head", "헤드")},
    values={
        "near": Words("weight of the last 8", "최근 8글자의 가중치"),
        "far": Words("weight beyond half", "절반보다 먼 곳의 가중치"),
        "nearer": Words("near over far", "가까운 곳 / 먼 곳"),
        "nearer_before": Words("the same, untrained", "학습 전 같은 비"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    main=lambda row: row["layer"] == 2,
)
