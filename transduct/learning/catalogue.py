"""The experiments, in the order of the course."""

from difflib import get_close_matches
from importlib import import_module

from transduct.errors import TransductError
from transduct.learning.experiment import Experiment

NAMES = ("scale", "order", "hash_table")  # each is the module that defines its EXPERIMENT


def find(name: str) -> Experiment:
    """The experiment of this name. Raises TransductError, which names the nearest one."""
    if name not in NAMES:
        near = get_close_matches(name, NAMES, 1, 0.0)[0]
        raise TransductError(
            f"no experiment is called '{name}'; the nearest is {near} (all: transduct learn)"
        )
    experiment: Experiment = import_module(f"transduct.learning.{name}").EXPERIMENT
    return experiment
