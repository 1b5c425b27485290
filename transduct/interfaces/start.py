"""What makes the program start soon and leave others their cores; it imports no torch by itself."""

import gc
import os
from typing import Any

AWAKE = "10000"  # turns that PyTorch's threads wait for each other awake: 0.1 ms, where they would wait several


def share_cores() -> None:
    """To be called before PyTorch is loaded. Its threads wait for each other awake, on a busy machine on the core that
    the other one needs, a turn of the scheduler each time: a sentence then takes ten times as long.

    Whoever has said how threads are to wait is obeyed.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", AWAKE)


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
