"""Who uses the cores: PyTorch's operations, or products of ours (`functional.kernels`), or workers side by side."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Cores:
    """Gives PyTorch its threads back after calls that kept it to one. Calls may overlap, and a new thread takes over
    the count that was set last."""

    def __init__(self) -> None:
        self.lock, self.calls, self.threads, self.own = threading.Lock(), 0, 0, threading.local()

    def __enter__(self) -> None:
        with self.lock:
            self.threads = self.threads if self.calls else torch.get_num_threads()
            self.calls += 1

    def __exit__(self, *problem: object) -> None:
        with self.lock:
            self.calls -= 1
            torch.set_num_threads(self.threads)

    def count(self) -> int:
        """PyTorch's threads, as they are when no call is under way."""
        with self.lock:
            return self.threads if self.calls else torch.get_num_threads()

    @property
    def sharing(self) -> int:
        """How many threads share a product that this one asks for."""
        return getattr(self.own, "sharing", None) or torch.get_num_threads()

    def work_alone(self) -> None:
        """Keep this thread, which is one of several workers, to a core of its own."""
        torch.set_num_threads(1)
        self.own.sharing = 1

    @contextmanager
    def products_alone(self) -> Iterator[None]:
        """Share nothing but products meanwhile. An operation of PyTorch's on a few rows takes less time than to wake
        another thread, which then stays awake on a core that the next product wants."""
        if getattr(self.own, "sharing", None):
            yield
            return
        with self:
            torch.set_num_threads(1)
            self.own.sharing = self.threads
            try:
                yield
            finally:
                self.own.sharing = None


CORES = Cores()
