"""The machine a run is on: its device, its generators, its determinism, its signals."""

import ctypes
import hashlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from transduct.errors import TransductError
from transduct.functional.products import made_by_intel
from transduct.functional.trials import OLDEST

Item = TypeVar("Item")

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of the GNU C library
ACCELERATORS = ["cuda"]  # kinds of devices beside the CPU
SHAPES = "64"  # more than a step has


def seed_generators(*numbers: int) -> None:
    """Seed torch's default generators from (seed, step, micro-batch, rank)."""
    key = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(key, "big") >> 1)


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, each made by a thread while the one before it is used."""
    with ThreadPoolExecutor(1, "ahead") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def pick_device(name: str) -> torch.device:
    """The device of a name, `auto` a CUDA device if there is one; one with a number becomes the present device.

    Raises:
        TransductError: there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    if name != "cpu" and not re.fullmatch(rf"({'|'.join(ACCELERATORS)})(:\d+)?", name):
        raise TransductError(f"unknown device '{name}'; known are: auto, cpu, cuda, cuda:N")
    device = torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise TransductError(f"no device '{name}': found {count} CUDA devices; choose another, or auto")
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)  # kernels, graphs and messages between ranks take the present one
    return device


def fast_precision(device: torch.device) -> str:
    """bfloat16 where a device multiplies it faster than float32, else float32.

    AVX512-BF16 is twice as fast as float32 on AMD's processors and half as fast on Intel's, which leave it to AMX.
    """
    if device.type == "cuda":
        narrow = torch.cuda.get_device_capability(device) >= OLDEST
    elif made_by_intel():
        narrow = torch.cpu._is_amx_tile_supported()
    else:
        narrow = torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if narrow else "float32"


def keep_freed_memory() -> None:
    """Let the C library keep what is freed: the next step asks for the same sizes again, and pages that come from the
    system each time anew cost a tenth of it."""
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library than GNU's
        return
    if not tune(MMAP_THRESHOLD, 2**30):  # more than an older library knows
        tune(MMAP_THRESHOLD, 2**25)
    tune(TRIM_THRESHOLD, 2**31 - 1)


def forget_shapes() -> None:
    """Limit oneDNN's cache of kernels, one for each shape: flat batches have thousands of shapes, and a run would take
    several times the memory. oneDNN reads the limit once, so this comes before the first product."""
    for library in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(library, SHAPES)


def prepare_machine() -> None:
    """Deterministic algorithms on; freed memory is kept, made kernels are not; numbers below 1e-38 are zero.

    Gradients fade to such numbers through the steps of a recurrent network, and Intel's processors take up to two
    hundred times as long for them. Threads compute as the one that made them, so this comes before there are any.
    """
    keep_freed_memory()
    forget_shapes()
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, and few come twice
    torch.set_flush_denormal(True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stop`; a second SIGINT interrupts at once."""

    def handle(number: int, frame: Any) -> None:  # noqa: ARG001 (the signature is Python's)
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are somebody else's
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
