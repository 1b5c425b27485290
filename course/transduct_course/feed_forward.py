"""What feed-forward networks are for: Transformers without them move symbols, combine bits and
translate."""

from collections.abc import Iterator
from random import Random
from typing import Any

import torch

from transduct_course import real, small
from transduct_course.ablations import WithoutFeedForward
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
from transduct_course.residual import (
    IN_KOREAN,
    KEYS,
    LEARNT,
    REVERSAL,
    VALUES,
    WIDTH,
    Changes,
    draw,
    end_of,
    judged,
    reversal,
)

XOR, CAPTIONS = "XOR of two bits", "captions translated"
WITH, BARE, AS_MANY = "with feed-forward", "without feed-forward", "without, as many parameters"
BITS, TOKENS = 6, 4
PARTS = {
    REVERSAL: Words("to move symbols", "기호를 옮길 때"),
    XOR: Words("to combine what one token holds", "한 토큰 안의 정보를 합칠 때"),
    CAPTIONS: Words("to translate", "번역할 때"),
}


def xor(random: Random) -> small.Pair:
    """Tokens of six bits; of each, the XOR of its bits in pairs, as one token of three bits."""
    row = [random.randrange(1 << BITS) for _ in range(TOKENS)]
    pairs = [
        sum((number >> 2 * i ^ number >> 2 * i + 1) % 2 << i for i in range(BITS // 2))
        for number in row
    ]
    return [small.FIRST + number for number in row], [small.FIRST + number for number in pairs]


def of_bits(**changes: Any) -> Any:
    """A Transformer of one layer whose source vectors are the bits of the token, and stay so:
    a table of vectors that learns could hold the answers."""
    model = small.transformer_of(1 << BITS, encoder_layers=1, tie="none", **{**WIDTH, **changes})
    table: Any = model.source_embedding.table
    numbers = torch.arange(1 << BITS)[:, None]
    table.requires_grad_(False).zero_()
    table[small.FIRST :, :BITS] = 2.0 * (numbers >> torch.arange(BITS) & 1) - 1
    return model


def measure(setting: Setting) -> Measured:
    """Symbols to be moved, bits to be combined, and captions to be translated, if there are any."""

    def variants(wide: int) -> Changes:
        return {
            WITH: {},
            BARE: {"kind": WithoutFeedForward},
            AS_MANY: {"kind": WithoutFeedForward, "d_model": wide},
        }

    yield from reversal(variants(44), setting.pick((4, 8, 32), (2, 4), (2,)), setting)
    steps, test = setting.pick(1500, 200, 3), small.pairs(xor, 300, "test")
    for name, seed in setting.each(variants(40)):
        start = small.seeded(seed, of_bits, **variants(40)[name])
        model, losses = small.train(start, small.batches(xor, 32, seed), steps, 3e-3, seed=seed)
        yield {
            "data": XOR,
            "variant": name,
            "depth": 1,
            "seed": seed,
            "loss": end_of(losses),
            "accuracy": small.accuracy(model, test),
        }
    if folder := setting.found("multi30k"):
        text = real.captions(folder, setting.pick(8000, 2000, 50), setting.pick(300, 30, 5))
        for name, seed in setting.each(variants(76)):
            model, _ = small.train(
                small.seeded(seed, small.transformer_of, text.vocabulary, **variants(76)[name]),
                small.choices(text.train, 32, f"translation {seed}"),
                setting.pick(400, 100, 2),
                seed=seed,
            )
            yield {
                "data": CAPTIONS,
                "variant": name,
                "depth": 2,
                "seed": seed,
                "loss": small.loss_on(model, text.test),
                "accuracy": small.accuracy(model, text.test),
            }


def judge(rows: Rows) -> Iterator[Verdict]:
    """On each data set it holds if the network is missed by a model without it that has as many
    parameters. Reversal is judged at its least depth, where all trainings have ended."""
    for (data,), found in grouped(rows, "data").items():
        depth = min(row["depth"] for row in found)
        name, form = ("loss", ".2f") if data == CAPTIONS else ("accuracy", ".0%")
        whole, bare, as_many = (
            mean(found, name, variant=variant, depth=depth) for variant in (WITH, BARE, AS_MANY)
        )
        least = 0.1 if data == CAPTIONS else LEARNT
        gain = as_many - whole if name == "loss" else whole - as_many
        layers = f"{depth} layer{'s' * (depth > 1)}"
        because = Words(
            f"at {layers} the {name} is {whole:{form}} with the network, {bare:{form}} without, "
            f"and {as_many:{form}} without it but with as many parameters",
            f"{depth}층에서 {'손실은' if name == 'loss' else '정확도는'} 피드포워드가 있으면 "
            f"{whole:{form}}, 없으면 {bare:{form}}, 매개변수 수를 맞추고 빼면 {as_many:{form}}이다",
        )
        yield judged(found, PARTS[data], gain > 0.03, because, least)


EXPERIMENT = Experiment(
    "feed_forward",
    Words(
        "The feed-forward network after each attention is needed.",
        "어텐션 뒤의 피드포워드 신경망은 꼭 필요하다.",
    ),
    Words(
        "Transformers with the network, without it, and without it but with as many parameters "
        "reverse symbols, combine the bits of a token and translate captions. Measured are loss "
        "and accuracy.",
        "피드포워드 신경망이 있는 Transformer, 없는 것, 없지만 매개변수 수가 같은 것이 기호열을 "
        "뒤집고, 한 토큰의 비트를 합치고, 사진 설명을 번역한다. 손실과 정확도를 측정한다.",
    ),
    KEYS,
    {**VALUES, "loss": Words("loss", "손실")},
    measure,
    draw,
    judge,
    {
        **IN_KOREAN,
        WITH: "피드포워드 있음",
        BARE: "피드포워드 없음",
        AS_MANY: "없음, 매개변수 수는 같게",
        XOR: "두 비트의 XOR",
        CAPTIONS: "사진 설명 번역",
    },
    learnt=lambda row: bool(row["accuracy"] > LEARNT),
    main=lambda row: row["data"] != "reversal",
)
