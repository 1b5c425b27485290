"""CUDA graphs: warm-up calls before a capture, the capture, and repeated calls of a few shapes.

With static shapes a compiler compiles only once, and a graph launches as a whole where each kernel
of a small model would wait for Python. Random numbers still follow the generator's seed, which
PyTorch passes in at each replay.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Shapes whose inputs are kept, and shapes that are known to have been seen.
MOST, REMEMBERED = 16, 256


@cache
def _stream(device: torch.device) -> Any:
    """A capture stream, plus one tiny graph. Before PyTorch 2.13 the first live graph owns the
    random-number state that all graphs share; if a search made it in inference mode, training could
    not write to it."""
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    with (
        torch.inference_mode(False),
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        torch.zeros((), device=device)
    stream.first = graph  # type: ignore[attr-defined]
    return stream


@contextmanager
def warm_up_stream(device: torch.device) -> Iterator[None]:
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


@dataclass
class _Kept:
    """Inputs of one shape in tensors that stay in place, and the graph that reads them."""

    inputs: tuple[Any, ...]
    tensors: list[Tensor]
    graph: Any = None
    result: Tensor | None = None


class Replay:
    """Calls `function` with its inputs copied into tensors that stay in place, those of the first
    call of each shape.

    Inputs are tensors, floats, and records, mappings and tuples of these. Records are rebuilt for
    each call, so that they keep no cached state from the last. Floats may change from call to call
    and are passed as tensors; everything else makes another shape, except fields declared with
    `compare=False`.

    Once `MOST` shapes are kept, inputs of others are passed on as they are, on the device. A shape
    is kept when it is seen a second time, or as the first of all.

    Args:
        captured: on a CUDA device, run a shape's first call of those kept as a warm-up, capture the
            next as a graph and replay it from then on. All other memory that the function reads or
            writes must stay in place too.
        notify: called with a line if a capture fails; the calls then run without.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        device: torch.device,
        captured: bool,
        notify: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.function, self.device, self.notify = function, device, notify
        self.captured = captured and device.type == "cuda"
        self.pool: Any = None  # memory that its graphs, which never run at one time, share
        self.kept: list[tuple[Any, _Kept]] = []  # with what inputs of the shape have in common
        self.seen: list[Any] = []  # the shapes seen once, the latest last

    def __call__(self, *inputs: Any) -> Tensor:
        """Return the function's result."""
        tensors: list[Tensor] = []
        shape = outline(inputs, tensors)
        found = next((kept for known, kept in self.kept if known == shape), None)
        if found is None:
            return self._first(shape, inputs)
        for kept, tensor in zip(found.tensors, tensors, strict=True):
            kept.copy_(tensor, non_blocking=True)
        if self.captured and found.graph is None:
            self._capture(found)
        if not self.captured:
            return self._called(found.inputs)
        assert found.result is not None
        found.graph.replay()
        return found.result.clone()

    def _first(self, shape: Any, inputs: tuple[Any, ...]) -> Tensor:
        """Call the function with inputs of a shape that is not kept yet."""
        if (not self.kept or shape in self.seen) and len(self.kept) < MOST:
            placed = mapped(inputs, lambda tensor: tensor.to(self.device, copy=True))
            tensors: list[Tensor] = []
            outline(placed, tensors)
            self.kept.append((shape, _Kept(placed, tensors)))
        else:
            placed = mapped(inputs, lambda tensor: tensor.to(self.device, non_blocking=True))
            self.seen = [*self.seen, shape][-REMEMBERED:]
        return self._called(placed)

    def _capture(self, kept: _Kept) -> None:
        """Capture a call with these inputs, which runs nothing; without success, turn capturing
        off."""
        stream = torch.cuda.current_stream(self.device)
        try:
            if self.pool is None:
                self.pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with recording(graph, self.device, self.pool):
                kept.result = self.function(*rebuilt(kept.inputs))
            kept.graph = graph
        except RuntimeError as error:
            self.captured = False
            for _, each in self.kept:
                each.graph = each.result = None
            forget_failed_capture(self.device, stream)
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self.notify(f"steps cannot be captured and run without: {reason}")

    def _called(self, inputs: tuple[Any, ...]) -> Tensor:
        # PyTorch demands that what precedes a capture runs on its stream; so every call does.
        with warm_up_stream(self.device) if self.captured else nullcontext():
            return self.function(*rebuilt(inputs))


def rebuilt(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same tensors in new records, which keep nothing of the call before."""
    built: tuple[Any, ...] = mapped(inputs, lambda tensor: tensor)
    return built


def forget_failed_capture(device: torch.device, stream: Any) -> None:
    """Return to the stream of before, and give the device's default generator a new state with the
    same seed: a capture that fails leaves the old one waiting for its end, and drawing from it
    would raise an error."""
    torch.cuda.set_stream(stream)
    index = device.index if device.index is not None else torch.cuda.current_device()
    generator, state = torch.cuda.default_generators[index], torch.Generator(device)
    state.manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(state)


def pinned(item: Any) -> Any:
    """The same inputs in memory that a GPU copies from while the host goes on."""
    return mapped(item, lambda tensor: tensor.pin_memory())


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


def outline(item: Any, tensors: list[Tensor]) -> Any:
    """What inputs must have in common to be interchangeable: shapes, dtypes and compared values.
    Their tensors are appended to `tensors`, in order; floats as tensors."""
    if isinstance(item, Tensor | float):
        tensors.append(torch.as_tensor(item))
        return tuple(tensors[-1].shape), tensors[-1].dtype
    if is_dataclass(item):
        parts = [(f.compare, outline(getattr(item, f.name), tensors)) for f in fields(item)]
        return type(item).__name__, tuple(part for compared, part in parts if compared)
    if isinstance(item, Mapping):
        return tuple((name, outline(value, tensors)) for name, value in item.items())
    return tuple(outline(each, tensors) for each in item) if isinstance(item, tuple) else item
