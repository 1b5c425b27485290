"""The `Task` protocol, and what can be done with a model of any task: load it, evaluate it, copy
it.

model directory   config.json  model.safetensors  card.md   and the files that the task adds
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from transduct.config import Recipe
from transduct.predictors.base import (
    Report,
    task_module,
)
from transduct.training.config import TrainingConfig
from transduct.training.log import ignore
from transduct.training.step import Terms


class Task(ABC):
    """Connects data, model, loss and scores; the trainer takes these methods as plain callables."""

    training: TrainingConfig
    data: Any  # the recipe's `data` section, with at least `train`, `valid` and `root`
    recipe: Recipe  # with every default filled in
    _validation: Any  # read by `prepare`; None if there is nothing to validate on

    @abstractmethod
    def prepare(self) -> None:
        """Make what training reads (tokenizers, corpora), unless it has been made before."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Returns the model to train."""

    @abstractmethod
    def batches(self, split: str, epoch: int, start: int, rank: int, world: int) -> Iterator[Any]:
        """Returns this rank's share of the batches of an epoch, from batch `start` on."""

    @abstractmethod
    def loss(self, model: Any, batch: Any) -> Terms:
        """Returns the terms of the loss: {name: (sum, count, weight)}."""

    @abstractmethod
    def _in_use(self, model: Any) -> Any:
        """Returns the model in the object that `load` would return, which predicts and
        evaluates."""

    def evaluate(self, model: Any, data: Any = None) -> Report:
        """Scores the model on `data`, by default the recipe's validation set."""
        data = self._validation if data is None else data
        return Report({}) if data is None else self._in_use(model).evaluate(data)

    def predict(self, model: Any, inputs: Sequence[Any]) -> list[Any]:
        """Returns the model's answer to each input."""
        return self._in_use(model).predict(inputs)

    @abstractmethod
    def save(self, model: Any, directory: Path, log: Mapping[str, Any]) -> Report:
        """Writes the model directory. Returns what its card says: the scores of these weights on
        the validation set."""


def with_defaults(recipe: Recipe, directory: Path) -> Recipe:
    """The recipe of a run in `directory`, with every default of its task filled in."""
    return task_module(recipe.task).create(recipe, directory, ignore).recipe
