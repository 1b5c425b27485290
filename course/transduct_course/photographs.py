"""Convolutional networks on photographs, plain and residual: figure 1 of He et al. (2016), small.

Let B be the photographs of a batch, W the width of the network.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduct.data.archives import read_members
from transduct.data.images import read_picture
from transduct.segments import Axis, FlatBatch
from transduct.training.combining import Terms
from transduct_course import small

CLASSES, WIDTH = 10, 16


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
        self.first = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(),
                nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH),
            )
            for _ in range(layers // 2)
        )  # fmt: skip
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, 16, 16) -> (B, CLASSES)."""
        x = F.relu(self.first(x))
        for block in self.blocks:
            x = F.relu(x + block(x) if self.residual else block(x))
        return self.last(x.mean((2, 3)))


def read(path: Path, count: int) -> Batch:
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


def batches(data: Batch, size: int, seed: int) -> Iterator[Batch]:
    """Photographs drawn at random, half of them mirrored, without end."""
    random = Random(f"photographs {seed}")
    while True:
        rows = torch.tensor(random.choices(range(len(data.labels)), k=size))
        mirrored = torch.tensor(random.choices((True, False), k=size))[:, None, None, None]
        pixels = data.pixels[rows]
        yield Batch(torch.where(mirrored, pixels.flip(-1), pixels), data.labels[rows])


def loss_of(model: Any, batch: Batch) -> Terms:
    """The cross-entropy of the classes."""
    loss = F.cross_entropy(model(batch.pixels), batch.labels, reduction="sum")
    return {"labels": (loss, batch.counts["labels"], 1.0)}


@torch.inference_mode()
def wrong(model: Any, data: Batch) -> float:
    """The share of photographs that get another class."""
    return float((model(data.pixels).argmax(-1) != data.labels).float().mean())


def trained(data: Batch, layers: int, residual: bool, steps: int, seed: int) -> Any:
    """A network after training, and its losses."""
    model = small.seeded(seed, Network, layers, residual)
    losses = small.train(model, batches(data, 64, seed), steps, 2e-3, loss=loss_of, seed=seed)
    return model, losses
