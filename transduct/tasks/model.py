"""What tasks share: the `model` section of a recipe, a model to start from, the model directory and its card."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from transduct import __version__
from transduct.blocks.fused import fuse
from transduct.blocks.packed import pack_layers
from transduct.blocks.quantised import pack_quantised
from transduct.blocks.transformer import settle
from transduct.config import Recipe, record
from transduct.data.images import check_ending, save_picture
from transduct.decoding.engine import DecodingConfig
from transduct.errors import NotFinite, TransductError
from transduct.functional.segments import Segments
from transduct.tasks.base import Notify
from transduct.training import checkpoint as files
from transduct.training.config import TrainingConfig
from transduct.training.machine import forget_shapes, keep_freed_memory

Rename = Callable[[dict[str, Tensor]], None]
Decoding = TypeVar("Decoding", bound=DecodingConfig)
Training = TypeVar("Training", bound=TrainingConfig)
Batch = TypeVar("Batch")
LARGEST = 10**12  # bytes of weights, which no machine holds


@dataclass(frozen=True)
class Family:
    """A family of models: its configuration, its named sizes, and what builds it."""

    config: type
    sizes: Mapping[str, Mapping[str, Any]]
    build: Callable[[Any], Any]


@dataclass(frozen=True)
class _Section:
    """The part of a `model` section that is no part of the model.

    Attributes:
        family: the kind of model.
        size: a named size of the family; it gives values to some keys, over which the recipe's own are laid.
        start_from: a model directory, `RUN/model`, whose weights are taken where names agree, and its tokenizer if it
            has one; a stage after the first has that of the stage before unless the recipe or the stage names one.
    """

    family: str | None = None
    size: str | None = None
    start_from: str | None = None


@dataclass(frozen=True)
class NoOptions:
    """A section of a recipe, or the options of a call, where there are none."""


class ModelSection:
    """The `model` section of a recipe: a family, a named size and what differs from it, a model to start from.

    Args:
        families: those the task knows, by name; the first is taken where none is named.
        derived: what other sections say of the model, and of each the key that says it.

    Raises:
        TransductError: the family or the size is unknown, or what is derived is set here.
    """

    def __init__(self, section: Mapping[str, Any], families: Mapping[str, Family], derived: Mapping[str, str]) -> None:
        own = {field.name for field in fields(_Section)}
        known = record(_Section, {name: value for name, value in section.items() if name in own}, "model")
        self.name = known.family or next(iter(families))
        if self.name not in families:
            raise TransductError(f"recipe: unknown model.family '{self.name}'; known are: {', '.join(families)}")
        self.family, self.derived = families[self.name], derived
        if known.size is not None and known.size not in self.family.sizes:
            raise TransductError(
                f"recipe: unknown model.size '{known.size}'; known are: {', '.join(self.family.sizes)}"
            )
        values = {name: value for name, value in section.items() if name not in own}
        if given := [name for name in derived if name in values]:
            raise TransductError(f"recipe: model.{given[0]} cannot be set; set {derived[given[0]]}")
        self.values = {**self.family.sizes.get(known.size or "", {}), **values}
        self.start = None if known.start_from is None else Path(known.start_from)

    def config(self, **derived: Any) -> Any:
        """The model's configuration with what other sections say; raises TransductError if it is impossible."""
        config: Any = record(self.family.config, {**self.values, **derived}, "model")
        try:
            held = sum(p.numel() * p.element_size() for p in blank(self.family.build, config).parameters())
        except ValueError as error:  # widths that do not fit together
            raise TransductError(f"recipe: model: {error}") from error
        if held > LARGEST:
            raise TransductError(f"recipe: model: its weights would take {held / 1e9:,.0f} GB; make it smaller")
        return config

    def resolved(self, config: Any) -> dict[str, Any]:
        """The section with every default filled in."""
        start = {} if self.start is None else {"start_from": str(self.start.resolve())}
        rest = {name: value for name, value in asdict(config).items() if name not in self.derived}
        return {"family": self.name, **start, **rest}

    def build(
        self, config: Any, notify: Notify, rename: Rename | None = None, labels: "LabelRows | None" = None
    ) -> Any:
        """The model, begun from another's weights if the section says so; see `start_from` and `LabelRows`."""
        model = self.family.build(config)
        if self.start is not None:
            if labels is not None:
                rename = partial(labels.order, model, self.start, notify)
            start_from(model, self.start, notify, rename)
        return model


def training_section(
    kind: type[Training], section: Mapping[str, Any], scores: Sequence[str], one_shape: bool = False
) -> Training:
    """The `training` section of a recipe.

    Args:
        scores: what validations may give, of which `best` is one.
        one_shape: whether batches can all have one shape, as compiled and captured steps want them.

    Raises:
        TransductError: a key is unknown or a value wrong, validations give no such score, or batches have many shapes.
    """
    training = record(kind, section, "training")
    if training.best is not None and training.best not in scores:
        raise TransductError(
            f"recipe: training.best is '{training.best}', expected a score of validations: {', '.join(scores)}"
        )
    if (training.compile or training.capture) and not one_shape:
        raise TransductError(
            "recipe: training.compile and training.capture are for translation, whose batches can have one shape; "
            "set both to false"
        )
    return training


def data_with_test(kind: type, recipe: Recipe | None, give: str = "--source and --reference") -> Any:
    """The recipe's `data` section, which names a test set; `give` says what to give where it does not.

    Raises:
        TransductError: it names none, or there is no recipe.
    """
    data: Any = None if recipe is None else record(kind, recipe.data, "data")
    if data is None or data.test is None:
        raise TransductError(f"the model's recipe names no test set; give {give}")
    return data


def filled(recipe: Recipe, data: Any, model: Mapping[str, Any], **records: Any) -> Recipe:
    """The recipe with every default of its sections, which can be read again from anywhere.

    Raises:
        TransductError: a score is to choose the checkpoint, and there is nothing to validate on.
    """
    best = records["training"].best
    if best is not None and not any(getattr(data, name, None) for name in ("valid", "held_out", "hold_out")):
        raise TransductError(f"recipe: training.best is '{best}', but nothing is validated on; give data.valid")
    rest: dict[str, Any] = {name: asdict(each) for name, each in records.items()}
    return replace(recipe, data={**asdict(data), "root": str(Path(data.root).resolve())}, model=dict(model), **rest)


def only_train(split: str, task_has: str) -> None:
    """Refuse any other split; `task_has` is "translation has"."""
    if split != "train":
        raise TransductError(f"unknown split '{split}'; {task_has} batches of 'train'")


class Movable:
    """A batch, which is a record, that can be put on a device."""

    def to(self, device: torch.device) -> Self:
        """The batch on a device."""
        return on(self, device)


def on(batch: Batch, device: torch.device) -> Batch:
    """A batch, which is a record, on a device: itself if its first tensor is there."""
    held = [(name, value) for name, value in vars(batch).items() if isinstance(value, Tensor | Segments)]
    if next(value for _, value in held if isinstance(value, Tensor)).device == device:
        return batch
    moved = {
        name: value.to(device) if isinstance(value, Segments) else value.to(device, non_blocking=True)
        for name, value in held
    }
    return replace(batch, **moved)  # type: ignore[type-var]


def three_of(count: int) -> range:
    """The numbers of so many examples that are shown as samples: three, as far apart as they can be."""
    return range(0, count, max(1, count // 3))[:3]


@dataclass(frozen=True)
class LabelRows:
    """The weights of a model that have a row for each label, and after these perhaps more, as for no object.

    The order of labels is that of the training data, so the rows of a model to start from are taken by label.

    Attributes:
        labels: in the order of this model's rows.
        held: where `config.json` names those of another model, such as ("pictures", "labels").
        weights: patterns of the names of such weights.
    """

    labels: Sequence[str]
    held: Sequence[str]
    weights: Sequence[str]

    def order(self, model: nn.Module, directory: Path, notify: Notify, held: dict[str, Tensor]) -> None:
        """Give the weights `held` of another model the rows of this one; rows of labels that it lacks are `model`'s.

        Raises:
            TransductError: the other model's `config.json` cannot be read.
        """
        rows = {
            name: weight
            for name, weight in files.weights_of(model).items()
            if name in held and any(fnmatchcase(name, pattern) for pattern in self.weights)
        }
        if not rows:
            return
        theirs = self._labels_in(directory)
        if theirs == list(self.labels):
            return
        places = {label: place for place, label in enumerate(theirs)}
        known, taken = [label for label in self.labels if label in places], False
        for name, weight in rows.items():
            rest = len(weight) - len(self.labels)
            if len(held[name]) != len(theirs) + rest:  # a head that answers otherwise
                held[name] = weight
            elif held[name].shape[1:] == weight.shape[1:]:  # another width is refused with the other weights
                mixed = weight.clone()
                to = [number for number, label in enumerate(self.labels) if label in places]
                mixed[to] = held[name][[places[label] for label in known]]
                mixed[len(self.labels) :] = held[name][len(theirs) :]
                held[name], taken = mixed, True
        known = known if taken else []
        new = [label for label in self.labels if label not in known]
        said = f"; new: {', '.join(new)}" if new else ""
        notify(f"{directory}: rows taken by label, {len(known)} of {len(self.labels)}{said}")

    def _labels_in(self, directory: Path) -> list[str]:
        found: Any = files.read_json(directory / files.CONFIG, "a model's configuration")
        for key in self.held:
            found = found.get(key) if isinstance(found, dict) else None
        return list(map(str, found)) if isinstance(found, list) else []


def start_from(model: nn.Module, directory: Path, notify: Notify, rename: Rename | None = None) -> None:
    """Give `model` the weights of the model in `directory` wherever the names agree; the rest stays as it is.

    Args:
        rename: changes the other model's weights, by name, before they are compared.

    Raises:
        TransductError: no name agrees, a weight has another shape, or this model would lose the output's bias.
    """
    held = files.read_tensors(directory / files.WEIGHTS)
    if rename is not None:
        rename(held)
    own = files.weights_of(model)
    taken = [name for name in own if name in held]
    if "output_bias" in held and getattr(model, "output_bias", held) is None:
        raise TransductError(f"{directory}: its output has a bias, this model's has none; set model.output_bias=true")
    if not taken:
        raise TransductError(f"{directory}: shares no weight with this model; start from a model of the same family")
    with torch.no_grad():
        for name in taken:
            if own[name].shape != held[name].shape:
                raise TransductError(
                    f"{directory}: weight '{name}' is {tuple(held[name].shape)}, this model's is "
                    f"{tuple(own[name].shape)}; give this model the sizes of that one"
                )
            own[name].copy_(held[name])
    notify(f"started from {directory}: {len(taken)} of {len(own)} weights taken, the rest is new")


def asked_for(config: Decoding, options: Mapping[str, Any], where: str, count: int = 1) -> Decoding:
    """A model's decoding section with the options of a call.

    Unless the call says how many, the beam is as wide as what it shows, and samples are as many: the likeliest of more
    is no fair draw.

    Raises:
        TransductError: an option is unknown or has a wrong value.
    """
    found = record(type(config), {**vars(config), **options}, "decoding", where)
    if "beam" in options:
        return found
    return replace(found, beam=count if found.temperature > 0.0 else max(found.beam, count))


def require_finite(*answers: Tensor) -> None:
    """Refuse what a model answers that is not a number.

    Raises:
        NotFinite: something in it is NaN or infinite.
    """
    if not all(bool(each.isfinite().all()) for each in answers):
        raise NotFinite


def write_model(
    directory: Path, task: str, model: Any, settings: Mapping[str, Any], beside: Sequence[Path], card: str
) -> None:
    """Write a model directory.

    Args:
        settings: joins the task's name and the model's configuration in `config.json`.
        beside: files that are copied into it, such as tokenizers.
    """
    config = {
        "format": files.FORMAT,
        "task": task,
        "transduct": __version__,
        "model": asdict(model.config),
        **settings,
    }
    content = {
        files.CONFIG: json.dumps(config, indent=1, ensure_ascii=False).encode(),
        files.WEIGHTS: files.pack(files.weights_of(model)),
        "card.md": card.encode(),
    }
    files.write_directory(directory, content | {path.name: path.read_bytes() for path in beside})


def blank(build: Callable[[Any], nn.Module], config: Any) -> Any:
    """A model that holds no numbers yet, which takes neither time nor memory; `read_weights` fills it."""
    with torch.device("meta"):
        return build(config)


def read_weights(model: nn.Module, directory: Path, device: torch.device, precision: str) -> None:
    """Fill a blank model with the weights of a model directory and put it on a device, ready to be used."""
    path = directory / files.WEIGHTS
    files.fill(model, files.read_tensors(path), path)
    if device.type != "cpu":
        settle(model)
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, which here hardly come twice
    model.to(device, torch.bfloat16 if precision == "bfloat16" else torch.float32).eval()
    if device.type == "cpu":
        keep_freed_memory()
        forget_shapes()
        pack_layers(model)
        pack_quantised(model)
        fuse(model)


def card(
    title: str,
    made_of: str,
    training: TrainingConfig,
    scores: Mapping[str, float],
    log: Mapping[str, Any],
    how: str = "",
) -> str:
    """What a model was trained on and how well it does, for whoever is handed its directory.

    Args:
        made_of: "1,000 pairs from a.de, a.en (left out: none)".
        how: how the scores were measured.
    """
    rows = "\n".join(f"| {name} | {value:.4g} |" for name, value in scores.items())
    tokens = training.batch_tokens * training.accumulate * log.get("ranks", 1)
    table = f"Scores of the final weights on the validation set{how}:\n\n| score | value |\n| --- | --- |\n{rows}"
    return f"""# {title}

Trained with transduct {__version__} on {made_of},
{log["step"]:,} steps of at most {tokens:,} tokens, {log["seconds"]:.0f} s, seed {training.seed}, {training.precision}.

{table if scores else "It was not measured: its recipe has no validation set."}
"""


def files_said(names: Sequence[str], dropped: Mapping[str, int]) -> str:
    """ "from a.de, a.en (left out: 3 empty)"."""
    left_out = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items() if count)
    return f"from {', '.join(names) or 'a generated corpus'} (left out: {left_out or 'none'})"


def check_drawable(model: Any, name: str, path: Path | None, attention: Path | None = None) -> None:
    """Refuse a place for pictures that does not fit a model, or of no known format, before it has answered.

    Raises:
        TransductError: it answers in text and there is a place, it answers in pictures and there is none, or its name
            ends in no format of pictures; or there is a place for its attention, of which it has none.
    """
    if attention is not None and not hasattr(model, "attention"):
        raise TransductError(f"{name}: this model has no attention to show; leave --attention away")
    if path is None:
        if getattr(model, "paints", False):
            raise TransductError(
                f"{name}: this model answers with pictures; say where to draw them with --out FILE.png"
            )
        return
    if not hasattr(model, "picture"):
        raise TransductError(f"{name}: this model answers in text, which has no picture; leave --out away")
    check_ending(path)


def read_once(model: Any, given: str) -> Any:
    """What a model is given: a text, with U+FFFD for bytes that are not UTF-8, or a file's name; for a model of
    pictures the content of a pipe, since drawing on it reads it once more."""
    if getattr(model, "reads", "text") == "text":
        return given.encode(errors="surrogateescape").decode(errors="replace")
    try:
        piped = getattr(model, "reads", "text") == "picture" and Path(given).is_fifo()
        return Path(given).read_bytes() if piped else given
    except OSError:  # which is said once it is to be answered
        return given


def draw(model: Any, given: Any, output: Any, path: Path) -> None:
    """Write the picture that shows a model's answer to what it was given: boxes on a photograph, a painted caption.

    Raises:
        TransductError: the file cannot be written.
    """
    save_picture(model.picture(given, output), path)


@dataclass(frozen=True)
class Panel:
    """One picture of attention.

    Attributes:
        weights: (rows, columns), a labelled matrix, or what is laid over `picture`.
        rows, columns: labels; none where the weights lie over a picture.
        picture: (height, width, 3) in 0 to 255; the weights are stretched to its size.
    """

    title: str
    weights: Tensor
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    picture: np.ndarray | None = None
