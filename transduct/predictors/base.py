"""Who answers: what every model in use can do, how it is loaded, and the table of tasks."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from transduct.devices import pick_device
from transduct.errors import TransductError, WrongData
from transduct.storage import (
    CHECKPOINTS,
    CONFIG,
    RECIPE,
    STATE,
    files_in,
    read_json,
    require_absent,
    strict_json,
    write_directory,
)
from transduct.training.checkpoints import Checkpoints

TASKS = (
    *(
        "image_classification",
        "image_codes",
        "language_modeling",
        "masked_language_modeling",
        "object_detection",
    ),
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
        """The scores and details as JSON, with null for NaN and infinity, which JSON cannot
        express."""
        return strict_json({"scores": self.scores, "details": self.details})


def task_module(name: str, source: str = "recipe") -> Any:
    """The module of the task called `name`; `source` says where the name was found, for the
    error."""
    if name not in TASKS:
        raise TransductError(f"{source}: unknown task '{name}'; known are: {', '.join(TASKS)}")
    return import_module(f"transduct.tasks.{name}")


@contextmanager
def naming_files(files: Sequence[str]) -> Iterator[None]:
    """Puts the names of these files before the message of a `WrongData` error raised inside."""
    try:
        yield
    except WrongData as error:
        raise TransductError(f"{', '.join(files)}: {error}") from error


def load(
    path: str | Path,
    device: str | torch.device | None = "auto",
    precision: str = "float32",
    verb: str = "predict",
) -> Any:
    """Load a run or a model directory: for a translation task, a `Translator`.

    Args:
        device: auto or None (a GPU if there is one), cpu, cuda or cuda:N.
        precision: float32 or bfloat16, in which the model computes.
        verb: a method that the model must have, such as `translate`.

    Raises:
        TransductError: there is no model at `path`, it is damaged or of another version, or it
            lacks the method.
    """
    directory = model_directory(path)
    config = configuration(directory)
    if precision not in ("float32", "bfloat16"):
        raise TransductError(f"unknown precision '{precision}'; known are: float32, bfloat16")
    place = pick_device("auto" if device is None else str(device))
    model = task_module(config["task"], str(directory)).load(directory, config, place, precision)
    if not hasattr(model, verb):
        raise TransductError(
            f"{path}: a model of {config['task']} cannot {verb}; see: transduct predict --help"
        )
    return model


def from_home(names: Any) -> Any:
    """A file name, a list of them, or None, with ~ expanded to the home folder."""
    if isinstance(names, list):
        return [os.path.expanduser(name) for name in names]
    return names and os.path.expanduser(names)


def task_of(path: str | Path) -> str:
    """The task of the model in a run or a model directory."""
    return str(configuration(model_directory(path))["task"])


def configuration(directory: Path) -> dict[str, Any]:
    """The content of a model directory's `config.json`, which names a task at least."""
    config = read_json(directory / CONFIG, "a model's configuration")
    if not isinstance(config.get("task"), str):
        raise TransductError(
            f"{directory / CONFIG}: no 'task' in it; give a directory that transduct wrote"
        )
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
            finish, steps = (
                f"transduct train --out {directory} --resume",
                Checkpoints(directory / CHECKPOINTS).steps(),
            )
            now = (
                f", or as it is now with: {finish} training.steps={steps[-1]}" if any(steps) else ""
            )
            raise TransductError(
                f"{directory}: this run has no model yet; finish it with: {finish}{now}"
            )
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
        return (
            "Marian's own format cannot be read: take the model in Hugging Face's, from its "
            "hub, and convert that"
        )
    remedy = "give a run or a model directory"
    if len(directory.parts) == 2 and not directory.parent.exists():
        get = f"hf download {directory} --local-dir {directory.name}"
        remedy += (
            f", or download a Marian model of Hugging Face's hub: {get}, and make it one of ours:"
        )
        remedy += f" transduct convert {directory.name} OUT"
    return remedy


def copy_model(directory: Path, out: Path, more: Callable[[], Mapping[str, bytes]] = dict) -> None:
    """Copy a model directory and add the files that `more` makes, which is called after all checks.

    Raises:
        TransductError: `out` exists or cannot be written, or a member of an ensemble lies
            elsewhere.
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
    if (
        not isinstance(names, list)
        or not names
        or not all(isinstance(n, str) and n.isalnum() for n in names)
    ):
        raise TransductError(
            f"{directory / CONFIG}: members is {names!r:.60}, expected names of folders there"
        )
    return names
