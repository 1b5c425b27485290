"""Pairs of texts in files of translators: translation memories (TMX), XLIFF, message catalogues
(PO)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from transduct.errors import TransductError, needing, rewording
from transduct.formats.catalogues import catalogue, plurals
from transduct.formats.documents import decoded, encoding_of
from transduct.formats.places import EXTRA, is_language

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# elements of XLIFF 1.2 and 2 -> their attributes that name both languages
LANGUAGES_IN = {"file": ("source-language", "target-language"), "xliff": ("srcLang", "trgLang")}
CODES = {"bpt", "ept", "ph", "it", "ut"}  # elements that hold mark-up of the original, not text
Found = tuple[str, str]  # a pair; the second text is empty in an entry without a translation


def pairs_of(
    kind: str, name: str, file: BinaryIO, languages: Sequence[str | int] | None
) -> Iterator[Found]:
    """The pairs of a file of a kind (".tmx", ".xlf", ".xliff" or ".po").

    Args:
        languages: source and target, for a translation memory of more than two.

    Raises:
        TransductError: it is damaged, names other languages, or a library is not installed.
    """
    if kind == ".po":
        content = file.read()
        for entry in catalogue(name, decoded(name, content, encoding_of(kind, content))):
            several = bool(entry.msgid_plural)
            for source, text in plurals(entry) if several else [(entry.msgid, entry.msgstr)]:
                yield one_line(source), "" if entry.fuzzy else one_line(text)
        return
    with needing(EXTRA, "defusedxml"):
        from defusedxml import DefusedXmlException
        from defusedxml.ElementTree import ParseError, iterparse
    wanted = [str(each).lower() for each in languages or ()]
    damage = (ParseError, DefusedXmlException, ValueError)
    with rewording(damage, "not a whole XML file ({error}); save it again", file=name):
        parsed = iterparse(file, events=("start", "end"))
        yield from (_memory if kind == ".tmx" else _translated)(name, parsed, wanted)


def _memory(name: str, parsed: Any, languages: list[str]) -> Iterator[Found]:
    wanted = languages
    body: Any = None
    held: dict[str, None] = {}
    found = False
    for event, element in parsed:
        tag = _tag(element)
        body = element if tag == "body" else body
        if tag == "header" and event == "start" and not wanted:
            source = element.get("srclang", "*all*").lower()
            wanted = [] if source == "*all*" else [source]
        if tag != "tu" or event != "end":
            continue
        texts: dict[str, str] = {}
        for variant in element:
            language = (variant.get(LANGUAGE) or variant.get("lang") or "").lower()
            segment = next((each for each in variant if _tag(each) == "seg"), None)
            if _tag(variant) == "tuv" and segment is not None:
                texts.setdefault(language, _text(segment))
        (element if body is None else body).clear()  # else all units would stay in memory
        if len(wanted) < 2:
            first = next(
                (each for each in texts if is_language(each, *wanted)), next(iter(texts), "")
            )
            wanted = [first, *(each for each in texts if each != first)]
        if len(wanted) != 2:
            raise TransductError(
                f"holds {', '.join(wanted) or 'no language'}, expected two languages; name them "
                "in columns",
                file=name,
            )
        sides = [next((texts[each] for each in texts if is_language(each, w)), "") for w in wanted]
        held |= dict.fromkeys(texts)
        found = found or all(sides)
        yield sides[0], sides[1]
    if languages and held and not found:
        raise _others(name, held, wanted)


def _translated(name: str, parsed: Any, wanted: list[str]) -> Iterator[Found]:
    """Of XLIFF 1.2 each unit, of 2 each segment; turned if the languages are wanted so."""
    order = 1
    for event, element in parsed:
        keys = LANGUAGES_IN.get(_tag(element), ()) if event == "start" else ()
        if any(held := [element.get(key, "").lower() for key in keys]):
            order = _order(name, held, wanted)
        if event == "end" and _tag(element) in ("trans-unit", "segment"):
            texts = {_tag(each): _text(each) for each in element}
            source, target = [texts.get(side, "") for side in ("source", "target")][::order]
            yield source, target
            element.clear()


def _order(name: str, held: Sequence[str], wanted: Sequence[str]) -> int:
    """1 if a file holds the languages as wanted, -1 if it holds them the other way round."""
    for order in (1, -1):
        pairs = zip(held, wanted[::order])
        if all(not language or is_language(language, each) for language, each in pairs):
            return order
    raise _others(name, held, wanted)


def _others(name: str, held: Iterable[str], wanted: Iterable[str]) -> TransductError:
    problem = f"holds {', '.join(held)}, columns name {', '.join(wanted)}; name those of the file"
    return TransductError(problem, file=name)


def _tag(element: Any) -> str:
    return str(element.tag).rsplit("}", 1)[-1]


def _text(element: Any) -> str:
    """The text of an element on one line, without the mark-up that it holds."""
    parts = [element.text or ""]
    for inner in element:
        parts += ["" if _tag(inner) in CODES else _text(inner), inner.tail or ""]
    return one_line("".join(parts))


def one_line(text: str) -> str:
    """A text with single blanks for its white space."""
    return " ".join(text.split())
