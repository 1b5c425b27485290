"""Search with the tree filter finds well-formed trees only, and can find all of them, with any
model."""

import random
from itertools import product

import pytest
import torch

from transduct.decoding.filters import MOST_OPENS, WellFormedTrees
from transduct.decoding.sampling import Sampling
from transduct.decoding.search import Beam, search
from transduct.segments import Segments

# The last opens a constituent that nothing closes.
VOCABULARY = ["<unk>", "<s>", "</s>", "▁(S", "▁)S", "▁(NP", "▁)NP", "▁XX", "▁.", "▁(X"]
BEGIN, END = 1, 2
STRATEGIES = ["greedy", "beam", "sampling"]


def is_tree(tokens, words):
    """Whether tokens are one tree over this many words."""
    stack, empty, done = [], True, False
    for piece in (VOCABULARY[token].removeprefix("▁") for token in tokens):
        if done or piece in ("<unk>", "<s>", "</s>", "(X"):
            return False
        if piece[0] == "(":
            stack.append(piece[1:])
            empty = True
        elif piece[0] == ")":
            if not stack or empty or stack.pop() != piece[1:]:
                return False
            done = not stack
        else:
            if not stack:
                return False
            words -= 1
            empty = False
    return done and words == 0


class Noise:
    """A model, and its own state, that says anything; `bias` is added to its logits (R, V)."""

    def __init__(self, seed, bias=0.0):
        self.generator, self.bias = torch.Generator().manual_seed(seed), bias

    def start(self, memory, segments, beam):
        return self

    def step(self, tokens, state):
        noise = torch.randn(len(tokens), len(VOCABULARY), generator=self.generator)
        return 2 * noise + self.bias, self

    def select(self, rows):
        pass


def find(model, bounds, strategy, beam=4, constrained=True):
    """The hypotheses for each (words, limit)."""
    limits, sources = [limit for _, limit in bounds], [[n] for n in range(len(bounds))]
    beam = 1 if strategy == "greedy" else beam
    if strategy == "sampling":
        chooser = Sampling(beam, limits, BEGIN, END, sources, seed=1, device="cpu")
    else:
        chooser = Beam(beam, limits, BEGIN, END, 1.0, "cpu")
    trees = WellFormedTrees(VOCABULARY, END, [bound for bound in bounds for _ in range(beam)])
    filters = [trees] if constrained else []
    return search(model, torch.zeros(1, 1), Segments.of([1]), chooser, filters)


def every_tree(words, limit):
    """All trees of fewer tokens."""
    pieces = range(3, len(VOCABULARY) - 1)
    every = [tokens for length in range(limit) for tokens in product(pieces, repeat=length)]
    return [tokens for tokens in every if is_tree(tokens, words)]


def random_bounds(draw, count):
    """Words and limits that leave room for a flat tree and sometimes for no more."""
    return [(words := draw.randint(1, 6), words + 3 + draw.randint(0, 10)) for _ in range(count)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("favoured", [None, "▁(NP", "▁)S", "▁XX", "</s>"])
def test_whatever_the_model_says_outputs_are_trees_over_the_words(strategy, favoured):
    bias = torch.tensor([5.0 * (piece == favoured) for piece in VOCABULARY])
    draw, seen = random.Random(f"{strategy} {favoured}"), set()
    for seed in range(10):
        bounds = random_bounds(draw, 25)
        for (words, limit), hypotheses in zip(bounds, find(Noise(seed, bias), bounds, strategy)):
            assert hypotheses
            for found in hypotheses:
                assert is_tree(found.tokens, words)
                assert len(found.tokens) + 1 <= limit
                assert found.score > float("-inf")
                seen.add(tuple(found.tokens))
    assert len(seen) > 50


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_the_filter_they_are_not(strategy):
    bounds = random_bounds(random.Random(1), 25)
    outputs = zip(bounds, find(Noise(1), bounds, strategy, constrained=False))
    trees = [is_tree(found.tokens, words) for (words, _), some in outputs for found in some]
    assert len(trees) >= 25
    assert sum(trees) < 3


def allowed(vocabulary, tokens, words, limit):
    """The tokens that may come after those given."""
    trees = WellFormedTrees(vocabulary, END, [(words, limit)])
    for length in range(len(tokens) + 1):
        history = torch.tensor([[BEGIN, *tokens[:length]]])
        found = trees(torch.zeros(1, len(vocabulary)), history)
    return found[0].isfinite().nonzero().flatten().tolist()


@pytest.mark.parametrize("words, limit", [(1, 4), (1, 6), (1, 7), (2, 5), (2, 7)])
def test_every_tree_within_the_limit_can_be_found(words, limit):
    def outputs(tokens):
        for token in allowed(VOCABULARY, tokens, words, limit):
            yield from [tokens] if token == END else outputs((*tokens, token))

    expected = every_tree(words, limit)
    assert sorted(outputs(())) == sorted(expected)
    assert len(expected) >= 4


def test_a_wide_beam_finds_the_likeliest_tree():
    class Fixed(Noise):
        def step(self, tokens, state):
            return self.bias.expand(len(tokens), -1), self

    bias = torch.randn(len(VOCABULARY), generator=torch.Generator().manual_seed(5))
    steps = bias.log_softmax(-1)
    trees = every_tree(2, 7)
    [found] = find(Fixed(1, bias), [(2, 7)], "beam", beam=100)
    scores = {tokens: float(steps[[*tokens, END]].sum()) for tokens in trees}
    assert scores[tuple(found[0].tokens)] == pytest.approx(max(scores.values()), abs=1e-5)
    assert sorted(h.score for h in found) == pytest.approx(sorted(scores.values()), abs=1e-4)


def test_only_so_many_constituents_open_in_a_row():
    opening, word, stop = map(VOCABULARY.index, ("▁(S", "▁XX", "▁."))
    assert opening in allowed(VOCABULARY, [opening] * (MOST_OPENS - 1), 2, 100)
    assert allowed(VOCABULARY, [opening] * MOST_OPENS, 2, 100) == [word, stop]
    later = [*[opening] * MOST_OPENS, word]
    assert opening in allowed(VOCABULARY, later, 2, 100)


def test_pieces_without_a_blank_and_parentheses_that_are_words():
    vocabulary = ["<unk>", "<s>", "</s>", "(S", ")S", "(", ")", "<", "", ")NP"]
    assert allowed(vocabulary, [], 2, 10) == [3]
    assert allowed(vocabulary, [3], 2, 10) == [3, 5, 6, 7]
    assert allowed(vocabulary, [3, 5], 2, 10) == [3, 5, 6, 7]
    assert allowed(vocabulary, [3, 5, 6], 2, 10) == [4]
    assert allowed(vocabulary, [3, 5, 6, 4], 2, 10) == [END]
    assert allowed(["<unk>", "<s>", "</s>", "▁a"], [], 2, 10) == [END], "without constituents"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("limit", [1, 2, 3, 6])
def test_an_output_too_short_for_a_tree_is_cut(strategy, limit):
    for [found, *_] in find(Noise(1), [(4, limit)] * 5, strategy):
        pieces = [VOCABULARY[token] for token in found.tokens]
        assert len(pieces) == limit - 1
        assert all(piece in ("▁(S", "▁(NP") for piece in pieces[:1])
        assert all(piece in ("▁XX", "▁.") for piece in pieces[1:])
