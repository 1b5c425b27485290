"""The files of a recipe: found, or refused by name; and examples that are left out because they are
damaged."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from transduct.data.lines import NO_FILE, STDIN, composed, readable, stored
from transduct.data.places import identity, is_address, matching
from transduct.errors import MissingExtra, TransductError, placing, require, rewording
from transduct.records import Checked, Range, refuse_if

Policy = Literal["stop", "skip"]
Notify = Callable[[str], None]
NAMED = 10  # refused files listed by name; the rest are counted
# How often an epoch shows a corpus: a larger number would make a plan that fits no memory.
Weight = Annotated[float, Range(above=0, most=1000, why="to leave a corpus out, do not list it")]
Workers = Annotated[int, Range(0, 256)]  # a typo must not start a million processes
WORDS_AT_ONCE = 1 << 22  # 32-bit words of packed pictures or sounds in one chunk


def require_files(data: Any, tested: bool = False, trained: bool = True) -> None:
    """Check the files of a recipe's `data` section: those of `valid`, with `trained` of `train`,
    and with `tested` also of `test`.

    Raises:
        TransductError: see `require_file`.
    """
    identity.cache_clear()  # of an earlier call
    train = data.train if trained else []
    for source in filter(None, (*train, data.valid, data.test if tested else None)):
        for name in source.files():
            for each in matching(Path(data.root), name):
                if is_address(each):
                    identity(each)
                else:
                    require_file(Path(data.root) / each)


def require_file(path: Path) -> None:
    """Check that a file can be trained on, which reads it more than once.

    Raises:
        TransductError: it is missing or inaccessible, its name is not UTF-8 (the manifest cannot
            hold it), or it is a pipe.
    """
    path = stored(path)
    once = "can be read once; training reads more often: write a file first"
    with (
        placing(readable(str(path))),
        rewording(UnicodeEncodeError, "its name is not UTF-8; rename it"),
        rewording(OSError, "cannot be read ({error}); check it and its folder"),
        rewording(
            (FileNotFoundError, NotADirectoryError),
            f"stdin {once}" if path.name == STDIN else NO_FILE,
        ),
    ):
        status = path.stat()
        str(path).encode()
        require(not stat.S_ISFIFO(status.st_mode), f"a pipe, which {once}")


@dataclass(frozen=True, kw_only=True)
class DataSection(Checked):
    """What the `data` sections of all tasks have in common, beside `train`, `valid` and `test`.

    Attributes:
        broken: `stop` at an example that cannot be used, or `skip` it.
    """

    root: str = "."
    broken: Policy = "stop"
    workers: Workers = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        data: Any = self
        refuse_if(not data.train, "train is empty; name at least one corpus")
        for split in ("valid", "test"):
            refuse_if(
                (weight := getattr(getattr(data, split), "weight", 1.0)) != 1.0,
                f"{split}.weight is {weight}, must be 1: what is measured on is read once",
            )


def corpora(data: Any) -> list[Any]:
    """All corpora of a `data` section: those of `train`, then `valid` and `test` where given."""
    return [*data.train, *filter(None, (data.valid, data.test))]


def composed_labels(labels: Sequence[str]) -> list[str]:
    """The labels of a model in NFC; as they are if it tells two forms of one apart."""
    made = [composed(label) for label in labels]
    return made if len({*made}) == len({*labels}) else list(labels)


def names_of(sources: Iterable[Any]) -> list[str]:
    """The files of all sources, by their names in the recipe."""
    return [name for source in sources for name in source.files()]


def files_below(folder: Path) -> list[Path]:
    """All files in a folder and its subfolders, sorted; links to folders are followed.

    Raises:
        TransductError: a folder cannot be read, or a link leads back to a folder that contains it.
    """

    def refuse(error: OSError) -> None:
        problem = f"cannot be read ({error.strerror}); make it readable, or take it out"
        raise TransductError(problem, file=str(error.filename)) from error

    found: list[Path] = []
    for name, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        here = Path(name)
        found += [here / file for file in files]
        for link in (here / each for each in folders):
            target = link.resolve() if os.path.islink(link) else None
            above = (each.resolve() for each in (here, *here.parents))
            loops = target and any(each.is_relative_to(target) for each in above)
            require(
                not loops, "a link back to a folder that contains it; remove it", file=str(link)
            )
    return sorted(found)


def in_words(dropped: Mapping[str, int]) -> str:
    """Counts of dropped examples as text: "3 empty, 12 too long"."""
    return ", ".join(
        f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items() if count
    )


class Refused:
    """Handles damaged files by a policy: "stop" at the first, or "skip" them and report how many
    and which.

    Args:
        advise: whether the error that stops mentions `data.broken`, for files named in a recipe.
    """

    def __init__(self, policy: Policy, advise: bool = True) -> None:
        self.policy, self.advise = policy, advise
        self.errors: list[str] = []
        self.trimmed: list[str] = []  # files kept in part

    @contextmanager
    def each(self) -> Iterator[None]:
        """Wrap the handling of one file: a TransductError inside refuses it, unless a library is
        missing."""
        try:
            yield
        except MissingExtra:  # no file's fault
            raise
        except TransductError as error:
            if self.policy == "stop":
                if not self.advise:
                    raise error.at(skippable=True) from error
                raise error.adding("; or leave such out with data.broken=skip") from error
            self.errors.append(str(error))

    @property
    def dropped(self) -> dict[str, int]:
        """How many were left out, for a manifest."""
        return {"broken": len(self.errors)}

    def report(self, notify: Notify, about: str = "") -> None:
        """Report the files left out and those kept in part, if any."""
        for outcome, messages in (("left out", self.errors), ("kept in part", self.trimmed)):
            if messages:
                notify(f"{about}{len(messages):,} {outcome}: {_first(messages)}")

    def summary(self) -> str:
        """The errors of the files left out."""
        return _first(self.errors)


def _first(messages: Sequence[str]) -> str:
    rest = len(messages) - NAMED
    return "; ".join(messages[:NAMED]) + (f"; and {rest:,} more" if rest > 0 else "")


def pack(data: bytes | np.ndarray) -> np.ndarray:
    """Bytes, or the bytes of an array, as 32-bit words for a `Corpus`; the last is filled up with
    zeros."""
    content = np.frombuffer(
        data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes(), np.uint8
    )
    return np.pad(content, (0, -len(content) % 4)).view(np.int32)


def unpack(words: np.ndarray, size: int, kind: Any = np.uint8) -> np.ndarray:
    """The inverse of `pack`: the first `size` numbers of a dtype in packed words."""
    return words.astype(np.int32, copy=False).view(kind)[:size]
