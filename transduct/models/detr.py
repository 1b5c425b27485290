"""DETR: object detection as set prediction, all boxes and classes of a picture at once (Carion et
al. 2020).

A convolutional backbone computes a grid of features and an encoder attends over its cells. In the
decoder, object queries attend to the grid and to each other; each query predicts one object or
none.

The original learns from scratch where a query should look, which takes hundreds of epochs. Here
each query has a box from the start: it begins at an anchor (Wang et al. 2022), each layer refines
it (Zhu et al. 2021), in units of its own size, and a Gaussian per head draws self- and
cross-attention towards it (Gao et al. 2021). Let B be pictures of equal size, P the cells of their
grid, Q queries, H heads, D the model width, C classes.
"""

from dataclasses import dataclass, field
from math import isqrt
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.convolution import Backbone
from transduct.blocks.embeddings import embedding_table
from transduct.blocks.linear import Linear
from transduct.blocks.sizes import Layers, LayersOrNone, Side, Size, require_channels
from transduct.blocks.transformer import (
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LayerShape,
    initialise,
    names_of_attention,
)
from transduct.functional.positions import sinusoidal_2d
from transduct.models.base import Model
from transduct.records import Checked, Range, Rate, refuse_if
from transduct.segments import Segments

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "channels": [32, 64, 128],
        "d_model": 128,
        "num_heads": 4,
        "d_ff": 256,
        "encoder_layers": 1,
    },
    "small": {"channels": [64, 128, 256]},
    "base": {
        "channels": [128, 256, 512],
        "d_model": 256,
        "num_heads": 8,
        "d_ff": 1024,
        "encoder_layers": 3,
    },
}
# standard deviation of the Gaussian around an empty box, relative to the picture's side
NARROWEST = 0.03
# the picture's side in the units of the sinusoids; the shortest wavelength is then a tenth of the
# side
SCALE = 64.0


@dataclass(frozen=True)
class Config(Checked):
    """The architecture of a DETR; the defaults are the small size.

    Attributes:
        classes: C, excluding the class for no object.
        side: the height and width of a picture in pixels.
        channels: of each level of the backbone; every level halves the resolution.
        queries: Q, a square number, because their anchors start as a grid.
        no_object: the weight in the loss of a query without an object. With the paper's 0.1, a
            second query on the same object costs little.
    """

    classes: Size
    side: Side = 96
    channels: list[int] = field(default_factory=lambda: [64, 128, 256])
    d_model: Size = 192
    num_heads: Size = 6
    d_ff: Size = 768
    encoder_layers: LayersOrNone = 1
    decoder_layers: Layers = 3
    queries: Size = 36
    dropout: Rate = 0.0
    no_object: Annotated[float, Range(above=0, most=1)] = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_channels(self, "channels")
        refuse_if(
            self.side % self.stride,
            f"side is {self.side}, must be a multiple of {self.stride}, 2 for each of the channels",
        )
        refuse_if(
            isqrt(self.queries) ** 2 != self.queries,
            f"queries is {self.queries}, must be a square number: their anchors begin as a grid",
        )
        refuse_if(
            self.d_model % 4 or self.d_model % self.num_heads,
            f"d_model is {self.d_model}, must be a multiple of 4 and of num_heads "
            f"({self.num_heads})",
        )

    @property
    def stride(self) -> int:
        """The side of a cell of the grid in pixels."""
        return 2 ** len(self.channels)

    @property
    def places(self) -> int:
        """P, the number of cells of the grid."""
        return (self.side // self.stride) ** 2


class Gaussian(nn.Module):
    """Draws each head of a query to the region in and near its box: the logarithm of a Gaussian,
    added to the scores.

    It is the spatial prior of SMCA (Gao et al. 2021, equations 5 to 8), in units of the box, so
    that a head that looks at the left edge does so for boxes of every size. In cross-attention it
    finds the object; in self-attention it finds other queries at the same object, only one of which
    may keep it.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        turns = torch.arange(num_heads) * (2 * torch.pi / num_heads)
        self.centres = nn.Parameter(0.5 * torch.stack((turns.cos(), turns.sin()), 1))  # (H, 2)
        self.spreads = nn.Parameter(torch.full((num_heads, 2), -0.5))  # (H, 2), logarithms

    def forward(self, boxes: Tensor, places: Tensor) -> Tensor:
        """Boxes (B, Q, 4), and the centres of what is attended to, (B, S, 2) or (S, 2) -> (B, H, Q,
        S)."""
        # (B, 1, Q, 2)
        centre, half = (part.unsqueeze(1) for part in (boxes[..., :2], boxes[..., 2:] / 2))
        means = (centre + self.centres[:, None] * half).unsqueeze(-2)  # (B, H, Q, 1, 2)
        spreads = (self.spreads[:, None].exp() * half + NARROWEST).unsqueeze(-2)  # (B, H, Q, 1, 2)
        points = places[:, None, None] if places.ndim == 3 else places
        return -0.5 * ((points - means) / spreads).square().sum(-1)  # (B, H, Q, S)


class Heads(nn.Module):
    """The output heads of a layer: class logits and moves of the boxes, for each query.

    Every layer has its own, because its boxes start where the previous layer moved them.
    """

    def __init__(self, d_model: int, classes: int) -> None:
        super().__init__()
        self.classes = Linear(d_model, classes + 1)
        self.inner, self.outer, self.move = (
            Linear(d_model, width) for width in (d_model, d_model, 4)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D) -> (N, C + 1), (N, 4)."""
        return self.classes(x), self.move(self.outer(self.inner(x).relu()).relu())


class Detr(Model):
    """`encode` computes the memory of pictures, `decode` the classes and boxes after each layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.attention_names = names_of_attention(config.encoder_layers, config.decoder_layers)
        d_model, heads = config.d_model, config.num_heads
        shape = LayerShape(d_model, config.d_ff, config.dropout, "gelu", "pre", "layer")
        self.backbone = Backbone(config.channels)
        self.projection = Linear(config.channels[-1], d_model)
        self.encoder = Encoder(
            EncoderLayer(shape, MultiHeadAttention(d_model, heads))
            for _ in range(config.encoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(d_model)
        # classifies the cells of the memory; used by the loss only
        self.places = Linear(d_model, config.classes + 1)
        self.decoder = nn.ModuleList(
            DecoderLayer(
                shape, MultiHeadAttention(d_model, heads), MultiHeadAttention(d_model, heads)
            )
            for _ in range(config.decoder_layers)
        )
        self.decoder_norm = nn.LayerNorm(d_model)
        self.near = nn.ModuleList(Gaussian(heads) for _ in range(config.decoder_layers))
        self.inside = nn.ModuleList(Gaussian(heads) for _ in range(config.decoder_layers))
        self.queries = embedding_table(config.queries, d_model)
        self.anchors = nn.Parameter(grid_of_anchors(config.queries).logit())
        self.place = Linear(d_model, d_model)
        self.heads = nn.ModuleList(
            Heads(d_model, config.classes) for _ in range(config.decoder_layers)
        )
        initialise(self)
        for each in self.heads:
            # the first boxes are the anchors
            nn.init.zeros_(each.move.weight)  # type: ignore[union-attr, arg-type]

    def encode(
        self, pictures: Tensor, weights: list[Tensor] | None = None
    ) -> tuple[Tensor, Segments]:
        """Pictures (B, side, side, 3), from 0 to 255 -> the memory (B * P, D) and its segments."""
        # (B, 3, side, side)
        scaled = pictures.permute(0, 3, 1, 2).to(next(self.parameters()).dtype) / 127.5 - 1.0
        features = self.backbone(scaled)  # (B, channels, rows, rows)
        rows = features.shape[-1]
        columns, lines = (SCALE * grid_of_places(rows, pictures.device)).unbind(1)  # (P,) each
        places = sinusoidal_2d(lines, columns, self.config.d_model)  # (P, D)
        # (B, P, D)
        x = self.projection(features.flatten(2).transpose(1, 2)) + places.to(scaled.dtype)
        segments = Segments.of([rows * rows] * len(pictures), pictures.device)
        x = x.flatten(0, 1)  # (B * P, D)
        return self.encoder_norm(self.encoder(x, segments, weights)), segments

    def decode(
        self, memory: Tensor, grid: Segments, weights: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The memory (B * P, D) -> the outputs of each layer: logits (layers, B, Q, C + 1), boxes
        (layers, B, Q, 4).

        Boxes are centre, width and height, relative to the picture's; the last class means no
        object. A layer learns to move the box that it is given, so gradients do not flow through
        the boxes from one layer to the layer before.
        """
        shape = (len(grid), self.config.queries)
        rows = isqrt(grid.longest)
        places = grid_of_places(rows, memory.device)  # (P, 2)
        segments = Segments.of([shape[1]] * shape[0], memory.device)
        x = self.queries.repeat(shape[0], 1)  # (B * Q, D)
        current = self.anchors.float().sigmoid().repeat(shape[0], 1)  # (B * Q, 4)
        logits, boxes = [], []
        for layer, near, inside, heads in zip(
            self.decoder, self.near, self.inside, self.heads, strict=True
        ):
            boxes_so_far = current.detach().view(*shape, 4)  # (B, Q, 4)
            self_bias = near(boxes_so_far, boxes_so_far[..., :2])  # (B, H, Q, Q)
            cross_bias = inside(boxes_so_far, places)  # (B, H, Q, P)
            x = x + self.place(box_positions(current.detach(), self.config.d_model).to(x.dtype))
            x = layer(
                x,
                segments,
                memory,
                grid,
                weights,
                causal=False,
                self_bias=self_bias,
                cross_bias=cross_bias,
            )
            scores, moves = heads(self.decoder_norm(x))
            current = moved(current, moves.float())
            logits.append(scores.float().view(*shape, -1))  # (B, Q, C + 1)
            boxes.append(current.view(*shape, 4))  # (B, Q, 4)
            current = current.detach()
        return torch.stack(logits), torch.stack(boxes)


def moved(boxes: Tensor, moves: Tensor) -> Tensor:
    """Shift boxes by fractions of their width and height, and scale them: (N, 4), (N, 4) -> (N, 4).

    Relative moves (Girshick et al. 2014) do not depend on the position and size of a box, so that
    what is learned in one part of a picture holds everywhere.
    """
    size = boxes[:, 2:]
    return torch.cat(
        (boxes[:, :2] + moves[:, :2] * size, size * moves[:, 2:].clamp(-2, 2).exp()), 1
    )  # (N, 4)


def grid_of_places(side: int, device: torch.device | None = None) -> Tensor:
    """The centres (side^2, 2) of the cells of a grid, row by row, as x and y relative to the
    picture."""
    axis = (torch.arange(side, device=device) + 0.5) / side
    return torch.stack((axis.repeat(side), axis.repeat_interleave(side)), 1)  # (P, 2)


def grid_of_anchors(queries: int) -> Tensor:
    """Boxes (Q, 4) centred on the cells of a square grid and 1.5 times as wide as a cell."""
    centres = grid_of_places(isqrt(queries))
    # (Q, 4)
    return torch.cat((centres, torch.full_like(centres, min(0.5, 1.5 / isqrt(queries)))), 1)


def box_positions(boxes: Tensor, width: int) -> Tensor:
    """Sinusoids of the centres of boxes, and of their sizes, half of the width each: (N, 4) -> (N,
    width)."""
    x, y, across, down = (SCALE * boxes).unbind(-1)  # (N,) each
    # (N, width)
    return torch.cat((sinusoidal_2d(y, x, width // 2), sinusoidal_2d(down, across, width // 2)), -1)
