"""transduct: train, run and explain models that turn one sequence into another."""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]
SPINS = "10000"  # 0.1 ms of waiting awake, where it would be several

if TYPE_CHECKING:
    from transduct.tasks.base import load


def share_cores() -> None:
    """Limit how long torch's OpenMP threads wait awake; call before torch is imported. On a busy machine a waiting
    thread would else hold the core that the other one needs: a sentence then takes ten times as long.

    An OMP_WAIT_POLICY that is set already is respected.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def __getattr__(name: str) -> Any:
    """`transduct.load`, found when it is asked for, so that `import transduct` imports no torch."""
    if name == "load":
        share_cores()  # in time, unless the caller has imported torch already
        from transduct.tasks.base import load

        return load
    raise AttributeError(f"module 'transduct' has no attribute '{name}'")
