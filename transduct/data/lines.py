"""Text files: opened whatever their compression, told from files of other kinds, and read as lines.

Only a line feed ends a line (a carriage return before it is dropped): U+2028, U+0085 and a lone
carriage return are text. Errors name the file and line.
"""

import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO
from unicodedata import normalize

import pyarrow as pa

from transduct.errors import TransductError, require, rewording

ODD = re.compile(rb"[\x00-\x08\x0e-\x1f\x80-\xff]")  # only with these may bytes be no UTF-8
BLOCK = 1 << 20  # bytes read at a time
LONGEST_LINE = 1 << 22  # bytes; reading a token takes some hundred bytes, and a microsecond
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
SIGNATURE = 262  # bytes that tell the format
# what a file with a structure is, by its ending and its content
COMPRESSED = (".gz", ".xz", ".zst")
START = 4096  # bytes that tell the kind
TRANSLATE = "give it to transduct translate"
TO_LINES = "take its text out, one sentence a line"
PAIRS = "to train on it, name it under data.train as pairs; here " + TO_LINES
# endings: what it is, how its content begins, and what to do where lines of text are expected
KINDS = {
    (".tmx",): ("a translation memory (TMX)", rb"\s*<(?:.*<)?tmx\b", PAIRS),
    (".xlf", ".xliff"): ("a translation file (XLIFF)", rb"\s*<(?:.*<)?xliff\b", PAIRS),
    (".po", ".pot"): (
        "a message catalogue (PO)", rb"(?:\s*#[^\n]*\n)*\s*msg(?:id|ctxt)\s+\"",
        f"{TRANSLATE}, or train on it as pairs",
    ),
    (".srt",): (
        "subtitles (SRT)", rb"\s*\d+[ \t]*\r?\n\d+:\d\d:\d\d[,.]\d+\s*-->",
        TRANSLATE,
    ),
    (".vtt",): ("subtitles (VTT)", rb"WEBVTT\b", TRANSLATE),
    (".html", ".htm", ".xhtml"): (
        "a web page (HTML)",
        rb"\s*(?:<\?xml.*?>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+)?html\b", TO_LINES,
    ),
    (".jsonl", ".ndjson"): (
        "JSON lines", rb"\s*\{\s*\"(?:[^\"\\]|\\.)*\"\s*:",
        "write its texts one a line, or train on it as pairs",
    ),
    (".json",): ("JSON", rb"\s*(?:\[\s*(?:[\[{\"]|\])|\{\s*[\"}])", "write its texts one a line"),
    (".csv",): ("a table (CSV)", rb"[^\n]*[,;\t]", PAIRS),
    (".docx",): ("a text of Word", b"", TRANSLATE),
    (".pptx",): ("slides of PowerPoint", b"", TRANSLATE),
    (".odt",): ("a text of LibreOffice", b"", TRANSLATE),
    (".odp",): ("slides of LibreOffice", b"", TRANSLATE),
}  # fmt: skip
PACKED = (".docx", ".pptx", ".odt", ".odp")  # archives, which only their names tell apart
FRAGMENT = re.compile(rb"\s*<[a-z!?]", re.IGNORECASE)  # a page, or a part of one, by its name
SPREAD = re.compile(rb"\s*\{[ \t]*\r?\n")  # one object of JSON on several lines
NAMED_ONLY = (".csv", *PACKED)  # any text may look like a table
LINES = (".jsonl", ".ndjson")
MARKDOWN = ".md"  # which is read as lines elsewhere
TRANSLATED = (MARKDOWN, *(each for kind in KINDS for each in kind if each not in LINES))


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


def unlike_text(start: bytes) -> tuple[str, str] | None:
    """What a file is by its first `SIGNATURE` bytes, and what to do with it where text is expected;
    None if it may be text."""
    return next(
        ((kind, remedy) for first, kind, remedy in STARTS if re.match(first, start, re.DOTALL)),
        None,
    )


def ending_of(name: str) -> str:
    """The ending of a file, before that of its compression, in lower case."""
    endings = [each.lower() for each in Path(name).suffixes]
    return "".join([each for each in endings if each not in COMPRESSED][-1:])


def kind_of(name: str | None, start: bytes) -> str:
    """The ending that stands for the kind of a file, or "" if it is plain lines.

    Args:
        name: its name; None for a pipe, of which the content alone tells.
        start: its first `START` bytes.
    """
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        start = start.decode("utf-16", errors="ignore").encode(errors="ignore")
    start = start.removeprefix(b"\xef\xbb\xbf")
    for endings, (_, begins, _) in KINDS.items():
        named = endings[0] not in NAMED_ONLY if name is None else ending_of(name) in endings
        if name is None and endings == LINES and SPREAD.match(start):
            continue
        part = name is not None and endings[0] == ".html" and FRAGMENT.match(start)
        if named and (part or re.match(begins, start, re.DOTALL | re.IGNORECASE)):
            return endings[0]
    return ""


def refuse(name: str, kind: str, forced: str = "") -> None:
    """Refuse a file of this kind where lines of text are expected.

    Args:
        forced: how to read it as lines all the same.

    Raises:
        TransductError: always, unless the kind is "".
    """
    for endings, (what, _, remedy) in KINDS.items():
        require(
            kind not in endings,
            f"found {what}, expected lines of text; {remedy}{forced}",
            file=name,
        )


def named_kind(name: str) -> str:
    """The kind of the document that has such a name, or ""."""
    ending = ending_of(name)
    kind = next((each[0] for each in KINDS if ending in each), ending)
    return kind if kind in TRANSLATED or kind == ".txt" else ""


def readable(text: str) -> str:
    """The text with U+FFFD for its escaped bytes (`surrogateescape`), such as those of a file name
    in Latin-1."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


@dataclass(frozen=True)
class Span:
    """A file, or a part of one that is not compressed.

    Attributes:
        start, stop: its bytes, which end at a line; or its row groups of Parquet; or no end.
        first: the lines or rows of the file before it.
    """

    start: int = 0
    stop: int | None = None
    first: int = 0


WHOLE = Span()


def check_text(text: str) -> None:
    """Raise TransductError if a text contains an unpaired surrogate, which JSON can spell."""
    with rewording(UnicodeEncodeError, "found an unpaired surrogate, expected text; fix the line"):
        text.encode()


class LongLine(TransductError):
    """A line is too long to be read as text."""


def read_lines(file: Path | BinaryIO, strict: bool = True, span: Span = WHOLE) -> Iterator[str]:
    """The lines of a file, of a part of it or of an open stream, without line ends and without a
    byte order mark at the start.

    Lines of a stream are yielded as soon as they arrive. Unless `strict`, bytes that are not UTF-8
    are escaped (PEP 383).

    Raises:
        TransductError: the file cannot be read, (`LongLine`) a line is too long, or (`strict`) a
            line is not UTF-8.
    """
    if isinstance(file, Path):
        with opened(file) as stream:
            read = partial(stream.read, BLOCK)
            if span.stop is not None:
                read = partial(_read_to, stream, span.stop)
                stream.seek(span.start)
            for lines in _split(read, str(file), strict, True, span.first + 1):
                yield from lines
    else:
        name = str(getattr(file, "name", "the input"))
        read = partial(getattr(file, "read1", file.read), BLOCK)
        for lines in _split(read, name, strict, whole=False):
            yield from lines


def _read_to(stream: BinaryIO, stop: int) -> bytes:
    return stream.read(min(BLOCK, stop - stream.tell()))


def _split(
    read: Callable[[], bytes], name: str, strict: bool, whole: bool, number: int = 1
) -> Iterator[list[str]]:
    """The lines of each block, of which the first has this number: decoding a block at once is much
    faster than line by line."""
    # who translates texts of a program reads no file
    from transduct.data.encodings import CONVERT, MARKS, judge, shifting, wide

    judged, utf8, blocks = False, False, _blocks(read, name, number)
    for data in blocks:
        marked = unmarked = ""
        if number == 1:
            if kind := unlike_text(data):
                expected = "expected text, plain or compressed as its name says (.gz, .xz, .zst)"
                raise TransductError(f"found {kind[0]}, {expected}; {kind[1]}", file=name)
            marked = next((each for mark, each in MARKS if data.startswith(mark)), "")
            unmarked = "" if marked or not ODD.search(data) else wide(data)
        if unmarked:
            problem = f"found {unmarked[:6].upper()} without a mark; {CONVERT} {unmarked} -t utf-8"
            raise TransductError(problem, file=name, line=1)
        if b"\x1b" in data and (shift := shifting(data)):
            problem = f"found ISO 2022, expected UTF-8; {CONVERT} {shift[1]} -t utf-8"
            line = number + data.count(b"\n", 0, shift[0])
            raise TransductError(problem, file=name, line=line)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            if strict or not judged:
                judged = True
                rest = chain([data], blocks if strict else ())
                judge(error, number, rest, name, marked, utf8, strict, whole)
            text = data.decode(errors="surrogateescape")
        utf8 = utf8 or not text.isascii()
        if number == 1:
            text = text.removeprefix("\ufeff")
        lines = text.replace("\r\n", "\n").split("\n")
        if not lines[-1]:
            lines.pop()
        number += len(lines)
        yield lines


def _blocks(read: Callable[[], bytes], name: str, number: int) -> Iterator[bytes]:
    """Whole lines, as many as are read at once."""
    unfinished, block, size = [b""], b"\n", 0
    while block:
        block = read()
        end = block.rfind(b"\n") + 1
        size += block.find(b"\n") if end else len(block)
        if size > LONGEST_LINE:
            raise LongLine(
                f"found a line of more than {LONGEST_LINE:,} bytes, the most that is read; break "
                "it, for example with: fold -s -w 1000",
                file=name,
                line=number,
            )
        if block and not end:
            unfinished.append(block)
            continue
        data = b"".join([*unfinished, block[:end]])
        unfinished, size = [block[end:]], len(block) - end
        number += data.count(b"\n")
        yield data


def numbered(lines: Iterable[str], first: int = 1) -> Iterator[tuple[int, str]]:
    """Lines that hold a record each, with their numbers, but for blank ones at the end, as an
    editor or a script leaves them."""
    blank: list[tuple[int, str]] = []
    for number, line in enumerate(lines, first):
        if line.strip() or "\t" in line:  # a row of empty cells is one
            yield from blank
            blank.clear()
            yield number, line
        elif len(blank) < 2:  # the first is refused if a record follows
            blank.append((number, line))
