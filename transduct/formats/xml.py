"""Texts in XML: paragraphs of office documents, and units of translators' files.

defusedxml says whether a file is whole and harmless. The elements are then found in the characters
of the file, which a tree of objects would lose: all that is no text stays as it is spelt.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from xml.sax.saxutils import escape

from transduct.errors import needing, rewording
from transduct.formats.marked import Mark, Segment
from transduct.formats.markup import DOCTYPE, TAG, page
from transduct.formats.places import EXTRA, Place, Written, is_language, worded

TOKEN = re.compile(
    rf"<!--.*?-->|<\?.*?\?>|<!\[CDATA\[(?P<data>.*?)\]\]>|{DOCTYPE}"
    r"|<(?P<name>/?[^\s/>]+)(?:[^>\"']|\"[^\"]*\"|'[^']*')*+>",
    re.DOTALL,
)
PREFIX = re.compile(r"\bxmlns:([\w.-]+)\s*=\s*[\"']([^\"']*)")
# what the name of a namespace has in it -> the prefix that it has here
NAMESPACES = {
    "wordprocessingml": "w",
    "drawingml/2006/main": "a",
    "drawingml/main": "a",
    "opendocument:xmlns:text": "text",
    "opendocument:xmlns:office": "office",
    "oasis:names:tc:xliff": "",
}
FIELD = re.compile(r"fldCharType\s*=\s*[\"'](begin|end)")
UNTRANSLATED = re.compile(r"\stranslate\s*=\s*[\"']no[\"']")
LANGUAGE = re.compile(r"\s(?:xml:)?lang\s*=\s*[\"']([^\"']*)")
WHOLE = "not a whole XML file ({error}); save it again"
Spot = tuple[int, int, str, str]  # where a translation is to stand, and what stands around it then
Languages = tuple[str, str]  # source and target; "" for what the file says


@dataclass(eq=False)
class Node:
    """An element, or a text, whose name is "".

    Attributes:
        name: with a prefix of `NAMESPACES`; "!" for a comment.
        start, inside, end, stop: its characters, and those between its tags.
    """

    name: str
    start: int
    inside: int
    end: int
    stop: int
    children: list["Node"] = field(default_factory=list)


@dataclass(frozen=True)
class Grammar:
    """Which elements are what. All others are kept whole within a paragraph.

    Attributes:
        paragraphs: hold text that belongs together.
        spans: hold a part of it.
        cuts: end it, as a line break does.
        runs, texts: a style and the text in it; without these, text stands in paragraphs and spans.
        kept: hold nothing that is translated.
    """

    paragraphs: frozenset[str]
    spans: frozenset[str]
    cuts: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


MICROSOFT = Grammar(
    paragraphs=_names("w:p a:p"),
    spans=_names("w:hyperlink w:ins w:moveTo w:smartTag w:sdt w:sdtContent w:ruby w:rubyBase"),
    cuts=_names("w:tab w:ptab w:br w:cr a:br w:fldChar"),
    runs=_names("w:r a:r"),
    texts=_names("w:t a:t"),
    kept=_names("w:del w:moveFrom w:fldSimple a:fld"),
)
OPEN_DOCUMENT = Grammar(
    paragraphs=_names("text:p text:h"),
    spans=_names("text:span text:a text:meta text:ruby text:ruby-base"),
    cuts=_names("text:tab text:line-break"),
    kept=_names("office:annotation text:tracked-changes text:note-citation"),
)
TRANSLATORS = Grammar(paragraphs=_names("source seg-source seg"), spans=_names("g pc mrk hi"))
LOOK = _names("w:rPr a:rPr")
BESIDE = LOOK | {"w:lastRenderedPageBreak"}  # what a run may have beside its text


@dataclass(frozen=True)
class Style:
    """How a text looks, and what stands before and behind it for that."""

    look: str = ""
    before: str = field(default="", compare=False)
    behind: str = field(default="", compare=False)


def parse(name: str, content: str) -> Node:
    """The elements of a file.

    Raises:
        TransductError: it is damaged, declares entities, or defusedxml is not installed.
    """
    with needing(EXTRA, "defusedxml"):
        from defusedxml import DefusedXmlException
        from defusedxml.ElementTree import DefusedXMLParser, ParseError
    with rewording((ParseError, DefusedXmlException, ValueError), WHOLE, file=name):
        parser = DefusedXMLParser(target=object())
        parser.feed(content.removeprefix("\ufeff"))
        parser.close()
    known = {
        prefix: next((own for part, own in NAMESPACES.items() if part in uri), prefix)
        for prefix, uri in PREFIX.findall(content)
    }
    root = Node("/", 0, 0, len(content), len(content))
    opened, end = [root], 0
    for token in TOKEN.finditer(content):
        start, stop = token.span()
        if start > end:
            opened[-1].children.append(Node("", end, end, start, start))
        end = stop
        if token["data"] is not None:
            opened[-1].children.append(Node("", start, *token.span("data"), stop))
        elif token["name"] is None:
            opened[-1].children.append(Node("!", start, start, stop, stop))
        elif token["name"].startswith("/"):
            closed = opened.pop()
            closed.end, closed.stop = start, stop
        else:
            prefix, _, local = token["name"].rpartition(":")
            tag = ":".join(filter(None, (known.get(prefix, prefix), local)))
            opened[-1].children.append(Node(tag, start, stop, stop, stop))
            if content[stop - 2] != "/":
                opened.append(opened[-1].children[-1])
    return root


def paragraphs(grammar: Grammar, name: str, content: str) -> list[Place]:
    """The texts in a file of XML; raises like `parse`."""
    found = _Texts(grammar, content).under(parse(name, content))
    return sorted(found, key=lambda each: each.start)


class _Texts:
    """Finds texts in the elements of a file."""

    def __init__(self, grammar: Grammar, content: str) -> None:
        self.grammar, self.content = grammar, content

    def under(self, node: Node) -> Iterator[Place]:
        """The texts in an element."""
        if node.name in self.grammar.kept:
            return
        if node.name in self.grammar.paragraphs:
            yield from self._within(node.children)
        else:
            for child in node.children:
                yield from self.under(child)

    def _within(self, nodes: Sequence[Node]) -> Iterator[Place]:
        """The texts in a paragraph, which ends where a line does."""
        for cut, group in groupby(self._fields(nodes), self._cuts):
            if not cut:
                yield from self._text([*group])
                continue
            for node in group:
                inner = node.name in self.grammar.spans | self.grammar.runs
                yield from self._within(node.children) if inner else self.under(node)
                if self._is_page(node):
                    yield from page("", self.content[node.inside : node.end], node.inside)

    def _is_page(self, node: Node) -> bool:
        """Whether a section of CDATA holds HTML."""
        data = not node.name and node.start < node.inside and self.grammar is TRANSLATORS
        return data and re.search(TAG, self.content[node.inside : node.end]) is not None

    def _fields(self, nodes: Sequence[Node]) -> list[Node]:
        """The elements of a paragraph; those of a field, such as a page number, become one."""
        found, begun = list[Node](), list[int]()
        for node in nodes:
            found.append(node)
            mark = FIELD.search(self._spelt(node)) if node.name == "w:r" else None
            if mark and mark[1] == "begin":
                begun.append(len(found) - 1)
            elif mark and begun:
                first = begun.pop()
                if not any("HYPERLINK" in self._spelt(each) for each in found[first:]):
                    start = found[first].start
                    found[first:] = [Node("field", start, start, node.stop, node.stop)]
        return found

    def _cuts(self, node: Node) -> bool:
        """Whether a text ends at this element, or within it."""
        if self._is_page(node):
            return True
        names = [each.name for each in node.children if each.name]
        texts = [name for name in names if name in self.grammar.texts]
        if node.name in self.grammar.runs and texts and {*names} - {texts[0]} - BESIDE:
            return True  # a picture or a note beside its text
        if len(texts) > 1 or node.name in self.grammar.cuts:
            return True
        inner = node.name in self.grammar.spans | self.grammar.runs
        return inner and any(map(self._cuts, self._fields(node.children)))

    def _text(self, nodes: Sequence[Node]) -> Iterator[Place]:
        """The text of some elements, with marks for all that is no text, and the texts in that."""
        for node in nodes:
            yield from self._beside(node)
        filled = [number for number, node in enumerate(nodes) if self._has_text(node)]
        inner = nodes[filled[0] : filled[-1] + 1] if filled else []
        pieces = [*self._pieces(inner)]
        if not worded("".join(part for part, _ in pieces if isinstance(part, str))):
            return
        styles = [style for part, style in pieces if style for _ in str(part)]  # a letter each
        [(usual, _)] = Counter(styles).most_common(1)
        parts = list[str | Mark]()
        for style, group in groupby(pieces, lambda each: each[1]):
            run = [part for part, _ in group]
            text = run if style is None else ["".join(map(str, run))]
            marked = style not in (None, usual)
            parts += [Mark(style, "open"), *text, Mark(style, "close")] if marked else text
        first, last = (each if isinstance(each, str) else "" for each in (parts[0], parts[-1]))
        before, behind = first[: len(first) - len(first.lstrip())], last[len(last.rstrip()) :]
        if first:
            parts[0] = first.lstrip()
        if last:
            parts[-1] = str(parts[-1]).rstrip()
        segment = [part for part in parts if part != ""]
        written = _writer(before, behind, usual)
        yield Place(inner[0].start, inner[-1].stop, segment, written)

    def _beside(self, node: Node) -> Iterator[Place]:
        """The texts in what is no text of this paragraph, such as a note."""
        if self._is_span(node):
            for child in node.children:
                yield from self._beside(child)
        elif not self._style(node):
            yield from self.under(node)

    def _has_text(self, node: Node) -> bool:
        if found := self._style(node):
            return bool(self._plain(found[0]).strip())
        return self._is_span(node) and any(map(self._has_text, node.children))

    def _is_span(self, node: Node) -> bool:
        """Whether an element holds a part of a text; a run does so around ruby."""
        return node.name in self.grammar.spans or any(
            each.name == "w:ruby" for each in node.children
        )

    def _pieces(self, nodes: Sequence[Node]) -> Iterator[tuple[str | Mark, Style | None]]:
        """The texts of some elements with their styles, and marks for all else."""
        for node in self._fields(nodes):
            if found := self._style(node):
                yield re.sub(r"\s+", " ", self._plain(found[0])), found[1]
            elif self._is_span(node):
                yield Mark(slice(node.start, node.inside), "open"), None
                yield from self._pieces(node.children)
                yield Mark(slice(node.end, node.stop), "close"), None
            else:
                yield Mark(slice(node.start, node.stop)), None

    def _style(self, node: Node) -> tuple[Node, Style] | None:
        """The text that an element is, and how it is written; None if it is no text."""
        if not self.grammar.texts:
            return None if node.name else (node, Style())
        for text in node.children if node.name in self.grammar.runs else [node]:
            inner = {each.name for each in text.children}
            if text.name in self.grammar.texts and inner == {""}:  # all else stays as it is
                tag = self._spelt(text)[: text.inside - text.start]
                if text.name == "w:t" and "xml:space" not in tag:  # else blanks at its ends go
                    tag = tag.replace(">", ' xml:space="preserve">')
                look = "".join(self._spelt(each) for each in node.children if each.name in LOOK)
                before = self.content[node.start : text.start] + tag
                return text, Style(look, before, self.content[text.end : node.stop])
        return None

    def _spelt(self, node: Node) -> str:
        return self.content[node.start : node.stop]

    def _plain(self, text: Node) -> str:
        """The characters of a text."""
        nodes = [each for each in text.children if not each.name] if text.name else [text]
        return "".join(
            self.content[each.inside : each.end]  # a section of CDATA
            if each.start < each.inside
            else html.unescape(self._spelt(each))
            for each in nodes
        )


def _writer(before: str, behind: str, usual: Style) -> Callable[[Segment], Written]:
    """How a translation with marks is written.

    Args:
        before, behind: the blanks around the text.
        usual: the style of what has no mark of its own.
    """

    def written(translation: Segment) -> Written:
        styles, parts, current = [usual], list[str | slice](), Style()

        def show(piece: str | slice, style: Style) -> None:
            nonlocal current
            if style is not current:
                parts.extend((current.behind, style.before))
                current = style
            parts.append(piece)

        for part in (before, *translation, behind):
            if isinstance(part, str):
                show(escape(part), styles[-1] if part else current)
            elif isinstance(part.id, slice):
                show(part.id, Style())
            elif part.kind == "open":
                styles.append(part.id)
            else:
                styles.pop()
        show("", Style())
        return parts

    return written


def units(languages: Languages, name: str, content: str) -> list[Place]:
    """The texts of a file of translators (XLIFF 1.2 and 2, TMX) that have no translation; raises
    like `parse`."""
    texts, found = _Texts(TRANSLATORS, content), list[Place]()
    waiting = [parse(name, content)]
    while waiting:
        node = waiting.pop()
        if UNTRANSLATED.search(content[node.start : node.inside]):
            continue
        sides = {each.name: each for each in node.children}
        if node.name == "tu":
            side, spot = _variants(content, node, languages)
        elif "source" in sides:
            side = sides.get("seg-source", sides["source"])  # whose marks the target has, too
            spot = _target(content, node, sides)
        else:
            waiting += node.children
            continue
        if side and spot:
            found += _filling([*texts.under(side)], side, spot)
    return sorted(found, key=lambda each: each.start)


def _filling(places: Sequence[Place], side: Node, spot: Spot) -> Iterator[Place]:
    """Places whose translations stand elsewhere, with all that stands around the texts."""
    start, stop, opening, closing = spot
    ends = [*(place.start for place in places[1:]), side.end]
    for place, end in zip(places, ends, strict=True):
        first, last = place is places[0], place is places[-1]
        before = (opening, slice(side.inside, place.start)) if first else ()
        behind = slice(place.stop, end), closing if last else ""
        written = partial(_around, place.written, before, behind)
        yield replace(place, start=start, stop=stop, written=written, fills=True)
        start = stop


def _around(
    write: Callable[[Segment], Written],
    before: Sequence[str | slice],
    behind: Sequence[str | slice],
    translation: Segment,
) -> Written:
    return [*before, *write(translation), *behind]


def _target(content: str, unit: Node, sides: Mapping[str, Node]) -> Spot | None:
    """Where the translation of a unit of XLIFF is to stand; None if it has one."""
    source, target = sides["source"], sides.get("target")
    if target is not None:
        return None if content[target.inside : target.end].strip() else _inside(content, target)
    word = content[source.start + 1 : source.inside - 1].split()[0].replace("source", "target")
    blanks = content[unit.inside : source.start] if unit.children[0].name == "" else ""
    at = sides.get("seg-source", source).stop
    return at, at, f"{blanks}<{word}>", f"</{word}>"


def _inside(content: str, node: Node) -> Spot:
    """The inside of an element, which may be a tag alone."""
    tag = content[node.start : node.inside]
    if not tag.endswith("/>"):
        return node.inside, node.end, "", ""
    return node.start, node.stop, f"{tag[:-2].rstrip()}>", f"</{tag[1:-2].split()[0]}>"


def _variants(content: str, unit: Node, languages: Languages) -> tuple[Node | None, Spot | None]:
    """The text of a unit of TMX to translate and where to; None if nothing is missing."""
    found = dict[str, Node]()
    for variant in unit.children:
        language = LANGUAGE.search(content[variant.start : variant.inside])
        code = language[1].lower() if language else ""
        found.update((code, each) for each in variant.children if each.name == "seg")
    full = {code: each for code, each in found.items() if content[each.inside : each.end].strip()}
    source, target = languages
    side = next((each for code, each in full.items() if is_language(code, source)), None)
    side = side or next(
        (each for code, each in full.items() if not is_language(code, target)), None
    )
    goals = [code for code in found if (is_language(code, target) if target else code not in full)]
    if goals:
        return side, None if goals[0] in full else _inside(content, found[goals[0]])
    last = unit.children[-1]
    at = last.start if last.name == "" else unit.end
    spot = at, at, f'<tuv xml:lang="{target}"><seg>', "</seg></tuv>"
    return side, spot if target else None
