"""Where the files of a recipe are: below `data.root`, named one by one or by a pattern, or at an
address (`https://`, `s3://`, `gs://`, `hf://`), from which they are copied when they are read.

Copies stand in a folder of the user's, and are removed, the oldest first, when they take more than
`TRANSDUCT_CACHE_GB`.
"""

import glob
import os
import re
import time
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from typing import Any, BinaryIO
from urllib.error import URLError
from urllib.request import Request, urlopen

from transduct.errors import needing, require, rewording

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
ERRORS = (OSError, ValueError, URLError)


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
            with urlopen(Request(address, method="HEAD"), timeout=SECONDS) as answer:
                facts = dict(answer.headers)
        else:
            files, path = _system(address)
            facts = files.info(path)
    return {
        key.lower(): str(value)
        for key, value in sorted(facts.items())
        if key.lower() in MARKS and value is not None
    }


def _copied(address: str) -> Path:
    about = repr((address, identity(address))).encode()
    folder = _folder() / blake2b(about, digest_size=12).hexdigest()
    path = folder / PurePosixPath(address).name
    if path.exists():
        with suppress(OSError):
            os.utime(path)  # it is in use
        return path
    part = folder / f".{path.name}.{os.getpid()}.part"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _reaching(address), _opened(address) as stream, part.open("wb") as file:
            copyfileobj(stream, file, 1 << 20)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _make_room(path)
    return path


def _opened(address: str) -> BinaryIO:
    if address.startswith("http"):
        answer: BinaryIO = urlopen(address, timeout=SECONDS)
        return answer
    files, path = _system(address)
    stream: BinaryIO = files.open(path, "rb")
    return stream


def _folder() -> Path:
    """Where copies stand."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "transduct" / "copies"


def _make_room(kept: Path) -> None:
    """Remove the copies that were used longest ago, where all take too much room."""
    with rewording(ValueError, "TRANSDUCT_CACHE_GB is no number; give gigabytes, such as 100"):
        most = float(os.environ.get("TRANSDUCT_CACHE_GB", GIGABYTES)) * 1e9
    copies = []
    for path in kept.parents[1].glob("*/[!.]*"):
        with suppress(OSError):  # another process has removed it
            copies.append((path.stat().st_mtime, path.stat().st_size, path))
    total = sum(size for _, size, _ in copies)
    for used, size, path in sorted(copies):
        if total > most and path != kept and time.time() - used > USED:
            with suppress(OSError):
                path.unlink()
                total -= size


def _system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    from fsspec.core import url_to_fs

    scheme = address.partition("://")[0]
    unknown = "unknown kind of address ({error}); known are https, s3, gs and hf"
    with rewording(ValueError, unknown), needing(*EXTRAS.get(scheme, ("remote", scheme))):
        files, path = url_to_fs(address)
    return files, str(path)


def _reaching(address: str) -> Any:
    return rewording(ERRORS, "cannot be reached ({error}); check the address", file=address)
