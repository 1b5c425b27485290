"""Labelled bracketing scores of parse trees (Black et al. 1991), by the rules of evalb's
COLLINS.prm."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from transduct.errors import TransductError
from transduct.evaluation.bootstrap import Share

Span = tuple[str, int, int]  # label, first word, end (exclusive)

UNCOUNTED = ("", "TOP", "ROOT", "S1")
SAME = {"PRT": "ADVP"}
PUNCTUATION = {",", ":", "``", "''", "."}  # ignored tags
PUNCTUATION |= {
    "?",
    "!",
    ";",
    "--",
    "...",
}  # words that always have one of these tags, for references without tags
PARTS = re.compile(r"\(([^\s()]*)|\)([^\s()]*)|([^\s()]+)")
NUMBER = re.compile(r"#\d+(?=.)")  # the number before a word, if a recipe numbers them


def labelled_f1(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Share:
    """F1 of labelled precision and recall over the constituents of all sentences.

    Trees are linearised, "(S (NP XX XX )NP (VP XX )VP . )S", or bracketed, "(S (NP The cat) (VP
    sat) .)", without tags over their words. TOP is not counted, PRT equals ADVP, and words that are
    punctuation in the reference are removed from both trees, along with constituents that hold
    nothing else. Only the first of several references counts.

    evalb skips sentences whose two trees have different numbers of words; here all constituents of
    such a hypothesis are wrong, so that failing does not pay. Raises TransductError if the
    references hold no constituent.
    """
    matched, brackets, expected = [], [], 0
    for hypothesis, options in zip(hypotheses, references, strict=True):
        words, spans = read(options[0])
        kept = [word not in PUNCTUATION for word in words]
        gold = _counted(spans, kept)
        words_guessed, spans_guessed = read(hypothesis)
        alike = len(words_guessed) == len(words)
        guess = _counted(
            spans_guessed, kept if alike else [word not in PUNCTUATION for word in words_guessed]
        )
        matched.append(2 * (gold & guess).total() if alike else 0)
        brackets.append(gold.total() + guess.total())
        expected += gold.total()
    if not expected:
        raise TransductError(
            "the references hold no constituent, so there is no F1; give trees as references"
        )
    return Share(np.array(matched, np.float64), np.array(brackets, np.float64))


def read(text: str) -> tuple[list[str], list[Span]]:
    """Parse a tree in either notation: its words, without numbers before them, and the spans of its
    constituents.

    Accepts any text: constituents still open at the end end there, and a closing bracket closes the
    innermost one whatever its label.
    """
    words: list[str] = []
    spans: list[Span] = []
    open_constituents: list[tuple[str, int]] = []
    for match in PARTS.finditer(text):
        label, closing, word = match.groups()
        if word is not None:
            words.append(NUMBER.sub("", word))
        elif label is not None:
            open_constituents.append((label, len(words)))
        elif closing is not None and open_constituents:
            spans.append((*open_constituents.pop(), len(words)))
    spans += [(label, start, len(words)) for label, start in reversed(open_constituents)]
    return words, spans


def _counted(spans: Sequence[Span], kept: Sequence[bool]) -> Counter[Span]:
    """The constituents that count, over the kept words."""
    place = [0, *accumulate(kept)]  # the number of kept words before each word
    moved = ((SAME.get(label, label), place[start], place[end]) for label, start, end in spans)
    return Counter(
        (label, start, end) for label, start, end in moved if label not in UNCOUNTED and start < end
    )
