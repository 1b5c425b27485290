"""The `Task` protocol, and what can be done with a model of any task: load it, evaluate it, copy it.

model directory   config.json  model.safetensors  card.md   and the files that the task adds
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from transduct.config import Recipe, load_recipe, stages_of
from transduct.errors import TransductError, WrongData
from transduct.training.checkpoint import (
    CHECKPOINTS,
    CONFIG,
    RECIPE,
    STATE,
    files_in,
    read_json,
    require_absent,
    write_directory,
)
from transduct.training.checkpoints import Checkpoints
from transduct.training.config import TrainingConfig
from transduct.training.log import ignore, strict_json
from transduct.training.machine import pick_device
from transduct.training.step import Terms

TASKS = (
    *("image_classification", "image_codes", "language_modeling", "masked_language_modeling", "object_detection"),
    *("speech_recognition", "text_classification", "text_to_image", "translation"),
)
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Report:
    """The result of an evaluation.

    Attributes:
        scores: by name.
        details: signatures, confidence intervals, p-values, samples.
        outputs: the model's answers, not shown with the report.
        lower_is_better: the names of the scores that improve as they fall.
    """

    scores: dict[str, float]
    details: dict[str, Any] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list, repr=False)
    lower_is_better: frozenset[str] = frozenset()

    def as_json(self) -> str:
        """The scores and details as JSON, with null for NaN and infinity, which JSON cannot express."""
        return strict_json({"scores": self.scores, "details": self.details})


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
        """Returns the model in the object that `load` would return, which predicts and evaluates."""

    def evaluate(self, model: Any, data: Any = None) -> Report:
        """Scores the model on `data`, by default the recipe's validation set."""
        data = self._validation if data is None else data
        return Report({}) if data is None else self._in_use(model).evaluate(data)

    def predict(self, model: Any, inputs: Sequence[Any]) -> list[Any]:
        """Returns the model's answer to each input."""
        return self._in_use(model).predict(inputs)

    @abstractmethod
    def save(self, model: Any, directory: Path, log: Mapping[str, Any]) -> Report:
        """Writes the model directory. Returns what its card says: the scores of these weights on the validation set."""


def task_module(name: str, source: str = "recipe") -> Any:
    """The module of the task called `name`; `source` says where the name was found, for the error."""
    if name not in TASKS:
        raise TransductError(f"{source}: unknown task '{name}'; known are: {', '.join(TASKS)}")
    return import_module(f"transduct.tasks.{name}")


def with_defaults(recipe: Recipe, directory: Path) -> Recipe:
    """The recipe of a run in `directory`, with every default of its task filled in."""
    return task_module(recipe.task).create(recipe, directory, ignore).recipe


@contextmanager
def naming_files(files: Sequence[str]) -> Iterator[None]:
    """Puts the names of these files before the message of a `WrongData` error raised inside."""
    try:
        yield
    except WrongData as error:
        raise TransductError(f"{', '.join(files)}: {error}") from error


def load(
    path: str | Path, device: str | torch.device | None = "auto", precision: str = "float32", verb: str = "predict"
) -> Any:
    """Load a run or a model directory: for a translation task, a `Translator`.

    Args:
        device: auto or None (a GPU if there is one), cpu, cuda or cuda:N.
        precision: float32 or bfloat16, in which the model computes.
        verb: a method that the model must have, such as `translate`.

    Raises:
        TransductError: there is no model at `path`, it is damaged or of another version, or it lacks the method.
    """
    directory = model_directory(path)
    config = configuration(directory)
    if precision not in ("float32", "bfloat16"):
        raise TransductError(f"unknown precision '{precision}'; known are: float32, bfloat16")
    place = pick_device("auto" if device is None else str(device))
    model = task_module(config["task"], str(directory)).load(directory, config, place, precision)
    if not hasattr(model, verb):
        raise TransductError(f"{path}: a model of {config['task']} cannot {verb}; see: transduct predict --help")
    return model


def evaluate(
    path: str | Path,
    files: Mapping[str, str | Path | Sequence[str | Path]] | None = None,
    against: str | Path | None = None,
    device: str | torch.device | None = "auto",
    precision: str = "float32",
    **options: Any,
) -> Report:
    """Score a model on the files given, or on the test set of the run it belongs to.

    Args:
        files: the files to read, by the task's names for them: `source` and `reference` for translation, which takes a
            list of references too, each with one line per source.
        against: another model, for a paired significance test.
        options: how outputs are made: fields of the task's decoding record.
    """
    kinds = [task_of(each) for each in (path, against) if each is not None]
    if len({*kinds}) > 1:
        raise TransductError(f"{against}: a model of {kinds[1]}, and {path} is one of {kinds[0]}; compare equals")
    model, other = load(path, device, precision), None if against is None else load(against, device, precision)
    given = _paths(files)
    data = _test_set(path, given)
    names = [name for names in given.values() for name in (names if isinstance(names, list) else [names])]
    with naming_files(names or ["data.test"]):
        return model.evaluate(data, other, **options)


def scores(
    path: str | Path,
    files: Mapping[str, str | Path],
    device: str | torch.device | None = "auto",
    precision: str = "float32",
) -> Iterator[float]:
    """Forced decoding: yields the log-probability of the first reference of each source."""
    model = load(path, device, precision, verb="score")
    sources, references = _test_set(path, _paths(files))
    try:
        yield from model.scores(sources, [texts[0] for texts in references])
    except TransductError as error:
        raise TransductError(f"{' and '.join(map(str, files.values())) or 'data.test'}: {error}") from error


def _paths(files: Mapping[str, Any] | None) -> dict[str, str | list[str]]:
    """The files to read by name, one or a list of several each, with ~ expanded.

    Raises:
        TransductError: they are not of this form.
    """
    try:
        given = {name: [*names] if isinstance(names, tuple) else names for name, names in (files or {}).items()}
        if None not in given.values():
            return {name: from_home(names) for name, names in given.items()}
    except (AttributeError, TypeError):
        pass
    raise TransductError(f"files: found {files!r:.60}, expected paths by name, such as {{'source': 'test.de'}}")


def _test_set(path: str | Path, files: Mapping[str, str | list[str]]) -> Any:
    """The examples in `files`, read as the model's task reads them; without files, the test set of the model's run."""
    module = _module_of(path)
    if not files:
        return module.test_set({}, _recipe_of(path))
    for name, given in files.items():
        if isinstance(given, list) and name not in getattr(module, "SEVERAL", ()):
            raise TransductError(f"found {len(given)} files for {name}; a model of {task_of(path)} takes one")
    config = configuration(model_directory(path))
    changes = {"replace": config["replace"]} if "replace" in config else {}  # of translation, to references too
    return module.test_set(files, None, **changes)


def from_home(names: Any) -> Any:
    """A file name, a list of them, or None, with ~ expanded to the home folder."""
    if isinstance(names, list):
        return [os.path.expanduser(name) for name in names]
    return names and os.path.expanduser(names)


def readable_lines(path: str | Path, given: BinaryIO | Path, broken: list[int]) -> Iterator[str]:
    """Yields the inputs in a stream, or in a file that may be compressed, as the model's task reads them; appends the
    numbers of damaged ones to `broken`."""
    return _module_of(path).readable_lines(given, broken)


def _module_of(path: str | Path) -> Any:
    return task_module(task_of(path), str(path))


def task_of(path: str | Path) -> str:
    """The task of the model in a run or a model directory."""
    return str(configuration(model_directory(path))["task"])


def configuration(directory: Path) -> dict[str, Any]:
    """The content of a model directory's `config.json`, which names a task at least."""
    config = read_json(directory / CONFIG, "a model's configuration")
    if not isinstance(config.get("task"), str):
        raise TransductError(f"{directory / CONFIG}: no 'task' in it; give a directory that transduct wrote")
    return config


def model_directory(path: str | Path) -> Path:
    """The model directory itself, or the one inside a run."""
    if not isinstance(path, str | os.PathLike):
        raise TransductError(f"found {path!r:.60}; give the path of a run or a model directory")
    directory = Path(from_home(path))
    try:
        if (directory / "model" / CONFIG).exists():
            return directory / "model"
        if (directory / RECIPE).exists():
            finish, steps = f"transduct train --out {directory} --resume", Checkpoints(directory / CHECKPOINTS).steps()
            now = f", or as it is now with: {finish} training.steps={steps[-1]}" if any(steps) else ""
            raise TransductError(f"{directory}: this run has no model yet; finish it with: {finish}{now}")
        if directory.parent.name == CHECKPOINTS and (directory / STATE).exists():
            found = model_directory(directory.parents[1])  # or how to make one
            raise TransductError(f"{directory}: a checkpoint, whose run has a model; give {found}")
        if not (directory / CONFIG).exists():
            raise TransductError(f"{directory}: no {CONFIG} here; {_remedy(directory)}")
    except OSError as error:
        problem = f"cannot be used ({error.strerror}); give another path, or the right to it"
        raise TransductError(f"{path}: {problem}") from error
    return directory


def _remedy(directory: Path) -> str:
    """What to do where there is no model."""
    if directory.is_dir() and (cached := sorted(directory.glob(f"snapshots/*/{CONFIG}"))):
        return f"a cache of Hugging Face's hub: give {cached[-1].parent}"
    if directory.is_dir() and any(directory.glob("*.npz")) and any(directory.glob("*.yml")):
        return "Marian's own format cannot be read: take the model in Hugging Face's, from its hub, and convert that"
    remedy = "give a run or a model directory"
    if len(directory.parts) == 2 and not directory.parent.exists():
        get = f"hf download {directory} --local-dir {directory.name}"
        remedy += f", or download a Marian model of Hugging Face's hub: {get}, and make it one of ours:"
        remedy += f" transduct convert {directory.name} OUT"
    return remedy


def copy_model(directory: Path, out: Path, more: Callable[[], Mapping[str, bytes]] = dict) -> None:
    """Copy a model directory and add the files that `more` makes, which is called after all checks.

    Raises:
        TransductError: `out` exists or cannot be written, or a member of an ensemble lies elsewhere.
    """
    require_absent(out)
    members = members_in(directory, configuration(directory))
    write_directory(out, {**files_in(directory, members), **more()})


def members_in(directory: Path, config: Mapping[str, Any]) -> list[str]:
    """The names of an ensemble's member folders, which lie in its own; empty for a single model.

    Raises:
        TransductError: `config` does not hold a list of plain names.
    """
    if "members" not in config:
        return []
    names = config["members"]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n.isalnum() for n in names):
        raise TransductError(f"{directory / CONFIG}: members is {names!r:.60}, expected names of folders there")
    return names


def _recipe_of(model: str | Path) -> Recipe | None:
    """The recipe of the run that a run or model directory belongs to (its last stage), or None without that run."""
    directory = model_directory(model).resolve()
    recipe = directory.parent / RECIPE
    return stages_of(load_recipe(recipe))[-1] if directory.name == "model" and recipe.exists() else None
