"""What the program refuses, in one line: shared by all tests of messages."""

import pytest

from transduct.errors import TransductError


def refusal(message):
    """A context in which a TransductError must be raised, whose text the pattern finds."""
    return pytest.raises(TransductError, match=message)
