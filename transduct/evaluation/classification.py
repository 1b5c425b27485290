"""Scores of predicted labels, tags and spans: accuracy, macro F1 and exact match, all in
percent."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log, sqrt
from string import punctuation
from typing import Any

from transduct.errors import WrongData, require

Z = 1.959963984540054  # the normal quantile of a 95 % interval
WITHOUT_PUNCTUATION = str.maketrans("", "", punctuation)


@dataclass(frozen=True)
class Scores:
    """Scores by name, details (such as their 95 % `interval`), and what is right: whether each
    answer is, or by score what has a `p_value`."""

    scores: dict[str, float]
    details: dict[str, Any]
    right: Any


def label_scores(predictions: Sequence[str], answers: Sequence[str]) -> Scores:
    """`accuracy` and macro `f1` of labels; the details hold the confusion matrix.

    Raises TransductError if the counts differ or there is nothing to score.
    """
    _check(predictions, answers)
    right = [prediction == answer for prediction, answer in zip(predictions, answers)]
    confusion = _confusion(predictions, answers)
    scores = {"accuracy": 100 * sum(right) / len(right), "f1": macro_f1(predictions, answers)}
    details = {
        "accuracy": {"interval": wilson_interval(sum(right), len(right))},
        "confusion": confusion,
    }
    return Scores(scores, details, right)


def span_scores(predictions: Sequence[str], answers: Sequence[str]) -> Scores:
    """`exact_match` and `f1` of answer spans (Rajpurkar et al. 2016, section 6.1).

    Case, punctuation and English articles are ignored. F1 is computed over the words shared by
    prediction and answer, and averaged over the questions. Raises like `label_scores`.
    """
    _check(predictions, answers)
    pairs = [
        (_plain_words(prediction), _plain_words(answer))
        for prediction, answer in zip(predictions, answers)
    ]
    right = [prediction == answer for prediction, answer in pairs]
    scores = {
        "exact_match": 100 * sum(right) / len(right),
        "f1": 100 * sum(_overlap(*pair) for pair in pairs) / len(pairs),
    }
    return Scores(
        scores, {"exact_match": {"interval": wilson_interval(sum(right), len(right))}}, right
    )


def macro_f1(predictions: Sequence[str], answers: Sequence[str]) -> float:
    """The mean of 2 TP / (2 TP + FP + FN) over all labels that occur as predictions or answers."""
    _check(predictions, answers)
    right = Counter(
        prediction for prediction, answer in zip(predictions, answers) if prediction == answer
    )
    seen = Counter(predictions) + Counter(answers)  # 2 TP + FP + FN of each label
    return 100 * sum(2 * right[label] / count for label, count in seen.items()) / len(seen)


def wilson_interval(right: int, count: int) -> list[float]:
    """The 95 % confidence interval of a proportion (Wilson 1927), in percent: reliable also near 0
    and 100."""
    share, spread = right / count, Z * Z / count
    middle = share + spread / 2
    half = Z * sqrt(share * (1 - share) / count + spread / (4 * count))
    ends = 100 * (middle - half) / (1 + spread), 100 * (middle + half) / (1 + spread)
    return [ends[0] if right else 0.0, ends[1] if right < count else 100.0]


def mcnemar(ours: Sequence[bool], theirs: Sequence[bool]) -> float:
    """The two-sided p-value of the exact McNemar test (1947) that two models err equally often.

    It is a binomial test on the examples that only one of them got right.
    """
    _check(ours, theirs)
    better = sum(a and not b for a, b in zip(ours, theirs))
    worse = sum(b and not a for a, b in zip(ours, theirs))
    count = better + worse
    chances = (
        lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1)
        for k in range(min(better, worse) + 1)
    )
    return min(1.0, 2 * sum(exp(chance - count * log(2)) for chance in chances))


def _check(predictions: Sequence[Any], answers: Sequence[Any]) -> None:
    require(
        len(predictions) == len(answers),
        f"{len(predictions):,} predictions but {len(answers):,} answers; give one prediction "
        "for each answer",
    )
    if not answers:
        raise WrongData("there is nothing to score; give at least one prediction and its answer")


def _confusion(predictions: Sequence[str], answers: Sequence[str]) -> dict[str, dict[str, int]]:
    """How often each right label (outer key) was predicted as each label (inner key), without
    zeros."""
    confusion: dict[str, dict[str, int]] = {}
    for (answer, predicted), count in sorted(Counter(zip(answers, predictions)).items()):
        confusion.setdefault(answer, {})[predicted] = count
    return confusion


def _plain_words(text: str) -> list[str]:
    """The words of an answer, normalised like SQuAD's."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(WITHOUT_PUNCTUATION)).split()


def _overlap(prediction: Sequence[str], answer: Sequence[str]) -> float:
    """F1 of the words that two answers share; if one is empty, 1 if both are, else 0."""
    if not prediction or not answer:
        return float(prediction == answer)
    return 2 * (Counter(prediction) & Counter(answer)).total() / (len(prediction) + len(answer))
