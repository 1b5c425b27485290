"""Texts of Markdown: paragraphs, headings, items of lists, cells of tables, admonitions and
definitions.

markdown-it-py says what each block holds, in order, which is then looked up in the file. Code,
addresses, HTML and the data at the head of a file stay.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Literal

from transduct.errors import needing
from transduct.formats.marked import Mark, Segment
from transduct.formats.places import EXTRA, Place, on_lines, worded

LINE_END = re.compile(r"\r\n|\r|\n")
HEAD = re.compile(r"\ufeff?(---|\+\+\+)\r?\n(?:.*?\n)??\1[ \t]*(?:\r?\n|\Z)", re.DOTALL)
# where a footnote belongs, and where it begins; what kind of quotation it is; attributes
NOTE = re.compile(r"(\[\^[^\[\]\s]+\]:?|\[![A-Z]+\]|\{[#.:][^{}\n]*\})")
# the first line of an admonition or a tab, whose content is indented: !!! note "Title"
ADMONITION = re.compile(
    r"(?P<blanks>[ \t]*)(?:(?:!!!|\?\?\?\+?) ?[\w-]+(?: +[\w-]+)*|===[!+]?(?= +\"))"
    r"(?: +\"(?P<title>.*)\")? *"
)
FENCE = re.compile(r"[ \t]*:{3,}.*")  # of a container: ::: note
DEFINITION = re.compile(r"^( {0,3}):(?=[ \t]+\S)")  # below its term
TITLE = r"\[(?:\\.|[^\[\]\\]|\[[^\[\]]*\])*\]"
GOAL = rf"(?:\((?:\\.|[^()\\]|\([^()]*\))*\)|{TITLE})?"
CODE = r"(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
TASK = re.compile(r"\[[ xX]\] ")
KINDS: tuple[Literal["alone", "open", "close"], ...] = ("alone", "open", "close")  # by nesting
SPELT = {  # how what markdown-it names is spelt, where it does not say it
    "softbreak": r"[ \t]*\n[ \t]*",
    "hardbreak": r"(?: {2,}|\\)\n[ \t]*",
    "code_inline": CODE,
    "link_open": r"\[",
    "link_close": rf"\]{GOAL}",
    "image": rf"!{TITLE}{GOAL}",
}
# in a translation, what would be read as a sign of Markdown
SIGNS = re.compile(
    r"[\\`\[\]|]|(?<!\w)_|_(?!\w)|\*(?!\s)|(?<!\s)\*|<(?=[A-Za-z/!?])|~(?=~)|&(?=#?\w+;)"
)
# or of a block, at its start
FIRST = re.compile(
    r"(?P<number>\d*)(?P<sign>[-+#>]|=(?==*\s*$)|:(?=\s|::)|!(?=!!)|~(?=~~)|(?<=\d)[.)])"
)


def blocks(_: str, content: str) -> Iterator[Place]:
    """The texts of a file.

    Raises:
        TransductError: markdown-it-py is not installed.
    """
    with needing(EXTRA, "markdown-it-py"):
        from markdown_it import MarkdownIt
        from markdown_it.rules_block import reference

    def definition(state: Any, first: int, last: int, silent: bool) -> bool:
        """The rule of a link's goal, which a footnote is not."""
        at = state.bMarks[first] + state.tShift[first]
        return not state.src.startswith("[^", at) and reference(state, first, last, silent)

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
    parser.block.ruler.at("reference", definition)
    head = HEAD.match(content)
    shown = "\n" * content.count("\n", 0, head.end()) + content[head.end() :] if head else content
    shown = _as_known(shown.removeprefix("\ufeff"))
    starts = [0, *(found.end() for found in LINE_END.finditer(content)), len(content)]
    at = 0
    for token in parser.parse(shown):
        if token.type != "inline" or token.map is None:
            continue
        lines, read = [], 0  # where each line of the block begins in it, and in the file
        for number, line in enumerate(token.content.split("\n"), token.map[0]):
            bounds = max(at, starts[number]), starts[number + 1]
            parts = [line] if line in content[slice(*bounds)] else line.split("|")  # of a cell
            at = content.find("\\|".join(parts), *bounds)
            if at < 0:
                break
            for part in parts:
                lines.append((read, at))
                read, at = read + len(part) + 1, at + len(part) + len("\\|")
            at -= len("\\|")
        else:
            yield from _block(content, token, lines)
        at = max(at, 0)


def _as_known(content: str) -> str:
    """A file as markdown-it-py can read it, line by line: the title of an admonition becomes a
    heading, its content is not indented, and a definition becomes an item of a list."""
    made, opened = list[str](), list[int]()
    for line in LINE_END.split(content):
        spaced = line.expandtabs(4)
        blanks = len(spaced) - len(spaced.lstrip(" "))
        while opened and line.strip() and blanks < opened[-1] + 4:
            opened.pop()
        inner = spaced[4 * len(opened) :] if opened else line
        if found := ADMONITION.fullmatch(inner):
            opened.append(blanks)
            inner = f"{found['blanks']}# {found['title'] or ''}"
        made.append(DEFINITION.sub(r"\1-", "" if FENCE.fullmatch(line) else inner, count=1))
    return "\n".join(made)


def _block(content: str, token: Any, lines: list[tuple[int, int]]) -> Iterator[Place]:
    """The text of a block.

    Args:
        lines: where each of its lines begins, in it and in the file.
    """

    def place(index: int) -> int:
        read, at = lines[bisect_right(lines, index, key=lambda each: each[0]) - 1]
        return at + index - read

    parts, at = list[tuple[str | Mark, slice]](), 0
    waiting = iter(token.children)
    for child in waiting:
        known = child.content if child.type in ("text", "html_inline") else child.markup
        pattern = SPELT.get(child.type, re.escape(known))
        if child.markup == "autolink":
            pattern = r"<[^<>]*>"
            next(waiting), next(waiting)
        found = re.compile(pattern, re.DOTALL).match(token.content, at)
        if not found:
            return
        if child.type == "text":
            for part in filter(None, NOTE.split(child.content)):
                spelt, at = slice(place(at), place(at + len(part))), at + len(part)
                parts.append((Mark(spelt) if NOTE.fullmatch(part) else part, spelt))
            continue
        spelt, at = slice(place(at), place(found.end())), found.end()
        if child.type in ("text_special", "softbreak"):
            parts.append((child.content or " ", spelt))
        else:
            lone = child.markup == "autolink"
            parts.append((Mark(spelt, KINDS[0 if lone else child.nesting]), spelt))
    parts = _trimmed(parts)
    if worded("".join(part for part, _ in parts if isinstance(part, str))):
        broken = [(part, content[s]) for part, s in parts if LINE_END.search(content[s])]
        whole = any(isinstance(part, Mark) for part, _ in broken)  # which lines would break again
        ends = [] if whole else [end for _, end in broken]
        segment = _joined([part for part, _ in parts])
        yield Place(parts[0][1].start, parts[-1][1].stop, segment, _writer(content, ends))


def _trimmed(parts: list[tuple[str | Mark, slice]]) -> list[tuple[str | Mark, slice]]:
    """Parts without a box to tick, code and blanks around the text."""
    if parts and (box := TASK.match(str(parts[0][0]))):
        start = parts[0][1].start + box.end()
        parts = [(str(parts[0][0])[box.end() :], slice(start, parts[0][1].stop)), *parts[1:]]
    for place, strip in ((0, str.lstrip), (-1, str.rstrip)):
        while parts:
            part, spelt = parts[place]
            if isinstance(part, str) and (text := strip(part)):
                cut = len(part) - len(text)
                start, stop = (cut, 0) if place == 0 else (0, cut)
                parts[place] = text, slice(spelt.start + start, spelt.stop - stop)
                break
            if isinstance(part, Mark) and part.kind != "alone":
                break
            parts.pop(place)
    return parts


def _joined(parts: Segment) -> Segment:
    """A segment with one text where several meet."""
    made = list[str | Mark]()
    for is_text, group in groupby(parts, lambda part: isinstance(part, str)):
        run = [*group]
        made += ["".join(map(str, run))] if is_text else run
    return made


def _writer(content: str, ends: list[str]) -> Callable[[Segment], str]:
    """How a translation is written.

    Args:
        ends: what stands between the lines of the text.
    """

    def written(translation: Segment) -> str:
        text = "".join(
            SIGNS.sub(r"\\\g<0>", part)
            if isinstance(part, str)
            else content[part.id].replace(" ", "\0")
            for part in translation
        )
        if translation and isinstance(translation[0], str):
            text = FIRST.sub(r"\g<number>\\\g<sign>", text, count=1) if FIRST.match(text) else text
        lines = on_lines(text, len(ends) + 1) if ends else [text]
        if any(map(FIRST.match, lines[1:])):  # a line that would begin a list
            lines = [text]
        return ends[0].join(lines).replace("\0", " ") if ends else text.replace("\0", " ")

    return written
