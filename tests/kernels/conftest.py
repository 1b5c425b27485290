"""Runs the tests of `helpers.on_each_path` and `on_each_width` on every instruction set here."""

import pytest

from transduct.kernels import cpu

PATHS = cpu._available() or ["none"]
WIDTHS = {cpu.PATHS.get(path): path for path in PATHS}  # the last of each is the fastest


def used(path, monkeypatch):
    monkeypatch.setenv(cpu.LIMIT, path)
    cpu.library.cache_clear()
    yield cpu.library()
    monkeypatch.undo()
    cpu.library.cache_clear()
    cpu.library()


@pytest.fixture(params=PATHS)
def each_path(request, monkeypatch):
    """For products, of which each instruction set has its own."""
    yield from used(request.param, monkeypatch)


@pytest.fixture(params=WIDTHS.values())
def each_width(request, monkeypatch):
    """For the other kernels, which are compiled once for each width of a vector."""
    yield from used(request.param, monkeypatch)
