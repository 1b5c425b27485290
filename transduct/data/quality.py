"""Pairs that are probably no translations of each other, or that spoil a model: which, and why.

Everything is computed from the texts, offline.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduct.data.languages import parts_of
from transduct.data.samples import Pair
from transduct.data.sources import FiltersConfig
from transduct.data.tokenizer_file import tidied
from transduct.errors import needing

LONG_ENOUGH = 20  # letters of a text whose language is asked
CERTAIN = 0.9  # the probability of another language from which a text is taken for it
FEWEST_WORDS = 4  # of a target that may be called untranslated
COPIED_WORDS = 0.7  # the share of a target's words that its source has too
MOST_BYTES = 2048  # of a text whose language is found together with others
SHORT = 10  # bytes that the lengths of short texts may differ by
MARKS = ("[?？;]", "[!！]", "[,，、،]")
SHIFTS = (1, -1, 2, -2, 3, -3)  # lines by which a run may be out of place
EVIDENCE = 18.0  # nats for a run that is out of place, above any that chance brings about
ROBUST = 1.4826  # the standard deviation of a normal distribution by its median deviation
MARKUP = re.compile(r"</?[A-Za-z][^<>]{0,200}>|&(?:[A-Za-z]{2,8}|#\d{1,6});")
LETTERS = r"[^\W\d_]"
# Letters of the scripts that one of a few languages alone uses, by these languages.
SCRIPTS = {
    "ko": r"[\uac00-\ud7a3\u1100-\u11ff\u3130-\u318f]",
    "ja": r"[\u3040-\u30ff\u4e00-\u9fff\u3400-\u4dbf]",
    "zh": r"[\u4e00-\u9fff\u3400-\u4dbf]",
    **dict.fromkeys(("ru", "uk", "bg", "be", "mk", "kk"), r"[\u0400-\u052f]"),
    **dict.fromkeys(("ar", "fa", "ur"), r"[\u0600-\u06ff\u0750-\u077f]"),
    **dict.fromkeys(("hi", "mr", "ne"), r"[\u0900-\u097f]"),
    **{"el": r"[\u0370-\u03ff\u1f00-\u1fff]", "he": r"[\u0590-\u05ff]", "th": r"[\u0e00-\u0e7f]"},
    **{"ka": r"[\u10a0-\u10ff]", "hy": r"[\u0530-\u058f]", "ta": r"[\u0b80-\u0bff]"},
}
LATIN = r"[A-Za-z\u00aa-\u024f\u1e00-\u1eff]"

Judge = Callable[[Sequence[Pair]], NDArray[np.float64]]


class Quality:
    """Says of pairs why they are left out, chunk by chunk.

    Args:
        languages: of source and target, for the filters that need them.
        judge: how unlikely pairs are, in nats a token, for `unlikely`.
    """

    def __init__(
        self, config: FiltersConfig, languages: tuple[str, str] | None, judge: Judge | None = None
    ) -> None:
        self.config, self._judge = config, judge
        self._keys = [parts_of(code)[0] for code in languages or ()]
        # in the order in which they are asked
        rules: Mapping[str, Callable[[_Chunk], NDArray[np.bool_]]] = {
            "copied": _copied,
            "untranslated": lambda chunk: np.array([_keeps_words(*pair) for pair in chunk.pairs]),
            "swapped": self._swapped,
            "script": self._in_other_script,
            "language": self._in_other_language,
            "length_ratio": self._unequal,
            "markup": lambda chunk: chunk.any(MARKUP.search, "[<&]"),
            "mojibake": lambda chunk: chunk.any(_mojibake, r"[^\x00-\x7f]"),
            "misaligned": lambda chunk: misaligned(chunk.pairs),
        }
        self._rules = {name: rule for name, rule in rules.items() if getattr(config, name)}

    def reasons(self, pairs: Sequence[Pair]) -> list[str]:
        """The first reason to leave out each pair, "" for none. The pairs of a chunk are taken as
        neighbours."""
        found, chunk = np.full(len(pairs), "", object), _Chunk(pairs)
        for name, rule in self._rules.items() if pairs else ():
            found[(found == "") & rule(chunk)] = name
        if self._judge is not None and (found == "").any():
            left = np.flatnonzero(found == "")
            nats = self._judge([pairs[place] for place in left.tolist()])
            found[left[nats > self.config.unlikely]] = "unlikely"
        reasons: list[str] = found.tolist()
        return reasons

    def _swapped(self, chunk: "_Chunk") -> NDArray[np.bool_]:
        return np.logical_and(
            *(codes == key for (codes, _), key in zip(chunk.languages, self._keys[::-1]))
        )

    def _in_other_language(self, chunk: "_Chunk") -> NDArray[np.bool_]:
        sides = zip(chunk.languages, chunk.count(LETTERS), self._keys)
        return np.logical_or(
            *(
                (letters > LONG_ENOUGH) & (codes != key) & (certain >= CERTAIN)
                for (codes, certain), letters, key in sides
            )
        )

    def _in_other_script(self, chunk: "_Chunk") -> NDArray[np.bool_]:
        own = [chunk.count(SCRIPTS.get(key, LATIN))[side] for side, key in enumerate(self._keys)]
        return np.logical_or(*(2 * n < letters for n, letters in zip(own, chunk.count(LETTERS))))

    def _unequal(self, chunk: "_Chunk") -> NDArray[np.bool_]:
        """Whether one side is that many times longer; short texts may differ by some bytes."""
        sizes = [np.array([len(text.encode()) for text in side]) + SHORT for side in chunk.sides]
        unequal: NDArray[np.bool_] = (
            np.maximum(*sizes) / np.minimum(*sizes) > self.config.length_ratio
        )
        return unequal


class _Chunk:
    """Some pairs, and what several filters ask of them, computed at once for all."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs, self.sides = pairs, [*zip(*pairs)]

    @cached_property
    def _points(self) -> list[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        """The code points of each side, one text after the other, and where each text begins."""
        return [points_of(side) for side in self.sides]

    def count(self, pattern: str) -> list[NDArray[np.int64]]:
        """How many characters of each text of each side a class of characters holds."""
        return [counts(_class(pattern)[points], starts) for points, starts in self._points]

    @cached_property
    def languages(self) -> list[tuple[NDArray[np.object_], NDArray[np.float64]]]:
        """The likeliest language of each text of each side, and its probability; "" for a text
        that is too short to tell."""
        found = []
        for side, letters in zip(self.sides, self.count(LETTERS)):
            codes, certain = np.full(len(side), "", object), np.zeros(len(side))
            asked = np.flatnonzero(letters > LONG_ENOUGH // 2)
            codes[asked], certain[asked] = languages_of([side[i] for i in asked.tolist()])
            found.append((codes, certain))
        return found

    def any(self, wrong: Callable[[str], object], signs: str) -> NDArray[np.bool_]:
        """Whether a text of a pair is wrong; only those with a character of a class are asked."""
        found = np.zeros(len(self.pairs), bool)
        for side, asked in zip(self.sides, self.count(signs)):
            for place in np.flatnonzero(asked).tolist():
                found[place] |= bool(wrong(side[place]))
        return found


def points_of(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The code points of texts, one after the other, and where each text begins; the last number
    is the end."""
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([*map(len, texts)], out=starts[1:])
    return points, starts


def counts(flags: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many flags each text has."""
    sums = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, out=sums[1:])
    return sums[starts[1:]] - sums[starts[:-1]]


@cache
def _class(pattern: str) -> NDArray[np.bool_]:
    """Whether each code point is in a class of characters."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    found = np.zeros(len(every), bool)
    found[points_of(re.findall(pattern, every))[0]] = True
    return found


@cache
def identifier(extra: str = "filters") -> Any:
    """The library that tells languages apart, which is loaded once, in half a second."""
    with needing(extra, "py3langid"):
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def languages_of(texts: Sequence[str]) -> tuple[list[str], list[float]]:
    """The likeliest language of each text, and its probability, as `identifier` finds them.

    The library walks through a text byte by byte in Python. Here all texts go a byte further in
    each turn, so a text takes a few microseconds instead of sixty.
    """
    known = identifier()
    encoded = [known._encode(text) for text in texts]
    sizes = np.array([*map(len, encoded)])
    short = np.flatnonzero(sizes <= MOST_BYTES)
    order = short[np.argsort(-sizes[short], kind="stable")]
    scores = _scores([encoded[i] for i in order.tolist()])
    codes, certain = [""] * len(texts), [0.0] * len(texts)
    for place, best, probability in zip(order.tolist(), scores.argmax(1), scores.max(1).tolist()):
        codes[place], certain[place] = known.nb_classes[best], probability
    for place in np.flatnonzero(sizes > MOST_BYTES).tolist():
        codes[place], certain[place] = known.classify(encoded[place])
    return codes, certain


@cache
def _automaton() -> tuple[Any, ...]:
    """The transitions of the identifier's automaton: to which row and with which feature; and the
    weights of the features."""
    known = identifier()
    states = np.array(known.tk_nextmove, np.int64)
    rows, features = np.array(known.tk_row, np.int32) << 8, np.array(known.tk_output, np.int32)
    return rows[states], features[states], known.nb_ptc.astype(np.float32), rows[0]


def _scores(texts: Sequence[bytes]) -> NDArray[np.float32]:
    """The probability of each language for each text, (texts, languages); the longest is first."""
    known, (rows, features, table, first) = identifier(), _automaton()
    content = np.frombuffer(b"".join(texts), np.uint8)
    sizes = np.array([*map(len, texts)], np.int64)
    starts, states = np.cumsum(sizes) - sizes, np.full(len(texts), first)
    seen: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for place in range(int(sizes.max(initial=0))):
        count = np.searchsorted(-sizes, -place)  # texts that go on
        moves = states[:count] + content[starts[:count] + place]
        states, found = rows[moves], features[moves]
        texts_of = np.flatnonzero(found >= 0)
        seen.append(texts_of * len(table) + found[texts_of])
    visits, times = np.unique(np.concatenate(seen), return_counts=True)
    numbers, of = visits % len(table), visits // len(table)
    weights = np.log1p(times.astype(np.float32))
    borders = np.searchsorted(of, np.arange(len(texts) + 1)).tolist()
    scores = np.zeros((len(texts), len(known.nb_pc)), np.float32)
    for row, (start, stop) in enumerate(pairwise(borders)):
        if start < stop:  # else nothing is known
            scores[row] = weights[start:stop] @ table[numbers[start:stop]] + known.nb_pc
    scores /= np.sqrt(np.maximum(sizes, 1))[:, None]
    scores = np.exp(scores - scores.max(1, keepdims=True))
    scores /= scores.sum(1, keepdims=True)
    for one, other in known._alias_pairs:
        scores[:, one] += scores[:, other]
        scores[:, other] = 0.0
    return scores


def folded(text: str) -> str:
    """A text up to case and white space."""
    return " ".join(tidied(text).casefold().split())


def _copied(chunk: _Chunk) -> NDArray[np.bool_]:
    """Whether the texts are equal; numbers may be."""
    equal = np.array([folded(one) == folded(other) for one, other in chunk.pairs])
    return equal & (chunk.count(LETTERS)[0] > 0)


def _keeps_words(source: str, target: str) -> bool:
    """Whether most words of a target are its source's."""
    known, words = {*source.casefold().split()}, target.casefold().split()
    if sum(word in known for word in words) < COPIED_WORDS * FEWEST_WORDS:  # which is fast
        return False
    words = [word for word in words if re.search(LETTERS, word)]
    kept = sum(word in known for word in words)
    return len(words) >= FEWEST_WORDS and kept >= COPIED_WORDS * len(words)


@cache
def _ftfy() -> tuple[Callable[[str], bool], Callable[[str], str]]:
    with needing("filters", "ftfy"):
        from ftfy import fix_encoding
        from ftfy.badness import is_bad

    return is_bad, fix_encoding


def _mojibake(text: str) -> bool:
    is_bad, fixed = _ftfy()
    return is_bad(text) and fixed(text) != text


def misaligned(pairs: Sequence[Pair]) -> NDArray[np.bool_]:
    """Which of some neighbouring pairs stand in a run whose targets belong a few lines away.

    Each line votes by how well it fits its own target and one that is `SHIFTS` lines away: by the
    log ratio of lengths, and by whether both ask, exclaim, have commas and the same digits. The
    votes are log likelihood ratios, whose terms are estimated from the lines themselves. A run is
    found where their sum rises by `EVIDENCE` (the CUSUM of Page 1954).
    """
    wrong = np.zeros(len(pairs), bool)
    if len(pairs) < 2 * max(SHIFTS) + 2:
        return wrong
    sides = [points_of(side) for side in zip(*pairs)]
    lengths = [np.log1p(np.diff(starts)) for _, starts in sides]
    marks = [_marks(*each) for each in sides]
    usual = float(np.median(lengths[1] - lengths[0]))
    near = _spread(lengths[1] - lengths[0] - usual)
    for shift in SHIFTS:
        # entries that have no line there are as good as their own, and vote for nothing
        places = np.clip(np.arange(len(pairs)) + shift, 0, len(pairs) - 1)
        own, moved = (lengths[1][at] - lengths[0] - usual for at in (slice(None), places))
        far = max(_spread(moved), 1.05 * near)
        bound = (3 * far) ** 2  # one line of odd length is no run
        gap = np.minimum(own**2, bound) - np.minimum(moved**2, bound)
        votes = gap / 2 * (near**-2 - far**-2)
        for column in range(marks[0].shape[1]):
            fits, fits_moved = (
                marks[1][at, column] == marks[0][:, column] for at in (slice(None), places)
            )
            chance, by_chance = ((each.mean() * 0.98 + 0.01) for each in (fits, fits_moved))
            if chance > by_chance:
                yes, no = np.log(chance / by_chance), np.log((1 - chance) / (1 - by_chance))
                votes += np.where(fits_moved, yes, no) - np.where(fits, yes, no)
        wrong |= _runs(votes.tolist())
    return wrong


def _marks(points: NDArray[np.uint32], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a translation keeps: questions, exclamations, commas, and which digits there are, in
    any order; (texts, 4)."""
    marks = [counts(_class(signs)[points], starts) > 0 for signs in MARKS]
    # how often there is each of the ten, as the digits of a number
    powers = np.zeros(len(points), np.int64)
    digits = _class("[0-9]")[points]
    powers[digits] = 8 ** (points[digits].astype(np.int64) - ord("0"))
    return np.stack([*marks, counts(powers, starts)], 1)


def _spread(values: NDArray[np.float64]) -> float:
    """The standard deviation, whatever a few values far away are."""
    return max(ROBUST * float(np.median(np.abs(values - np.median(values)))), 0.05)


def _runs(votes: Sequence[float]) -> NDArray[np.bool_]:
    """The entries from where the sum of votes leaves 0 to where it is highest, if that is much."""
    found = np.zeros(len(votes), bool)
    total, start, best, end = 0.0, 0, 0.0, 0
    for place, vote in enumerate(chain(votes, [-np.inf])):
        total += vote
        if total > best:
            best, end = total, place + 1
        if total <= 0 or best - total > EVIDENCE:
            if best > EVIDENCE:
                found[start:end] = True
            total, start, best, end = 0.0, place + 1, 0.0, place + 1
    return found
