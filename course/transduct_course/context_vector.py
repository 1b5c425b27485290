"""One fixed vector is a bottleneck for long sentences."""

from collections.abc import Callable

from transduct_course import small
from transduct_course.charts import Chart, slide
from transduct_course.experiment import (
    Experiment,
    Measured,
    Rows,
    Setting,
    Verdict,
    Words,
    change,
    mean,
)
from transduct_course.positions import SYMBOLS, echoed

MODELS: dict[str, Callable[[], small.Model]] = {
    "one vector": lambda: small.rnn_of(SYMBOLS, attention="none"),
    "GRU + attention": lambda: small.rnn_of(SYMBOLS, attention="general"),
    "Transformer": lambda: small.transformer_of(SYMBOLS),
}


def measure(setting: Setting) -> Measured:
    """Train on lengths from 2 up, and test each length by itself."""
    longest = setting.pick(64, 24, 8)
    lengths = [length for length in (4, 8, 16, 24, 32, 48, 64) if length <= longest]
    for name, seed in setting.each(MODELS):
        model, _ = small.train(
            small.seeded(seed, MODELS[name]),
            small.batches(echoed, 24, seed, 2, longest),
            setting.pick(1200, 300, 3),
            3e-3,
            seed=seed,
        )
        for length in lengths:
            rows = small.pairs(echoed, setting.pick(100, 50, 3), "test", length, length)
            yield {
                "model": name,
                "length": length,
                "seed": seed,
                "accuracy": small.accuracy(model, rows, small.FIRST),
            }


def judge(rows: Rows) -> list[Verdict]:
    """It holds if from short to long the single vector loses more than attention does."""
    short, long = min(row["length"] for row in rows), max(row["length"] for row in rows)

    (one, one_long), (other, other_long) = (
        [mean(rows, "accuracy", model=name, length=length) for length in (short, long)]
        for name in ("one vector", "GRU + attention")
    )
    alone, attentive = change(one, one_long), change(other, other_long)
    return [
        Verdict.of(
            one - one_long > other - other_long + 0.1,
            Words(
                f"from {short} to {long} symbols the accuracy of the single vector "
                f"{alone.english}, that of a GRU with attention {attentive.english}",
                f"기호가 {short}개에서 {long}개로 늘면 벡터 하나의 정확도는 {alone.korean}. "
                f"어텐션을 붙인 GRU는 {attentive.korean}",
            ),
        )
    ]


EXPERIMENT = Experiment(
    "context_vector",
    Words(
        "A single context vector is a bottleneck: long sentences do not fit into it.",
        "문맥 벡터 하나로는 긴 문장의 정보를 다 담지 못한다(병목).",
    ),
    Words(
        "A GRU that passes on one vector, a GRU with attention and a Transformer learn to reverse "
        "rows of symbols of many lengths. Measured is the accuracy at each length, with the true "
        "symbols before.",
        "벡터 하나만 넘겨주는 GRU, 어텐션을 붙인 GRU, Transformer가 여러 길이의 기호열을 뒤집는 "
        "법을 배운다. 정답 기호를 앞에 줄 때의 정확도를 길이마다 측정한다.",
    ),
    keys={"model": Words("model", "모델"), "length": Words("length", "길이")},
    values={"accuracy": Words("accuracy, true symbols before", "정확도(정답을 앞에 줄 때)")},
    measure=measure,
    draw=lambda rows: slide(
        Chart(
            rows, "length", "accuracy", "model", "Reversal", "length", "% of the symbols right", 100
        )
    ),
    judge=judge,
    main=lambda row: row["length"] in (4, 64),
    learnt=lambda row: bool(row["accuracy"] > 0.5),
    korean={"one vector": "벡터 하나", "GRU + attention": "GRU + 어텐션"},
)
