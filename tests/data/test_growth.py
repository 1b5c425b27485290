"""The growth of texts under BPE dropout is estimated well."""

from random import Random

import numpy as np
import pytest

from transduct.data.growth import growth
from transduct.data.samples import generate
from transduct.data.tokenizer import Tokenizer


class Held:
    """A corpus of two columns in memory."""

    def __init__(self, *columns):
        self.held = columns
        self.lengths = np.array([[len(row) for row in column] for column in columns]).T

    def columns(self, numbers):
        picked = [[column[number] for number in numbers] for column in self.held]
        return [
            (np.concatenate([[], *rows]).astype(np.int64), np.array([len(row) for row in rows]))
            for rows in picked
        ]


@pytest.fixture(scope="module")
def texts():
    return [source for source, _ in generate("number_names", 3000)]


@pytest.fixture(scope="module")
def tokenizer(texts):
    return Tokenizer.train(texts, "bpe", 200)


@pytest.mark.parametrize("beside", [0, 1, 3])
def test_it_is_what_dropout_does_on_average(texts, tokenizer, beside):
    rows = tokenizer.encode(texts)
    corpus, rate = Held(rows, [[]] * len(rows)), 0.2
    random = Random(5)
    drawn = [tokenizer.resegment(row, rate, random) for row in rows]
    expected = sum(len(row) + beside for row in drawn) / sum(len(row) + beside for row in rows)
    assert expected > 1.15
    found = growth(corpus, [0], beside, tokenizer, rate)
    assert (
        found
        == growth(corpus, [0, 1], beside, tokenizer, rate)
        == pytest.approx(expected, rel=0.02)
    )
    assert growth(corpus, [1], beside, tokenizer, rate) == 1.0


def test_nothing_grows_where_nothing_is_dropped_or_there(texts, tokenizer):
    assert growth(Held(tokenizer.encode(texts[:5])), [0], 1, tokenizer, 0.0) == 1.0
    assert growth(Held([]), [0], 1, tokenizer, 0.5) == 1.0


def test_rows_from_all_over_the_corpus_are_looked_at(tokenizer):
    long, short = tokenizer.encode(["nine hundred ninety-nine million", "one"])
    ordered = Held([long] * 5000 + [short] * 5000)
    alone = (
        growth(Held([long]), [0], 1, tokenizer, 1.0),
        growth(Held([short]), [0], 1, tokenizer, 1.0),
    )
    assert min(alone) < growth(ordered, [0], 1, tokenizer, 1.0) < max(alone)
