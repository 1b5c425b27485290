"""Divides the CPU cores between PyTorch's operations, our kernels (`kernels.cpu`) and parallel
workers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


class _ThreadLocal(threading.local):
    sharing: int | None = None  # the threads that share a kernel; None for PyTorch's number


class Cores:
    """Restores PyTorch's thread count after calls that set it to one. The calls may overlap, and a
    new thread inherits the count that was set last."""

    def __init__(self) -> None:
        self.lock, self.calls, self.threads, self.local = threading.Lock(), 0, 0, _ThreadLocal()

    def __enter__(self) -> None:
        with self.lock:
            self.threads = self.threads if self.calls else torch.get_num_threads()
            self.calls += 1

    def __exit__(self, *problem: object) -> None:
        with self.lock:
            self.calls -= 1
            torch.set_num_threads(self.threads)

    def count(self) -> int:
        """PyTorch's thread count outside of such calls."""
        with self.lock:
            return self.threads if self.calls else torch.get_num_threads()

    @property
    def sharing(self) -> int:
        """The number of threads that share a kernel called from this thread."""
        return self.local.sharing or torch.get_num_threads()

    def work_alone(self) -> None:
        """Restrict this thread, one of several parallel workers, to a single core."""
        torch.set_num_threads(1)
        self.local.sharing = 1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within this context this thread uses a single core."""
        before = self.local.sharing
        with nullcontext() if before else self:  # PyTorch has one already
            if not before:
                torch.set_num_threads(1)
            self.local.sharing = 1
            try:
                yield
            finally:
                self.local.sharing = before

    @contextmanager
    def products_alone(self) -> Iterator[None]:
        """Within this context our kernels use all threads, PyTorch's operations only one: an
        operation on a few rows takes less time than waking another thread, which would then keep
        spinning on a core that our kernels need."""
        if self.local.sharing:
            yield
            return
        with self:
            torch.set_num_threads(1)
            self.local.sharing = self.threads
            try:
                yield
            finally:
                self.local.sharing = None


CORES = Cores()
