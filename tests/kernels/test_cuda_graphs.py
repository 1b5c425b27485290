"""Captured graphs can be replayed with other inputs, and each has its own workspace."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from transduct.kernels import cuda_graphs


def test_a_capture_shares_neither_stream_with_others_nor_workspace(monkeypatch):
    """On a mock device that records the calls to PyTorch, in order."""
    done = []

    class Stream(SimpleNamespace):
        def wait_stream(self, other):
            done.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def on(stream):
        done.append(f"on {stream.name}")
        yield

    @contextmanager
    def graph(made, stream, capture_error_mode, pool=None):
        done.append((made, pool, stream.name, capture_error_mode))
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(name="side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(name="main"))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "first")
    monkeypatch.setattr(
        torch, "zeros", lambda shape, device: done.append(torch.is_inference_mode_enabled())
    )
    monkeypatch.setattr(
        torch._C, "_cuda_clearCublasWorkspaces", lambda: done.append("cleared"), raising=False
    )
    device = torch.device("cuda", 63)
    with torch.inference_mode(), cuda_graphs.warm_up_stream(device):
        done.append("warmed")
    with cuda_graphs.recording("graph", device, "pool"):
        done.append("recorded")
    assert done[:2] == [("first", None, "side", "thread_local"), False], (
        "not even for a search in inference mode"
    )
    assert done[2:6] == ["side waits for main", "on side", "warmed", "main waits for side"]
    assert done[6:] == ["cleared", ("graph", "pool", "side", "thread_local"), "recorded", "cleared"]
    cuda_graphs._stream.cache_clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU has graphs")
def test_graphs_outlive_each_other():
    device = torch.device("cuda", torch.cuda.current_device())
    x, weight = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
    held, results = [], []
    for _ in range(2):
        with cuda_graphs.warm_up_stream(device):
            x @ weight
        graph = torch.cuda.CUDAGraph()
        with cuda_graphs.recording(graph, device):
            results.append(x @ weight)
        held.append(graph)
    del held[0], graph
    torch.cuda.empty_cache()
    x.copy_(torch.randn_like(x))
    held[0].replay()
    torch.testing.assert_close(results[1], x @ weight)
