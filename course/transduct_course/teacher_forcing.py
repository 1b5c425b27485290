"""Training on the true previous word, and what writing freely costs: one error brings the next."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from transduct.tasks.translation import Batch
from transduct_course import small
from transduct_course.charts import Chart, by_kind, by_place, slide
from transduct_course.experiment import (
    Experiment,
    Measured,
    Row,
    Rows,
    Setting,
    Verdict,
    Words,
    grouped,
    mean,
)

DIGITS, LENGTH = 5, 8
PLAIN = "Transformer", "GRU"
CONSTANT, RAMPED = "GRU, half own words from the start", "GRU, own words from none to half"
KINDS = {"after_right": "all before right", "after_wrong": "the one before wrong"}
OWN = 0.5  # the share of the model's own words in training


def running_sum(random: Random) -> small.Pair:
    """Digits, and at each place their sum so far modulo five: an error spoils all after it."""
    digits = [random.randrange(DIGITS) for _ in range(LENGTH)]
    sums = [sum(digits[: place + 1]) % DIGITS for place in range(LENGTH)]
    return [small.FIRST + digit for digit in digits], [small.FIRST + value for value in sums]


def measure(setting: Setting) -> Measured:
    """Train on the true words before and, two GRUs, on some of their own; write freely."""
    steps, test = setting.pick(800, 400, 4), small.pairs(running_sum, setting.pick(500, 200, 5), 0)
    for name, seed in setting.each(setting.pick((*PLAIN, CONSTANT, RAMPED), PLAIN, PLAIN)):
        model = small.seeded(seed, built, name)

        def ramp(step: int, loss: float, model: small.Model) -> None:  # noqa: ARG001
            if name == RAMPED:  # noqa: B023
                model.config = replace(model.config, scheduled_sampling=OWN * step / steps)

        small.train(model, small.batches(running_sum, 40, seed), steps, 3e-3, seed=seed, watch=ramp)
        yield {"model": name, "seed": seed, **errors(model, test)}


def built(name: str) -> small.Model:
    """A model that starts with this share of its own words."""
    if name == PLAIN[0]:
        return small.transformer_of(DIGITS)
    return small.rnn_of(DIGITS, scheduled_sampling=OWN if name == CONSTANT else 0.0)


def errors(model: small.Model, test: Sequence[small.Pair]) -> Row:
    """The share of wrong digits: if all digits before are right; right after a wrong one, planted
    at a random place; and if the digits before are the model's own."""
    batch, random = small.batch_of(test), Random("planted")
    inputs = batch.inputs.view(len(test), -1).clone()
    places = torch.tensor([random.randrange(1, LENGTH) for _ in test])
    planted = inputs.gather(1, places[:, None])
    inputs.scatter_(1, places[:, None], small.FIRST + (planted - small.FIRST + 1) % DIGITS)

    @torch.inference_mode()
    def wrong(batch: Batch) -> Tensor:
        found = small.predicted(model, batch) != batch.outputs
        return found.view(len(test), -1)[:, :LENGTH].float()

    after = torch.arange(LENGTH) == places[:, None]
    forced, spoilt = wrong(batch), wrong(replace(batch, inputs=inputs.flatten()))
    written = small.answers(model, [source for source, _ in test], LENGTH + 1)
    free = torch.tensor(
        [
            [place >= len(row) or row[place] != target[place] for place in range(LENGTH)]
            for row, (_, target) in zip(written, test, strict=True)
        ]
    ).float()
    return {
        "after_right": float(forced.mean()),
        "after_wrong": float(spoilt[after].mean()),
        "free": float(free.mean()),
        "forced_by_place": forced.mean(0).tolist(),
        "free_by_place": free.mean(0).tolist(),
    }


def judge(rows: Rows) -> Iterator[Verdict]:
    """An error must be likelier after an error; own words in training are another question."""
    for name in PLAIN:
        first, after, free = (
            mean(rows, value, model=name) for value in ("after_right", "after_wrong", "free")
        )
        yield Verdict.of(
            after > first + 0.2 if first < 0.5 else None,
            Words(
                f"{first:.1%} of the digits are wrong if all before are right, {after:.0%} if "
                f"the one before is wrong; {free:.1%} with its own before",
                f"앞이 모두 맞으면 {first:.1%}, 바로 앞이 틀리면 {after:.0%}가 틀린다. 자기 "
                f"출력을 이어 쓰면 {free:.1%}가 틀린다",
            ),
            Words(f"errors follow errors, {name}", f"{name}: 틀리면 계속 틀린다"),
        )
    if not any(row["model"] == RAMPED for row in rows):
        return
    plain, constant, ramped = (
        mean(rows, "free", model=name) for name in (PLAIN[1], CONSTANT, RAMPED)
    )
    fewer = [
        mean(each, "free", model=RAMPED) < mean(each, "free", model=PLAIN[1])
        for each in grouped(rows, "seed").values()
    ]
    yield Verdict.of(
        fewer[0] if len({*fewer}) == 1 else None,  # each seed says the same
        Words(
            f"a GRU writes {plain:.1%} wrong digits; {ramped:.1%}, fewer from {sum(fewer)} of "
            f"{len(fewer)} seeds, if the share of its own words in training grows to half; "
            f"{constant:.1%} if it is half from the start",
            f"GRU가 쓴 숫자의 {plain:.1%}가 틀린다. 학습할 때 자기 출력의 비율을 절반까지 늘려 "
            f"가면 {ramped:.1%}(시드 {len(fewer)}개 가운데 {sum(fewer)}개에서 줄었다), 처음부터 "
            f"절반이면 {constant:.1%}가 틀린다",
        ),
        Words("own words in training help", "학습할 때 자기 출력을 쓰면 낫다"),
    )


EXPERIMENT = Experiment(
    "teacher_forcing",
    Words(
        "Training sees the true previous word, use sees the model's own; errors then follow "
        "errors.",
        "학습할 때는 정답 단어를 보고 추론할 때는 자기가 출력한 단어를 본다(교사 강요). 그래서 한 "
        "번 틀리면 계속 틀린다.",
    ),
    Words(
        "Small models learn running sums, where an error spoils all that follows. Measured are "
        "wrong digits after right ones, after a planted wrong one and after the model's own; and "
        "whether own words in training (scheduled sampling) help.",
        "작은 모델이 누적 합을 배운다. 한 자리를 틀리면 뒤가 모두 틀리는 문제다. 앞이 모두 맞을 "
        "때, 바로 앞에 틀린 숫자를 심었을 때, 자기 출력을 이어 쓸 때의 오류와, 학습 중에 자기 "
        "출력을 섞는 방법(scheduled sampling)의 효과를 측정한다.",
    ),
    keys={"model": Words("model", "모델")},
    values={
        "after_right": Words("wrong, all before right", "앞이 모두 맞을 때 오류"),
        "after_wrong": Words("wrong, the one before wrong", "바로 앞이 틀렸을 때 오류"),
        "free": Words("wrong, own words before", "자기 출력을 이어 쓸 때 오류"),
    },
    measure=measure,
    draw=lambda rows: slide(
        Chart(
            by_kind([row for row in rows if row["model"] in PLAIN], KINDS),
            "kind",
            "value",
            "model",
            "Wrong digits",
            "",
            "% of digits",
            100,
            bars=True,
        ),
        Chart(
            by_place(rows, "free_by_place", 1),
            "place",
            "value",
            "model",
            "Wrong digits, own words before",
            "place in the answer",
            "% of digits",
            100,
        ),
    ),
    judge=judge,
    learnt=lambda row: bool(row["after_right"] < 0.5),
    korean={CONSTANT: "GRU, 처음부터 절반을 자기 출력", RAMPED: "GRU, 자기 출력을 절반까지 늘림"},
)
