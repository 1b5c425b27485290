"""Decides which Triton kernels are used: those that pass a trial on this device.

Triton compiles on the user's machine, where the C compiler, its headers or the GPU may not meet its
needs.
"""

import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from subprocess import CalledProcessError
from typing import TypeVar

import torch

from transduct.devices import OLDEST

Result = TypeVar("Result")

TRITON = find_spec("triton") is not None  # it comes with PyTorch for CUDA


def trusted(kernel: str, device: torch.device, *about: object) -> bool:
    """Whether to use a kernel: on a CUDA device, if its module's `trial(device, *about)` succeeds.

    A kernel that fails is reported once as a warning, and PyTorch's operations take its place.
    """
    return TRITON and device.type == "cuda" and _passes(kernel, device, *about)


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """`torch.compile` for fixed shapes, which treats the result of `trusted` as a constant.

    `trusted` is marked here rather than where it is defined, so that translating does not load the
    compiler.
    """
    torch.compiler.assume_constant_result(trusted)  # type: ignore[no-untyped-call]
    return torch.compile(function, dynamic=False)


@cache
def _passes(kernel: str, device: torch.device, *about: object) -> bool:
    if torch.cuda.get_device_capability(device) < OLDEST:
        return False
    from triton.errors import TritonError

    module = import_module(f"transduct.kernels.{kernel}")
    try:  # Triton raises its own errors, those of its C compiler, and assertions about the driver
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
        ):
            problem = (
                None if module.trial(device, *about) else "its results differ from the formula's"
            )
    except (TritonError, RuntimeError, OSError, AssertionError, CalledProcessError) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if problem:
        warnings.warn(
            f"{kernel} cannot be used, PyTorch's slower operations take its place: {problem}",
            stacklevel=2,
        )
    return problem is None


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Whether a kernel's result equals the formula's, up to a relative error of `tolerance`."""
    expected = expected.detach().double().cpu()
    # NaN is not
    return bool((found.detach().double().cpu() - expected).norm() <= tolerance * expected.norm())
