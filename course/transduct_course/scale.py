"""Why scores are divided by sqrt(d_k): Transformers trained with and without it, at several d_k."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import torch
from torch import nn

from transduct.drawing.plots import curves, page
from transduct.drawing.svg import Picture
from transduct.models.transformer import Transformer
from transduct.tasks.translation import Batch
from transduct_course import small
from transduct_course.ablations import Unscaled
from transduct_course.experiment import Experiment, Row, Setting, Verdict, Words, averaged, mean
from transduct_course.sentences import ends

SYMBOLS, LENGTH = 20, 12
UNIT, XAVIER = "unit variance", "Xavier"  # how the weights of queries and keys start
PARTS = ("encoder.0.self_attention", "encoder.1.self_attention", "decoder.0.cross_attention",
         "decoder.1.cross_attention")  # fmt: skip


def reverse(random: Random) -> small.Pair:
    """Symbols, and the same in reverse order: each token must look at one place far from its
    own."""
    row = [small.FIRST + random.randrange(SYMBOLS) for _ in range(LENGTH)]
    return row, row[::-1]


def measure(setting: Setting) -> Iterator[Row]:
    """Train on reversing, and look inside before and after; from queries and keys of unit variance,
    as the notes suppose, and from the usual start."""
    steps = setting.pick(600, 250, 3)
    test = small.pairs(reverse, setting.pick(400, 200, 8), "test")
    for start in setting.pick((UNIT, XAVIER), (UNIT,), (UNIT, XAVIER)):
        for d_k in setting.pick((4, 32, 128), (8, 128), (4, 16)):
            for seed in setting.seeds:
                for scaled in (True, False):
                    kind = "with" if scaled else "without"
                    setting.report(f"scale: {start}, d_k {d_k}, seed {seed}, {kind}")
                    yield trained(start, d_k, scaled, seed, steps, test)


def built(start: str, d_k: int, scaled: bool) -> Any:
    """A Transformer whose queries and keys start in this way."""
    model = small.transformer_of(SYMBOLS, Transformer if scaled else Unscaled, d_k=d_k)
    if start == UNIT:
        for name, weight in model.named_parameters():
            if name.endswith(("attention.query.weight", "attention.key.weight")):
                # A norm lies before, so its inputs have unit variance, and so have these sums.
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    return model


def trained(
    start: str, d_k: int, scaled: bool, seed: int, steps: int, test: list[small.Pair]
) -> Row:
    """One training, and what was seen at its first step and at its end."""
    model = small.seeded(seed, lambda: built(start, d_k, scaled))
    look, by_layer = small.batch_of(test[:100]), {}
    variance = variance_of_scores(model, look)
    before = entropy_of_crossing(model, look)
    norms: list[float] = []

    def watch(step: int, loss: float, model: nn.Module) -> None:  # noqa: ARG001
        found = small.gradient_norms(model, PARTS)
        norms.append(sum(value**2 for value in found.values()) ** 0.5)
        if step in (1, steps):
            by_layer["before" if step == 1 else "after"] = [*found.values()]

    losses = small.train(
        model, small.batches(reverse, 40, seed), steps, 2e-3, seed=seed, watch=watch, clip=0.0
    )
    return {
        "start": start,
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
    """From queries and keys of unit variance. At the largest d_k measured, the mean over seeds:
    loss curves, and the gradients of each attention at the first step and at the last. By d_k:
    the entropy of attention."""
    rows = [row for row in rows if row["start"] == UNIT]
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
    places = ("encoder 1", "encoder 2", "cross 1", "cross 2")
    parts = [
        curves(range(longest), padded, f"Training loss, d_k = {d_k}", "time", "loss"),
        curves(
            [*map(str, widths)], entropies, "Entropy of cross attention, before and after training",
            "d_k", "bits",
        ),
    ]  # fmt: skip
    if gradients:
        parts.append(
            curves(
                places, gradients, f"Gradients of attention, first and last step, d_k = {d_k}",
                y_label="norm",
            )
        )  # fmt: skip
    return page(parts)


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """It holds if without the scale the scores of unit queries and keys vary more as d_k grows, and
    training ends worse."""
    small_d, large_d = min(row["d_k"] for row in rows), max(row["d_k"] for row in rows)

    def at(value: str, scaled: bool, d_k: int = large_d, start: str = UNIT) -> float:
        return mean(rows, value, start=start, d_k=d_k, scaled=scaled)

    least, most = at("variance", False, small_d), at("variance", False)
    peaked, flat = at("entropy_before", False), at("entropy_before", True)
    without, with_scale = at("loss", False), at("loss", True)
    english = (
        f"not divided, the variance of the scores grows from {least:.1f} at d_k {small_d} to "
        f"{most:.0f} at {large_d}; there the entropy before training is {peaked:.2f} bits instead "
        f"of {flat:.2f}, and the loss {ends(without, with_scale).english}"
    )
    korean = (
        f"나누지 않으면 점수의 분산이 d_k {small_d}에서 {least:.1f}, {large_d}에서 {most:.0f}이다. "
        f"d_k {large_d}일 때 학습 전 엔트로피는 나누면 {flat:.2f}비트, 나누지 않으면 "
        f"{peaked:.2f}비트이고, 손실은 {ends(without, with_scale).korean}"
    )
    if any(row["start"] == XAVIER for row in rows):
        usual = [at("variance", False, d_k, XAVIER) for d_k in (small_d, large_d)]
        lost = ends(at("loss", False, start=XAVIER), at("loss", True, start=XAVIER))
        english += (
            f"; from Xavier's start the variance goes from {usual[0]:.1f} to {usual[1]:.1f}, and "
            f"the loss {lost.english}"
        )
        korean += (
            f". Xavier 초기화에서는 분산이 {usual[0]:.1f}에서 {usual[1]:.1f}로 바뀌고, 손실은 "
            f"{lost.korean}"
        )
    because = Words(english, korean)
    grows, worse = most > 2 * least and peaked < flat, without > 1.1 * with_scale + 0.001
    return [Verdict.of(worse or None if grows else False, because)]


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
        "queries and keys of unit variance and from the usual start. Measured are the variance of "
        "the scores, the entropy of attention, its first gradient, and the loss at the end.",
        "작은 Transformer가 기호열을 뒤집는 법을 나누기가 있을 때와 없을 때 각각 배운다. 쿼리와 "
        "키의 분산을 1로 맞춘 첫값과 보통의 첫값에서 시작한다. 점수의 분산, 어텐션의 엔트로피와 "
        "첫 기울기, 마지막 손실을 잰다.",
    ),
    keys={
        "start": Words("queries and keys start with", "쿼리·키의 첫값"),
        "d_k": Words("d_k", "d_k"),
        "scaled": Words("divided by √d_k", "√d_k로 나눔"),
    },
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
    main=lambda row: row["start"] == UNIT,
    learnt=lambda row: bool(row["accuracy"] > 0.3),
    korean={UNIT: "분산 1", XAVIER: "Xavier"},
)
