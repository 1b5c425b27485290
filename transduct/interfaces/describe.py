"""What `transduct describe` does and prints."""

import json
from pathlib import Path
from typing import Any

import torch

from transduct.devices import cores, free_cores, has_bfloat16, processor
from transduct.drawing.models import aligned, described, drawing
from transduct.drawing.plots import check_ending, save
from transduct.interfaces.terminal import require_folders
from transduct.kernels.cpu import report
from transduct.predictors.base import model_directory
from transduct.predictors.inside import counted, settings


def describe_machine(as_json: bool) -> None:
    """Print the processor, its cores, the kernels and the devices that this machine has."""
    kernels = report()
    about: dict[str, Any] = {
        "processor": processor(),
        "cores": f"{cores()}, {free_cores()} of them free, {torch.get_num_threads()} threads used",
        "bfloat16": "has an instruction" if has_bfloat16(torch.device("cpu")) else "imitated",
        "GPUs": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "torch": torch.__version__,
    }
    if as_json:
        rows = [kernel._asdict() for kernel in kernels]
        print(json.dumps({"about": about, "kernels": rows}))
        return
    about["GPUs"] = ", ".join(about["GPUs"]) or "none"
    print(*(f"{name}: {value}" for name, value in about.items()), "", sep="\n")
    for kernel in kernels:
        print(f"{kernel.name}: {kernel.used or 'by PyTorch'}")
        if len(kernel.available) > 1 or kernel.used is None:
            print(f"    available: {', '.join(kernel.available) or 'none'}")
        if kernel.reason:
            print(f"    {kernel.reason}")


def describe(model: str, out: Path | None, as_json: bool) -> None:
    """Print a model's task, settings and parts, and draw it into `out`."""
    check_ending(out)
    require_folders(out)
    directory = model_directory(model)
    about, weights = settings(directory)
    if as_json:
        parts = counted(about, weights)["parts"]
        print(json.dumps({"about": about, "parts": parts}, default=str))
    else:
        lists = {n: ", ".join(about[n]) for n in ("frozen", "languages") if n in about}
        print(*(f"{name}: {value}" for name, value in (about | lists).items()), "", sep="\n")
        print(*aligned(described(weights)), sep="\n")
    if out is not None:
        save(drawing(weights, f"{model}: {about['task']}, {about['family']}"), out)
