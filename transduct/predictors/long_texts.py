"""Texts of several sentences, or longer than a translation model takes: they are split into pieces,
and the translations joined again.

A text that is too long is cut after the end of a sentence if possible, else before a word, else
anywhere.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from unicodedata import normalize

from transduct.data.pieces import LANGUAGE
from transduct.data.tokenizer import Tokenizer
from transduct.data.trees import bracketed
from transduct.inference.engine import DecodingConfig

SENTENCE_ENDS, WIDE_ENDS = (
    (".", "!", "?", ";", ":"),
    ("。", "！", "？"),
)  # before a blank, and anywhere
BETWEEN_SENTENCES = re.compile(  # in French a blank stands before a closing quote
    r"(?<![.!?…])[.!?…]++(?:\s(?=[»›]\s))?[\"'”’“‘»«›‹)\]]*+\s+|[。！？]+[」』”’）]*\s*|\n\s*"
)
ABBREVIATIONS = {
    "Adm",
    "Capt",
    "Co",
    "Col",
    "Dra",
    "Fam",
    "Gen",
    "Gov",
    "Inc",
    "Ing",
    "Mag",
    "Maj",
    "Mio",
    "Prof",
    "Rep",
    "Rev",
    "Sen",
    "Sig",
    "Sra",
    "Vol",
}
VOWELS = frozenset("aeiouyıæœøаеиоуыэюяієαεηιουω")
WORD_STARTS = (
    "▁",
    "Ġ",
    " ",
)  # how tokenizers of words, bytes and characters mark a preceding blank


@dataclass(frozen=True)
class Translation:
    """A translation.

    Attributes:
        text: one line.
        score: the sum of the log-probabilities of its tokens and the end token, before any length
            penalty; the mean over the members of an ensemble that writes in both directions.
        tokens: target token ids, without the end token.
        alternatives: the n-best list of distinct texts, this one first.
    """

    text: str
    score: float
    tokens: list[int]
    alternatives: list["Translation"] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Piece:
    """A text, or a part of a long text that the model takes.

    Attributes:
        ids: source tokens, without the end token.
        words: the number of words.
        start: target tokens with which the translation must begin.
    """

    ids: list[int]
    words: int = 0
    start: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """Texts to translate, cut into pieces.

    Attributes:
        pieces: of all texts, in order.
        spans: the first piece of each text, and the one after its last; a blank text has none.
        n_best, decoding: as for `translate`.
    """

    texts: Sequence[str]
    pieces: list[Piece]
    spans: list[tuple[int, int]]
    n_best: int
    decoding: DecodingConfig


def sentences(text: str) -> list[str]:
    """Split a text after its sentences and at line breaks; every part names the target language if
    the text does.

    A full stop ends no sentence after an initial, an ordinal or an abbreviation: a letter, up to
    two digits, one of `ABBREVIATIONS`, or up to three letters, the first a capital, that have no
    vowel or a digit after them ("Dr. Who", "No. 5", but not "No. It"). Nor does anything that a
    small letter follows on the same line.
    """
    text = text.lstrip()
    named = LANGUAGE.match(text)
    language = f"{named[0]} " if named else ""
    parts, start = [], len(named[0]) if named else 0
    for end in BETWEEN_SENTENCES.finditer(text, start):
        after = text[end.end() : end.end() + 1]
        if "\n" in end[0] or not (after.islower() or _abbreviates(text, end.start(), after)):
            parts.append(text[start : end.end()].strip())
            start = end.end()
    parts.append(text[start:].strip())
    return [language + part for part in parts if part]


def _abbreviates(text: str, stop: int, after: str) -> bool:
    """Whether the full stop at `stop` belongs to an initial, ordinal or abbreviation; `after` is
    the next character."""
    if text[stop] != "." or text[stop + 1 : stop + 2] in (".", "!", "?"):
        return False
    found = re.search(r"\w*$", text[max(0, stop - 5) : stop])
    assert found is not None
    word = found[0]
    if word.isdigit():
        return len(word) <= 2
    if len(word) == 1 or word in ABBREVIATIONS:
        return True
    short = len(word) <= 3 and word[:1].isupper()
    return short and (after.isdigit() or VOWELS.isdisjoint(normalize("NFD", word.lower())))


def split(tokenizer: Tokenizer, ids: list[int], longest: int) -> list[list[int]]:
    """Split the tokens of a text into pieces of at most `longest`; an empty text has no piece.

    The first tokens, if they name the target language and fill no more than half of a piece, are
    repeated at the start of every piece.
    """
    if len(ids) <= longest:
        return [ids] if ids else []
    named = LANGUAGE.match(
        "".join(tokenizer.pieces(ids[: longest // 2])).lstrip("".join(WORD_STARTS))
    )
    first = tokenizer.encode([named[0]])[0] if named else []
    if ids[: len(first)] != first:  # it was written otherwise, or goes on without a blank
        first = []
    parts, start, room = [], len(first), longest - len(first)
    while len(ids) - start > room:
        stop = start + _cut(tokenizer, ids[start : start + room + 1], room)
        parts.append(first + ids[start:stop])
        start = stop
    return [*parts, first + ids[start:]]


def _cut(tokenizer: Tokenizer, ids: Sequence[int], longest: int) -> int:
    """The number of tokens in the first piece of a text, of which there are `longest` + 1."""
    window = tokenizer.pieces(ids)
    words = [i for i in range(1, len(window)) if window[i].startswith(WORD_STARTS)]
    sentences = [i for i in words if window[i - 1].endswith(SENTENCE_ENDS)]
    sentences += [i for i in range(1, len(window)) if window[i - 1].endswith(WIDE_ENDS)]
    if sentences or words:
        return max(sentences or words)
    cut = longest
    if tokenizer.kind == "byte":  # keep the bytes of a character together
        while cut > 1 and tokenizer.continues(ids[cut]):
            cut -= 1
    return cut


def halved(
    encode: Callable[[Sequence[str]], list[list[int]]], words: list[str], longest: int
) -> list[list[str]]:
    """Halve a run of words until each part has at most `longest` tokens; a single word may be
    longer."""
    if len(words) < 2 or len(encode([" ".join(words)])[0]) <= longest:
        return [words]
    middle = len(words) // 2
    return halved(encode, words[:middle], longest) + halved(encode, words[middle:], longest)


def _beside(text: str, other: str) -> str:
    """Join two texts with a blank, except after a full-width end of sentence."""
    return text + other if not (text and other) or text.endswith(WIDE_ENDS) else f"{text} {other}"


def joined(pieces: list[list[Translation]], n_best: int, blank: float = 0.0) -> Translation:
    """Join the translations of a text's pieces: the best of each, then the second of each, and so
    on.

    Without pieces, the translation is empty, with the score `blank`.
    """
    if not pieces:
        nothing = Translation("", blank, [])
        return replace(nothing, alternatives=[nothing])
    distinct: dict[str, Translation] = {}
    for parts in zip(*pieces):
        text = reduce(_beside, (part.text for part in parts))
        tokens = [token for part in parts for token in part.tokens]
        distinct.setdefault(text, Translation(text, sum(part.score for part in parts), tokens))
    alternatives = list(distinct.values())[:n_best]
    return replace(alternatives[0], alternatives=alternatives)


def with_words(found: Translation, words: list[str]) -> Translation:
    """Write a linearised tree and its alternatives as brackets around the words of the text."""
    others: dict[str, Translation] = {}
    for other in found.alternatives:  # some may differ only in the placeholders of words
        others.setdefault(text := bracketed(other.text, words), replace(other, text=text))
    return replace(found, text=bracketed(found.text, words), alternatives=list(others.values()))
