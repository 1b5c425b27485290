"""Sentences that join and leave a running batch at any time find what they find alone, on the path
of `decoding.search`, and leave no page behind."""

import random
from dataclasses import replace

import pytest
import torch

from tests.helpers import BEGIN, END, SIZE, compiled, tiny
from transduct.inference import engine, running
from transduct.inference.fused import fuse
from transduct.inference.packed import pack_layers
from transduct.inference.quantised import pack_quantised, quantise
from transduct.inference.running import Running
from transduct.inference.settings import DecodingConfig, Sentence
from transduct.kernels.cpu_search import Cells
from transduct.kernels.threads import CORES

pytestmark = compiled
OPTIONS = [
    {"beam": 1},
    {"beam": 5, "length_penalty": 0.6},
    {"beam": 3, "stopping": "never", "length_rule": "power", "at_limit": "cut"},
    {"beam": 2, "stopping": "early", "at_limit": "free"},
    {"beam": 4, "stopping": "estimate", "length_penalty": -1.0},
    {"beam": 2, "temperature": 0.8, "top_k": 5, "seed": 3},
    {"beam": 1, "temperature": 1.3, "top_p": 0.9},
]


def made(integers=False, **changes):
    torch.manual_seed(5)
    model = tiny(**{"max_length": 48, **changes})
    if integers:
        quantise(model)
    pack_layers(model)
    pack_quantised(model)
    fuse(model)
    return model


def asked(draws, follow=None):
    """A sentence of any kind."""
    source = [*(draws.randrange(3, SIZE) for _ in range(draws.randrange(12))), END]
    start = [draws.randrange(3, SIZE) for _ in range(draws.choice([0, 0, 0, 1, 3]))]
    limit, config = draws.randrange(1, 20) + len(start), DecodingConfig(**draws.choice(OPTIONS))
    free = draws.randrange(len(start) + 1)
    return Sentence(source, limit, config, BEGIN, END, [0, BEGIN], start, free, follow)


def shown(hypotheses):
    return [(each.tokens, each.score, each.rank) for each in hypotheses]


@pytest.fixture
def alone(monkeypatch):
    """What a sentence finds on the path of `decoding.search`, by itself."""

    def found(model, one):
        with monkeypatch.context() as without:
            without.setattr(engine, "runs", lambda *_: False)
            return shown(engine.find(model, [one])[0])

    return found


def driven(batch, sentences, draws, cancelled=()):
    """Let sentences join at random times, some of which are cancelled later; what the others
    find."""
    waiting, found = list(sentences), {}
    while waiting or batch.all:
        joining = [one for one in waiting[: draws.randrange(8)] if batch.takes(one)][:3]
        waiting = [one for one in waiting if one not in joining]
        batch.join(joining)
        for one in [one for one in batch.all if one in cancelled and draws.random() < 0.3]:
            batch.leave(one)
        found |= {one: shown(hypotheses) for one, hypotheses in batch.step()}
    return found


@pytest.mark.parametrize("integers", [False, True], ids=["float32", "8-bit"])
def test_a_thousand_sentences_at_random_times_find_what_they_find_alone(alone, integers):
    model, draws = made(integers), random.Random(1)
    kinds = [asked(draws) for _ in range(125)]
    sentences = [replace(one) for one in 8 * kinds]
    cancelled = set(draws.sample(sentences, 100))
    with running.borrowed(model) as batch:
        pages = sorted(batch.free)
        found = driven(batch, sentences, draws, cancelled)
        assert sorted(batch.free) == pages
        assert (batch.rows, batch.tokens) == (0, 0)
    missing = [one for one in sentences if one not in found]
    assert {*missing} <= cancelled
    assert len(missing) > 50
    expected = 8 * [alone(model, one) for one in kinds]
    wrong = [one for one, each in zip(sentences, expected) if found.get(one, each) != each]
    assert not wrong, (len(wrong), wrong[0])


@pytest.mark.parametrize("shape", [{"num_kv_heads": 2, "positions": "rotary"}, {"norm": "post"}])
def test_other_shapes_do_too(alone, shape):
    model, draws = made(**shape), random.Random(2)
    sentences = [asked(draws) for _ in range(40)]
    with running.borrowed(model) as batch:
        found = driven(batch, sentences, draws)
    assert found == {one: alone(model, one) for one in sentences}


def test_the_control_a_row_that_reads_the_page_of_another_finds_something_else(alone):
    model, draws = made(), random.Random(1)
    sentences = [asked(draws) for _ in range(30)]
    batch = Running(model)
    free = batch.free[-6:] * 200  # pages that several get
    batch.free = free
    batch.join(sentences)
    found = {}
    while batch.all:
        found |= {one: shown(hypotheses) for one, hypotheses in batch.step()}
    assert sum(found[one] != alone(model, one) for one in sentences) > 10


def test_who_is_cancelled_is_gone_after_one_step():
    config = DecodingConfig(beam=2)
    long, other = (Sentence([n, END], 30, config, BEGIN, END, [0, BEGIN, END]) for n in (3, 4))
    with running.borrowed(made()) as batch:
        batch.join([long, other])
        assert batch.used == long.pages + other.pages > 0
        batch.interrupt()  # as who cancels does
        assert batch.step() == []
        assert batch.steps == 1
        batch.leave(long)
        assert (batch.used, batch.rows, [*batch.all]) == (other.pages, 2, [other])
        [(done, _)] = batch.step()
        assert (done, batch.steps) == (other, 30), "nobody interrupts any more"


def test_some_take_steps_alone_and_all_find_what_they_find_alone(alone):
    model, draws = made(), random.Random(4)
    sentences, found = [asked(draws) for _ in range(60)], {}
    with running.borrowed(model) as batch:
        batch.join(sentences)
        while batch.all:
            only = draws.sample([*batch.all], draws.randrange(len(batch.all)) + 1)
            others = {one: str(each.rows()) for one, each in batch.all.items() if one not in only}
            done = batch.step(draws.randrange(1, 4), only)
            assert {one: str(batch.all[one].rows()) for one in others} == others
            found |= {one: shown(hypotheses) for one, hypotheses in done}
    assert found == {one: alone(model, one) for one in sentences}


@pytest.mark.parametrize("options", OPTIONS)
def test_who_follows_a_sentence_gets_its_tokens_as_they_appear(options):
    model, config, draws, early = made(), DecodingConfig(**options), random.Random(3), 0
    with running.borrowed(model) as batch:
        for _ in range(12):
            parts, found = [], None
            one = replace(asked(draws, parts.append), config=config, limit=18, prefix=[], free=0)
            batch.join([one])
            while found is None:
                before = batch.steps
                [found] = [each for _, each in batch.step()] or [None]
                assert batch.steps == before + 1
                early += found is None and bool(parts)
            assert [token for part in parts for token in part] == found[0].tokens
    assert early > 0


def test_what_does_not_fit_waits():
    model = made()
    with running.borrowed(model) as batch:
        one = Sentence([3, END], 20, DecodingConfig(beam=32), BEGIN, END)
        batch.free, rest = batch.free[-one.pages :], batch.free[: -one.pages]
        assert batch.takes(one)
        batch.join([one])
        assert not batch.takes(Sentence([3, END], 1, DecodingConfig(beam=1), BEGIN, END))
        batch.leave(one)
        batch.free = rest + batch.free


def test_threads_follow_the_work(monkeypatch):
    model, seen, before = made(), [], torch.get_num_threads()
    one = Sentence([3, 4, END], 20, DecodingConfig(beam=3), BEGIN, END, [0, BEGIN, END])

    def watched(method):
        def call(*given):
            seen.append((torch.get_num_threads(), CORES.sharing))
            return method(*given)

        return call

    for name in ("remember", "advance"):
        monkeypatch.setattr(Cells, name, watched(vars(Cells)[name]))
    torch.set_num_threads(2)
    try:
        with running.borrowed(model) as batch:
            for rows, expected in ((3, 2), (4, 1)):
                monkeypatch.setattr(running, "WORTH", rows * batch.size)
                batch.join([one])
                batch.step()
                assert {*seen} == {(1, expected)}
                assert (torch.get_num_threads(), CORES.sharing) == (2, 2)
                seen.clear()
                batch.leave(one)
    finally:
        torch.set_num_threads(before)


def test_what_could_never_fit_takes_the_path_of_today(monkeypatch):
    model = made()
    one = Sentence([3, END], 40, DecodingConfig(beam=4), BEGIN, END)
    assert running.runs(model, [one])
    monkeypatch.setattr(running, "MEMORY", 1 << 10)
    assert not running.runs(model, [one])
    assert not running.runs(made(max_length=8), [one])
    for changes in ({"no_repeat": 2}, {"captured": True}, {"beam": 33}):
        assert not running.runs(model, [Sentence([3], 4, DecodingConfig(**changes), BEGIN, END)])
    assert not running.runs(tiny(), [])


def test_nothing_is_allocated_for_keys_and_values_while_it_runs():
    model, draws = made(), random.Random(4)
    with running.borrowed(model) as batch:
        addresses = [pool.data_ptr() for pair in batch.cells.pools for pool in pair]
        driven(batch, [asked(draws) for _ in range(20)], draws)
        assert [pool.data_ptr() for pair in batch.cells.pools for pool in pair] == addresses
    with running.borrowed(model) as again:
        assert again is batch
