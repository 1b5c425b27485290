"""Attention falls with distance, and whether a sine that repeats does harm: language models with
sinusoids of several longest wavelengths."""

import math
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from random import Random
from statistics import fmean, median

import torch
from torch import Tensor

from transduct.blocks.embeddings import PositionVectors
from transduct.data.lines import read_lines
from transduct.drawing.svg import Picture
from transduct.models import gpt
from transduct.segments import Segments
from transduct_corpora.texts import english_number
from transduct_course import small
from transduct_course.charts import Chart, slide
from transduct_course.experiment import Experiment, Measured, Rows, Setting, Verdict, Words, mean

CONTEXT, LAYERS, HEADS = 128, 3, 4
PAPER = 62_832  # characters: 10,000 times 2 pi
WAVES = (8, 32, 128, PAPER)  # the longest wavelengths


class Waves(PositionVectors):
    """Sinusoids whose wavelengths run from 2 pi to `longest`, in equal ratios as in the paper."""

    longest: float

    def forward(self, positions: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        """(N,), (N,) -> (N, width)."""
        assert self.width is not None
        shares = torch.arange(self.width // 2) * 2 / self.width
        angles = positions[:, None] * (self.longest / (2 * math.pi)) ** -shares
        return torch.cat((angles.sin(), angles.cos()), -1)


def read_letters(data: Path | None) -> tuple[Tensor, int]:
    """The letters of Shakespeare's plays where they are, or else of numbers in words, as ids; and
    how many different ones there are."""
    path = data and data / "tinyshakespeare" / "train.txt.xz"
    if path and path.exists():
        text = "\n".join(read_lines(path))
    else:
        random = Random(1)
        text = ", ".join(english_number(random.randrange(10**6)) for _ in range(4000))
    letters = sorted({*text})
    return torch.tensor([letters.index(each) for each in text[:500_000]]), len(letters)


def measure(setting: Setting) -> Measured:
    """Train to predict the next character; then average the attention over many places."""
    ids, letters = read_letters(setting.data)
    context, steps = setting.pick(CONTEXT, 64, 16), setting.pick(1500, 300, 3)
    kept = len(ids) * 9 // 10  # the last tenth is not trained on
    others = windows(ids[kept:], context, setting.pick(100, 40, 4), "test")
    for longest, seed in setting.each(setting.pick(WAVES, WAVES[::3], WAVES[::3])):
        model = small.seeded(seed, built, letters, longest)
        untrained = by_distance(model, others, context)
        data = (windows(ids[:kept], context, 8, f"{seed} {n}") for n in count())
        small.train(model, data, steps, 2e-3, loss=small.next_loss, seed=seed)
        found = by_distance(model, others, context)
        heads = [*chain(*found)]
        near = [*map(falling, heads)]
        yield {
            "wavelength": longest,
            "seed": seed,
            "loss": small.mean_loss(small.next_loss, model, others),
            "near": fmean(sum(line[:8]) for line in heads),
            "falling": sum(each > 1.5 for each in near) / len(near),
            "nearer": median(near),
            "nearer_before": median(falling(line) for line in chain(*untrained)),
            "guess": math.log(letters),
            "lines": [
                [fmean(each) for each in zip(*layer, strict=True)][: context // 2]
                for layer in found
            ],
        }


def built(letters: int, longest: float) -> small.Model:
    """A language model of characters, with sinusoids up to this wavelength."""
    config = gpt.Config(
        letters, positions="sinusoidal", max_length=CONTEXT, layers=LAYERS, **small.WIDTH
    )
    model = gpt.GPT(config)
    waves = model.embedding.positions = Waves("sinusoidal", CONTEXT, config.d_model)
    waves.longest = longest
    return model


def windows(ids: torch.Tensor, context: int, size: int, seed: str) -> small.Labelled:
    """Random stretches of the text; each character is labelled with the next."""
    random = Random(seed)
    starts = (random.randrange(len(ids) - context - 1) for _ in range(size))
    parts = [ids[start : start + context + 1] for start in starts]
    tokens, labels = torch.cat([p[:-1] for p in parts]), torch.cat([p[1:] for p in parts])
    return small.Labelled(tokens, labels, Segments.of([context] * size))


@torch.inference_mode()
def by_distance(model: small.Model, batch: small.Labelled, context: int) -> list[list[list[float]]]:
    """For each layer and head the mean weight at distance 0, 1, 2, ... of the queries that have
    words so far back: those of the second half."""
    weights: list[Tensor] = []
    model.eval().hidden(batch.tokens, batch.segments, weights)
    first = context // 2
    queries = [layer[:, :, first:].mean(0) for layer in weights]  # (H, T / 2, S)
    # A diagonal of the matrix holds the weights at one distance.
    return [
        [[float(each.diagonal(first - back).sum()) / (context - first) for back in range(context)]
         for each in layer]
        for layer in queries
    ]  # fmt: skip


def falling(line: Sequence[float]) -> float:
    """The mean weight of the nearest quarter over that of the farthest quarter that all queries
    have; 1 is flat."""
    reach = len(line) // 2
    quarter = max(1, reach // 4)
    near, far = sum(line[:quarter]) / quarter, sum(line[reach - quarter : reach]) / quarter
    return near / max(far, 1e-9)


def draw(rows: Rows) -> Picture:
    """Each layer's mean attention by distance, with the paper's wavelengths; and the loss by the
    longest wavelength."""
    paper = [row for row in rows if row["wavelength"] == PAPER] or rows
    steps = max(1, len(paper[0]["lines"][0]) // 16)
    lines = [
        {"back": back, "layer": f"layer {number + 1}", "weight": line[back]}
        for row in paper
        for number, line in enumerate(row["lines"])
        for back in range(0, len(line), steps)
    ]
    return slide(
        Chart(lines, "back", "weight", "layer", "Mean attention by distance", "characters back",
              "weight"),
        Chart([{**row, "model": "loss"} for row in rows], "wavelength", "loss", "model",
              "Loss on other text", "longest wavelength", "loss", bars=True),
    )  # fmt: skip


def judge(rows: Rows) -> list[Verdict]:
    """Attention falls if nearly all heads give the near more than the far; a sine that repeats
    within the text does no harm if the loss is as low as with the paper's wavelengths."""
    own = [row for row in rows if row["wavelength"] == PAPER]
    share, after, before = (mean(own, value) for value in ("falling", "nearer", "nearer_before"))
    waves = sorted({row["wavelength"] for row in rows if row["wavelength"] != PAPER})
    ends = {wave: mean(rows, "loss", wavelength=wave) for wave in (*waves, PAPER)}
    listed = ", ".join(f"{loss:.2f} ({wave:,})" for wave, loss in ends.items())
    return [
        Verdict.of(
            share > 0.75,
            Words(
                f"{share:.0%} of the heads give the nearest quarter over 1.5 times the weight of "
                f"the farthest; the middle head {after:.3g} times, before training {before:.1f}",
                f"헤드의 {share:.0%}가 가까운 4분의 1에 먼 4분의 1보다 1.5배 넘는 가중치를 준다. "
                f"중앙값은 {after:.3g}배이고 학습 전에는 {before:.1f}배였다",
            ),
            Words("attention falls", "멀수록 어텐션이 작아진다"),
        ),
        Verdict.of(
            max(ends.values()) < ends[PAPER] + 0.03 if waves else None,
            Words(
                f"the loss by the longest wavelength is {listed}",
                f"가장 긴 파장에 따른 손실은 {listed}이다",
            ),
            Words("repeating does no harm", "되풀이되어도 문제가 없다"),
        ),
    ]


EXPERIMENT = Experiment(
    "far_words",
    Words(
        "Attention falls with distance, so a sine that repeats does no harm.",
        "거리가 멀수록 어텐션이 작아지므로 사인이 되풀이되어도 문제가 없다.",
    ),
    Words(
        "Small language models learn to predict the next character of plays (or, without data, of "
        "numbers in words), with sinusoids of several longest wavelengths. Measured are the mean "
        "attention at each distance and the loss.",
        "작은 언어 모델이 희곡(데이터가 없으면 수의 이름)의 다음 글자를 맞히는 법을 배운다. 사인의 "
        "가장 긴 파장을 바꾸어 가며 거리별 평균 어텐션과 손실을 측정한다.",
    ),
    keys={"wavelength": Words("longest wavelength", "가장 긴 파장")},
    values={
        "loss": Words("loss on other text", "다른 글의 손실"),
        "near": Words("weight of the last 8", "최근 8글자의 가중치"),
        "falling": Words("heads that fall", "멀수록 작아지는 헤드"),
        "nearer": Words("near over far", "가까운 곳 / 먼 곳"),
        "nearer_before": Words("the same, untrained", "학습 전 같은 비"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    learnt=lambda row: bool(row["loss"] < 0.9 * row["guess"]),
)
