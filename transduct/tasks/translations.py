"""What goes into a translation model and comes out: texts, in pieces where they are longer than it, and translations.

A text is cut after the end of a sentence, else before a word, else anywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from transduct.data.pieces import LANGUAGE
from transduct.data.tokenizer import Tokenizer
from transduct.data.trees import bracketed

SENTENCE_ENDS, WIDE_ENDS = (".", "!", "?", ";", ":"), ("。", "！", "？")  # before a blank, and wherever they stand
WORD_STARTS = ("▁", "Ġ", " ")  # as tokenizers of words, of bytes and of characters write the blank before


@dataclass(frozen=True)
class Translation:
    """A translation.

    Attributes:
        text: one line.
        score: sum of the log-probabilities of its tokens, the end of the sentence included, before any penalty; where
            models of both directions decide, the mean of theirs.
        tokens: target token ids, without the end.
        alternatives: the n-best list, this one first; no text comes twice.
    """

    text: str
    score: float
    tokens: list[int]
    alternatives: list["Translation"] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Piece:
    """A text, or what of a long one the model takes at once.

    Attributes:
        ids: source tokens, without the end.
        words: how many words it holds.
        start: target tokens that its translation begins with.
    """

    ids: list[int]
    words: int = 0
    start: list[int] = field(default_factory=list)


def split(tokenizer: Tokenizer, ids: list[int], longest: int) -> list[list[int]]:
    """The tokens of a text, in pieces of at most `longest`; of no tokens, no piece.

    What names the language to translate into, in one token, begins every piece.
    """
    if len(ids) <= longest:
        return [ids] if ids else []
    named = longest > 1 and LANGUAGE.fullmatch(tokenizer.pieces(ids[:1])[0].lstrip("".join(WORD_STARTS)))
    first, ids = (ids[:1], ids[1:]) if named else ([], ids)
    parts = []
    while len(ids) > longest - len(first):
        cut = _cut(tokenizer, ids, longest - len(first))
        parts.append(first + ids[:cut])
        ids = ids[cut:]
    return [*parts, first + ids]


def _cut(tokenizer: Tokenizer, ids: Sequence[int], longest: int) -> int:
    """How many tokens the first piece of a text holds."""
    window = tokenizer.pieces(ids[: longest + 1])
    words = [i for i in range(1, len(window)) if window[i].startswith(WORD_STARTS)]
    sentences = [i for i in words if window[i - 1].endswith(SENTENCE_ENDS)]
    sentences += [i for i in range(1, len(window)) if window[i - 1].endswith(WIDE_ENDS)]
    if sentences or words:
        return max(sentences or words)
    cut = longest
    if tokenizer.kind == "byte":  # a character's bytes stay together
        while cut > 1 and tokenizer.continues(ids[cut]):
            cut -= 1
    return cut


def halved(encode: Callable[[Sequence[str]], list[list[int]]], words: list[str], longest: int) -> list[list[str]]:
    """Words in runs, halves of halves, of at most `longest` tokens each; a run of one word may be longer."""
    if len(words) < 2 or len(encode([" ".join(words)])[0]) <= longest:
        return [words]
    middle = len(words) // 2
    return halved(encode, words[:middle], longest) + halved(encode, words[middle:], longest)


def _beside(text: str, other: str) -> str:
    """Two texts as one, with a blank between them but after the end of a sentence in a script that has none."""
    return text + other if not (text and other) or text.endswith(WIDE_ENDS) else f"{text} {other}"


def joined(pieces: list[list[Translation]], n_best: int, blank: float = 0.0) -> Translation:
    """The pieces of one text put together: the best of each, then the second of each, ...; of none nothing, whose score
    is `blank`."""
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
    """A linearised tree, and its alternatives, as brackets around the words of the text."""
    others: dict[str, Translation] = {}
    for other in found.alternatives:  # which may differ in what stood for the words alone
        others.setdefault(text := bracketed(other.text, words), replace(other, text=text))
    return replace(found, text=bracketed(found.text, words), alternatives=list(others.values()))
