"""Train, run and explain models that turn one sequence into another."""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]
QUOTA = "/sys/fs/cgroup/cpu.max"  # in a container, its own: microseconds of CPU time, of so many
SPINS = "10000"  # iterations of libgomp's spin loop, about 0.1 ms; the default is several milliseconds

if TYPE_CHECKING:
    from transduct.tasks.base import load


def share_cores() -> None:
    """Limit torch's OpenMP threads to the cores that there are, and how long they busy-wait. Call it before torch is
    imported.

    In a container whose CPU time is limited torch counts all cores of the machine. On a busy machine a spinning thread
    holds the core that another thread needs, and a sentence takes ten times as long. OMP_NUM_THREADS and
    OMP_WAIT_POLICY are respected if they are set.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    if "OMP_NUM_THREADS" not in os.environ and (cores := _quota()) is not None and cores < (os.cpu_count() or 1):
        os.environ["OMP_NUM_THREADS"] = str(cores)


def _quota() -> int | None:
    """The number of cores whose time this process's control group may use, rounded up; None if there is no limit."""
    try:
        with open(QUOTA, encoding="ascii") as file:
            time, period = file.read().split()
        return None if time == "max" else max(1, -(-int(time) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def __getattr__(name: str) -> Any:
    """Resolve `transduct.load` lazily, so that `import transduct` does not import torch."""
    if name == "load":
        share_cores()  # too late only if the caller has already imported torch
        from transduct.tasks.base import load

        return load
    raise AttributeError(f"module 'transduct' has no attribute '{name}'")
