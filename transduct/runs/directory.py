"""Claim a run directory: refuse another run's, lock out other processes, undo a run that failed
before it began."""

import errno
import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from typing import Any

from transduct.config import Recipe, dump, load_recipe
from transduct.errors import TrainingFailed, TransductError, disk_error, require, rewording
from transduct.predictors.base import Notify
from transduct.records import RETIRED
from transduct.storage import (
    CHECKPOINTS,
    CONFIG,
    RECIPE,
    STATE,
    has_begun,
    remove,
    require_folder,
    write_file,
)
from transduct.tasks.base import with_defaults
from transduct.training.checkpoints import Checkpoints
from transduct.training.log import LOG

LOCK = ".lock"  # the file that is locked; it holds the launcher of who has locked it last
LOCKS: set[int] = set()  # file descriptors of the locks of this process
# Errors that have nothing to do with a file, so that another place would not help.
OF_THE_MACHINE = (
    errno.EPIPE,
    errno.ESHUTDOWN,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.EAGAIN,
)
SCORING = ("data.metrics", "data.bleu_tokenize")  # what a finished run was scored by
# The first line of a run's own recipe. It tells damage from a mistake in a recipe.
SIGNED = re.compile(rb"# Written by transduct; SHA-256 of the lines below: ([0-9a-f]{64})")
OWN_RECIPE = "resume with the run's own recipe or choose another --out"


@contextmanager
def claimed(
    directory: Path,
    recipe: Recipe,
    resume: bool,
    notify: Notify,
    parts: Mapping[Path, Recipe],
) -> Iterator[None]:
    """Hold `directory` for this run: its recipe is written, unless it is finished, and other
    processes are locked out.

    Args:
        parts: the recipes, by folder, to compare with those already there: the run's own, or one
            for each stage.

    Raises:
        TransductError: the directory holds another run, another process trains in it, or it cannot
            be written.
        TrainingFailed: the run was interrupted; what has been prepared is kept for `--resume`.
    """
    recipe_file, finished = directory / RECIPE, is_finished(directory, recipe.training)
    require_run_folder(directory, resume)
    if recipe_file.exists():
        _check_same(directory, recipe, parts, notify)
    if finished and not os.access(directory, os.W_OK):
        yield  # a finished run writes nothing, so it may lie on a read-only file system
        return
    new = not directory.exists()
    with locked(directory), as_user_errors(directory), _undone_on_error(directory, new):
        # Under the lock, so nobody else's half-written file is taken for a leftover.
        for path in filter(_is_leftover, [*directory.iterdir()]):
            remove(path)
        if not finished:
            content = dump(asdict(recipe)).encode()
            signature = SIGNED.pattern.partition(b"(")[0] + sha256(content).hexdigest().encode()
            write_file(recipe_file, signature + b"\n" + content)
            if not has_begun(directory):
                for path in directory.glob("tokenizer*.json"):
                    remove(path)  # it may have been made of other text, or taken from another model
        yield


def is_finished(directory: Path, training: Mapping[str, Any]) -> bool:
    """Whether a run has its model, and these settings ask for no more steps.

    Its last checkpoint says how far it came. Without checkpoints it cannot go on.

    Raises:
        TransductError: the state of its last checkpoint is damaged.
    """
    last = last_step(directory)
    if not (directory / "model" / CONFIG).exists():
        return False
    if last is None or last >= training.get("steps", 0):
        return True
    state = Checkpoints(directory / CHECKPOINTS).state(last)
    return 0 < training.get("patience", 0) <= state.get("without_progress", 0)


def last_step(directory: Path) -> int | None:
    """The step of a run's newest checkpoint; None if there is none."""
    return max(Checkpoints(directory / CHECKPOINTS).steps(whole=False), default=None)


def launcher() -> str:
    """The torchrun that started this process, which starts another when a rank ends; "" without.

    Its identifier if it has been given one, else its process.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return f"{gethostname()} {os.getppid()}" if name == "none" else name


def _is_restart(directory: Path) -> bool:
    """Whether the same launcher has begun the run in a directory: this is its next attempt."""
    lock = directory / LOCK
    return bool(launcher()) and lock.exists() and lock.read_text() == launcher()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the directory and hold its lock."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # The file stays when the lock is gone: removing it would let two processes hold two of
        # them.
        lock = os.open(directory / LOCK, os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise disk_error(directory, error) from error
    LOCKS.add(lock)
    try:
        _lock(lock, directory)
        os.ftruncate(lock, 0)
        os.pwrite(lock, launcher().encode(), 0)
        yield
    finally:
        LOCKS.discard(lock)
        os.close(lock)


@contextmanager
def as_user_errors(directory: Path, resume: str = "--resume") -> Iterator[None]:
    """Turn an interrupt, and errors of files, into errors that say what to do.

    Args:
        resume: how to go on.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise TrainingFailed("interrupted; go on with {resume}", resume) from None
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename:
            raise TransductError(f"{error.filename}: is missing; copy it back") from error
        if error.errno in OF_THE_MACHINE:
            raise
        raise disk_error(Path(error.filename or directory), error) from error


@contextmanager
def _undone_on_error(directory: Path, new: bool) -> Iterator[None]:
    """On an error before any progress, restore the recipe that was there; without one, empty the
    directory.

    A run that trained or was interrupted keeps its files, and so does one that has prepared its
    corpus, unless the error is one of the recipe. The directory itself is removed if it is `new`.
    """
    recipe_file = directory / RECIPE
    # Taken before anything is written: what is undone is what this call has done.
    before, done = recipe_file.read_bytes() if recipe_file.exists() else None, _done(directory)
    try:
        yield
    except TrainingFailed:
        raise  # the run had begun: its log is to be read, or it will be resumed
    except (KeyboardInterrupt, Exception) as error:
        with suppress(OSError, TransductError):  # a full disk, which must not hide the error
            if before is not None:
                if _done(directory) <= done:
                    write_file(recipe_file, before)
            elif not _is_worth_keeping(directory, error):
                for path in directory.iterdir():  # so that the corrected call can start afresh
                    remove(path)
                if new:
                    directory.rmdir()
        raise


def _is_worth_keeping(directory: Path, error: BaseException) -> bool:
    """Whether a run that ended with this error can be resumed and has work worth keeping."""
    if isinstance(error, KeyboardInterrupt) or any(directory.glob(f"**/{CHECKPOINTS}/step_*")):
        return True
    of_recipe, cause = isinstance(error, TransductError), error.__cause__
    while of_recipe and cause is not None:
        of_recipe, cause = not isinstance(cause, OSError), cause.__cause__
    # of a corpus, which may have taken hours
    return not of_recipe and any(directory.glob("**/manifest.json"))


def own_recipe(directory: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that a run keeps of itself, to be resumed.

    Raises:
        TransductError: the file is not as the run wrote it, or an override is wrong.
    """
    path = directory / RECIPE
    try:
        load_recipe(path)
    except TransductError as error:
        raise TransductError(
            f"the run's own recipe cannot be read ({error.problem}): it is damaged, edited by "
            "hand, or is of another version; put it back as it was",
            file=str(path),
            line=error.line,
        ) from error
    first, _, rest = path.read_bytes().partition(b"\n")
    signed = SIGNED.fullmatch(first)
    require(
        signed is None or sha256(rest).hexdigest().encode() == signed[1],
        f"{path}: the run's own recipe is not as it was written: it is damaged or was edited "
        "by hand; put it back as it was, and give changes as overrides (--resume "
        "training.steps=100), or, if it is right as it is, remove its first line",
    )
    return load_recipe(path, overrides)


def _done(directory: Path) -> set[tuple[Path, bytes | int]]:
    """The progress of a run: the records in its logs and the times of its checkpoints. Progress
    adds to the set."""
    records = {
        (path, line)
        for path in directory.glob(f"**/{LOG}")
        for line in path.read_bytes().splitlines()
    }
    return records | {
        (path, path.stat().st_mtime_ns)
        for path in directory.glob(f"**/{CHECKPOINTS}/step_*/{STATE}")
    }


def require_run_folder(directory: Path, resume: bool) -> None:
    """Check that a run may be written to `directory`.

    Raises:
        TransductError: its name is an address or not UTF-8, or it is a file, holds a run that is
            not to be resumed, or other files.
    """
    require_folder(directory)
    name = os.fsencode(directory).decode(errors="replace")
    problem = f"{name}: its name is not UTF-8; choose another name for --out"
    with rewording(UnicodeEncodeError, problem):
        str(directory).encode()
    require(
        not directory.exists() or directory.is_dir(),
        f"{directory}: this is a file; --out names a folder",
    )
    if (directory / RECIPE).exists():
        require(
            resume or _is_restart(directory),
            f"{directory}: holds another run; continue it with --resume or choose another --out",
        )
        return
    require(
        not directory.exists()
        or all(each.name == LOCK or _is_leftover(each) for each in directory.iterdir()),
        f"{directory}: holds files that do not belong to a run; choose an empty or a new folder "
        "for --out",
    )


def _check_same(
    directory: Path, recipe: Recipe, parts: Mapping[Path, Recipe], notify: Notify
) -> None:
    """Refuse to resume a run with other stages, or a part of it with another model or other
    data."""
    whole = own_recipe(directory)
    structure = {
        "stages": (len(whole.stages), len(recipe.stages)),
        "ensemble": (str(whole.ensemble).lower(), str(recipe.ensemble).lower()),
    }
    for name, (begun, given) in structure.items():
        require(
            begun == given,
            f"{directory}: its run has {name}={begun}, the recipe says {given}; {OWN_RECIPE}",
        )
    for folder, part in parts.items():
        if (folder / RECIPE).exists():
            before = own_recipe(folder)
            # that model, or the whole run, may have moved
            model = {**before.model, "start_from": part.model.get("start_from")}
            # With defaults filled in on both sides, a key that was left out equals its default.
            _compare(with_defaults(replace(before, model=model), folder), part, folder, notify)


def _let_go() -> None:
    """Close the locks in a newly forked process, such as a loader's worker.

    A lock is held until every process has closed it, and a worker outlives a killed parent by some
    seconds.
    """
    for handle in LOCKS:
        os.close(handle)
    LOCKS.clear()


os.register_at_fork(after_in_child=_let_go)


def _lock(handle: int, directory: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise TransductError(
                f"{directory}: another process trains here; wait for it or stop it"
            ) from error
        raise disk_error(directory, error) from error


def _is_leftover(path: Path) -> bool:
    """Whether this is a half-written file or directory of a process that was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")


def _compare(begun: Recipe, given: Recipe, directory: Path, notify: Notify) -> None:
    """Refuse to resume with another model or other data; notify about every other difference."""
    finished = is_finished(directory, given.training)
    # What may differ: it does not change what a step computes.
    free = {
        "data.root",
        "data.corpus",  # its content is compared where it is opened
        "data.workers",
        "data.broken",
        "data.metrics",
        "data.bleu_tokenize",
        "model.start_from",
        "training.backup",
    }
    if None in (begun.training.get("batches_per_step"), given.training.get("batches_per_step")):
        free.add("training.batches_per_step")
    both = begun.model, given.model
    free |= {
        f"model.{key}"
        for key, value in RETIRED.items()
        if all(model.get(key, value) == value for model in both)
    }
    # BLEU by another tokenizer is not comparable
    if begun.training.get("best") == "bleu" and not finished:
        free.remove("data.bleu_tokenize")
    for section in ("task", "data", "tokenizer", "model", "training", "decoding"):
        old, new = getattr(begun, section), getattr(given, section)
        pairs = {section: (old, new)}
        if isinstance(old, dict) and isinstance(new, dict):
            pairs = {f"{section}.{key}": (old.get(key), new.get(key)) for key in {**old, **new}}
        for name, (before, after) in pairs.items():
            if before == after:
                continue
            if name in free:
                value = ",".join(after) if isinstance(after, list) else after
                require(
                    not finished or name not in SCORING or after == "auto",
                    f"{directory}: this run is finished and its scores are by {name}={before}; for "
                    f"others run: transduct evaluate {directory} --set "
                    f"{name.removeprefix('data.')}={value}",
                )
                continue
            require(
                section in ("training", "decoding")
                and name not in ("training.ema", "training.optimiser"),
                f"{directory}: its run has {name}={before}, the recipe says {after}; {OWN_RECIPE}",
            )
            if not finished:
                notify(f"{name} was {before}, goes on with {after}")
                continue
            remedy = "another may start from its model (model.start_from)"
            if (last_step(directory) or 0) < begun.training.get("steps", 0):
                remedy = "patience stopped it; to go on add training.patience=0"
            found = f"{name} stays {before}, not {after}: this run is finished"
            notify(f"{directory}: {found}; {remedy}")
