"""The kernels of a running batch: what ends a call, and what is refused.

What they find is tested in `tests/inference/test_running.py`."""

import pytest

from tests.helpers import BEGIN, END, SIZE, compiled
from tests.inference.test_running import made
from transduct.inference import running
from transduct.inference.settings import DecodingConfig, Sentence

pytestmark = compiled


def test_news_end_the_steps_that_need_no_decision():
    model = made()
    one = Sentence([3, 4, END], 30, DecodingConfig(beam=1), BEGIN, END, [0, BEGIN])
    with running.borrowed(model) as batch:
        batch.join([one])
        step, taken = batch.cells.advance, []

        def watched(sources, most):
            batch.cells.news[0] = 1
            taken.append(step(sources, most))
            return taken[-1]

        batch.cells.advance = watched
        while batch.all:
            batch.step()
        del batch.cells.advance
    assert {*taken} == {1}


@pytest.mark.parametrize(
    "changes",
    [{"begin": SIZE}, {"prefix": [-1]}, {"never": [SIZE]}],
    ids=["begin", "prefix", "never"],
)
def test_a_token_that_is_not_in_the_vocabulary_is_an_error(changes):
    given = {"begin": BEGIN, "end": END, "config": DecodingConfig(beam=1)} | changes
    with running.borrowed(made()) as batch:
        batch.join([Sentence([3, END], 4, **given)])
        with pytest.raises(IndexError, match="a token is not in the vocabulary"):
            batch.step()
