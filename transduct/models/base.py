"""What a model family declares about itself: the one place that `inference`, `training` and `tasks`
ask."""

from typing import ClassVar

from torch import nn


class Model(nn.Module):
    """A model family. Nobody asks for its name or class, only for these attributes.

    Attributes:
        captures_search: whether its decoder state is a `MemoryState`, whose steps ask nothing of
            the host, so that a search can replay them as CUDA graphs.
        captures_steps: whether its loss asks nothing of the host and its batches have few shapes,
            so that training steps can be captured as CUDA graphs.
        compiles: whether PyTorch's compiler takes its loss.
    """

    captures_search: ClassVar[bool] = False
    captures_steps: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
