"""Which modules compute what their class says, so that a faster one may take their place."""

from typing import Any

from torch import nn


def plain(module: Any, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of exactly one of these kinds and has neither hooks nor methods of its
    own.

    What replaces readable layers asks this first, because a subclass may compute anything.
    """
    if type(module) not in kinds or module._forward_hooks or module._forward_pre_hooks:
        return False
    return vars(type(module)).keys().isdisjoint(vars(module))
