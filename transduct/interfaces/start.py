"""What makes the program start soon; it imports no torch by itself."""

import gc
from typing import Any


def load(*asked: str) -> Any:
    """A model in use, as `transduct.load`. PyTorch comes as half a million objects that stay: to look through them for
    garbage while they come, and once more at the end, takes longer than to translate a sentence."""
    gc.disable()
    try:
        from transduct.tasks.base import load

        return load(*asked)
    finally:
        gc.enable()
        gc.freeze()
