"""Peak memory is that of this process, in bytes, on every system."""

import subprocess
import sys

import pytest

from transduct import devices
from transduct.devices import peak_memory
from transduct.training import memory as module

HELD = "from transduct.training.memory import peak_memory; print(peak_memory())"


def test_what_is_held_is_in_the_peak():
    before = peak_memory()
    held = bytearray(before + 2**26)
    held[:: 2**12] = b"x" * len(held[:: 2**12])
    assert before + 2**26 < peak_memory() < 3 * before + 2**28


@pytest.mark.skipif(
    not devices.STATUS.exists(),
    reason="without /proc what a process held before exec cannot be told",
)
def test_the_peak_of_whoever_started_the_process_is_not_its_own():
    start = f"import os, sys; held = b'x' * 2**28; os.execv(sys.executable, [sys.executable, '-c', {HELD!r}])"
    found = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, check=True
    )
    assert 2**20 < int(found.stdout) < 2**27


@pytest.mark.parametrize("platform, unit", [("linux", 1024), ("darwin", 1)])
@pytest.mark.parametrize(
    "status", [None, "Name:\tpython\nVmRSS:\t5 kB\n"]
)  # none, or that of a sandbox
def test_memory_is_in_bytes_on_every_system(monkeypatch, tmp_path, platform, unit, status):
    class Usage:
        ru_maxrss = 3000

    if status is not None:
        (tmp_path / "status").write_text(status)
    monkeypatch.setattr(module, "STATUS", tmp_path / "status")
    monkeypatch.setattr(module.resource, "getrusage", lambda who: Usage)
    monkeypatch.setattr(module.sys, "platform", platform)
    assert peak_memory() == 3000 * unit


def test_a_gpu_in_use_tells_of_itself(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 77)
    assert peak_memory() == 77
