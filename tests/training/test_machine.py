"""Machine settings are applied once, and signal handlers are restored."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from transduct.errors import TransductError
from transduct.training import machine
from transduct.training.machine import (
    one_ahead,
    prepare_machine,
    stopped_by_signals,
    training_alone,
)
from transduct.training.step import seed_generators


def test_each_item_is_made_while_the_one_before_it_is_used():
    made, second = [], threading.Event()

    def items():
        for number in range(3):
            made.append((number, threading.current_thread().name))
            if number == 1:
                second.set()
            yield number
        raise TransductError("broken")

    ahead = one_ahead(items())
    assert made == [], "nothing before it is asked for"
    assert next(ahead) == 0
    assert second.wait(10)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(TransductError, match="broken"):
        next(ahead)
    assert [number for number, _ in made] == [0, 1, 2]
    assert {name.split("_")[0] for _, name in made} == {"ahead"}
    assert [*one_ahead(iter("abc"))] == [*"abc"]
    assert [*one_ahead(iter(()))] == []
    left = one_ahead(iter("abc"))
    assert next(left) == "a"
    left.close()  # as where training stops
    assert not [each for each in threading.enumerate() if each.name.startswith("ahead")]


def test_generators_are_a_function_of_the_numbers():
    drawn = {}
    for numbers in [
        (1, 2, 3, 0),
        (1, 2, 3, 1),
        (1, 2, 4, 0),
        (2, 2, 3, 0),
        (12, 3, 0),
        (1, 2, 3, 0),
    ]:
        seed_generators(*numbers)
        value = float(torch.rand(()))
        assert drawn.setdefault(numbers, value) == value
    assert len(set(drawn.values())) == 5


def test_numbers_too_small_to_be_multiplied_fast_are_zero():
    small = torch.tensor(1e-30)
    try:
        torch.set_flush_denormal(False)
        assert small * 1e-10 > 0
        prepare_machine()
        assert small * 1e-10 == 0
    finally:
        torch.set_flush_denormal(False)


def test_deterministic_algorithms_are_switched_on(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.use_deterministic_algorithms(False)
    prepare_machine()
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    prepare_machine()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8", "who has set it is obeyed"


GROWS = """
import torch
from transduct.training import machine
{forget}
torch.set_num_threads(1)
weight = torch.randn(512, 512, dtype=torch.bfloat16)
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
for rows in range(100, 200):
    torch.nn.functional.linear(torch.randn(rows, 512, dtype=torch.bfloat16), weight)
before = memory()
for rows in range(200, 500):
    torch.nn.functional.linear(torch.randn(rows, 512, dtype=torch.bfloat16), weight)
print(memory() - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(),
    reason="where this system tells of its memory is not known",
)
@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN knows no bfloat16 on this processor",
)
def test_a_run_over_many_shapes_grows_little(monkeypatch):
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        monkeypatch.delenv(name, raising=False)
    little, much = (
        int(
            subprocess.run(
                [sys.executable, "-c", GROWS.format(forget=line)], capture_output=True, check=True
            ).stdout
        )
        for line in ("machine.forget_shapes()", "pass")
    )
    assert little < much / 2


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_and_a_second_interrupt_does_so_at_once(number):
    before = [signal.getsignal(each) for each in SIGNALS]
    stopped = []
    caught = stopped_by_signals(lambda: stopped.append(number))
    with pytest.raises(KeyboardInterrupt), caught:  # noqa: PT012
        signal.raise_signal(number)
        assert stopped == [number]
        signal.raise_signal(signal.SIGINT)
    assert stopped == [number]
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_terminal_may_close_where_that_is_ignored():
    """As nohup leaves it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stopped = []
    try:
        with stopped_by_signals(lambda: stopped.append(None)):
            signal.raise_signal(signal.SIGHUP)
        assert not stopped
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_one_thread_trains_at_a_time():
    said = []

    def work():
        try:
            with training_alone():
                said.append("trained")
        except TransductError as error:
            said.append(str(error))

    def in_a_thread():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with training_alone(), training_alone():  # the same thread may
        in_a_thread()
    with pytest.raises(KeyError), training_alone():
        raise KeyError
    in_a_thread()
    assert said == [
        "another thread of this process trains, with the same random generators; train in a "
        "process of its own",
        "trained",
    ]


def test_gradients_are_computed_whatever_the_caller_has_turned_off():
    for caller in (torch.no_grad(), torch.inference_mode()):
        with caller:
            with training_alone():
                weight = torch.ones(1, requires_grad=True)
                (weight * weight).sum().backward()
            assert weight.grad is not None
            assert not torch.is_grad_enabled()


def test_outside_the_main_thread_signals_are_somebody_elses():
    before = signal.getsignal(signal.SIGINT)
    found = []

    def work():
        with stopped_by_signals(list):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.mark.parametrize(
    "ours, saved, expected", [(True, 2, 2), (True, 0, 1), (True, 9, 1), (False, 2, 1)]
)
def test_a_run_goes_on_with_the_threads_that_its_checkpoint_was_made_with(
    monkeypatch, ours, saved, expected
):
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(machine, "threads_are_ours", lambda: ours)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        machine.use_threads(saved)
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
