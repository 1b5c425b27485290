"""What a model family declares about itself: the one place that `inference`, `training` and `tasks`
ask."""

from collections.abc import Sequence
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
        attention_names: the names of the attention weights, in the order in which `encode` and then
            `decode`, or `hidden`, append them; none if it shows no attention.
    """

    captures_search: ClassVar[bool] = False
    captures_steps: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    attention_names: Sequence[str] = ()
