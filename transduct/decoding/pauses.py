"""Where long work may be interrupted: search and scoring call `pause` again and again.

A server uses it to answer a short request in between, or to end work that nobody waits for any
more. It has a file of its own because search, and all that computes in batches, call it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CALLED: ContextVar[Callable[[], None] | None] = ContextVar("called at a pause", default=None)


def pause() -> None:
    """Let others have a moment. What they raise ends the work."""
    called = _CALLED.get()
    if called is not None:
        called()


@contextmanager
def pausing(called: Callable[[], None] | None) -> Iterator[None]:
    """Within this context of this thread, `called` is called at each pause; None for nothing."""
    before = _CALLED.set(called)
    try:
        yield
    finally:
        _CALLED.reset(before)
