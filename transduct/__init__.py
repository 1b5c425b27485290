"""Train, run and explain models that turn one sequence into another."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

if TYPE_CHECKING:
    from transduct.predictors.base import load


def _load(path: Any, *arguments: Any, **options: Any) -> Any:
    """`predictors.base.load`, also of a folder of another tool or a name on Hugging Face's hub,
    which is made a model of ours first."""
    from transduct.predictors.base import load

    if _is_foreign(path):
        from transduct.interop import hub

        path = hub.converted_copy(path) if hub.is_foreign(path) else path
    return load(path, *arguments, **options)


def _is_foreign(path: Any) -> bool:
    """Whether a path may be of another tool, asked without importing one: what is ours says its
    format, or is a run."""
    if not isinstance(path, str | os.PathLike):
        return False
    folder = os.path.expanduser(path)
    config = os.path.join(folder, "config.json")
    if os.path.isdir(folder):
        with suppress(OSError), open(config, "rb") as file:
            return b'"task"' not in file.read(1 << 20)
        return False
    return "/" in str(path) and not os.path.isabs(folder)


def __getattr__(name: str) -> Any:
    """Resolve `transduct.load` lazily, so that `import transduct` does not import torch."""
    if name == "load":
        from transduct.devices import share_cores

        share_cores()  # too late only if the caller has already imported torch
        return _load
    raise AttributeError(f"module 'transduct' has no attribute '{name}'")
