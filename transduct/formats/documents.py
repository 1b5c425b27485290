"""Documents that are translated and come back whole: only their texts change.

A library finds the texts of a document, or says that it is damaged. It is changed where they stand
and nowhere else.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice

from transduct.data.lines import MARKDOWN, PACKED, START
from transduct.errors import TransductError, rewording
from transduct.formats import markup, office, plain, xml
from transduct.formats.catalogues import messages
from transduct.formats.markdown import blocks
from transduct.formats.marked import Segment
from transduct.formats.places import Place, changed
from transduct.formats.subtitles import captions, cues

MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
XML = rb"\s*<\?xml[^>]*encoding\s*=\s*[\"']([\w.-]+)"
DECLARED = {  # where a document says its encoding; what a template of PO has is to be filled in
    ".po": rb".*?charset=(?!CHARSET)([\w.:-]+)",
    ".html": rb"(?i:.*?<meta[^>]+charset\s*=\s*[\"']?)([\w.:-]+)",
    **dict.fromkeys((".xlf", ".tmx", *PACKED), XML),
}
# what browsers take an encoding for: that of Windows, and what a page in ASCII's bytes cannot be
MEANT = {"iso-8859-1": "cp1252", "us-ascii": "cp1252", "utf-16": "utf-8"}


FORMATS: dict[str, Callable[[str, str], Iterable[Place]]] = {
    ".txt": plain.lines,
    MARKDOWN: blocks,
    ".csv": plain.cells,
    ".json": plain.strings,
    ".html": markup.page,
    ".srt": captions,
    ".vtt": cues,
    ".po": messages,
    **dict.fromkeys((".docx", ".pptx"), partial(xml.paragraphs, xml.MICROSOFT)),
    **dict.fromkeys((".odt", ".odp"), partial(xml.paragraphs, xml.OPEN_DOCUMENT)),
}
OF_TRANSLATORS = (".xlf", ".tmx")  # which hold both languages


@dataclass(frozen=True)
class Part:
    """A text with its encoding and places; an office document has several, others one."""

    content: str
    encoding: str
    places: list[Place]


class Document:
    """A document and the texts in it.

    Args:
        kind: an ending of `FORMATS` or `OF_TRANSLATORS`.
        languages: source and target, for files of translators; "" for what they say.

    Raises:
        TransductError: it is damaged, encrypted, of another kind or too large, or a library is not
            installed.
    """

    def __init__(
        self, kind: str, name: str, data: bytes, languages: xml.Languages = ("", "")
    ) -> None:
        self.name, self._data, self._packed = name, data, kind in PACKED
        self._references = kind in (".html", *OF_TRANSLATORS, *PACKED)
        find = partial(xml.units, languages) if kind in OF_TRANSLATORS else FORMATS[kind]
        self._parts = dict[str, Part]()
        parts = office.parts_of(kind, name, data) if self._packed else {"": data}
        for part, content in parts.items():
            encoding = encoding_of(kind, content)
            text = decoded(name, content, encoding)
            self._parts[part] = Part(text, encoding, [*find(name, text)])

    @property
    def segments(self) -> list[Segment]:
        """Its texts, with marks for what stands in them."""
        return [place.segment for part in self._parts.values() for place in part.places]

    def translated(self, translations: Iterable[Segment]) -> bytes:
        """The document with a translation for each of its segments.

        Raises:
            TransductError: a translation has a character that its encoding lacks.
        """
        left, made = iter(translations), dict[str, bytes]()
        for name, part in self._parts.items():
            if part.places or not self._packed:
                new = changed(part.content, part.places, [*islice(left, len(part.places))])
                made[name] = encoded(self.name, new, part.encoding, self._references)
        return office.packed(self.name, self._data, made) if self._packed else made[""]


def encoding_of(kind: str, content: bytes) -> str:
    """The encoding of a document: UTF-16 by its mark, what it declares, or UTF-8."""
    declared = re.match(DECLARED.get(kind, b"(?!)"), content[:START], re.DOTALL)
    name = declared[1].decode().lower() if declared else "utf-8"
    return MARKS.get(content[:2], MEANT.get(name, name) if kind == ".html" else name)


def decoded(name: str, content: bytes, encoding: str) -> str:
    """The text of a document.

    Raises:
        TransductError: it is not in its encoding.
    """
    problem = f"is not in {encoding}, as it should be; save it in UTF-8"
    with rewording((UnicodeDecodeError, LookupError), problem, file=name):
        return content.decode(encoding)


def encoded(name: str, content: str, encoding: str, references: bool = False) -> bytes:
    """The bytes of a document in its encoding.

    Args:
        references: whether characters that it lacks may stand as numbers, as in HTML.

    Raises:
        TransductError: a translation has a character that the encoding lacks.
    """
    try:
        return content.encode(encoding, "xmlcharrefreplace" if references else "strict")
    except UnicodeEncodeError as error:
        problem = f"{encoding} has no '{content[error.start]}', which a translation holds"
        raise TransductError(f"{problem}; save it in UTF-8 first", file=name) from error
