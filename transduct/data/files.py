"""Files, compressed or many in an archive, such as pictures and sounds: opened, refused by name, packed."""

import gzip
import io
import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa

from transduct.errors import MissingExtra, TransductError

Policy = Literal["stop", "skip"]
Content = Callable[[], bytes]
NAMED = 10  # refused files that are named; the rest is counted
BLOCK = 1 << 20
HEAVIEST = 1000  # times that an epoch shows a row at most
WORKERS = 256  # processes at most; a slip of the finger must not start a million
NO_FILE = "no such file; check the path (those in a recipe start at data.root)"
BESIDE = "._"  # how names begin of what macOS lays beside a file
SHORT = {".tgz": ".gz", ".txz": ".xz", ".tzst": ".zst"}  # endings, of what they stand for
STARTS = {  # of files, and what these are
    b"\x1f\x8b": "gzip", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstandard", b"BZh": "bzip2",
    b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf": "a 7z archive", b"Rar!": "a rar archive",
}  # fmt: skip
LARGEST_FILE = 1 << 30  # bytes of a file; what is larger is no picture and no sound, and is refused before it is read
SAYING_MORE = (  # types of headers that belong to the next one, with its name for example, and are read as a whole
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
WORDS_AT_ONCE = 1 << 22  # of packed pictures that are handed on at a time, four bytes each


def require_files(data: Any, tested: bool = False) -> None:
    """Refuse a recipe's `data` section whose files to train and to validate on, and with `tested` to test on, are not
    there or can be read once alone.

    Raises:
        TransductError: one is such.
    """
    for source in filter(None, (*data.train, data.valid, data.test if tested else None)):
        for name in source.files():
            require_file(Path(data.root) / name)


def require_file(path: Path) -> None:
    """Refuse what is not there or has a name that no manifest can hold, and a pipe: training reads more than once.

    Raises:
        TransductError: it is such.
    """
    try:
        found = path.stat()
        str(path).encode()
    except UnicodeEncodeError as error:
        raise TransductError(f"{_shown(str(path))}: its name is not UTF-8; rename it") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TransductError(f"{path}: {NO_FILE}") from error
    except OSError as error:
        raise TransductError(f"{path}: cannot be read ({error.strerror}); check it and its folder") from error
    if stat.S_ISFIFO(found.st_mode):
        raise TransductError(f"{path}: a pipe, which can be read once; training reads more often: write a file first")


def check_section(data: Any) -> None:
    """Refuse a `data` section with nothing to train on, a number of workers that there cannot be, or weights of what is
    not trained on.

    Raises:
        ValueError: it is such a one.
    """
    if not data.train:
        raise ValueError("train is empty; name at least one corpus")
    if not 0 <= data.workers <= WORKERS:
        raise ValueError(f"workers is {data.workers}, must be from 0 to {WORKERS}")
    for split in ("valid", "test"):
        if (weight := getattr(getattr(data, split), "weight", 1.0)) != 1.0:
            raise ValueError(f"{split}.weight is {weight}, must be 1: what is measured on is read once")


def check_weight(weight: float) -> None:
    """Refuse a weight that is not above 0, or so large that the plan of an epoch would not fit into memory.

    Raises:
        ValueError: it cannot.
    """
    if not 0 < weight <= HEAVIEST:
        raise ValueError(f"weight is {weight}; give a number above 0, at most {HEAVIEST}, or leave the corpus out")


def names_of(sources: Iterable[Any]) -> list[str]:
    """The files of all sources, as the recipe names them."""
    return [name for source in sources for name in source.files()]


def read_members(path: Path, endings: Sequence[str]) -> Iterator[tuple[str, Content]]:
    """The files of an archive, in its order, or of a folder, sorted: of each with such an ending its name and content.

    An archive is a tar, plain or compressed with gzip, xz or zstandard; nothing of it is ever written to disk. Names
    are relative ("cat/0001.jpg"), endings are compared in lower case (".jpg"). A link that leads nowhere and has no
    ending comes too, to be refused: it may have led to a folder of such files. What macOS lays beside a file ("._cat")
    does not come.

    A content that cannot be read is refused when it is called, so that one may be left out and the rest go on. So is
    that of a name which an archive has twice.

    Raises:
        TransductError: nothing is there, it is no such archive, it is damaged, or a folder in it cannot be read; and
            when a content is called: the file cannot be read, has a name that is not UTF-8, or is too large.
    """
    wanted = tuple(endings)
    if path.is_dir():
        for file in files_below(path):
            lost = not file.suffix and os.path.islink(file) and not os.path.exists(file)
            if (lost or file.name.lower().endswith(wanted)) and not file.name.startswith(BESIDE):
                name = file.relative_to(path).as_posix()
                yield _shown(name), partial(_read, path, name)
        return
    seen: set[str] = set()
    with opened(path) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:
                for member in iter(archive.next, None):
                    archive.members.clear()  # type: ignore[attr-defined]  # which nothing asks for
                    lost = member.issym() and not Path(member.name).suffix
                    beside = Path(member.name).name.startswith(BESIDE)
                    if not member.isdir() and not beside and (lost or member.name.lower().endswith(wanted)):
                        name = member.name.removeprefix("./")
                        content = partial(_member, path, member, _held(archive, member), name in seen)
                        seen.add(name)
                        yield _shown(name), content
                    _pass_over(archive)
                _check_end(archive)
        except (tarfile.TarError, ValueError, RecursionError) as error:  # of headers too; a header may follow another
            if kind := _kind(path):
                expected = "expected a tar, plain or compressed as its name says (.tar.gz, .tar.xz, .tar.zst)"
                raise TransductError(f"{path}: found {kind}, {expected}; name it so or pack it anew") from error
            raise TransductError(f"{path}: not a whole tar archive ({error}); fetch it again") from error


def _kind(path: Path) -> str | None:
    """What a file is by its first bytes, where its name says something else."""
    if _compression(path) in SHORT.values() or not path.is_file():
        return None
    with path.open("rb") as file:
        return kind_of(file.read(6))


def kind_of(first: bytes) -> str | None:
    """What kind of compressed file begins with these bytes, if one does."""
    return next((kind for start, kind in STARTS.items() if first.startswith(start)), None)


class _Header(tarfile.TarInfo):
    """The header of a member. Python's own reader takes a damaged one for the end of the archive, and reads one of any
    length into memory."""

    @classmethod
    def frombuf(cls, *given: Any) -> "_Header":
        try:
            header = super().frombuf(*given)
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"{error} in a header") from error
        if header.type in SAYING_MORE and header.size > BLOCK:
            raise tarfile.ReadError(f"a header of {header.size:,} bytes, at most {BLOCK:,} are read")
        return header


def _pass_over(archive: tarfile.TarFile) -> None:
    """Read what is left of a member: Python's own reader goes on for ever behind one that claims to be huge."""
    stream: Any = archive.fileobj
    while (left := archive.offset - stream.tell()) > 0:
        if not stream.read(min(left, BLOCK)):
            raise tarfile.ReadError("it ends within a file")


def _check_end(archive: tarfile.TarFile) -> None:
    """Refuse an archive without the mark at its end, or with more behind it; damage is found there by the checksum."""
    stream: Any = archive.fileobj
    if stream.tell() < archive.offset + tarfile.BLOCKSIZE:
        raise tarfile.ReadError("the mark at its end is missing")
    while rest := stream.read(BLOCK):
        if rest.strip(b"\0"):
            raise tarfile.ReadError("it goes on behind the mark at its end")


def files_below(folder: Path) -> list[Path]:
    """All that is no folder in a folder and those below it, behind links too, sorted.

    Raises:
        TransductError: a folder cannot be read, or a link leads back to a folder that it lies in.
    """

    def refuse(error: OSError) -> None:
        reason = f"cannot be read ({error.strerror}); make it readable, or take it out"
        raise TransductError(f"{error.filename}: {reason}") from error

    found: list[Path] = []
    for name, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        here = Path(name)
        found += [here / file for file in files]
        for link in (here / each for each in folders):
            target = link.resolve() if os.path.islink(link) else None
            if target and any(above.resolve().is_relative_to(target) for above in (here, *here.parents)):
                raise TransductError(f"{link}: a link back to a folder that it lies in; take it out")
    return sorted(found)


def _compression(path: Path) -> str:
    """The ending that says how a file is compressed, whole."""
    ending = path.suffix.lower()
    return SHORT.get(ending, ending)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed as its ending says."""
    ending = _compression(path)
    openers: dict[str, Callable[[Path], Any]] = {
        ".gz": gzip.open,
        ".xz": lambda path: io.BufferedReader(_XzFile(path), BLOCK),
        ".zst": lambda path: io.BufferedReader(_zst(path), BLOCK),  # Arrow's own streams know no lines
    }
    if path.is_dir():
        raise TransductError(f"{path}: a folder; give a file")
    try:
        if ending in (".gz", ".zst") and path.is_file() and not path.stat().st_size:
            raise EOFError("it is empty")  # which their readers take for nothing, compressed
        with openers.get(ending, partial(open, mode="rb"))(path) as stream:
            yield stream
    except FileNotFoundError as error:
        raise TransductError(f"{path}: {NO_FILE}") from error
    except (OSError, EOFError, UnicodeEncodeError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise TransductError(f"{path}: cannot be read ({error}); fetch or write the file again") from error


def _zst(path: Path) -> Any:
    return pa.CompressedInputStream(pa.PythonFile(path.open("rb"), "r"), "zstd")


class _XzFile(io.RawIOBase):
    """What an .xz file holds, stream after stream, with the padding that may lie between them.

    Python's own reader takes padding, and damage where a stream begins, for the end of the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._stream = lzma.LZMADecompressor()
        self._rest = b""  # what has been read of the stream that begins; a pipe is not read twice
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = b""
        while not found and not self._ended:
            if self._stream.eof:
                self._next_stream()
                continue
            data = b""
            if self._stream.needs_input:
                data, self._rest = self._rest or self._file.read(BLOCK), b""
                if not data:
                    raise EOFError("it ends before its end is marked")
            found = self._stream.decompress(data, len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def _next_stream(self) -> None:
        """Begin the stream after this one; only padding, zeros by the four, may lie before it or the end."""
        rest, padding = self._stream.unused_data, 0
        while held := rest or self._file.read(BLOCK):
            rest = held.lstrip(b"\0")
            padding += len(held) - len(rest)
            if rest:
                break
        if padding % 4:
            raise lzma.LZMAError(f"found {padding} bytes of padding, expected a multiple of 4")
        self._stream, self._rest, self._ended = lzma.LZMADecompressor(lzma.FORMAT_XZ), rest, not rest

    def close(self) -> None:
        self._file.close()
        super().close()


def _shown(name: str) -> str:
    """A name that can be written, whatever its bytes are."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _check(path: Path, name: str, size: int) -> None:
    if _shown(name) != name:
        raise TransductError(f"{path}: '{_shown(name)}': its name is not UTF-8; rename it, and pack the archive again")
    if size > LARGEST_FILE:
        raise TransductError(f"{path}: '{name}': holds {size:,} bytes, at most {LARGEST_FILE:,} are read; take it out")


def _read(folder: Path, name: str) -> bytes:
    """The content of a file in a folder."""
    file = folder / name
    _check(folder, name, 0)
    try:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):  # such as a pipe, on which reading would wait for ever
            raise TransductError(f"{file}: no regular file; take it out")
        _check(folder, name, about.st_size)
        return file.read_bytes()
    except OSError as error:
        reason = "its link leads nowhere" if os.path.islink(file) and not os.path.exists(file) else error.strerror
        raise TransductError(f"{file}: cannot be read ({reason}); check it and its folder") from error


def _held(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """What an archive that is read as a stream holds at this place; nothing of what is refused."""
    content = archive.extractfile(member) if member.isfile() and member.size <= LARGEST_FILE else None
    return b"" if content is None else content.read()


def _member(path: Path, member: tarfile.TarInfo, content: bytes, again: bool) -> bytes:
    """The content of a file in an archive, unless one of its name has come before."""
    _check(path, member.name, member.size)
    if again:
        raise TransductError(f"{path}: '{member.name}': comes twice, and which is meant is not said; pack it again")
    if member.islnk() or member.issym():  # the other end may be far back in the stream, or not in it
        found = f"a link to '{_shown(member.linkname)}'"
        remedy = "pack the archive again, with tar --dereference --hard-dereference"
        raise TransductError(f"{path}: '{member.name}': found {found}, expected a file; {remedy}")
    if not member.isfile():
        raise TransductError(f"{path}: '{member.name}': no regular file; take it out")
    return content


def counted(dropped: Mapping[str, int]) -> str:
    """What was left out, by reason: "3 empty, 12 too long"."""
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items() if count)


class Refused:
    """What happens to a damaged file: training stops at the first, or goes on without it, counted and named.

    Args:
        advise: whether the error that stops it names the policy, which a recipe can change.
    """

    def __init__(self, policy: Policy, advise: bool = True) -> None:
        self.policy, self.advise = policy, advise
        self.errors: list[str] = []
        self.mended: list[str] = []  # what is kept all the same, in part

    @contextmanager
    def each(self) -> Iterator[None]:
        """Wraps the handling of one file: a TransductError inside refuses that file, unless a library is missing."""
        try:
            yield
        except MissingExtra:  # no file's fault
            raise
        except TransductError as error:
            if self.policy == "stop":
                if not self.advise:
                    raise
                raise TransductError(f"{error}; or leave such files out with data.broken=skip") from error
            self.errors.append(str(error))

    @property
    def dropped(self) -> dict[str, int]:
        """For a manifest: how many were left out."""
        return {"broken": len(self.errors)}

    def report(self, notify: Callable[[str], None], about: str = "") -> None:
        """Say what was left out and what was kept in part, if there is any."""
        for what, found in (("left out", self.errors), ("kept in part", self.mended)):
            if found:
                notify(f"{about}{len(found):,} {what}: {_first(found)}")

    def said(self) -> str:
        """What was left out."""
        return _first(self.errors)


def _first(found: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    rest = len(found) - NAMED
    return "; ".join(found[:NAMED]) + (f"; and {rest:,} more" if rest > 0 else "")


def pack(data: bytes | np.ndarray) -> np.ndarray:
    """Bytes, or numbers as the bytes they are, as 32-bit words for a `Corpus`, the last filled up with zeros."""
    held = np.frombuffer(data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes(), np.uint8)
    return np.pad(held, (0, -len(held) % 4)).view(np.int32)


def unpack(words: np.ndarray, size: int, kind: Any = np.uint8) -> np.ndarray:
    """The first `size` numbers of a kind in packed words."""
    return words.astype(np.int32, copy=False).view(kind)[:size]
