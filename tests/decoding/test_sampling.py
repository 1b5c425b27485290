"""Samples follow the model's distribution, truncated as asked, and do not depend on the batch."""

import pytest
import torch

from tests.decoding.test_search import forced_score
from tests.helpers import BEGIN, END, tiny, tokens_of
from transduct.decoding.sampling import FIRST, Sampling, draw
from transduct.decoding.search import search

PROBABILITIES = torch.tensor([0.1, 0.4, 0.2, 0.3])
INFINITE = float("-inf")


def drawn(count=4000, **cut):
    """How often each token is drawn when the uniform numbers are spread evenly."""
    uniform = (torch.arange(count) + 0.5) / count
    tokens = draw(PROBABILITIES.log().expand(count, -1), uniform, **cut)
    return torch.bincount(tokens, minlength=4) / count


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_k": 9}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_p": 0.01}, [0, 1, 0, 0]),
        ({"top_p": 0.6}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.8}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_p": 1.0}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_k": 3, "top_p": 0.5}, [0, 4 / 7, 0, 3 / 7]),  # of the mass that top_k leaves
    ],
    ids=str,
)
def test_draws_follow_the_probabilities_that_are_left(cut, expected):
    assert drawn(**cut).tolist() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
def test_top_p_stops_where_its_mass_is_reached(tokens):
    # of four equal probabilities
    found = draw(torch.zeros(100, 4), torch.arange(100) / 100, top_p=tokens / 4)
    assert len(found.unique()) == tokens


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.5}], ids=str)
def test_what_cannot_come_never_comes_whatever_the_draw(uniform, cut):
    logits = torch.tensor([[1.0, INFINITE, 0.9, INFINITE, 0.8]])
    token = draw(logits, torch.tensor([uniform], dtype=torch.float64), **cut).item()
    assert token in ([0, 2] if cut else [0, 2, 4])


@pytest.mark.parametrize(
    "sharpness, cut",
    [(8.0, {"top_p": 0.9}), (0.1, {"top_p": 0.9}), (0.1, {"top_k": 40, "top_p": 0.5})],
)
def test_of_many_tokens_the_likeliest_are_drawn_from(sharpness, cut):
    """More tokens than are looked at first; in flat rows these hold too little mass."""
    random = torch.Generator().manual_seed(1)
    logits = sharpness * torch.randn(50, 3 * FIRST, generator=random)
    uniform = torch.rand(50, generator=random)
    for row, number, token in zip(logits, uniform, draw(logits, uniform, **cut), strict=True):
        shares = row.double().softmax(-1)
        order = shares.argsort(descending=True)[: cut.get("top_k")]
        mass = shares[order].cumsum(0) / (shares[order].sum() if "top_k" in cut else 1.0)
        left = order[: 1 + int((mass < cut["top_p"]).sum())].sort().values
        chances = shares[left].cumsum(0) / shares[left].sum()
        assert token == left[int((chances <= number).sum())]


@pytest.mark.parametrize(
    "cut", [{"top_p": 0.7}, {"top_k": 900}, {"top_k": 2000, "top_p": 0.8}], ids=str
)
def test_what_is_equal_at_the_border_is_cut_alike_in_any_batch(cut):
    """Logits of few bits have many that are equal, and a flat row has all of the others looked
    through too."""
    random = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(60, 5000, generator=random)).bfloat16().float()
    logits, uniform = torch.cat((logits, torch.zeros(1, 5000))), torch.rand(61, generator=random)
    together = draw(logits, uniform, **cut)
    alone = torch.cat(
        [draw(row[None], number[None], **cut) for row, number in zip(logits, uniform, strict=True)]
    )
    assert torch.equal(together, alone)


def test_what_is_equal_but_for_rounding_does_not_change_places():
    """As in another batch, whose products are rounded otherwise."""
    random = torch.Generator().manual_seed(1)
    logits = torch.randint(0, 3, (200, 50), generator=random).float()  # many that are equal
    other = logits + 1e-6 * torch.randn(200, 50, generator=random)
    uniform = torch.rand(200, generator=random)
    assert (draw(logits, uniform) != draw(other, uniform)).sum() <= 1


def sample(model, memory, segments, sources, limits, samples=3, **options):
    strategy = Sampling(samples, limits, BEGIN, END, sources, **options)
    return search(model, memory, segments, strategy)


@pytest.fixture(scope="module")
def encoded():
    model, lengths = tiny(seed=3), [4, 2, 5]
    tokens, segments = tokens_of(lengths)
    with torch.no_grad():
        memory = model.encode(tokens, segments)
    return model, memory, segments, [x.tolist() for x in tokens.split(lengths)]


def test_temperature_sharpens_and_flattens(encoded):
    model, memory, segments, sources = encoded
    several = sample(model, memory, segments, sources, [8] * 3, samples=40, temperature=1.0)
    cold = sample(model, memory, segments, sources, [8] * 3, samples=40, temperature=1e-4)
    assert all(len({tuple(h.tokens) for h in hypotheses}) == 1 for hypotheses in cold)
    assert all(len({tuple(h.tokens) for h in hypotheses}) > 10 for hypotheses in several)
    for best, hypotheses in zip(cold, sample(model, memory, segments, sources, [8] * 3, top_k=1)):
        assert hypotheses[0].tokens == best[0].tokens
    hottest = sample(model, memory, segments, sources, [2] * 3, samples=40, temperature=1e300)
    assert all(len({tuple(h.tokens) for h in hypotheses}) > 5 for hypotheses in hottest)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_first_tokens_come_as_often_as_the_model_says(encoded, temperature):
    model, memory, segments, sources = encoded
    with torch.no_grad():
        logits, _ = model.step(torch.full((3,), BEGIN), model.start(memory, segments, 1))
    count = 2000
    options = {"samples": count, "temperature": temperature}
    found = sample(model, memory, segments, sources, [2] * 3, **options)
    for hypotheses, expected in zip(found, (logits / temperature).softmax(-1)):
        first = torch.tensor([h.tokens[0] if h.tokens else END for h in hypotheses])
        frequencies = torch.bincount(first, minlength=len(expected)) / count
        deviation = (expected * (1 - expected) / count).sqrt()
        assert ((frequencies - expected).abs() < 5 * deviation + 1e-3).all()


def test_scores_are_the_models_own_and_sorted(encoded):
    model, memory, segments, sources = encoded
    found = sample(model, memory, segments, sources, [8, 3, 1], temperature=1.7, top_p=0.9)
    for part, hypotheses, limit in zip(memory.split([4, 2, 5]), found, [8, 3, 1]):
        assert len(hypotheses) == 3
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for h in hypotheses:
            assert len(h.tokens) + 1 <= limit
            assert h.score == h.rank == pytest.approx(forced_score(model, part, h.tokens), abs=1e-4)


def test_a_sentence_is_given_the_same_samples_alone_and_in_a_batch(encoded):
    model, memory, segments, sources = encoded
    together = sample(model, memory, segments, sources, [9, 5, 9], seed=4)
    for i, part in enumerate(memory.split([4, 2, 5])):
        alone_segments = type(segments).of([len(part)])
        (alone,) = sample(model, part, alone_segments, [sources[i]], [[9, 5, 9][i]], seed=4)
        assert [h.tokens for h in alone] == [h.tokens for h in together[i]]
    other = sample(model, memory, segments, sources, [9, 5, 9], seed=5)
    assert [[h.tokens for h in hs] for hs in other] != [[h.tokens for h in hs] for hs in together]
