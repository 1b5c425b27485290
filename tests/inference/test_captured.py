"""Captured search finds what plain search finds, for all shapes; everything but the capture also
runs on a CPU."""

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from time import sleep

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.helpers import BEGIN, END, PLACES, SIZE, randomise, tiny
from tests.inference.test_device_beam import assert_same
from transduct.decoding.filters import FixedLength, Prefix
from transduct.decoding.search import Beam
from transduct.errors import NotFinite
from transduct.inference import captured, engine
from transduct.inference.captured import (
    MOST,
    SEARCHES,
    CapturedSearch,
    Watch,
    capture,
    captured_search,
    in_powers_of_two,
    read,
    warm_up,
)
from transduct.inference.device_beam import DeviceBeam, Rules
from transduct.inference.engine import generate
from transduct.inference.fixed_state import FixedState
from transduct.inference.settings import DecodingConfig
from transduct.segments import power_of_two

CPU = torch.device("cpu")


def drawn(count, seed=1, longest=14, size=SIZE):
    """Sources and limits."""
    random = Random(seed)
    sources = [
        [random.randrange(3, size) for _ in range(random.randint(0, longest - 1))] + [END]
        for _ in range(count)
    ]
    return sources, [random.randint(1, 14) for _ in range(count)]


def found_by(model, sources, limits, asked, beam=2, alpha=0.6, constrain=None):
    config = DecodingConfig(beam=beam, length_penalty=alpha, captured=asked, workers=1)
    return generate(model, sources, limits, config, BEGIN, END, [0, BEGIN], constrain)


@pytest.mark.parametrize("beam", [1, 3])
def test_outputs_begin_with_what_they_are_given(beam):
    model, (sources, limits) = tiny(seed=4), drawn(9)
    starts = [[3 + (i + j) % 5 for j in range(i % 4)] for i in range(9)]
    limits = [limit + 3 for limit in limits]

    start_of = {id(source): start for source, start in zip(sources, starts, strict=True)}

    def led(sentences):
        return Prefix([start_of[id(one.source)] for one in sentences for _ in range(beam)])

    for _ in range(2):
        found, expected = (
            found_by(model, sources, limits, asked, beam, constrain=led) for asked in (True, False)
        )
        assert_same(found, expected)
    for start, hypotheses in zip(starts, found, strict=True):
        assert all(each.tokens[: len(start)] == start for each in hypotheses)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 40])
def test_no_run_of_tokens_comes_again(size, beam):
    model, (sources, _) = randomise(tiny(seed=2), spread=0.4), drawn(9)
    config = DecodingConfig(beam=beam, no_repeat=size, workers=1)
    found, expected = (
        generate(model, sources, [14] * 9, replace(config, captured=asked), BEGIN, END, [0, BEGIN])
        for asked in (True, False)
    )
    assert_same(found, expected)
    if size < 4:
        free = found_by(model, sources, [14] * 9, True, beam)
        assert [h[0].tokens for h in free] != [h[0].tokens for h in found]


@pytest.mark.parametrize(
    "beam, options",
    [
        (1, {}),
        (3, {"temperature": 0.5, "seed": 7}),
        (3, {"top_k": 3}),
        (1, {"top_p": 0.6}),
        (3, {"top_k": 5, "top_p": 0.7}),
        (3, {"no_repeat": 2}),
    ],
    ids=str,
)
def test_captured_sampling_draws_what_sampling_draws(beam, options):
    """Though it stops and compacts its rows at other times, and sorts all for the top p."""
    model, (sources, limits) = tiny(), drawn(9)
    config = DecodingConfig(beam=beam, workers=1, **{"temperature": 3.0, **options})
    found, expected, other = (
        generate(model, sources, limits, replace(config, **changes), BEGIN, END, [0, BEGIN])
        for changes in ({"captured": True}, {"captured": False}, {"captured": True, "seed": 9})
    )
    assert_same(found, expected)
    assert [h.tokens for each in other for h in each] != [h.tokens for each in found for h in each]


@pytest.mark.parametrize("kind", ["prefix", "length"])
def test_captured_sampling_keeps_to_prefixes_and_lengths(kind):
    model, (sources, _) = tiny(), drawn(4)

    def constrain(sentences):
        limits = [one.limit for one in sentences for _ in range(2)]
        if kind == "prefix":
            return Prefix([[limit, 4] for limit in limits])
        return FixedLength(END, limits)

    found, expected = (
        generate(
            *(model, sources, [3, 4, 5, 6]),
            DecodingConfig(beam=2, workers=1, temperature=1.0, captured=asked),
            *(BEGIN, END, [0, BEGIN], constrain),
        )
        for asked in (True, False)
    )
    assert_same(found, expected)


def test_a_capture_that_fails_is_reported_once_and_the_search_runs_without(monkeypatch):
    model, (sources, limits) = tiny(), drawn(3)
    expected = found_by(model, sources, limits, False)
    monkeypatch.setattr(
        engine,
        "captures",
        lambda model, config, *_: config.captured is True or model not in engine.FAILED,
    )

    def fails(*_):
        raise RuntimeError("CUDA error: out of memory\nmore")

    monkeypatch.setattr(captured, "captured_search", fails)
    with pytest.warns(
        UserWarning, match="search is not captured and runs without: RuntimeError: CUDA e"
    ):
        found = found_by(model, sources, limits, "auto")
    assert_same(found, expected)
    assert_same(found_by(model, sources, limits, "auto"), expected)
    with pytest.raises(RuntimeError, match="out of memory"):
        found_by(model, sources, limits, True)


def fixed(beam):
    return lambda some: FixedLength(END, [one.limit for one in some for _ in range(beam)])


def test_a_source_that_may_have_nothing_gets_nothing():
    model = tiny()
    sources, _ = drawn(3)
    assert_same(*(found_by(model, sources, [0, 1, 5], asked) for asked in (True, False)))


@pytest.fixture
def every_capture_warms_up(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(captured, "capture", lambda step, held, *_: (warm_up(step, held), step)[1])


@pytest.mark.parametrize("seed, beam", [*enumerate([1, 2, 3, 5])])
def test_it_equals_the_readable_search(seed, beam):
    model = tiny(seed=seed)
    sources, limits = drawn(23, seed)
    for alpha in (0.0, 1.0):  # and again, in the same buffers
        assert_same(
            *(found_by(model, sources, limits, asked, beam, alpha) for asked in (True, False))
        )


@pytest.mark.parametrize("scheme, mode", PLACES)
def test_every_scheme_of_positions_has_fixed_shapes(scheme, mode):
    model = tiny(positions=scheme, position_mode=mode)
    sources, limits = drawn(5)
    assert_same(*(found_by(model, sources, limits, asked, 3) for asked in (True, False)))


@pytest.mark.parametrize(
    "changes",
    [{"num_kv_heads": 2}, {"d_v": 6, "norm": "post"}, {"tie": "none", "activation": "swiglu"}],
)
def test_every_shape_of_a_model_has_fixed_shapes(changes):
    sources, limits = drawn(5)
    model = tiny(**changes)
    assert_same(*(found_by(model, sources, limits, asked, 3) for asked in (True, False)))


@pytest.mark.parametrize("beam", [1, 3])
def test_a_source_is_given_the_same_hypotheses_alone_and_in_any_batch(beam):
    model, (sources, limits) = tiny(seed=7), drawn(9)
    together = found_by(model, sources, limits, True, beam)
    alone = [found_by(model, [s], [limit], True, beam)[0] for s, limit in zip(sources, limits)]
    assert_same(alone, together)
    assert_same(found_by(model, sources[::-1], limits[::-1], True, beam)[::-1], together)


@pytest.mark.parametrize("beam", [1, 3])
def test_once_half_are_done_the_others_go_on_in_a_smaller_graph(
    monkeypatch, beam, every_capture_warms_up
):
    monkeypatch.setattr(captured, "FEW", 1)
    # its beams exchange rows at most steps
    model, (sources, _) = (randomise(tiny(seed=2), spread=0.4), drawn(13))
    limits = [*range(1, 12), 14, 14]
    search = CapturedSearch(model)
    rules = Rules(END, (0, BEGIN), True)
    found = search.search(sources, [BEGIN] * 13, limits, beam, rules, 0.6)
    assert_same(found, found_by(model, sources, limits, False, beam, constrain=fixed(beam)))
    [batch] = search.batches.values()
    sizes = [size for size, reach in batch.graphs if reach]
    assert sizes[0] == 16
    assert len(sizes) > 2
    assert sizes == sorted(sizes, reverse=True)


def test_rows_look_no_further_back_than_they_must(every_capture_warms_up):
    model, (sources, _) = tiny(seed=2, max_length=64), drawn(3)
    limits = [40, 20, 3]
    found, expected = (
        found_by(model, sources, limits, asked, constrain=fixed(2)) for asked in (True, False)
    )
    assert_same(found, expected)
    assert [len(h[0].tokens) + 1 for h in found] == limits
    [batch] = captured_search(model).batches.values()
    assert [reach for _, reach in batch.graphs] == [0, 16, 32, 64]


def test_it_stops_when_all_are_done(monkeypatch):
    model, (sources, _) = tiny(seed=11), drawn(4)
    steps = []
    monkeypatch.setattr(
        model, "step", lambda *given, step=model.step: (steps.append(1), step(*given))[1]
    )
    lengths = [len(h[0].tokens) + 1 for h in found_by(model, sources, [14] * 4, True, 1)]
    assert max(lengths) <= len(steps) <= max(lengths) + 2 * captured.EVERY < 14


def test_the_most_recent_buffers_are_kept(monkeypatch):
    model, (sources, limits) = tiny(), drawn(6, longest=9)
    search = captured_search(model)
    found_by(model, sources, limits, True)
    [batch] = search.batches.values()
    assert (batch.sources, batch.longest) == (8, 16)
    found_by(model, sources[:3], limits[:3], True)
    assert list(search.batches.values()) == [batch], "there was room for three"
    found_by(model, sources * 2, limits * 2, True)
    assert [batch.sources for batch in search.batches.values()] == [16]
    for beam in range(3, 3 + MOST):
        found_by(model, sources, limits, True, beam)
    assert [key[0] for key in search.batches] == list(range(3, 3 + MOST))
    for beam in (3, 2):
        found_by(model, sources, limits, True, beam)
    assert [key[0] for key in search.batches] == [*range(5, 3 + MOST), 3, 2], (
        "what is used again stays"
    )


def test_longer_sources_and_outputs_have_buffers_of_their_own():
    model, most = tiny(seed=3, max_length=64), [20, 5]
    for longest, limits in ((9, [4, 5]), (30, [4, 5]), (9, most)):
        sources = [[3 + i % 5 for i in range(longest)], [4, END]]
        found = [
            found_by(model, sources, limits, asked, constrain=fixed(2)) for asked in (True, False)
        ]
        assert_same(*found)
        assert [len(h[0].tokens) + 1 for h in found[0]] == limits


def test_buffers_above_the_memory_limit_are_dropped_except_the_newest(monkeypatch):
    model, (sources, limits) = tiny(), drawn(6, longest=9)
    search = captured_search(model)
    for beam in (2, 3):
        found_by(model, sources, limits, True, beam)
    held = [batch.memory.nbytes for batch in search.batches.values()]
    monkeypatch.setattr(captured, "memory_limit", lambda: sum(held))
    found_by(model, sources, limits, True, 3)
    assert len(search.batches) == 2
    monkeypatch.setattr(captured, "memory_limit", lambda: sum(held) - 1)
    found_by(model, sources, limits, True, 3)
    assert [key[0] for key in search.batches] == [3]
    monkeypatch.setattr(captured, "memory_limit", lambda: 0)
    found_by(model, sources, limits, True, 4)
    assert [key[0] for key in search.batches] == [4]


def test_buffers_are_of_one_beam_and_one_set_of_rules():
    model, (sources, limits) = tiny(seed=3), drawn(4)
    search, found = CapturedSearch(model), []
    for beam in (1, 3):
        for rules in (
            Rules(END, (0, BEGIN)),
            Rules(END, (0, BEGIN, *range(3, 7))),
            Rules(END, (0, BEGIN), fixed=True),
        ):
            given = (sources, [BEGIN] * 4, limits, beam, rules, 0.6)
            found.append(search.search(*given))
            assert found[-1] == CapturedSearch(model).search(*given)
    assert all(one != other for number, one in enumerate(found) for other in found[:number])


def test_threads_take_turns_at_the_buffers(monkeypatch):
    inside, most = [], []

    def searched(*_):
        inside.append(1)
        sleep(0.05)
        most.append(len(inside))
        inside.pop()
        return [[]]

    monkeypatch.setattr(captured.CapturedBatch, "search", searched)
    model, given = tiny(), ([[3, END]], [BEGIN], [4], 2, Rules(END), 0.6)
    search = CapturedSearch(model)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: search.search(*given), range(3))) == [[[]]] * 3
    assert most == [1] * 3


def test_a_search_that_met_nan_leaves_none_behind():
    """As a validation may, before training rolls back."""
    model, (sources, limits) = tiny(), drawn(3)
    expected, right = (
        found_by(model, sources, limits, True),
        model.decoder[0].self_attention.value.bias.clone(),
    )
    with torch.no_grad():
        model.decoder[0].self_attention.value.bias[0] = float("nan")
    with pytest.raises(NotFinite):
        found_by(model, sources, limits, True)
    with torch.no_grad():
        model.decoder[0].self_attention.value.bias.copy_(right)
    assert found_by(model, sources, limits, True) == expected


def test_weights_that_have_moved_make_all_anew():
    model, (sources, limits) = tiny(), drawn(3)
    search = captured_search(model)
    assert captured_search(model) is search
    with torch.no_grad():
        model.output_table.mul_(0.5)  # in its place
    assert captured_search(model) is search
    assert_same(*(found_by(model, sources, limits, asked) for asked in (True, False)))
    model.output_table.data = model.output_table.data.clone()
    assert captured_search(model) is not search


def test_graphs_are_freed_with_their_model():
    gc.collect()
    before = len(SEARCHES)
    model, (sources, limits) = tiny(), drawn(3)
    found_by(model, sources, limits, True)
    assert len(SEARCHES) == before + 1
    del model
    gc.collect()
    assert len(SEARCHES) == before


def test_a_warm_up_restores_the_tensors_it_changes():
    held, calls = [torch.zeros(2), torch.ones(1)], []

    def step():
        calls.append(held[0].tolist())
        for x in held:
            x.add_(1)

    warm_up(step, held)
    assert calls == [[0.0, 0.0]] * captured.WARM_UP
    assert [x.tolist() for x in held] == [[0.0, 0.0], [1.0]]


def test_on_a_cpu_a_step_is_called_as_it_is():
    def step():
        raise AssertionError

    assert capture(step, [], CPU, None) is step


def test_the_watch_tells_what_was_asked_before():
    watch, done = Watch(CPU), torch.tensor([False, False, True])
    assert watch.look(done) is None
    done[0] = True
    assert watch.look(done) == 2
    assert watch.look(done) == 1


@pytest.mark.parametrize("budget", [1, 40, 64, 100, 1000])
def test_batches_are_powers_of_two_that_keep_to_the_budget(budget):
    lengths = [3, 9, 1, 40, 4, 33, 2, 17, 5, 5, 5]
    batches = list(in_powers_of_two(lengths, budget))
    order = [number for batch in batches for number in batch]
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    assert sorted(order) == list(range(11))
    assert all(power_of_two(len(batch)) == len(batch) for batch in batches[:-1])
    padded = [power_of_two(max(lengths[i] for i in batch), captured.SHORTEST) for batch in batches]
    assert all(
        len(b) == 1 or len(b) * longest <= budget
        for b, longest in zip(batches, padded, strict=True)
    )
    assert list(in_powers_of_two([], 5)) == []


class OnDevice(TorchDispatchMode):
    """Rejects everything off the device: reading a number from it, or creating a tensor
    elsewhere."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
        assert all(x.is_meta for x in tensors), f"{func} takes or gives what is not on the device"
        return out


@pytest.mark.parametrize(
    "beam, scheme, mode", [(1, *PLACES[-1]), *((3, *place) for place in PLACES)]
)
@torch.inference_mode()
def test_a_step_needs_no_host(beam, scheme, mode):
    """Runs on the meta device, whose numbers cannot be read."""
    changes = {"positions": scheme, "position_mode": mode, "source_size": 200, "target_size": 200}
    model = tiny(**changes).to("meta", torch.bfloat16)
    numbers = torch.zeros(8, dtype=torch.int64, device="meta")
    tokens = torch.zeros(8, 16, dtype=torch.int64, device="meta")
    fixed = FixedState(read(model, tokens, numbers, beam), 8, 16, 16)
    rules = Rules(END, (0, BEGIN), fixed=True)
    beams = DeviceBeam.of(rules, fixed.now, 8, beam, 16)
    with OnDevice():
        fixed.admit(read(model, tokens, numbers, beam), numbers)
        beams.part(4).admit(numbers[:4], numbers[:4])
        state = fixed.part(4, 16)
        rows = beams.part(4).choose(model.step(beams.part(4).newest.flatten(), state)[0])
        if rows is not None:
            state.select(rows)
    assert state.ancestry.mask.dtype == torch.bfloat16


@pytest.mark.parametrize("how", [(0.7,), (0.7, 5), (1.0, 0, 0.9)], ids=str)
@torch.inference_mode()
def test_sampling_needs_no_host(how):
    now = torch.zeros(1, dtype=torch.int64, device="meta")
    rules = Rules(END, (0, BEGIN), True, True, 2, *how)
    beams = DeviceBeam.of(rules, now, 4, 3, 16)
    with OnDevice():
        assert beams.choose(torch.zeros(12, SIZE, device="meta")) is None


def test_the_search_on_the_host_is_found_to_ask():
    strategy = Beam(2, [3, 3], BEGIN, END, 0.0, "meta")
    with OnDevice(), pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        strategy.choose(torch.zeros(4, SIZE, device="meta"), torch.zeros(4, device="meta"))


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="captures graphs, which needs a CUDA device"
)
@pytest.mark.gpu
@pytest.mark.parametrize("beam", [1, 4])
def test_captured_search_equals_search(beam):
    model, (sources, limits) = tiny(seed=7).cuda(), drawn(70)
    for _ in range(2):
        assert_same(*(found_by(model, sources, limits, asked, beam) for asked in (True, False)))
