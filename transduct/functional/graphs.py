"""CUDA graphs: the calls before a capture, and the capture."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@cache
def _stream(device: torch.device) -> Any:
    """A stream, and with it a graph of next to nothing: before PyTorch 2.13 the first graph alive brings what all of
    them know of random numbers, and if that were one of a search, in inference mode, no training could write to it."""
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    with torch.inference_mode(False), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        torch.zeros((), device=device)
    stream.first = graph  # type: ignore[attr-defined]
    return stream


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """On another stream than all else, as PyTorch asks for the calls before a capture: libraries choose their kernels
    in these, and take their memory. It is one for all, for each has a workspace of its own."""
    stream, present = _stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        yield
    present.wait_stream(stream)


@contextmanager
def recording(graph: Any, device: torch.device, pool: Any = None) -> Iterator[None]:
    """What is called within becomes the graph.

    A graph that is destroyed takes along the workspace of cuBLAS on its stream (PyTorch 2.13), which others recorded
    there would go on to use; so each has one in memory of its own.

    Args:
        pool: the memory that graphs share, of which never two run at once.
    """
    torch._C._cuda_clearCublasWorkspaces()
    with torch.cuda.graph(graph, pool=pool, stream=_stream(device), capture_error_mode="thread_local"):
        yield
    torch._C._cuda_clearCublasWorkspaces()
