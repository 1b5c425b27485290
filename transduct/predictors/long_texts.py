"""Texts of several lines or sentences, or longer than a translation model takes: they are split
into pieces, and the translations joined again, with the white space and bullets that were between.

Sentences end as in Unicode's rules (UAX 29), but for abbreviations and for marks of Latin script,
after which there must be a blank. A text that is too long is cut after the end of a sentence if
possible, else before a word, else anywhere.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import regex

from transduct.data.pieces import LANGUAGE
from transduct.data.replacements import Replaced, placeholders_of_parts
from transduct.data.tokenizer import Tokenizer
from transduct.data.tokenizer_file import is_blank
from transduct.data.trees import bracketed
from transduct.errors import count_warning
from transduct.inference.settings import DecodingConfig

if TYPE_CHECKING:
    from transduct.formats.marked import Segment
    from transduct.formats.markup import Document
    from transduct.predictors.terms import Terms

SENTENCE_ENDS = (".", "!", "?", ";", ":")  # before a blank
LINES = re.compile("(\r\n|[\n\r\v\f\x85\u2028\u2029])")
# What stands before the text of a line: a bullet, the mark of a quotation or of a heading.
BULLETS = re.compile(r"(?:(?:[-*+•‣◦▪○●·–—>]|#{1,6}|\d{1,3}\)|[a-z]\))\s+)*")
RULE = re.compile(r"[\W_]{1,80}")  # a line such as "---" or "* * *"
NUMBERED = re.compile(r"\s*\d{1,3}\.\s+(?=\S)")  # one of a list only if there are several
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
QUOTES = {"「": "」", "『": "』", "｢": "｣", "“": "”", "‘": "’", '"': '"'}
QUOTES |= {"〈": "〉", "《": "》", "〝": "〟", "«": "»", "≪": "≫"}
CLOSING = {*QUOTES.values(), "'"}
VOWELS = frozenset("aeiouyıæœøаеиоуыэюяієαεηιουω")
SOON = 100  # characters between two tokens, where a bullet or unknown words may stand
# how tokenizers of words, bytes and characters mark a preceding blank
WORD_STARTS = "▁", "Ġ", " "


@dataclass(frozen=True)
class Translation:
    """A translation.

    Attributes:
        text: as many lines as its source has.
        score: the sum of the log-probabilities of its tokens and the end token, before any length
            penalty; the mean over the members of an ensemble that writes in both directions.
        tokens: target token ids, without the end token.
        alternatives: the n-best list of distinct texts, this one first.
        parts: the text with its tags, if its source was such a segment.
        lost: placeholders of the source, and terms, that it should hold and does not.
    """

    text: str
    score: float
    tokens: list[int]
    alternatives: list["Translation"] = field(default_factory=list, repr=False)
    parts: "Segment" = field(default=(), repr=False)
    lost: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Piece:
    """A text, or a part of a long text that the model takes.

    Attributes:
        ids: source tokens, without the end token.
        words: the number of words.
        start: target tokens with which the translation must begin.
        replaced: what placeholders stand for, to be put back into the translation.
        terms: what the translation must hold.
    """

    ids: list[int]
    words: int = 0
    start: list[int] = field(default_factory=list)
    replaced: Replaced = ()
    terms: "Terms | None" = None


@cache
def _borders() -> Any:
    """The pattern of what ends a sentence, with the white space after it."""
    latin = ".!?…"
    other = r"[[\p{Sentence_Break=STerm}．]--[!?…‼⁇⁈⁉‽]]"
    # In French a blank stands before a closing quote. A full-width stop may be in a number.
    return regex.compile(
        rf"(?<![{latin}])[{latin}‼⁇⁈⁉‽]++(?:\s(?=[»›]\s))?[\"'”’“‘»«›‹)\]\p{{Cf}}]*+\s+"
        rf"|(?:{other}|(?<={other})[!?])++(?<!．(?=\d))[\"'\p{{Pe}}\p{{Pf}}\p{{Cf}}]*+"
        r"(?!\p{Sentence_Break=SContinue})\s*+",
        regex.VERSION1,
    )


@cache
def _scripts() -> Any:
    """The pattern of a character of a script without blanks, or of its punctuation."""
    return regex.compile(
        r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
        r"\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]"
    )


def without_blanks(text: str) -> bool:
    """Whether a text begins in a script that is written without blanks."""
    return _scripts().match(text) is not None


@cache
def _east_asian() -> Any:
    """The pattern of a letter of Chinese, Japanese or Korean, or of a mark that ends a sentence."""
    return regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}。｡．！？]")


@dataclass(frozen=True)
class Plan:
    """Texts to translate, cut into pieces.

    Attributes:
        pieces: of all texts, in order.
        spans: the first piece of each text, and the one after its last; a blank text has none.
        gaps: what stands around the pieces of each text; see `assemble`.
        n_best, decoding: as for `translate`.
        documents, inner: texts with mark-up, and the plan of their segments.
    """

    texts: Sequence[Any]
    pieces: list[Piece]
    spans: list[tuple[int, int]]
    gaps: list[list[str | None]]
    n_best: int
    decoding: DecodingConfig
    documents: "Sequence[Document]" = ()
    inner: "Plan | None" = None


def sentences(text: str) -> list[str]:
    """Split a text after its sentences and at line breaks; every part names the target language if
    the text does."""
    return laid_out(text, by_sentence=True)[0]


def laid_out(text: str, by_sentence: bool) -> tuple[list[str], list[str]]:
    """Split a text into parts to translate, its lines or sentences, and what stands around them.

    Where there are several lines, bullets and lines without a letter or digit are not translated;
    bullets are not `by_sentence` either. If the text begins with a target language, so does every
    part that names no other.

    Returns:
        The parts, and one gap more than parts. Put together in turn they are the text, except for
        languages named.
    """
    named = LANGUAGE.match(text.lstrip())
    parts: list[str] = []
    gaps = [""]
    lines = LINES.split(text)  # every other one is a line break
    several = any(map(str.strip, lines[1:]))
    listed = sum(bool(NUMBERED.match(line)) for line in lines) > 1
    for line in lines:
        start = begin = len(line) - len(line.lstrip())
        own = LANGUAGE.match(line[start:])
        language = own or named
        if own:
            begin += own.end()
        elif several or by_sentence:
            begin = _after_bullets(line, start, listed)
        rest = line[begin:]
        if is_blank(rest) or (several and RULE.fullmatch(rest)):
            gaps[-1] += line[: None if own is None else start] + rest * (own is not None)
            continue
        gaps[-1] += line[: begin if own is None else start]
        spans = _sentences(line, begin) if by_sentence else [(begin, len(line))]
        for first, last in spans:
            part = line[first:last].strip()
            if own and first == begin:  # as it is written, with a blank after it or without
                part = own[0] + line[first:last].rstrip()
            else:
                gaps[-1] += line[first:last][: -len(line[first:last].lstrip())]
                part = f"{language[0]} {part}" if language else part
            parts.append(part)
            gaps.append(line[len(line[:last].rstrip()) : last])
    return parts, gaps


def _after_bullets(line: str, start: int, listed: bool) -> int:
    """Where the text of a line begins, from `start` on; `listed` if numbers begin several lines."""
    found = BULLETS.match(line, start)
    assert found is not None
    end = found.end()
    if listed and (number := NUMBERED.match(line, end)):
        end = number.end()
    return start if is_blank(line[end:]) else end


def _sentences(line: str, start: int) -> list[tuple[int, int]]:
    """The sentences of a line from `start` on, each with the white space after it.

    A full stop ends no sentence after an initial, an ordinal or an abbreviation: a letter of a
    script with cases, up to two digits, one of `ABBREVIATIONS`, or up to three letters, the first a
    capital, that have no vowel or a digit after them ("Dr. Who", "No. 5", but not "No. It"). Nor
    does a mark of Latin script that a small letter follows. In Chinese, Japanese and Korean a
    quotation belongs to the sentence around it.
    """
    spans = []
    opened, read = dict.fromkeys(QUOTES, 0), start
    last = {mark: line.rfind(closing) for mark, closing in QUOTES.items()}
    for end in _borders().finditer(line, start):
        stop, after = end.end(), line[end.end() : end.end() + 1]
        latin = line[end.start()] in ".!?…‼⁇⁈⁉‽"
        if latin and (after.islower() or _abbreviates(line, end.start(), after)):
            continue
        if _east_asian().search(line[max(0, end.start() - 1) : end.start() + 1] + after):
            _count_quotes(opened, line[read:stop])
            read = stop
            if opened['"'] and '"' in end[0]:  # it opens what follows
                stop = end.start() + end[0].index('"')
            elif any(count and last[mark] >= stop for mark, count in opened.items()):
                continue
            goes_on = _east_asian().match(after) if latin else after
            if (
                goes_on
                and after not in QUOTES
                and not CLOSING.isdisjoint(end[0][: stop - end.start()])
            ):
                continue
        spans.append((start, stop))
        start = stop
    if not is_blank(line[start:]):
        spans.append((start, len(line)))
    elif spans:
        spans[-1] = (spans[-1][0], len(line))
    return spans


def _count_quotes(opened: dict[str, int], text: str) -> None:
    """Update how many quotations of each kind are open after a text."""
    for mark, closing in QUOTES.items():
        found = text.count(mark)
        opened[mark] = (
            (opened[mark] + found) % 2
            if mark == closing
            else max(0, opened[mark] + found - text.count(closing))
        )


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
    if (len(word) == 1 and word.lower() != word.upper()) or word in ABBREVIATIONS:
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
    parts, start, free = [], len(first), longest - len(first)
    shown = tokenizer.pieces(ids)
    while len(ids) - start > free:
        stop = start + free
        stop = _cut(shown, start, stop) or _cut_word(tokenizer, ids, start, stop)
        parts.append(first + ids[start:stop])
        start = stop
    return [*parts, first + ids[start:]]


def _cut(shown: Sequence[str], start: int, stop: int) -> int:
    """Where the piece from `start` to `stop` at most ends: after a sentence, else after a word; 0
    if it is one word. Tokens are in readable form."""
    word = 0
    for place in range(stop, start, -1):
        begins = shown[place].startswith(WORD_STARTS)
        if _ends(shown[place - 1][-1:]) or (begins and shown[place - 1].endswith(SENTENCE_ENDS)):
            return place
        if begins and not word:
            word = place
    return word


def _cut_word(tokenizer: Tokenizer, ids: Sequence[int], start: int, stop: int) -> int:
    """Where a piece ends that is one word: the bytes of a character stay together."""
    if tokenizer.kind == "byte":
        while stop > start + 1 and tokenizer.continues(ids[stop]):
            stop -= 1
    return stop


@lru_cache(maxsize=4096)
def _ends(character: str) -> bool:
    """Whether a sentence ends with this character, whatever follows."""
    return _borders().fullmatch(character) is not None


def spans_of(pieces: Sequence[str], text: str) -> list[tuple[int, int] | None]:
    """The characters of a text that each of its tokens is, by their readable forms, in order; None
    for one that is not found soon after the one before."""
    spans: list[tuple[int, int] | None] = []
    start = 0
    for piece in pieces:
        shown = piece.strip("".join(WORD_STARTS))
        place = text.find(shown, start, start + len(shown) + SOON) if shown else -1
        spans.append(None if place < 0 else (place, place + len(shown)))
        start = start if place < 0 else place + len(shown)
    return spans


def likeliest(
    tokenizer: Tokenizer, logs: Any, count: int, end: str = ""
) -> list[list[tuple[str, float]]]:
    """The likeliest tokens of each place, as they stand in a text, and their log-probabilities.

    Args:
        logs: (T, V).
        end: what the end token stands for.
    """
    found = logs.topk(min(count, logs.shape[-1]))
    shown: list[list[tuple[str, float]]] = []
    for ids, values in zip(found.indices.tolist(), found.values.tolist(), strict=True):
        texts = tokenizer.decode([[token] for token in ids])
        begins = [piece.startswith(WORD_STARTS) for piece in tokenizer.pieces(ids)]
        written = [
            end if token == Tokenizer.END else f" {text.lstrip()}" if word else text
            for token, text, word in zip(ids, texts, begins, strict=True)
        ]
        shown.append([*zip(written, values)])
    return shown


def in_pieces(
    texts: Sequence[str],
    by_sentence: bool,
    hide: Callable[[str], tuple[str, Replaced]] | None,
    tokenizer: Tokenizer,
    longest: int,
    starts: Sequence[list[int]] = (),
    terms_of: "Callable[[str], Terms | None] | None" = None,
) -> tuple[list[Piece], list[list[str | None]]]:
    """The pieces of all texts that a model takes, with a warning if a line had to be cut.

    Args:
        hide: the changes of text, which say what placeholders stand for.
        starts: the target tokens with which each translation must begin, if any.
        terms_of: what the translation of a text must hold.

    Returns:
        The pieces, and for each text the gaps around its own, as `assemble` takes them.
    """
    layouts = [laid_out(text, by_sentence) for text in texts]
    changed: list[tuple[str, Replaced]] = [
        hide(part) if hide else (part, ()) for parts, _ in layouts for part in parts
    ]
    coded = iter(zip(changed, tokenizer.encode([text for text, _ in changed]), strict=True))
    pieces: list[Piece] = []
    around: list[list[str | None]] = []
    cut: list[tuple[int, int, str]] = []
    for number, (parts, gaps) in enumerate(layouts):
        start = starts[number] if starts else []
        between: list[str | None] = [gaps[0]]
        for part, gap in zip(parts, gaps[1:], strict=True):
            (_, replaced), ids = next(coded)
            runs = split(tokenizer, ids, longest) or [[]]
            if len(runs) > 1 and not by_sentence:
                cut.append((len(ids), len(runs), part))
            between += [*[None for _ in runs[1:]], gap]
            texts_of_runs = [part] if len(runs) == 1 else tokenizer.decode(runs)
            shares = (
                [replaced] if len(runs) == 1 else placeholders_of_parts(texts_of_runs, replaced)
            )
            for run, share, own in zip(runs, shares, texts_of_runs, strict=True):
                pieces.append(
                    Piece(run, start=start, replaced=share, terms=terms_of and terms_of(own))
                )
                start = []
        around.append(between)
    _warn_of_cuts(cut, longest)
    return pieces, around


def tree_pieces(
    texts: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]], longest: int
) -> tuple[list[Piece], list[int]]:
    """Like `in_pieces`, for trees: lines are one text, cut between words; returns the number of
    pieces of each."""
    pieces: list[Piece] = []
    counts = []
    cut: list[tuple[int, int, str]] = []
    for text, ids in zip(texts, encode(texts), strict=True):
        words = text.split()
        runs = [words] if words else []
        coded = [ids] if words else []
        if len(ids) > longest:
            runs = halved(encode, words, longest)
            coded = encode([" ".join(run) for run in runs])
            cut.append((len(ids), len(runs), text))
        pieces += [Piece(part[:longest], len(run)) for part, run in zip(coded, runs, strict=True)]
        counts.append(len(runs))
    _warn_of_cuts(cut, longest)
    return pieces, counts


def _warn_of_cuts(cut: Sequence[tuple[int, int, str]], longest: int) -> None:
    """Warn in one line of texts that were cut: the tokens and pieces of each, and its text."""
    if cut:
        tokens, pieces, text = cut[0]
        first = f"{tokens} tokens is longer than the model takes ({longest}), translated in "
        first += f"{pieces} pieces: {text!r:.60} ..."
        count_warning("%d texts are too long; the first of", len(cut), first=first)


def halved(
    encode: Callable[[Sequence[str]], list[list[int]]], words: list[str], longest: int
) -> list[list[str]]:
    """Halve a run of words until each part has at most `longest` tokens; a single word may be
    longer."""
    if len(words) < 2 or len(encode([" ".join(words)])[0]) <= longest:
        return [words]
    middle = len(words) // 2
    return halved(encode, words[:middle], longest) + halved(encode, words[middle:], longest)


def _spaced(text: str, other: str) -> str:
    """Join two texts with a blank, unless either is empty or, where they meet, of a script without
    blanks."""
    joint = text[-1:], other[:1]
    if not all(joint) or any(map(_scripts().match, joint)):
        return text + other
    return f"{text} {other}"


def assemble(
    pieces: list[list[Translation]],
    n_best: int,
    blank: float = 0.0,
    gaps: Sequence[str | None] = (),
) -> Translation:
    """Join the translations of a text's pieces: the best of each, then the second of each, and so
    on.

    Without pieces, the translation is empty, with the score `blank`.

    Args:
        gaps: what stands before the first piece, between pieces and after the last; None and ""
            between two are as their script has it.
    """
    if not pieces:
        nothing = Translation("", blank, [])
        return replace(nothing, alternatives=[nothing])
    first, *between, last = gaps or ["", *[None for _ in pieces[1:]], ""]
    distinct: dict[str, Translation] = {}
    for parts in zip(*pieces):
        text = parts[0].text
        for gap, part in zip(between, parts[1:], strict=True):
            text = f"{text}{gap}{part.text}" if gap else _spaced(text, part.text)
        text = f"{first or ''}{text}{last or ''}"
        tokens = [token for part in parts for token in part.tokens]
        lost = tuple(each for part in parts for each in part.lost)
        score = sum(part.score for part in parts)
        distinct.setdefault(text, Translation(text, score, tokens, lost=lost))
    alternatives = list(distinct.values())[:n_best]
    return replace(alternatives[0], alternatives=alternatives)


def with_words(found: Translation, words: list[str]) -> Translation:
    """Write a linearised tree and its alternatives as brackets around the words of the text."""
    others: dict[str, Translation] = {}
    for other in found.alternatives:  # some may differ only in the placeholders of words
        others.setdefault(text := bracketed(other.text, words), replace(other, text=text))
    return replace(found, text=bracketed(found.text, words), alternatives=list(others.values()))
