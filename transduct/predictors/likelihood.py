"""Pairs that two models, one in each direction, find unlikely to be translations of each other.

Apart from `Translator`, which is one model; both `filter` and `train` load it where a recipe asks.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduct.data.samples import Pair
from transduct.errors import TransductError, warned_once
from transduct.predictors.base import load
from transduct.predictors.isolation import isolate_failures


class DualCrossEntropy:
    """The dual conditional cross-entropy of pairs (Junczys-Dowmunt 2018), in nats a token: the
    mean of both directions and their difference.

    Args:
        models: from source to target, and back.
    """

    def __init__(self, models: Sequence[str], device: str = "auto") -> None:
        self._models = [load(path, device, verb="score") for path in models]

    def __call__(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """A pair that a model cannot read, because it is too long, has 0."""
        sides = [*zip(*pairs)]
        found = []
        for model, (sources, targets) in zip(self._models, (sides, sides[::-1])):
            tokens = [len(ids) + 1 for ids in model.target_tokenizer.encode(targets)]
            with warned_once(quiet=True):
                scores = isolate_failures(partial(_scores, model), [*zip(sources, targets)])
            wrong = np.array([isinstance(score, TransductError) for score in scores])
            known = [0.0 if isinstance(score, TransductError) else score for score in scores]
            found.append((-np.array(known) / tokens, wrong))
        (one, wrong), (other, too) = found
        return np.where(wrong | too, 0.0, abs(one - other) + (one + other) / 2)


def _scores(model: Any, pairs: Sequence[Pair]) -> list[float]:
    scores: list[float] = model.score(*map(list, zip(*pairs)))
    return scores
