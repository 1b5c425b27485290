"""Why scores are divided by sqrt(d_k): Transformers trained with and without it, at several d_k."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import torch

from transduct.drawing.plots import curves, page
from transduct.drawing.svg import Picture
from transduct.learning import small
from transduct.learning.experiment import Experiment, Row, Setting, Verdict, Words, mean
from transduct.predictors.text import Batch

SYMBOLS, LENGTH = 20, 12
PARTS = ("encoder.0.self_attention", "encoder.1.self_attention", "decoder.0.cross_attention",
         "decoder.1.cross_attention")  # fmt: skip


def reverse(random: Random) -> small.Pair:
    """Symbols, and the same in reverse order: each token must look at one place far from its
    own."""
    row = [small.FIRST + random.randrange(SYMBOLS) for _ in range(LENGTH)]
    return row, row[::-1]


def measure(setting: Setting) -> Iterator[Row]:
    """Train on reversing, and look inside before and after."""
    steps = setting.pick(600, 250, 3)
    test = small.pairs(reverse, setting.pick(400, 200, 8), "test")
    for d_k in setting.pick((4, 16, 64, 256), (8, 128), (4, 16)):
        for seed in setting.seeds:
            for scaled in (True, False):
                setting.report(f"scale: d_k {d_k}, seed {seed}, {'with' if scaled else 'without'}")
                yield trained(d_k, scaled, seed, steps, test)


def trained(d_k: int, scaled: bool, seed: int, steps: int, test: list[small.Pair]) -> Row:
    """One training, and what was seen at its first step and at its end."""
    model = small.seeded(seed, lambda: small.transformer_of(SYMBOLS, d_k=d_k, scale=scaled))
    look, by_layer = small.batch_of(test[:100]), {}
    variance = variance_of_scores(model, look)
    before = entropy_of_crossing(model, look)
    norms: list[float] = []

    def watch(step: int, loss: float, model: torch.nn.Module) -> None:  # noqa: ARG001
        found = small.gradient_norms(model, PARTS)
        norms.append(sum(value**2 for value in found.values()) ** 0.5)
        if step in (1, steps):
            by_layer["before" if step == 1 else "after"] = [*found.values()]

    losses = small.train(
        model, small.batches(reverse, 40, seed), steps, 2e-3, seed=seed, watch=watch, clip=0.0
    )
    return {
        "d_k": d_k,
        "scaled": scaled,
        "seed": seed,
        "variance": variance,
        "entropy_before": before,
        "gradient": norms[0],
        "loss": small.loss_on(model, test),
        "accuracy": small.accuracy(model, test),
        "entropy_after": entropy_of_crossing(model, look),
        "curve": small.every(losses),
        "gradients_by_layer": by_layer,
        "gradient_curve": small.every(norms),
    }


def variance_of_scores(model: Any, batch: Batch) -> float:
    """The variance of what goes into the first softmax of the encoder."""
    with torch.inference_mode():
        x = model.source_embedding(batch.source, batch.source_segments.positions)
        layer = model.encoder[0]
        query, key, _ = layer.self_attention.project(layer.around_attention.read(x), None, None)
        # Every kernel divides by sqrt(d_k); an unscaled query is that much longer.
        scores = torch.einsum("nhk,mhk->hnm", query[:100], key[:100]) * query.shape[-1] ** -0.5
        return float(scores.var())


def entropy_of_crossing(model: Any, batch: Batch) -> float:
    """The entropy of encoder-decoder attention, over all layers and heads."""
    found = small.attention_of(model, batch)
    return small.entropy(torch.cat([w for name, w in found.items() if name.endswith("cross")], 1))


def draw(rows: Sequence[Row]) -> Picture:
    """At the largest d_k measured, the mean over seeds: loss curves, and the gradients of each
    attention at the first step and at the last. By d_k: the entropy of attention."""
    d_k, kinds = max(row["d_k"] for row in rows), {True: "divided", False: "not divided"}
    losses, gradients, entropies = {}, {}, {}
    widths = sorted({row["d_k"] for row in rows})
    for scaled, name in kinds.items():
        found = [row for row in rows if row["d_k"] == d_k and row["scaled"] is scaled]
        if found:
            losses[name] = averaged([row["curve"] for row in found])
        for moment in ("before", "after"):
            lines = [row["gradients_by_layer"].get(moment) for row in found]
            if lines := [line for line in lines if line]:
                gradients[f"{name}, {moment}"] = averaged(lines)
            entropies[f"{name}, {moment}"] = [
                mean(rows, f"entropy_{moment}", d_k=each, scaled=scaled) for each in widths
            ]
    longest = max(map(len, losses.values()))
    padded = {
        name: [*line, *[float("nan")] * (longest - len(line))] for name, line in losses.items()
    }
    places = range(1, len(PARTS) + 1)
    parts = [
        curves(range(longest), padded, f"Training loss, d_k = {d_k}", "time", "loss"),
        curves(
            range(len(widths)), entropies, "Entropy of cross attention, before and after training",
            f"d_k: {', '.join(map(str, widths))}", "bits",
        ),
    ]  # fmt: skip
    if gradients:
        parts.append(
            curves(
                places, gradients, f"Gradients by layer, first and last step, d_k = {d_k}",
                "encoder 1, encoder 2, cross 1, cross 2", "norm",
            )
        )  # fmt: skip
    return page(parts)


def averaged(lines: Sequence[Sequence[float]]) -> list[float]:
    """The mean of curves, as far as the shortest goes."""
    return [sum(each) / len(lines) for each in zip(*lines, strict=False)]


def judge(rows: Sequence[Row]) -> Verdict:
    """It holds if without the scale scores vary more as d_k grows, and training ends worse."""
    small_d, large_d = min(row["d_k"] for row in rows), max(row["d_k"] for row in rows)
    grown = mean(rows, "variance", d_k=large_d, scaled=False) / mean(
        rows, "variance", d_k=small_d, scaled=False
    )
    with_scale = mean(rows, "loss", d_k=large_d, scaled=True)
    without = mean(rows, "loss", d_k=large_d, scaled=False)
    peaked = mean(rows, "entropy_before", d_k=large_d, scaled=False)
    flat = mean(rows, "entropy_before", d_k=large_d, scaled=True)
    numbers = f"{grown:.0f}, {flat:.2f}, {peaked:.2f}, {with_scale:.3f}, {without:.3f}"
    grows, worse = grown > 2 and peaked < flat, without > 1.1 * with_scale + 0.01
    grown_text, flat_text, peaked_text, with_text, without_text = numbers.split(", ")
    because = Words(
        f"without the scale, from d_k {small_d} to {large_d}, the variance of the scores grows "
        f"{grown_text}-fold; at {large_d} the entropy before training is {peaked_text} bits "
        f"instead of {flat_text}, and the loss ends at {without_text} instead of {with_text}",
        f"나누지 않으면 d_k가 {small_d}에서 {large_d}로 커질 때 점수의 분산이 {grown_text}배가 "
        f"된다. d_k {large_d}에서 학습 전 엔트로피는 {flat_text}비트가 아니라 "
        f"{peaked_text}비트이고, 최종 손실은 {with_text} 대신 {without_text}이다",
    )
    if grows and worse:
        return Verdict("holds", because)
    return Verdict("not decided" if grows else "does not hold", because)


EXPERIMENT = Experiment(
    "scale",
    Words(
        "As d_k grows, the variance of q·k grows, softmax peaks and gradients shrink; hence "
        "1/√d_k.",
        "d_k가 커질수록 내적의 분산이 커지고, 소프트맥스가 한곳에 쏠려 기울기가 작아진다. 그래서 "
        "√d_k로 나눈다.",
    ),
    Words(
        "Small Transformers learn to reverse a row of symbols, with and without the division. "
        "Measured are the variance of the scores, the entropy of attention, the gradient that "
        "attention gets at the first step, and the loss at the end.",
        "작은 Transformer가 기호열을 뒤집는 법을 나누기가 있을 때와 없을 때 각각 배운다. 점수의 "
        "분산, 어텐션의 엔트로피, 첫 단계에서 어텐션이 받는 기울기, 마지막 손실을 잰다.",
    ),
    keys={"d_k": Words("d_k", "d_k"), "scaled": Words("divided by √d_k", "√d_k로 나눔")},
    values={
        "variance": Words("variance of scores", "점수의 분산"),
        "entropy_before": Words("entropy before, bits", "학습 전 엔트로피(비트)"),
        "gradient": Words("first gradient", "첫 기울기"),
        "loss": Words("loss at the end", "마지막 손실"),
        "accuracy": Words("accuracy", "정확도"),
        "entropy_after": Words("entropy after, bits", "학습 후 엔트로피(비트)"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
)
