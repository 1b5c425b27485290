"""What two models find unlikely: the formula, and a corpus spoilt on purpose."""

import random
from functools import partial

import numpy as np
import pytest

from tests.recipes import letters, train_capitals
from transduct.data.quality import Quality
from transduct.data.sources import FiltersConfig
from transduct.predictors.likelihood import DualCrossEntropy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """Of two models, of which one writes letters as capitals, and the other the way round."""
    train = partial(train_capitals, tmp_path_factory.mktemp("likelihood"))
    return DualCrossEntropy([str(train()), str(train("large", "small"))])


def test_it_is_the_mean_of_both_ways_and_their_difference(judge):
    pair = "a b c", "A B D"
    one, other = (
        -model.score([x], [y])[0] / 4 for model, (x, y) in zip(judge._models, (pair, pair[::-1]))
    )
    long = " ".join("abcd" * 20), "A"
    expected = [abs(one - other) + (one + other) / 2, 0.0]
    np.testing.assert_allclose(judge([pair, long]), expected, rtol=1e-6)


def test_pairs_spoilt_on_purpose_are_found_and_others_are_left(judge):
    """Other targets, and targets of which half is missing or made up: 30 of 300."""
    sources, draw = letters(300, 5), random.Random(1)
    pairs = [(source, source.upper()) for source in sources]
    spoilt = draw.sample(range(300), 30)
    for kind, place in enumerate(spoilt):
        target = [*pairs[place][1].split()]
        half = len(target) // 2 + 1
        other = pairs[(place + 1) % 300][1]
        made = (other, " ".join(target[:-half]) or other, " ".join([*target, *other.split()]))
        pairs[place] = pairs[place][0], made[kind % 3]
    config = FiltersConfig(unlikely=2.5, models=["there", "back"])
    found = {
        place for place, reason in enumerate(Quality(config, None, judge).reasons(pairs)) if reason
    }
    right = len(found & {*spoilt})
    assert right / len(spoilt) >= 0.95, "recall"
    assert right / len(found) >= 0.95, "precision"
