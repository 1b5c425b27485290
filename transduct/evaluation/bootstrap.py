"""Confidence intervals and p-values by the bootstrap (Koehn 2004): examples are resampled with
replacement."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from transduct.evaluation.classification import mcnemar, wilson_interval

RESAMPLES, SEED = 1000, 12345
# how often each example was sampled (N,) -> the score of the resample
Score = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Ratio:
    """A score in percent that is the ratio of two sums over examples, such as edits per word.

    Attributes:
        parts, wholes: (N,) the terms of the numerator and of the denominator.
    """

    parts: np.ndarray
    wholes: np.ndarray

    @property
    def score(self) -> float:
        """The score of all examples."""
        return self.resampled(np.ones(len(self.parts)))

    def resampled(self, counts: np.ndarray) -> float:
        """The `Score` of a resample; 0 if its denominator is 0."""
        whole = float(counts @ self.wholes)
        return 100 * float(counts @ self.parts) / whole if whole else 0.0

    def interval(self) -> list[float]:
        """The 95 % confidence interval. Wilson's for a proportion and for examples that are all
        right or all wrong, since resamples never contain an unseen outcome; a single other example
        says nothing."""
        count = len(self.parts)
        if self._is_proportion:
            return wilson_interval(int(self.parts.sum()), count)
        if not self.parts.any() or (self.parts == self.wholes).all():
            return wilson_interval(count if self.parts.any() else 0, count)
        return interval(self.resampled, count) if count > 1 else [0.0, max(100.0, self.score)]

    def p_value(self, other: "Ratio") -> float:
        """The p-value of the difference to another model on the same examples; McNemar's exact test
        for proportions."""
        if self._is_proportion and other._is_proportion:
            return mcnemar((self.parts == 1).tolist(), (other.parts == 1).tolist())
        return p_value(self.resampled, other.resampled, len(self.parts))

    @property
    def _is_proportion(self) -> bool:
        return bool((self.wholes == 1).all() and np.isin(self.parts, (0, 1)).all())


@dataclass(frozen=True)
class Resampled:
    """A score of so many examples that is no ratio of sums, and can be computed of a resample."""

    score: Score
    examples: int

    def p_value(self, other: "Resampled") -> float:
        """The p-value of the difference to another model on the same examples."""
        return p_value(self.score, other.score, self.examples)


def of_examples(right: Sequence[bool]) -> Ratio:
    """The share of examples that are right."""
    return Ratio(np.array(right, float), np.ones(len(right)))


def interval(score: Score, examples: int) -> list[float]:
    """The 95 % interval of the scores of resamples."""
    return [
        float(bound)
        for bound in np.percentile([score(counts) for counts in _resamples(examples)], [2.5, 97.5])
    ]


def p_value(ours: Score, theirs: Score, examples: int) -> float:
    """The two-sided p-value of the difference of two scores on the same examples: the share of
    resamples in which it deviates from its mean at least as much as the observed difference from 0.
    It is 1 for equal scores and for a single example, of which all resamples are alike."""
    everything = np.ones(examples)
    observed = abs(ours(everything) - theirs(everything))
    if examples < 2 or observed == 0.0:
        return 1.0
    differences = np.array([ours(counts) - theirs(counts) for counts in _resamples(examples)])
    extreme = np.count_nonzero(abs(differences - differences.mean()) >= observed)
    return (int(extreme) + 1) / (RESAMPLES + 1)


def _resamples(examples: int) -> Iterator[np.ndarray]:
    """How often each example is sampled, for each resample; the same in every call."""
    random = np.random.default_rng(SEED)
    for _ in range(RESAMPLES):
        yield np.bincount(random.integers(examples, size=examples), minlength=examples)
