"""Constrained search gives outputs that hold what they must, and is beam search where that is
nothing."""

from itertools import product

import pytest
import torch

from tests.decoding.test_search import SOURCES, encode, find, forced_score
from tests.helpers import BEGIN, END, tiny
from transduct.decoding.constrained import ConstrainedBeam, Progress
from transduct.decoding.search import search

PHRASES = [[((7, 8),)], [((4,), (5, 5)), ((9, 3),)], [], [((6,),), ((6,),)]]


@pytest.fixture(scope="module")
def model():
    return tiny(seed=3)


def constrained(model, memory, segments, phrases, beam=6, limits=(9, 9, 9, 9), alpha=0.0):
    strategy = ConstrainedBeam(phrases, beam, limits, BEGIN, END, alpha, "cpu")
    return search(model, memory, segments, strategy)


def holds(tokens, phrases):
    progress = Progress(tuple(phrases))
    for token in tokens:
        progress = progress.after(token)
    return not progress.left


def test_outputs_hold_their_phrases_and_scores_are_the_model_s(model):
    memory, segments = encode(model)
    found = constrained(model, memory, segments, PHRASES)
    plain = find(model, memory, segments, 6, [9] * 4)
    bounds = segments.offsets.tolist()
    for number, (hypotheses, phrases) in enumerate(zip(found, PHRASES, strict=True)):
        assert hypotheses
        own = memory[bounds[number] : bounds[number + 1]]
        for each in hypotheses:
            assert holds(each.tokens, phrases)
            assert forced_score(model, own, each.tokens) == pytest.approx(each.score, abs=1e-4)
    # a control: the model does not write them by itself
    assert not any(holds(plain[n][0].tokens, PHRASES[n]) for n in (0, 1))


def test_without_phrases_it_is_beam_search(model):
    memory, segments = encode(model)
    for beam in (2, 5):
        assert constrained(model, memory, segments, [[]] * 4, beam) == find(
            model, memory, segments, beam, [9] * 4
        )


def test_a_wide_beam_finds_the_best_of_all(model):
    """Against every output of up to three tokens."""
    memory, segments = encode(model, SOURCES[:1])
    phrases = [((7, 8),)]
    [found] = constrained(model, memory, segments, [phrases], 60, [4])
    every = [[7, 8], *([x, 7, 8] for x in range(3, 11)), *([7, 8, x] for x in range(3, 11))]
    best = max(every, key=lambda tokens: forced_score(model, memory, tokens))
    assert found[0].tokens == best


def test_a_source_is_found_alike_alone_and_in_company(model):
    memory, segments = encode(model)
    together = constrained(model, memory, segments, PHRASES)
    bounds = segments.offsets.tolist()
    for number, phrases in enumerate(PHRASES):
        part = memory[bounds[number] : bounds[number + 1]]
        alone = constrained(model, part, type(segments).of([len(part)]), [phrases], limits=[9])[0]
        assert [each.tokens for each in alone] == [each.tokens for each in together[number]]


def test_where_phrases_do_not_fit_an_output_is_found_anyway(model):
    memory, segments = encode(model, SOURCES[:1])
    [found] = constrained(model, memory, segments, [[((7, 8, 9),)]], limits=[3])
    assert found
    assert all(torch.isfinite(torch.tensor(each.score)) for each in found)
    assert not any(holds(each.tokens, [((7, 8, 9),)]) for each in found)


@pytest.mark.parametrize(
    ("phrases", "tokens", "missing", "wanted"),
    [
        ([((1, 2),)], [], 2, {1}),
        ([((1, 2),)], [1], 1, {1, 2}),
        ([((1, 2),)], [1, 1], 1, {1, 2}),
        ([((1, 2),)], [1, 3], 2, {1}),
        ([((1, 2),)], [3, 1, 2], 0, set()),
        ([((1, 2, 3), (4,))], [], 1, {1, 4}),
        ([((1, 2, 3), (4,))], [1], 1, {1, 2, 4}),
        # two that begin alike are told apart by what follows
        ([((1, 2),), ((1, 3),)], [1, 3], 2, {1}),
        ([((5,),), ((5,),)], [5], 1, {5}),
        ([((1, 2),), ((2,),)], [1, 2], 1, {2}),
    ],
)
def test_progress(phrases, tokens, missing, wanted):
    progress = Progress(tuple(phrases))
    for token in tokens:
        progress = progress.after(token)
    assert (progress.missing, progress.wanted) == (missing, wanted)


def test_progress_is_that_of_a_search_through_the_whole_output():
    """Of all short outputs, exactly those hold a phrase in which it stands."""
    for tokens in product(range(3), repeat=5):
        stands = any(tokens[i : i + 3] == (0, 1, 0) for i in range(3))
        assert holds(tokens, [((0, 1, 0),)]) == stands
