"""Filters bind outputs to what they allow and leave the scores the model's."""

from itertools import chain

import pytest
import torch

from tests.decoding.test_search import SOURCES, encode, find, forced_score
from tests.helpers import BEGIN, END, tiny
from transduct.decoding.filters import FixedLength, Forbid, NoRepeat, Prefix
from transduct.decoding.sampling import Sampling
from transduct.decoding.search import Beam, search
from transduct.segments import Segments


@pytest.fixture(scope="module")
def model():
    return tiny(seed=3)


@pytest.mark.parametrize("beam", [1, 4])
def test_forbidden_tokens_never_come_and_the_score_is_still_the_models(model, beam):
    memory, segments = encode(model)
    free = find(model, memory, segments, beam, [8] * 4)
    usual = sorted({token for hypotheses in free for h in hypotheses for token in h.tokens})[:3]
    bound = find(model, memory, segments, beam, [8] * 4, filters=[Forbid(usual)])
    for part, hypotheses in zip(memory.split(SOURCES), bound):
        for h in hypotheses:
            assert not set(h.tokens) & set(usual)
            assert h.score == pytest.approx(forced_score(model, part, h.tokens), abs=1e-4)


class Forgetful(Prefix):
    """A control: does not follow the rows."""

    def select(self, rows):
        self.tokens = self.tokens[: len(rows)]


def begun(model, beam, temperature, kind=Prefix):
    """Outputs, of limits that end some sources before others, and what each was to begin with."""
    memory, segments = encode(model)
    prefixes, limits = [[3], [4, 5, 6, 7], [], [8, 8]], [2, 9, 9, 9]
    strategy = Beam(beam, limits, BEGIN, END, 0.0, "cpu")
    if temperature:
        strategy = Sampling(beam, limits, BEGIN, END, [[i] for i in range(4)])
    kept = kind([prefix for prefix in prefixes for _ in range(beam)])
    return memory, prefixes, search(model, memory, segments, strategy, [kept])


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_begin_with_their_prefix_and_its_score_is_the_models(model, beam, temperature):
    memory, prefixes, found = begun(model, beam, temperature)
    for part, prefix, hypotheses in zip(memory.split(SOURCES), prefixes, found, strict=True):
        assert hypotheses
        for h in hypotheses:
            assert h.tokens[: len(prefix)] == prefix
            assert h.score == pytest.approx(forced_score(model, part, h.tokens), abs=1e-4)


def test_what_a_filter_knows_follows_the_rows(model):
    _, prefixes, found = begun(model, 1, 0.0, Forgetful)
    pairs = zip(prefixes, found, strict=True)
    assert any(h.tokens[: len(p)] != p for p, hypotheses in pairs for h in hypotheses)


def test_no_prefix_changes_nothing(model):
    memory, segments = encode(model)
    free = find(model, memory, segments, 3, [9] * 4)
    assert find(model, memory, segments, 3, [9] * 4, filters=[Prefix([[]] * 12)]) == free


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_output_holds_a_run_twice(model, size, beam, temperature):
    memory, segments = encode(model)
    loops, limit = 0, 8 if size == 1 else 14  # there are not enough tokens for more
    for filters in ([], [NoRepeat(size)]):
        strategy = Beam(beam, [limit] * 4, BEGIN, END, 0.0, "cpu")
        if temperature:
            strategy = Sampling(beam, [limit] * 4, BEGIN, END, [[i] for i in range(4)])
        fixed = FixedLength(END, [limit] * 4 * beam)
        for h in chain.from_iterable(search(model, memory, segments, strategy, [fixed, *filters])):
            runs = [*zip(*(h.tokens[start:] for start in range(size)))]
            loops += not filters and len(runs) > len(set(runs))
            assert not filters or len(runs) == len(set(runs))
    assert loops, "without it there are some"


def test_a_run_may_not_come_again_but_everything_else_may():
    outputs = [[3, 4, 5, 3, 4], [3, 3, 3, 4, 5], [4, 3, 4, 3, 4], [9, 9, 9, 9, 9]]
    history = torch.tensor([[BEGIN, *tokens] for tokens in outputs])
    left = NoRepeat(3)(torch.zeros(4, 10), history)
    assert [row.isinf().nonzero().flatten().tolist() for row in left] == [[5], [], [3], [9]]
    assert not NoRepeat(3)(torch.zeros(4, 10), history[:, :3]).any()


def test_a_run_comes_again_where_another_filter_allows_nothing_else(model):
    memory, segments = encode(model)
    wanted = [[3, 4, 3, 4, 3, 4], [], [], []]
    prefix = Prefix([prefix for prefix in wanted for _ in range(2)])
    found, alone = (
        find(model, memory, segments, 2, [9] * 4, filters=filters)
        for filters in ([prefix, NoRepeat(2)], [NoRepeat(2)])
    )
    assert found[0][0].tokens[:6] == wanted[0]
    for one, other in zip(found[1:], alone[1:], strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_output_of_fixed_length_fills_its_limit_and_its_score_is_that_of_its_tokens(
    model, beam, temperature
):
    memory, segments = encode(model)
    limits = [2, 9, 5, 3]
    strategy = Beam(beam, limits, BEGIN, END, 0.0, "cpu")
    if temperature:
        strategy = Sampling(beam, limits, BEGIN, END, [[i] for i in range(4)])
    fixed = FixedLength(END, [limit for limit in limits for _ in range(beam)])
    found = search(model, memory, segments, strategy, [fixed])
    for part, hypotheses, limit in zip(memory.split(SOURCES), found, limits):
        assert len(hypotheses) == beam
        for h in hypotheses:
            assert len(h.tokens) == limit - 1
            assert END not in h.tokens
            inputs, own = torch.tensor([BEGIN, *h.tokens[:-1]]), Segments.of([limit - 1])
            with torch.no_grad():
                hidden = model.decode(inputs, own, part, Segments.of([len(part)]))
            likely = model.logits(hidden).log_softmax(-1)
            expected = likely[range(limit - 1), h.tokens].sum().item()
            assert h.score == pytest.approx(expected, abs=1e-4)
