"""Hypotheses come back in the order of the sources, however these are batched; sentences that join
and leave a running batch at any time find what they find alone."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tests.families import GENERATORS
from tests.helpers import BEGIN, END, compiled, randomise, tiny
from tests.inference.test_running import OPTIONS, asked, driven, made, shown
from transduct.blocks.embeddings import narrowed
from transduct.decoding.filters import FixedLength, Forbid, Prefix
from transduct.decoding.sampling import Sampling
from transduct.decoding.shortlist import Narrowed
from transduct.errors import NotFinite
from transduct.inference import engine, running
from transduct.inference.batches import encode, flat
from transduct.inference.engine import (
    Cohorts,
    captures,
    generate,
    on_own_threads,
    running_batch,
    score,
)
from transduct.inference.running import Running
from transduct.inference.settings import PAGE, DecodingConfig, Sentence
from transduct.kernels import cpu
from transduct.kernels.threads import CORES
from transduct.predictors.model_directory import prepare

SOURCES = [[5, 6, END], [7, END], [END], [3, 4, 5, 6, 7, END], [8, 9, END]]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    return tiny(tie="none")


@pytest.mark.parametrize(
    "config",
    [
        DecodingConfig(beam=3),
        DecodingConfig(beam=2, temperature=1.0, seed=4),
        DecodingConfig(beam=3, captured=True),
    ],
)
def test_the_budget_changes_nothing(model, config):
    def found(budget):
        settings = DecodingConfig(**{**vars(config), "batch_tokens": budget})
        hypotheses = generate(model, SOURCES, [8, 3, 8, 8, 5], settings, BEGIN, END, [0, BEGIN])
        return [[h.tokens for h in each] for each in hypotheses]

    whole = found(1000)
    assert found(1) == found(6) == whole
    assert all(len(each) == config.beam for each in whole)
    assert all(
        len(tokens) < 8 and not {0, BEGIN, END} & set(tokens) for each in whole for tokens in each
    )
    assert max(len(tokens) for tokens in whole[1]) < 3


@pytest.mark.parametrize("budget", [1, 1000])
def test_a_score_is_the_sum_over_the_target_and_its_end(model, budget):
    targets = [[3], [], [4, 5, 6], [7, 7], [8]]
    found = score(model, SOURCES, targets, BEGIN, END, budget)
    for source, target, value in zip(SOURCES, targets, found, strict=True):
        memory, segments = encode(model, [source], torch.device("cpu"))
        inputs, of_target = flat([[BEGIN, *target]], torch.device("cpu"))
        steps = model.logits(model.decode(inputs, of_target, memory, segments)).log_softmax(-1)
        expected = sum(
            float(step[token].detach()) for step, token in zip(steps, [*target, END], strict=True)
        )
        assert value == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "config", [DecodingConfig(beam=3), DecodingConfig(beam=2, temperature=1.0, seed=4)]
)
def test_workers_change_nothing(model, config):
    sources, limits = SOURCES * 6, [8, 3, 8, 8, 5] * 6

    def found(workers, budget):
        settings = DecodingConfig(**{**vars(config), "batch_tokens": budget, "workers": workers})
        hypotheses = generate(model, sources, limits, settings, BEGIN, END, [0, BEGIN])
        return [[h.tokens for h in each] for each in hypotheses]

    assert found(1, 0) == found(3, 0) == found(2, 6)


def test_an_output_repeats_nothing_where_that_is_asked_for(model):
    for size, repeats in ((0, True), (2, False)):
        found = generate(
            model, SOURCES, [12] * len(SOURCES), DecodingConfig(beam=2, no_repeat=size), BEGIN, END
        )
        pairs = [list(pairwise(h.tokens)) for hypotheses in found for h in hypotheses]
        assert any(len(each) > len(set(each)) for each in pairs) == repeats


@pytest.mark.parametrize("kind", ["ours", "bfloat16", "no library", "not on the CPU"])
def test_where_products_are_ours_nothing_else_is_shared(monkeypatch, kind):
    before = torch.get_num_threads()
    model = torch.nn.Linear(2, 2, device="meta" if kind == "not on the CPU" else "cpu")
    if kind == "bfloat16":
        model.bfloat16()
    monkeypatch.setattr(cpu, "library", lambda: None if kind == "no library" else object())
    try:
        torch.set_num_threads(2)
        with on_own_threads(model):
            assert (torch.get_num_threads(), CORES.sharing) == (1 if kind == "ours" else 2, 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@compiled
def test_a_search_shares_products_alone(model):
    seen, before = set(), torch.get_num_threads()

    def watch(numbers):
        seen.add((torch.get_num_threads(), CORES.sharing))
        return Forbid([])

    try:
        torch.set_num_threads(2)
        generate(model, SOURCES, [4] * 5, DecodingConfig(beam=1), BEGIN, END, constrain=watch)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == {(1, 2)}


def prefix(free):
    return lambda numbers: Prefix([[3]] * len(numbers), free=free)


# What a call asks for, and what of it captured search does not take.
ASKED = [
    ({}, {}, ""),
    ({"temperature": 1.0}, {}, ""),
    ({"no_repeat": 3}, {}, ""),
    ({}, {"constrain": lambda numbers: FixedLength(END, [3] * len(numbers))}, ""),
    ({}, {"constrain": prefix(0)}, ""),
    ({}, {"constrain": prefix(1)}, "prefix that costs nothing, such as a language's"),
    ({}, {"constrain": lambda numbers: Forbid([])}, "Forbid"),
    ({}, {"narrow": lambda sources: None}, "shortlist"),
    ({"shortlist": True}, {}, "shortlist"),
    ({"constraint": "tree"}, {}, "constraint"),
    ({"at_limit": "free"}, {}, "at_limit"),
    ({"length_rule": "power"}, {}, "length_rule"),
    ({"stopping": "early"}, {}, "stopping"),
]


@pytest.mark.parametrize("changes, given, problem", ASKED)
def test_one_question_says_whether_a_search_is_captured(
    monkeypatch, model, changes, given, problem
):
    config = DecodingConfig(captured=True, **changes)
    asked = [Sentence([3, END], 8, config, BEGIN, END, **given)]
    if problem:
        message = f"captured search does not support {problem}; leave captured out"
        with pytest.raises(ValueError, match=f"^{message}$"):
            generate(model, SOURCES, [8] * 5, config, BEGIN, END, **given)
    else:
        assert captures(model, config, asked)
    auto = replace(config, captured="auto")
    assert not captures(model, auto, asked), "on a CPU"
    assert not captures(model, replace(config, captured=False), asked)
    monkeypatch.setattr(engine, "device_of", lambda model: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert captures(model, auto, asked) == (not problem)
    monkeypatch.setattr(engine, "FAILED", {model})
    assert not captures(model, auto, asked)


def test_outputs_may_begin_after_different_tokens_captured_or_not(model):
    begin = [1, 3, 4, 5, 6]
    found = [
        generate(model, SOURCES, [8] * 5, DecodingConfig(beam=2, captured=asked), begin, END)
        for asked in (True, False)
    ]
    assert [[h.tokens for h in each] for each in found[0]] == [
        [h.tokens for h in each] for each in found[1]
    ]
    assert found[1] != generate(model, SOURCES, [8] * 5, DecodingConfig(beam=2), BEGIN, END)


def test_nothing_gives_nothing(model):
    assert generate(model, [], [], DecodingConfig(), BEGIN, END) == []
    assert generate(model, [], [], DecodingConfig(captured=True), BEGIN, END) == []
    assert score(model, [], [], BEGIN, END, 5) == []


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"temperature": 1.0, "beam": 2}])
def test_a_model_whose_numbers_are_not_finite_is_refused(options):
    model = tiny()
    with torch.no_grad():
        model.output_table.fill_(float("nan"))
    with pytest.raises(
        NotFinite,
        match=r"the model's numbers are not finite \(NaN or infinite\); train it again, at",
    ):
        generate(model, [[3, END]], [5], DecodingConfig(**options), BEGIN, END)


def test_a_score_by_a_model_whose_numbers_are_not_finite_is_refused():
    model = tiny()
    with torch.no_grad():
        model.output_table.fill_(float("nan"))
    with pytest.raises(NotFinite):
        score(model, [[3, END]], [[4]], BEGIN, END, 100)


@pytest.mark.parametrize(
    "options, is_greedy",
    [({}, False), ({"top_k": 1}, True), ({"top_p": 1e-6}, True), ({"temperature": 1e-3}, True)],
)
def test_samples_come_from_the_requested_distribution(model, options, is_greedy):
    greedy, drawn = (
        [
            h.tokens
            for [h] in generate(
                model, SOURCES, [8] * 5, DecodingConfig(beam=1, **given), BEGIN, END
            )
        ]
        for given in ({}, {"temperature": 3.0, **options})
    )
    assert (drawn == greedy) == is_greedy


def test_samples_depend_on_the_begin_token():
    """Most of all those of a prompt of one token, before which there is nothing."""
    config, model = DecodingConfig(beam=40, temperature=1.0), tiny()
    with torch.no_grad():
        model.output_table[5] = model.output_table[4]  # to the model they are the same
    first, other = (generate(model, [[3, END]], [3], config, begin, END) for begin in (4, 5))
    same = [generate(model, [[3, END]], [3], config, [begin], END) for begin in (4, 5)]
    assert same == [first, other]
    draws = [
        Sampling(1, [3], begin, END, [[3, END, begin]], device="cpu").generators[0].random()
        for begin in (4, 5)
    ]
    assert draws[0] != draws[1]
    assert [h.tokens for h in first[0]] != [h.tokens for h in other[0]]


def test_the_end_of_an_output_of_fixed_length_comes_free_whatever_is_forbidden():
    model, sources = randomise(tiny(), spread=0.4), [[3, 4, END]]
    config = DecodingConfig(beam=2)

    def fixed(numbers):
        return FixedLength(END, [4 for _ in numbers for _ in range(2)])

    for found in generate(model, sources, [4], config, BEGIN, END, [0, BEGIN, 5, 6, 7], fixed)[0]:
        forced = score(model, sources, [found.tokens], BEGIN, END, 100)[0]
        memory, segments = encode(model, sources, torch.device("cpu"))
        inputs, of_inputs = flat([[BEGIN, *found.tokens]], torch.device("cpu"))
        with torch.no_grad():
            last = model.logits(model.decode(inputs, of_inputs, memory, segments))[-1].log_softmax(
                -1
            )
        assert found.score == pytest.approx(forced - float(last[END]), abs=1e-5)


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
    assert (batch.rows, batch.tokens, batch.used, batch.all) == (0, 0, 0, {})
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
    assert not batch.takes(wide)
    assert Cohorts(model).takes(wide), "or it would never be searched for"


@pytest.mark.parametrize(
    "name, numbers", [("transformer", 2 * 4 * 32), ("gpt", 2 * 4 * 8), ("rnn general", 1)]
)
def test_what_may_need_more_memory_than_there_is_waits(name, numbers, monkeypatch):
    model, _ = ready(name)
    one, other = (Sentence([n, END], 20, DecodingConfig(beam=2), BEGIN, END) for n in (3, 4))
    assert one.pages == 4
    monkeypatch.setattr(running, "MEMORY", 8 * PAGE * numbers * (4 if numbers > 1 else 1))
    batch = Cohorts(model)
    assert batch.pages == 8
    assert batch.takes(one, 4)
    assert not batch.takes(one, 5)
    batch.join([one, other])
    assert not batch.takes(replace(one, limit=1))
    batch.leave(other)
    assert batch.takes(replace(one))
    large = replace(one, limit=800)
    assert batch.takes(large), "or it would never be searched for, or nobody beside it"
    assert not batch.takes(large, 1)
    monkeypatch.setattr(engine, "device_of", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 8 * running.MEMORY))
    assert Cohorts(model).pages == 16, "a quarter of a GPU's memory"


@compiled
@pytest.mark.parametrize("rows, expected", [(15, (1, 1)), (16, (1, 2))])
def test_few_rows_of_cohorts_take_one_thread(monkeypatch, rows, expected):
    (model, _), seen, before = ready("rnn general"), set(), torch.get_num_threads()
    step = model.step

    def watched(*given):
        seen.add((torch.get_num_threads(), CORES.sharing))
        return step(*given)

    monkeypatch.setattr(model, "step", watched)
    batch, one = Cohorts(model), Sentence([3, END], 9, DecodingConfig(beam=rows), BEGIN, END)
    torch.set_num_threads(2)
    try:
        batch.join([one])
        batch.step()
        assert seen == {expected}
        assert (torch.get_num_threads(), CORES.sharing) == (2, 2)
    finally:
        torch.set_num_threads(before)


@compiled
def test_the_kernels_take_what_they_can():
    one = Sentence([3, END], 5, DecodingConfig(beam=2), BEGIN, END)
    assert running_batch(made(), one) is Running
    assert running_batch(tiny(), one) is Cohorts
    assert running_batch(made(), replace(one, constrain=exact)) is Cohorts
