"""Documents that are translated and come back whole: subtitles and message catalogues.

A library finds the texts. They are looked up in the file, which is changed there and nowhere else.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from textwrap import wrap
from typing import Any

from transduct.errors import TransductError, needing, rewording
from transduct.formats.kinds import START

TIMES = re.compile(r"[^\n]*\d[ \t]*-->[ \t]*\d[^\n]*\n?")
MARKUP = re.compile(r"(<[^<>]*>|\{\\[^{}]*\}|\\[Nnh])")
SPEAKER = re.compile(r"[ \t]*[-–—][ \t]*")
STRING = r"\"(?:[^\"\\\n]|\\.)*\""
MESSAGE = re.compile(rf"^msgstr(?:\[\d+\])?[ \t]+({STRING}(?:\s*{STRING})*)", re.MULTILINE)
EXTRA = "documents"
DECLARED = re.compile(rb"charset=(?!CHARSET)([\w.:-]+)")  # what a template has is to be filled in
MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
NEXT = re.compile(rf"({STRING})[ \t]*(?=\")")  # a string with another behind it
DAMAGED = "damaged ({error}); save it again, or translate it with --text"


@dataclass(frozen=True)
class Place:
    """Where a text stands in a document.

    Attributes:
        start, stop: its characters.
        text: as a model reads it.
        written: a translation as the document has it.
    """

    start: int
    stop: int
    text: str
    written: Callable[[str], str]


def places(kind: str, name: str, content: str) -> list[Place]:
    """The texts to translate of a document of a kind (".srt", ".vtt" or ".po").

    Raises:
        TransductError: it is damaged, or a library is not installed.
    """
    if kind == ".po":
        return list(_messages(name, content))
    found = (_captions if kind == ".srt" else _cues)(name, content)
    return list(_of_subtitles(name, content, found))


def encoding_of(kind: str, content: bytes) -> str:
    """The encoding of a document: UTF-16 by its mark, what a catalogue declares, or UTF-8."""
    declared = DECLARED.search(content[:START]) if kind == ".po" else None
    return MARKS.get(content[:2], declared[1].decode().lower() if declared else "utf-8")


def decoded(name: str, content: bytes, encoding: str) -> str:
    """The text of a document.

    Raises:
        TransductError: it is not in its encoding.
    """
    try:
        return content.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        problem = f"is not in {encoding}, which its header declares; save it in UTF-8"
        raise TransductError(problem, file=name) from error


def encoded(name: str, content: str, encoding: str) -> bytes:
    """The bytes of a document in its encoding.

    Raises:
        TransductError: a translation has a character that the encoding lacks.
    """
    try:
        return content.encode(encoding)
    except UnicodeEncodeError as error:
        problem = f"{encoding} has no '{content[error.start]}', which a translation holds"
        raise TransductError(f"{problem}; save it in UTF-8 first", file=name) from error


def translated(
    kind: str, name: str, content: str, translate: Callable[[list[str]], list[str]]
) -> str:
    """A document with the translations of its texts in their places; raises like `places`."""
    found = places(kind, name, content)
    parts, end = [], 0
    for place, translation in zip(found, translate([each.text for each in found]), strict=True):
        parts += [content[end : place.start], place.written(translation)]
        end = place.stop
    return "".join([*parts, content[end:]])


def _captions(name: str, content: str) -> list[list[str]]:
    with needing(EXTRA):
        import pysubs2
    with rewording(pysubs2.Pysubs2Error, DAMAGED, file=name):
        read = pysubs2.SSAFile.from_string(_plain(content), "srt", keep_html_tags=True)
        return [event.text.split(r"\N") for event in read]


def _cues(name: str, content: str) -> list[list[str]]:
    with needing(EXTRA, "webvtt-py"):
        import webvtt
    with rewording(webvtt.errors.MalformedFileError, DAMAGED, file=name):
        return [caption.lines for caption in webvtt.from_string(_plain(content)).captions]


def _of_subtitles(name: str, content: str, texts: Sequence[list[str]]) -> Iterator[Place]:
    """The runs of text between marks in each subtitle, found behind its times."""
    times = TIMES.finditer(content)
    for number, lines in enumerate(texts, 1):
        wanted = [line.strip() for line in lines if line.strip()]
        begin = next((time.end() for time in times), len(content))
        stop = begin
        for line in wanted:
            start = content.find(line, stop)
            if start < 0 or content[stop:start].replace(r"\N", "").strip():
                raise _damaged(name, f"subtitle {number} is not behind its times")
            begin, stop = (start if line is wanted[0] else begin), start + len(line)
        yield from _runs(content, begin, stop)


def _runs(content: str, begin: int, stop: int) -> Iterator[Place]:
    """The texts of one subtitle: of each speaker, and between marks, which stay."""
    lines = content[begin:stop].splitlines(keepends=True)
    speakers = sum(bool(SPEAKER.match(line)) for line in lines) > 1
    for part in lines if speakers else ["".join(lines)]:
        for run in MARKUP.split(part):
            lead = SPEAKER.match(run)
            first = begin + (lead.end() if lead else len(run) - len(run.lstrip()))
            last = begin + len(run.rstrip())
            begin += len(run)
            text = content[first:last]
            if not MARKUP.fullmatch(run) and any(map(str.isalpha, text)):
                end = "\r\n" if "\r\n" in text else "\n"
                read = html.unescape(" ".join(text.split()))
                yield Place(first, last, read, _wrapping(text, end))


def _wrapping(text: str, end: str) -> Callable[[str], str]:
    """How a translation is written into a subtitle: on as many lines, with the same escapes."""
    lines, escapes = len(text.splitlines()), html.unescape(text) != text

    def written(translation: str) -> str:
        tidy = " ".join(translation.split())
        shown = html.escape(tidy, quote=False) if escapes else tidy
        if lines == 1 or not shown:
            return shown
        for width in count(-(-len(shown) // lines)):
            found = wrap(shown, width, break_long_words=False, break_on_hyphens=False)
            if len(found) <= lines:
                return end.join(found)
        return shown

    return written


def _messages(name: str, content: str) -> Iterator[Place]:
    """The messages of a PO file that have no translation."""
    with needing(EXTRA):
        import polib
    expected = []  # the text of each translation in the file, and what it translates
    for entry in catalogue(name, content):
        if entry.msgid_plural:
            expected += [(text, source) for source, text in plurals(entry)]
        else:
            expected.append((entry.msgstr, entry.msgid))
    found = list(MESSAGE.finditer(content))
    if header := len(found) == len(expected) + 1:
        found = found[1:]
    texts = [
        "".join(polib.unescape(each[1:-1]) for each in re.findall(STRING, m[1])) for m in found
    ]
    if texts != [text for text, _ in expected]:
        raise _damaged(name, f"{len(found)} of {len(expected) + header} translations found")
    for match, (held, text) in zip(found, expected, strict=True):
        if not held and text.strip():
            yield Place(*match.span(1), text, lambda made: f'"{polib.escape(made)}"')


def plurals(entry: Any) -> list[tuple[str, str]]:
    """Each form of a plural after what it translates; the only form of a language is its plural."""
    texts = [text for _, text in sorted(entry.msgstr_plural.items())]
    sources = [entry.msgid, *[entry.msgid_plural] * len(texts)][len(texts) == 1 :]
    return list(zip(sources, texts))


def catalogue(name: str, content: str) -> list[Any]:
    """The entries of a PO file, without obsolete ones.

    Raises:
        TransductError: it is damaged, or polib is not installed.
    """
    with needing(EXTRA):
        import polib
    with rewording((OSError, UnicodeError), DAMAGED, file=name):
        lines = _one_string_a_line(_plain(content))
        return [entry for entry in polib.pofile(f"{lines}\n") if not entry.obsolete]


def _one_string_a_line(content: str) -> str:
    """A catalogue with each string on a line of its own, as polib reads it."""
    lines = content.split("\n")
    return "\n".join(line if line.startswith("#") else NEXT.sub(r"\1\n", line) for line in lines)


def _plain(content: str) -> str:
    return content.removeprefix("\ufeff").replace("\r\n", "\n")


def _damaged(name: str, reason: str) -> TransductError:
    return TransductError(DAMAGED.replace("{error}", reason), file=name)
