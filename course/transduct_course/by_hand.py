"""Attention put in numbers, and what a decoder is given and must predict: nothing is trained."""

import torch

from transduct.drawing.svg import Picture
from transduct.functional.attention import attention, attention_weights
from transduct_course import small
from transduct_course.charts import cells
from transduct_course.experiment import Experiment, Measured, Rows, Setting, Verdict, Words

D_K = 64
WORDS, SCORES = ("Thinking", "Machines"), (112.0, 96.0)
VALUES = ((2.0, 1.0), (-1.0, 3.0))  # of two numbers, so that the sum can be followed
SENTENCE = ("I", "go", "home", "and", "eat", "pizza")
BEGIN, END = "<begin>", "<end>"


def thinking_machines(setting: Setting) -> Measured:  # noqa: ARG001
    """The four steps for the first word of two, and the formula of the package beside them."""
    query = torch.ones(1, D_K)
    keys = torch.stack([torch.full((D_K,), score / D_K) for score in SCORES])  # q · k: the scores
    scores = (query @ keys.T)[0]
    weights, sharp = (scores / D_K**0.5).softmax(-1), scores.softmax(-1)
    values = torch.tensor(VALUES)
    formula = attention_weights(query, keys)[0], attention(query, keys, values)[0]
    for place, word in enumerate(WORDS):
        yield {
            "word": word,
            "score": float(scores[place]),
            "divided": float(scores[place] / D_K**0.5),
            "weight": float(weights[place]),
            "not_divided": float(sharp[place]),
            "value": str(VALUES[place]),
            "formula": float(formula[0][place]),
            "sum": (weights @ values).tolist(),
            "formula_sum": formula[1].tolist(),
        }


def draw_steps(rows: Rows) -> Picture:
    """The steps from left to right, a row for each word, and the sum."""
    lines = [[(each, 0.0) for each in ("word", "q · k", "÷ √64", "softmax")]]
    for row in rows:
        known = row["word"], f"{row['score']:.0f}", f"{row['divided']:.0f}"
        lines.append([*((each, 0.0) for each in known), (f"{row['weight']:.2f}", row["weight"])])
    first, second = rows[-1]["sum"]
    title = f'What "Thinking" takes from each word: the sum is ({first:.2f}, {second:.2f})'
    return cells(lines, title, 130)


def judge_steps(rows: Rows) -> list[Verdict]:
    """Arithmetic cannot fail; it is compared with the formula of the package."""
    one, two = (row["weight"] for row in rows)
    (a, b), row = rows[0]["sum"], rows[0]
    apart = max(
        *(abs(row["weight"] - row["formula"]) for row in rows),
        *(abs(x - y) for x, y in zip(row["sum"], row["formula_sum"], strict=True)),
    )
    return Verdict.shown(
        apart < 1e-5,
        Words(
            f"the scores 112 and 96 become 14 and 12, and {one:.2f} and {two:.2f} after softmax; "
            f"the weighted sum is ({a:.2f}, {b:.2f}). Not divided, the first word would get "
            f"{row['not_divided']:.7f}",
            f"점수 112와 96은 나누면 14와 12, 소프트맥스를 지나면 {one:.2f}과 {two:.2f}가 되고, "
            f"가중합은 ({a:.2f}, {b:.2f})이다. 나누지 않으면 첫 단어의 가중치는 "
            f"{row['not_divided']:.7f}이 된다",
        ),
    )


BY_HAND = Experiment(
    "attention_by_hand",
    Words(
        "A word's new vector is a sum of values, weighted by softmax of q · k / √d_k.",
        "단어의 새 벡터는 softmax(q · k / √d_k)를 가중치로 한 밸류의 가중합이다.",
    ),
    Words(
        'The notes\' example "Thinking Machines" is computed step by step: scores, division, '
        "softmax, weighted sum. The formula of the package gives the same.",
        "강의 노트의 예 'Thinking Machines'를 점수, 나누기, 소프트맥스, 가중합의 순서로 한 단계씩 "
        "계산한다. 패키지의 수식도 같은 값을 낸다.",
    ),
    keys={"word": Words("word", "단어")},
    values={
        "score": Words("score q · k", "점수 q · k"),
        "divided": Words("divided by √64", "√64로 나눔"),
        "weight": Words("weight", "가중치"),
        "not_divided": Words("weight, not divided", "나누지 않을 때 가중치"),
        "value": Words("value", "밸류"),
    },
    measure=thinking_machines,
    draw=draw_steps,
    judge=judge_steps,
    by_seed=False,
)


def shifted(setting: Setting) -> Measured:  # noqa: ARG001
    """What the decoder is given at each place and what it must predict, from a batch as training
    makes it."""
    ids = list(range(small.FIRST, small.FIRST + len(SENTENCE)))
    batch = small.batch_of([([small.FIRST], ids)])
    inputs, targets = batch.inputs.tolist(), batch.outputs.tolist()
    for place in range(len(inputs)):
        seen = [word_of(token, BEGIN) for token in inputs[: place + 1]]
        yield {
            "place": place + 1,
            "input": seen[-1],
            "seen": " ".join(seen),
            "target": word_of(targets[place], END),
        }


def word_of(token: int, special: str) -> str:
    """The word of an id, or the special token."""
    return SENTENCE[token - small.FIRST] if token >= small.FIRST else special


def draw_shifted(rows: Rows) -> Picture:
    """A row for each place: what the mask lets it see, and the target."""
    heads = [*(str(place + 1) for place in range(len(rows))), "target"]
    lines = [[(head, 0.0) for head in heads]]
    for row in rows:
        seen = [*row["seen"].split(), *["·"] * (len(rows) - row["place"])]
        lines.append([*((word, 0.0) for word in seen), (row["target"], 1.0)])
    return cells(lines, "What each place sees, and its target (dark)", 776 / (len(rows) + 1))


def judge_shifted(rows: Rows) -> list[Verdict]:
    """It is shown if no place sees its target, and each target is the next input."""
    follows = [row["target"] for row in rows[:-1]] == [row["input"] for row in rows[1:]]
    return Verdict.shown(
        follows and rows[-1]["target"] == END,
        Words(
            f"one pass over {len(rows)} places gives {len(rows)} predictions; each target is the "
            "decoder's next input",
            f"자리 {len(rows)}개를 한 번에 지나며 예측 {len(rows)}개를 얻는다. 각 자리의 정답은 "
            "디코더의 다음 입력이다",
        ),
    )


SHIFTED = Experiment(
    "shifted_targets",
    Words(
        "The decoder is given the target shifted right by one, and predicts it place by place.",
        "디코더는 정답을 오른쪽으로 한 칸 민 것을 입력받아 자리마다 다음 단어를 예측한다.",
    ),
    Words(
        'The batch that training makes of "I go home and eat pizza" is shown: the input of each '
        "place, what the mask lets it see, and its target.",
        "'I go home and eat pizza'로 학습할 때 만들어지는 배치를 보인다. 자리마다 입력, 마스크가 "
        "보게 하는 것, 정답이다.",
    ),
    keys={"place": Words("place", "자리")},
    values={
        "input": Words("input", "입력"),
        "seen": Words("sees", "볼 수 있는 것"),
        "target": Words("must predict", "예측할 것"),
    },
    measure=shifted,
    draw=draw_shifted,
    judge=judge_shifted,
    by_seed=False,
)
