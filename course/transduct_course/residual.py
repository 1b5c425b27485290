"""What residual connections are for: Transformers of growing depth without them, and plain
convolutional networks."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from transduct.drawing.svg import Picture
from transduct.errors import MissingExtra
from transduct_course import photographs, small
from transduct_course.ablations import WithoutResiduals
from transduct_course.charts import Chart, slide
from transduct_course.experiment import (
    Experiment,
    Measured,
    Rows,
    Setting,
    Verdict,
    Words,
    grouped,
    mean,
)
from transduct_course.scale import SYMBOLS, reverse

Changes = Mapping[str, dict[str, Any]]  # of the model, by the name of the variant
REVERSAL, PHOTOGRAPHS = "reversal", "photographs"
RESIDUALS: Changes = {"with residuals": {}, "without residuals": {"kind": WithoutResiduals}}
KEYS = {
    "data": Words("data", "데이터"),
    "variant": Words("model", "모델"),
    "depth": Words("layers", "층 수"),
}
VALUES = {"loss": Words("training loss", "학습 손실"), "accuracy": Words("accuracy", "정확도")}
IN_KOREAN = {
    "with residuals": "잔차 연결 있음",
    "without residuals": "잔차 연결 없음",
    REVERSAL: "뒤집기",
    PHOTOGRAPHS: "사진",
}
LEARNT = 0.3  # the accuracy of a model that has learnt anything; less where there are many words
WIDTH = {"d_model": 32, "num_heads": 2, "d_ff": 64, "decoder_layers": 1}


def reversal(variants: Changes, depths: Sequence[int], setting: Setting) -> Measured:
    """Trainings to reverse a row of symbols, with encoders of these depths."""
    steps, test = setting.pick(600, 150, 3), small.pairs(reverse, setting.pick(200, 100, 4), "test")
    for depth, name, seed in setting.each(depths, variants):
        model = small.seeded(
            seed, small.transformer_of, SYMBOLS, encoder_layers=depth, **{**WIDTH, **variants[name]}
        )
        ends = "encoder.0.", f"encoder.{depth - 1}."
        norms: list[float] = []

        def watch(step: int, loss: float, model: Any) -> None:  # noqa: ARG001
            if step == 1:
                norms.extend(small.gradient_norm(model, end) for end in ends)  # noqa: B023

        losses = small.train(
            model, small.batches(reverse, 24, seed), steps, seed=seed, watch=watch, clip=0.0
        )
        about = {"data": REVERSAL, "variant": name, "depth": depth, "seed": seed}
        score = {"loss": end_of(losses), "accuracy": small.accuracy(model, test)}
        yield {
            **about,
            **score,
            "gradient_ratio": norms[0] / max(norms[1], 1e-30) if norms else None,
        }


def end_of(losses: Sequence[float]) -> float:
    """The mean loss of the last tenth."""
    return fmean(losses[-max(1, len(losses) // 10) :])


def measure(setting: Setting) -> Measured:
    """Transformers from one layer on, and convolutional networks on photographs, if there are
    any."""
    depths = setting.pick((1, 2, 4, 8, 16, 32), (1, 2, 8), (1, 2))
    yield from reversal(RESIDUALS, depths, setting)
    if not setting.has("cifar10_jpg"):
        return
    path = setting.folder("cifar10_jpg") / "train.tar.xz"
    try:
        data = photographs.read(path, setting.pick(5000, 1000, 20))
    except MissingExtra as lack:
        setting.report(f"no photographs: {lack}")
        return
    for depth, name, seed in setting.each(setting.pick((8, 32), (8, 32), (2, 4)), RESIDUALS):
        steps, residual = setting.pick(300, 40, 2), name == "with residuals"
        model, losses = photographs.trained(data, depth, residual, steps, seed)
        about = {"data": PHOTOGRAPHS, "variant": name, "depth": depth, "seed": seed}
        right = 1 - photographs.wrong(model, data)
        yield {**about, "loss": end_of(losses), "accuracy": right, "gradient_ratio": None}


def draw(rows: Rows) -> Picture:
    """The loss by depth on each data set that has several depths, of the others as bars."""
    return slide(
        *(
            Chart(found, "depth", "loss", "variant", f"{data}: loss", "layers", "loss",
                  bars=len({row["depth"] for row in found}) == 1)
            for (data,), found in grouped(rows, "data").items()
        )
    )  # fmt: skip


def judged(
    rows: Rows, part: Words, holds: bool, because: Words, learnt_from: float = LEARNT
) -> Verdict:
    """A verdict on rows of one data set; not decided where none has learnt more than a guess."""
    learnt = any(row["accuracy"] > learnt_from for row in rows)
    return Verdict.of(holds if learnt else None, because, part)


def judge(rows: Rows) -> list[Verdict]:
    """As He et al. (2016) saw it: without residuals the deepest network fits even its training data
    worse than the shallowest; with them it does not."""
    verdicts = []
    for (data,), found in grouped(rows, "data").items():
        least, *_, most = sorted({row["depth"] for row in found})
        (plain, plain_deep), (rich, rich_deep) = (
            [mean(found, "loss", variant=name, depth=depth) for depth in (least, most)]
            for name in ("without residuals", "with residuals")
        )
        where = Words("Transformers", "Transformer") if data == REVERSAL else Words(data, "사진")
        verdicts += [
            judged(
                found,
                Words(
                    f"{where.english}: without residuals deeper is worse",
                    f"{where.korean}: 잔차 연결이 없으면 깊을수록 나쁘다",
                ),
                plain_deep > plain + 0.05,
                Words(
                    f"the training loss is {plain:.2f} at {least} and {plain_deep:.2f} at {most} "
                    "layers",
                    f"학습 손실이 {least}층에서 {plain:.2f}, {most}층에서 {plain_deep:.2f}이다",
                ),
            ),
            judged(
                found,
                Words(
                    f"{where.english}: with residuals it is not",
                    f"{where.korean}: 잔차 연결이 있으면 그렇지 않다",
                ),
                rich_deep < min(plain_deep - 0.05, rich + 0.1),
                Words(
                    f"it is {rich:.2f} at {least} and {rich_deep:.2f} at {most} layers",
                    f"{least}층에서 {rich:.2f}, {most}층에서 {rich_deep:.2f}이다",
                ),
            ),
        ]
    return verdicts


EXPERIMENT = Experiment(
    "residual",
    Words(
        "Deep networks without residual connections train worse than shallow ones.",
        "잔차 연결이 없으면 깊은 신경망이 얕은 신경망보다도 학습이 안 된다.",
    ),
    Words(
        "Transformers of 1 to 32 encoder layers learn to reverse a row of symbols, and "
        "convolutional networks of 8 and 32 layers learn photographs, with residual connections "
        "and without. Measured are the loss and the accuracy on training data.",
        "인코더가 1층에서 32층인 Transformer가 기호열 뒤집기를, 8층과 32층인 합성곱 신경망이 사진 "
        "분류를 잔차 연결이 있을 때와 없을 때 각각 배운다. 학습 데이터의 손실과 정확도를 측정한다.",
    ),
    KEYS,
    {
        **VALUES,
        "gradient_ratio": Words("gradient, first / last layer", "기울기, 첫 층 / 마지막 층"),
    },
    measure,
    draw,
    judge,
    IN_KOREAN,
    learnt=lambda row: bool(row["accuracy"] > LEARNT),
    main=lambda row: row["depth"] in (1, 32),
)
