"""CUDA graphs: warm-up calls before a capture, the capture, and repeated calls of one shape.

With static shapes a compiler compiles only once, and a graph launches as a whole where each kernel
of a small model would wait for Python. Random numbers still follow the generator's seed, which
PyTorch passes in at each replay.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from transduct.errors import TrainingFailed


@cache
def _stream(device: torch.device) -> Any:
    """A capture stream, plus one tiny graph. Before PyTorch 2.13 the first live graph owns the
    random-number state that all graphs share; if a search made it in inference mode, training could
    not write to it."""
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    with (
        torch.inference_mode(False),
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        torch.zeros((), device=device)
    stream.first = graph  # type: ignore[attr-defined]
    return stream


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """Run the warm-up calls before a capture on the capture stream, as PyTorch demands: in these,
    libraries choose their kernels and allocate memory. All share one stream, because each stream
    has a workspace of its own."""
    stream, present = _stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        yield
    present.wait_stream(stream)


@contextmanager
def recording(graph: Any, device: torch.device, pool: Any = None) -> Iterator[None]:
    """Capture the calls within into `graph`.

    A destroyed graph frees the cuBLAS workspace of its stream (PyTorch 2.13), which other graphs
    captured there would still use; so each graph gets a workspace in its own memory.

    Args:
        pool: memory shared by graphs that never run at the same time.
    """
    torch._C._cuda_clearCublasWorkspaces()
    with torch.cuda.graph(
        graph, pool=pool, stream=_stream(device), capture_error_mode="thread_local"
    ):
        yield
    torch._C._cuda_clearCublasWorkspaces()


class Replay:
    """Calls `function` with its inputs copied into the tensors of the first call.

    Inputs are tensors, floats, and records, mappings and tuples of these. Records are rebuilt for
    each call, so that they keep no cached state from the last. Floats may change from call to call
    and are passed as tensors; everything else must stay the same, except fields declared with
    `compare=False`.

    Args:
        captured: on a CUDA device, run the first call as a warm-up, capture the second as a graph
            and replay it from then on. All other memory that the function reads or writes must stay
            in place too.
    """

    def __init__(
        self, function: Callable[..., Tensor], device: torch.device, captured: bool
    ) -> None:
        self.function, self.device = function, device
        self.captured = captured and device.type == "cuda"
        self.outline: Any = None
        self.inputs: tuple[Any, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Tensor | None = None

    def __call__(self, *inputs: Any) -> Tensor:
        """Return the function's result.

        Raises:
            TrainingFailed: if the inputs have another shape than those of the first call.
        """
        if self.outline is None:
            self.outline = outline(inputs)
            self.inputs = mapped(inputs, lambda tensor: tensor.to(self.device, copy=True))
            with (
                beside(self.device) if self.captured else nullcontext()
            ):  # as PyTorch requires before a capture
                return self._called()
        if outline(inputs) != self.outline:
            raise TrainingFailed(
                f"a batch has another shape than the first: found {outline(inputs)}, expected "
                f"{self.outline}; "
                "set training.compile=false and training.capture=false"
            )
        for kept, tensor in zip(tensors(self.inputs), tensors(inputs), strict=True):
            kept.copy_(tensor, non_blocking=True)
        if not self.captured:
            return self._called()
        if self.graph is None:  # capturing runs nothing
            self.graph = torch.cuda.CUDAGraph()
            with recording(self.graph, self.device):
                self.result = self._called()
        assert self.result is not None
        self.graph.replay()
        return self.result.clone()

    def _called(self) -> Tensor:
        return self.function(*mapped(self.inputs, lambda tensor: tensor))


def mapped(item: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to every tensor inside, building new records; floats become tensors first."""
    if isinstance(item, Tensor | float):
        return change(torch.as_tensor(item))
    if is_dataclass(item) and not isinstance(item, type):
        return replace(
            item, **{f.name: mapped(getattr(item, f.name), change) for f in fields(item)}
        )
    if isinstance(item, Mapping):
        return {name: mapped(value, change) for name, value in item.items()}
    return tuple(mapped(value, change) for value in item) if isinstance(item, tuple) else item


def tensors(item: Any) -> Iterator[Tensor]:
    """All tensors inside, in order; floats as tensors."""
    if isinstance(item, Tensor | float):
        yield torch.as_tensor(item)
    elif is_dataclass(item):
        for each in fields(item):
            yield from tensors(getattr(item, each.name))
    elif isinstance(item, Mapping | tuple):
        for value in item.values() if isinstance(item, Mapping) else item:
            yield from tensors(value)


def outline(item: Any) -> Any:
    """What inputs must have in common to be interchangeable: shapes, dtypes and compared values."""
    if isinstance(item, Tensor | float):
        tensor = torch.as_tensor(item)
        return tuple(tensor.shape), tensor.dtype
    if is_dataclass(item):
        return type(item).__name__, tuple(
            outline(getattr(item, f.name)) for f in fields(item) if f.compare
        )
    if isinstance(item, Mapping):
        return tuple((name, outline(value)) for name, value in item.items())
    return tuple(map(outline, item)) if isinstance(item, tuple) else item
