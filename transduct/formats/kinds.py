"""What kind of structure a file has, told by its ending and checked by its content."""

import re
from pathlib import Path

from transduct.errors import require

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
