"""The sections of a recipe, and the inputs and options of a call, as every task reads them."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from transduct.config import Recipe, record
from transduct.data.tokenizer import TokenizerConfig
from transduct.decoding.engine import DecodingConfig
from transduct.errors import TransductError
from transduct.tasks.base import Notify
from transduct.tasks.model import LabelRows, Rename, blank, start_from
from transduct.training.config import TrainingConfig
from transduct.training.machine import fast_precision, pick_device

Decoding = TypeVar("Decoding", bound=DecodingConfig)
Section = TypeVar("Section")
Training = TypeVar("Training", bound=TrainingConfig)
LARGEST = 10**12  # bytes of weights, which no machine holds
OPTIONS = "options"  # of a call, where an error names its place
ANY_SIZE = 1000  # of a vocabulary not made yet, to find what is impossible in a model before anything is written


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


@dataclass(frozen=True)
class PredictConfig:
    """The `decoding` section of a model that answers at once.

    Attributes:
        batch_tokens: the most tokens read together.
    """

    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise ValueError(f"batch_tokens is {self.batch_tokens}, must be at least 1")


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
        config: Any = record(self.family.config, {**self.values, **derived}, "model", hidden=self.derived)
        held = sum(p.numel() * p.element_size() for p in blank(self.family.build, config, "recipe").parameters())
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


def tokenizer_section(section: Mapping[str, Any], dropout: str = "") -> TokenizerConfig:
    """The `tokenizer` section of a recipe whose texts have one side.

    Args:
        dropout: why there is no BPE dropout; nothing if there may be some.

    Raises:
        TransductError: a key is unknown or a value wrong, two vocabularies are asked for, or dropout that is not there.
    """
    config = record(TokenizerConfig, section, "tokenizer")
    if not config.shared:
        raise TransductError("recipe: tokenizer.shared is false, but the texts have one side; set it to true")
    if config.dropout and dropout:
        raise TransductError(f"recipe: tokenizer.dropout is {config.dropout}, but {dropout}; set it to 0")
    return config


def training_section(
    kind: type[Training], section: Mapping[str, Any], scores: Sequence[str], *, one_shape: bool = False
) -> Training:
    """The `training` section of a recipe, with the precision that the device wants where it is `auto`.

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
    if training.precision == "auto":
        precision: Any = fast_precision(pick_device(training.device))
        return replace(training, precision=precision)
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


def with_options(config: Section, options: Mapping[str, Any]) -> Section:
    """A model's decoding section with the options of a call.

    Raises:
        TransductError: an option is unknown or has a wrong value.
    """
    return record(type(config), {**vars(config), **options}, "decoding", OPTIONS) if options else config


def check_inputs(given: Any, what: str = "text") -> None:
    """Refuse one input where a list is expected (a text would be read letter by letter), and inputs that are no texts.

    Raises:
        TransductError: there is one alone, texts can be gone through but once, or one of them is none.
    """
    if isinstance(given, str | bytes | Path) or not isinstance(given, Iterable):
        shown = given[:40] if isinstance(given, str | bytes) else given
        raise TransductError(f"found one {what}, expected a list of {what}s: write [{shown!r}]")
    if what != "text":
        return
    if not isinstance(given, Sized):  # texts are gone through more than once
        raise TransductError(f"found a {type(given).__name__}, expected a list of texts")
    for number, text in enumerate(given, 1):
        if not isinstance(text, str):
            raise TransductError(f"input {number}: found {type(text).__name__}, expected a text")
        if not text.isascii() and text.encode(errors="replace").decode() != text:
            raise TransductError(f"input {number}: holds half of a surrogate pair, which no text does; take it out")


def check_examples(given: Any) -> None:
    """Refuse what is not inputs and their answers, one for each.

    Raises:
        TransductError: it is.
    """
    sides = given if isinstance(given, tuple | list) else []
    if len(sides) != 2 or not all(isinstance(side, Sized) and not isinstance(side, str) for side in sides):
        raise TransductError(f"found {given!r:.60}, expected two lists: inputs and their answers")
    if len(sides[0]) != len(sides[1]):
        raise TransductError(f"found {len(sides[0])} inputs and {len(sides[1])} answers; give as many of each")


def check_nothing_given(given: object, options: Mapping[str, Any]) -> None:
    """Refuse options of a search where what it would find is given.

    Raises:
        TransductError: it is.
    """
    if given is not None and options:
        raise TransductError(f"found an output and options of a search for it ({', '.join(options)}); leave one out")


def for_draws(config: Decoding, options: Mapping[str, Any]) -> Decoding:
    """As `with_options`, for what may be drawn; options of draws are refused where nothing is.

    Raises:
        TransductError: they are there.
    """
    found = with_options(config, options)
    if idle := [name for name in ("top_k", "top_p", "seed") if name in options and not found.temperature]:
        raise TransductError(f"{OPTIONS}: {idle[0]} is of draws, and nothing is drawn; set temperature above 0")
    return found


def asked_for(config: Decoding, options: Mapping[str, Any], count: int = 1) -> Decoding:
    """As `with_options`, for a search.

    Unless the call says how many, the beam is as wide as what it shows, and samples are as many: the likeliest of more
    is no fair draw.
    """
    found = for_draws(config, options)
    if "beam" in options:
        return found
    return with_options(found, {"beam": count if found.temperature > 0.0 else max(found.beam, count)})
