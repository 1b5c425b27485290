"""Sentences of any model that join and leave a running batch of cohorts at any time find what they
find alone."""

import random
from dataclasses import replace

import pytest
import torch

from tests.families import GENERATORS
from tests.helpers import BEGIN, END, compiled, tiny
from tests.inference.test_running import OPTIONS, asked, driven, made, shown
from transduct.blocks.embeddings import narrowed
from transduct.decoding.filters import FixedLength
from transduct.decoding.shortlist import Narrowed
from transduct.inference import engine
from transduct.inference.cohorts import Cohorts, running_batch
from transduct.inference.fused import prepare
from transduct.inference.running import Running
from transduct.inference.settings import DecodingConfig, Sentence

CPU = torch.device("cpu")


def ready(name):
    """A family's model as it is used, and whether it goes on from its input."""
    family = GENERATORS[name]()
    prepare(family.model, CPU, torch.float32)
    return family.model, family.prompted


def exact(sentences):
    rows = [one.limit for one in sentences for _ in range(one.beam)]
    return FixedLength(BEGIN, rows)


def any_sentence(draws, prompted=False):
    """A sentence of any kind, also of those that the kernels cannot search for."""
    one = asked(draws)
    if draws.random() < 0.3:
        one.config = replace(one.config, no_repeat=2)
    one.limit = min(one.limit, 12)
    if prompted:  # it continues its source, as a language model does
        one.source, one.begin, one.end = one.source[:-1], 4, BEGIN
        one.never, one.prefix, one.free, one.constrain = [0], [], 0, exact
    return one


def check(model, found, exactly=False):
    """Compare with what each finds alone. Where PyTorch multiplies, rounding depends on company."""
    for one, each in found.items():
        alone = shown(engine.find(model, [one])[0])
        assert each == alone if exactly else [h[0] for h in each] == [h[0] for h in alone]
        assert [h[1] for h in each] == pytest.approx([h[1] for h in alone], abs=1e-5)


@pytest.mark.parametrize(
    "name", ["transformer", "rnn without attention", "rnn general", "ensemble", "gpt", "gpt rotary"]
)
def test_sentences_at_random_times_find_what_they_find_alone(name):
    model, prompted = ready(name)
    draws = random.Random(1)
    sentences = [any_sentence(draws, prompted) for _ in range(40)]
    cancelled = set(draws.sample(sentences, 4))
    batch = Cohorts(model)
    found = driven(batch, sentences, draws, cancelled)
    assert (batch.rows, batch.tokens, batch.all) == (0, 0, {})
    assert {one for one in sentences if one not in found} <= cancelled
    check(model, found, exactly=name == "transformer")


def test_sentences_with_shortlists_do_too():
    model = made()
    some = {3: [4, 5, 6], 4: [7, 8]}

    def narrow(sources):
        lists = [
            {0, BEGIN, END, 3, *(t for s in source for t in some.get(s, ()))} for source in sources
        ]
        tokens = torch.tensor(sorted(set().union(*lists)))
        allowed = torch.tensor([[t in own for t in tokens.tolist()] for own in lists])
        return Narrowed(narrowed(model, tokens), tokens, allowed)

    draws = random.Random(2)
    sentences = [asked(draws) for _ in range(40)]
    parts = []
    for one in sentences:
        one.prefix, one.free, one.narrow = [], 0, narrow
    sentences[0].follow = parts.append
    assert running_batch(model, sentences[0]) is Cohorts
    found = driven(Cohorts(model), sentences, draws)
    assert {*found} == {*sentences}
    check(model, found)
    assert [t for part in parts for t in part] == found[sentences[0]][0][0]


def test_the_control_rows_that_get_the_states_of_others_find_something_else(monkeypatch):
    model, _ = ready("rnn general")
    draws = random.Random(1)
    sentences = [replace(asked(draws), config=DecodingConfig(beam=2)) for _ in range(30)]
    for one in sentences:
        one.prefix, one.free = [], 0
    alone = {one: shown(engine.find(model, [one])[0]) for one in sentences}
    start = model.start

    def exchanged(memory, segments, beam):
        state = start(memory, segments, beam)
        state.select(torch.arange(len(segments.lengths) * beam).roll(beam))
        return state

    monkeypatch.setattr(model, "start", exchanged)
    found = driven(Cohorts(model), sentences, draws)
    assert sum(found[one] != alone[one] for one in sentences) > 10


def test_who_is_cancelled_is_gone_after_one_step():
    model, _ = ready("rnn general")
    long = Sentence([3, 4, END], 30, DecodingConfig(beam=2), BEGIN, END, [0, BEGIN, END])
    other = Sentence([5, END], 30, DecodingConfig(beam=2), BEGIN, END, [0, BEGIN, END])
    batch = Cohorts(model)
    batch.join([long, other])
    [cohort] = {cohort for cohort, _ in batch.all.values()}
    batch.step()
    assert len(cohort.strategy.history) == 4
    batch.leave(long)
    assert (batch.rows, [*batch.all]) == (2, [other])
    batch.step()
    assert len(cohort.strategy.history) == 2
    batch.leave(long)
    assert batch.rows == 2


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["transformer", "gpt"])
def test_who_follows_a_sentence_gets_its_tokens_as_they_appear(name, options):
    model, prompted = ready(name)
    parts, draws = [], random.Random(3)
    one = replace(any_sentence(draws, prompted), config=DecodingConfig(**options))
    one.limit, one.prefix, one.free, one.follow = 12, [], 0, parts.append
    batch = Cohorts(model)
    batch.join([one])
    seen = 0
    while batch.all:
        [found] = [each for _, each in batch.step()] or [None]
        seen += found is None and bool(parts)
    assert [token for part in parts for token in part] == found[0].tokens
    assert seen > 0 or options["beam"] > 1 or not prompted


def test_what_does_not_fit_waits():
    model, _ = ready("rnn general")
    batch, one = Cohorts(model), Sentence([3, END], 5, DecodingConfig(beam=500), BEGIN, END)
    assert batch.takes(one)
    assert not batch.takes(one, 0, 20)
    batch.join([one])
    assert not batch.takes(one)
    wide = Sentence([3, END], 5, DecodingConfig(beam=900), BEGIN, END)
    assert Cohorts(model).takes(wide), "or it would never be searched for"


@compiled
def test_the_kernels_take_what_they_can():
    one = Sentence([3, END], 5, DecodingConfig(beam=2), BEGIN, END)
    assert running_batch(made(), one) is Running
    assert running_batch(tiny(), one) is Cohorts
    assert running_batch(made(), replace(one, constrain=exact)) is Cohorts
