"""Texts of subtitles (SRT, VTT), between the marks of their lines.

A library finds the texts, which are then looked up in the file.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence

from transduct.errors import needing, rewording
from transduct.formats.places import DAMAGED, EXTRA, Place, damaged, on_lines, unmarked

TIMES = re.compile(r"[^\n]*\d[ \t]*-->[ \t]*\d[^\n]*\n?")
MARKUP = re.compile(r"(<[^<>]*>|\{\\[^{}]*\}|\\[Nnh])")
SPEAKER = re.compile(r"[ \t]*[-–—][ \t]*")


def captions(name: str, content: str) -> Iterator[Place]:
    """The texts of subtitles (SRT).

    Raises:
        TransductError: they are damaged, or pysubs2 is not installed.
    """
    with needing(EXTRA):
        import pysubs2
    with rewording(pysubs2.Pysubs2Error, DAMAGED, file=name):
        read = pysubs2.SSAFile.from_string(unmarked(content), "srt", keep_html_tags=True)
    return _of_subtitles(name, content, [event.text.split(r"\N") for event in read], False)


def cues(name: str, content: str) -> Iterator[Place]:
    """The texts of subtitles (VTT).

    Raises:
        TransductError: they are damaged, or webvtt-py is not installed.
    """
    with needing(EXTRA, "webvtt-py"):
        import webvtt
    with rewording(webvtt.errors.MalformedFileError, DAMAGED, file=name):
        read = webvtt.from_string(unmarked(content)).captions
    return _of_subtitles(name, content, [caption.lines for caption in read], True)


def _of_subtitles(
    name: str, content: str, texts: Sequence[list[str]], escaped: bool
) -> Iterator[Place]:
    """The runs of text between marks in each subtitle, found behind its times.

    Args:
        escaped: whether signs of mark-up are always escaped.
    """
    times = TIMES.finditer(content)
    for number, lines in enumerate(texts, 1):
        wanted = [line.strip() for line in lines if line.strip()]
        begin = next((time.end() for time in times), len(content))
        stop = begin
        for line in wanted:
            start = content.find(line, stop)
            if start < 0 or content[stop:start].replace(r"\N", "").strip():
                raise damaged(name, f"subtitle {number} is not behind its times")
            begin, stop = (start if line is wanted[0] else begin), start + len(line)
        yield from _runs(content, begin, stop, escaped)


def _runs(content: str, begin: int, stop: int, escaped: bool) -> Iterator[Place]:
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
                yield Place.of_text(first, last, read, _wrapping(text, end, escaped))


def _wrapping(text: str, end: str, escaped: bool) -> Callable[[str], str]:
    """How a translation is written into a subtitle: on as many lines, with the same escapes."""
    lines, escapes = len(text.splitlines()), escaped or html.unescape(text) != text

    def written(translation: str) -> str:
        tidy = " ".join(translation.split())
        shown = html.escape(tidy, quote=False) if escapes else tidy
        return end.join(on_lines(shown, lines))

    return written
