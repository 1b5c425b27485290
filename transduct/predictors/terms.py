"""What a translation must hold: placeholders as often as its source, and the terms of a glossary.

The model is left alone as long as it writes them. Where it does not, the sentence is searched again
with them forced; what is still missing is named.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transduct.data.lines import read_lines
from transduct.data.replacements import restored
from transduct.data.tokenizer import Tokenizer
from transduct.decoding.search import Phrase
from transduct.errors import TransductError, count_warning
from transduct.predictors.long_texts import Piece, Translation

Glossary = Mapping[str, str | Sequence[str]]
PLACEHOLDER = re.compile(
    r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\"'.,;:!?)\]}»”’]"
    r"|(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+"
    r"|</?[A-Za-z][^<>]*>"
    r"|\{\{[^{}]*\}\}|\{%[^{}]*%\}|[$%#]?\{[^{}\s]*\}"
    r"|%\(\w+\)[a-zA-Z]|(?<![\d%])%(?:\d+\$)?[-+#0]?\d*(?:\.\d+)?l{0,2}[a-zA-Z@](?![^\W\d_]{2})"
    r"|\d+(?:[.,:]\d+)*|%%"
)
POINTS = str.maketrans(".,", ",.")  # a number may be written as the other language does
# Scripts without blanks, and with them those that add endings to any word.
WITHOUT_BLANKS = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff"
WITH_ENDINGS = WITHOUT_BLANKS + "\u1100-\u11ff\uac00-\ud7a3"
LEAST_BEAM, WIDEST_BEAM = 10, 40  # of a search for terms


@dataclass(frozen=True)
class Terms:
    """What a translation must hold.

    Attributes:
        placeholders: each with how often.
        words: forms, of which any will do, each with how often.
    """

    placeholders: Mapping[str, int]
    words: Mapping[tuple[str, ...], int]

    def lost(self, text: str) -> tuple[str, ...]:
        """What a translation has more or less often; of words, less often."""
        found = Counter(map(_name, PLACEHOLDER.findall(text)))
        lost = [name for name, count in self.placeholders.items() if found[_name(name)] != count]
        for forms, count in self.words.items():
            if len(_pattern(forms, "").findall(text)) < count:
                lost.append(forms[0])
        return tuple(lost)


def terms_of(glossary: Glossary | None, placeholders: bool) -> Callable[[str], Terms | None]:
    """Make a function that finds what the translation of a text must hold, if anything.

    Raises:
        TransductError: the glossary is not one.
    """
    if glossary is not None and not isinstance(glossary, Mapping):
        raise TransductError(
            f"the glossary is {glossary!r:.40}, expected terms and translations, such as "
            "{'Haus': 'house'}"
        )
    checked = {term: _forms(term, given) for term, given in (glossary or {}).items()}
    forms = {" ".join(term.split()): each for term, each in checked.items()}
    source = _pattern(list(forms)) if forms else None
    lower = {term.lower(): each for term, each in forms.items() if term == term.lower()}

    def find(text: str) -> Terms | None:
        kept = dict[str, list[str]]()
        for each in PLACEHOLDER.findall(text) if placeholders else ():
            kept.setdefault(_name(each), []).append(each)
        words = Counter[tuple[str, ...]]()
        for each in source.findall(text) if source else ():
            term = " ".join(each.split())
            words[forms.get(term) or lower[term.lower()]] += 1
        found = Terms({each[0]: len(each) for each in kept.values()}, words)
        return found if kept or words else None

    return find


def read_glossary(path: Path) -> Glossary:
    """A glossary from a file: a term a line, then a tab and its translation, or several forms of it
    with tabs between. Empty lines, and those that begin with #, are comments.

    Raises:
        TransductError: it cannot be read, or a line has no translation.
    """
    found = dict[str, list[str]]()
    for number, line in enumerate(read_lines(path), 1):
        if line.strip() and not line.startswith("#"):
            term, *forms = (each.strip() for each in line.split("\t"))
            if not term or not any(forms):
                problem = "expected a term, a tab and its translation; fix the line"
                raise TransductError(problem, file=str(path), line=number)
            found[term] = [each for each in forms if each]
    return found


def _forms(term: object, given: object) -> tuple[str, ...]:
    forms = given if isinstance(given, list | tuple) else [given]
    texts = [each.strip() for each in (*forms, term) if isinstance(each, str)]
    if not all(texts) or not forms or len(texts) != len(forms) + 1:
        raise TransductError(
            f"the glossary has {given!r:.40} for {term!r:.40}, expected a text or a list of texts"
        )
    return tuple(texts[:-1])


def _name(placeholder: str) -> str:
    """What is the same in a placeholder however a number is written."""
    return placeholder.replace(",", ".") if placeholder[0].isdigit() else placeholder


def _pattern(terms: Sequence[str], end: str = r"(?!\w)") -> re.Pattern[str]:
    """The pattern of any of these terms, as whole words or, with another `end`, with any ending;
    those of small letters also in capitals."""
    each = [
        ("" if re.match(f"[{WITHOUT_BLANKS}]", term) else r"(?<!\w)")
        + ("(?i:%s)" if term == term.lower() else "%s") % r"\s+".join(map(re.escape, term.split()))
        + ("" if re.search(f"[{WITH_ENDINGS}]$", term) else end)
        for term in sorted(terms, key=len, reverse=True)
    ]
    return re.compile("|".join(each))


def phrases_of(terms: Terms, tokenizer: Tokenizer) -> list[Phrase]:
    """What a search is to force; without what the tokenizer cannot write."""
    found = list[Phrase]()
    numbers = {
        (name, name.translate(POINTS)) if name[0].isdigit() else (name,): count
        for name, count in terms.placeholders.items()
    }
    for forms, count in [*numbers.items(), *terms.words.items()]:
        coded = dict.fromkeys(map(tuple, tokenizer.encode([*forms])))
        texts = tokenizer.decode([*coded])
        phrase = tuple(
            ids
            for ids, text in zip(coded, texts)
            if ids and not {*ids} & {*Tokenizer.UNWRITTEN, Tokenizer.END} and text.strip() in forms
        )
        found += [phrase] * count if phrase else []
    return found


def ensured(
    translator: Any,
    pieces: Sequence[Piece],
    found: Sequence[list[Translation]],
    decoding: Any,
) -> list[list[Translation]]:
    """The n-best lists with what holds all terms in front, searched again where nothing does."""
    ranked = [_ranked(*each) for each in zip(pieces, found, strict=True)]
    phrases = {
        n: phrases_of(terms, translator.target_tokenizer)
        for n, (piece, (best, *_)) in enumerate(zip(pieces, ranked))
        if best.lost and (terms := piece.terms) is not None
    }
    if again := [n for n, each in phrases.items() if each]:
        longest = max(sum(min(map(len, phrase)) for phrase in phrases[n]) for n in again)
        beam = max(decoding.beam, LEAST_BEAM, min(longest + 2, WIDEST_BEAM))
        wide = replace(decoding, beam=beam, temperature=0.0, shortlist=False, captured=False)
        forced = translator.search([pieces[n] for n in again], wide, [phrases[n] for n in again])
        for n, others in zip(again, forced, strict=True):
            ranked[n] = _ranked(pieces[n], [*others, *found[n]])[: len(found[n])]
    if lacking := sum(bool(best.lost) for best, *_ in ranked):
        count_warning("%d texts lack placeholders or terms in translation", lacking)
    return ranked


def _ranked(piece: Piece, found: list[Translation]) -> list[Translation]:
    """Translations with what each has lost, those that lost the least in front."""
    terms = piece.terms
    if terms is None:
        return found
    marked = [replace(t, lost=terms.lost(restored(t.text, piece.replaced))) for t in found]
    return sorted(marked, key=lambda each: len(each.lost))
