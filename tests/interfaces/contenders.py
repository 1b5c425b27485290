"""Contenders for the tests of the benchmark: each returns a function, like the real ones, without
importing torch."""

import os
import signal
import time
import warnings

from transduct.errors import TransductError


def steady(tokens):
    """This many tokens in a hundredth of a second."""

    def run():
        time.sleep(0.01)
        return tokens

    return run


def refuses(message):
    raise TransductError(message)


def refuses_later(message):
    return lambda: refuses(message)


def interrupted(tokens):
    """Ctrl-C reaches every process of a terminal."""

    def run():
        os.kill(os.getpid(), signal.SIGINT)
        return steady(tokens)()

    return run


def dies():
    os._exit(3)


def dies_later():
    """Warms up, and has no memory for its first turn."""
    turns = iter([7])
    return lambda: next(turns, None) or os._exit(3)


def hangs():
    time.sleep(600)


def warns(message):
    warnings.warn(message, stacklevel=1)
    return lambda: 1
