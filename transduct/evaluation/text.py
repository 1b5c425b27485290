"""Predicted text and its references to numbers: BLEU, chrF, TER, exact match and error rates, all in percent.

A sentence may have one reference or several, and not every sentence as many. BLEU, chrF and TER are
sacrebleu's (Post, 2018), so that they compare with published ones: the same numbers, signatures and bootstrap
(1,000 resamples, seeded by the environment variable SACREBLEU_SEED, 12345 if it is not set).
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from unicodedata import is_normalized, normalize

import numpy as np

if TYPE_CHECKING:  # imported where it is used: whoever translates waits for no metric
    from sacrebleu.metrics.base import Metric, Score

from transduct.errors import TransductError
from transduct.evaluation.bootstrap import RESAMPLES, Share
from transduct.evaluation.trees import labelled_f1

log = logging.getLogger("transduct")

# What sacrebleu needs for a tokenizer it does not bring along.
TOKENIZER_REMEDIES = {
    "ko-mecab": "pip install 'sacrebleu[ko]'",
    "ja-mecab": "pip install 'sacrebleu[ja]'",
    "flores101": "pip install sentencepiece",
    "flores200": "pip install sentencepiece",
    "spBLEU-1K": "pip install sentencepiece",
    "spm": "pip install sentencepiece",
}


@dataclass(frozen=True)
class TextScores:
    """Scores by name, and details: `interval` if asked for; for sacrebleu's also `signature` and `mean`."""

    scores: dict[str, float]
    details: dict[str, dict[str, Any]]


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "chrf", "ter", "exact_match"),
    tokenize: str = "13a",
    *,
    intervals: bool = True,
) -> TextScores:
    """Scores of a corpus, with 95 % bootstrap intervals (Koehn 2004).

    `metrics` may also name `word_error_rate` and `token_error_rate`; `tokenize` is BLEU's tokenizer. Raises
    TransductError if counts differ, a sentence has no reference, a metric is unknown or a tokenizer missing.
    """
    _check(hypotheses, references)
    if intervals and (count := sum(not is_normalized("NFC", each) for options in references for each in options)):
        log.warning(
            "%d references hold decomposed characters (NFD), which no output does: BLEU, chrF and TER lose by it, "
            "compose them (NFC)", count,
        )  # fmt: skip
    scores: dict[str, float] = {}
    details: dict[str, dict[str, Any]] = {}
    for name in metrics:
        if name in PLAIN_METRICS:
            share = PLAIN_METRICS[name](hypotheses, references)
            scores[name] = share.score
            if intervals:
                details[name] = {"interval": share.interval()}
            continue
        metric = _sacrebleu_metric(name, tokenize)
        score = metric.corpus_score(hypotheses, _streams(references), n_bootstrap=RESAMPLES if intervals else 1)
        scores[name] = score.score
        details[name] = {"signature": str(metric.get_signature())}
        if intervals:
            details[name] |= _interval(score, details[name]["signature"])
    return TextScores(scores, details)


def paired_test(
    hypotheses: Sequence[str],
    other: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    tokenize: str = "13a",
) -> dict[str, float]:
    """How likely each metric's difference is chance: p-values by paired bootstrap (`sacrebleu --paired-bs`).

    Equal scores have a p-value of 1, where sacrebleu, which counts larger differences only, says 1/1001.

    Raises TransductError as `corpus_scores` does.
    """
    _check(hypotheses, references)
    _check(other, references)
    shares = {name: PLAIN_METRICS[name] for name in metrics if name in PLAIN_METRICS}
    plain = {name: of(hypotheses, references).p_value(of(other, references)) for name, of in shares.items()}
    instances = {name: _sacrebleu_metric(name, tokenize) for name in metrics if name not in shares}
    if not instances:
        return plain
    systems = [("other", other), ("hypotheses", hypotheses)]
    from sacrebleu.significance import PairedTest

    _, columns = PairedTest(systems, instances, _streams(references), test_type="bs", n_samples=RESAMPLES)()
    pairs: list[Any] = list(columns.values())[1:]  # the first column holds the systems' names
    return plain | {name: 1.0 if a.score == b.score else b.p_value for name, (a, b) in zip(instances, pairs)}


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Share:
    """Outputs that equal one of their references, but for blanks and composed characters (NFC), which no tokenizer
    keeps as they were."""
    _check(hypotheses, references)
    pairs = ((_plain(output), map(_plain, options)) for output, options in zip(hypotheses, references))
    right = np.array([output in options for output, options in pairs], np.float64)
    return Share(right, np.ones_like(right))


def _plain(text: str) -> str:
    return " ".join(normalize("NFC", text).split())


def word_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Share:
    """Outputs that equal none of their references.

    The convention of grapheme-to-phoneme conversion, where an output is the pronunciation of one word. What
    speech recognition calls by this name is `token_error_rate`.
    """
    right = exact_match(hypotheses, references)
    return Share(1.0 - right.parts, right.wholes)


def token_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Share:
    """Edits per reference token, but for composed characters (NFC), as every tokenizer writes them; white space
    separates tokens, the nearest reference counts.

    Of words it is speech recognition's word error rate, of phonemes the phoneme error rate. Raises
    TransductError if the references hold no token.
    """
    _check(hypotheses, references)
    edits, tokens = [], []
    for hypothesis, options in zip(hypotheses, references):
        written, wanted = _plain(hypothesis).split(), [_plain(option).split() for option in options]
        lengths, distances = [*map(len, wanted)], [_edit_distance(written, option) for option in wanted]
        fewest = min(distances)
        edits.append(fewest)
        # Of equally near references the longest: the rate that favours the system, as the nearest does.
        tokens.append(max(length for length, distance in zip(lengths, distances) if distance == fewest))
    if not any(tokens):
        raise TransductError("the references hold no token, so there is no error rate; check the reference file")
    return Share(np.array(edits, np.float64), np.array(tokens, np.float64))


ERROR_METRICS = frozenset({"ter", "word_error_rate", "token_error_rate"})  # the lower the better
PLAIN_METRICS: dict[str, Callable[[Sequence[str], Sequence[Sequence[str]]], Share]] = {
    "exact_match": exact_match,
    "word_error_rate": word_error_rate,
    "token_error_rate": token_error_rate,
    "f1": labelled_f1,
}


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if len(hypotheses) != len(references):
        raise TransductError(
            f"{len(hypotheses):,} hypotheses but {len(references):,} references; give one of each a sentence"
        )
    if not hypotheses:
        raise TransductError("there is no sentence to score; give at least one hypothesis and its reference")
    for number, options in enumerate(references, start=1):
        if isinstance(options, str):
            raise TransductError(f"the references of sentence {number:,} are one string; give a list of strings")
        if not options:
            raise TransductError(f"sentence {number:,} has no reference; give at least one")


def _streams(references: Sequence[Sequence[str]]) -> list[tuple[Any, ...]]:
    """References as sacrebleu wants them: all first ones, all second ones, ...; None where there is none."""
    return list(zip_longest(*references))


def check_metrics(metrics: Sequence[str], tokenize: str) -> None:
    """Raises TransductError, as `corpus_scores` would, if a metric is unknown or BLEU's tokenizer missing."""
    for name in ("bleu", *metrics):
        if name not in PLAIN_METRICS:
            _sacrebleu_metric(name, tokenize)


def _sacrebleu_metric(name: str, tokenize: str) -> "Metric":
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "chrf":
        return _of_one_type(CHRF())
    if name == "ter":
        return _of_one_type(TER())
    if name != "bleu":
        raise TransductError(f"no metric is called '{name}'; known are: bleu, chrf, ter, {', '.join(PLAIN_METRICS)}")
    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise TransductError(f"BLEU has no tokenizer '{tokenize}'; choose from {known}")
    try:
        return BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError) as error:  # sacrebleu raises either for a package that is not installed
        remedy = TOKENIZER_REMEDIES[tokenize]
        raise TransductError(f"BLEU's tokenizer '{tokenize}' is not installed; run: {remedy}") from error
    except OSError as error:
        raise TransductError(
            f"BLEU's tokenizer '{tokenize}' could not be fetched ({error}); connect once, or choose another"
        ) from error


def _of_one_type(metric: "Metric") -> "Metric":
    """`metric`, giving every bootstrap score as the float32 that it gives almost all of them.

    sacrebleu 2.6 gives a plain 0.0 or 1.0 where nothing matches, and its mean of both types is a TypeError.
    """
    compute = metric._compute_score_from_stats

    def computed(stats: Any) -> "Score":
        score = compute(stats)
        if isinstance(stats, np.ndarray):  # a resample; the corpus itself comes as a list
            score.score = np.float32(score.score)
        return score

    metric._compute_score_from_stats = computed  # type: ignore[method-assign]
    return metric


def _interval(score: "Score", signature: str) -> dict[str, Any]:
    """The bootstrap's mean and interval. sacrebleu tells them only in its JSON, where no mean means 0."""
    published = json.loads(score.format(width=17, signature=signature, is_json=True))
    mean, half_width = published.get("confidence_mean", 0.0), published.get("confidence_var", 0.0)
    return {"mean": mean, "interval": [mean - half_width, mean + half_width]}


def _edit_distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Fewest insertions, deletions and substitutions that turn one into the other (Levenshtein, 1966)."""
    row = list(range(len(right) + 1))
    for i, token in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(right, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (token != other))
    return row[-1]
