import pytest
import torch

from transduct.models.bert import BITS, MULTIPLIER, STRENGTH, NGrams
from transduct.segments import Segments

LENGTHS = [5, 1, 3]
TOKENS = torch.tensor([2, 7, 7, 4, 3, 9, 7, 7, 4])


def made(longest, labels=2):
    torch.manual_seed(1)
    model = NGrams(longest, labels)
    torch.nn.init.normal_(model.votes)
    return model


def row(run):
    """The table row of an n-gram, computed with Python's unbounded integers."""
    code = 0
    for token in run:
        code = code * MULTIPLIER + token + 1
    return code * MULTIPLIER % 2**64 >> (64 - BITS)


@pytest.mark.parametrize("longest", [1, 2, 4, 7])
@pytest.mark.parametrize("lengths", [LENGTHS, [3, 3, 3]])
@torch.no_grad()
def test_scores_are_sums_over_all_runs_of_tokens_of_a_sequence(longest, lengths):
    model = made(longest)
    expected = []
    for part in TOKENS.split(lengths):
        ids, sizes = part.tolist(), range(1, longest + 1)
        rows = [row(ids[start : start + n]) for n in sizes for start in range(len(ids) - n + 1)]
        expected.append(STRENGTH * model.votes[:, rows].sum(1) / len(rows) ** 0.5)
    torch.testing.assert_close(model(TOKENS, Segments.of(lengths)), torch.stack(expected))


@torch.no_grad()
def test_order_matters_to_runs_and_not_to_single_tokens():
    turned, segments = TOKENS.flip(0), Segments.of([9])
    for longest, same in ((1, True), (2, False)):
        model = made(longest)
        assert torch.allclose(model(TOKENS, segments), model(turned, segments), atol=1e-5) is same


def test_runs_spread_over_the_table():
    tokens = torch.arange(3_000).repeat_interleave(2)  # 6,000 tokens, 6,000 pairs of neighbours
    singles, pairs = NGrams(2, 2).rows(tokens).T
    assert len(singles.unique()) == 3_000  # consecutive numbers never meet
    expected = 5_999 - 5_999**2 / 2 / 2**BITS  # of balls thrown at random, those that do not meet
    assert len(pairs[1:].unique()) == pytest.approx(expected, abs=20)
    both = NGrams(2, 2).rows(tokens).unique()
    assert both.min() >= 0
    assert both.max() < 2**BITS
    assert both.min() < 2**BITS // 100  # from end to end
    assert both.max() > 2**BITS * 99 // 100


def test_votes_start_at_zero_and_only_those_that_were_read_learn():
    model = NGrams(3, 2)
    scores = model(TOKENS, Segments.of(LENGTHS))
    assert (scores == 0).all()
    scores[1, 0].backward()  # of a sequence of one token
    assert model.votes.grad.nonzero().tolist() == [[0, row([9])]]
    assert model.votes.grad[0, row([9])] == STRENGTH
