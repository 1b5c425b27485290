"""Machine setup for a run: device, random generators, determinism and signals."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock
from typing import Any, TypeVar

import torch

from transduct.devices import cores, forget_shapes, keep_freed_memory, threads_are_ours
from transduct.errors import require

Item = TypeVar("Item")

TRAINING = RLock()  # held by the thread that trains


@contextmanager
def training_alone() -> Iterator[None]:
    """Refuse a second training in another thread, and compute gradients even if the caller has
    turned them off.

    A process has one set of default generators, which each training would reseed under the other.

    Raises:
        TransductError: another thread of this process trains.
    """
    require(
        TRAINING.acquire(blocking=False),
        "another thread of this process trains, with the same random generators; train in a "
        "process of its own",
    )
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


def prepare_machine() -> None:
    """Turn on deterministic algorithms, keep freed memory, limit oneDNN's kernel cache and flush
    denormals to zero.

    Gradients decay to denormals (below 1e-38) through the steps of a recurrent network, and Intel
    processors take up to two hundred times as long on them. Threads inherit the setting when they
    start, so call this before there are any.
    """
    keep_freed_memory()
    forget_shapes()
    # cuDNN plans anew for every shape, and few shapes come twice
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_flush_denormal(True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def use_threads(count: int) -> None:
    """Go on with the CPU threads of the process that wrote a checkpoint, for the same bytes, unless
    the user has set another number, or there are fewer cores; 0 for an unknown number."""
    if threads_are_ours() and 0 < count <= cores():
        torch.set_num_threads(count)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP call `stop`, the last unless it is ignored, as nohup does; a
    second SIGINT interrupts at once."""

    def handle(number: int, frame: Any) -> None:  # noqa: ARG001 (required by `signal.signal`)
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    hang_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    try:
        before = {
            number: signal.signal(number, handle)
            for number in (signal.SIGINT, signal.SIGTERM, *hang_up)
        }
    except ValueError:  # not the main thread, which alone may set handlers
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
