"""What stabilises training: norms and warm-up left out, in Transformers of growing depth."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log
from typing import Any

from transduct.drawing.svg import Picture
from transduct_course import small
from transduct_course.ablations import WithoutNorms
from transduct_course.charts import Chart, slide
from transduct_course.experiment import Experiment, Row, Setting, Verdict, Words, grouped, mean
from transduct_course.scale import SYMBOLS, reverse
from transduct_course.sentences import out_of

Variant = tuple[str, dict[str, Any], dict[str, Any]]  # its name, changes of the model, of training
HEADINGS = {"variant": Words("model", "모델"), "depth": Words("encoder layers", "인코더 층 수")}
VALUES = {
    "loss": Words("training loss", "학습 손실"),
    "accuracy": Words("accuracy", "정확도"),
    "diverged": Words("diverged", "발산"),
    "gradient_ratio": Words("gradient, first / last layer", "기울기, 첫 층 / 마지막 층"),
}
IN_KOREAN = {
    "no norm": "정규화 없음",
    "post-norm, warm-up": "post-norm, 웜업",
    "post-norm, no warm-up": "post-norm, 웜업 없음",
    "pre-norm, warm-up": "pre-norm, 웜업",
    "pre-norm, no warm-up": "pre-norm, 웜업 없음",
}
TOP = 5.0  # of the picture
LEARNT = 0.3  # the accuracy of a model that has learnt anything
GUESS = log(SYMBOLS + small.FIRST)  # the loss of equal probabilities
WIDTH = {"d_model": 32, "num_heads": 2, "d_ff": 64, "decoder_layers": 1}


def measured(variants: Sequence[Variant], depths: tuple[Sequence[int], ...]) -> Callable[..., Any]:
    """The measurement of these variants at these depths, for a full, a quick and a tiny run."""

    def measure(setting: Setting) -> Iterator[Row]:
        test = small.pairs(reverse, setting.pick(200, 100, 4), "test")
        for depth in setting.pick(*depths):
            for name, changes, training in variants:
                for seed in setting.seeds:
                    setting.report(f"{name}, {depth} encoder layers, seed {seed}")
                    yield trained(name, {**WIDTH, **changes}, training, depth, seed, setting, test)

    return measure


def trained(
    name: str,
    changes: Mapping[str, Any],
    training: Mapping[str, Any],
    depth: int,
    seed: int,
    setting: Setting,
    test: list[small.Pair],
) -> Row:
    """One training to reverse a row of symbols. The loss is the mean of the last tenth; a training
    that ends worse than a guess among all tokens has diverged."""
    steps = setting.pick(600, 150, 3)
    model = small.seeded(
        seed, lambda: small.transformer_of(SYMBOLS, encoder_layers=depth, **changes)
    )
    ratios: list[float] = []

    def watch(step: int, loss: float, model: Any) -> None:  # noqa: ARG001
        if step > 1:
            return
        first, last = small.gradient_norms(
            model, ["encoder.0.", f"encoder.{depth - 1}."]
        ).values()  # fmt: skip
        ratios.append(first / max(last, 1e-30))

    warmup = round(steps * training.get("warm_up", 0.1))
    losses = small.train(
        model, small.batches(reverse, 24, seed), steps, training.get("learning_rate", 2e-3),
        warmup, seed=seed, watch=watch, clip=0.0,
    )  # fmt: skip
    lost = len(losses) < steps or losses[-1] != losses[-1]
    last = losses[-max(1, steps // 10) :]
    loss = None if lost else sum(last) / len(last)
    return {
        "variant": name,
        "depth": depth,
        "seed": seed,
        "loss": loss,
        "accuracy": 0.0 if lost else small.accuracy(model, test),
        "diverged": loss is None or loss > GUESS,
        "gradient_ratio": ratios[0] if ratios else None,
    }


def draw(rows: Sequence[Row]) -> Picture:
    """The training loss by depth; what is far above a guess stands at the top, what is no number
    leaves a gap."""
    label = f"loss, at most {TOP:g}"
    title = "Training loss by depth"
    return slide(Chart(rows, "depth", "loss", "variant", title, "encoder layers", label, top=TOP))


def judged(whole: str, bare: str, part: Words) -> Callable[[Sequence[Row]], list[Verdict]]:
    """It holds if the bare model ends clearly worse than the whole one, at the greatest depth at
    which one of them learns."""

    def judge(rows: Sequence[Row]) -> list[Verdict]:
        compared = [row for row in rows if row["variant"] in (whole, bare)]
        learnt = [row["depth"] for row in compared if row["accuracy"] > LEARNT]
        deepest = max(learnt or [row["depth"] for row in rows])
        ends = {}
        for (name, depth), group in grouped(rows, "variant", "depth").items():
            if depth == deepest:
                lost = sum(row["diverged"] for row in group)
                ends[name] = (mean(group, "accuracy"), lost, len(group))
        (with_part, _, _), (without, lost, count) = ends[whole], ends[bare]
        diverged = out_of(lost, count, Words("diverged", "발산"))
        because = Words(
            f"at {deepest} encoder layers {with_part:.0%} of the symbols are right, {without:.0%} "
            f"without {part.english}; without it {diverged.english}",
            f"인코더 {deepest}층에서 정확도는 {with_part:.0%}이고, {part.korean} 빼면 "
            f"{without:.0%}다. 빼고 한 {diverged.korean}",
        )
        return [Verdict.of(with_part > without + 0.05, because)]

    return judge


def experiment(
    name: str, claim: Words, about: Words, variants: Sequence[Variant],
    depths: tuple[Sequence[int], ...], judge: Callable[[Sequence[Row]], list[Verdict]],
) -> Experiment:  # fmt: skip
    """An experiment that leaves something out."""
    measure: Callable[[Setting], Iterable[Row]] = measured(variants, depths)
    return Experiment(
        name, claim, about, HEADINGS, VALUES, measure, draw, judge, IN_KOREAN,
        learnt=lambda row: bool(row["accuracy"] > LEARNT),
        main=lambda row: row["depth"] in (4, 32),
    )  # fmt: skip


ABOUT = Words(
    "Small Transformers of growing depth learn to reverse a row of symbols, with the part and "
    "without it. Measured are the training loss, the accuracy, and whether training diverges, "
    "that is, ends worse than a guess.",
    "깊이가 다른 작은 Transformer가 기호열을 뒤집는 법을 배운다. 해당 부분이 있을 때와 없을 때의 "
    "학습 손실과 정확도, 발산(찍는 것보다 나쁘게 끝남) 여부를 잰다.",
)

NORM = experiment(
    "norm",
    Words(
        "Layer normalisation stabilises training.",
        "층 정규화는 학습을 안정시킨다.",
    ),
    ABOUT,
    [
        ("pre-norm", {}, {}),
        ("post-norm", {"norm": "post"}, {}),
        ("no norm", {"kind": WithoutNorms, "norm": "post"}, {}),
    ],
    ((4, 8, 16, 32), (2, 8), (2,)),
    judged("pre-norm", "no norm", Words("norms", "정규화를")),
)

WARM_UP = experiment(
    "warm_up",
    Words(
        "Training needs a warm-up of the learning rate.",
        "학습률은 처음에 서서히 올려야 한다(웜업).",
    ),
    ABOUT,
    [
        (f"{norm}-norm, {name}", {"norm": norm}, {"warm_up": share, "learning_rate": 4e-3})
        for norm in ("post", "pre")
        for name, share in (("warm-up", 0.2), ("no warm-up", 0.0))
    ],
    ((4, 8, 32), (2, 8), (2,)),
    judged("post-norm, warm-up", "post-norm, no warm-up", Words("warm-up", "웜업을")),
)
