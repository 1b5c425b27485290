"""Where Triton's kernels are tested: on a GPU or, with TRITON_INTERPRET=1, on the CPU.

A module that imports this is skipped where neither can be.
"""

import os

import pytest
import torch

from transduct.kernels.triton import close

pytest.importorskip("triton", reason="Triton comes with PyTorch for CUDA and is not installed here")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("the kernel needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


def passes(trial):
    return all(close(*pair) for pair in trial)
