"""transduct: train, run and explain models that turn one sequence into another."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

if TYPE_CHECKING:
    from transduct.tasks.base import load


def __getattr__(name: str) -> Any:
    """`transduct.load`, found when it is asked for, so that `import transduct` imports no torch."""
    if name == "load":
        from transduct.tasks.base import load

        return load
    raise AttributeError(f"module 'transduct' has no attribute '{name}'")
