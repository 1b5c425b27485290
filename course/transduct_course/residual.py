"""What residual connections are for: Transformers of growing depth without them, and plain
convolutional networks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduct.data.archives import read_members
from transduct.data.images import read_picture
from transduct.drawing.svg import Picture
from transduct.segments import Axis, FlatBatch
from transduct.training.distributed import Terms
from transduct_course import small
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

Changes = Mapping[str, small.Changes]  # of the model, by the name of the variant
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
CLASSES, CHANNELS = 10, 16  # of the photographs, and of their networks
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

        def watch(step: int, loss: float, model: small.Model) -> None:  # noqa: ARG001
            if step == 1:
                norms.extend(small.gradient_norm(model, end) for end in ends)  # noqa: B023

        _, losses = small.train(
            model, small.batches(reverse, 24, seed), steps, seed=seed, watch=watch, clip=0.0
        )
        yield {
            "data": REVERSAL,
            "variant": name,
            "depth": depth,
            "seed": seed,
            "loss": end_of(losses),
            "accuracy": small.accuracy(model, test),
            "gradient_ratio": norms[0] / max(norms[1], 1e-30) if norms else None,
        }


def end_of(losses: Sequence[float]) -> float:
    """The mean loss of the last tenth."""
    return fmean(losses[-max(1, len(losses) // 10) :])


@dataclass(frozen=True, eq=False)
class Batch(FlatBatch):
    """Photographs (B, 3, 16, 16) and what each shows (B,). The loss is an average over them."""

    terms = {"labels": "photographs"}
    pixels: Annotated[Tensor, Axis("photographs")]
    labels: Annotated[Tensor, Axis("photographs")]


class Network(nn.Module):
    """So many convolutions of 3 x 3, each with a batch norm. A residual one adds what goes into two
    of them to what comes out."""

    def __init__(self, layers: int, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.first = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
                nn.BatchNorm2d(CHANNELS), nn.ReLU(),
                nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS),
            )
            for _ in range(layers // 2)
        )  # fmt: skip
        self.last = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, 16, 16) -> (B, CLASSES)."""
        x = F.relu(self.first(x))
        for block in self.blocks:
            x = F.relu(x + block(x) if self.residual else block(x))
        return self.last(x.mean((2, 3)))


def read_photographs(path: Path, count: int) -> Batch:
    """The first photographs of an archive of folders, one for each class, at half their size."""
    found: dict[str, list[Tensor]] = {}
    for name, content in read_members(path, (".jpg",)):
        kind = Path(name).parent.name
        if len(found.setdefault(kind, [])) < count // CLASSES:
            found[kind].append(torch.from_numpy(read_picture(content(), name)))
    pixels = torch.stack([picture for kind in sorted(found) for picture in found[kind]])
    labels = [number for number, kind in enumerate(sorted(found)) for _ in found[kind]]
    scaled = (pixels.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
    return Batch(F.avg_pool2d(scaled, 2), torch.tensor(labels))


def mirrored(data: Batch, size: int, seed: int) -> Iterator[Batch]:
    """Photographs drawn at random, half of them mirrored, without end."""
    random = Random(f"photographs {seed}")
    while True:
        rows = torch.tensor(random.choices(range(len(data.labels)), k=size))
        mirrored = torch.tensor(random.choices((True, False), k=size))[:, None, None, None]
        pixels = data.pixels[rows]
        yield Batch(torch.where(mirrored, pixels.flip(-1), pixels), data.labels[rows])


def loss_of(model: small.Model, batch: Batch) -> Terms:
    """The cross-entropy of the classes."""
    return small.summed(model(batch.pixels), batch.labels, "labels")


@torch.inference_mode()
def wrong(model: small.Model, data: Batch) -> float:
    """The share of photographs that get another class."""
    return float((model(data.pixels).argmax(-1) != data.labels).float().mean())


def trained_network(
    data: Batch, layers: int, residual: bool, steps: int, seed: int
) -> tuple[small.Model, list[float]]:
    """A network after training, and its losses."""
    model = small.seeded(seed, Network, layers, residual)
    return small.train(model, mirrored(data, 64, seed), steps, 2e-3, loss=loss_of, seed=seed)


def measure(setting: Setting) -> Measured:
    """Transformers from one layer on, and convolutional networks on photographs, if there are
    any."""
    depths = setting.pick((1, 2, 4, 8, 16, 32), (1, 2, 8), (1, 2))
    yield from reversal(RESIDUALS, depths, setting)
    if folder := setting.found("cifar10_jpg"):
        data = read_photographs(folder / "train.tar.xz", setting.pick(5000, 1000, 20))
        for depth, name, seed in setting.each(setting.pick((8, 32), (8, 32), (2, 4)), RESIDUALS):
            steps, residual = setting.pick(300, 40, 2), name == "with residuals"
            model, losses = trained_network(data, depth, residual, steps, seed)
            yield {
                "data": PHOTOGRAPHS,
                "variant": name,
                "depth": depth,
                "seed": seed,
                "loss": end_of(losses),
                "accuracy": 1 - wrong(model, data),
                "gradient_ratio": None,
            }


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


def judge(rows: Rows) -> Iterator[Verdict]:
    """As He et al. (2016) saw it: without residuals the deepest network fits even its training data
    worse than the shallowest; with them it does not."""
    for (data,), found in grouped(rows, "data").items():
        least, *_, most = sorted({row["depth"] for row in found})
        (plain, plain_deep), (rich, rich_deep) = (
            [mean(found, "loss", variant=name, depth=depth) for depth in (least, most)]
            for name in ("without residuals", "with residuals")
        )
        where = Words("Transformers", "Transformer") if data == REVERSAL else Words(data, "사진")
        yield judged(
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
        )
        yield judged(
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
        )


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
