"""Train a recipe in a run directory, alone or in stages.

run directory   recipe.yaml  log.jsonl  checkpoints/step_N/  model/   and what the task prepares (tokenizers, corpus)
                with stages: recipe.yaml  log.jsonl  stage_1/  stage_2/ ...  model/   each stage a run directory
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from transduct.config import Recipe, expand_homes, load_recipe, merge, parse_override, record, stages_of
from transduct.data.corpus import made_elsewhere
from transduct.data.files import names_of, require_files
from transduct.errors import TransductError
from transduct.tasks.base import Notify, Task, configuration, from_home, naming_files, task_module
from transduct.tasks.claim import RECIPE, claimed, require_room
from transduct.training.checkpoint import CONFIG, files_in, write_directory, write_file
from transduct.training.distributed import Ranks
from transduct.training.log import LOG, Event, ignore
from transduct.training.machine import pick_device, prepare_machine, seed_generators
from transduct.training.trainer import fit

# What a model and the one it starts from share, for weights that fit and mean the same.
SHARED = (
    *("d_model", "d_ff", "d_hidden", "patch_size", "num_heads", "num_kv_heads", "d_k", "d_v"),
    *("positions", "position_mode", "norm", "norm_kind", "activation", "tie"),
)
LENGTHS = ("max_length", "context", "size")  # what learned positions have a vector each for


def train(
    recipe: Recipe,
    directory: str | Path,
    resume: bool = False,
    notify: Notify = print,
    report: Callable[[Event], None] = ignore,
) -> Path:
    """Train a recipe in `directory` and leave `directory/model`; gives back that path.

    Stages are trained in turn, each in a run directory of its own and, but for an ensemble's, from the model of the one
    before.

    Raises:
        TransductError: the recipe or its data are wrong, or the directory holds another run.
        TrainingFailed: training diverged or was stopped by a signal.
    """
    verb = _train_stages if recipe.stages or recipe.ensemble else _train_one
    return verb(recipe, Path(directory), resume, notify, report)


def _train_stages(
    recipe: Recipe, directory: Path, resume: bool, notify: Notify, report: Callable[[Event], None]
) -> Path:
    model = directory / "model"
    directory = directory.resolve()  # absolute, as a filled-in `start_from` is
    stages = stages_of(recipe)
    ranks = Ranks.join(pick_device(str(stages[0].training.get("device", "auto"))))
    if ranks.rank != 0:  # one of them speaks
        notify = ignore
    stages = [_as_begun(stage, _stage(directory, number)) for number, stage in enumerate(stages)]
    if not recipe.ensemble:
        stages = [_after(stage, directory, number) for number, stage in enumerate(stages)]
    elif len(stages) < 2 or any(not hasattr(task_module(stage.task), "combine") for stage in stages):
        raise TransductError("ensemble is true; expected two stages or more, each a translation model; or leave it out")
    # What is wrong with the last is said before the first is trained.
    parts = {}
    for number, stage in enumerate(stages):
        with _naming_stage(number):
            parts[_stage(directory, number)] = _filled_in(stage, directory)
    _check_shared(parts)
    if recipe.ensemble:
        task_module(stages[0].task).check_alike(parts)
    recipe = _with_absolute_paths(recipe)
    changed = notify if (model / CONFIG).exists() else ignore  # each stage says its own when its turn comes
    with claimed(directory, recipe, resume, changed, parts, _filled_in) if ranks.rank == 0 else nullcontext():
        ranks.wait()
        if (model / CONFIG).exists():
            notify(f"{model.parent}: this run is finished; its model is {model}")
            return model
        for number, stage in enumerate(stages):
            folder = _stage(directory, number)
            if not (folder / "model" / CONFIG).exists():
                task = task_module(stage.task).create(stage, directory, ignore)
                require_files(task.data, tested=True)
                if directory not in Path(stage.model.get("start_from") or "").resolve().parents:  # which it will make
                    _check_start(stage, folder)
                # Hours may pass before it reads its data; the first stage does so at once, and one that has begun has.
                begins_later = number > 0 and not (folder / RECIPE).exists()
                if ranks.rank == 0 and begins_later and hasattr(task, "check_data"):
                    with naming_files(names_of(task.data.train) or ["data.train"]):
                        task.check_data()
        for number, stage in enumerate(stages):
            notify(f"stage {number + 1} of {len(stages)}: {stage.task}")
            folder, first = _stage(directory, number), _stage(directory, 0)
            beside = first if recipe.ensemble and number else None
            _train_one(stage, folder, (folder / RECIPE).exists(), notify, report, beside)
            if ranks.rank == 0:
                logs = b"".join(log.read_bytes() for log in _logs(directory, number + 1))
                if not (directory / LOG).exists() or (directory / LOG).read_bytes() != logs:
                    write_file(directory / LOG, logs)  # which says that the run has gone on
        if ranks.rank == 0:
            made = [_stage(directory, number) / "model" for number in range(len(stages))]
            if recipe.ensemble:
                task_module(stages[0].task).combine(made, model)
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


def _check_shared(stages: Mapping[Path, Recipe]) -> None:
    """Refuse a stage that differs from the one that it starts from in what both share; they come by their folders."""
    for number, stage in enumerate(stages.values()):
        start = stages.get(Path(stage.model.get("start_from") or "").parent, stage)
        data = ("backwards", *(LENGTHS if stage.model.get("positions") == "learned" else ()))
        apart = [(f"model.{name}", *both) for name, *both in _apart(stage.model, start.model, SHARED)]
        apart += [(f"data.{name}", *both) for name, *both in _apart(stage.data, start.data, data)]
        for name, found, held in apart:
            where = f"stages[{number}]: {name}"
            raise TransductError(f"{where} is {found}, the stage that it starts from has {held}; make them equal")
        _require_place(stage, start.model, f"stages[{number}]: the stage that it starts from")


def _require_place(recipe: Recipe, theirs: Mapping[str, Any], start: str) -> None:
    """Refuse an encoder to start from that does what a translation model does not."""
    if recipe.task == "translation" and theirs.get("embedding_norm"):
        raise TransductError(f"{start} has model.embedding_norm, for which translation has no place; train it without")


def _apart(given: Mapping[str, Any], held: Mapping[str, Any], names: Iterable[str]) -> Iterator[tuple[str, Any, Any]]:
    """The names of which both say something, and not the same."""
    for name in names:
        if None not in (given.get(name), held.get(name)) and given[name] != held[name]:
            yield name, given[name], held[name]


def _check_start(recipe: Recipe, directory: Path) -> None:
    """Refuse a model to start from that is not there or none to start from, before a corpus is prepared for it in the
    run's directory."""
    start = recipe.model.get("start_from")
    if start is None:
        return
    if not (Path(start) / CONFIG).exists():
        model = Path(start) / "model"
        remedy = f"name {model}" if (model / CONFIG).exists() else "name a model directory, RUN/model"
        if any(directory.glob("checkpoints/step_*")):
            remedy = "the run has begun and needs it no more: set it to null"
        raise TransductError(f"model.start_from: {start} holds no {CONFIG}; {remedy}")
    held = configuration(Path(start))
    if "members" in held:
        raise TransductError(f"model.start_from: {start} is an ensemble; name one of its members, such as {start}/1")
    if "quantised" in held:
        raise TransductError(f"model.start_from: {start} is quantised; name the model that it was made of")
    theirs = held["model"] if isinstance(held.get("model"), dict) else {}  # which whoever reads it refuses
    for name, found, there in _apart(recipe.model, theirs, SHARED):
        raise TransductError(f"model.start_from: {start} has {name} {there}, the recipe {found}; make them equal")
    _require_place(recipe, theirs, f"model.start_from: {start}")
    way = bool(held.get("backwards"))
    if held["task"] == recipe.task == "translation" and way != recipe.data.get("backwards", False):
        side = "end" if way else "beginning"
        raise TransductError(
            f"model.start_from: {start} writes from the {side} on; set data.backwards to {str(way).lower()}"
        )


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


def _logs(directory: Path, stages: int) -> list[Path]:
    """The logs of so many stages; somebody may have removed that of a finished one."""
    return [log for number in range(stages) if (log := _stage(directory, number) / LOG).exists()]


def _stage(directory: Path, number: int) -> Path:
    return directory / f"stage_{number + 1}"


def _after(stage: Recipe, directory: Path, number: int) -> Recipe:
    """A stage that starts from the model of the one before, unless it names another."""
    if number == 0 or stage.model.get("start_from") is not None:
        return stage
    return replace(stage, model={**stage.model, "start_from": str(_stage(directory, number - 1) / "model")})


def _as_begun(recipe: Recipe, directory: Path) -> Recipe:
    """A recipe whose precision is `auto` with that in which its run has begun, perhaps on another machine."""
    if recipe.training.get("precision") != "auto" or not (directory / RECIPE).exists():
        return recipe
    held = load_recipe(directory / RECIPE).training.get("precision", "auto")
    return replace(recipe, training={**recipe.training, "precision": held})


def _filled_in(recipe: Recipe, directory: Path) -> Recipe:
    """A recipe with every default of its task."""
    filled: Recipe = task_module(recipe.task).create(recipe, directory, ignore).recipe
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
    task: Task = task_module(recipe.task).create(_as_begun(recipe, directory), directory, notify)
    own = {directory: task.recipe}
    with claimed(directory, task.recipe, resume, notify, own, _filled_in) if ranks.rank == 0 else nullcontext():
        ranks.wait()
        made = directory / "model"
        if (made / CONFIG).exists():
            notify(f"{directory}: this run is finished; its model is {made}")
            return made
        if ranks.rank == 0:
            _check_start(task.recipe, directory)
            require_files(task.data)
            if beside is not None:
                task_module(recipe.task).take_vocabularies(beside, directory)
            with naming_files(names_of(task.data.train) or ["data.train"]):
                task.prepare()
        ranks.wait()
        if ranks.rank != 0:
            with made_elsewhere():  # by rank 0
                task.prepare()
        seed_generators(task.training.seed)
        model = task.build_model()
        notify(f"model: {sum(p.numel() for p in model.parameters()):,} parameters")
        state = fit(model, task.training, directory, task.batches, task.loss, task.evaluate, report)
        if ranks.rank == 0:
            task.save(model, made, {**asdict(state), "ranks": ranks.world})
        ranks.wait()  # what comes after, such as another stage, reads it
    return made


def chosen_recipe(
    paths: Sequence[str],
    overrides: Sequence[str],
    profile: str | None,
    directory: Path,
    resume: bool,
    files: Mapping[str, Any],
    notify: Notify,
) -> Recipe:
    """The recipe that was named, the one of the run to be resumed, or one made for training files of translation.

    Args:
        files: by source, target, valid_source and valid_target, where given.

    Raises:
        TransductError: nothing of it was given, or more than one; or what was given is wrong.
    """
    if profile and not paths:
        raise TransductError(f"--profile {profile} belongs to a recipe; give one, or leave it out")
    if any(files.values()):
        if paths:
            raise TransductError(f"found a recipe ({paths[0]}) and text files; give one of them")
        if resume and (directory / RECIPE).exists():
            return run_of_files(directory, files, overrides)
        require_room(directory, resume)  # before all the text is counted
        return file_recipe("translation", files, overrides, notify)
    if len(paths) > 1:
        raise TransductError(f"found {len(paths)} recipes ({', '.join(paths)}); give one")
    if paths:
        return load_recipe(Path(paths[0]), overrides, profile)
    if resume and (directory / RECIPE).exists():
        return load_recipe(directory / RECIPE, overrides)
    none = "nothing to train; give a recipe, or --source and --target, or --resume with --out"
    raise TransductError(f"{directory}: holds no run to resume; name it with --out" if resume else none)


def file_recipe(task: str, files: Mapping[str, Any], overrides: Sequence[str], notify: Notify) -> Recipe:
    """A recipe for training files and nothing else; the task chooses sizes and says which."""
    asked: dict[str, Any] = {}
    for override in overrides:
        asked = merge(asked, parse_override(override))
    sections = {name: section for name, section in asked.items() if isinstance(section, Mapping)}
    tree = task_module(task).file_recipe({name: from_home(given) for name, given in files.items()}, notify, sections)
    tree = merge(tree, asked)
    recipe = record(Recipe, tree, "", "the recipe for your files")
    expand_homes(recipe)
    return recipe


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
            given = paths({side: from_home(files.get(prefix + side))}, side, ".")
            theirs = paths(recipe.data.get(split), side, recipe.data["root"])
            if given != theirs:
                found, held = (", ".join(map(str, each)) or "nothing" for each in (given, theirs))
                option = f"--{prefix}{side}".replace("_", "-")
                raise TransductError(f"{directory}: {option} is {found}, its run has {held}; choose another --out")
    return recipe
