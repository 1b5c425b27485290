"""Picks a device and says what it is good at; keeps and measures memory.

Importing this does not import torch, so that the memory of a process without it can be measured.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from transduct.errors import TransductError

if TYPE_CHECKING:
    import torch

STATUS = Path("/proc/self/status")

# The first compute capability with bfloat16 products and enough shared memory for the tiles.
OLDEST = (8, 0)
# The first with fast float16 products.
OLDEST_HALF = (7, 0)

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # `mallopt` parameters of the GNU C library
ACCELERATORS = ["cuda"]  # device types other than the CPU
SHAPES = "64"  # capacity of oneDNN's kernel cache; a step has fewer shapes


def pick_device(name: str) -> torch.device:
    """The device of a name; `auto` is a CUDA device if there is one. Makes a device with an index
    the current one.

    Raises:
        TransductError: if there is no such device.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    if name != "cpu" and not re.fullmatch(rf"({'|'.join(ACCELERATORS)})(:\d+)?", name):
        raise TransductError(f"unknown device '{name}'; known are: auto, cpu, cuda, cuda:N")
    device = torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise TransductError(
            f"no device '{name}': found {count} CUDA devices; choose another, or auto"
        )
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)  # kernels, graphs and NCCL use the current device
    return device


def fast_precision(device: torch.device) -> str:
    """`bfloat16` if the device multiplies it faster than float32, `float16` on a GPU that does so
    with this alone, else `float32`.

    AVX512-BF16 is twice as fast as float32 on AMD processors but half as fast on Intel ones, where
    AMX does the work.
    """
    import torch

    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if OLDEST_HALF <= capability < OLDEST:
            return "float16"
        narrow = capability >= OLDEST
    elif made_by_intel():
        narrow = torch.cpu._is_amx_tile_supported()
    else:
        narrow = torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if narrow else "float32"


def keep_freed_memory() -> None:
    """Make malloc keep freed memory: every step asks for the same sizes, and fetching the pages
    from the system each time takes a tenth of the step."""
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not the GNU C library
        return
    if not tune(MMAP_THRESHOLD, 2**30):  # older versions refuse so large a value
        tune(MMAP_THRESHOLD, 2**25)
    tune(TRIM_THRESHOLD, 2**31 - 1)


def forget_shapes() -> None:
    """Limit oneDNN's kernel cache, which holds one kernel per shape: flat batches have thousands of
    shapes, and a run would take several times the memory. oneDNN reads the limit only once, so call
    this before the first product."""
    for library in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(library, SHAPES)


@cache
def made_by_intel() -> bool:
    """Whether the processor is Intel's, according to Linux; False on other systems."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def peak_memory() -> int:
    """Peak memory in bytes: of the GPU if this process uses one, otherwise the process's resident
    set."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    lines: list[str] = []
    with suppress(OSError):
        lines = STATUS.read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("VmHWM"):  # missing in some sandboxes
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(
        resource.RUSAGE_SELF
    ).ru_maxrss  # starts from the parent's value, so only a fallback
    return peak if sys.platform == "darwin" else peak * 1024
