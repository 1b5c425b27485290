"""Office documents: archives of XML, of which only the parts that hold texts are written anew."""

import lzma
import re
import zlib
from collections.abc import Mapping
from io import BytesIO
from zipfile import BadZipFile, ZipFile

from transduct.errors import TransductError, require, rewording
from transduct.formats.places import DAMAGED

# the most bytes of a document once it is unpacked, of its parts that hold texts, and its parts
UNPACKED, TEXTS, PARTS = 256 << 20, 32 << 20, 10_000
DAMAGE = (BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, RuntimeError)
OLD = b"\xd0\xcf\x11\xe0"  # how files begin that Office encrypts, or wrote before 2007
MANIFEST = "META-INF/manifest.xml"
DRAWN = r"charts/chart\d+|diagrams/(data|drawing)\d+"
OPEN_DOCUMENT = r"(Object [^/]+/)?(content|styles)\.xml"
HOLDING = {  # the parts of a kind that hold texts
    ".docx": rf"word/(document\d*|(header|footer)\d*|footnotes|endnotes|{DRAWN})\.xml",
    ".pptx": rf"ppt/(presentation|slides/slide\d+|notesSlides/notesSlide\d+|{DRAWN})\.xml",
    ".odt": OPEN_DOCUMENT,
    ".odp": OPEN_DOCUMENT,
}


class TooLarge(TransductError):
    """A document is larger, once it is unpacked, than what people write."""


def parts_of(kind: str, name: str, data: bytes) -> dict[str, bytes]:
    """The parts of a document that hold texts.

    Raises:
        TransductError: it is damaged, encrypted, of another kind or too large.
    """
    locked = "is encrypted or in an older format; save it again, without a password"
    require(not data.startswith(OLD), locked, file=name)
    with rewording(DAMAGE, DAMAGED, file=name), ZipFile(BytesIO(data)) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        found = [each for each in sizes if re.fullmatch(HOLDING[kind], each)]
        require(found, f"found no part of a {kind} document; give it its own ending", file=name)
        if (
            sum(sizes.values()) > UNPACKED
            or sum(sizes[each] for each in found) > TEXTS
            or len(archive.infolist()) > PARTS
        ):
            problem = f"is larger than {UNPACKED >> 20} MiB once it is unpacked; send a part of it"
            raise TooLarge(problem, file=name)
        require(not any(info.flag_bits & 1 for info in archive.infolist()), locked, file=name)
        manifest = archive.read(MANIFEST) if MANIFEST in sizes else b""
        require(b"encryption-data" not in manifest, locked, file=name)
        return {each: archive.read(each) for each in found}


def packed(name: str, data: bytes, made: Mapping[str, bytes]) -> bytes:
    """A document with these parts in place of its own.

    Raises:
        TransductError: it is damaged.
    """
    out = BytesIO()
    with (
        rewording(DAMAGE, DAMAGED, file=name),
        ZipFile(BytesIO(data)) as archive,
        ZipFile(out, "w") as written,
    ):
        written.comment = archive.comment
        for info in archive.infolist():
            part = archive.read(info)
            written.writestr(info, made.get(info.filename, part))
    return out.getvalue()
