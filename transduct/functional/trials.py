"""Which Triton kernels are used: those whose trial on this device gave the right numbers.

Triton compiles on the user's machine, where a C compiler, its headers or the card may not be what it wants.
"""

import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from subprocess import CalledProcessError
from typing import TypeVar

import torch

Result = TypeVar("Result")

TRITON = find_spec("triton") is not None  # it comes with PyTorch for CUDA
OLDEST = (8, 0)  # the first cards that multiply bfloat16 and have the shared memory which tiles are made for


def trusted(kernel: str, device: torch.device, *about: object) -> bool:
    """Whether a kernel is to be used: on a CUDA device, if its module's `trial(device, *about)` found it right.

    One that fails is warned of once, and PyTorch's own operations do its work.
    """
    return TRITON and device.type == "cuda" and _passes(kernel, device, *about)


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """`torch.compile` for fixed shapes; what `trusted` says is a constant to it.

    It is told so here, not where `trusted` stands: whoever only translates need not wait for the compiler to be loaded.
    """
    torch.compiler.assume_constant_result(trusted)  # type: ignore[no-untyped-call]
    return torch.compile(function, dynamic=False)


@cache
def _passes(kernel: str, device: torch.device, *about: object) -> bool:
    if torch.cuda.get_device_capability(device) < OLDEST:
        return False
    from triton.errors import TritonError

    module = import_module(f"transduct.functional.{kernel}")
    try:  # Triton has errors of its own, those of its C compiler, and assertions about the driver
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            problem = None if module.trial(device, *about) else "its numbers are not those of the formula"
    except (TritonError, RuntimeError, OSError, AssertionError, CalledProcessError) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if problem:
        warnings.warn(f"{kernel} does not run here, PyTorch's operations do its work, slower: {problem}", stacklevel=2)
    return problem is None


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Whether a kernel's numbers are those of the formula, relative to their size."""
    expected = expected.detach().double().cpu()
    return bool((found.detach().double().cpu() - expected).norm() <= tolerance * expected.norm())  # NaN is not
