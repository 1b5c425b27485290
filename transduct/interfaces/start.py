"""What makes the program start soon; it imports no torch by itself."""

import gc
from typing import Any


def load(*asked: str) -> Any:
    """A model in use, as `transduct.load`. Importing PyTorch makes half a million objects that stay: collecting garbage
    among them meanwhile, and once more at exit, takes longer than translating a sentence."""
    gc.disable()
    try:
        from transduct.tasks.base import load

        return load(*asked)
    finally:
        gc.enable()
        gc.freeze()
