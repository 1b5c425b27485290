"""A second copy of a run, `training.backup`: at an address or in another folder. A run whose own
folder is lost goes on from there.

It has the names of the run's folder. A checkpoint there is whole or not there, since its state,
which holds the digests of its other files, is written last and removed first.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from transduct.config import Recipe, absolute_path, stages_of
from transduct.data.places import content_at, copy_from, copy_to, names_below, remove_at
from transduct.errors import TrainingFailed, TransductError, require
from transduct.predictors.base import Notify
from transduct.runs.directory import LOCK, launcher, locked, own_recipe, require_run_folder
from transduct.storage import CHECKPOINTS, CONFIG, RECIPE, STATE, remove
from transduct.training.distributed import Ranks

# The files that are copied. What is hidden or was prepared of the corpus is made again.
NAME = r"[\w-][\w.-]*"
FOLDER = re.compile(rf"(stage_\d+/)?(model|{CHECKPOINTS}/step_\d+)/")
FILE = re.compile(rf"({FOLDER.pattern}({NAME}/)*|(stage_\d+/)?){NAME}")
KEY = "training.backup"
PROBLEM = 500  # characters of what went wrong, which all ranks get in a small message


def address_of(recipe: Recipe) -> str | None:
    """Where the run of a recipe has its backup; None if nowhere.

    Raises:
        TransductError: files cannot be written there, or stages name several.
    """
    addresses = [stage.training.get("backup") for stage in stages_of(recipe)]
    several = "{key} is one for the whole recipe; write it above stages"
    require(all(each == addresses[0] for each in addresses), several, key=KEY)
    if not isinstance(addresses[0], str):  # what is no text is refused where the task is made
        return None
    message = f"{{key}} is '{addresses[0]}'; expected s3://..., gs://... or a folder"
    require(addresses[0] and not addresses[0].startswith("http"), message, key=KEY)
    return absolute_path(addresses[0]).rstrip("/")


class Backup:
    """The copy of the run in a folder at an address."""

    def __init__(self, directory: Path, address: str) -> None:
        self.directory, self.address = directory, address
        # what was copied: sizes and times of files, by the last of them, see `_last_of`
        self.copied: dict[str, Any] = {}
        self.thread = ThreadPoolExecutor(1)

    def open(self, resume: bool, notify: Notify) -> None:
        """Fetch the run if the folder holds none and the address does; check that files can be
        written there.

        Raises:
            TransductError: the address holds another run, or cannot be reached or written to.
        """
        require_run_folder(self.directory, resume)
        there, begun = self._there(), (self.directory / RECIPE).exists()
        if begun and RECIPE in there:
            own = (self.directory / RECIPE).read_bytes()
            same = address_of(own_recipe(self.directory)) == self.address
            # The recipe of a finished run stays as it was, whatever address it gets later.
            same = same or own == content_at(f"{self.address}/{RECIPE}")
            require(same, "holds another run; choose another {key}", key=KEY, file=self.address)
            if _newest(there) > _newest(self._here()):
                notify(
                    f"warning: the checkpoints at {self.address} are newer than those in "
                    f"{self.directory}, which replace them; for those there choose a new --out"
                )
        elif RECIPE in there:
            require(
                resume or self._is_restart(),
                "holds another run; continue it with --resume or choose another {key}",
                key=KEY,
                file=self.address,
            )
        with locked(self.directory):
            if RECIPE in there and not begun:
                notify(f"fetching the run at {self.address}")
                self._fetch(there)
            self._put([LOCK])

    def copy(self, ranks: Ranks) -> str:
        """Copy what has changed, and remove there what was removed here. Each rank copies some of
        a checkpoint's files.

        Returns what went wrong; the next call tries again.
        """
        first, changed = ranks.rank == 0, self._changed()
        while True:
            last, problem = self._together(ranks, next, changed if first else iter(()), "")
            last = ranks.exchange(last)()[0]
            if problem or not last:
                return problem
            _, problem = self._together(ranks, self._put_pieces, last, ranks)
            if not problem:
                _, problem = self._together(ranks, self._put, [last] if first else [])
            if problem:
                return problem

    def finish(self) -> None:
        """Copy what has changed since the last checkpoint, such as the finished model.

        Raises:
            TrainingFailed: something could not be copied.
        """
        problem = self.copy(Ranks())
        message = (
            f"{self.directory} is whole, its backup is not: {problem}; copy it with {{resume}}"
        )
        require(not problem, message, TrainingFailed)

    def _together(self, ranks: Ranks, work: Callable[..., Any], *given: Any) -> tuple[Any, str]:
        """What a function returns on this rank, and what went wrong on one of the ranks, all of
        which call this."""
        mine = self.thread.submit(_tried, work, *given)
        # A rank that copies for long is heard meanwhile, so that one which hangs is noticed.
        while not all(ranks.exchange(mine.done())()):
            wait([mine], 1.0)
        result, problem = mine.result()
        return result, next(filter(None, ranks.exchange(problem[:PROBLEM])()), "")

    def _put_pieces(self, last: str, ranks: Ranks) -> None:
        """Copy the files that belong to the last one, each rank its own pieces."""
        folder = FOLDER.match(last)
        names = self._names(self.directory / folder[0]) if folder else set()
        self._put([name for name in names - {last} if _piece(name) % ranks.world == ranks.rank])

    def _put(self, names: list[str]) -> None:
        for name in names:
            copy_from(self.directory / name, f"{self.address}/{name}")

    def _changed(self) -> Iterator[str]:
        """The last file of each of those that belong together and have changed. Who goes on with
        the next has copied them."""
        there, here = names_below(self.address), self._here()
        # Where the disk of a folder went away, nothing is written in its place.
        gone = "its files are gone; see that its disk is there, or begin it anew with --resume"
        require(LOCK in there, gone, file=self.address)
        for last, names in here.items():
            stats = [(self.directory / name).stat() for name in names]
            now = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
            same = last in there and self.copied.get(last) == now
            if last.endswith(f"/{STATE}") and last in there and last not in self.copied:
                # an earlier process has copied it
                same = content_at(f"{self.address}/{last}") == (self.directory / last).read_bytes()
            if not same:
                if FOLDER.match(last) and last in there:
                    remove_at(self.address, [last])  # until all is copied
                yield last
            self.copied[last] = now
        # Only now: until the new ones are whole, the old ones are all there is.
        old = {name for name in there if STATE in _last_of(name) and self._is_gone(name)}
        remove_at(self.address, {_last_of(name) for name in old} & there)
        remove_at(self.address, {name for name in old if name != _last_of(name)})

    def _is_gone(self, name: str) -> bool:
        return not (self.directory / name).parent.exists()

    def _here(self) -> dict[str, list[str]]:
        """The files of the run by the last of those that belong together, the newest checkpoint
        last."""
        found = _together(self._names(self.directory))
        return dict(sorted(found.items(), key=lambda item: (STATE in item[0], _numbers(item[0]))))

    def _names(self, folder: Path) -> set[str]:
        paths = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(self.directory).as_posix() for path in paths}

    def _there(self) -> dict[str, list[str]]:
        """The same of the files at the address."""
        return _together(names_below(self.address))

    def _is_restart(self) -> bool:
        """Whether the same launcher has begun the run there, on a machine that is lost."""
        return bool(launcher()) and content_at(f"{self.address}/{LOCK}") == launcher().encode()

    def _fetch(self, there: dict[str, list[str]]) -> None:
        part = self.directory / ".backup.part"
        remove(part)
        for name in (name for names in there.values() for name in names):
            copy_to(f"{self.address}/{name}", part / name)
        # With its recipe a folder holds a run.
        for path in sorted(part.iterdir(), key=lambda path: path.name == RECIPE):
            path.rename(self.directory / path.name)
        remove(part)


def _last_of(name: str) -> str:
    """The file that is copied last of those that belong together. Without it they do not count."""
    folder = FOLDER.match(name)
    if folder is None:
        return name
    return folder[0] + (CONFIG if folder[2] == "model" else STATE)


def _piece(name: str) -> int:
    """The rank whose pieces are in a file of a checkpoint. It follows from the name: in a shared
    folder each rank sees its own files at once, and those of others perhaps later."""
    found = re.search(r"/shard-(\d+)-", name)
    return int(found[1]) - 1 if found else 0


def _together(names: set[str]) -> dict[str, list[str]]:
    """The files that are copied, by the last of those that belong together; it ends its list. Those
    that lack it are left out."""
    found: dict[str, list[str]] = {}
    for name in sorted(
        filter(FILE.fullmatch, names), key=lambda name: (name == _last_of(name), name)
    ):
        found.setdefault(_last_of(name), []).append(name)
    return {last: each for last, each in found.items() if last in names}


def _numbers(name: str) -> list[int]:
    """The numbers in a name: of a checkpoint its stage and step."""
    return [int(number) for number in re.findall(r"\d+", name)]


def _newest(files: dict[str, list[str]]) -> list[int]:
    """The numbers of the newest checkpoint."""
    return max((_numbers(last) for last in files if last.endswith(f"/{STATE}")), default=[])


def _tried(work: Callable[..., Any], *given: Any) -> tuple[Any, str]:
    """What a function returns, and what went wrong."""
    try:
        return work(*given), ""
    except TransductError as error:
        return None, str(error)
