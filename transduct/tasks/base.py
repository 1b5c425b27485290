"""What every task shares: its sections are read, its batches planned and its model directory
written in one way; a task says what is its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

from transduct.config import Recipe
from transduct.data.batching import Indices, load, plan, windows
from transduct.data.corpus import hash_of
from transduct.data.filters import leak_report
from transduct.data.tokenizer import TokenizerConfig, tokenizer_files
from transduct.errors import require
from transduct.predictors.base import Notify, Predictor, Report, imported, place_of
from transduct.predictors.model_directory import Family
from transduct.predictors.options import NoOptions
from transduct.records import record
from transduct.storage import WEIGHTS, has_begun, read_tensors
from transduct.tasks.model import LATER, LabelRows, card, check_shapes, files_summary, write_model
from transduct.tasks.sections import ANY_SIZE, ModelSection, Sections, filled, with_brought
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Terms
from transduct.training.log import ignore
from transduct.training.optim import freeze

Batch = TypeVar("Batch")
# The work of a token in a validation by that of a trained one.
SCORED = 1 / 3  # a forward pass alone
DECODED = 1.6  # generated; for each hypothesis, and once for the input; untrained models write long
FEWEST_VALIDATED = 20  # examples of a validation during training
MEASURED = 100_000  # examples whose mean length is that of all


@dataclass(frozen=True)
class Epoch(Generic[Batch]):
    """The examples of an epoch; see `data.batching.plan`.

    Attributes:
        lengths: the tokens of each example.
        make: makes a batch of the examples with given numbers. A pure function, which is sent to
            the processes that prepare batches.
        weights: runs of examples that do not come exactly once, as in `Corpus.weights`.
        growth: the factor by which an example will be longer when it is read.
        added: tokens of each example that `lengths` leaves out.
    """

    lengths: ArrayLike
    make: Callable[[Indices], Batch]
    weights: Sequence[tuple[int, int, float]] = ()
    growth: Sequence[float] = (1.0,)
    added: int = 0


class Task(ABC):
    """Connects data, model, loss and scores; the trainer takes these methods as callables.

    It is made of a recipe, the run's directory and a function that is called with each line the
    run says. A recipe that cannot be is refused then, before anything is written.

    Attributes:
        name: as recipes have it.
        title: of the model card.
        unit: what an example is, in the plural.
        sections: the record types of the recipe's sections.
        families: the models by name; the first is the default.
        derived: model fields that other sections decide, each with the key that decides it.
        scores: the names of those that validations have, for `training.best`.
        validated_in_part: whether validations during training may score some of the examples. A
            text whose lines belong together, or pictures that are read as a stream, are scored
            whole.
        hypotheses: how many texts a validation generates for each example; 0 if it generates none.
        search: options of the validations during training.
        reads_train: whether the files of `data.train` are read.
        prepares: whether `transduct prepare` can make its corpus.
        label_rows: the weights with a row for each label, if any.
        ensembles: whether several models can answer as one. If so, three functions say how:
            `check_alike` checks the recipes of some stages by folder, `take_vocabularies` copies
            what a run must share with the first one, and `combine` writes the models in some
            directories as one.
        data: the recipe's `data` section, with at least `train`, `valid`, `root` and `workers`.
        recipe: with every default filled in.
        vocabulary: the tokens of its tokenizer, and `labels` those of its training data. Both are
            placeholders until `prepare` knows them.
    """

    name: ClassVar[str]
    title: str
    unit: str = "examples"
    sections: ClassVar[Sections]
    families: ClassVar[Mapping[str, Family]]
    derived: ClassVar[Mapping[str, str]] = {}
    label_rows: ClassVar[LabelRows | None] = None
    ensembles: ClassVar[bool] = False
    check_alike: Callable[[Mapping[Path, Recipe]], None]
    take_vocabularies: Callable[[Path, Path], None]
    combine: Callable[[Sequence[Path], Path], None]
    prepares: ClassVar[bool] = False
    validated_in_part: ClassVar[bool] = True
    data: Any
    decoding: Any
    tokenizer_config: Any
    training: TrainingConfig
    recipe: Recipe
    corpus: Any = ()  # a `Corpus`, if the examples stand in one
    scores: Sequence[str] = ()
    hypotheses: int = 0
    search: Mapping[str, Any] = {}
    reads_train: bool = True
    vocabulary: int = ANY_SIZE
    labels: Sequence[str] = ("", "")

    def __init__(self, recipe: Recipe, directory: Path, notify: Notify) -> None:
        self.directory, self.notify = directory, notify
        self.data = record(self.sections.data, recipe.data, "data")
        self.tokenizer_config = record(self.sections.tokenizer, recipe.tokenizer, "tokenizer")
        self.decoding = record(self.sections.decoding, recipe.decoding, "decoding")
        self.model = ModelSection(self.model_section(recipe), self.families, self.derived)
        self.training = record(self.sections.training, recipe.training, "training")
        config = self.model_config()  # an impossible model fails here
        freeze(self.model.model, self.training.freeze)  # or a part to freeze that there is not
        self.check()
        self.tokenizer_config = with_brought(
            self.tokenizer_config, recipe.tokenizer, self.model.start, has_begun(directory)
        )
        self.recipe = filled(recipe, self, config)
        self._validation: Any = None  # read by `prepare`, if there is something to validate on

    # What a task is.

    @abstractmethod
    def prepare(self) -> None:
        """Make what training reads (tokenizers, corpora), unless it has been made before."""

    @abstractmethod
    def epoch(self, number: int) -> Epoch[Any]:
        """The examples of an epoch, and how batches are made of them."""

    @abstractmethod
    def loss(self, model: Any, batch: Any) -> Terms:
        """Returns the terms of the loss: {name: (sum, count, weight)}."""

    @abstractmethod
    def predictor(self, model: Any) -> Predictor:
        """Returns the model in the object that `load` would return."""

    # What it may add.

    def check(self) -> None:  # noqa: B027
        """Refuse sections that do not go together."""

    def check_data(self) -> None:  # noqa: B027
        """Finds mistakes in the data before another stage is trained, which may take hours."""

    def model_section(self, recipe: Recipe) -> Mapping[str, Any]:
        """The recipe's `model` section, with defaults that follow from other sections."""
        return recipe.model

    def sizes(self) -> Mapping[str, Any]:
        """The model fields that `derived` names: what their keys say."""
        known = {"tokenizer.size": self.vocabulary, "data.train": len(self.labels)}
        return {
            name: known[key] if key in known else attrgetter(key)(self)
            for name, key in self.derived.items()
        }

    def rename(self, weights: dict[str, Any]) -> None:  # noqa: B027
        """Renames the weights of a model to start from to those of this one, in place."""

    def samples(self, data: Any, outputs: Sequence[Any]) -> list[tuple[str, ...]]:  # noqa: ARG002
        """A few examples and their outputs, to be shown with a validation."""
        return []

    def report_leaks(self, what: str, rows: Iterable[Sequence[Any]], *columns: int) -> None:
        """Before the first step, warn of examples to evaluate on that are trained on.

        Args:
            rows: what the corpus would hold of each in these columns.
        """
        found = [*map(hash_of, rows)]
        known = set() if has_begun(self.directory) else self.corpus.hashes(*columns)
        if report := leak_report(sum(each in known for each in found), len(found), what):
            self.notify(report)

    def examples(self) -> int:
        """How many examples there are to train on."""
        return len(self.corpus)

    def made_of(self) -> str:
        """What the model is trained on, for its card."""
        return f"{self.examples():,} {self.unit} {files_summary(self.data, self.corpus.dropped)}"

    def measured(self, report: Report) -> str:  # noqa: ARG002
        """How the scores on the card were measured."""
        return ""

    def settings(self) -> dict[str, Any]:
        """What `config.json` holds beside the task and the model."""
        return {} if self.decoding == NoOptions() else {"decoding": asdict(self.decoding)}

    def files(self, model: Any) -> list[Path]:  # noqa: ARG002
        """The files to copy into the model directory."""
        config = self.tokenizer_config
        names = tokenizer_files(config.shared) if isinstance(config, TokenizerConfig) else ()
        return [self.directory / name for name in names]

    # What the trainer takes.

    def model_config(self) -> Any:
        """The model's configuration.

        Raises:
            TransductError: there is no such model.
        """
        return self.model.config(**self.sizes())

    def check_start(self) -> None:
        """Check the shapes of the model to start from before anything is prepared, but for those
        that vocabularies or labels decide.

        Raises:
            TransductError: one differs.
        """
        if self.model.start is None:
            return
        sizes, own = self.sizes(), dict(self.model.model.named_parameters())
        self.model.config(
            **{name: size + 1 if isinstance(size, int) and self.derived[name] in LATER else size
               for name, size in sizes.items()}
        )  # fmt: skip
        shapes = {name: weight.shape for name, weight in self.model.model.named_parameters()}
        config = self.model_config()
        weights = read_tensors(self.model.start / WEIGHTS)
        self.rename(weights)
        fixed = {name: weight for name, weight in own.items() if weight.shape == shapes[name]}
        check_shapes(fixed, weights, self.model.start, config, self.derived)

    def build_model(self) -> nn.Module:
        """Returns the model to train, with the weights of `model.start_from` if set."""
        rows = self.label_rows and replace(self.label_rows, labels=self.labels)
        return self.model.build(self.model_config(), self.notify, self.rename, rows)

    @property
    def windows(self) -> int:
        """The number of windows in which an epoch is planned; 1 but for huge corpora."""
        return windows(len(self.corpus))

    def batches(
        self,
        split: str,
        epoch: int,
        start: int,
        rank: int,
        world: int,
        a_step: int | None = None,
        window: int = 0,
    ) -> Iterator[Any]:
        """Returns this rank's batches of a window of an epoch, from batch `start` on; see
        `data.batching.load`."""
        require(split == "train", f"unknown split '{split}'; a task has batches of 'train'")
        order, make = self.order(epoch, window)
        return load(order, make, start, rank, world, self.data.workers, a_step)

    def order(self, epoch: int, window: int = 0) -> tuple[list[Indices], Callable[[Indices], Any]]:
        """The examples of each batch of a window of an epoch, and what makes it."""
        found, config = self.epoch(epoch), self.training
        order = plan(
            found.lengths,
            config.seed,
            epoch,
            config.batch_tokens,
            found.weights,
            found.growth,
            found.added,
            (window, self.windows),
        )
        return order, found.make

    def validation(self) -> tuple[Any, str]:
        """Returns the data of validations during training, and what to report if that is not the
        whole validation set.

        They are so many examples that scoring them takes at most `validation_share` of the work
        between two validations. That is estimated from tokens alone, so that a resumed run chooses
        the same.
        """
        config, whole = self.training, self._validation
        if whole is None or config.validation_share == 1 or not self.validated_in_part:
            return whole, ""
        example = float(np.mean(np.asarray(self.epoch(1).lengths)[:MEASURED]))
        example *= DECODED * (1 + self.hypotheses) if self.hypotheses else SCORED
        trained = config.validate_every * config.batch_tokens * config.accumulate
        most = max(FEWEST_VALIDATED, int(config.validation_share * trained / example))
        count = len(whole[0] if isinstance(whole, tuple) else whole)
        if not trained or count <= most:
            return whole, ""
        return self.part(np.linspace(0, count - 1, most).astype(int)), (
            f"validations during training score {most:,} of {count:,} {self.unit}, which takes "
            f"about {config.validation_share:.0%} of the time; the finished model is scored on all "
            "(training.validation_share=1 scores all each time)"
        )

    def part(self, numbers: Indices) -> Any:
        """The validation examples with these numbers."""
        columns = self._validation if isinstance(self._validation, tuple) else (self._validation,)
        chosen = tuple([each[i] for i in numbers] for each in columns)
        return chosen if isinstance(self._validation, tuple) else chosen[0]

    def evaluate(self, model: Any, data: Any = None) -> Report:
        """Scores the model on `data`, by default the recipe's validation set."""
        data = self._validation if data is None else data
        if data is None:
            return Report({})
        report = self.predictor(model).evaluate(data, **self.search)
        samples = self.samples(data, report.outputs)
        details = {"samples": samples} if samples else {}
        return replace(report, details={**report.details, **details})

    def predict(self, model: Any, inputs: Sequence[Any]) -> list[Any]:
        """Returns the model's answer to each input."""
        return self.predictor(model).predict(inputs)

    def save(self, model: Any, directory: Path, log: Mapping[str, Any], report: Report) -> None:
        """Writes the model directory; its card gives the scores in a report on the validation
        set."""
        about = card(
            self.title, self.made_of(), self.training, report.scores, log, self.measured(report)
        )
        frozen = {"frozen": self.training.freeze} if self.training.freeze else {}
        settings = {**self.settings(), **frozen}
        write_model(directory, self.name, model, settings, self.files(model), about)


def task_class(name: str) -> type[Task]:
    """Who trains a task.

    Raises:
        TransductError: `TASKS` does not hold it.
    """
    return imported(place_of(name)[1])


def with_defaults(recipe: Recipe, directory: Path) -> Recipe:
    """The recipe of a run in `directory`, with every default of its task filled in."""
    return task_class(recipe.task)(recipe, directory, ignore).recipe
