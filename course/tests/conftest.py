"""The same rules as for the other tests: one thread, no GPU, and the same browser."""

from tests.conftest import one_thread, pytest_ignore_collect
from tests.serving.web.conftest import driver

__all__ = ["driver", "one_thread", "pytest_ignore_collect"]
