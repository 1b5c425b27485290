"""What a task is, and the two things every task is used for: train one in a run directory, load what it left.

run directory     recipe.yaml  log.jsonl  checkpoints/step_N/  model/   and what the task prepares (tokenizers, corpus)
                  with stages: recipe.yaml  log.jsonl  stage_1/  stage_2/ ...  model/   each stage a run directory
model directory   config.json  model.safetensors  card.md   and what the task adds
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from torch import nn

from transduct.config import Recipe, load_recipe, merge, parse_override, record
from transduct.data.files import names_of, require_files
from transduct.errors import TransductError, WrongData
from transduct.tasks.claim import RECIPE, claimed
from transduct.training.checkpoint import CONFIG, files_in, read_json, require_absent, write_directory, write_file
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks
from transduct.training.log import Event, ignore, strict_json
from transduct.training.machine import pick_device, prepare_machine, seed_generators
from transduct.training.trainer import Terms, fit

LOG = "log.jsonl"
TASKS = (
    *("image_classification", "image_codes", "language_modeling", "masked_language_modeling", "object_detection"),
    *("speech_recognition", "text_classification", "text_to_image", "translation"),
)
SIZES = ("d_model", "d_ff", "d_hidden", "patch_size")  # that a model and the one it starts from share
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Report:
    """What an evaluation found.

    Attributes:
        scores: by name; `lower_is_better` names those that get better as they fall.
        details: signatures, intervals, p-values, samples.
        outputs: the model's answers.
    """

    scores: dict[str, float]
    details: dict[str, Any] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    lower_is_better: frozenset[str] = frozenset()

    def as_json(self) -> str:
        """Scores and details; null stands for NaN and infinity, for which JSON has no word."""
        return strict_json({"scores": self.scores, "details": self.details})


class Task(Protocol):
    """A task wires data, model, loss and scores; the trainer takes its verbs as plain callables."""

    training: TrainingConfig
    data: Any  # the recipe's section, with `train`, `valid` and `root`
    recipe: Recipe  # every default filled in

    def prepare(self) -> None:
        """Make what training reads: tokenizers, corpora. Nothing is made twice."""
        ...

    def build_model(self) -> nn.Module:
        """The model, untrained."""
        ...

    def batches(self, split: str, epoch: int, start: int, rank: int, world: int) -> Iterator[Any]:
        """The batches of an epoch from number `start` on, this rank's share."""
        ...

    def loss(self, model: Any, batch: Any) -> Terms:
        """Terms of the loss: {name: (sum, count, weight)}."""
        ...

    def evaluate(self, model: Any, data: Any = None) -> Report:
        """Scores on `data`, or on the recipe's validation set."""
        ...

    def predict(self, model: Any, inputs: Sequence[Any]) -> list[Any]:
        """The model's answer to each input."""
        ...

    def save(self, model: Any, directory: Path, log: Mapping[str, Any]) -> None:
        """Write the model directory."""
        ...


def _task_module(name: str, source: str = "recipe") -> Any:
    """The one place where a name picks a task's file."""
    if name not in TASKS:
        raise TransductError(f"{source}: unknown task '{name}'; known are: {', '.join(TASKS)}")
    return import_module(f"transduct.tasks.{name}")


def train(
    recipe: Recipe,
    directory: str | Path,
    resume: bool = False,
    notify: Notify = print,
    report: Callable[[Event], None] = ignore,
) -> Path:
    """Train a recipe in `directory` and leave `directory/model`; gives back that path.

    Stages are trained in turn, each from the model of the one before, each in a run directory of its own.

    Raises:
        TransductError: the recipe or its data are wrong, or the directory holds another run.
        TrainingFailed: training diverged or was stopped by a signal.
    """
    verb = _train_stages if recipe.stages or recipe.ensemble else _train_one
    return verb(recipe, Path(directory), resume, notify, report)


def stages_of(recipe: Recipe) -> list[Recipe]:
    """The recipe of each training in turn: the recipe itself, or each of its stages laid over it."""
    whole = asdict(recipe) | {"stages": [], "ensemble": False}
    return [record(Recipe, merge(whole, stage), f"stages[{i}]") for i, stage in enumerate(recipe.stages)] or [recipe]


def _train_stages(
    recipe: Recipe, directory: Path, resume: bool, notify: Notify, report: Callable[[Event], None]
) -> Path:
    stages, model = stages_of(recipe), directory / "model"
    ranks = Ranks.join(pick_device(str(stages[0].training.get("device", "auto"))))
    if ranks.rank != 0:  # one of them speaks
        notify = ignore
    if not recipe.ensemble:
        stages = [_after(stage, directory, number) for number, stage in enumerate(stages)]
    elif len(stages) < 2 or any(not hasattr(_task_module(stage.task), "combine") for stage in stages):
        raise TransductError("ensemble is true; expected two stages or more, each a translation model; or leave it out")
    # What is wrong with the last is said before the first is trained.
    parts = {}
    for number, stage in enumerate(stages):
        with _naming_stage(number):
            parts[_stage(directory, number)] = _filled_in(stage, directory)
    _check_sizes(parts)
    if recipe.ensemble:
        _task_module(stages[0].task).check_alike(parts)
    recipe = _with_absolute_paths(recipe)
    with claimed(directory, recipe, resume, ignore, parts, _filled_in) if ranks.rank == 0 else nullcontext():
        ranks.wait()
        if (model / CONFIG).exists():
            notify(f"{directory}: this run is finished; its model is {model}")
            return model
        for number, stage in enumerate(stages):
            if not (_stage(directory, number) / "model" / CONFIG).exists():
                require_files(_task_module(stage.task).create(stage, directory, ignore).data, tested=True)
                if directory not in Path(stage.model.get("start_from") or "").parents:  # which this run will make
                    _check_start(stage, _stage(directory, number))
        for number, stage in enumerate(stages):
            notify(f"stage {number + 1} of {len(stages)}: {stage.task}")
            folder, first = _stage(directory, number), _stage(directory, 0)
            beside = first if recipe.ensemble and number else None
            _train_one(stage, folder, (folder / RECIPE).exists(), notify, report, beside)
            if ranks.rank == 0:
                logs = [(_stage(directory, n) / LOG).read_bytes() for n in range(number + 1)]
                write_file(directory / LOG, b"".join(logs))
        if ranks.rank == 0:
            made = [_stage(directory, number) / "model" for number in range(len(stages))]
            if recipe.ensemble:
                _task_module(stages[0].task).combine(made, model)
            else:
                write_directory(model, files_in(made[-1]))
        ranks.wait()
    return model


@contextmanager
def _naming_stage(number: int) -> Iterator[None]:
    """An error that is of "recipe" becomes one of a stage of it."""
    try:
        yield
    except TransductError as error:
        if not str(error).startswith("recipe: "):
            raise
        raise TransductError(f"recipe: stages[{number}]: {str(error).removeprefix('recipe: ')}") from error


def _check_sizes(stages: Mapping[Path, Recipe]) -> None:
    """Refuse a stage of another width than the one that it starts from; stages come by their folders in the run."""
    for number, stage in enumerate(stages.values()):
        start = stages.get(Path(stage.model.get("start_from") or "").parent, stage)
        for name in SIZES:
            found, held = stage.model.get(name), start.model.get(name)
            if found and held and found != held:
                where = f"stages[{number}]: model.{name}"
                raise TransductError(f"{where} is {found}, the stage that it starts from has {held}; make them equal")


def _check_start(recipe: Recipe, directory: Path) -> None:
    """Refuse a model to start from that is not there or none to start from, before a corpus is prepared for it in the
    run's directory."""
    start = recipe.model.get("start_from")
    if start is None:
        return
    if not (Path(start) / CONFIG).exists():
        remedy = "name a model directory, RUN/model"
        if any(directory.glob("checkpoints/step_*")):
            remedy = "the run has begun and needs it no more: set it to null"
        raise TransductError(f"model.start_from: {start} holds no {CONFIG}; {remedy}")
    held = _configuration(Path(start))
    if "members" in held:
        raise TransductError(f"model.start_from: {start} is an ensemble; name one of its members, such as {start}/1")
    if "quantised" in held:
        raise TransductError(f"model.start_from: {start} is quantised; name the model that it was made of")


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe as it can be read again from anywhere."""

    def absolute(sections: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(sections)
        for name, key in (("data", "root"), ("model", "start_from")):
            section = sections.get(name) or {}
            if section.get(key) is not None:
                found[name] = {**section, key: str(Path(section[key]).resolve())}
        return found

    whole = {"data": {"root": ".", **recipe.data}, "model": recipe.model}
    return replace(recipe, **absolute(whole), stages=[absolute(stage) for stage in recipe.stages])


def _stage(directory: Path, number: int) -> Path:
    return directory / f"stage_{number + 1}"


def _after(stage: Recipe, directory: Path, number: int) -> Recipe:
    """A stage that starts from the model of the one before, unless it names another."""
    if number == 0 or "start_from" in stage.model:
        return stage
    return replace(stage, model={**stage.model, "start_from": str(_stage(directory, number - 1) / "model")})


def _filled_in(recipe: Recipe, directory: Path) -> Recipe:
    """A recipe with every default of its task."""
    filled: Recipe = _task_module(recipe.task).create(recipe, directory, ignore).recipe
    return filled


def _train_one(
    recipe: Recipe,
    directory: Path,
    resume: bool,
    notify: Notify,
    report: Callable[[Event], None],
    beside: Path | None = None,
) -> Path:
    """Train one model; `beside` is a run whose tokenizers it takes."""
    ranks = Ranks.join(pick_device(str(recipe.training.get("device", "auto"))))
    if ranks.rank != 0:  # one of them speaks
        notify = report = ignore
    prepare_machine()  # a task may compute before it trains
    task: Task = _task_module(recipe.task).create(recipe, directory, notify)
    own = {directory: task.recipe}
    with claimed(directory, task.recipe, resume, notify, own, _filled_in) if ranks.rank == 0 else nullcontext():
        ranks.wait()
        made = directory / "model"
        if (made / CONFIG).exists():
            notify(f"{directory}: this run is finished; its model is {made}")
            return made
        if ranks.rank == 0:
            _check_start(recipe, directory)
            if beside is not None:
                _task_module(recipe.task).take_vocabularies(beside, directory)
            with naming_files(names_of(task.data.train) or ["data.train"]):
                task.prepare()
        ranks.wait()
        if ranks.rank != 0:  # finds what rank 0 has made
            task.prepare()
        seed_generators(task.training.seed)
        model = task.build_model()
        notify(f"model: {sum(p.numel() for p in model.parameters()):,} parameters")
        state = fit(model, task.training, directory, task.batches, task.loss, task.evaluate, report)
        if ranks.rank == 0:
            task.save(model, made, {**asdict(state), "ranks": ranks.world})
        ranks.wait()  # what comes after, such as another stage, reads it
    return made


@contextmanager
def naming_files(files: Sequence[str]) -> Iterator[None]:
    """Around what is done with the data of these files: what is wrong with it is said with their names."""
    try:
        yield
    except WrongData as error:
        raise TransductError(f"{', '.join(files)}: {error}") from error


def load(path: str | Path, device: str = "auto", precision: str = "float32", verb: str = "predict") -> Any:
    """Load a run or a model directory: for a translation task, a `Translator`.

    Args:
        verb: what it must be able to do.

    Raises:
        TransductError: nothing is there, or it is truncated, of another version, or no model at all; or what is there
            cannot do that.
    """
    directory = model_directory(path)
    config = _configuration(directory)
    if precision not in ("float32", "bfloat16"):
        raise TransductError(f"unknown precision '{precision}'; known are: float32, bfloat16")
    model = _task_module(config["task"], str(directory)).load(directory, config, pick_device(device), precision)
    if not hasattr(model, verb):
        raise TransductError(f"{path}: a model of {config['task']} cannot {verb}; see: transduct predict --help")
    return model


def evaluate(
    path: str | Path,
    files: Mapping[str, str] | None = None,
    against: str | Path | None = None,
    device: str = "auto",
    **options: Any,
) -> Report:
    """Score a model on the files given, or on the test set of the run it belongs to.

    Args:
        files: what to read, by the name the task gives it: `source` and `reference` for translation.
        against: another model, for a paired significance test.
        options: how outputs are made; fields of the task's decoding record.
    """
    kinds = [task_of(each) for each in (path, against) if each is not None]
    if len({*kinds}) > 1:
        raise TransductError(f"{against}: a model of {kinds[1]}, and {path} is one of {kinds[0]}; compare equals")
    model, other = load(path, device), None if against is None else load(against, device)
    data = _test_set(path, files or {})
    with naming_files([*(files or {}).values()] or ["data.test"]):
        return model.evaluate(data, other, **options)


def score(path: str | Path, files: Mapping[str, str], device: str = "auto") -> list[float]:
    """Forced decoding: the log-probability of each first reference in the files given."""
    model = load(path, device, verb="score")
    sources, references = _test_set(path, files)
    try:
        scores: list[float] = model.score(sources, [texts[0] for texts in references])
    except TransductError as error:
        raise TransductError(f"{' and '.join(files.values()) or 'data.test'}: {error}") from error
    return scores


def _test_set(path: str | Path, files: Mapping[str, str]) -> Any:
    """What the files hold, or the test set of the run, as the model's task reads it."""
    if files:  # of the data the model directory knows as much as these need
        config = _configuration(model_directory(path))
        recipe: Recipe | None = Recipe(config["task"], data={"replace": config.get("replace", [])})
    else:
        recipe = _recipe_of(path)
    return _module_of(path).test_set({name: _from_home(given) for name, given in files.items()}, recipe)


def _from_home(names: Any) -> Any:
    """One or more names of files, or none, with the home folder in place of ~."""
    if isinstance(names, list):
        return [os.path.expanduser(name) for name in names]
    return names and os.path.expanduser(names)


def file_recipe(task: str, files: Mapping[str, Any], overrides: Sequence[str], notify: Notify) -> Recipe:
    """A recipe for training files and nothing else; the task chooses sizes and says which."""
    tree = _task_module(task).file_recipe({name: _from_home(given) for name, given in files.items()}, notify)
    for override in overrides:
        tree = merge(tree, parse_override(override))
    return record(Recipe, tree, "", "the recipe for your files")


def run_of_files(directory: Path, files: Mapping[str, Any], overrides: Sequence[str]) -> Recipe:
    """The recipe of a run to be resumed that was begun with these training files.

    Raises:
        TransductError: it was begun with others.
    """
    recipe = load_recipe(directory / RECIPE, overrides)

    def paths(held: Any, side: str, root: str) -> list[Path]:
        sources = [source.get(side) or [] for source in (held if isinstance(held, list) else [held or {}])]
        names = [name for source in sources for name in ([source] if isinstance(source, str) else source)]
        return [(Path(root) / name).resolve() for name in names]

    for split, prefix in (("train", ""), ("valid", "valid_")):
        for side in ("source", "target"):
            given = paths({side: _from_home(files.get(prefix + side))}, side, ".")
            theirs = paths(recipe.data.get(split), side, recipe.data["root"])
            if given != theirs:
                found, held = (", ".join(map(str, each)) or "nothing" for each in (given, theirs))
                option = f"--{prefix}{side}".replace("_", "-")
                raise TransductError(f"{directory}: {option} is {found}, its run has {held}; choose another --out")
    return recipe


def readable_lines(path: str | Path, given: BinaryIO | Path, broken: list[int]) -> Iterator[str]:
    """The inputs in a stream, or in a file that may be compressed, as the model's task reads them; numbers of damaged
    ones join `broken`."""
    lines: Iterator[str] = _module_of(path).readable_lines(given, broken)
    return lines


def _module_of(path: str | Path) -> Any:
    return _task_module(task_of(path), str(path))


def task_of(path: str | Path) -> str:
    """The task of the model in a run or a model directory."""
    return str(_configuration(model_directory(path))["task"])


def _configuration(directory: Path) -> dict[str, Any]:
    """What a model directory's `config.json` says; its task at least."""
    config = read_json(directory / CONFIG, "a model's configuration")
    if not isinstance(config.get("task"), str):
        raise TransductError(f"{directory / CONFIG}: no 'task' in it; give a directory that transduct wrote")
    return config


def model_directory(path: str | Path) -> Path:
    """The model directory itself, or the one inside a run."""
    directory = Path(path)
    if (directory / "model" / CONFIG).exists():
        return directory / "model"
    if (directory / RECIPE).exists():
        finish = f"transduct train --out {directory} --resume"
        raise TransductError(f"{directory}: this run has no model yet; finish it with: {finish}")
    if not (directory / CONFIG).exists():
        raise TransductError(f"{directory}: no {CONFIG} here; give a run or a model directory")
    return directory


def copy_model(directory: Path, out: Path, more: Mapping[str, bytes] | None = None) -> None:
    """Copy a model directory, with more files.

    Raises:
        TransductError: `out` exists or cannot be written.
    """
    require_absent(out)
    members = _configuration(directory).get("members", [])  # of an ensemble
    write_directory(out, {**files_in(directory, members), **(more or {})})


def _recipe_of(model: str | Path) -> Recipe | None:
    """The recipe of the run that a run or model directory belongs to, if it is still there."""
    directory = model_directory(model).resolve()
    recipe = directory.parent / RECIPE
    return stages_of(load_recipe(recipe))[-1] if directory.name == "model" and recipe.exists() else None
