"""The kernels of search equal the formulas. (Decoder steps: tests/blocks/test_fused.py.)"""

import pytest
import torch

from tests.helpers import BEGIN, END, SIZE, compiled, on_each_width
from tests.inference.test_running import made
from transduct.decoding.search import Continuations, continuations
from transduct.inference import running
from transduct.inference.settings import DecodingConfig, Sentence
from transduct.kernels import cpu_search


def chosen(*inputs):
    return Continuations(*cpu_search.choose(*inputs))


# what a search goes on with


@on_each_width
@pytest.mark.parametrize("beam", [1, 2, 5, cpu_search.WIDEST_BEAM])
@pytest.mark.parametrize("size", [1, 2, 7, 16, 33, 1000])
@pytest.mark.parametrize("limits", [None, [5, 4, 6]], ids=["free", "two of three at their limits"])
def test_continuations_are_those_of_the_formula(beam, size, limits):
    torch.manual_seed(size)
    sources, end = 3, 0
    logits = torch.randn(sources * beam, size)
    logits[0, : size // 2] = float("-inf")
    logits[:, end] += 2.0
    scores = -torch.rand(sources, beam, dtype=torch.float64)
    scores[1, 1:] = float("-inf")
    normaliser = logits.logsumexp(-1)
    place = (None if limits is None else torch.tensor(limits), 5)
    found = chosen(logits, normaliser, scores, end, *place)
    expected = continuations(logits, normaliser, scores, end, *place)
    if limits is not None:
        assert bool((expected.live[:2] == float("-inf")).all())
        assert bool((expected.tokens[:2][expected.scores[:2].isfinite()] == end).all())
    assert found.ends == bool(((expected.tokens == end) & expected.scores.isfinite()).any())
    for ours, theirs, held in (
        (
            (found.scores, found.origin, found.tokens),
            (expected.scores, expected.origin, expected.tokens),
            beam,
        ),
        (
            (found.live, found.rows, found.newest),
            (expected.live, expected.rows, expected.newest),
            beam,
        ),
    ):
        width = theirs[0].shape[1]
        assert width == min(held, beam * min(size, 2 * beam)), "torch gives no more than there is"
        torch.testing.assert_close(ours[0][:, :width], theirs[0])
        assert bool((ours[0][:, width:] == float("-inf")).all())
        possible = theirs[0].isfinite()
        for one, other in zip(ours[1:], theirs[1:], strict=True):
            assert torch.equal(
                one.view(sources, beam)[:, :width][possible], other.view(sources, -1)[possible]
            )


@on_each_width
def test_equal_continuations_come_in_order():
    found = chosen(torch.zeros(2, 40), torch.zeros(2), torch.zeros(1, 2, dtype=torch.float64), 1)
    assert (found.origin.tolist(), found.tokens.tolist(), found.ends) == ([[0, 0]], [[0, 1]], True)
    assert (found.rows.tolist(), found.newest.tolist()) == ([0, 0], [0, 2])


@on_each_width
def test_scores_of_nan_have_no_continuations():
    nothing = torch.full((1, 20), float("nan"))
    found = chosen(nothing, torch.zeros(1), torch.zeros(1, 1, dtype=torch.float64), 1)
    assert not found.ends
    assert found.scores.tolist() == found.live.tolist() == [[float("-inf")]]


@on_each_width
@pytest.mark.parametrize("end", [-1, 20, 10**12])
def test_an_end_that_the_vocabulary_does_not_hold_ends_nothing(end):
    place = torch.zeros(1), torch.zeros(1, 1, dtype=torch.float64), end, torch.tensor([3]), 3
    assert chosen(torch.zeros(1, 20), *place).scores.tolist() == [[float("-inf")]]


@on_each_width
def test_continuations_of_scores_that_do_not_lie_in_a_row_are_the_same():
    logits, scores = torch.randn(20, 100), torch.randn(4, 5, dtype=torch.float64).T
    normaliser = torch.stack([logits.logsumexp(-1), torch.zeros(20)], 1)[:, 0]
    assert not scores.is_contiguous()
    assert not normaliser.is_contiguous()
    found = chosen(logits, normaliser, scores, 3)
    expected = chosen(logits, normaliser.contiguous(), scores.contiguous(), 3)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


# the normaliser


@on_each_width
@pytest.mark.parametrize("size", [1, 15, 16, 17, 32000])
def test_a_normaliser_is_that_of_torch(size):
    torch.manual_seed(size)
    logits = 5.0 * torch.randn(9, size)
    logits[1, ::2] = float("-inf")
    logits[2] = float("-inf")
    logits[3, -1] = 1e30
    logits[4] += 1e6
    logits[5] -= 1e6
    logits[6] = 0.0
    logits[7, -1] = float("inf")
    logits[8, :-1] = float("-inf")
    torch.testing.assert_close(
        cpu_search.log_normaliser(logits), logits.logsumexp(-1), rtol=1e-6, atol=2e-6
    )
    logits[0, size // 2] = float("nan")
    assert cpu_search.log_normaliser(logits).isnan().tolist() == [True] + 8 * [False]
    logits[0] = 1.0
    turned = logits.T.contiguous().T
    assert torch.equal(cpu_search.log_normaliser(turned), cpu_search.log_normaliser(logits))


@on_each_width
def test_a_normaliser_of_no_rows_is_empty():
    assert cpu_search.log_normaliser(torch.empty(0, 7)).shape == (0,)


# a running batch; what it finds is tested in `tests/inference/test_running.py`


@compiled
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


@compiled
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
