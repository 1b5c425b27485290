"""Claim a run directory: refuse another run's, lock out other processes, remove a run that failed before it began."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from transduct.config import Recipe, dump, load_recipe
from transduct.errors import TrainingFailed, TransductError
from transduct.training.checkpoint import CONFIG, STATE, disk_error, write_file
from transduct.training.log import LOG

RECIPE = "recipe.yaml"
HELD: set[int] = set()  # the locks of this process
# Errors of no file: another place would not help.
OF_THE_MACHINE = (errno.EPIPE, errno.ESHUTDOWN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN)
OWN_RECIPE = "resume with the run's own recipe or choose another --out"


@contextmanager
def claimed(
    directory: Path,
    recipe: Recipe,
    resume: bool,
    notify: Callable[[str], None],
    parts: Mapping[Path, Recipe],
    filled_in: Callable[[Recipe, Path], Recipe],
) -> Iterator[None]:
    """`directory` as this run's own, its recipe written unless it is finished, while no other process trains in it.

    Args:
        parts: what is compared with what is there: the run itself, or each of its stages.
        filled_in: a recipe, as it stands in a folder, with every default.

    Raises:
        TransductError: it is another run's, another process trains in it, or it cannot be written.
        TrainingFailed: it is interrupted; what is prepared stays for whoever goes on.
    """
    held, finished = directory / RECIPE, (directory / "model" / CONFIG).exists()
    require_room(directory, resume)
    if held.exists():
        _check_same(directory, recipe, parts, filled_in, notify)
    if finished and not os.access(directory, os.W_OK):
        yield  # nothing is written where a run is finished, so it may lie where nothing can be
        return
    before, made, done = held.read_bytes() if held.exists() else None, not directory.exists(), _done(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise disk_error(directory, error) from error
    HELD.add(lock)
    try:
        _lock(lock, directory)
        try:
            _remove(filter(_is_left, directory.iterdir()))
            if not finished:
                write_file(held, dump(asdict(recipe)).encode())
            yield
        except TrainingFailed:
            raise  # it had begun: what it says is to be read, or it goes on
        except (KeyboardInterrupt, Exception) as error:
            if before is not None and _done(directory) <= done:
                write_file(held, before)  # what it did not go on with is not what it goes on with next
            if isinstance(error, KeyboardInterrupt):
                raise TrainingFailed("interrupted; go on with --resume") from None
            if before is None and not any(directory.glob("**/checkpoints/step_*")):
                _remove(directory.iterdir())  # so that the corrected call may start afresh
                if made:
                    with suppress(OSError):  # a network's file system keeps a lock that is open
                        directory.rmdir()
            if isinstance(error, FileNotFoundError) and error.filename:
                raise TransductError(f"{error.filename}: is missing; copy it back") from error
            if isinstance(error, OSError) and error.errno not in OF_THE_MACHINE:
                raise disk_error(Path(error.filename or directory), error) from error
            raise
    finally:
        HELD.discard(lock)
        os.close(lock)


def _done(directory: Path) -> set[tuple[Path, bytes | int]]:
    """The records in a run's logs and when its checkpoints were written: there is a new one once it has gone on."""
    records = {(path, line) for path in directory.glob(f"**/{LOG}") for line in path.read_bytes().splitlines()}
    return records | {(path, path.stat().st_mtime_ns) for path in directory.glob(f"**/checkpoints/step_*/{STATE}")}


def require_room(directory: Path, resume: bool) -> None:
    """Refuse a place for a run that is a file, or holds another run or anything else.

    Raises:
        TransductError: it does.
    """
    if directory.exists() and not directory.is_dir():
        raise TransductError(f"{directory}: this is a file; --out names a folder")
    if (directory / RECIPE).exists():
        if not resume:
            raise TransductError(f"{directory}: holds another run; continue it with --resume or choose another --out")
    elif directory.exists() and any(p.name != ".lock" and not _is_left(p) for p in directory.iterdir()):
        raise TransductError(f"{directory}: holds files that are no run; choose an empty or a new folder for --out")


def _check_same(
    directory: Path,
    recipe: Recipe,
    parts: Mapping[Path, Recipe],
    filled_in: Callable[[Recipe, Path], Recipe],
    notify: Callable[[str], None],
) -> None:
    """Refuse to go on with a run of another make, or of whose `parts` one has another model or other data."""
    before = load_recipe(directory / RECIPE)
    made = {
        "stages": (len(before.stages), len(recipe.stages)),
        "ensemble": (str(before.ensemble).lower(), str(recipe.ensemble).lower()),
    }
    for name, (held, given) in made.items():
        if held != given:
            raise TransductError(f"{directory}: its run has {name}={held}, the recipe says {given}; {OWN_RECIPE}")
    for folder, part in parts.items():
        if (folder / RECIPE).exists():
            before = load_recipe(folder / RECIPE)
            start = {"start_from": part.model.get("start_from")}  # the model may have moved, or the whole run
            before = filled_in(replace(before, model={**before.model, **start}), folder)
            _compare(before, part, folder, notify)


def _let_go() -> None:
    """In a process that has just been forked, such as a loader's: a lock is free when nobody has it open any more, and
    such a process outlives, by some seconds, one that is killed."""
    for handle in HELD:
        os.close(handle)
    HELD.clear()


os.register_at_fork(after_in_child=_let_go)


def _lock(handle: int, directory: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise TransductError(f"{directory}: another process trains here; wait for it or stop it") from error
        raise disk_error(directory, error) from error


def _is_left(path: Path) -> bool:
    """Whether this is a file or a directory that was not finished when whoever wrote it was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")


def _remove(paths: Iterable[Path]) -> None:
    """Remove files, and folders with all that is in them."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _compare(held: Recipe, given: Recipe, directory: Path, notify: Callable[[str], None]) -> None:
    """Refuse to go on with another model or other data; say what else has changed, or would have if it went on."""
    finished = (directory / "model" / CONFIG).exists()
    free = {"data.root", "data.workers", "data.broken", "data.metrics", "data.bleu_tokenize", "model.start_from"}
    if held.training.get("best") == "bleu" and not finished:  # of another tokenizer it would not compare
        free.remove("data.bleu_tokenize")
    for section in ("task", "data", "tokenizer", "model", "training", "decoding"):
        old, new = getattr(held, section), getattr(given, section)
        pairs = {section: (old, new)}
        if isinstance(old, dict) and isinstance(new, dict):
            pairs = {f"{section}.{key}": (old.get(key), new.get(key)) for key in {**old, **new}}
        for name, (before, after) in pairs.items():
            if before == after or name in free:
                continue
            if section not in ("training", "decoding") or name in ("training.ema", "training.optimiser"):
                raise TransductError(f"{directory}: its run has {name}={before}, the recipe says {after}; {OWN_RECIPE}")
            if finished:
                remedy = "another may start from its model (model.start_from)"
                notify(f"{directory}: {name} stays {before}, not {after}: this run is finished; {remedy}")
            else:
                notify(f"{name} was {before}, goes on with {after}")
