"""Who trains: what a task gives the trainer, and the class of the task with a name."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from transduct.config import Recipe
from transduct.predictors.base import Notify, Predictor, Report, imported, place_of
from transduct.training.config import TrainingConfig
from transduct.training.log import ignore
from transduct.training.step import Terms


class Task(ABC):
    """Connects data, model, loss and scores; the trainer takes these methods as plain callables.

    It is made of a recipe, the run's directory and a function that is called with each line the
    run says. A recipe that cannot be is refused then, before anything is written.
    """

    # Whether several models can answer as one; if so, the three functions after `save` say how.
    ensembles: ClassVar[bool] = False
    training: TrainingConfig
    data: Any  # the recipe's `data` section, with at least `train`, `valid` and `root`
    recipe: Recipe  # with every default filled in
    _validation: Any  # read by `prepare`; None if there is nothing to validate on

    @abstractmethod
    def __init__(self, recipe: Recipe, directory: Path, notify: Notify) -> None: ...

    def check_data(self) -> None:  # noqa: B027 (a task may have nothing to check)
        """Finds mistakes in the data before another stage is trained, which may take hours."""

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
    def _in_use(self, model: Any) -> Predictor:
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

    @staticmethod
    def file_recipe(
        files: Mapping[str, Any], notify: Notify, asked: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns a recipe for training files without one; `asked` holds the sections set by the
        call."""
        raise NotImplementedError

    @staticmethod
    def check_alike(stages: Mapping[Path, Recipe]) -> None:
        """Checks that the models of some stages, by folder, can answer as one."""
        raise NotImplementedError

    @staticmethod
    def take_vocabularies(first: Path, run: Path) -> None:
        """Copies to `run` what it must share with the ensemble's first run."""
        raise NotImplementedError

    @staticmethod
    def combine(directories: Sequence[Path], out: Path) -> None:
        """Writes the models in some directories as one model directory."""
        raise NotImplementedError


def task_class(name: str) -> type[Task]:
    """Who trains a task.

    Raises:
        TransductError: `TASKS` does not hold it.
    """
    return imported(place_of(name)[1])


def with_defaults(recipe: Recipe, directory: Path) -> Recipe:
    """The recipe of a run in `directory`, with every default of its task filled in."""
    return task_class(recipe.task)(recipe, directory, ignore).recipe
