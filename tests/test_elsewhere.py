"""No family mixes devices: each trains, resumes and answers on one that is not the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import backend_registration

from tests.families import RECIPES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available()
        and not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
        reason="no GPU, and this PyTorch cannot pretend to have one",
    ),
]


def elsewhere(*arguments):
    command = [sys.executable, "-m", "tests.elsewhere", *arguments]
    return subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=280
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_every_family_trains_and_answers_on_another_device(part):
    for extra in ("PIL", "soundfile", "scipy"):
        pytest.importorskip(extra, reason=f"some families read with {extra}")
    names = [*RECIPES][part::2]
    done = elsewhere(*names)
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}: {done.stderr[-3000:]}"
    assert done.stdout.split("\n") == [*names, ""]


def test_what_stays_on_the_cpu_is_noticed():
    done = elsewhere("transformer", "--broken")
    assert done.returncode == 1
    assert "device" in done.stderr.splitlines()[-1]
