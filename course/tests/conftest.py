"""The same rules as for the other tests: one thread, no GPU."""

from tests.conftest import one_thread, pytest_ignore_collect

__all__ = ["one_thread", "pytest_ignore_collect"]
