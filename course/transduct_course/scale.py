"""Why scores are divided by sqrt(d_k): Transformers trained with and without it, at several d_k."""

from random import Random

import torch
from torch import Tensor, nn

from transduct.drawing.svg import Picture
from transduct.models.transformer import Transformer
from transduct.tasks.translation import Batch
from transduct_course import small
from transduct_course.ablations import Unscaled
from transduct_course.charts import Chart, slide
from transduct_course.experiment import (
    Experiment,
    Measured,
    Rows,
    Setting,
    Verdict,
    Words,
    ends,
    mean,
)

SYMBOLS, LENGTH = 20, 12
UNIT, XAVIER = "unit variance", "Xavier"  # how the weights of queries and keys start


def reverse(random: Random) -> small.Pair:
    """Symbols, and the same in reverse order: each token must look at one place far from its
    own."""
    row = [small.FIRST + random.randrange(SYMBOLS) for _ in range(LENGTH)]
    return row, row[::-1]


def measure(setting: Setting) -> Measured:
    """Train on reversing, and look inside before and after; from queries and keys of unit variance,
    as the notes suppose, and from the usual start."""
    steps = setting.pick(600, 250, 3)
    test = small.pairs(reverse, setting.pick(400, 200, 8), "test")
    look = small.batch_of(test[:100])
    starts = setting.pick((UNIT, XAVIER), (UNIT,), (UNIT, XAVIER))
    widths = setting.pick((4, 32, 128), (8, 128), (4, 16))
    for start, d_k, scaled, seed in setting.each(starts, widths, (True, False)):
        model = small.seeded(seed, built, start, d_k, scaled)
        before = {**first_softmax(model, look), "entropy_before": entropy_of_crossing(model, look)}
        small.train(model, small.batches(reverse, 40, seed), steps, 2e-3, seed=seed, clip=0.0)
        yield {
            "start": start,
            "d_k": d_k,
            "scaled": scaled,
            "seed": seed,
            **before,
            "loss": small.loss_on(model, test),
            "accuracy": small.accuracy(model, test),
            "entropy_after": entropy_of_crossing(model, look),
        }


def built(start: str, d_k: int, scaled: bool) -> small.Model:
    """A Transformer whose queries and keys start in this way."""
    model = small.transformer_of(SYMBOLS, Transformer if scaled else Unscaled, d_k=d_k)
    if start == UNIT:
        for name, weight in model.named_parameters():
            if name.endswith(("attention.query.weight", "attention.key.weight")):
                # A norm lies before, so its inputs have unit variance, and so have these sums.
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    return model


@torch.inference_mode()
def first_softmax(model: small.Model, batch: Batch) -> dict[str, float]:
    """The first softmax of the encoder: the variance of its scores, the share of queries that give
    one token more than 0.9, and the norm of its derivative, diag(p) - p pᵀ: what is left of a
    gradient that passes it."""
    weights: list[Tensor] = []
    x = model.source_embedding(batch.source, batch.source_segments.positions)
    layer = model.encoder[0]
    x = layer.around_attention.read(x)
    query, key, _ = layer.self_attention.project(x, None, None)
    # Every kernel divides by sqrt(d_k); an unscaled query is that much longer.
    scores = torch.einsum("nhk,mhk->hnm", query[:100], key[:100]) * query.shape[-1] ** -0.5
    layer.self_attention(x, batch.source_segments, weights=weights)
    [p] = weights
    squares = p.square().sum(-1)
    jacobian = (squares - 2 * p.pow(3).sum(-1) + squares.square()).clamp_min(0.0).sqrt()
    return {
        "variance": float(scores.var()),
        "peaked": float((p.amax(-1) > 0.9).float().mean()),
        "jacobian": float(jacobian.mean()),
    }


def entropy_of_crossing(model: small.Model, batch: Batch) -> float:
    """The entropy of encoder-decoder attention, over all layers and heads."""
    found = small.attention_of(model, batch)
    return small.entropy(torch.cat([w for name, w in found.items() if name.endswith("cross")], 1))


def draw(rows: Rows) -> Picture:
    """From queries and keys of unit variance: before training the share of peaked queries and the
    derivative of softmax, and the loss at the end, by d_k."""
    found = [
        {**row, "by": "divided" if row["scaled"] else "not divided"}
        for row in rows
        if row["start"] == UNIT
    ]
    titles = {
        "peaked": "Queries with a weight over 0.9",
        "jacobian": "What softmax lets through of a gradient",
        "loss": "Loss at the end",
    }
    return slide(
        *(Chart(found, "d_k", key, "by", title, "d_k", bars=True) for key, title in titles.items())
    )


def judge(rows: Rows) -> list[Verdict]:
    """Each step of the argument, not divided, from unit queries and keys; and the loss at the
    end, from Xavier's start too."""
    near, far = min(row["d_k"] for row in rows), max(row["d_k"] for row in rows)

    def at(value: str, d_k: int = far, scaled: bool = False, start: str = UNIT) -> float:
        return mean(rows, value, start=start, d_k=d_k, scaled=scaled)

    variance, peaked, slope = (
        (at(value, near), at(value)) for value in ("variance", "peaked", "jacobian")
    )
    lost, other = at("loss"), at("loss", scaled=True)
    end, divided = ends(lost, other), at("jacobian", scaled=True)
    usual = ends(at("loss", start=XAVIER), at("loss", scaled=True, start=XAVIER))
    there = any(row["start"] == XAVIER for row in rows)
    return [
        Verdict.of(
            variance[1] > 2 * variance[0],
            Words(
                f"from {variance[0]:.1f} at d_k {near} to {variance[1]:.0f} at {far}",
                f"d_k {near}에서 {variance[0]:.1f}, {far}에서 {variance[1]:.0f}이다",
            ),
            Words("the variance grows", "분산이 커진다"),
        ),
        Verdict.of(
            peaked[1] > peaked[0] + 0.2,
            Words(
                f"{peaked[0]:.0%} of the queries give one token more than 0.9 at d_k {near}, "
                f"{peaked[1]:.0%} at {far}",
                f"한 토큰에 0.9가 넘는 가중치를 주는 쿼리는 d_k {near}에서 {peaked[0]:.0%}, "
                f"{far}에서 {peaked[1]:.0%}다",
            ),
            Words("softmax peaks", "소프트맥스가 쏠린다"),
        ),
        Verdict.of(
            slope[1] < 0.8 * slope[0],
            Words(
                f"the norm of softmax's derivative falls from {slope[0]:.2f} to {slope[1]:.2f}; "
                f"divided it is {divided:.2f}",
                f"소프트맥스 도함수의 크기(norm)는 {slope[0]:.2f}에서 {slope[1]:.2f}로 작아진다. "
                f"나누면 {divided:.2f}다",
            ),
            Words("gradients shrink", "기울기가 작아진다"),
        ),
        Verdict.of(
            lost > 1.1 * other + 0.001,
            Words(
                f"at d_k {far} the loss {end.english} if scores are not divided"
                + (f"; from Xavier's start it {usual.english}" if there else ""),
                f"나누지 않으면 d_k {far}에서 손실은 {end.korean}"
                + (f". Xavier 초기화에서는 {usual.korean}" if there else ""),
            ),
            Words("hence 1/√d_k", "그래서 나눈다"),
        ),
    ]


EXPERIMENT = Experiment(
    "scale",
    Words(
        "As d_k grows, the variance of q·k grows, softmax peaks and gradients shrink; hence "
        "1/√d_k.",
        "d_k가 커질수록 내적의 분산이 커지고, 소프트맥스가 한곳에 쏠려 기울기가 작아진다. 그래서 "
        "√d_k로 나눈다.",
    ),
    Words(
        "Small Transformers learn to reverse a row of symbols, with and without the division, from "
        "queries and keys of unit variance and from the usual start. Measured are the "
        "variance of the scores, how softmax peaks and what it lets through of a gradient, and the "
        "loss at the end.",
        "작은 Transformer가 기호열을 뒤집는 법을 나누기가 있을 때와 없을 때 각각 배운다. 쿼리와 "
        "키의 분산을 1로 맞춘 초깃값과 보통의 초깃값에서 시작한다. 점수의 분산, 소프트맥스가 쏠린 "
        "정도와 통과시키는 기울기, 마지막 손실을 측정한다.",
    ),
    keys={
        "start": Words("queries and keys start with", "쿼리·키의 초깃값"),
        "d_k": Words("d_k", "d_k"),
        "scaled": Words("divided by √d_k", "√d_k로 나눔"),
    },
    values={
        "variance": Words("variance of scores", "점수의 분산"),
        "entropy_before": Words("entropy before, bits", "학습 전 엔트로피(비트)"),
        "peaked": Words("queries over 0.9", "0.9가 넘는 쿼리"),
        "jacobian": Words("norm of softmax's derivative", "소프트맥스 도함수의 크기"),
        "loss": Words("loss at the end", "마지막 손실"),
        "accuracy": Words("accuracy", "정확도"),
        "entropy_after": Words("entropy after, bits", "학습 후 엔트로피(비트)"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    main=lambda row: row["start"] == UNIT,
    learnt=lambda row: bool(row["accuracy"] > 0.3),
    korean={UNIT: "분산 1", XAVIER: "Xavier"},
)
