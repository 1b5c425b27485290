"""Scores of generated text against references: BLEU, chrF, TER, exact match, error rates, and
labelled brackets of parse trees, all in percent.

Sentences may have different numbers of references, at least one. BLEU, chrF and TER are computed by
sacrebleu (Post 2018), so that they compare with published ones: the same scores, signatures and
bootstrap (1,000 resamples, seeded by the environment variable SACREBLEU_SEED, 12345 by default).
Trees are scored by the rules of evalb's COLLINS.prm (Black et al. 1991).

Japanese, Chinese, Thai and other scripts put no blanks between words, and Korean words carry their
particles, so that by words one wrong character would make a whole line wrong. Unless a tokenization
is given, BLEU (and, of text without blanks, TER) follows the script of the references, line by line
where they are mixed; the signature says which it was.
"""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any
from unicodedata import is_normalized, normalize

import numpy as np
import regex

from transduct.errors import require, rewording
from transduct.evaluation.bootstrap import RESAMPLES, Ratio
from transduct.evaluation.classification import Scores

if TYPE_CHECKING:  # imported where used, so that translating does not wait for it
    from sacrebleu.metrics.base import Metric, Score

log = logging.getLogger("transduct")

AUTO = "auto"  # the tokenization that the script of the references asks for
# Scripts other than Japanese and Chinese that put no blanks between words.
CONTINUOUS = (
    *("Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Javanese", "Balinese", "Buginese", "Batak"),
    *("Tai_Le", "New_Tai_Lue", "Tai_Tham", "Tai_Viet", "Yi", "Rejang", "Makasar"),
)
# What models do not read (`data.tokenizer_file.cleared`): what nobody sees, and ligatures.
INVISIBLE = regex.compile(
    r"(?V1)[\p{DI}--[\u180b-\u180d\u180f\u200c\u200d\ufe00-\ufe0f\U000e0020-\U000e007f"
    r"\U000e0100-\U000e01ef]]"
)
LIGATURE = regex.compile("[\ufb00-\ufb06\ufb13-\ufb17\ufef5-\ufefc]")
SCRIPTS = regex.compile(  # of a letter: kana, Hangul, Chinese characters, others
    r"(?P<kana>[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f])"
    r"|(?P<hangul>[\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff])"
    r"|(?P<han>[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
    r"|(?P<continuous>[" + "".join(rf"\p{{{name}}}" for name in CONTINUOUS) + "])"
    r"|(?P<other>[^\W\d_])"
)
# A syllable or a Chinese character says as much as several letters.
WEIGHTS = {"kana": 4, "hangul": 4, "han": 4, "continuous": 1, "other": -1}
FEW = 5  # in Chinese less than one character in so many is of another script without blanks
RARE = 20  # fewer than one line in so many is no mixture
SACREBLEU_METRICS = ("bleu", "spbleu", "chrf", "chrf++", "ter")

# The install commands for the tokenizers that need more than sacrebleu.
TOKENIZER_REMEDIES = {
    "ko-mecab": "pip install 'sacrebleu[ko]'",
    "ja-mecab": "pip install 'sacrebleu[ja]'",
    "flores101": "pip install sentencepiece",
    "flores200": "pip install sentencepiece",
    "spBLEU-1K": "pip install sentencepiece",
    "spm": "pip install sentencepiece",
}


@dataclass(frozen=True)
class SacrebleuScore:
    """One of sacrebleu's metrics, the score of a corpus, and the counts of each sentence."""

    metric: "Metric"
    score: "Score"
    counts: np.ndarray

    def p_value(self, other: "SacrebleuScore") -> float:
        """The p-value of the difference of two systems."""
        observed = abs(self.score.score - other.score.score)
        if len(self.counts) < 2 or observed == 0.0:
            return 1.0
        resampled = _resampled(self.metric, self.counts, other.counts)
        resamples = np.array([score.score for score in resampled])
        differences = abs(resamples[::2] - resamples[1::2])
        extreme = np.count_nonzero(differences - differences.mean() > observed)
        return (int(extreme) + 1) / (RESAMPLES + 1)


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "chrf", "ter", "exact_match"),
    tokenize: str = AUTO,
    *,
    intervals: bool = True,
) -> Scores:
    """Score a corpus, with 95 % bootstrap intervals (Koehn 2004).

    Args:
        metrics: bleu, spbleu (BLEU over the pieces of sacrebleu's flores200), chrf, chrf++ (with
            words and pairs of them), ter, or keys of `PLAIN_METRICS`.
        tokenize: sacrebleu's tokenizer for BLEU, or "auto": `tokenization_of` the references.

    Characters that nobody sees, such as a soft hyphen, are left out of both sides first, and
    ligatures are read as letters.

    Raises:
        TransductError: the counts differ, a sentence has no reference, a metric is unknown, or a
            tokenizer is missing.
    """
    _check(hypotheses, references)
    # what nobody sees is no error: outputs have none of it
    hypotheses = [*map(cleared, hypotheses)]
    references = [[*map(cleared, options)] for options in references]
    if intervals and (
        count := sum(not is_normalized("NFC", each) for options in references for each in options)
    ):
        log.warning(
            "%d references hold decomposed characters (NFD), which no output does: BLEU, chrF and "
            "TER lose by it, compose them (NFC)",
            count,
        )
    scores: dict[str, float] = {}
    details: dict[str, dict[str, Any]] = {}
    right: dict[str, Any] = {}
    for name in metrics:
        if name in PLAIN_METRICS:
            right[name] = share = PLAIN_METRICS[name](hypotheses, references)
            scores[name] = share.score
            if intervals:
                details[name] = {"interval": share.interval()}
            continue
        metric = _prepared(name, tokenize, references)
        score, counts = metric.scored(hypotheses, references)
        if intervals:
            score.estimate_ci(_resampled(metric.metric, counts))
        scores[name], right[name] = score.score, SacrebleuScore(metric.metric, score, counts)
        details[name] = {"signature": metric.signature()}
        if intervals:
            details[name] |= _interval(score, details[name]["signature"])
    return Scores(scores, details, right)


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Ratio:
    """The share of outputs that equal one of their references after `normalised`, since tokenizers
    do not preserve white space and decomposed characters."""
    _check(hypotheses, references)
    pairs = (
        (normalised(output), map(normalised, options))
        for output, options in zip(hypotheses, references)
    )
    right = np.array([output in options for output, options in pairs], np.float64)
    return Ratio(right, np.ones_like(right))


def cleared(text: str) -> str:
    """The text without what nobody sees, and with the letters of ligatures."""
    if text.isascii():
        return text
    return LIGATURE.sub(lambda found: normalize("NFKC", found[0]), INVISIBLE.sub("", text))


def normalised(text: str) -> str:
    """The text in NFC, without what nobody sees, its tokens separated by single blanks."""
    return " ".join(normalize("NFC", cleared(text)).split())


def word_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Ratio:
    """The share of outputs that equal none of their references.

    This is the convention of grapheme-to-phoneme conversion, where an output is the pronunciation
    of one word. The word error rate of speech recognition is `token_error_rate`.
    """
    right = exact_match(hypotheses, references)
    return Ratio(1.0 - right.parts, right.wholes)


def token_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Ratio:
    """Edits per reference token, relative to the nearest reference; white space separates tokens,
    after `normalised`.

    With words as tokens it is the word error rate of speech recognition, with phonemes the phoneme
    error rate. Raises TransductError if the references hold no token.
    """
    _check(hypotheses, references)
    edits, tokens = [], []
    for hypothesis, options in zip(hypotheses, references):
        output = normalised(hypothesis).split()
        expected = [normalised(option).split() for option in options]
        # The longest of equally near references, which gives the lowest rate.
        fewest, longest = min((_edit_distance(output, words), -len(words)) for words in expected)
        edits.append(fewest)
        tokens.append(-longest)
    require(
        any(tokens),
        "the references hold no token, so there is no error rate; check the reference file",
    )
    return Ratio(np.array(edits, np.float64), np.array(tokens, np.float64))


Span = tuple[str, int, int]  # label, first word, end (exclusive)

UNCOUNTED = ("", "TOP", "ROOT", "S1")
SAME = {"PRT": "ADVP"}
PUNCTUATION = {",", ":", "``", "''", "."}  # ignored tags
# words that always have one of these tags, for references without tags
PUNCTUATION |= {"?", "!", ";", "--", "..."}
PARTS = re.compile(r"\(([^\s()]*)|\)([^\s()]*)|([^\s()]+)")
NUMBER = re.compile(r"#\d+(?=.)")  # the number before a word, if a recipe numbers them


def labelled_f1(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Ratio:
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
        words, spans = read_tree(options[0])
        kept = [word not in PUNCTUATION for word in words]
        gold = _counted_spans(spans, kept)
        words_guessed, spans_guessed = read_tree(hypothesis)
        alike = len(words_guessed) == len(words)
        guess = _counted_spans(
            spans_guessed, kept if alike else [word not in PUNCTUATION for word in words_guessed]
        )
        matched.append(2 * (gold & guess).total() if alike else 0)
        brackets.append(gold.total() + guess.total())
        expected += gold.total()
    require(
        expected, "the references hold no constituent, so there is no F1; give trees as references"
    )
    return Ratio(np.array(matched, np.float64), np.array(brackets, np.float64))


def read_tree(text: str) -> tuple[list[str], list[Span]]:
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


def _counted_spans(spans: Sequence[Span], kept: Sequence[bool]) -> Counter[Span]:
    """The constituents that count, over the kept words."""
    place = [0, *accumulate(kept)]  # the number of kept words before each word
    moved = ((SAME.get(label, label), place[start], place[end]) for label, start, end in spans)
    return Counter(
        (label, start, end) for label, start, end in moved if label not in UNCOUNTED and start < end
    )


ERROR_METRICS = frozenset({"ter", "word_error_rate", "token_error_rate"})  # lower is better
PLAIN_METRICS: dict[str, Callable[[Sequence[str], Sequence[Sequence[str]]], Ratio]] = {
    "exact_match": exact_match,
    "word_error_rate": word_error_rate,
    "token_error_rate": token_error_rate,
    "f1": labelled_f1,
}


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    require(
        len(hypotheses) == len(references),
        f"{len(hypotheses):,} hypotheses but {len(references):,} references; give one of each "
        "for each sentence",
    )
    require(
        hypotheses, "there is no sentence to score; give at least one hypothesis and its reference"
    )
    for number, options in enumerate(references, start=1):
        require(
            not isinstance(options, str),
            f"the references of sentence {number:,} are one string; give a list of strings",
        )
        require(options, f"sentence {number:,} has no reference; give at least one")


def check_metrics(metrics: Sequence[str], tokenize: str) -> None:
    """Raise TransductError, as `corpus_scores` would, if a metric is unknown or BLEU's tokenizer is
    missing."""
    for name in ("bleu", *metrics):
        if name not in PLAIN_METRICS:
            _sacrebleu_metric(name, tokenize, [])


def meaningful(
    metrics: Sequence[str], tokenize: str, references: Sequence[Sequence[str]]
) -> list[str]:
    """The metrics without BLEU if no reference has four tokens, for then it is 0 whatever the
    outputs are; who names a tokenization gets it all the same."""
    kept = []
    for name in metrics:
        if name in ("bleu", "spbleu") and tokenize == AUTO:
            metric: Any = _sacrebleu_metric(name, tokenize, references)
            texts = (text.strip() for options in references for text in options)
            if all(len(metric.tokenizer(text).split()) < metric.max_ngram_order for text in texts):
                continue
        kept.append(name)
    return kept


def tokenization_of(references: Sequence[Sequence[str]]) -> str:
    """sacrebleu's tokenizer for the script that the references are in, of mixed ones for the lines
    counted by characters: `zh` for Chinese, `char` for others of these, else `13a`."""
    texts = [text for options in references if _by_characters(options) for text in options]
    letters = _letters(texts)
    others = letters["kana"] + letters["hangul"] + letters["continuous"]
    return "13a" if not texts else "zh" if letters["han"] > FEW * others else "char"


def _letters(texts: Iterable[str]) -> Counter[str]:
    return Counter(str(each.lastgroup) for text in texts for each in SCRIPTS.finditer(text))


def _by_characters(options: Iterable[str], korean: bool = True) -> bool:
    """Whether the references of a sentence are counted by characters rather than by words; Korean,
    which has blanks, only if asked."""
    letters = _letters(options)
    without = letters["kana"] + letters["han"] + letters["continuous"]
    weight = sum(WEIGHTS[kind] * count for kind, count in letters.items())
    return weight >= 0 and (without > letters["hangul"] or (korean and letters["hangul"] > 0))


@dataclass(frozen=True)
class _Prepared:
    """One of sacrebleu's metrics, and what cuts the texts of each sentence where the metric's own
    tokenizer does not serve all of them.

    Attributes:
        tokens: the tokenization in the metric's signature, and what it is called instead.
    """

    metric: "Metric"
    cuts: Sequence[Callable[[str], str]] = ()
    tokens: tuple[str, str] = ("", "")

    def scored(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> tuple["Score", np.ndarray]:
        """The score of a corpus, and what it is made of: counts for each sentence, (N, counts)."""
        if self.cuts:
            hypotheses = [cut(text) for cut, text in zip(self.cuts, hypotheses)]
            references = [[*map(cut, options)] for cut, options in zip(self.cuts, references)]
        # all first references, all second ones, ...; None if there are fewer
        streams = list(zip_longest(*references))
        counts = self.metric._extract_corpus_statistics(hypotheses, streams)
        return self.metric._aggregate_and_compute(counts), np.array(counts, np.float32)

    def signature(self) -> str:
        return str(self.metric.get_signature()).replace(*self.tokens)


def _prepared(name: str, tokenize: str, references: Sequence[Sequence[str]]) -> _Prepared:
    """A metric that counts each sentence by characters or by words, as its references are. Rare
    lines of words among many of characters are counted as these are."""
    own = _Prepared(_sacrebleu_metric(name, tokenize, references))
    if name not in ("bleu", "ter") or tokenize != AUTO:
        return own
    characters = [_by_characters(options, korean=name == "bleu") for options in references]
    words = sum(
        not each and bool(_letters(options)) for each, options in zip(characters, references)
    )
    mixed = any(characters) and words * RARE >= len(characters)
    if name == "ter":
        # sacrebleu's TER separates Japanese and Chinese alone
        texts = [text for options in references for text in options]
        if not mixed and not _letters(texts)["continuous"]:
            return own
        metric = _sacrebleu_metric(name, "none", references)
        return _Prepared(
            metric, [_spaced if each else str for each in characters], ("tercom", "tercom+char")
        )
    if not mixed:
        return own
    kinds = tokenization_of(references), "13a"
    by_characters, by_words = (_tokenizer(kind) for kind in kinds)
    return _Prepared(
        _sacrebleu_metric(name, "none", references),
        [by_characters if each else by_words for each in characters],
        ("tok:none", f"tok:{'+'.join(kinds)}"),
    )


def _spaced(text: str) -> str:
    return " ".join(text)


def _tokenizer(kind: str) -> Callable[[str], str]:
    metric: Any = _sacrebleu_metric("bleu", kind, [])
    return metric._preprocess_segment


def _sacrebleu_metric(name: str, tokenize: str, references: Sequence[Sequence[str]]) -> "Metric":
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name in ("chrf", "chrf++"):
        return CHRF(word_order=2 if name == "chrf++" else 0)
    if name == "ter":
        asian = tokenize == AUTO and any(_by_characters(each, korean=False) for each in references)
        return TER(normalized=asian, asian_support=asian)
    known = ", ".join(["bleu", "chrf", "ter", *PLAIN_METRICS, "spbleu", "chrf++"])
    require(name in SACREBLEU_METRICS, f"no metric is called '{name}'; known are: {known}")
    if name == "spbleu":
        tokenize = "flores200"
    if tokenize == AUTO:
        tokenize = tokenization_of(references)
    tokenizers = ", ".join([*sorted(BLEU.TOKENIZERS), AUTO])
    asked = f"tokenizer '{tokenize}'"
    require(tokenize in BLEU.TOKENIZERS, f"BLEU has no {asked}; choose from {tokenizers}")
    install = f"BLEU's {asked} is not installed; run: {TOKENIZER_REMEDIES.get(tokenize)}"
    fetch = f"BLEU's {asked} could not be fetched ({{error}}); connect once, or choose another"
    # sacrebleu raises either of two for a package that is not installed
    with rewording((ImportError, RuntimeError), install), rewording(OSError, fetch):
        # else it warns of text that looks tokenised, as our `Preprocessed` does too
        return BLEU(tokenize=tokenize, force=True)


def _resampled(metric: "Metric", *systems: np.ndarray) -> list["Score"]:
    """The scores of the resamples that sacrebleu draws: of each resample, those of all systems.

    Its public methods gather the counts of all resamples before they score one: up to 84 KB for
    each sentence.
    """
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    metric.n_bootstrap, metric.seed = RESAMPLES, seed  # for the signature
    random = np.random.default_rng(None if seed == "none" else int(seed))
    size = len(systems[0])
    draws = (random.choice(size, size=size) for _ in range(RESAMPLES))
    scores = [
        metric._compute_score_from_stats(counts[draw].sum(0))
        for draw in draws
        for counts in systems
    ]
    number = type(sum(score.score for score in scores))
    # chrF and TER are Python floats where nothing matches, else float32; no mean takes both
    for score in scores:
        score.score = number(score.score)
    return scores


def _interval(score: "Score", signature: str) -> dict[str, Any]:
    """The bootstrap's mean and interval, which sacrebleu gives only in its JSON; a missing mean is
    0."""
    published = json.loads(score.format(width=17, signature=signature, is_json=True))
    mean, half_width = published.get("confidence_mean", 0.0), published.get("confidence_var", 0.0)
    # of few sentences the deviation passes the ends
    low, high = (max(0.0, mean - half_width), mean + half_width)
    return {"mean": mean, "interval": [low, high if score.name == "TER" else min(100.0, high)]}


def _edit_distance(left: Sequence[str], right: Sequence[str]) -> int:
    """The Levenshtein distance: the fewest insertions, deletions and substitutions."""
    row = list(range(len(right) + 1))
    for i, token in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(right, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (token != other))
    return row[-1]
