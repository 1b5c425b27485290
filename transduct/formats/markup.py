"""HTML and XML: the texts to translate in them, with their inline tags, and the document again.

Tags that stand inside sentences are marks of a segment. All others end a segment, and stay where
they are, as do comments and what is not to be translated. Nothing is resolved, so no entity can
grow.
"""

import html
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from transduct.errors import TransductError, require
from transduct.formats.marked import Mark, Segment
from transduct.formats.places import Place

NAME = r"[A-Za-z_][^\s/<>]*"
DOCTYPE = r"<!DOCTYPE(?:[^\[>\"']|\"[^\"]*\"|'[^']*'|\[.*?\]\s*(?=>))*>"
CDATA = r"<!\[CDATA\[(?P<data>.*?)\]\]>"
OPAQUE = rf"<!--.*?(?:-->|\Z)|{CDATA}|<!\[CDATA\[.*|{DOCTYPE}"
DATA = re.compile(CDATA, re.DOTALL)
TAG = rf"<(?P<close>/?)(?P<name>{NAME})(?P<rest>(?:[^\"'<>]|\"[^\"]*\"|'[^']*')*+)>"
TOKENS = {
    "html": re.compile(rf"{OPAQUE}|<(?:[!?]|/(?![a-z]))[^>]*>|{TAG}", re.DOTALL | re.IGNORECASE),
    "xml": re.compile(rf"{OPAQUE}|<\?.*?\?>|{TAG}", re.DOTALL | re.IGNORECASE),
}
ENTITY = r"(&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z][\w.-]*);{})"
ENTITIES = {"html": re.compile(ENTITY.format("?")), "xml": re.compile(ENTITY.format(""))}
XML_ENTITIES = {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"}
NOT_TRANSLATED = re.compile(r"(?<![\w-])translate\s*=\s*[\"']?no\b", re.IGNORECASE)
UNTOUCHED = {"code", "pre", "script", "style"}
READINGS = {"rt", "rp"}  # of HTML: how the word below is read
WITHOUT_TAGS = {"script", "style"}  # whose content has none
EMPTY = re.compile("area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr")
# Elements of HTML that do not stand inside a sentence.
BLOCKS = re.compile(
    "address|article|aside|base|blockquote|body|br|button|caption|center|col|colgroup|dd|details|"
    "dialog|dir|div|dl|dt|fieldset|figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header|"
    "hgroup|hr|html|legend|li|link|main|menu|meta|nav|noframes|noscript|ol|optgroup|option|p|pre|"
    "script|search|section|select|style|summary|table|tbody|td|template|textarea|tfoot|th|thead|"
    "title|tr|track|ul"
)
AROUND = " \t\r\n\f"
BLANKS = re.compile(f"[{AROUND}]+")
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # in XML, however written


@dataclass(frozen=True)
class Markup:
    """How mark-up is read.

    Attributes:
        kind: html, or xml, where a tag stands inside a sentence if text stands beside it.
        ignored: elements that are not translated.
        splitting, joining: elements that end a sentence, and that do not, whatever they are.
    """

    kind: Literal["html", "xml"]
    ignored: Collection[str] = ()
    splitting: Collection[str] = ()
    joining: Collection[str] = ()

    def splits(self, name: str, usually: object) -> bool:
        """Whether an element ends a sentence."""
        return bool(usually or name in self.splitting) and name not in self.joining


class Spelt(list[str | Mark]):
    """A segment, and how it is spelt where it was found."""

    spelt: str = ""


@dataclass(frozen=True)
class Document:
    """Mark-up in parts: those that stay as they are, and segments to translate."""

    parts: list[str | Segment] = field(default_factory=list)

    @property
    def segments(self) -> list[Segment]:
        """What is to be translated."""
        return [part for part in self.parts if not isinstance(part, str)]

    def written(self, segments: Sequence[Segment]) -> str:
        """The document with other segments."""
        given = iter(segments)
        return "".join(
            part if isinstance(part, str) else written(part, next(given)) for part in self.parts
        )


@dataclass(frozen=True)
class _Token:
    """A tag, a text, or what is neither (then `name` is empty and `text` is the whole).

    Attributes:
        step: 1 for a tag that opens an element, -1 for one that closes it, else 0.
        block: whether it ends a sentence.
        untouched: whether its element is not translated.
    """

    text: str
    name: str = ""
    step: int = 0
    block: bool = False
    untouched: bool = False
    is_text: bool = False


def document(text: str, markup: Markup) -> Document:
    """Find the texts to translate.

    Raises:
        TransductError: XML is not well-formed.
    """
    tokens = [*_tokens(text, markup)]
    if markup.kind == "xml":
        tokens = _nested(tokens, markup)
    parts, run = list[str | Segment](), list[_Token]()
    place = 0
    while place < len(tokens):
        token, place = tokens[place], place + 1
        if token.untouched and token.step == 1:
            end = _end(tokens, place, token.name)
            whole = "".join(each.text for each in tokens[place - 1 : end])
            token, place = _Token(whole, block=token.block), end
        if token.block:
            data = DATA.fullmatch(token.text)  # which holds tags
            inner = document(data[1], replace(markup, kind="html")).parts if data else ()
            parts += [
                *_segments(run, markup),
                *(["<![CDATA[", *inner, "]]>"] if data else [token.text]),
            ]
            run = []
        else:
            run.append(token)
    return Document([*parts, *_segments(run, markup)])


def _tokens(text: str, markup: Markup) -> Iterator[_Token]:
    """The tags of a text, and what is between them."""
    is_html, place = markup.kind == "html", 0
    while found := TOKENS[markup.kind].search(text, place):
        name = (found["name"] or "").lower() if is_html else found["name"] or ""
        if place < found.start():
            yield _Token(text[place : found.start()], is_text=True)
        place = found.end()
        if not name:
            data = "" if is_html else found["data"] or ""
            tagged = re.search(TAG, data) is not None
            block = tagged or found[0][:5].lower() in ("<!doc", "<?xml")
            yield _Token(found[0], block=block, is_text=bool(data) and not tagged)
            continue
        alone = found["rest"].endswith("/") or (is_html and EMPTY.fullmatch(name))
        step = -1 if found["close"] else 0 if alone else 1
        untouched = name in UNTOUCHED or name in markup.ignored or (is_html and name in READINGS)
        untouched |= NOT_TRANSLATED.search(found["rest"]) is not None
        yield _Token(found[0], name, step, markup.splits(name, BLOCKS.fullmatch(name)), untouched)
        if is_html and name in WITHOUT_TAGS and step == 1:
            end = re.compile(rf"</{name}\b", re.IGNORECASE).search(text, place)
            stop = end.start() if end else len(text)
            yield _Token(text[place:stop], is_text=True)
            place = stop
    if place < len(text):
        yield _Token(text[place:], is_text=True)


def _nested(tokens: Sequence[_Token], markup: Markup) -> list[_Token]:
    """Tokens of XML, whose tags end a sentence unless they stand beside text, or in what does.

    Raises:
        TransductError: they are not well-formed.
    """
    names, around = [""], [0]  # of each element its name, and in which it stands
    opened, parents, mixed = [0], list[int](), set[int]()
    for token in tokens:
        if token.is_text:
            rest = ENTITIES["xml"].sub("", DATA.sub("", token.text))
            sign = "<" if "<" in rest else "&"
            require(sign not in rest, f"is not well-formed XML: a {sign} is not escaped")
            if token.text.strip():
                mixed.add(opened[-1])
        elif token.step == -1:
            wanted = f"</{names[opened.pop()]}>" if len(opened) > 1 else "no end"
            problem = f"found </{token.name:.40}>, expected {wanted}"
            require(wanted == f"</{token.name}>", f"is not well-formed XML: {problem}")
        parents.append(opened[-1])
        if token.step == 1:
            names.append(token.name)
            around.append(opened[-1])
            opened.append(len(names) - 1)
    if len(opened) > 1:
        raise TransductError(f"is not well-formed XML: <{names[opened[-1]]:.40}> has no end")
    for number in range(1, len(names)):  # parents come before what they hold
        if around[number] in mixed:
            mixed.add(number)
    return [
        replace(token, block=markup.splits(token.name, parent not in mixed))
        if token.name
        else token
        for token, parent in zip(tokens, parents, strict=True)
    ]


def _end(tokens: Sequence[_Token], place: int, name: str) -> int:
    """The place after the end of an element that has begun."""
    depth = 1
    while place < len(tokens) and depth:
        depth += tokens[place].step if tokens[place].name == name else 0
        place += 1
    return place


def _segments(run: Sequence[_Token], markup: Markup) -> Iterator[str | Segment]:
    """The segments between two blocks. A tag without its other half in there divides them."""
    opened: list[int] = []
    lone = set[int]()
    for place, token in enumerate(run):
        if token.step == 1:
            opened.append(place)
        elif token.step == -1 and opened and run[opened[-1]].name == token.name:
            opened.pop()
        elif token.step == -1:
            lone |= {place, *opened}
            opened = []
    lone |= {*opened}
    first = 0
    for place in [*sorted(lone), len(run)]:
        yield from _segment(run[first:place], markup)
        yield from (token.text for token in run[place : place + 1])
        first = place + 1


def _segment(run: Sequence[_Token], markup: Markup) -> Iterator[str | Segment]:
    """One segment, with the blanks around it; as it is if there is nothing to translate."""
    whole = "".join(token.text for token in run)
    parts: list[str | Mark] = []
    for token in run:
        if token.is_text:
            parts += _readable(token.text, markup.kind)
        else:
            parts.append(Mark(token.text, ("close", "alone", "open")[token.step + 1]))
    if not any(isinstance(part, str) and any(map(str.isalpha, part)) for part in parts):
        yield from [whole] if whole else []
        return
    body = whole.strip(AROUND)
    start = whole.index(body)
    for place, strip in ((0, str.lstrip), (-1, str.rstrip)):
        part = parts[place]
        parts[place] = strip(part, AROUND) if isinstance(part, str) else part
    around = whole[:start], whole[start + len(body) :]
    found = Spelt(parts)
    found.spelt = body
    yield from (part for part in (around[0], found, around[1]) if part)


def _readable(text: str, kind: str) -> Iterator[str | Mark]:
    """A text as a model reads it; what it could not read as marks."""
    text = DATA.sub(lambda data: html.escape(data[1], quote=False), text)
    read = ""
    for place, part in enumerate(ENTITIES[kind].split(text)):  # every other one is an entity
        known = kind == "html" or part in XML_ENTITIES or part[1:2] == "#"
        sign = html.unescape(part) if place % 2 and known else part
        strange = sign == part and part.endswith(";")
        if place % 2 and (strange or not all(map(_is_read, sign))):
            yield BLANKS.sub(" ", read)
            yield Mark(part)
            read = ""
        else:
            read += sign
    yield BLANKS.sub(" ", read)


def _is_read(sign: str) -> bool:
    """Whether a character is part of a sentence: not a symbol or a control character."""
    return " " <= sign <= "~" or unicodedata.category(sign)[0] in "LMNPZ"


def written(old: Segment, segment: Segment) -> str:
    """A segment in mark-up, in place of an old one; the same one is spelt as it was."""
    if isinstance(old, Spelt) and segment == old:
        return old.spelt
    parts = (
        html.escape(FORBIDDEN.sub("", part), quote=False).replace("\xa0", "&#160;")
        if isinstance(part, str)
        else str(part.id)
        for part in segment
    )
    return "".join(parts)


def page(_: str, content: str, start: int = 0) -> Iterator[Place]:
    """The texts of a web page that starts at a place in a file."""
    for part in document(content, Markup("html")).parts:
        stop = start + len(part.spelt if isinstance(part, Spelt) else part)
        if isinstance(part, Spelt):
            yield Place(start, stop, part, partial(written, part))
        start = stop
