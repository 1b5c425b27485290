"""The mask of the decoder: without it a place sees its own target, and the loss says nothing."""

from collections.abc import Sequence
from functools import partial
from random import Random

import torch

from transduct.drawing.plots import grid
from transduct.drawing.svg import Picture
from transduct.models.transformer import Transformer
from transduct_course import small
from transduct_course.ablations import WithoutMask
from transduct_course.charts import slide
from transduct_course.experiment import Experiment, Measured, Rows, Setting, Verdict, Words, mean

DIGITS, LENGTH = 10, 12
KINDS = {"with the mask": Transformer, "without it": WithoutMask}


def counting(random: Random) -> small.Pair:
    """A digit and a step; the target counts on by that step, modulo ten."""
    first, step = random.randrange(DIGITS), random.randrange(DIGITS)
    row = [(first + step * place) % DIGITS for place in range(LENGTH)]
    return [small.FIRST + first, small.FIRST + step], [small.FIRST + digit for digit in row]


def measure(setting: Setting) -> Measured:
    """Train with the mask and without, and write freely."""
    test = small.pairs(counting, setting.pick(200, 100, 4), "test")
    for name, seed in setting.each(KINDS):
        model, _ = small.train(
            small.seeded(seed, small.transformer_of, DIGITS, KINDS[name]),
            small.batches(counting, 40, seed),
            setting.pick(500, 300, 3),
            seed=seed,
        )
        maps = small.attention_of(model, small.batch_of(test[:1]))
        yield {
            "model": name,
            "seed": seed,
            "loss": small.loss_on(model, test),
            "forced": small.accuracy(model, test),
            "free": free(model, test),
            "map": maps["decoder.0.self"][0].mean(0).round(decimals=3).tolist(),
        }


@torch.inference_mode()
def free(model: small.Model, test: Sequence[small.Pair]) -> float:
    """The share of digits that are right when the model writes by itself."""
    sources, targets = zip(*test, strict=True)
    rows = small.written(partial(small.predicted, model), sources, LENGTH)
    return float((torch.tensor(rows) == torch.tensor(targets)).float().mean())


def draw(rows: Rows) -> Picture:
    """Where each place of the decoder looks, with the mask and without."""
    inputs = ["begin", *map(str, range(1, LENGTH + 1))]
    maps = {row["model"]: (row["model"], row["map"], inputs, inputs) for row in rows}
    return slide(grid([*maps.values()], 2, "From each place (down) to each (across)"))


def judge(rows: Rows) -> list[Verdict]:
    """Without the mask the loss must fall as low, and free writing be worse."""
    (loss, free), (blind_loss, blind_free) = (
        [mean(rows, value, model=name) for value in ("loss", "free")] for name in KINDS
    )
    return [
        Verdict.of(
            blind_loss < 0.05,
            Words(
                f"the loss on others ends at {loss:.4f} with the mask, {blind_loss:.4f} without it",
                f"학습에 쓰지 않은 예의 손실은 마스크가 있으면 {loss:.4f}, 없으면 {blind_loss:.4f}"
                "이다",
            ),
            Words("the loss goes to 0", "손실이 0으로 간다"),
        ),
        Verdict.of(
            blind_free < free - 0.1,
            Words(
                f"writing by itself, {free:.0%} of the digits are right with the mask and "
                f"{blind_free:.0%} without it (a guess: 10%)",
                f"스스로 써 내려갈 때 정확도는 마스크가 있으면 {free:.0%}, 없으면 "
                f"{blind_free:.0%}다(찍으면 10%)",
            ),
            Words("nothing useful is learnt", "쓸모 있는 것을 배우지 못한다"),
        ),
    ]


EXPERIMENT = Experiment(
    "mask",
    Words(
        "Without the mask a word sees its own target: the loss goes to 0, and nothing useful is "
        "learnt.",
        "마스크가 없으면 자기 정답을 보게 되어 손실은 0으로 가지만 쓸모 있는 것을 배우지 못한다.",
    ),
    Words(
        "A small Transformer learns to count on from a digit by a step, with the mask of its "
        "decoder and without. Measured are the loss with the true digits before, and right digits "
        "when it writes by itself.",
        "작은 Transformer가 주어진 숫자에서 일정한 간격으로 세어 나가는 법을, 디코더의 마스크가 "
        "있을 때와 없을 때 배운다. 정답을 앞에 줄 때의 손실과, 스스로 써 내려갈 때의 정확도를 "
        "측정한다.",
    ),
    keys={"model": Words("decoder", "디코더")},
    values={
        "loss": Words("loss", "손실"),
        "forced": Words("right, true digits before", "정답을 앞에 줄 때 정확도"),
        "free": Words("right, writing by itself", "스스로 쓸 때 정확도"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    learnt=lambda row: row["model"] == "with the mask" and bool(row["free"] > 0.5),
    korean={"with the mask": "마스크 있음", "without it": "마스크 없음"},
)
