"""Devices by name, what they are good at, and the memory of a process."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from transduct import devices
from transduct.devices import (
    fast_precision,
    forget_shapes,
    keep_freed_memory,
    peak_memory,
    pick_device,
)
from transduct.errors import TransductError

HELD = "from transduct.devices import peak_memory; print(peak_memory())"


@pytest.mark.parametrize(
    "name, cuda, rank, expected",
    [
        ("auto", False, None, "cpu"),
        ("auto", True, None, "cuda"),
        ("auto", True, "3", "cuda:3"),
        ("cuda", True, "3", "cuda:3"),
        ("cuda:1", True, "3", "cuda:1"),
        ("cpu", True, "3", "cpu"),
    ],
)
def test_a_device_is_picked(monkeypatch, name, cuda, rank, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    present = []
    monkeypatch.setattr(torch.cuda, "set_device", present.append)
    if rank is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert pick_device(name) == torch.device(expected)
    assert present == [torch.device(expected)] * expected.startswith("cuda:"), (
        "kernels and graphs take the present one"
    )


@pytest.mark.parametrize(
    "capability, intel, avx512, amx, expected",
    [
        ((6, 1), True, True, True, "float32"),
        ((7, 5), True, True, True, "float16"),
        ((8, 0), False, False, False, "bfloat16"),
        ((9, 0), False, False, False, "bfloat16"),
        (None, False, True, False, "bfloat16"),
        (None, False, False, False, "float32"),
        (None, True, True, True, "bfloat16"),
        (None, True, True, False, "float32"),
        (None, True, False, False, "float32"),
    ],
)
def test_the_narrow_numbers_are_taken_where_they_are_fast(
    monkeypatch, capability, intel, avx512, amx, expected
):
    monkeypatch.setattr(devices, "made_by_intel", lambda: intel)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert fast_precision(torch.device("cuda" if capability else "cpu")) == expected


@pytest.mark.parametrize(
    "name, count, said",
    [
        ("gpu", 1, "unknown device 'gpu'; known are: auto, cpu, cuda, cuda:N"),
        ("meta", 1, "unknown device 'meta'; known are: auto, cpu, cuda, cuda:N"),
        ("cpu:3", 1, "unknown device 'cpu:3'; known are: auto, cpu, cuda, cuda:N"),
        ("cuda", 0, "no device 'cuda': found 0 CUDA devices; choose another, or auto"),
        ("cuda:2", 2, "no device 'cuda:2': found 2 CUDA devices; choose another, or auto"),
    ],
)
def test_a_device_that_is_not_there_is_refused(monkeypatch, name, count, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(TransductError) as caught:
        pick_device(name)
    assert str(caught.value) == said


# an older library refuses more than half of a heap
@pytest.mark.parametrize("largest", [2**30, 2**25])
def test_freed_memory_is_kept(monkeypatch, largest):
    asked = []

    class Library:
        def __init__(self, path):
            assert path is None, "that of this process"

        def mallopt(self, option, size):
            asked.append((option, size))
            return int(size <= largest or option == -1)

    monkeypatch.setattr(ctypes, "CDLL", Library)
    keep_freed_memory()
    kept = [(-3, 2**30)] if largest == 2**30 else [(-3, 2**30), (-3, 2**25)]
    assert asked == [*kept, (-1, 2**31 - 1)], "M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of <malloc.h>"


@pytest.mark.parametrize("error", [AttributeError, OSError])
def test_another_c_library_is_left_alone(monkeypatch, error):
    def library(path):
        if error is OSError:
            raise error
        return object()  # without mallopt

    monkeypatch.setattr(ctypes, "CDLL", library)
    keep_freed_memory()


def test_few_shapes_are_remembered_unless_somebody_wants_more(monkeypatch):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "500")
    forget_shapes()
    assert [
        os.environ[name] for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    ] == ["64", "500"]


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
    start = (
        "import os, sys; held = b'x' * 2**28; os.execv(sys.executable, [sys.executable, "
        f"'-c', {HELD!r}])"
    )
    found = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, check=True
    )
    assert 2**20 < int(found.stdout) < 2**27


@pytest.mark.parametrize("platform, unit", [("linux", 1024), ("darwin", 1)])
# none, or that of a sandbox
@pytest.mark.parametrize("status", [None, "Name:\tpython\nVmRSS:\t5 kB\n"])
def test_memory_is_in_bytes_on_every_system(monkeypatch, tmp_path, platform, unit, status):
    class Usage:
        ru_maxrss = 3000

    if status is not None:
        (tmp_path / "status").write_text(status)
    monkeypatch.setattr(devices, "STATUS", tmp_path / "status")
    monkeypatch.setattr(devices.resource, "getrusage", lambda who: Usage)
    monkeypatch.setattr(devices.sys, "platform", platform)
    assert peak_memory() == 3000 * unit


def test_a_gpu_in_use_tells_of_itself(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 77)
    assert peak_memory() == 77
