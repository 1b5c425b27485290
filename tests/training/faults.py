"""Disks that fail, for tests of what is written."""

import os


def disk(number):
    return OSError(number, os.strerror(number))


def failing(error, after, function):
    """`function`, which raises the error after this many calls."""
    calls = []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) > after:
            raise error
        return function(*arguments)

    return call
