"""Processes that are forked from the tests: to import PyTorch anew takes seconds."""

import logging
import os
import sys
import warnings
from contextlib import suppress
from multiprocessing import get_context
from os import fdopen

from transduct.interfaces import cli


def apart(*words, before=lambda: None):
    """The program `transduct`, called with these words, in such a process.

    Args:
        before: is called there first.
    """

    def main():
        before()
        sys.argv = ["transduct", *map(str, words)]
        cli.main()

    return Forked(main)


class Forked:
    """A process that runs a function, and the other ends of its streams, which carry bytes."""

    def __init__(self, function):
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]

        def main():
            for number, end in enumerate(theirs):
                os.dup2(end, number)
            for pipe in pipes:
                for end in pipe:
                    os.close(end)
            sys.stdin, sys.stdout, sys.stderr = fdopen(0), fdopen(1, "w"), fdopen(2, "w", 1)
            sys.excepthook = sys.__excepthook__
            logging.getLogger().handlers.clear()  # pytest's
            warnings.simplefilter("default")
            function()

        self._process = get_context("fork").Process(target=main)
        self._process.start()
        for end in theirs:
            os.close(end)
        self.stdin = fdopen(pipes[0][1], "wb", 0)
        self.stdout, self.stderr = fdopen(pipes[1][0], "rb"), fdopen(pipes[2][0], "rb")

    def wait(self):
        """The status that it ends with."""
        self._process.join(60)
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def ended(self, given=b""):
        """Write this and wait for the end: its status, and what it printed to stdout and stderr."""
        with suppress(BrokenPipeError), self.stdin:
            self.stdin.write(given)
        found = [b"" if each.closed else each.read() for each in (self.stdout, self.stderr)]
        return self.wait(), *found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.join()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
