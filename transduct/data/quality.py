"""Pairs that are probably no translations of each other, or that spoil a model: which, and why.

Everything is computed from the texts, offline. Near duplicates need all pairs at once and are found
on disk, by MinHash (Broder 1997) in bands.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduct.data.languages import parts_of
from transduct.data.samples import Pair
from transduct.data.sources import FiltersConfig
from transduct.data.vocabulary import tidied
from transduct.errors import needing

LONG_ENOUGH = 20  # letters of a text whose language is asked
CERTAIN = 0.9  # the probability of another language from which a text is taken for it
FEWEST_WORDS = 4  # of a target that may be called untranslated
COPIED_WORDS = 0.7  # the share of a target's words that its source has too
SHORT = 10  # bytes that the lengths of short texts may differ by
PERMUTATIONS, BANDS = 64, 16  # of a MinHash: 4 numbers a band find most pairs alike from 0.7 on
SHINGLE = 5  # characters
SHIFTS = (1, -1, 2, -2, 3, -3)  # lines by which a run may be out of place
EVIDENCE = 18.0  # nats for a run that is out of place, above any that chance brings about
ROBUST = 1.4826  # the standard deviation of a normal distribution by its median deviation
MARKUP = re.compile(r"</?[A-Za-z][^<>]{0,200}>|&(?:[A-Za-z]{2,8}|#\d{1,6});")
DIGITS = re.compile("[0-9]")
LETTERS = re.compile(r"[^\W\d_]")
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


class Quality:
    """Says of pairs why they are left out, chunk by chunk.

    Args:
        languages: of source and target, for the filters that need them.
    """

    def __init__(self, config: FiltersConfig, languages: tuple[str, str] | None) -> None:
        self.config = config
        keys = [parts_of(code)[0] for code in languages or ()]
        rules: Mapping[str, Callable[[Pair], bool]] = {
            "copied": _copied,
            "untranslated": _untranslated,
            "swapped": lambda pair: _are_in(pair, keys[::-1]),
            "script": lambda pair: any(map(_in_other_script, pair, keys)),
            "language": lambda pair: any(map(_in_other_language, pair, keys)),
            "length_ratio": lambda pair: _ratio(pair) > config.length_ratio,
            "markup": lambda pair: any(map(MARKUP.search, pair)),
            "mojibake": lambda pair: any(map(_mojibake, pair)),
        }
        self._rules = {name: rule for name, rule in rules.items() if getattr(config, name)}

    def reasons(self, pairs: Sequence[Pair]) -> list[str]:
        """The first reason to leave out each pair, "" for none. The pairs of a chunk are taken as
        neighbours."""
        found = [next((n for n, rule in self._rules.items() if rule(p)), "") for p in pairs]
        if self.config.misaligned:
            for place in np.flatnonzero(misaligned(pairs)).tolist():
                found[place] = found[place] or "misaligned"
        return found


@cache
def identifier(extra: str = "filters") -> Any:
    """The library that tells languages apart, which is loaded once, in half a second."""
    with needing(extra, "py3langid"):
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@cache
def _of_scripts(script: str) -> re.Pattern[str]:
    return re.compile(script)


@lru_cache(4)  # of a pair, which several filters ask
def _language(text: str) -> tuple[str, float]:
    """The likeliest language of a text, and its probability."""
    code, probability = identifier().classify(text)
    return str(code), float(probability)


def _in_other_language(text: str, key: str) -> bool:
    if len(LETTERS.findall(text)) <= LONG_ENOUGH:
        return False
    found, probability = _language(text)
    return found != key and probability >= CERTAIN


def _are_in(pair: Pair, keys: Sequence[str]) -> bool:
    """Whether the texts are long enough to tell, and in these languages."""
    return all(
        len(LETTERS.findall(text)) > LONG_ENOUGH // 2 and _language(text)[0] == key
        for text, key in zip(pair, keys)
    )


def _in_other_script(text: str, key: str) -> bool:
    letters = len(LETTERS.findall(text))
    return 2 * len(_of_scripts(SCRIPTS.get(key, LATIN)).findall(text)) < letters


def _ratio(pair: Pair) -> float:
    """How many times longer one side is than the other; short texts may differ by some bytes."""
    shorter, longer = sorted(len(text.encode()) + SHORT for text in pair)
    return longer / shorter


def _folded(text: str) -> str:
    return " ".join(tidied(text).casefold().split())


def _copied(pair: Pair) -> bool:
    """Whether the texts are equal; numbers may be."""
    return bool(LETTERS.search(pair[0])) and _folded(pair[0]) == _folded(pair[1])


def _untranslated(pair: Pair) -> bool:
    source, target = ([*filter(LETTERS.search, text.casefold().split())] for text in pair)
    known = set(source)
    kept = sum(word in known for word in target)
    return len(target) >= FEWEST_WORDS and kept >= COPIED_WORDS * len(target)


def _mojibake(text: str) -> bool:
    if text.isascii():
        return False
    with needing("filters", "ftfy"):
        from ftfy import fix_encoding
        from ftfy.badness import is_bad

    return bool(is_bad(text)) and fix_encoding(text) != text


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
    lengths = [np.log1p([len(text) for text in side]) for side in zip(*pairs)]
    marks = [np.array([_marks(text) for text in side]) for side in zip(*pairs)]
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


def _marks(text: str) -> tuple[int, int, int, int]:
    """What a translation keeps: questions, exclamations, commas, and which digits there are."""
    digits = "".join(sorted(DIGITS.findall(text)))
    return (
        any(mark in text for mark in "?？;"),
        any(mark in text for mark in "!！"),
        any(mark in text for mark in ",，、،"),
        int(digits[:15] or "0"),
    )


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


def near_duplicates(
    chunks: Iterable[Sequence[Pair]], similarity: float, folder: Path
) -> NDArray[np.bool_]:
    """Which pairs are near duplicates of an earlier one.

    Args:
        similarity: the share of their shingles that two pairs have in common, from which they are.
        folder: for the signatures of all pairs, 256 bytes each.
    """
    path = folder / "signatures"
    with path.open("wb") as file:
        for pairs in chunks:
            signatures_of(pairs).tofile(file)
    return near_in(path, similarity)


def signatures_of(pairs: Sequence[Pair]) -> NDArray[np.uint32]:
    """The MinHash of each pair, (pairs, permutations)."""
    with needing("filters", "rensa"):
        from rensa import RMinHash

    sets = [_shingles(pair) for pair in pairs]
    digests = RMinHash.digests_from_token_sets(sets, num_perm=PERMUTATIONS, seed=1)
    return np.array(digests, np.uint32).reshape(len(pairs), PERMUTATIONS)


def near_in(path: Path, similarity: float) -> NDArray[np.bool_]:
    """Like `near_duplicates`, of a file of signatures, which is removed."""
    count = path.stat().st_size // (4 * PERMUTATIONS)
    found = np.zeros(count, bool)
    signatures = (
        np.memmap(path, np.uint32, "r", shape=(count, PERMUTATIONS))
        if count
        else np.zeros((0, PERMUTATIONS), np.uint32)
    )
    for columns in np.split(np.arange(PERMUTATIONS), BANDS):
        keys = np.ascontiguousarray(signatures[:, columns]).view(f"V{4 * len(columns)}").ravel()
        keys = keys.view(np.dtype([("high", "<u8"), ("low", "<u8")]))
        order = np.lexsort((keys["low"], keys["high"]))  # stable: the earliest of equals is first
        equal = keys[order[1:]] == keys[order[:-1]]
        firsts = np.maximum.accumulate(np.where(np.r_[True, ~equal], np.arange(count), 0))
        later = np.flatnonzero(np.r_[False, equal])
        pairs_of = order[later], order[firsts[later]]
        for some in np.array_split(np.arange(len(later)), len(later) // 65536 + 1):
            one, other = (signatures[each[some]] for each in pairs_of)
            found[pairs_of[0][some]] |= (one == other).mean(1) >= similarity
    del signatures
    path.unlink()
    return found


def _shingles(pair: Pair) -> list[str]:
    """The runs of characters of both texts, up to case and white space."""
    text = "\n".join(map(_folded, pair))
    return [text[at : at + SHINGLE] for at in range(max(1, len(text) - SHINGLE + 1))]
