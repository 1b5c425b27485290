"""How much memory a process has taken, for the log of a run and for `transduct bench`; torch need not be there."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_memory() -> int:
    """The most bytes held so far: of the GPU if this process uses one, else of the process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    lines: list[str] = []
    with suppress(OSError):
        lines = STATUS.read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("VmHWM"):  # which not every system in a sandbox tells
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # begins with that of the process that started this one
    return peak if sys.platform == "darwin" else peak * 1024
