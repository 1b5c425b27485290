"""A function called again and again with inputs of one shape: over tensors that stay in place, or as a CUDA graph.

A compiler then never compiles twice, and a graph is launched as a whole where each kernel of a small model would wait
for Python. Random numbers stay those of the generator's seed: PyTorch fills it in at each replay.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from transduct.errors import TrainingFailed
from transduct.functional import graphs


class Replay:
    """Calls `function` with copies of its inputs that lie where those of the first call lay.

    Inputs are tensors, records and mappings of them, and numbers; of a record the copy is new for each call, so that it
    remembers nothing of the one before. Fractional numbers are handed over as tensors, for they may differ from call
    to call; all else must be the same, save fields that are declared with `compare=False`.

    Args:
        captured: on a CUDA device, let the first call set things up, record the second as a graph and replay it from
            then on. Everything else the function reads or writes must stay in its place as well.
    """

    def __init__(self, function: Callable[..., Tensor], device: torch.device, captured: bool) -> None:
        self.function, self.device = function, device
        self.captured = captured and device.type == "cuda"
        self.outline: Any = None
        self.held: tuple[Any, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Tensor | None = None

    def __call__(self, *inputs: Any) -> Tensor:
        """What the function gives.

        Raises:
            TrainingFailed: the inputs have another shape than the first.
        """
        if self.outline is None:
            self.outline = outline(inputs)
            self.held = mapped(inputs, lambda tensor: tensor.to(self.device, copy=True))
            return self._first()
        if outline(inputs) != self.outline:
            raise TrainingFailed(
                f"a batch has another shape than the first: found {outline(inputs)}, expected {self.outline}; "
                "set training.compile=false and training.capture=false"
            )
        for place, tensor in zip(tensors(self.held), tensors(inputs), strict=True):
            place.copy_(tensor, non_blocking=True)
        return self._replayed() if self.captured else self._called()

    def _called(self) -> Tensor:
        return self.function(*mapped(self.held, lambda tensor: tensor))

    def _first(self) -> Tensor:
        """The first call, beside the stream of all else, as PyTorch asks for what is to be captured."""
        if not self.captured:
            return self._called()
        with graphs.beside(self.device):
            return self._called()

    def _replayed(self) -> Tensor:
        """Recording runs nothing, so the second call is the first that is replayed."""
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with graphs.recording(self.graph, self.device):
                self.result = self._called()
        assert self.result is not None
        self.graph.replay()
        return self.result.clone()


def mapped(item: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with its tensors changed, in new records; fractional numbers become tensors first."""
    if isinstance(item, Tensor | float):
        return change(torch.as_tensor(item))
    if is_dataclass(item) and not isinstance(item, type):
        return replace(item, **{f.name: mapped(getattr(item, f.name), change) for f in fields(item)})
    if isinstance(item, Mapping):
        return {name: mapped(value, change) for name, value in item.items()}
    return tuple(mapped(value, change) for value in item) if isinstance(item, tuple) else item


def tensors(item: Any) -> Iterator[Tensor]:
    """All tensors inside, in order; fractional numbers as tensors."""
    if isinstance(item, Tensor | float):
        yield torch.as_tensor(item)
    elif is_dataclass(item):
        for each in fields(item):
            yield from tensors(getattr(item, each.name))
    elif isinstance(item, Mapping | tuple):
        for value in item.values() if isinstance(item, Mapping) else item:
            yield from tensors(value)


def outline(item: Any) -> Any:
    """What two inputs of one shape have in common: shapes and types, and whatever else is compared."""
    if isinstance(item, Tensor | float):
        tensor = torch.as_tensor(item)
        return tuple(tensor.shape), tensor.dtype
    if is_dataclass(item):
        return type(item).__name__, tuple(outline(getattr(item, f.name)) for f in fields(item) if f.compare)
    if isinstance(item, Mapping):
        return tuple((name, outline(value)) for name, value in item.items())
    return tuple(map(outline, item)) if isinstance(item, tuple) else item
