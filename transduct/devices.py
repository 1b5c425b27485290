"""Picks a device and says what it is good at; shares the cores; keeps and measures memory.

Importing this does not import torch, so that the memory of a process without it can be measured.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING

from transduct.errors import require

if TYPE_CHECKING:
    import torch

STATUS = Path("/proc/self/status")
LOAD = Path("/proc/loadavg")
PROCESSOR = Path("/proc/cpuinfo")
CONTROL_GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
LOOKS, PAUSE = 5, 0.005  # how often the running programs are counted, and the seconds between
# Iterations of libgomp's spin loop, about 0.1 ms; the default is several milliseconds.
SPINS = "10000"
CHOSEN = "TRANSDUCT_THREADS"  # holds OMP_NUM_THREADS if we set it, for child processes too

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
    require(
        name == "cpu" or re.fullmatch(rf"({'|'.join(ACCELERATORS)})(:\d+)?", name),
        f"unknown device '{name}'; known are: auto, cpu, cuda, cuda:N",
    )
    device = torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    require(
        device.type != "cuda" or (device.index or 0) < count,
        f"no device '{name}': found {count} CUDA devices; choose another, or auto",
    )
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)  # kernels, graphs and NCCL use the current device
    return device


def memory_of(device: torch.device) -> int:
    """Bytes of a GPU's memory; 0 for a CPU."""
    import torch

    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0


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


def processor() -> str:
    """The name of the processor."""
    lines = [line for line in _cpuinfo().splitlines() if line.startswith("model name")]
    if lines:
        return lines[0].split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cpuinfo() -> str:
    """What Linux says about the processor; "" on other systems."""
    with suppress(OSError):
        return PROCESSOR.read_text(encoding="utf-8", errors="replace")
    return ""


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has an instruction for products of bfloat16; others imitate it."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= OLDEST
    # avx512_bf16 and amx_bf16 of x86-64, bf16 of ARM
    about = _cpuinfo()
    return "bf16" in about if about else torch.cpu._is_avx512_bf16_supported()


def slow_precision(precision: str, device: torch.device) -> str:
    """What to warn of if a device only imitates a precision that was asked for, with the measured
    factor of a product; else ""."""
    if precision != "bfloat16" or has_bfloat16(device):
        return ""
    import torch

    def seconds(dtype: torch.dtype) -> float:
        x, begin = torch.ones(512, 512, dtype=dtype, device=device), time.perf_counter()
        (x @ x).sum().item()
        return time.perf_counter() - begin

    wide, narrow = (
        min(seconds(dtype) for _ in range(4)) for dtype in (torch.float32, torch.bfloat16)
    )
    return (
        f"this {device.type} has no instruction for bfloat16: a product takes {narrow / wide:.1f} "
        "times as long as in float32; use float32"
    )


def share_cores() -> None:
    """Limit torch's OpenMP threads to the cores that are free, and how long they busy-wait. Call it
    before torch is imported.

    On a machine that other programs use too, every step waits for the thread whose core they have:
    one thread is then three times as fast as two. A spinning thread holds the core that another
    one needs. OMP_NUM_THREADS and OMP_WAIT_POLICY are respected if they are set.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    if "OMP_NUM_THREADS" not in os.environ and (free := free_cores()) < _affinity():
        os.environ["OMP_NUM_THREADS"] = os.environ[CHOSEN] = str(free)


def threads_are_ours() -> bool:
    """Whether we may choose the number of threads: the user has not."""
    return os.environ.get("OMP_NUM_THREADS") == os.environ.get(CHOSEN)


def crowded() -> str:
    """What to report if other programs leave us fewer threads than there are cores; else ""."""
    if CHOSEN not in os.environ or not threads_are_ours() or int(os.environ[CHOSEN]) >= cores():
        return ""
    return (
        f"other programs are running: {os.environ[CHOSEN]} of {cores()} CPU cores are used; to use "
        f"all, set OMP_NUM_THREADS={cores()}"
    )


def cores() -> int:
    """The number of cores that this process may use, by its affinity and the CPU time of its
    control group."""
    count = _affinity()
    with suppress(OSError):
        lines = CONTROL_GROUP.read_text(encoding="utf-8").splitlines()
        own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
        # A limit of any group above holds too. In a container its own group is the root.
        for group in (GROUPS / own, *(GROUPS / own).parents):
            # version 1, no such group or "max": no limit
            with suppress(OSError, ValueError, ZeroDivisionError):
                allowed, period = map(int, (group / "cpu.max").read_text("ascii").split())
                count = min(count, max(1, -(-allowed // period)))
    return count


def free_cores() -> int:
    """The number of `cores` that no other program is using now; at least 1."""
    running = []
    with suppress(OSError, ValueError, IndexError):  # not Linux
        for look in range(LOOKS):
            time.sleep(PAUSE if look else 0)
            # running or waiting for a core, this thread among them
            running.append(int(LOAD.read_text("ascii").split()[3].split("/")[0]) - 1)
    others = median_low(running) if running else 0
    return max(1, min(cores(), (os.cpu_count() or 1) - others))


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


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
    return "GenuineIntel" in _cpuinfo()


@cache
def has_onednn() -> bool:
    """Whether PyTorch can multiply by oneDNN, on x86-64."""
    import torch

    known = platform.machine().lower() in ("x86_64", "amd64")
    return known and bool(torch.backends.mkldnn.is_available())


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
