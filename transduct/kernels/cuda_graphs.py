"""CUDA graphs: warm-up calls before a capture, and the capture."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


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
