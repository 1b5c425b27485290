"""Train a recipe in a run directory, alone or in stages.

run directory   recipe.yaml  log.jsonl  checkpoints/step_N/  model/
                and what the task prepares (tokenizers, corpus)
with stages     recipe.yaml  log.jsonl  stage_1/  stage_2/ ...  model/
                each stage is a run directory
"""

import json
import math
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from transduct.config import (
    Recipe,
    absolute_path,
    load_recipe,
    merge,
    parse_override,
    recipe_from,
    stages_of,
    with_paths,
)
from transduct.data.batching import naming_killed_workers
from transduct.data.corpus import made_elsewhere, validation_digest
from transduct.data.files import names_of, require_files
from transduct.data.lines import SIGNATURE
from transduct.data.sources import INSTEAD, TextSource, is_table, listed
from transduct.data.suspicions import suspicions
from transduct.devices import crowded, pick_device, slow_precision
from transduct.errors import TransductError, require, warned_once
from transduct.inference.batches import shared_by
from transduct.kernels import cpu
from transduct.predictors.base import (
    Notify,
    Report,
    configuration,
    from_home,
    inside,
    model_directory,
    naming_files,
)
from transduct.runs.backup import Backup, address_of
from transduct.runs.directory import claimed, is_finished, last_step, own_recipe, require_run_folder
from transduct.storage import (
    CONFIG,
    RECIPE,
    files_in,
    has_begun,
    remove,
    write_directory,
    write_file,
)
from transduct.tasks import shortcut
from transduct.tasks.base import Task, task_class, with_defaults
from transduct.training.checkpoints import Copy, no_copy
from transduct.training.config import goes_on, unfinished_warmup
from transduct.training.distributed import Ranks
from transduct.training.log import LOG, Event, ignore
from transduct.training.machine import prepare_machine, training_alone
from transduct.training.step import seed_generators
from transduct.training.trainer import fit, stopped_early

# Keys of the `model` section that must equal those of the model to start from: they fix shapes or
# meaning of weights.
SHARED = (
    *("d_model", "d_ff", "d_hidden", "patch_size", "num_heads", "num_kv_heads", "d_k", "d_v"),
    *("positions", "position_mode", "norm", "norm_kind", "activation", "tie"),
)
SIDES = "source", "target"
BEFORE = "the stage that it starts from"
# keys of `data` that set how many learned positions there are
LENGTHS = "max_length", "context", "size"


def train(
    recipe: Recipe,
    directory: str | Path,
    resume: bool = False,
    notify: Notify = print,
    report: Callable[[Event], None] = ignore,
) -> Path:
    """Train a recipe in `directory` and return the path of the model directory, `directory/model`.

    Stages are trained in turn, each in a run directory of its own. Each starts from the model of
    the stage before, unless the stages form an ensemble.

    Args:
        notify: called with each line that the run says.
        report: called with each record of the log, as in `fit`.

    Raises:
        TransductError: the recipe or its data are wrong, the directory holds another run, or
            another thread trains.
        TrainingFailed: training diverged or was stopped by a signal.
    """
    verb = _train_stages if recipe.stages or recipe.ensemble else _train_one
    directory = Path(from_home(directory))
    ranks = Ranks.join(pick_device(str(stages_of(recipe)[0].training.get("device", "auto"))))
    if ranks.rank != 0:
        notify = report = ignore
    with training_alone(), ranks.naming_lost():
        if ranks.world > 1:
            _require_alike(ranks, directory)
        address = address_of(recipe)
        if address is None:
            return verb(recipe, directory, ranks, resume, notify, report)
        backup = Backup(directory, address)
        if ranks.rank == 0:
            backup.open(resume, notify)
        ranks.wait()
        recipe = replace(recipe, training={**recipe.training, "backup": address})
        made = verb(recipe, directory, ranks, resume, notify, report, backup.copy)
        if ranks.rank == 0:
            backup.finish()
        ranks.wait()
        return made


def _require_alike(ranks: Ranks, directory: Path) -> None:
    """Refuse ranks that would not train the same model in the same place.

    Raises:
        TransductError: they have other software, or another directory.
    """
    install = "install the same on all machines"
    for name in ("transduct", "torch", "numpy"):
        ranks.require_equal(f"the version of {name}", version(name), install)
    ranks.require_equal("the processor", platform.machine(), install)
    if ranks.device is not None and ranks.device.type == "cpu":
        native = cpu.library()
        used = "none" if native is None else native.path
        ranks.require_equal("the kernel", used, f"use equal processors, or set {cpu.LIMIT}=avx2")
    same = "give all ranks the same --out, in a folder that they share"
    ranks.require_equal("--out", str(directory.absolute()), same)


def _train_stages(
    recipe: Recipe,
    directory: Path,
    ranks: Ranks,
    resume: bool,
    notify: Notify,
    report: Callable[[Event], None],
    copy: Copy = no_copy,
) -> Path:
    model = directory / "model"
    directory = directory.resolve()  # absolute, like a filled-in `start_from`
    stages = _stages_in(directory, recipe)
    filled_in = _checked(stages, recipe.ensemble)  # before the first stage is trained
    # It means the same in any working directory.
    recipe = with_paths(replace(recipe, data={"root": ".", **recipe.data}), absolute_path)
    # each stage reports its own changes when its turn comes
    changed = notify if (model / CONFIG).exists() else ignore
    with (
        claimed(directory, recipe, resume, changed, filled_in) if ranks.rank == 0 else nullcontext()
    ):
        ranks.wait()
        more = [folder for folder in stages if not is_finished(folder, filled_in[folder].training)]
        first, last = next(iter(stages)), [*stages][-1]
        if (model / CONFIG).exists() and not (more if recipe.ensemble else last in more):
            notify(f"{model.parent}: this run is finished; its model is {model}")
            return model
        _check_inputs(stages, directory, ranks)
        for number, (folder, stage) in enumerate(stages.items(), 1):
            notify(f"stage {number} of {len(stages)}: {stage.task}")
            after = folder.with_name(f"stage_{number + 1}")
            if folder in more and not recipe.ensemble and has_begun(after):
                notify(f"stage {number} takes no more steps: stage {number + 1} started from it")
                continue
            ensemble_run = first if recipe.ensemble and folder != first else None
            begun = (folder / RECIPE).exists()
            _train_one(stage, folder, ranks, begun, notify, report, copy, ensemble_run)
            if ranks.rank == 0:
                # After each stage, so that who watches the run sees one log that grows.
                _join_logs([*stages][:number], directory / LOG)
        if ranks.rank == 0:
            made = [folder / "model" for folder in stages]
            if recipe.ensemble:
                remove(model)
                task_class(stages[first].task).combine(made, model)
            else:
                write_directory(model, files_in(made[-1]), replace=True)
        ranks.wait()
    return model


def _stages_in(directory: Path, recipe: Recipe) -> dict[Path, Recipe]:
    """The recipe of each stage by its folder; but for an ensemble's, each starts from the model
    before.

    Raises:
        TransductError: an ensemble has fewer than two stages, or one of a task whose models cannot
            be combined.
    """
    stages: dict[Path, Recipe] = {}
    for number, stage in enumerate(stages_of(recipe), 1):
        folder, before = directory / f"stage_{number}", directory / f"stage_{number - 1}"
        stage = _as_begun(stage, folder)
        if number > 1 and not recipe.ensemble and stage.model.get("start_from") is None:
            stage = replace(stage, model={**stage.model, "start_from": str(before / "model")})
        stages[folder] = stage
    require(
        not recipe.ensemble
        or (
            len(stages) >= 2 and all(task_class(stage.task).ensembles for stage in stages.values())
        ),
        "ensemble is true; expected two stages or more, each a translation model; or leave it out",
    )
    return stages


def _checked(stages: Mapping[Path, Recipe], ensemble: bool) -> dict[Path, Recipe]:
    """The recipes of the stages with every default filled in.

    Raises:
        TransductError: one is wrong, or two of them do not go together.
    """
    filled_in = {}
    for number, (folder, stage) in enumerate(stages.items()):
        try:
            filled_in[folder] = with_defaults(stage, folder.parent)
        except TransductError as error:
            if error.key is None or error.file is not None:
                raise
            raise error.within(f"stages[{number}]") from error
        first = filled_in.get(Path(stage.model.get("start_from") or "").parent)
        # an encoder brings the source's tokenizer alone, codes of pictures none
        if first and first.tokenizer.get("shared") == filled_in[folder].tokenizer.get("shared"):
            inner = (f"{side}.{key}" for side in SIDES for key in ("kind", "size"))
            keys = {"tokenizer": ("kind", "size", "sample", *inner)}
            there = {side: first.tokenizer.get(side) or first.tokenizer for side in SIDES}
            before = {**vars(first), "tokenizer": _with_sides({**first.tokenizer, **there})}
            ours = replace(stage, tokenizer=_with_sides(stage.tokenizer))
            _require_equal(f"stages[{number}].", ours, before, BEFORE, keys)
    _check_shared(filled_in)
    if ensemble:
        task_class(next(iter(stages.values())).task).check_alike(filled_in)
    return filled_in


def _with_sides(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """A `tokenizer` section with the keys of each side by their full names."""
    inner = {
        f"{side}.{key}": value
        for side in SIDES
        for key, value in (tokenizer.get(side) or {}).items()
    }
    return {**tokenizer, **inner}


def _check_inputs(stages: Mapping[Path, Recipe], directory: Path, ranks: Ranks) -> None:
    """Check the files and models that the unfinished stages will read."""
    for number, (folder, stage) in enumerate(stages.items()):
        if (folder / "model" / CONFIG).exists():
            continue
        task = task_class(stage.task)(stage, directory, ignore)
        _require_files(task, folder, tested=True)
        # by an earlier stage
        made_here = directory in Path(stage.model.get("start_from") or "").resolve().parents
        if not made_here:
            _check_start(stage, folder)
            task.check_start()
        # The first stage reads its data at once, and one that has begun has read it; others may
        # follow hours later.
        begins_later = number > 0 and not (folder / RECIPE).exists()
        if ranks.rank == 0 and begins_later:
            with naming_files(names_of(task.data.train) or ["data.train"]):
                task.check_data()


def _require_files(task: Task, run: Path, tested: bool = False) -> None:
    """Like `require_files`; of a run that has begun, the files may have moved."""
    try:
        require_files(task.data, tested, task.reads_train)
    except TransductError as error:
        if not has_begun(run):
            raise
        raise error.adding(
            "; if they have moved, give their new place: data.root=FOLDER"
        ) from error


def _join_logs(folders: Iterable[Path], path: Path) -> None:
    """Write the logs of stages to `path`, one after the other, unless it holds just that.

    A new log shows that the run has made progress. The log of a finished stage may have been
    removed by hand.
    """
    logs = b"".join((folder / LOG).read_bytes() for folder in folders if (folder / LOG).exists())
    if not path.exists() or path.read_bytes() != logs:
        write_file(path, logs)


def _check_shared(stages: Mapping[Path, Recipe]) -> None:
    """Refuse a stage that differs from the one it starts from in a key that both must share;
    `stages` by folder."""
    for number, stage in enumerate(stages.values()):
        start = stages.get(Path(stage.model.get("start_from") or "").parent, stage)
        data = ("backwards", *(LENGTHS if stage.model.get("positions") == "learned" else ()))
        keys = {"model": SHARED, "data": data}
        _require_equal(f"stages[{number}].", stage, vars(start), BEFORE, keys)
        theirs, ours = _corpora(start), _corpora(stage)
        more = (stage.data.get("held_out") or 0) > (start.data.get("held_out") or 0)
        # other pairs are held out
        taken = stage.data.get("held_out") and theirs & ours and (more or theirs != ours)
        require(
            not taken,
            "{key} takes pairs that the stage it starts from was trained on; name data.valid",
            key=f"stages[{number}].data.held_out",
        )


def _corpora(recipe: Recipe) -> set[str]:
    """The training corpora of a recipe, whatever their weights."""
    train, root = recipe.data.get("train"), recipe.data.get("root")
    corpora = train if isinstance(train, list) else []
    return {str((root, {**corpus, "weight": 1.0})) for corpus in corpora}


def _require_equal(
    where: str,
    recipe: Recipe,
    start: Mapping[str, Any],
    name: str,
    keys: Mapping[str, Iterable[str]],
) -> None:
    """Refuse a recipe that differs from the model that it starts from in a key that both set.

    Args:
        where: what stands before the section in the name of a key.
        start: the sections of that model, which errors call `name`.
        keys: those that must be equal, by section.
    """
    for section, names in keys.items():
        ours, theirs = vars(recipe)[section], start[section]
        for key in names:
            found, there = ours.get(key), theirs.get(key)
            require(
                found is None or there is None or found == there,
                f"{{key}} is {found}, {name} has {there}; make them equal",
                key=f"{where}{section}.{key}",
            )
    require(
        recipe.task != "translation" or not start.get("model", {}).get("embedding_norm"),
        f"{{key}}: {name} has model.embedding_norm, which translation lacks; train it without",
        key=f"{where}model.start_from",
    )


def _check_start(recipe: Recipe, directory: Path) -> None:
    """Check the model to start from before a corpus is prepared for it in the run's directory.

    Raises:
        TransductError: it is missing, of a kind that cannot be started from, or does not fit the
            recipe.
    """
    start = recipe.model.get("start_from")
    if start is None:
        return
    start = inside(start)
    if not (start / CONFIG).exists():
        require(
            not has_begun(directory),
            f"{{key}}: {start} holds no {CONFIG}; the run no longer needs it: set {{key}}=null",
            key="model.start_from",
        )
        try:
            model_directory(start)  # says what there is instead
        except TransductError as error:
            raise TransductError(f"{{key}}: {error}", key="model.start_from") from error
    config = configuration(start)
    require(
        "members" not in config,
        f"{{key}}: {start} is an ensemble; name one of its members, such as {start}/1",
        key="model.start_from",
    )
    require(
        "quantised" not in config,
        f"{{key}}: {start} is quantised; name the model that it was made of",
        key="model.start_from",
    )
    # else refused when it is read
    theirs = config["model"] if isinstance(config.get("model"), dict) else {}
    ways = {"backwards": bool(config.get("backwards"))}
    keys: dict[str, tuple[str, ...]] = {"model": SHARED}
    if config["task"] == recipe.task == "translation":
        keys["data"] = ("backwards",)
    ours = replace(recipe, data={"backwards": False, **recipe.data})
    _require_equal("", ours, {"model": theirs, "data": ways}, str(start), keys)


def _as_begun(recipe: Recipe, directory: Path) -> Recipe:
    """The recipe, with each choice left to the program as its run has made it, perhaps on another
    machine."""
    if not (directory / RECIPE).exists():
        return recipe
    begun, asked = own_recipe(directory).training, recipe.training
    left = [
        *(["precision"] if asked.get("precision") == "auto" else []),
        *(name for name in ("compile", "capture", "shard") if asked.get(name, "auto") == "auto"),
    ]
    return replace(recipe, training={**asked, **{name: begun.get(name, "auto") for name in left}})


def _fix_step(task: Task, directory: Path, ranks: Ranks) -> None:
    """Settle the batches of a step, as the run has begun or for the ranks that begin it, and warn
    of ranks that have nothing to compute."""
    asked, accumulate = task.training.batches_per_step, task.training.accumulate
    begun = own_recipe(directory).training if (directory / RECIPE).exists() else {}
    before = begun.get("batches_per_step")
    if before and asked in (None, before):  # with another `accumulate` the step grows with it
        asked = max(before * accumulate // begun["accumulate"], 1)
    batches = asked or accumulate * ranks.world
    task.training = replace(task.training, batches_per_step=batches)
    chosen = {**task.recipe.training, "batches_per_step": batches}
    task.recipe = replace(task.recipe, training=chosen)
    if idle := -batches % ranks.world:
        task.notify(
            f"warning: a step has {batches} batches for {ranks.world} ranks, so {idle} of them "
            f"wait once a step; training.batches_per_step={batches + idle} uses all"
        )


def _train_one(
    recipe: Recipe,
    directory: Path,
    ranks: Ranks,
    resume: bool,
    notify: Notify,
    report: Callable[[Event], None],
    copy: Copy = no_copy,
    first: Path | None = None,
) -> Path:
    """Train one model, with the tokenizers of the ensemble's first run if there is one."""
    prepare_machine()  # before the task is made, which may compute
    task = task_class(recipe.task)(_as_begun(recipe, directory), directory, notify)
    _fix_step(task, directory, ranks)
    own = {directory: task.recipe}
    with claimed(directory, task.recipe, resume, notify, own) if ranks.rank == 0 else nullcontext():
        ranks.wait()
        made = directory / "model"
        if is_finished(directory, task.recipe.training):
            notify(f"{directory}: this run is finished; its model is {made}")
            return made
        if (made / CONFIG).exists():  # the steps were raised
            notify(goes_on(task.training, last_step(directory) or 0))
        if ranks.rank == 0:
            _check_start(task.recipe, directory)
            task.check_start()
            _require_files(task, directory)
            warn_of_sources(task)
            if first is not None:
                task.take_vocabularies(first, directory)
            with naming_files(names_of(task.data.train) or ["data.train"]):
                task.prepare()
        ranks.wait()
        if ranks.rank != 0:
            with made_elsewhere():  # rank 0 made them
                task.prepare()
        seed_generators(task.training.seed)
        model = task.build_model()
        notify(f"model: {sum(p.numel() for p in model.parameters()):,} parameters")
        slow = slow_precision(task.training.precision, pick_device(task.training.device))
        for wrong in filter(None, (crowded(), slow, unfinished_warmup(task.training))):
            notify(f"warning: {wrong}")
        validation, partly = task.validation()
        validated_on = validation_digest(task.data) + partly  # other pairs have other scores
        if partly:
            notify(partly)
        validations, all_ranks = count(1), ranks.within(task.training.timeout)

        def validate(model: Any, validation: Any = validation) -> Report:
            """Score a model; unknown characters of the same texts are reported once."""
            with warned_once(quiet=next(validations) > 1), shared_by(all_ranks.share):
                return task.evaluate(model, validation)

        with naming_killed_workers():
            state = fit(
                model,
                task.training,
                directory,
                task.batches,
                task.loss,
                validate,
                report,
                validated_on,
                task.windows,
                copy,
            )
        with all_ranks.naming_lost():
            final = validate(model, None)
        if ranks.rank == 0:
            stopped = {"ranks": ranks.world, "stopped": stopped_early(state, task.training)}
            task.save(model, made, {**asdict(state), **stopped}, final)
            if not partly:  # else these are other pairs
                _warn_if_worse(final, task.training.best, directory / LOG, notify)
        ranks.wait()  # the next stage reads the model
    return made


def warn_of_sources(task: Task) -> None:
    """Warn of what looks like a mistake in the texts that a task reads."""
    for source in (*(task.data.train if task.reads_train else ()), task.data.valid):
        if isinstance(source, TextSource):
            labelled = task.label_rows is not None
            for line in suspicions(source, Path(task.data.root), labelled):
                task.notify(f"warning: {line}")


def _warn_if_worse(final: Report, best: str | None, path: Path, notify: Notify) -> None:
    """Warn if the final weights score below a validation of the run by the score that chooses, else
    by the first."""
    name = best or next(iter(final.scores), "")
    since: list[float] = []
    # a run stopped before its first line has no log
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        record = json.loads(line)
        if "notice" in record:  # other validation data: what was measured before cannot be compared
            since.clear()
        score = record.get("scores", {}).get(name)
        since += [] if score is None else [score]
    if not since or name not in final.scores:
        return
    lower = name in final.lower_is_better
    found, top = final.scores[name], min(since) if lower else max(since)
    # Rounding differs a little between a model in training and the average of one checkpoint.
    if not math.isclose(found, top, rel_tol=1e-6) and (found > top) == lower:
        remedy = "" if best else f"; a run with training.best={name} keeps the best"
        notify(
            f"warning: the model has {name} {found:.4g}, a validation on the way had "
            f"{top:.4g}{remedy}"
        )


def chosen_recipe(
    paths: Sequence[str],
    overrides: Sequence[str],
    profile: str | None,
    directory: Path,
    resume: bool,
    files: Mapping[str, Any],
    notify: Notify,
) -> Recipe:
    """The recipe that the command line asks for: a file, the one of the run to resume, or one for
    translation files.

    Args:
        files: training files under `source`, `target`, `valid_source` and `valid_target`, and the
            `columns` of tables among the paths.

    Raises:
        TransductError: none of these was given, or more than one, or a recipe is wrong.
    """
    require(
        not profile or paths, f"--profile {profile} belongs to a recipe; give one, or leave it out"
    )
    columns, table = files.get("columns"), bool(paths) and is_table(paths[0])
    require(
        table or not columns,
        f"--columns {columns} names columns of a table; give its file, such as pairs.tsv, or leave "
        "it out",
    )
    if table:
        named = {"columns": column_names(columns)} if columns else {}
        files, paths = {**files, "pairs": [*paths], **named}, ()
    elif paths:
        refuse_other_files(Path(from_home(paths[0])))
    if any(files.values()):
        require(not paths, f"found a recipe ({', '.join(paths)}) and text files; give one of them")
        if resume and (directory / RECIPE).exists():
            return run_of_files(directory, files, overrides)
        require_run_folder(directory, resume)  # before counting the text, which may take long
        return file_recipe(files, overrides, notify)
    if paths:
        return load_recipe(Path(paths[0]), overrides, profile)
    if resume and (directory / RECIPE).exists():
        recipe = own_recipe(directory, overrides)
        _report_unchanged(directory, overrides, notify)
        return recipe
    require(not resume, f"{directory}: holds no run to resume; name it with --out")
    none = "nothing to train; give a recipe, or --source and --target, or --resume with --out"
    raise TransductError(none)


def _report_unchanged(directory: Path, overrides: Sequence[str], notify: Notify) -> None:
    """Say which overrides of a run to resume are what it has already."""
    begun = load_recipe(directory / RECIPE)
    for override in overrides:
        if load_recipe(directory / RECIPE, [override]) == begun:
            finished = ", and is finished; to train it further, give more steps: training.steps=N"
            more = finished if (directory / "model" / CONFIG).exists() else ""
            found = f"the override '{override}' changes nothing: it has this value already"
            notify(f"{directory}: {found}{more}")


def column_names(text: str) -> list[str] | list[int]:
    """The two columns that `--columns` names: numbers from 0, or names."""
    names = [name.strip() for name in text.split(",")]
    require(
        len(names) == 2 and all(names),
        f"--columns is '{text}', expected two names, the source first: --columns de,en",
    )
    return [int(name) for name in names] if all(map(str.isdecimal, names)) else names


def refuse_other_files(path: Path) -> None:
    """Refuse what stands where a recipe is expected and is none, by what it looks like.

    Raises:
        TransductError: it is a folder, or a file of another kind.
    """
    require(
        not path.is_dir(),
        "is a folder; name a recipe, or its files with --source and --target",
        file=str(path),
    )
    if path.suffix.lower() in (".yaml", ".yml") or not path.is_file():
        return  # what is wrong with a recipe is said where it is read
    with path.open("rb") as file:
        start = file.read(SIGNATURE)
    better = INSTEAD.get(path.suffix.lower())
    require(not better, f"expected a recipe or a table; {better}", file=str(path))
    require(
        re.match(rb"\s*(#[^\n]*\n\s*|---\s*)*[\w.]+\s*:(\s|$)", start),
        "looks like text, not like a recipe; give a recipe (.yaml), a table of pairs (.tsv), or "
        "--source FILE --target FILE",
        file=str(path),
    )


def file_recipe(files: Mapping[str, Any], overrides: Sequence[str], notify: Notify) -> Recipe:
    """A recipe for training files without one; see `tasks.shortcut`."""
    asked: dict[str, Any] = {}
    for override in overrides:
        asked = merge(asked, parse_override(override))
    sections = {name: section for name, section in asked.items() if isinstance(section, Mapping)}
    tree = shortcut.file_recipe(
        {name: given if name == "columns" else from_home(given) for name, given in files.items()},
        notify,
        sections,
    )
    recipe = recipe_from(merge(tree, asked), "the recipe for your files")
    return with_paths(recipe, os.path.expanduser)


def run_of_files(directory: Path, files: Mapping[str, Any], overrides: Sequence[str]) -> Recipe:
    """The recipe of a run to resume that was started with these training files.

    Raises:
        TransductError: it was started with others.
    """
    recipe = own_recipe(directory, overrides)

    def paths(corpora: Any, side: str, root: str) -> list[Path]:
        sources = corpora if isinstance(corpora, list) else [corpora or {}]
        names = [name for source in sources for name in listed(source.get(side) or [])]
        return [(Path(root) / name).resolve() for name in names]

    for split, prefix in (("train", ""), ("valid", "valid_")):
        for side in ("source", "target", "pairs"):
            given = paths({side: from_home(files.get(prefix + side))}, side, ".")
            theirs = paths(recipe.data.get(split), side, recipe.data["root"])
            found, wanted = (", ".join(map(str, each)) or "nothing" for each in (given, theirs))
            option = f"--{prefix}{side}".replace("_", "-") if side != "pairs" else "the table"
            require(
                given == theirs,
                f"{directory}: {option} is {found}, its run has {wanted}; choose another --out",
            )
    return recipe
