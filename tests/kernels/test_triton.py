"""A kernel is used if it passes its trial; one that fails only causes a warning."""

import sys
from functools import partial
from subprocess import CalledProcessError
from types import SimpleNamespace

import pytest
import torch

from transduct.kernels import triton
from transduct.kernels.triton import close, compiled, trusted

CUDA = torch.device("cuda")


class TritonError(Exception):
    """A mock of Triton, as far as trials use it."""


@pytest.fixture
def tried(monkeypatch):
    """Mocks a machine with a GPU and Triton; records the trials that were run."""
    calls = []

    def trial(*about):
        calls.append((*about, torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        if isinstance(calls.result, BaseException):
            raise calls.result
        return [(torch.ones(2), torch.ones(2) * (1 if calls.result else 2), 0.1)]

    calls = type("Calls", (list,), {"result": True})()
    monkeypatch.setattr(triton, "TRITON", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(triton, "import_module", lambda name: SimpleNamespace(trial=trial))
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "triton.errors", SimpleNamespace(TritonError=TritonError))
    triton._passes.cache_clear()
    yield calls
    triton._passes.cache_clear()


def test_a_kernel_is_tried_once_for_the_same_arguments(tried):
    with torch.inference_mode():
        found = [trusted("a", CUDA, torch.float32, width) for width in (16, 16, 32)]
    assert found == [True] * 3
    assert tried == [(CUDA, torch.float32, width, True, False) for width in (16, 32)]


@pytest.mark.parametrize("missing", ["Triton", "GPU", "capability"])
def test_a_kernel_that_cannot_run_is_not_tried(tried, monkeypatch, missing):
    if missing == "Triton":
        monkeypatch.setattr(triton, "TRITON", False)
    if missing == "capability":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not trusted("a", torch.device("cpu") if missing == "GPU" else CUDA)
    assert not tried


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (False, "its results differ from the formula's"),
        (
            RuntimeError("Failed to find C compiler.\nSet CC"),
            "RuntimeError: Failed to find C compiler.",
        ),
        (TritonError("out of resource"), "TritonError: out of resource"),
        (
            CalledProcessError(1, "gcc"),
            "CalledProcessError: Command 'gcc' returned non-zero exit status 1.",
        ),
        (
            AssertionError("libcuda.so cannot be found"),
            "AssertionError: libcuda.so cannot be found",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_kernel_that_fails_is_reported_once_and_not_used(tried, result, problem):
    tried.result = result
    with pytest.warns(
        UserWarning,
        match=f"^a cannot be used, PyTorch's slower operations take its place: {problem}$",
    ):
        assert not trusted("a", CUDA)
    assert not trusted("a", CUDA)  # a second warning would be an error
    assert len(tried) == 1


def test_errors_of_other_kinds_are_raised(tried):
    tried.result = TypeError("a mistake of ours")
    with pytest.raises(TypeError, match="a mistake of ours"):
        trusted("a", CUDA)


def test_a_compiler_takes_the_answer_for_a_constant(monkeypatch):
    monkeypatch.setattr(triton, "TRITON", True)
    monkeypatch.setattr(
        triton, "_passes", lambda *about: bool(torch.tensor([about[2] == torch.float32]).item())
    )
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    function = compiled(lambda x: x + 1 if trusted("a", CUDA, x.dtype) else x - 1)
    assert function(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert function(torch.zeros(2, dtype=torch.float64)).tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("found", "right"),
    [([1.0, 2.0], True), ([1.0, 2.2], True), ([1.0, 2.4], False), ([1.0, float("nan")], False)],
)
def test_close_is_relative_to_the_size(found, right):
    assert close(torch.tensor(found), torch.tensor([1.0, 2.0]), 0.1) is right
