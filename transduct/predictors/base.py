"""Who answers: what every model in use can do, how it is loaded, and the table of tasks."""

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from transduct.added import added
from transduct.config import Recipe
from transduct.data.files import Refused
from transduct.data.lines import read_lines, readable, stored
from transduct.devices import crowded, pick_device, slow_precision
from transduct.errors import TransductError, WrongData, no_model, require, rewording
from transduct.storage import (
    CHECKPOINTS,
    CONFIG,
    RECIPE,
    STATE,
    checkpointed_steps,
    files_in,
    read_json,
    require_absent,
    strict_json,
    write_directory,
)

ENSEMBLE, MEMBERS = "ensemble", "members"  # the family of several models, and their names
# Task -> who answers and who trains, as "module:class", so that looking a task up imports no other.
# A package adds one by entry points, a script by a line here before it is used.
TASKS: dict[str, tuple[str, str]] = {
    name: (f"transduct.predictors.{name}:{predictor}", f"transduct.tasks.{name}:{trainer}")
    for name, predictor, trainer in (
        ("image_classification", "PictureClassifier", "ImageClassificationTask"),
        ("image_codes", "ImageCodes", "ImageCodesTask"),
        ("language_modeling", "LanguageModel", "LanguageModelingTask"),
        ("masked_language_modeling", "MaskedLanguageModel", "MaskedLanguageModelingTask"),
        ("object_detection", "Detector", "ObjectDetectionTask"),
        ("speech_recognition", "Recogniser", "SpeechRecognitionTask"),
        ("text_classification", "Classifier", "TextClassificationTask"),
        ("text_to_image", "Painter", "TextToImageTask"),
        ("translation", "Translator", "TranslationTask"),
    )
}
log = logging.getLogger("transduct")
FILE_TOKENS = 1024  # what a picture or a sound counts as, beside texts
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Report:
    """The result of an evaluation.

    Attributes:
        scores: by name.
        details: signatures, confidence intervals, p-values, samples.
        outputs: the model's answers, not shown with the report.
        lower_is_better: the names of the scores that improve as they fall.
        right: what is right of each example, by score: with a `p_value` of the difference to
            another model's, as `bootstrap.Ratio` has it.
        refused: what was broken in the data, if that is to be reported.
    """

    scores: dict[str, float]
    details: dict[str, Any] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list, repr=False)
    lower_is_better: frozenset[str] = frozenset()
    right: Mapping[str, Any] = field(default_factory=dict, repr=False)
    refused: Refused | None = field(default=None, repr=False)

    def compared_with(self, other: "Report") -> "Report":
        """The report with the scores of another model on the same examples, and p-values."""
        p_values = {name: ours.p_value(other.right[name]) for name, ours in self.right.items()}
        details = {**self.details, "against": other.scores, "p_values": p_values}
        return replace(self, details=details)

    def hopeless(self, name: str) -> bool:
        """Whether a score is the worst possible: 0, or 100 % of errors. A loss never is."""
        from transduct.evaluation.text import ERROR_METRICS  # who only answers needs no scores

        score = self.scores[name]
        if name in self.lower_is_better:
            return name in ERROR_METRICS and score >= 100.0
        return score == 0.0

    def as_json(self) -> str:
        """The scores and details as JSON, with null for NaN and infinity, which JSON cannot
        express."""
        return strict_json({"scores": self.scores, "details": self.details})


@dataclass(frozen=True)
class Panel:
    """One picture of attention.

    Attributes:
        weights: (rows, columns), shown as a labelled matrix or over `picture`.
        rows, columns: labels of the matrix; None with a picture.
        picture: (height, width, 3), 0 to 255; the weights are stretched to its size.
        query: the row of each head that they are the mean of; None if they are more.
    """

    title: str
    weights: Tensor
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    picture: np.ndarray | None = None
    query: int | None = None


@dataclass(frozen=True, eq=False)
class Attention(Mapping[str, Tensor]):
    """Every attention weight of one input by name, computed by the formula.

    Attributes:
        weights: "encoder.0.self", "decoder.0.self", "decoder.0.cross", ...: (H, T, S) each.
        source, target: labels of what the encoder and the decoder read, such as tokens; a target's
            tokens start with the begin token.
        draw: makes the pictures of it; by default one of each head, labelled.
    """

    weights: dict[str, Tensor] = field(repr=False)
    source: Sequence[str] = ()
    target: Sequence[str] = ()
    draw: "Callable[[Attention], list[Panel]] | None" = field(default=None, repr=False)

    @classmethod
    def of(cls, model: Any, weights: Sequence[Tensor], *labels: Any, **draw: Any) -> Self:
        """The weights that a model collected, in its order: those of a batch's first sequence."""
        names = zip(model.attention_names, weights, strict=True)
        return cls({name: each[0].float().cpu() for name, each in names}, *labels, **draw)

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def labels(self, name: str) -> tuple[Sequence[str], Sequence[str]]:
        """The tokens along the queries and the keys of a named weight."""
        side, _, kind = name.split(".")
        return (self.source if side == "encoder" else self.target), (
            self.target if kind == "self" and side == "decoder" else self.source
        )

    def panels(self) -> list[Panel]:
        """The pictures of it."""
        if self.draw is not None:
            return self.draw(self)
        return [
            Panel(f"{name} head {head + 1}", matrix, *self.labels(name))
            for name, weights in self.weights.items()
            for head, matrix in enumerate(weights)
        ]

    @property
    def last_cross(self) -> Tensor:
        """The mean over heads of the last cross-attention (T, S).

        Raises:
            TransductError: there is none, because the model is an encoder.
        """
        crosses = [name for name in self.weights if name.endswith("cross")]
        require(
            crosses,
            "there is no cross-attention to align by: this model is an encoder alone; use one that "
            "has a decoder",
        )
        return self.weights[max(crosses, key=lambda n: int(n.split(".")[1]))].mean(0)

    def alignment(self) -> tuple[Sequence[str], Sequence[str], Tensor]:
        """The target tokens, the source tokens, and `last_cross` between them.

        Row t holds the weights from which the model chose target token t; end tokens are left out.

        Raises:
            TransductError: as `last_cross`.
        """
        rows, columns = self.target[1:], self.source[:-1]
        return rows, columns, self.last_cross[: len(rows), : len(columns)]


@dataclass(frozen=True, eq=False)
class Trace:
    """One input on its way through a model, computed by the formula.

    Attributes:
        attention: all of its weights.
        source, read, written: the tokens of the encoder, those of the decoder, and those that it
            predicts after them; none where a model has no such side.
        tokenizers: of the source, and of the target.
        given: how many of the written tokens are no choice of the model.
        logits: (T, V) after each token that the decoder reads; None without a decoder.
    """

    attention: Attention
    tokenizers: tuple[Any, Any]
    source: Sequence[int] = ()
    read: Sequence[int] = ()
    written: Sequence[int] = ()
    given: int = 0
    logits: Tensor | None = None


class Predictor(ABC):
    """A model in use. The command line, the server and the web page know no task: they ask these
    attributes what it can do, and call `predict`.

    Attributes:
        reads: what its inputs are: text, or files that hold a picture or a sound.
        paints: whether its answers are pictures, which a terminal cannot show.
        tells: whether `predict` takes `follow`, which is called with the first answer so far.
        verbs: the methods of it that a command or a request may call.
        several: the files of a test set of which there may be more than one.
        rules: the settings in `config.json` that `test_set` takes too, because they change files.
        model: the module, in evaluation mode.
        decoding: the record of options that `predict` takes.
        languages: the codes that it chooses from; None if it has one pair, or none.
    """

    reads: ClassVar[Literal["text", "picture", "sound"]] = "text"
    paints: ClassVar[bool] = False
    tells: ClassVar[bool] = False
    verbs: frozenset[str] = frozenset({"predict", "evaluate"})
    several: ClassVar[frozenset[str]] = frozenset()
    rules: ClassVar[tuple[str, ...]] = ()
    model: Any
    decoding: Any
    languages: Any = None

    def __init__(self, model: Any) -> None:
        self.model = model.eval()

    @classmethod
    @abstractmethod
    def load(
        cls, directory: Path, config: dict[str, Any], device: torch.device, precision: str
    ) -> Self:
        """Load the model in a directory whose `config.json` has been read."""

    @classmethod
    @abstractmethod
    def test_set(
        cls, files: Mapping[str, Any], recipe: Recipe | None, refused: Refused | None = None
    ) -> Any:
        """The examples that `evaluate` takes: of some files, or the test set of a recipe.

        Args:
            files: by the task's names for them, such as `source` and `reference`; none for the test
                set.
            refused: takes what is broken in them, so that the rest is measured; what is read later
                is left out, or not, by its policy.

        Raises:
            TransductError: other files are given, or there is no test set.
        """

    def measurable(self, data: Any, refused: Refused) -> Any:  # noqa: ARG002 (most take all)
        """The examples of a test set that this model can be measured on; others are refused."""
        return data

    @classmethod
    def able(cls, config: Mapping[str, Any]) -> frozenset[str]:  # noqa: ARG003 (most can all)
        """The verbs of a model that has such a `config.json`."""
        return cls.verbs

    @staticmethod
    def readable_lines(given: BinaryIO | Path, broken: list[int]) -> Iterator[str]:
        """Yields the lines of a stream, or of a file that may be compressed.

        Bytes that are not UTF-8 become U+FFFD, and the numbers of their lines are appended to
        `broken`.
        """
        for number, line in enumerate(read_lines(given, strict=False), 1):
            if (text := readable(line)) != line:
                broken.append(number)
            yield text

    @property
    def attention_names(self) -> list[str]:
        """The names of the weights that `attention` gives; none without it, as in an ensemble."""
        return self.model.attention_names if "attention" in self.verbs else []

    def token_counts(self, inputs: Sequence[Any]) -> list[int]:
        """What each input costs to read, in tokens: for a server that shares its time out. A file
        counts as many as fill a small model."""
        return [FILE_TOKENS for _ in inputs]

    def unknown(self, text: str) -> list[str]:  # noqa: ARG002 (most models read no text)
        """The characters (or, where the vocabulary is of words, words) of an input that the model
        cannot read."""
        return []

    @abstractmethod
    def predict(self, inputs: Sequence[Any], **options: Any) -> list[Any]:
        """The answer to each input; options are fields of the record `decoding`."""

    def evaluate(self, data: Any, against: Self | None = None, **options: Any) -> Report:
        """Scores on `data`; see `measured`.

        Args:
            data: what `test_set` returns.
            against: another model; the details then hold its scores and a p-value of each
                difference: by McNemar's test for proportions, else by paired bootstrap.
            options: as for `predict`.

        Raises:
            TransductError: the data cannot be read, an option is unknown, or the other model cannot
                be compared with this one.
        """
        if against is not None:
            self.check_against(against, data)
        report = self.measured(data, options)
        if report.refused is not None:
            report.refused.report(log.warning)
        return report if against is None else report.compared_with(against.measured(data, options))

    @abstractmethod
    def measured(self, data: Any, options: Mapping[str, Any]) -> Report:
        """The scores of this model alone, with 95 % intervals of those that have one."""

    def check_against(self, other: Self, data: Any) -> None:  # noqa: ARG002 (most need none)
        """Check that a model to compare this one with on `data` is loaded, and of the same task.

        Raises:
            TransductError: it is something else, such as a path.
        """
        require(
            isinstance(other, type(self)),
            f"against: found {other!r:.60}, expected a model like this one; give "
            "transduct.load(PATH)",
        )


def json_value(output: Any) -> Any:
    """An answer in a form that JSON can express."""
    if isinstance(output, dict):  # of probabilities
        return output
    return [asdict(each) for each in output] if isinstance(output, list) else str(output)


def place_of(name: str, source: str | None = None) -> tuple[str, str]:
    """Who answers and who trains a task, by `TASKS` or by the entry points of its name in
    `transduct.predictors` and `transduct.tasks`; `source` is where the name was found, None
    for a recipe."""
    if name in TASKS:
        return TASKS[name]
    answers, trains = added("predictors"), added("tasks")
    both = [each for each in trains if each in answers]
    require(
        name in both,
        f"unknown {{key}} '{name}'; known are: {', '.join([*TASKS, *both])}",
        key="task",
        file=source,
    )
    return answers[name].value, trains[name].value


def imported(place: str) -> Any:
    """The object at "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def predictor_class(path: str | Path) -> type[Predictor]:
    """Who answers with the model in a run or a model directory, which is not loaded for this."""
    directory = model_directory(path)
    return imported(place_of(configuration(directory)["task"], str(directory))[0])


@contextmanager
def naming_files(files: Sequence[str]) -> Iterator[None]:
    """Puts the names of these files before the message of a `WrongData` error raised inside."""
    try:
        yield
    except WrongData as error:
        if error.file is not None:
            raise
        raise error.at(file=", ".join(files)) from error


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
    require(
        precision in ("float32", "bfloat16"),
        f"unknown precision '{precision}'; known are: float32, bfloat16",
    )
    place = pick_device("auto" if device is None else str(device))
    for slow in (crowded(), slow_precision(precision, place)):
        if slow:
            warnings.warn(slow, stacklevel=2)
    predictor: type[Predictor] = imported(place_of(config["task"], str(directory))[0])
    model = predictor.load(directory, config, place, precision)
    require(
        verb in model.verbs,
        f"{path}: a model of {config['task']} cannot {verb}; see: transduct predict --help",
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


def inside(path: str | Path) -> Path:
    """The model directory inside a run; any other path as it is."""
    directory = Path(path)
    return directory / "model" if (directory / "model" / CONFIG).exists() else directory


def configuration(directory: Path) -> dict[str, Any]:
    """The content of a model directory's `config.json`, which names a task at least."""
    config = read_json(directory / CONFIG, "a model's configuration")
    require(
        isinstance(config.get("task"), str),
        "no 'task' in it; give a directory that transduct wrote",
        file=str(directory / CONFIG),
    )
    return config


def model_directory(path: str | Path) -> Path:
    """The model directory itself, or the one inside a run."""
    require(
        isinstance(path, str | os.PathLike),
        f"found {path!r:.60}; give the path of a run or a model directory",
    )
    directory = Path(from_home(path))
    advice = "give another path, or the right to it"
    with rewording(OSError, f"{path}: cannot be used ({{error}}); {advice}"):
        directory = stored(directory)
        if (within := inside(directory)) != directory:
            return within
        if (directory / RECIPE).exists():
            finish = f"transduct train --out {directory} --resume"
            step = max(checkpointed_steps(directory), default=0)
            now = f", or as it is now with: {finish} training.steps={step}" if step else ""
            raise TransductError(
                f"{directory}: this run has no model yet; finish it with: {finish}{now}"
            )
        if directory.parent.name == CHECKPOINTS and (directory / STATE).exists():
            found = model_directory(directory.parents[1])  # or how to make one
            raise TransductError(f"{directory}: a checkpoint, whose run has a model; give {found}")
        if not directory.is_dir():
            raise no_model(directory)
        if not (directory / CONFIG).exists():
            raise TransductError(f"{directory}: no {CONFIG} here; {_remedy(directory)}")
    return directory


def _remedy(directory: Path) -> str:
    if cached := sorted(directory.glob(f"snapshots/*/{CONFIG}")):
        return f"a cache of Hugging Face's hub: give {cached[-1].parent}"
    if any(directory.glob("*.npz")) and any(directory.glob("*.yml")):
        return (
            "Marian's own format cannot be read: take the model in Hugging Face's, from its hub, "
            "and convert that"
        )
    return "give a run or a model directory"


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
        TransductError: `config` does not hold a list of folder names.
    """
    if "members" not in config:
        return []
    names = config["members"]
    require(
        isinstance(names, list)
        and names
        and all(isinstance(n, str) and n.isalnum() for n in names),
        f"members is {names!r:.60}, expected names of folders there; copy the model again",
        file=str(directory / CONFIG),
    )
    return names
