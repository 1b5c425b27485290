"""Translated documents, kept for an hour under names that nobody can guess."""

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe

from transduct.storage import remove, write_file

SECONDS, MOST = 3600.0, 2 << 30  # how long each is kept, and the most bytes of all
NAME = re.compile(r"[\w-]{43}\.[a-z]{2,5}", re.ASCII)


class Downloads:
    """A folder of documents, which several servers may have in common.

    Args:
        folder: None for one of this process alone, which goes with it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._own: tempfile.TemporaryDirectory[str] | None = None

    def keep(self, content: bytes, ending: str) -> str:
        """Keep a document, and return its name; old ones go.

        Raises:
            TransductError: the disk is full, or nothing can be written there.
        """
        if self._folder is None:
            self._own = tempfile.TemporaryDirectory(prefix="transduct-")
            self._folder = Path(self._own.name)
        total = len(content)
        for age, size, path in sorted(_kept(self._folder)):
            total += size
            if age > SECONDS or total > MOST:
                remove(path)
        name = token_urlsafe(32) + ending
        write_file(self._folder / name, content)
        return name

    def find(self, name: str) -> bytes | None:
        """The document of a name, or None."""
        if self._folder is not None and NAME.fullmatch(name):
            with suppress(FileNotFoundError):
                path = self._folder / name
                return path.read_bytes() if _age(path.stat().st_mtime) <= SECONDS else None
        return None

    def close(self) -> None:
        """Remove the folder, if it is of this process alone."""
        if self._own:
            self._own.cleanup()
            self._folder = self._own = None


def _kept(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """The age in seconds, the size and the place of each document."""
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another server has removed it
            if NAME.fullmatch(path.name):
                facts = path.stat()
                yield _age(facts.st_mtime), facts.st_size, path


def _age(written: float) -> float:
    return time.time() - written
