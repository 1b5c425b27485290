"""Decides which Triton kernels are used: those that pass a trial on this device.

Triton compiles on the user's machine, where the C compiler, its headers or the GPU may not meet its
needs.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from subprocess import CalledProcessError
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from transduct.devices import OLDEST

Result = TypeVar("Result")
Loss = Callable[[nn.Module, Any], Any]
Pair = tuple[Tensor, Tensor, float]  # found, expected, and the relative error that is allowed

# Compilers raise their own RuntimeErrors, those of a C compiler, and assertions about the driver.
COMPILER_FAILS = (RuntimeError, OSError, AssertionError, CalledProcessError)
TRITON = find_spec("triton") is not None  # it comes with PyTorch for CUDA


def trusted(kernel: str, device: torch.device, *about: object) -> bool:
    """Whether to use a kernel: on a CUDA device, if each result in its module's
    `trial(device, *about)` is close to the formula's.

    A kernel that fails is reported once as a warning, and PyTorch's operations take its place.
    """
    return TRITON and device.type == "cuda" and _passes(kernel, device, *about)


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """`torch.compile` for fixed shapes, which treats the result of `trusted` as a constant.

    `trusted` is marked here rather than where it is defined, so that translating does not load the
    compiler.
    """
    torch.compiler.assume_constant_result(trusted)
    return torch.compile(function, dynamic=False)


class CompiledLoss:
    """A loss compiled for fixed shapes. If the compiler fails at the first call, or what it made is
    wrong, the loss itself takes its place.

    Compiled by PyTorch 2.11, a loss had the right value, and no gradient for some weights. Nothing
    else would show it.

    Args:
        loss: (model, batch) -> {name: (sum, count, weight)}.
        notify: called with a line if the loss is not compiled.
    """

    def __init__(self, loss: Loss, notify: Callable[[str], None]) -> None:
        self.loss, self.chosen, self.notify = loss, compiled(loss), notify
        self.compared = False

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        """The loss."""
        if not self.compared:
            self.compared = True
            if problem := self._problem(model, batch):
                self.chosen = self.loss
                self.notify(f"the loss is not compiled: {problem}")
        return self.chosen(model, batch)

    def _problem(self, model: nn.Module, batch: Any) -> str:
        """What is wrong with the compiled loss, if anything. Draws no random number of the step."""
        weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        device = next(model.parameters()).device
        changed = []
        try:
            for loss in (self.loss, self.chosen):
                with torch.random.fork_rng([device] if device.type == "cuda" else []):
                    terms = loss(model, batch)
                total = sum(weight * s for s, _, weight in terms.values())
                # Gradients as values, not in `.grad`: the step that follows starts from none.
                with torch.autocast(device.type, enabled=False):
                    found = torch.autograd.grad(total, [*weights.values()], allow_unused=True)
                changed.append(
                    {name for name, x in zip(weights, found) if x is not None and x.any()}
                )
        except COMPILER_FAILS as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        if device.type == "cuda":  # do not report the memory of this as the run's peak
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        lost = [name for name in weights if name in changed[0] - changed[1]]
        if not lost:
            return ""
        return (
            f"by PyTorch {torch.__version__} it has no gradient for {len(lost)} weights "
            f"({lost[0]}, ...)"
        )


@cache
def _passes(kernel: str, device: torch.device, *about: object) -> bool:
    if torch.cuda.get_device_capability(device) < OLDEST:
        return False
    from triton.errors import TritonError

    module = import_module(f"transduct.kernels.{kernel}")
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
        ):
            right = all(close(*each) for each in module.trial(device, *about))
        problem = None if right else "its results differ from the formula's"
    except (TritonError, *COMPILER_FAILS) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if problem:
        warnings.warn(
            f"{kernel} cannot be used, PyTorch's slower operations take its place: {problem}",
            stacklevel=2,
        )
    return problem is None


def waves(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Numbers for a trial, which are not random: trials draw nothing from a run's generators."""
    return torch.arange(1.0 + math.prod(shape), device=device)[1:].sin().to(dtype).view(shape)


def compared(
    kernel: Callable[..., Any],
    formula: Callable[..., Any],
    given: Sequence[Tensor],
    pull: Any,
    tolerance: float,
) -> Iterator[Pair]:
    """The results of a kernel and of its formula in float64 and, with the gradient `pull` of the
    results, the gradients of what is given."""
    leaves = [x.detach().requires_grad_() for x in given]
    exact = [x.detach().double().requires_grad_() for x in given]
    found, expected = _several(kernel(*leaves)), _several(formula(*exact))
    yield from ((one, other, tolerance) for one, other in zip(found, expected, strict=True))
    if pull is not None:
        pulls = _several(pull)
        gradients = torch.autograd.grad(found, leaves, pulls)
        right = torch.autograd.grad(expected, exact, [x.double() for x in pulls])
        yield from ((one, other, tolerance) for one, other in zip(gradients, right))


def _several(results: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else [*results]


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Whether a kernel's result equals the formula's, up to a relative error of `tolerance`."""
    expected = expected.detach().double().cpu()
    # NaN is not
    return bool((found.detach().double().cpu() - expected).norm() <= tolerance * expected.norm())
