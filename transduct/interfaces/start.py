"""Fast start-up of the command-line program; importing this does not import torch."""

import gc
from typing import Any


def load(*arguments: str) -> Any:
    """`transduct.load` without garbage collection. Importing PyTorch creates half a million
    permanent objects, and scanning them during the import and again at exit takes longer than
    translating a sentence."""
    gc.disable()
    try:
        from transduct.predictors.base import load

        return load(*arguments)
    finally:
        gc.enable()
        gc.freeze()
