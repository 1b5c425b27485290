"""The files in a folder, or in a tar archive, which is read from its start to its end and never
unpacked."""

import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transduct.data.files import files_below
from transduct.data.lines import (
    SHORT,
    SIGNATURE,
    TAR,
    UNPACK,
    composed,
    compression,
    opened,
    readable,
    stored,
    unlike_text,
)
from transduct.errors import TransductError, require, rewording

Content = Callable[[], bytes]
METADATA = "._"  # prefix of the files in which macOS keeps metadata (AppleDouble)
BLOCK = 1 << 20  # bytes read at a time
LARGEST_FILE = 1 << 30  # bytes; a larger picture or sound is refused before it is read
# types of headers that extend the next one, for example by a long name, and are read into memory
EXTENDED_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


def read_members(path: Path, endings: Sequence[str]) -> Iterator[tuple[str, Content]]:
    """Iterate over the files with given endings in a tar archive (in its order) or a folder
    (sorted).

    Yields the name of each file and a function that returns its content; calling it raises
    TransductError if this one file is unreadable, so that the caller can skip it and go on. An
    archive may be compressed with gzip, xz or zstandard and is never unpacked to disk. Names are
    relative ("cat/0001.jpg") and composed (NFC); endings are in lower case (".jpg") and match
    either case. Dangling links without an ending are yielded too, for they may have led to a folder
    of such files; the metadata files of macOS ("._cat.jpg") are not.

    Raises:
        TransductError: the path is missing, not a tar archive, or damaged, or a folder in it cannot
            be read; from a content: the file cannot be read, is too large, or its name is not UTF-8
            or occurs twice in the archive.
    """
    path = stored(path)

    def is_wanted(name: str, is_link: bool) -> bool:
        found = name.lower().endswith(tuple(endings)) or (is_link and not Path(name).suffix)
        return found and not Path(name).name.startswith(METADATA)

    for name, content in (_in_folder if path.is_dir() else _in_archive)(path, is_wanted):
        yield composed(readable(name)), content


IsWanted = Callable[[str, bool], bool]  # of a name, and whether it is of a link without a target


def _in_folder(folder: Path, is_wanted: IsWanted) -> Iterator[tuple[str, Content]]:
    for file in files_below(folder):
        name = file.relative_to(folder).as_posix()
        if is_wanted(name, _is_dangling(file)):
            yield name, partial(_read, folder, name)


def _in_archive(path: Path, is_wanted: IsWanted) -> Iterator[tuple[str, Content]]:
    seen: set[str] = set()
    with opened(path) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:
                for member in iter(archive.next, None):
                    archive.members.clear()  # type: ignore[attr-defined]  # else all stay
                    name = member.name.removeprefix("./")
                    if not member.isdir() and is_wanted(name, member.issym()):
                        content = _content(archive, member)
                        yield name, partial(_member, path, member, content, name in seen)
                        seen.add(name)
                    _pass_over(archive)
                _check_end(archive)
        # RecursionError: headers in a row
        except (tarfile.TarError, ValueError, RecursionError) as error:
            problem = f"not a whole tar archive ({error}); fetch it again"
            if not {".tar", *SHORT} & {each.lower() for each in path.suffixes}:
                problem = "no tar archive; give one (.tar, .tar.gz, ..), or the folder of the files"
            if kind := _kind(path):
                problem = (
                    f"found {kind}, expected a tar, plain or compressed as its name says (.tar.gz, "
                    ".tar.xz, .tar.zst); name it so or pack it anew"
                )
            raise TransductError(problem, file=str(path)) from error


def _kind(path: Path) -> str | None:
    """The format of a file by its first bytes, unless its ending names its compression."""
    if compression(path) in SHORT.values() or not path.is_file():
        return None
    with path.open("rb") as file:
        found = unlike_text(file.read(SIGNATURE))
        return found[0] if found and found[1] == UNPACK and found[0] != TAR else None


class _Header(tarfile.TarInfo):
    """A header that raises where tarfile would take a damaged one for the end of the archive, or
    read an extension header of any length into memory."""

    @classmethod
    def frombuf(cls, *args: Any) -> "_Header":
        try:
            header = super().frombuf(*args)
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"{error} in a header") from error
        if header.type in EXTENDED_HEADERS and header.size > BLOCK:
            raise tarfile.ReadError(
                f"a header of {header.size:,} bytes, at most {BLOCK:,} are read"
            )
        return header


def _pass_over(archive: tarfile.TarFile) -> None:
    """Skip the rest of a member; tarfile itself would loop for ever behind one that claims to be
    huge."""
    stream: Any = archive.fileobj
    while (left := archive.offset - stream.tell()) > 0:
        if not stream.read(min(left, BLOCK)):
            raise tarfile.ReadError("it ends within a file")


def _check_end(archive: tarfile.TarFile) -> None:
    """Check the end-of-archive mark and that nothing follows it; reading to the end also checks a
    gzip checksum."""
    stream: Any = archive.fileobj
    if stream.tell() < archive.offset + tarfile.BLOCKSIZE:
        raise tarfile.ReadError("the mark at its end is missing")
    while rest := stream.read(BLOCK):
        if rest.strip(b"\0"):
            raise tarfile.ReadError("data follows the end-of-archive marker")


def _check(path: Path, name: str, size: int) -> None:
    place, rename = f"{path}: '{readable(name)}'", "rename it, and pack the archive again"
    require(readable(name) == name, f"its name is not UTF-8; {rename}", file=place)
    require(
        size <= LARGEST_FILE,
        f"holds {size:,} bytes, at most {LARGEST_FILE:,} are read; take it out",
        file=place,
    )


def _is_dangling(file: Path) -> bool:
    return os.path.islink(file) and not os.path.exists(file)


def _read(folder: Path, name: str) -> bytes:
    file = folder / name
    _check(folder, name, 0)
    reason = "its link leads nowhere" if _is_dangling(file) else "{error}"
    with rewording(OSError, f"cannot be read ({reason}); check it and its folder", file=str(file)):
        status = file.stat()
        # such as a pipe, whose reader would wait for ever
        require(stat.S_ISREG(status.st_mode), "not a regular file; remove it", file=str(file))
        _check(folder, name, status.st_size)
        return file.read_bytes()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The content of a member at the current place of the stream; empty if `_member` will refuse
    it."""
    kept = member.isfile() and member.size <= LARGEST_FILE
    stream = archive.extractfile(member) if kept else None
    return b"" if stream is None else stream.read()


def _member(path: Path, member: tarfile.TarInfo, content: bytes, again: bool) -> bytes:
    """The content of a file in an archive, unless it is to be refused."""
    _check(path, member.name, member.size)
    place = f"{path}: '{member.name}'"
    require(not again, "occurs twice in the archive; pack it again with one copy", file=place)
    # its target may be far back in the stream, or not in it
    link = f"found a link to '{readable(member.linkname)}', expected a file"
    remedy = "pack the archive again, with tar --dereference --hard-dereference"
    require(not (member.islnk() or member.issym()), f"{link}; {remedy}", file=place)
    require(member.isfile(), "not a regular file; remove it", file=place)
    return content
