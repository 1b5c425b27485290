"""The search on the device chooses what the search on the host chooses, and records enough to trace
it back."""

import pytest
import torch

from tests.decoding.test_search import Sure
from tests.helpers import BEGIN, END, tiny, tokens_of
from transduct.decoding.filters import FixedLength, Forbid
from transduct.decoding.search import Beam, search
from transduct.functional.lookup import PEAK_BLOCK
from transduct.inference import device_beam
from transduct.inference.device_beam import RANKED, DeviceBeam, Rules, best_of, likeliest
from transduct.segments import Segments

SOURCES, LIMITS = [5, 2, 7, 3, 1, 6], [9, 3, 1, 12, 12, 6]


def encode(model, lengths=SOURCES, seed=1):
    tokens, segments = tokens_of(lengths, seed, model.config.source_size)
    with torch.no_grad():
        return model.encode(tokens, segments), segments


def on_host(model, memory, segments, beam, limits, alpha=0.0, forbidden=(), fixed=False):
    filters = [FixedLength(END, [limit for limit in limits for _ in range(beam)])] if fixed else []
    filters.append(Forbid(forbidden))
    return search(model, memory, segments, Beam(beam, limits, BEGIN, END, alpha, "cpu"), filters)


@torch.inference_mode()
def on_device(model, memory, segments, beam, limits, alpha=0.0, forbidden=(), fixed=False, spare=0):
    """The search on the device, with `spare` unused places."""
    now = torch.zeros(1, dtype=torch.int64)
    rules = Rules(END, tuple(forbidden), fixed)
    whole = DeviceBeam.of(rules, now, len(limits) + spare, beam, max(limits) + spare)
    whole.admit(torch.tensor([BEGIN] * len(limits)), torch.tensor(limits))
    beams = whole.part(len(limits))
    state = model.start(memory, segments, beam)
    while not beams.done.all():
        logits, state = model.step(beams.newest.flatten(), state)
        now.add_(1)
        rows = beams.choose(logits.clone())
        if rows is not None:
            state.select(rows)
    return whole.hypotheses(len(limits), alpha)


def assert_same(found, expected):
    assert [[h.tokens for h in each] for each in found] == [
        [h.tokens for h in each] for each in expected
    ]
    for name in ("score", "rank"):
        values = [[getattr(h, name) for each in all_ for h in each] for all_ in (found, expected)]
        assert values[0] == pytest.approx(values[1], abs=1e-5)


@pytest.mark.parametrize("beam", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(4))
def test_it_equals_the_search_on_the_host(seed, beam):
    alpha = seed % 2
    model = tiny(seed=seed, source_size=6 + seed, target_size=6 + seed)
    memory, segments = encode(model, seed=seed)
    expected = on_host(model, memory, segments, beam, LIMITS, alpha, [0, BEGIN])
    assert_same(
        on_device(model, memory, segments, beam, LIMITS, alpha, [0, BEGIN], spare=seed), expected
    )


def test_the_comparison_can_fail():
    model = tiny(seed=3, source_size=6, target_size=6)
    memory, segments = encode(model)
    with pytest.raises(AssertionError):
        assert_same(
            on_device(model, memory, segments, 2, LIMITS),
            on_host(model, memory, segments, 3, LIMITS),
        )


@pytest.mark.parametrize("beam", [1, 2, 4])
@pytest.mark.parametrize("size", [150, 200, 64])
def test_large_vocabularies_are_looked_through_in_blocks(beam, size):
    model = tiny(seed=5, source_size=size, target_size=size)
    memory, segments = encode(model)
    expected = on_host(model, memory, segments, beam, LIMITS, 1.0, [0, 1])
    assert_same(on_device(model, memory, segments, beam, LIMITS, 1.0, [0, 1]), expected)


@pytest.mark.parametrize("beam", [1, 3])
def test_outputs_of_fixed_length_are_those_of_the_filter(beam):
    model = tiny(seed=3)
    memory, segments = encode(model)
    expected = on_host(model, memory, segments, beam, LIMITS, 0.0, [0, BEGIN], fixed=True)
    found = on_device(model, memory, segments, beam, LIMITS, 0.0, [0, BEGIN], fixed=True)
    assert [[len(h.tokens) + 1 for h in each] for each in found] == [
        [limit] * len(f) for limit, f in zip(LIMITS, found)
    ]
    assert_same(found, expected)


@pytest.mark.parametrize("beam", [1, 2, 3, 4])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_poor_early_ends_do_not_crowd_out_the_right_one(beam, alpha):
    [found] = on_device(Sure(), torch.zeros(1, 1), Segments.of([1]), beam, [20], alpha)
    assert found[0].tokens == Sure.words


@pytest.mark.parametrize("beam", [1, 4])
def test_an_end_that_is_forbidden_never_comes(beam):
    model = tiny(seed=3)
    memory, segments = encode(model)
    assert on_device(model, memory, segments, beam, LIMITS, forbidden=[END]) == [[]] * 6


def test_a_token_that_is_forbidden_twice_counts_once():
    model = tiny(seed=3)
    memory, segments = encode(model)
    once, twice = (
        on_device(model, memory, segments, 2, LIMITS, forbidden=given)
        for given in ([0, 1], [1, 0, 1, 0])
    )
    assert once == twice


@pytest.mark.parametrize("beam", [1, 3])
def test_moved_sources_continue_unchanged(beam):
    now = torch.zeros(1, dtype=torch.int64)
    rules = Rules(END, (0,), False)
    logits = torch.randn(6, 4, beam, 9).log_softmax(-1)

    def run(moved):
        beams = DeviceBeam.of(rules, now.zero_(), 4, beam, 8)
        beams.admit(torch.tensor([BEGIN] * 4), torch.tensor([6, 6, 4, 6]))
        kept = torch.arange(4)
        for number, step in enumerate(logits):
            if number == 3 and moved:
                kept = torch.tensor([3, 1])
                beams.gather(kept)
            part = beams.part(len(kept))
            now.add_(1)
            part.choose(step[kept].flatten(0, 1).clone())
        return beams.hypotheses(len(kept), 0.6)

    assert run(True) == [run(False)[i] for i in (3, 1)]


def test_a_search_is_told_nothing_by_the_one_before_in_the_same_buffers():
    now, beam = torch.zeros(1, dtype=torch.int64), 2
    used, fresh = (DeviceBeam.of(Rules(END), now, 4, beam, 8) for _ in range(2))
    over, long = torch.randn(6, 4 * beam, 9), torch.randn(6, 4 * beam, 9)
    over[..., END] += 50.0
    # an end is always found, and going on is always likelier
    long[..., END], long[..., 3] = (5.0, 9.0)

    def run(beams, logits):
        now.zero_()
        beams.admit(torch.tensor([BEGIN] * 4), torch.tensor([6, 6, 4, 6]))
        for step in logits:
            now.add_(1)
            beams.choose(step.clone())
        return beams.hypotheses(4, 0.6)

    assert all(found[0].tokens == [] for found in run(used, over))
    assert run(used, long) == run(fresh, long)


def test_a_greedy_search_ends_once_though_what_follows_is_likelier():
    now = torch.zeros(1, dtype=torch.int64)
    beams = DeviceBeam.of(Rules(END), now, 1, 1, 8)
    beams.admit(torch.tensor([BEGIN]), torch.tensor([8]))
    for end, word in ((1.0, 0.9), (0.0, 20.0), (20.0, 0.0)):
        logits = torch.zeros(1, 9)
        logits[0, END], logits[0, 3] = end, word
        now.add_(1)
        beams.choose(logits)
    [[found]] = beams.hypotheses(1, 1.0)
    assert found.tokens == []


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("size", [5, 64, 256, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_likeliest_are_the_largest(count, size, dtype):
    logits = torch.stack([torch.randperm(size) for _ in range(4)]).to(dtype) / 8
    values, places, masses = likeliest(logits, count)
    assert torch.equal(values, logits.float().sort(descending=True).values[:, :count])
    assert torch.equal(values, logits.float().gather(1, places))
    torch.testing.assert_close(masses.logsumexp(1), logits.float().logsumexp(1))


@pytest.mark.parametrize("beam", [1, 3])
def test_masses_may_come_in_pieces(monkeypatch, beam):
    """As they do from the kernel for a GPU."""

    def peaks(logits):
        maxima = [block.amax(1) for block in logits.split(PEAK_BLOCK, 1)]
        return torch.stack(maxima, 1), torch.stack(
            [piece.logsumexp(1) for piece in logits.split(100, 1)], 1
        )

    monkeypatch.setattr(device_beam, "_peaks", peaks)
    model = tiny(seed=5, source_size=230, target_size=230)
    memory, segments = encode(model)
    for fixed in (False, True):
        expected = on_host(model, memory, segments, beam, LIMITS, 1.0, [0, 1], fixed)
        assert_same(on_device(model, memory, segments, beam, LIMITS, 1.0, [0, 1], fixed), expected)


@pytest.mark.parametrize("size, count", [(6, 3), (36, 8), (129, 4)])
def test_the_best_are_the_largest_and_of_equal_ones_the_first(size, count):
    torch.manual_seed(size)
    scores = torch.randint(0, 9, (5, size)).double()
    scores[0, 2:] = -torch.inf
    scores[1, 1::2] += 1e-12
    values, places = best_of(scores, count)
    expected = scores.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :count])
    assert torch.equal(values, scores.gather(1, places))
    if size <= RANKED:
        assert torch.equal(places, expected.indices[:, :count])
    scores[3, 5] = torch.nan
    assert best_of(scores, count)[0][3, 0].isnan()
