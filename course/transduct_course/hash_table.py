"""Attention is a soft look-up table: as the temperature falls, softmax becomes a dictionary."""

import torch

from transduct.functional.attention import attention, attention_weights
from transduct_course import small
from transduct_course.charts import Chart, by_kind, slide
from transduct_course.experiment import Experiment, Measured, Rows, Setting, Verdict, Words, mean

TEMPERATURES = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625)


def measure(setting: Setting) -> Measured:
    """Look up every key of a dictionary of random vectors, and vectors close to a key."""
    entries, width = setting.pick(256, 64, 8), 64
    for seed in setting.seeds:
        torch.manual_seed(seed)
        keys, values = torch.randn(entries, width), torch.randn(entries, width)
        asked = keys + 0.3 * torch.randn(entries, width)  # close to a key, as words are
        for temperature in TEMPERATURES:
            scale = 1.0 / (temperature * width**0.5)
            weights = attention_weights(asked, keys, scale)
            found = attention(asked, keys, values, scale)  # a dictionary returns the values
            yield {
                "temperature": temperature,
                "seed": seed,
                "right_key": float(weights.diagonal().mean()),
                "error": float((found - values).norm() / values.norm()),
                "same_answer": float((weights.argmax(-1) == torch.arange(entries)).float().mean()),
                "entropy": small.entropy(weights),
            }


def judge(rows: Rows) -> list[Verdict]:
    """It is shown if the coldest look-up returns the dictionary's value, the warmest another."""
    cold = mean(rows, "error", temperature=TEMPERATURES[-1])
    warm = mean(rows, "error", temperature=TEMPERATURES[0])
    return Verdict.shown(
        cold < 0.02 < 0.5 < warm,
        Words(
            f"at temperature {TEMPERATURES[-1]} the answer is the dictionary's"
            f"{f' but for {cold:.1%}' if cold >= 0.0005 else ''}; at {TEMPERATURES[0]:g} it is "
            f"{warm:.0%} off",
            f"온도가 {TEMPERATURES[-1]}이면 딕셔너리가 돌려주는 값과 "
            f"{f'거의 같고(오차 {cold:.1%})' if cold >= 0.0005 else '같고'}, "
            f"{TEMPERATURES[0]:g}이면 {warm:.0%} 어긋난다",
        ),
    )


EXPERIMENT = Experiment(
    "hash_table",
    Words(
        "Attention is a soft look-up table.",
        "어텐션은 부드러운 해시 테이블이다.",
    ),
    Words(
        "A dictionary of random keys and values is asked for vectors close to its keys, by "
        "attention at falling temperatures. Measured are the weight of the right key and the "
        "distance to the value that the dictionary returns.",
        "무작위 키와 밸류로 만든 사전에 키와 비슷한 벡터를 쿼리로 주고, 온도를 낮추어 가며 "
        "어텐션으로 찾는다. 맞는 키가 받는 가중치와, 사전이 돌려주는 값까지의 거리를 측정한다.",
    ),
    keys={"temperature": Words("temperature", "온도")},
    values={
        "right_key": Words("weight of the right key", "맞는 키의 가중치"),
        "error": Words("distance to the dictionary", "사전 값까지의 거리"),
        "same_answer": Words(
            "largest weight at the right key", "가장 큰 가중치가 맞는 키에 있는 비율"
        ),
        "entropy": Words("entropy, bits", "엔트로피(비트)"),
    },
    measure=measure,
    draw=lambda rows: slide(
        Chart(
            by_kind(
                [{**row, "temperature": f"{row['temperature']:g}"} for row in rows],
                {"right_key": "weight of the right key", "error": "distance to the dictionary"},
            ),
            "temperature",
            "value",
            "kind",
            "A look-up that sharpens",
            "temperature",
        )
    ),
    judge=judge,
    main=lambda row: row["temperature"] in (8, 2, 1, 0.5, 0.25, 0.0625),
    by_seed=False,
)
