"""How much memory a process has taken, for the log of a run and for `transduct bench`; torch need not be there."""

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_memory() -> int:
    """The most bytes held so far: of the GPU if this process uses one, else of the process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    try:
        lines = STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    # What `getrusage` tells begins with the peak of the process that started this one.
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
