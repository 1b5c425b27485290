"""ViT: picture classification by an encoder over a sequence of patches (Dosovitskiy et al. 2021).

Let B be pictures, P the patches of each, N the tokens of a batch (the class token, if any, and the
patches of each picture), D the model width.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.convolution import Backbone
from transduct.blocks.embeddings import PatchEmbedding
from transduct.blocks.linear import Linear
from transduct.blocks.sizes import LARGEST, Headed, Layers, Side, Size, require_channels
from transduct.blocks.transformer import (
    Activation,
    Encoder,
    EncoderLayer,
    LayerShape,
    NormKind,
    initialise,
    make_norm,
    names_of_attention,
)
from transduct.functional.dropout import dropout
from transduct.functional.positions import sinusoidal_2d
from transduct.models.base import Model
from transduct.records import Range, Rate, refuse_if
from transduct.segments import Segments, pad

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 12, "d_model": 192, "num_heads": 3, "d_ff": 768},
    "small": {"layers": 12, "d_model": 384, "num_heads": 6, "d_ff": 1536},
    "base": {"layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 3072},
    "cifar_tiny": {"layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256, "patch_size": 4},
    "cifar_small": {"layers": 8, "d_model": 256, "num_heads": 4, "d_ff": 1024, "patch_size": 4},
}


@dataclass(frozen=True)
class Config(Headed):
    """The architecture of a ViT; the defaults are the base size with patches of 16 x 16 pixels.

    Attributes:
        labels: the number of labels.
        image_size: the side of a picture in pixels.
        patch_size: the side of a patch in pixels.
        backbone: the channels of the levels of a convolutional backbone, each of which halves the
            resolution. Its features replace the patches of pixels (the paper's hybrid, section
            3.1), which helps much if there are few training pictures.
        backbone_depth: the number of residual blocks per level.
        backbone_pools: whether levels halve the resolution by pooling rather than by a stride of
            the first convolution; slower, but more accurate.
        positions: the encoding of the patches, learned or two-dimensional sinusoids.
        pool: whether to classify a class token ("class") or the mean of the patches.
    """

    labels: Annotated[int, Range(2, LARGEST)]
    image_size: Side = 224
    patch_size: Size = 16
    backbone: list[int] = field(default_factory=list)
    backbone_depth: Size = 1
    backbone_pools: bool = False
    d_model: Size = 768
    num_heads: Size = 12
    d_ff: Size = 3072
    layers: Layers = 12
    dropout: Rate = 0.0
    pool: Literal["class", "mean"] = "class"
    positions: Literal["none", "learned", "sinusoidal_2d"] = "learned"
    activation: Activation = "gelu"
    norm_kind: NormKind = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.image_size % self.patch_size,
            f"image_size is {self.image_size}, must be a multiple of patch_size "
            f"({self.patch_size})",
        )
        if self.backbone:
            require_channels(self, "backbone")
        if self.backbone and 2 ** len(self.backbone) != self.patch_size:
            halvings = f"backbone has {len(self.backbone)} levels of stride 2"
            raise ValueError(
                f"patch_size is {self.patch_size}, must be {2 ** len(self.backbone)}, as {halvings}"
            )

    @property
    def grid(self) -> int:
        """The number of patches along each side of a picture."""
        return self.image_size // self.patch_size


class ViT(Model):
    """A pre-norm encoder over patches: `encode`, then `classify`."""

    captures_steps = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.attention_names = names_of_attention(config.layers)
        d_model, patches = config.d_model, config.grid**2
        shape = LayerShape(
            d_model, config.d_ff, config.dropout, config.activation, "pre", config.norm_kind
        )
        levels = config.backbone, config.backbone_depth, config.backbone_pools
        self.backbone = Backbone(*levels) if config.backbone else nn.Identity()
        side, channels = (1, config.backbone[-1]) if config.backbone else (config.patch_size, 3)
        self.patches = PatchEmbedding(side, d_model, channels)
        self.class_token = nn.Parameter(torch.empty(d_model)) if config.pool == "class" else None
        learned = config.positions == "learned"
        self.positions = (
            nn.Parameter(torch.empty(patches + (config.pool == "class"), d_model))
            if learned
            else None
        )
        self.encoder = Encoder(
            EncoderLayer(shape, MultiHeadAttention(d_model, config.num_heads))
            for _ in range(config.layers)
        )
        self.encoder_norm = make_norm(shape)
        self.output = Linear(d_model, config.labels)
        initialise(self)
        for parameter in (self.class_token, self.positions):
            # drawing nothing would import a compiler
            if parameter is not None and not parameter.is_meta:
                nn.init.normal_(parameter, std=0.02)

    def encode(
        self, pictures: Tensor, weights: list[Tensor] | None = None
    ) -> tuple[Tensor, Segments]:
        """Pictures (B, 3, height, width) -> (N, D), with the class token before the patches, and
        the segments."""
        x = self.patches(self.backbone(pictures.to(next(self.parameters()).dtype)))  # (B, P, D)
        if self.class_token is not None:
            x = torch.cat((self.class_token.expand(len(x), 1, -1), x), 1)  # (B, P + 1, D)
        x = x + self._positions(x)
        segments = Segments.of([x.shape[1]] * len(x), x.device)
        x = dropout(x.flatten(0, 1), self.config.dropout, self.training)  # (N, D)
        return self.encoder_norm(self.encoder(x, segments, weights)), segments

    def classify(self, x: Tensor, segments: Segments) -> Tensor:
        """The logits of the label of each picture: (N, D) -> (B, labels)."""
        pooled = (
            pad(x, segments)[:, 0] if self.class_token is not None else pad(x, segments).mean(1)
        )  # (B, D)
        return self.output(dropout(pooled, self.config.dropout, self.training))

    def _positions(self, x: Tensor) -> Tensor:
        """The position encodings (P + 1, D) or (P, D); with 2-D sinusoids, that of the class token
        is zero."""
        if self.positions is not None:
            return self.positions
        if self.config.positions == "none":
            return x.new_zeros(x.shape[1:])
        grid = torch.arange(self.config.grid, device=x.device)
        plane = sinusoidal_2d(
            grid.repeat_interleave(len(grid)), grid.repeat(len(grid)), self.config.d_model
        )
        return nn.functional.pad(plane, (0, 0, x.shape[1] - len(plane), 0)).to(x.dtype)
