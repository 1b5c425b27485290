"""transduct: train, run and explain models that turn one sequence into another."""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]
AWAKE = "10000"  # turns that PyTorch's threads wait for each other awake: 0.1 ms, where they would wait several

if TYPE_CHECKING:
    from transduct.tasks.base import load


def share_cores() -> None:
    """To be called before PyTorch is loaded. Its threads wait for each other awake, on a busy machine on the core that
    the other one needs, a turn of the scheduler each time: a sentence then takes ten times as long.

    Whoever has said how threads are to wait is obeyed.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", AWAKE)


def __getattr__(name: str) -> Any:
    """`transduct.load`, found when it is asked for, so that `import transduct` imports no torch."""
    if name == "load":
        share_cores()  # in time, unless the caller has imported torch already
        from transduct.tasks.base import load

        return load
    raise AttributeError(f"module 'transduct' has no attribute '{name}'")
