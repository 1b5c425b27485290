"""The sections of a recipe that tasks have in common: read, checked and filled with what was
derived."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from transduct.config import Recipe, load_recipe
from transduct.data.tokenizer import (
    TOKENIZER,
    Side,
    Tokenizer,
    TokenizerConfig,
    tokenizer_files,
)
from transduct.devices import fast_precision, memory_of, pick_device
from transduct.errors import TransductError, require
from transduct.predictors.base import Notify, inside
from transduct.predictors.model_directory import Family, blank
from transduct.predictors.options import NoOptions
from transduct.records import record
from transduct.storage import CONFIG, RECIPE
from transduct.tasks.model import LabelRows, Rename, start_from
from transduct.training.config import TrainingConfig, fastest, sharded

LARGEST = 10**12  # bytes of weights, more than any machine holds
# stands for the size of a vocabulary not made yet, to check a model before anything is written
ANY_SIZE = 1000


@dataclass(frozen=True)
class _Section:
    """The keys of a `model` section that are not part of the model's configuration.

    Attributes:
        family: the kind of model.
        size: a named size of the family, which sets defaults for other keys of this section.
        start_from: a run or a model directory to start from: weights are taken from it where
            names agree, and its tokenizer if it has one. By default, a stage after the first starts
            from the stage before.
    """

    family: str | None = None
    size: str | None = None
    start_from: str | None = None


@dataclass(frozen=True)
class Sections:
    """The record types of a task's sections; `model` has that of its family."""

    data: type
    decoding: type = NoOptions
    tokenizer: type = NoOptions
    training: type[TrainingConfig] = TrainingConfig


class ModelSection:
    """The `model` section of a recipe: a family, a named size and changes to it, a model to start
    from.

    Args:
        families: the task's families by name; the first is the default.
        derived: configuration fields that other sections decide, each with the key that decides it.

    Raises:
        TransductError: the family or the size is unknown, or a derived field is set here.
    """

    def __init__(
        self, section: Mapping[str, Any], families: Mapping[str, Family], derived: Mapping[str, str]
    ) -> None:
        own = {field.name for field in fields(_Section)}
        known = record(
            _Section, {name: value for name, value in section.items() if name in own}, "model"
        )
        self.name = known.family or next(iter(families))
        require(
            self.name in families,
            f"unknown {{key}} '{self.name}'; known are: {', '.join(families)}",
            key="model.family",
        )
        self.family, self.derived = families[self.name], derived
        require(
            known.size is None or known.size in self.family.sizes,
            f"unknown {{key}} '{known.size}'; known are: {', '.join(self.family.sizes)}",
            key="model.size",
        )
        values = {name: value for name, value in section.items() if name not in own}
        for name, key in derived.items():
            require(name not in values, f"{{key}} cannot be set; set {key}", key=f"model.{name}")
        self.values = {**self.family.sizes.get(known.size or "", {}), **values}
        self.start = None if known.start_from is None else inside(known.start_from)
        self.model: Any  # the one last configured, without memory for its weights
        self.weights = 0

    def config(self, **derived: Any) -> Any:
        """The model's configuration, completed with the derived fields.

        Raises:
            TransductError: there is no such model, or it is too large for any machine.
        """
        values = {**self.values, **derived}
        config: Any = record(self.family.config, values, "model", hidden=self.derived)
        self.model = blank(self.family.build, config)
        parameters = [*self.model.parameters()]
        self.weights = sum(p.numel() for p in parameters)
        size = sum(p.numel() * p.element_size() for p in parameters)
        require(
            size <= LARGEST,
            f"{{key}}: its weights would take {size / 1e9:,.0f} GB; make it smaller",
            key="model",
        )
        return config

    def resolved(self, config: Any) -> dict[str, Any]:
        """The section with every default filled in."""
        start = {} if self.start is None else {"start_from": str(self.start.resolve())}
        rest = {name: value for name, value in asdict(config).items() if name not in self.derived}
        return {"family": self.name, **start, **rest}

    def build(
        self,
        config: Any,
        notify: Notify,
        rename: Rename | None = None,
        labels: LabelRows | None = None,
    ) -> Any:
        """Build the model and load the weights of `start_from`, if set; see `start_from` and
        `LabelRows`."""
        model = self.family.build(config)
        if self.start is not None:
            if labels is not None:
                rename = partial(labels.order, model, self.start, notify)
            start_from(model, self.start, notify, rename)
        return model


def with_brought(
    config: Any, given: Mapping[str, Any], start: Path | None, begun: bool = False
) -> Any:
    """A `tokenizer` section that says what the tokenizers of the model to start from are.

    Args:
        given: the section as the recipe has it.
        begun: whether the run has begun, and goes on as it is.

    Raises:
        TransductError: a key is given that those tokenizers contradict: none would be trained.
    """
    names = () if start is None else (TOKENIZER, *tokenizer_files(shared=False))
    paths = [start / name for name in names if start and (start / name).exists()]
    usual = isinstance(config, TokenizerConfig) and bool(paths)
    if start is None or not usual or not (start / CONFIG).exists():  # the last is refused later
        return config
    brought = [Side(each.kind, each.size) for each in map(Tokenizer.load, paths)]
    if config.shared and len(brought) > 1:  # refused where they are taken
        return config
    asked, sample = brought, config.sample
    if (start.parent / RECIPE).exists():
        before = load_recipe(start.parent / RECIPE)
        theirs = record(TokenizerConfig, before.tokenizer, "tokenizer", str(start.parent / RECIPE))
        sample = theirs.sample
        # a small text gives fewer tokens than were asked for
        fits = all(each.size >= own.size for each, own in zip(theirs.sides(), brought))
        asked = list(theirs.sides()) if theirs.shared == (len(brought) == 1) and fits else brought
    whole = config.shared or len(brought) > 1  # an encoder brings the source's alone
    for name, one, other in zip(("source", "target"), brought, asked):
        inner = given.get(name) or {}
        for key in ("kind", "size"):
            place = f"{name}.{key}" if key in inner else key if whole and key in given else ""
            value = getattr(getattr(config, name) or config, key)
            if place and not begun and value not in (getattr(one, key), getattr(other, key)):
                _refuse_void(place, value, getattr(one, key), start)
    if whole and not begun and given.get("sample") not in (None, sample, TokenizerConfig.sample):
        _refuse_void("sample", config.sample, sample, start)
    sides = dict(zip(("source", "target"), map(asdict, asked)))
    own = asdict(asked[0]) if config.shared else sides
    return record(TokenizerConfig, {**asdict(config), "sample": sample, **own}, "tokenizer")


def _refuse_void(key: str, value: Any, own: Any, start: Path) -> None:
    raise TransductError(
        f"{{key}} is {value}, but the tokenizer of model.start_from ({start}) has {own}, which "
        "stays; leave the key out, or train a new model without model.start_from",
        key=f"tokenizer.{key}",
    )


def filled(recipe: Recipe, task: Any, config: Any) -> Recipe:
    """The recipe with every default of a task's sections filled in, its precision and how its steps
    run decided, and `data.root` made absolute.

    Args:
        task: holds its sections as `data`, `tokenizer_config`, `training`, `decoding` and `model`.
        config: the configuration of its model.

    Raises:
        TransductError: `training.best` is no score of validations, or there is nothing to validate
            on; or compiled or captured steps are asked for, which the model cannot have.
    """
    data, best = task.data, task.training.best
    require(
        best is None or best in task.scores,
        f"{{key}} is '{best}', expected a score of validations: {', '.join(task.scores)}",
        key="training.best",
    )
    require(
        best is None or any(map(vars(data).get, ("valid", "held_out", "hold_out"))),
        f"{{key}} is '{best}', but nothing is validated on; give data.valid",
        key="training.best",
    )
    able = {"compile": task.model.model.compiles, "capture": task.model.model.captures_steps}
    for name in able:
        require(
            vars(task.training)[name] is not True or able[name],
            f"{{key}} is not for the family '{task.model.name}'; set it to auto or false",
            key=f"training.{name}",
        )
    device = pick_device(task.training.device)
    if task.training.precision == "auto":
        task.training = replace(task.training, precision=fast_precision(device))
    places = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    task.training, choice = fastest(
        sharded(task.training, task.model.weights, memory_of(device), *places),
        device.type,
        task.model.weights,
        captures=able["capture"],
        compiles=able["compile"],
    )
    if choice:
        task.notify(choice)
    return replace(
        recipe,
        data={**asdict(data), "root": str(Path(data.root).resolve())},
        tokenizer=asdict(task.tokenizer_config),
        model=task.model.resolved(config),
        training=asdict(task.training),
        decoding=asdict(task.decoding),
    )
