"""Train, run and explain models that turn one sequence into another."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]
QUOTA = "/sys/fs/cgroup/cpu.max"  # in a container, its own: microseconds of CPU time, of so many
# iterations of libgomp's spin loop, about 0.1 ms; the default is several milliseconds
SPINS = "10000"

if TYPE_CHECKING:
    from transduct.predictors.base import load


def share_cores() -> None:
    """Limit torch's OpenMP threads to the cores that there are, and how long they busy-wait. Call
    it before torch is imported.

    In a container whose CPU time is limited torch counts all cores of the machine. On a busy
    machine a spinning thread holds the core that another thread needs, and a sentence takes ten
    times as long. OMP_NUM_THREADS and OMP_WAIT_POLICY are respected if they are set.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    if cores() < _affinity():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))


def cores() -> int:
    """The number of cores that this process may use, by its affinity and its control group's share
    of CPU time."""
    try:
        with open(QUOTA, encoding="ascii") as file:
            time, period = map(int, file.read().split())
        return min(_affinity(), max(1, -(-time // period)))
    except (OSError, ValueError, ZeroDivisionError):  # no control group of version 2, or "max"
        return _affinity()


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load(path: Any, *arguments: Any, **options: Any) -> Any:
    """`predictors.base.load`, also of a folder of another tool or a name on Hugging Face's hub,
    which is made a model of ours first."""
    from transduct.predictors.base import load

    if _is_foreign(path):
        from transduct.interop import hub

        path = hub.made_ours(path) if hub.is_foreign(path) else path
    return load(path, *arguments, **options)


def _is_foreign(path: Any) -> bool:
    """Whether a path may be of another tool, asked without importing one: what is ours says its
    format, or is a run."""
    if not isinstance(path, str | os.PathLike):
        return False
    folder = os.path.expanduser(path)
    config = os.path.join(folder, "config.json")
    if os.path.isdir(folder):
        with suppress(OSError), open(config, "rb") as file:
            return b'"task"' not in file.read(1 << 20)
        return False
    return "/" in str(path) and not os.path.isabs(folder)


def __getattr__(name: str) -> Any:
    """Resolve `transduct.load` lazily, so that `import transduct` does not import torch."""
    if name == "load":
        share_cores()  # too late only if the caller has already imported torch
        return _load
    raise AttributeError(f"module 'transduct' has no attribute '{name}'")
