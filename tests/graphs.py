"""Graphs that stand in for CUDA's on a CPU: a capture notes the operations that run, and a replay
runs them again, writing each result where the first lay.

As with CUDA's, what Python decided in the capture stays decided, and what reads other memory than
the tensors of the capture reads stale numbers. Unlike them a capture runs its operations; the first
replay then runs nothing. Operations that PyTorch does not dispatch, such as those of our C library,
are not noted.
"""

from contextlib import contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transduct.kernels import cuda_graphs


class Graph(TorchDispatchMode):
    """One captured graph."""

    def __init__(self):
        super().__init__()
        self.noted, self.fresh = [], True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.noted.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        if self.fresh:
            self.fresh = False
            return
        with torch.no_grad():
            for func, args, kwargs, out in self.noted:
                given = {place(x) for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)}
                for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs))):
                    if torch.is_tensor(old) and place(old) not in given:
                        old.copy_(new)


def place(x):
    return x.untyped_storage().data_ptr()


def replayed_eagerly(monkeypatch):
    """Let `cuda_graphs` capture on a CPU. Returns the graphs made so far."""
    made = []

    @contextmanager
    def recording(graph, device, pool=None):
        made.append(graph)
        with graph:
            yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(cuda_graphs, "recording", recording)
    monkeypatch.setattr(cuda_graphs, "warm_up_stream", lambda device: nullcontext())
    return made
