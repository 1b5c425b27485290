"""Weights in PyTorch's pickles, read here alone: tensors only, in a process of its own.

PyTorch's own reader of weights runs nothing that a file names. The process has a bound on its
memory, so that a file which lies about sizes ends that process and not this one. What it reads it
writes as a safetensors file, which is then checked like any other.
"""

import os
import subprocess
import sys
from pathlib import Path

from transduct import storage
from transduct.errors import TransductError, rewording

ROOM = 3 << 30  # bytes of memory beside those of the file
TIMES = 3  # how often a file may be held in memory: mapped, read, and one tensor after another
LIMIT = "TRANSDUCT_PICKLE_BYTES"
MOST_SECONDS = 3600
# What PyTorch raises for a file that is cut or changed.
DAMAGES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, EOFError, OSError,
           AssertionError)  # fmt: skip


def as_safetensors(path: Path, out: Path) -> None:
    """Write the tensors of a pickle as a safetensors file.

    Raises:
        TransductError: the file is damaged, asks for anything but tensors, or takes more memory
            than its size explains.
    """
    storage.check_file(path, "a pickle of weights")
    with rewording(
        OSError, "cannot be read ({error}); expected a pickle of weights", file=str(path)
    ):
        size = path.stat().st_size
        path.open("rb").close()
    given = {**os.environ, LIMIT: str(TIMES * size + ROOM), "OMP_NUM_THREADS": "1"}
    place = str(Path(__file__).parents[2])
    given["PYTHONPATH"] = os.pathsep.join(filter(None, (place, given.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "transduct.interop.pickled", str(path), str(out)],
            env=given,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TransductError(
            f"{path}: not read within {MOST_SECONDS} s; take model.safetensors instead"
        ) from error
    if done.returncode == 0:
        return
    lines = done.stderr.strip().splitlines()
    reason = lines[-1] if done.returncode == 2 and lines else f"it ended the reader ({_why(done)})"
    raise TransductError(f"{path}: {reason}; take the weights as model.safetensors instead")


def _why(done: "subprocess.CompletedProcess[str]") -> str:
    signal = -done.returncode
    return f"signal {signal}" if signal > 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


def _main(path: Path, out: Path) -> int:
    """The reader's process. An error is the last line on stderr, and exit 2."""
    import resource

    import torch

    if sys.platform == "linux":  # other systems have no such bound
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        most = taken + int(os.environ[LIMIT])
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        tensors = _tensors(path)
        shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        storage.write_tensors(out, shapes, lambda name: tensors[name].contiguous())
    except (MemoryError, torch.OutOfMemoryError):
        return _fail("takes far more memory than its size explains")
    except TransductError as error:
        return _fail(str(error))
    return 0


def _tensors(path: Path) -> dict[str, "torch.Tensor"]:  # type: ignore[name-defined] # noqa: F821
    import torch
    from torch.serialization import pickle as errors  # only for the name of what it raises

    try:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap" not in str(error):
                raise
            # a file of before PyTorch 1.6, which cannot be mapped
            content = torch.load(path, map_location="cpu", weights_only=True)
    except errors.UnpicklingError as error:
        raise TransductError(f"asks for more than tensors ({_first(error)})") from error
    except DAMAGES as error:
        raise TransductError(f"a damaged pickle of weights ({_first(error)})") from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise TransductError(f"holds a {type(content).__name__}, expected tensors by name")
    for name, tensor in content.items():
        is_tensor = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not isinstance(name, str) or not is_tensor or tensor.layout != torch.strided:
            raise TransductError(f"holds {name!r:.40}, which is no plain tensor with a name")
    return {name: tensor.detach() for name, tensor in content.items()}


def _first(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _fail(line: str) -> int:
    sys.stderr.write(f"{line}\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(_main(Path(sys.argv[1]), Path(sys.argv[2])))
