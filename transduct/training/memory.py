"""Peak memory of a process, for the log of a run and `transduct bench`; does not import torch."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_memory() -> int:
    """Peak memory in bytes: of the GPU if this process uses one, otherwise the process's resident set."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    lines: list[str] = []
    with suppress(OSError):
        lines = STATUS.read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("VmHWM"):  # missing in some sandboxes
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # starts from the parent's value, so only a fallback
    return peak if sys.platform == "darwin" else peak * 1024
