"""Train, run and explain models that turn one sequence into another."""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]
SPINS = "10000"  # iterations of libgomp's spin loop, about 0.1 ms; the default is several milliseconds

if TYPE_CHECKING:
    from transduct.tasks.base import load


def share_cores() -> None:
    """Limit how long torch's OpenMP threads busy-wait. Call it before torch is imported.

    On a busy machine a spinning thread holds the core that another thread needs, and a sentence takes ten times as
    long. Does nothing if OMP_WAIT_POLICY is set.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def __getattr__(name: str) -> Any:
    """Resolve `transduct.load` lazily, so that `import transduct` does not import torch."""
    if name == "load":
        share_cores()  # too late only if the caller has already imported torch
        from transduct.tasks.base import load

        return load
    raise AttributeError(f"module 'transduct' has no attribute '{name}'")
