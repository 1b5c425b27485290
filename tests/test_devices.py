"""Devices by name, what they are good at, and the memory of a process."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest
import torch

from transduct import devices
from transduct.devices import (
    CHOSEN,
    SPINS,
    cores,
    crowded,
    fast_precision,
    forget_shapes,
    free_cores,
    has_bfloat16,
    keep_freed_memory,
    peak_memory,
    pick_device,
    share_cores,
    slow_precision,
    threads_are_ours,
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


def test_allocated_memory_counts_in_the_peak():
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


def test_the_processor_is_named(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: AMD EPYC 7R13\n")
    monkeypatch.setattr(devices, "PROCESSOR", tmp_path / "cpuinfo")
    assert devices.processor() == "AMD EPYC 7R13"
    monkeypatch.setattr(devices, "PROCESSOR", tmp_path / "missing")
    assert devices.processor() == (platform.processor() or platform.machine())


# bfloat16 on processors without an instruction for it


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("fpu sse avx2 fma", False),
        ("avx512f avx512_bf16", True),
        ("amx_bf16 amx_tile", True),
        ("Features : fp asimd i8mm bf16", True),
    ],
)
def test_a_processor_names_its_instruction_for_bfloat16(monkeypatch, tmp_path, flags, expected):
    (tmp_path / "cpuinfo").write_text(flags)
    monkeypatch.setattr(devices, "PROCESSOR", tmp_path / "cpuinfo")
    assert has_bfloat16(torch.device("cpu")) == expected


@pytest.mark.parametrize("supported", [True, False])
def test_elsewhere_pytorch_knows_the_instruction(monkeypatch, tmp_path, supported):
    monkeypatch.setattr(devices, "PROCESSOR", tmp_path / "missing")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    assert has_bfloat16(torch.device("cpu")) == supported


@pytest.mark.parametrize("capability, expected", [((7, 5), False), ((8, 0), True)])
def test_a_gpu_has_bfloat16_from_ampere_on(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_bfloat16(torch.device("cuda")) == expected


def test_an_imitated_precision_is_warned_of_with_the_measured_factor(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(devices, "has_bfloat16", lambda device: False)
    monkeypatch.setattr(devices.time, "perf_counter", lambda: next(ticks))
    assert slow_precision("bfloat16", torch.device("cpu")) == (
        "this cpu has no instruction for bfloat16: a product takes 1.0 times as long as in "
        "float32; use float32"
    )
    assert slow_precision("float32", torch.device("cpu")) == ""
    monkeypatch.setattr(devices, "has_bfloat16", lambda device: True)
    assert slow_precision("bfloat16", torch.device("cpu")) == ""


# threads and cores


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of eight cores, on which nothing else runs; the threads are not set."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", CHOSEN):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(devices, "CONTROL_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(devices, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(devices, "LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(devices, "PAUSE", 0)
    (tmp_path / "loadavg").write_text("0.50 0.40 0.30 1/234 5678")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_idle_threads_spin_only_briefly_unless_the_environment_says_otherwise(
    machine, monkeypatch, given, found
):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    share_cores()
    assert os.environ.get("GOMP_SPINCOUNT") == found


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"": "150000 100000\n"}, 2),
        ({"": "20000 100000\n"}, 1),
        ({"": "99900000 100000\n"}, 8),
        ({"": "max 100000\n"}, 8),
        ({"": "odd\n"}, 8),
        ({}, 8),
        ({"user/job": "300000 100000"}, 3),
        ({"user": "200000 100000", "user/job": "300000 100000"}, 2),
        ({"other": "100000 100000"}, 8),
    ],
)
def test_cores_are_limited_by_each_control_group_above(machine, limits, expected):
    (machine / "cgroup").write_text("1:cpu:/old\n0::/user/job\n")
    for group, text in limits.items():
        (machine / "groups" / group).mkdir(parents=True, exist_ok=True)
        (machine / "groups" / group / "cpu.max").write_text(text)
    assert cores() == free_cores() == expected


@pytest.mark.parametrize(
    "running, affinity, expected",
    [("1", 8, 8), ("3", 8, 6), ("9", 8, 1), ("40", 8, 1), ("3", 2, 2), ("8", 2, 1), ("?", 8, 8)],
)
def test_cores_that_other_programs_use_are_not_free(
    machine, monkeypatch, running, affinity, expected
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(affinity), raising=False)
    (machine / "loadavg").write_text(f"9.99 9.99 9.99 {running}/234 5678")
    assert free_cores() == expected


def test_a_program_that_runs_for_a_moment_takes_no_core(machine, monkeypatch):
    counts = iter(["9", "1", "1", "8", "1"])

    class Load:
        def read_text(self, encoding):
            return f"0 0 0 {next(counts)}/1 1"

    monkeypatch.setattr(devices, "LOAD", Load())
    assert free_cores() == 8


def test_threads_on_a_crowded_machine_are_as_many_as_free_cores_and_reported(machine, monkeypatch):
    (machine / "loadavg").write_text("2 2 2 7/234 5678")
    share_cores()
    assert os.environ["OMP_NUM_THREADS"] == os.environ[CHOSEN] == "2"
    assert threads_are_ours()
    assert crowded() == (
        "other programs are running: 2 of 8 CPU cores are used; to use all, set OMP_NUM_THREADS=8"
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert not threads_are_ours()
    assert crowded() == ""


def test_threads_that_the_user_sets_stay(machine, monkeypatch):
    (machine / "loadavg").write_text("2 2 2 7/234 5678")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    share_cores()
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert CHOSEN not in os.environ
    assert not threads_are_ours()


def test_threads_on_an_idle_machine_are_left_to_pytorch(machine):
    share_cores()
    assert "OMP_NUM_THREADS" not in os.environ
    assert threads_are_ours()
    assert crowded() == ""


def test_looking_up_load_limits_the_spinning_of_threads_too():
    script = "import os, transduct; transduct.load; print(os.environ['GOMP_SPINCOUNT'])"
    left = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    env = {name: value for name, value in os.environ.items() if name not in left}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout.strip() == SPINS


@pytest.mark.parametrize(
    "machine, known", [("x86_64", True), ("AMD64", True), ("aarch64", False), ("arm64", False)]
)
def test_onednn_is_used_on_processors_it_was_measured_on(monkeypatch, machine, known):
    monkeypatch.setattr(devices.platform, "machine", lambda: machine)
    held = torch.backends.mkldnn.is_available()
    assert devices.has_onednn.__wrapped__() is (known and held)
