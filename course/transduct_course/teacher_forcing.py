"""Training on the true previous word, and what writing freely costs."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import torch
from torch import nn

from transduct.drawing.plots import curves, page
from transduct.drawing.svg import Picture
from transduct_course import small
from transduct_course.charts import slide
from transduct_course.experiment import Experiment, Row, Setting, Verdict, Words, mean

DIGITS, LENGTH = 10, 12
HALF, WHOLE = "half way", "at the end"
RATES = {f"GRU, {share:.0%} own words": share for share in (0.0, 0.25, 0.5, 1.0)}
SAMPLED = "GRU, 50% own words"
MODELS: dict[str, Callable[[], Any]] = {
    "Transformer": lambda: small.transformer_of(DIGITS),
    **{
        name: lambda share=share: small.rnn_of(  # type: ignore[misc]
            DIGITS, scheduled_sampling=share
        )
        for name, share in RATES.items()
    },
}


def running_sum(random: Random) -> small.Pair:
    """Digits, and at each place the last digit of their sum so far: an error spoils all after
    it."""
    digits = [random.randrange(DIGITS) for _ in range(LENGTH)]
    sums = [sum(digits[: place + 1]) % DIGITS for place in range(LENGTH)]
    return [small.FIRST + digit for digit in digits], [small.FIRST + value for value in sums]


def measure(setting: Setting) -> Iterator[Row]:
    """Train with teacher forcing (and some of the model's own words); count errors by place half
    way, when there still are some, and at the end."""
    names = setting.pick([*MODELS], [*MODELS][:3], [*MODELS][:2])
    steps, test = setting.pick(1200, 300, 4), small.pairs(running_sum, setting.pick(500, 200, 5), 0)
    for name in names:
        for seed in setting.seeds:
            setting.report(f"teacher_forcing: {name}, seed {seed}")
            found: dict[str, Row] = {}

            def watch(step: int, loss: float, model: nn.Module) -> None:  # noqa: ARG001
                if step in (steps // 2, steps):
                    forced, free = errors(model.eval(), test)
                    model.train()
                    found[WHOLE if step == steps else HALF] = {  # noqa: B023
                        "forced": sum(forced) / LENGTH,
                        "free": sum(free) / LENGTH,
                        "first": free[0],
                        "last": free[-1],
                        "forced_by_place": forced,
                        "free_by_place": free,
                    }

            model, data = small.seeded(seed, MODELS[name]), small.batches(running_sum, 40, seed)
            small.train(model, data, steps, 2e-3, seed=seed, watch=watch)
            for moment, row in found.items():
                yield {"model": name, "moment": moment, "seed": seed, **row}


def errors(model: Any, test: Sequence[small.Pair]) -> tuple[list[float], list[float]]:
    """The share of wrong digits at each place: given the true digits before it, and given its
    own."""
    with torch.inference_mode():
        batch = small.batch_of(test)
        right = small.predicted(model, batch) == batch.outputs
    forced = 1.0 - right.view(len(test), -1)[:, :LENGTH].float().mean(0)
    written = small.answers(model, [source for source, _ in test], LENGTH + 1)
    wrong = [
        [place >= len(row) or row[place] != target[place] for place in range(LENGTH)]
        for row, (_, target) in zip(written, test, strict=True)
    ]
    return forced.tolist(), torch.tensor(wrong).float().mean(0).tolist()


def draw(rows: Sequence[Row]) -> Picture:
    """Errors by place, both ways, half way through training; and at both moments by the rate of
    sampling."""
    half = [row for row in rows if row["moment"] == HALF]
    lines = {
        f"{name.split(',')[0]}, {text}": [
            100 * sum(each) / len(each)
            for each in zip(*(row[kind] for row in half if row["model"] == name), strict=True)
        ]
        for name in list(dict.fromkeys(row["model"] for row in half))[:2]
        for kind, text in (("forced_by_place", "true words"), ("free_by_place", "own words"))
    }
    parts = [
        curves(range(1, LENGTH + 1), lines, "Wrong digits, %, half way", "place in the answer")
    ]
    shares = {name: share for name, share in RATES.items() if any(r["model"] == name for r in rows)}
    if shares:
        by_rate = {
            f"{text}, {moment}": [
                100 * mean(rows, kind, model=name, moment=moment) for name in shares
            ]
            for moment in (HALF, WHOLE)
            for kind, text in (("forced", "true words"), ("free", "own words"))
        }
        x = [f"{share:.0%}" for share in shares.values()]
        parts.append(
            curves(
                x, by_rate, "GRU with scheduled sampling: wrong digits, %", "own words in training"
            )
        )
    return slide(page(parts))


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """It holds if half way models that write freely err clearly more often than on the true words
    before."""
    plain = [row for row in rows if row["model"] in ("Transformer", "GRU, 0% own words")]
    at = {
        (moment, kind): mean(plain, kind, moment=moment)
        for moment in (HALF, WHOLE)
        for kind in ("forced", "free", "first", "last")
    }
    english = (
        f"half way through training {at[HALF, 'forced']:.1%} of the digits are wrong given the "
        f"true words, {at[HALF, 'free']:.1%} given its own (the first {at[HALF, 'first']:.1%}, the "
        f"last {at[HALF, 'last']:.1%}); at the end {at[WHOLE, 'forced']:.1%} and "
        f"{at[WHOLE, 'free']:.1%}"
    )
    korean = (
        f"학습을 절반 했을 때, 정답을 앞 단어로 주면 {at[HALF, 'forced']:.1%}가 틀리고 자기가 쓴 "
        f"단어를 이어 쓰면 {at[HALF, 'free']:.1%}가 틀린다(첫 자리 {at[HALF, 'first']:.1%}, 마지막 "
        f"자리 {at[HALF, 'last']:.1%}). 학습이 끝나면 각각 {at[WHOLE, 'forced']:.1%}, "
        f"{at[WHOLE, 'free']:.1%}이다"
    )
    sampled = [row for row in rows if row["model"] == SAMPLED and row["moment"] == WHOLE]
    if sampled:
        wrong = mean(sampled, "free")
        english += f"; a GRU that saw half of its own words in training errs in {wrong:.0%}"
        korean += f". 학습할 때 절반을 자기 출력으로 바꾼 GRU는 {wrong:.0%}를 틀린다"
    because = Words(english, korean)
    worse = at[HALF, "free"] > 1.2 * at[HALF, "forced"] + 0.002
    return [Verdict.of(worse, because)]


EXPERIMENT = Experiment(
    "teacher_forcing",
    Words(
        "Training sees the true previous word, use sees the model's own; errors then follow "
        "errors.",
        "학습할 때는 정답 단어를 보고 쓸 때는 자기가 낸 단어를 본다(교사 강요). 그래서 한 번 "
        "틀리면 계속 틀린다.",
    ),
    Words(
        "Small models learn running sums, where an error spoils all that follows. Measured are "
        "wrong digits by place, given the true digits before and given its own, half way and at "
        "the end, with scheduled sampling too.",
        "작은 모델이 누적 합을 배운다. 한 자리를 틀리면 뒤가 모두 틀리는 문제다. 정답을 앞에 줄 "
        "때와 자기 출력을 이어 쓸 때 자리마다 오류를 학습 절반과 끝에서 재고, 학습 중에 자기 "
        "출력을 섞는 방법(scheduled sampling)도 함께 잰다.",
    ),
    keys={"model": Words("model", "모델"), "moment": Words("moment", "시점")},
    values={
        "forced": Words("wrong, true words before", "정답을 앞에 줄 때 오류"),
        "free": Words("wrong, own words before", "자기 출력을 이어 쓸 때 오류"),
        "first": Words("first digit, own", "이어 쓸 때 첫 자리"),
        "last": Words("last digit, own", "이어 쓸 때 마지막 자리"),
    },
    measure=measure,
    draw=draw,
    judge=judge,
    main=lambda row: row["moment"] == "at the end",
    learnt=lambda row: bool(row["forced"] < 0.6),
    korean={
        **{name: f"GRU, 자기 출력 {share:.0%}" for name, share in RATES.items()},
        HALF: "학습 절반",
        WHOLE: "학습 끝",
    },
)
