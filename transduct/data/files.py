"""The files of a recipe: found, opened and decompressed; what is refused is named."""

import gzip
import io
import lzma
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal
from unicodedata import normalize

import numpy as np
import pyarrow as pa

from transduct.data.places import identity, is_address, matching
from transduct.errors import MissingExtra, TransductError, placing, require, rewording
from transduct.records import Checked, Range, refuse_if

Policy = Literal["stop", "skip"]
Notify = Callable[[str], None]
NAMED = 10  # refused files listed by name; the rest are counted
BLOCK = 1 << 20
# How often an epoch shows a corpus: a larger number would make a plan that fits no memory.
Weight = Annotated[float, Range(above=0, most=1000, why="to leave a corpus out, do not list it")]
Workers = Annotated[int, Range(0, 256)]  # a typo must not start a million processes
STDIN = "-"
NO_FILE = "no such file; check the path (those in a recipe start at data.root)"
# endings of tar archives -> those of their compression
SHORT = {".tgz": ".gz", ".txz": ".xz", ".tzst": ".zst"}
UNPACK, EXPORT = "name it so or unpack it", "save it as plain text (UTF-8)"
TAR = "a tar archive"
STARTS = (  # the first bytes of a file, its format, and what to do where text is expected
    (rb"\x1f\x8b", "gzip", UNPACK), (rb"\xfd7zXZ", "xz", UNPACK),
    (rb"\x28\xb5\x2f\xfd", "zstandard", UNPACK),
    (rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38)", "bzip2", UNPACK),
    (rb"PK(\x03\x04|\x05\x06)(?!.{26}(word|xl|ppt|_rels|mimetype|\[Con))", "a zip archive",
     UNPACK),
    (rb"PK\x03\x04", "an Office document", EXPORT),
    (rb"\xd0\xcf\x11\xe0", "an Office document", EXPORT),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK), (rb"Rar!\x1a\x07", "a rar archive", UNPACK),
    (rb".{257}ustar", TAR, UNPACK), (rb"\{\\rtf1", "an RTF document", EXPORT),
    (rb"%PDF-[12]\.", "a PDF document", EXPORT),
    (rb"PAR1", "a Parquet file", "give it as pairs, named .parquet"),
    (rb"(\x89PNG|\xff\xd8\xff|GIF8[79]a|II\*\0|MM\0\*)", "a picture", EXPORT),
    (rb"(RIFF.{4}WAVE|fLaC|OggS\0|ID3[\2-\4]\0)", "a sound", EXPORT),
)  # fmt: skip
# what the readers of compressed files raise
DAMAGE = (OSError, EOFError, UnicodeEncodeError, zlib.error, lzma.LZMAError, pa.ArrowException)
START = 262  # bytes that tell the format
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


def composed(text: str) -> str:
    """A name or label in NFC. Normalise both before comparing: macOS stores names
    decomposed."""
    return text if text.isascii() else normalize("NFC", text)


def stored(path: Path) -> Path:
    """A path as the disk spells it, where it has another Unicode form there; else as it is."""
    if str(path).isascii() or os.path.lexists(path):
        return path
    parent = stored(path.parent)
    with suppress(OSError):
        for entry in parent.iterdir():
            if composed(entry.name) == composed(path.name):
                return entry
    return parent / path.name


def composed_labels(labels: Sequence[str]) -> list[str]:
    """The labels of a model in NFC; as they are if it tells two forms of one apart."""
    made = [composed(label) for label in labels]
    return made if len({*made}) == len({*labels}) else list(labels)


def names_of(sources: Iterable[Any]) -> list[str]:
    """The files of all sources, by their names in the recipe."""
    return [name for source in sources for name in source.files()]


def kind_of(start: bytes) -> tuple[str, str] | None:
    """What a file is by its first `START` bytes, and what to do with it where text is expected;
    None if it may be text."""
    return next(
        ((kind, remedy) for first, kind, remedy in STARTS if re.match(first, start, re.DOTALL)),
        None,
    )


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


def compression(path: Path) -> str:
    """The ending of a file, with the short ones of compressed archives spelled out: ".tgz" is
    ".gz"."""
    ending = path.suffix.lower()
    return SHORT.get(ending, ending)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, decompressed according to its ending; "-" is stdin.

    Raises:
        TransductError: it is missing, a folder, unreadable or damaged; also if reading from it
            fails.
    """
    path, ending = stored(path), compression(path)
    openers: dict[str, Callable[[Path], Any]] = {
        ".gz": gzip.open,
        ".xz": lambda path: io.BufferedReader(_XzFile(path), BLOCK),
        # Arrow's own streams have no lines
        ".zst": lambda path: io.BufferedReader(
            pa.CompressedInputStream(pa.PythonFile(path.open("rb"), "r"), "zstd"), BLOCK
        ),
    }
    require(not path.is_dir(), "a folder; name the files in it", file=str(path))
    if str(path) == STDIN and not path.exists():
        yield sys.stdin.buffer
        return
    try:
        if ending in (".gz", ".zst") and path.is_file() and not path.stat().st_size:
            raise EOFError("it is empty")  # their readers take it for compressed nothing
        with openers.get(ending, partial(open, mode="rb"))(path) as stream:
            yield stream
    except FileNotFoundError as error:
        raise TransductError(NO_FILE, file=str(path)) from error
    except DAMAGE as error:
        problem = f"cannot be read ({error}); fetch or write the file again"
        if "too much memory for decoding" in str(error):
            problem = (
                "compressed with a window of more than 128 MiB, the most that is read; unpack it "
                f"first, with: zstd -d --long=31 {path}"
            )
        raise TransductError(problem, file=str(path)) from error


class _XzFile(io.RawIOBase):
    """Reader of .xz files: several streams in a row, with padding between them.

    Python's `lzma` takes padding, and damage at the start of a stream, for the end of the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._stream = lzma.LZMADecompressor()
        self._rest = b""  # bytes already read of the next stream: a pipe cannot be read twice
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        decompressed = b""
        while not decompressed and not self._ended:
            if self._stream.eof:
                self._next_stream()
                continue
            data = b""
            if self._stream.needs_input:
                data, self._rest = self._rest or self._file.read(BLOCK), b""
                if not data:
                    raise EOFError("it ends before its end is marked")
            decompressed = self._stream.decompress(data, len(buffer))
        buffer[: len(decompressed)] = decompressed
        return len(decompressed)

    def _next_stream(self) -> None:
        """Go on to the next stream, over padding: zero bytes, a multiple of four."""
        rest, padding = self._stream.unused_data, 0
        while block := rest or self._file.read(BLOCK):
            rest = block.lstrip(b"\0")
            padding += len(block) - len(rest)
            if rest:
                break
        if padding % 4:
            raise lzma.LZMAError(f"found {padding} bytes of padding, expected a multiple of 4")
        self._stream, self._rest = lzma.LZMADecompressor(lzma.FORMAT_XZ), rest
        self._ended = not rest

    def close(self) -> None:
        self._file.close()
        super().close()


def readable(text: str) -> str:
    """The text with U+FFFD for its escaped bytes (`surrogateescape`), such as those of a file name
    in Latin-1."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


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
