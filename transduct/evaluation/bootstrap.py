"""Intervals and p-values by the bootstrap (Koehn 2004): a corpus is drawn anew from its own examples, many times."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from transduct.evaluation.classification import mcnemar, wilson_interval

RESAMPLES, SEED = 1000, 12345
Score = Callable[[np.ndarray], float]  # how often each example counts (N,) -> the score of such a corpus


@dataclass(frozen=True)
class Share:
    """A score that is a sum over examples divided by another, in percent, such as edits and words.

    Attributes:
        parts, wholes: (N,) what is summed, of each example.
    """

    parts: np.ndarray
    wholes: np.ndarray

    @property
    def score(self) -> float:
        """Of all examples."""
        return self.drawn(np.ones(len(self.parts)))

    def drawn(self, counts: np.ndarray) -> float:
        """As `Score`; 0 where the divisor is."""
        whole = float(counts @ self.wholes)
        return 100 * float(counts @ self.parts) / whole if whole else 0.0

    def interval(self) -> list[float]:
        """The 95 % interval; of a proportion by its formula, for drawn corpora never hold what was never seen."""
        if self._is_proportion:
            return wilson_interval(int(self.parts.sum()), len(self.parts))
        return interval(self.drawn, len(self.parts))

    def p_value(self, other: "Share") -> float:
        """How likely the difference to the same examples of another model is chance; of proportions exactly."""
        if self._is_proportion and other._is_proportion:
            return mcnemar((self.parts == 1).tolist(), (other.parts == 1).tolist())
        return p_value(self.drawn, other.drawn, len(self.parts))

    @property
    def _is_proportion(self) -> bool:
        return bool((self.wholes == 1).all() and np.isin(self.parts, (0, 1)).all())


def interval(score: Score, examples: int) -> list[float]:
    """The bounds between which 95 % of the scores of drawn corpora lie."""
    return [float(bound) for bound in np.percentile([score(counts) for counts in _drawn(examples)], [2.5, 97.5])]


def p_value(ours: Score, theirs: Score, examples: int) -> float:
    """How likely two scores of the same examples differ so much by chance: the share of drawn corpora in which the
    difference strays as far from its mean. Scores that do not differ have 1."""
    everything = np.ones(examples)
    real = abs(ours(everything) - theirs(everything))
    if real == 0.0:
        return 1.0
    differences = np.array([ours(counts) - theirs(counts) for counts in _drawn(examples)])
    strayed = np.count_nonzero(abs(differences - differences.mean()) >= real)
    return (int(strayed) + 1) / (RESAMPLES + 1)


def _drawn(examples: int) -> Iterator[np.ndarray]:
    """How often each example is drawn, always the same draws."""
    random = np.random.default_rng(SEED)
    for _ in range(RESAMPLES):
        yield np.bincount(random.integers(examples, size=examples), minlength=examples)
