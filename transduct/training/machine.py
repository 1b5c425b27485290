"""Machine setup for a run: device, random generators, determinism and signals."""

import ctypes
import hashlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock
from typing import Any, TypeVar

import torch

from transduct.errors import TransductError
from transduct.functional.products import made_by_intel
from transduct.functional.trials import OLDEST

Item = TypeVar("Item")

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # `mallopt` parameters of the GNU C library
ACCELERATORS = ["cuda"]  # device types other than the CPU
SHAPES = "64"  # capacity of oneDNN's kernel cache; a step has fewer shapes
TRAINING = RLock()  # held by the thread that trains


def seed_generators(*numbers: int) -> None:
    """Seed torch's default generators from (seed, step, micro-batch, rank)."""
    key = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(key, "big") >> 1)


@contextmanager
def training_alone() -> Iterator[None]:
    """Refuse a second training in another thread, and compute gradients even if the caller has turned them off.

    A process has one set of default generators, which each training would reseed under the other.

    Raises:
        TransductError: another thread of this process trains.
    """
    if not TRAINING.acquire(blocking=False):
        found = "another thread of this process trains, with the same random generators"
        raise TransductError(f"{found}; train in a process of its own")
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        TRAINING.release()


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Iterate over `items`, with a thread producing the next item while the current one is used."""
    with ThreadPoolExecutor(1, "ahead") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def pick_device(name: str) -> torch.device:
    """The device of a name; `auto` is a CUDA device if there is one. Makes a device with an index the current one.

    Raises:
        TransductError: if there is no such device.
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
        torch.cuda.set_device(device)  # kernels, graphs and NCCL use the current device
    return device


def fast_precision(device: torch.device) -> str:
    """`bfloat16` if the device multiplies it faster than float32, else `float32`.

    AVX512-BF16 is twice as fast as float32 on AMD processors but half as fast on Intel ones, where AMX does the work.
    """
    if device.type == "cuda":
        narrow = torch.cuda.get_device_capability(device) >= OLDEST
    elif made_by_intel():
        narrow = torch.cpu._is_amx_tile_supported()
    else:
        narrow = torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if narrow else "float32"


def keep_freed_memory() -> None:
    """Make malloc keep freed memory: every step asks for the same sizes, and fetching the pages from the system each
    time takes a tenth of the step."""
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not the GNU C library
        return
    if not tune(MMAP_THRESHOLD, 2**30):  # older versions refuse so large a value
        tune(MMAP_THRESHOLD, 2**25)
    tune(TRIM_THRESHOLD, 2**31 - 1)


def forget_shapes() -> None:
    """Limit oneDNN's kernel cache, which holds one kernel per shape: flat batches have thousands of shapes, and a run
    would take several times the memory. oneDNN reads the limit only once, so call this before the first product."""
    for library in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(library, SHAPES)


def prepare_machine() -> None:
    """Turn on deterministic algorithms, keep freed memory, limit oneDNN's kernel cache and flush denormals to zero.

    Gradients decay to denormals (below 1e-38) through the steps of a recurrent network, and Intel processors take up to
    two hundred times as long on them. Threads inherit the setting when they start, so call this before there are any.
    """
    keep_freed_memory()
    forget_shapes()
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN plans anew for every shape, and few shapes come twice
    torch.set_flush_denormal(True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP call `stop`, the last unless it is ignored, as nohup does; a second SIGINT
    interrupts at once."""

    def handle(number: int, frame: Any) -> None:  # noqa: ARG001 (required by `signal.signal`)
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    hang_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, *hang_up)}
    except ValueError:  # not the main thread, which alone may set handlers
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
