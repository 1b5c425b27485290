"""Where the files of a recipe are: below `data.root`, named one by one or by a pattern, or at an
address (`https://`, `s3://`, `gs://`, `hf://`), from which they are copied when they are read.

Copies are in a folder of the user's. Those used longest ago are removed when all take more than
`TRANSDUCT_CACHE_GB`.
"""

import errno
import fcntl
import glob
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b, file_digest
from http.client import HTTPException, RemoteDisconnected
from pathlib import Path, PurePosixPath
from shutil import copyfileobj, rmtree
from typing import Any, BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from transduct.errors import TransductError, disk_error, needing, require, rewording

# what has to be installed for an address, by its beginning: our extra and the library
EXTRAS = {
    "s3": ("remote", "s3fs"),
    "gs": ("remote", "gcsfs"),
    "gcs": ("remote", "gcsfs"),
    "hf": ("huggingface", "huggingface_hub"),
}
# what tells that the content at an address has changed, by the names that services give it
MARKS = {
    *("etag", "content-length", "content-md5", "last-modified", "lastmodified", "size", "created"),
    *("mtime", "md5hash", "crc32c", "generation", "blob_id", "sha256", "versionid", "updated"),
}
PATTERN = re.compile(r"[*?\[]")
SECONDS = 30.0  # in which a server must answer
USED = 3600.0  # seconds since its last use in which a copy is not removed
GIGABYTES = 100.0
ERRORS = (OSError, ValueError, HTTPException)
# the errors that the libraries have besides, such as for missing credentials
OTHERS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("gcsfs.retry", "HttpError"),
    ("aiohttp.client_exceptions", "ClientError"),
)
LOCK = ".lock"  # the ending of the file beside a folder of copies that is locked while it is used
IN_USE: dict[Path, int] = {}  # these folders, and the open files; the system closes them


def is_address(name: str) -> bool:
    """Whether a file is named by an address."""
    return "://" in name


def path_of(root: Path, name: str) -> Path:
    """Where a file is; one at an address is copied, unless it has been.

    Raises:
        TransductError: there is nothing at the address, or it cannot be reached.
    """
    return _copied(name) if is_address(name) else root / name


def matching(root: Path, name: str) -> list[str]:
    """The files that a name stands for, in order: itself, or those that match a pattern.

    Raises:
        TransductError: no file matches.
    """
    if is_address(name):
        if not PATTERN.search(name) or name.startswith("http"):
            return [name]
        files, path = _system(name)
        with _reaching(name):
            found = [files.unstrip_protocol(each) for each in files.glob(path)]
    elif not PATTERN.search(name) or os.path.lexists(root / name):
        return [name]
    else:
        every = glob.glob(name, root_dir=root, recursive=True)
        found = [each for each in every if (root / each).is_file()]
    require(found, "no file matches; correct the pattern (it starts at data.root)", file=name)
    return sorted(found)


@cache
def identity(address: str) -> dict[str, Any]:
    """What tells the content at an address from another, without reading it.

    Raises:
        TransductError: there is nothing, or it cannot be reached.
    """
    with _reaching(address):
        if address.startswith("http"):
            with _headers(address) as answer:
                facts = dict(answer.headers)
        else:
            files, path = _system(address)
            facts = files.info(path)
    return {
        key.lower(): str(value)
        for key, value in sorted(facts.items())
        if key.lower() in MARKS and value is not None
    }


def _headers(address: str) -> Any:
    """The answer of a server about the content at an address. One that refuses the question is
    asked for the content, which is not read."""
    try:
        return urlopen(Request(address, method="HEAD"), timeout=SECONDS)
    except (HTTPError, RemoteDisconnected):
        return urlopen(address, timeout=SECONDS)


def _copied(address: str) -> Path:
    folder = _folder_of(address)
    path = folder / PurePosixPath(address).name
    if path.exists():
        with suppress(OSError):
            os.utime(path)  # it is in use
    else:
        copy_to(address, path)
        remove_oldest(folder, path.stat().st_size)
    return path


def copy_to(address: str, path: Path, sha256: str | None = None) -> None:
    """Copy the content at an address to a file, which appears whole or not at all.

    Args:
        sha256: what it must be, if that is known.

    Raises:
        TransductError: it cannot be reached, ends early, or is not what it must be; or the disk is
            full.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _reaching(address):
            stream, size = _opened(address)
            with stream, part.open("wb") as file, _naming_full_disk(path):
                copyfileobj(stream, file, 1 << 20)
        # Python takes the end of a connection for the end of the content.
        copied = part.stat().st_size
        require(
            size in (None, copied),
            f"ends after {copied:,} of {size or 0:,} bytes; run the command again",
            file=address,
        )
        with part.open("rb") as file:
            right = sha256 is None or file_digest(file, "sha256").hexdigest() == sha256
        require(right, "is damaged, or has changed; write it there again", file=address)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def copy_from(path: Path, address: str) -> None:
    """Copy a file to an address or a place in another folder, where it appears whole or not at all.

    Raises:
        TransductError: it cannot be reached or written to, or there is no such bucket.
    """
    files, place = _system(address)
    with _reaching(address):
        if "file" not in files.protocol:  # an object appears when all of it has been sent
            files.put_file(str(path), place)
            return
        part = f"{place}.part"
        files.makedirs(files._parent(place), exist_ok=True)
        files.put_file(str(path), part)
        files.mv(part, place)


def names_below(address: str) -> set[str]:
    """The files below an address or a folder, by their names from there; none if it does not exist.

    Raises:
        TransductError: it cannot be reached.
    """
    files, place = _system(address)
    with _reaching(address), suppress(FileNotFoundError):
        files.invalidate_cache()  # others may have written since
        found = files.find(place)
        return {name[len(place) + 1 :] for name in found if name.startswith(f"{place}/")}
    return set()


def content_at(address: str) -> bytes:
    """The content of a small file at an address or in a folder.

    Raises:
        TransductError: there is none, or it cannot be reached.
    """
    files, place = _system(address)
    with _reaching(address):
        return bytes(files.cat_file(place))


def remove_at(address: str, names: Iterable[str]) -> None:
    """Remove files below an address or a folder.

    Raises:
        TransductError: it cannot be reached or written to.
    """
    files, place = _system(address)
    if paths := [f"{place}/{name}" for name in names]:
        with _reaching(address):
            files.rm(paths)


@contextmanager
def _naming_full_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # else it is the network's
            raise disk_error(path, error) from error
        raise


@contextmanager
def filling(address: str) -> Iterator[Path]:
    """Within this, this process alone fills the folder for the files that belong to an address. The
    folder is not removed to make room until this process ends."""
    folder = _folder_of(address)
    folder.mkdir(parents=True, exist_ok=True)
    if folder not in IN_USE:
        IN_USE[folder] = os.open(f"{folder}{LOCK}", os.O_RDWR | os.O_CREAT)
        fcntl.flock(IN_USE[folder], fcntl.LOCK_SH)
    with open(f"{folder}.filling", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder


def _opened(address: str) -> tuple[BinaryIO, int | None]:
    """The content at an address, and its size if that is known."""
    if address.startswith("http"):
        answer = urlopen(address, timeout=SECONDS)
        return answer, answer.length
    files, path = _system(address)
    return files.open(path, "rb"), files.info(path)["size"]


def _folder_of(address: str) -> Path:
    """The folder for copies of what is at an address now."""
    about = repr((address, identity(address))).encode()
    return _folder() / blake2b(about, digest_size=12).hexdigest()


def _folder() -> Path:
    """Where copies stand."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "transduct" / "copies"


def remove_oldest(folder: Path, size: int) -> None:
    """Remove the copies that were used longest ago, where all take too much room.

    Args:
        folder: the one for the copy that is made, of so many bytes.
    """
    most, copies = most_bytes(), []
    for each in _folder().iterdir():
        with suppress(OSError, ValueError):  # another process has removed it, or it is empty
            files = [path for path in each.rglob("*") if path.is_file() and each != folder]
            stats = [path.stat() for path in files]
            used = max(stat.st_mtime for stat in stats)
            copies.append((used, sum(stat.st_size for stat in stats), each))
    total = size + sum(taken for _, taken, _ in copies)
    for used, taken, each in sorted(copies):
        if total > most and time.time() - used > USED and not _is_in_use(each):
            rmtree(each, ignore_errors=True)
            total -= taken


def most_bytes() -> float:
    """The bytes that all copies together may take."""
    with rewording(ValueError, "TRANSDUCT_CACHE_GB is no number; give gigabytes, such as 100"):
        return float(os.environ.get("TRANSDUCT_CACHE_GB", GIGABYTES)) * 1e9


def _is_in_use(folder: Path) -> bool:
    """Whether a process uses the copies in a folder, see `filling`."""
    with suppress(FileNotFoundError), open(f"{folder}{LOCK}", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    from fsspec.core import url_to_fs

    scheme = address.partition("://")[0]
    unknown = "unknown kind of address ({error}); known are https, s3, gs and hf"
    with rewording(ValueError, unknown), needing(*EXTRAS.get(scheme, ("remote", scheme))):
        files, path = url_to_fs(address)
    return files, str(path)


@contextmanager
def _reaching(address: str) -> Iterator[None]:
    message = "cannot be reached ({error}); check the address"
    try:
        with rewording(ERRORS, message, file=address):
            yield
    except _of_libraries() as error:
        message = message.replace("{error}", " ".join(str(error).split()))
        raise TransductError(f"{message} and your access", file=address) from error


def _of_libraries() -> tuple[type[Exception], ...]:
    """The errors of the libraries of S3 and Google that are loaded, which are no OSErrors."""
    return tuple(vars(sys.modules[name])[kind] for name, kind in OTHERS if name in sys.modules)
