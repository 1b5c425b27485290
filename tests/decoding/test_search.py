"""Beam search finds what exhaustive search finds, scores as forced decoding does, and does not
depend on the batch."""

import math
from itertools import product

import pytest
import torch

from tests.helpers import BEGIN, END, SIZE, tiny, tokens_of
from transduct.decoding.filters import Forbid
from transduct.decoding.search import Beam, length_penalty, search
from transduct.functional.lookup import top
from transduct.segments import Segments

SOURCES = [5, 2, 7, 3]


@pytest.fixture(scope="module")
def model():
    return tiny(seed=3)


def encode(model, lengths=SOURCES, seed=1):
    tokens, segments = tokens_of(lengths, seed, model.config.source_size)
    with torch.no_grad():
        return model.encode(tokens, segments), segments


def find(model, memory, segments, beam, limits, alpha=0.0, filters=()):
    return search(model, memory, segments, Beam(beam, limits, BEGIN, END, alpha, "cpu"), filters)


@torch.no_grad()
def forced_score(model, memory, tokens):
    """Sum of the log-probabilities of one target and its end, over the memory of one source."""
    inputs, outputs = torch.tensor([BEGIN, *tokens]), torch.tensor([*tokens, END])
    hidden = model.decode(inputs, Segments.of([len(inputs)]), memory, Segments.of([len(memory)]))
    return model.logits(hidden).log_softmax(-1).gather(1, outputs[:, None]).double().sum().item()


@torch.no_grad()
def plain_beam_search(model, memory, beam, limit, alpha):
    """Beam search with lists, nothing cached: the ranks and tokens of the finished hypotheses."""
    live, finished = [(0.0, [])], []
    for length in range(1, limit + 1):
        inputs = torch.tensor([[BEGIN, *tokens] for _, tokens in live])
        of_rows = Segments.of([length] * len(live))
        sources = Segments.of([len(memory)] * len(live))
        hidden = model.decode(inputs.flatten(), of_rows, memory.repeat(len(live), 1), sources)
        steps = model.logits(hidden).view(len(live), length, -1)[:, -1].log_softmax(-1).double()
        candidates = [
            (score + step, tokens, token)
            for (score, tokens), row in zip(live, steps.tolist())
            for token, step in enumerate(row)
            if length < limit or token == END
        ]
        candidates = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * beam]
        finished += [
            (score / length_penalty(length, alpha), tokens, score)
            for score, tokens, token in candidates[:beam]
            if token == END
        ]
        live = [(score, [*tokens, token]) for score, tokens, token in candidates if token != END]
        live = live[:beam]
        likeliest = max((score for *_, score in finished), default=-math.inf)
        if not live or (len(finished) >= beam and likeliest >= live[0][0]):
            break
    best = sorted(finished, key=lambda hypothesis: -hypothesis[0])[:beam]
    return [(rank, tokens) for rank, tokens, _ in best]


@torch.no_grad()
def greedy(model, memory, limit):
    """Greedy search without a cache."""
    tokens, segments = [], Segments.of([len(memory)])
    while len(tokens) < limit - 1:
        inputs = torch.tensor([BEGIN, *tokens])
        hidden = model.decode(inputs, Segments.of([len(inputs)]), memory, segments)
        newest = int(model.logits(hidden[-1:]).argmax())
        if newest == END:
            break
        tokens.append(newest)
    return tokens


def test_a_beam_of_one_is_greedy(model):
    memory, segments = encode(model, [5, 2, 7, 3, 1, 4], seed=5)
    limits = [3, 12, 9, 12, 1, 12]
    found = find(model, memory, segments, 1, limits)
    parts = memory.split(segments.lengths.tolist())
    expected = [greedy(model, part, limit) for part, limit in zip(parts, limits)]
    assert [each.tokens for [each] in found] == expected
    assert len({len(tokens) for tokens in expected}) > 2  # they ended at different times


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("beam", [1, 2, 4, 8])
def test_scores_are_those_of_forced_decoding_and_sorted_after_the_penalty(model, beam, alpha):
    memory, segments = encode(model)
    found = find(model, memory, segments, beam, [10] * 4, alpha)
    for part, hypotheses in zip(memory.split(SOURCES), found):
        assert 1 <= len(hypotheses) <= beam
        assert len({tuple(h.tokens) for h in hypotheses}) == len(hypotheses)
        for h in hypotheses:
            assert END not in h.tokens
            assert h.score == pytest.approx(forced_score(model, part, h.tokens), abs=1e-4)
            assert h.rank == pytest.approx(h.score / ((5 + len(h.tokens) + 1) / 6) ** alpha)
        assert [h.rank for h in hypotheses] == sorted((h.rank for h in hypotheses), reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("beam", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", [3, 4])
def test_search_is_beam_search_as_it_is_written_down(seed, beam, alpha):
    model = tiny(seed=seed, source_size=6, target_size=6)
    lengths, limits = [5, 2, 7, 3, 1, 6], [9, 3, 1, 12, 12, 6]
    memory, segments = encode(model, lengths)
    found = find(model, memory, segments, beam, limits, alpha)
    for part, limit, hypotheses in zip(memory.split(lengths), limits, found):
        expected = plain_beam_search(model, part, beam, limit, alpha)
        ranks, outputs = zip(*expected)
        assert [h.tokens for h in hypotheses] == [*outputs]
        assert [h.rank for h in hypotheses] == pytest.approx([*ranks], abs=1e-4)


class Sure:
    """A model, and its own state, that is sure of every word; the end of the sentence is its second
    choice."""

    words = [3, 4, 5, 6, 7, 8]

    def start(self, memory, segments, beam):
        self.length = 0
        return self

    def step(self, tokens, state):
        logits = torch.zeros(len(tokens), 9)
        logits[:, END] = 4.0
        logits[:, [*self.words, END, END, END][self.length]] = 9.0
        self.length += 1
        return logits, self

    def select(self, rows):
        pass


@pytest.mark.parametrize("beam", [1, 2, 3, 4])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_poor_early_ends_do_not_crowd_out_the_right_one(beam, alpha):
    [found] = find(Sure(), torch.zeros(1, 1), Segments.of([1]), beam, [20], alpha)
    assert found[0].tokens == Sure.words


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_wide_beam_finds_what_exhaustive_search_finds(alpha, limit):
    model = tiny(seed=2, source_size=5, target_size=5)
    memory, segments = encode(model, [3, 4])
    words = [token for token in range(5) if token != END]
    outputs = [list(words_) for length in range(limit) for words_ in product(words, repeat=length)]
    found = find(model, memory, segments, len(outputs), [limit] * 2, alpha)
    for part, hypotheses in zip(memory.split([3, 4]), found):
        ranks = [
            forced_score(model, part, tokens) / length_penalty(len(tokens) + 1, alpha)
            for tokens in outputs
        ]
        best = sorted(zip(ranks, outputs), reverse=True)
        assert [h.tokens for h in hypotheses] == [tokens for _, tokens in best]
        assert [h.rank for h in hypotheses] == pytest.approx([rank for rank, _ in best], abs=1e-5)


@pytest.mark.parametrize("beam", [1, 3, 5])
def test_a_source_is_given_the_same_hypotheses_alone_and_in_any_batch(model, beam):
    lengths = [5, 2, 7, 3, 6, 1]
    memory, segments = encode(model, lengths, seed=7)
    limits = [2, 12, 5, 9, 1, 12]  # sources finish one after another and their rows are dropped
    together = find(model, memory, segments, beam, limits)
    parts = memory.split(lengths)
    for i in range(len(lengths)):
        (alone,) = find(model, parts[i], Segments.of(lengths[i : i + 1]), beam, limits[i : i + 1])
        assert [h.tokens for h in alone] == [h.tokens for h in together[i]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[i]], abs=1e-4)
    backwards = [*range(len(lengths))][::-1]
    turned = torch.cat([parts[i] for i in backwards]), Segments.of(lengths[::-1])
    found = find(model, *turned, beam, limits[::-1])[::-1]
    for one, other in zip(found, together, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]


@pytest.mark.parametrize("beam", [1, 4])
def test_no_output_passes_its_limit_and_there_it_ends(model, beam):
    memory, segments = encode(model)
    limits = [1, 2, 3, 10]
    wishes = [Forbid([END])]  # the end may not be chosen before it must be ...
    for hypotheses, limit in zip(find(model, memory, segments, beam, limits), limits):
        assert all(len(h.tokens) + 1 <= limit for h in hypotheses)
    # ... and a filter has the last word
    assert find(model, memory, segments, beam, limits, filters=wishes) == [[]] * 4


def test_a_wider_beam_than_the_vocabulary_is_no_error(model):
    memory, segments = encode(model)
    found = find(model, memory, segments, 3 * SIZE, [2] * 4)
    # the end at once, or any other token before it
    assert [len(hypotheses) for hypotheses in found] == [SIZE] * 4
    assert find(model, torch.empty(0, 16), Segments.of([]), 2, []) == []


def test_the_length_penalty_is_that_of_wu():
    assert length_penalty(7, 0.0) == 1.0
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 2.0) == pytest.approx(4.0)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_top_are_the_largest(count):
    logits = torch.randn(4, 5)
    values, places = top(logits, count)
    assert torch.equal(values, logits.sort(descending=True).values[:, :count])
    assert torch.equal(values, logits.gather(1, places))
