"""The whole model, taken apart: its parts, their shapes and parameters."""

from torch import nn

from transduct.drawing.models import drawing, parts
from transduct.models.transformer import SIZES
from transduct.storage import weights_of
from transduct_course import small
from transduct_course.experiment import Experiment, Measured, Rows, Setting, Verdict, Words


def measure(setting: Setting) -> Measured:
    """Take the paper's base model, or a small one, apart."""
    shape = setting.pick(SIZES["base"], SIZES["small"], {"encoder_layers": 3, "decoder_layers": 3})
    model = small.seeded(1, small.transformer_of, 8000, **shape)
    rows = parts(weights_of(model))
    total = sum(part.parameters for part in rows)
    for part in rows:
        yield {
            "part": part.name,
            "shape": part.shape,
            "layers": len(part.layers),
            "parameters": part.parameters,
            "share": part.parameters / total,
            "model": shape,
            "own": own_weights(model, part.name),
        }


def own_weights(model: nn.Module, name: str) -> bool | None:
    """Whether the layers of a stack have equal shapes here and weights of their own; none outside
    stacks."""
    if "*" not in name:
        return None
    before, _, after = name.partition(".*.")
    found = [
        weight
        for own, weight in model.named_parameters()
        if own.startswith(f"{before}.") and own.endswith(f".{after}.weight")
    ]
    shapes, places = {each.shape for each in found}, {each.data_ptr() for each in found}
    return len(shapes) == 1 and len(places) == len(found)


def judge(rows: Rows) -> list[Verdict]:
    """It is shown if all layers of a stack have the same shapes, each with weights of its own."""
    own = [row["own"] for row in rows if row["own"] is not None]
    total = sum(row["parameters"] for row in rows)
    inner = sum(row["parameters"] for row in rows if "feed_forward" in row["part"]) / total
    attention = sum(row["parameters"] for row in rows if "attention." in row["part"]) / total
    return Verdict.shown(
        all(own),
        Words(
            f"all {len(own)} parts have equal shapes in every layer and weights of their own; of "
            f"{total:,} parameters attention has {attention:.0%} and feed-forward {inner:.0%}",
            f"{len(own)}개 부분 모두 층마다 모양이 같고 가중치는 따로 있다. 매개변수 {total:,}개 "
            f"가운데 어텐션이 {attention:.0%}, 피드포워드가 {inner:.0%}이다",
        ),
    )


EXPERIMENT = Experiment(
    "architecture",
    Words(
        "Encoder and decoder are stacks of layers of the same structure, each with weights of its "
        "own.",
        "인코더와 디코더는 구조가 같은 층을 쌓은 것이고, 가중치는 층마다 따로 있다.",
    ),
    Words(
        "A real model is taken apart: its modules, their shapes, and their parameters. Checked is "
        "that layers of a stack agree in shape and share no weight.",
        "실제 모델을 뜯어 모듈과 모양, 매개변수를 센다. 쌓인 층끼리 모양은 같고 가중치는 나누어 "
        "쓰지 않는지 확인한다.",
    ),
    keys={"part": Words("part", "부분")},
    values={
        "shape": Words("shape", "모양"),
        "layers": Words("layers", "층 수"),
        "parameters": Words("parameters", "매개변수"),
        "share": Words("share", "비중"),
    },
    measure=measure,
    draw=lambda rows: drawing(
        weights_of(small.seeded(1, small.transformer_of, 8000, **rows[0]["model"])),
        "Transformer, two of its layers on each side",
    ),
    judge=judge,
    main=lambda row: row["part"].endswith(
        ("encoder.*.self_attention.query", "inner", "cross_attention.query", "table")
    ),
    by_seed=False,
)
