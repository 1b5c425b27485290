"""Requests are answered together, in order and fairly; the queue is bounded; an error reaches only
its input or its request; shorter requests interrupt, and cancelled ones end."""

import asyncio
import gc
import itertools
import threading
import time
import weakref

import pytest
import torch

from tests.helpers import compiled
from tests.predictors.test_translation import make
from transduct.decoding.search import pause
from transduct.errors import TransductError
from transduct.inference import engine, running
from transduct.inference.engine import Cohorts
from transduct.inference.running import Running
from transduct.predictors.model_directory import prepare
from transduct.serving import batcher as batcher_module
from transduct.serving import jobs, scheduler
from transduct.serving.batcher import AT_ONCE, LONGEST_ADVICE, Batcher, Full
from transduct.serving.jobs import Job
from transduct.serving.scheduler import MUCH


class Work:
    """Doubles texts, and keeps what it was given; waits for `gate` where there is one."""

    def __init__(self, gate=None):
        self.slices, self.gate = [], gate

    def __call__(self, inputs):
        if self.gate is not None:
            assert self.gate.wait(30)
        self.slices.append(list(inputs))
        if "broken" in inputs:
            raise TransductError("a text is broken")
        for place, name in enumerate(inputs):
            if name in ("input", "pair", "prefix"):
                raise TransductError("99 tokens; shorten it", input=place, unit=name)
        if "bug" in inputs:
            raise ZeroDivisionError("ours")
        if "panic" in inputs:
            raise BaseException("a library in Rust panics")
        return [text * 2 for text in inputs if text != "lost"] + ["more"] * inputs.count("more")

    def job(self, texts, kind="k", costs=None):
        return Job.of_inputs(kind, texts, costs or [len(text) for text in texts], self)


async def settled(seen=lambda: True):
    """Let everything that can go on without the work's answer do so."""
    until = time.perf_counter() + 30
    for _ in range(50):
        await asyncio.sleep(0)
    while not seen() and time.perf_counter() < until:
        await asyncio.sleep(0.001)
    assert seen()


def together(most, ask, watch=lambda *_: None, budget=10_000):
    """Run `ask(batcher)` beside the batcher's own thread."""

    async def main():
        batcher = Batcher(most, budget, watch)
        running = asyncio.create_task(batcher.run())
        try:
            return await asyncio.wait_for(ask(batcher), 30)
        finally:
            running.cancel()

    return asyncio.run(main())


def held(work, ask, most=1000, budget=10_000, watch=lambda *_: None, opens=True):
    """`ask(batcher)` while the thread works on one text, "first", until the work's gate opens: here
    when all has been asked, or else in `ask` or after it."""

    async def after(batcher):
        first = asyncio.create_task(batcher.ask(work.job(["first"], "of its own"), "nobody"))
        await settled(lambda: batcher.waiting == 0 and batcher._queue.tickets)
        asked = asyncio.create_task(ask(batcher))
        await settled()
        if not opens:
            await asyncio.wait([asked])
        work.gate.set()
        await first
        return await asked

    work.gate = threading.Event()
    found = together(most, after, watch, budget)
    assert work.slices.pop(0) == ["first"]
    return found


def test_each_gets_its_own_answers_and_those_who_ask_the_same_are_answered_at_once():
    work = Work()

    async def ask(batcher):
        questions = [["a", "b"], ["c"], ["d", "e", "f"], []]
        return await asyncio.gather(
            *(batcher.ask(work.job(each), "me") for each in questions if each)
        )

    assert held(work, ask, 10) == [["aa", "bb"], ["cc"], ["dd", "ee", "ff"]]
    [inputs] = work.slices
    assert sorted(inputs) == ["a", "b", "c", "d", "e", "f"]


def test_a_request_of_nothing_is_answered_without_work():
    assert together(10, lambda batcher: batcher.ask(Work().job([], costs=[]), "me")) == []


def test_what_is_of_another_kind_is_answered_apart():
    work = Work()

    async def ask(batcher):
        asked = [("x", "a"), ("y", "b"), ("x", "c")]
        await asyncio.gather(*(batcher.ask(work.job([text], kind), "me") for kind, text in asked))

    held(work, ask)
    assert work.slices == [["a", "c"], ["b"]]


def test_a_large_request_lets_small_ones_pass():
    work, order = Work(), []

    async def one(batcher, name, inputs):
        await batcher.ask(work.job(inputs), name)
        order.append(name)

    async def ask(batcher):
        await asyncio.gather(
            one(batcher, "large", ["x"] * (3 * AT_ONCE)), one(batcher, "small", ["y"])
        )

    held(work, ask)
    assert order == ["small", "large"]
    assert [len(inputs) for inputs in work.slices] == [AT_ONCE, AT_ONCE, AT_ONCE, 1]
    assert "y" in work.slices[0]


def test_what_is_dear_makes_short_slices():
    work = Work()

    async def ask(batcher):
        return await batcher.ask(work.job(["a", "b", "c", "d"], costs=[60, 50, 50, 200]), "me")

    held(work, ask, budget=100)
    assert work.slices == [["a"], ["b", "c"], ["d"]]


def test_pieces_are_joined_to_answers():
    work = Work()
    job = Job("k", 2, ["a", "b", "c"], [1, 1, 1], [0, 0, 1], work, lambda found: ["".join(found)])
    assert together(10, lambda batcher: batcher.ask(job, "me")) == ["aabbcc"]

    def wrong(_):
        raise TransductError("cannot be joined")

    async def ask(batcher):
        with pytest.raises(TransductError, match="cannot be joined"):
            await batcher.ask(Job("k", 1, ["a"], [1], [0], work, wrong), "me")
        return await batcher.ask(work.job(["b"]), "me")

    assert together(10, ask) == ["bb"]


def test_what_is_wrong_with_one_request_is_told_to_it_alone():
    work = Work()

    async def ask(batcher):
        questions = [["a"], ["broken"], ["b"], ["bug"], ["panic"]]
        asked = (batcher.ask(work.job(each), "me") for each in questions)
        found = await asyncio.gather(*asked, return_exceptions=True)
        return found, await batcher.ask(work.job(["later"]), "me")

    (first, broken, second, bug, panic), later = held(work, ask)
    assert (first, second, later) == (["aa"], ["bb"], ["laterlater"])
    assert isinstance(broken, TransductError)
    assert isinstance(bug, ZeroDivisionError)
    assert str(panic) == "a library in Rust panics"


@pytest.mark.parametrize("name", ["input", "pair", "prefix"])
def test_an_input_that_is_wrong_gets_its_error_and_the_others_their_answers(name):
    work = Work()

    async def ask(batcher):
        texts = ["a"] * (2 * AT_ONCE + 5)
        texts[-2] = texts[3] = name
        asked = [batcher.ask(work.job(each), "me") for each in (["b"], texts, ["c", name])]
        return await asyncio.gather(*asked)

    good, late, early = held(work, ask)
    assert good == ["bb"]
    assert [str(each) for each in late if each != "aa"] == [
        f"{name} {number}: 99 tokens; shorten it" for number in (4, 2 * AT_ONCE + 4)
    ]
    assert isinstance(late[3], TransductError)
    assert early[0] == "cc"
    assert str(early[1]) == f"{name} 2: 99 tokens; shorten it"


def test_whose_fault_it_is_is_found_by_halves_and_for_none_who_has_gone():
    work = Work()

    async def ask(batcher):
        texts = ["broken", *(str(number) * 6 for number in range(8))]
        asked = [asyncio.create_task(batcher.ask(work.job([text]), "me")) for text in texts]
        await settled()
        asked.pop().cancel()
        await settled()
        work.gate.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    broken, *others = held(work, ask, opens=False)
    assert isinstance(broken, TransductError)
    assert others == [[str(number) * 12] for number in range(7)]
    assert [len(inputs) for inputs in work.slices] == [8, 4, 2, 1, 1, 2, 4]


@pytest.mark.parametrize("text, outputs", [("lost", 0), ("more", 2)])
def test_an_answer_too_few_or_too_many_is_a_mistake_of_the_work_and_not_the_end(text, outputs):
    work = Work()

    async def ask(batcher):
        with pytest.raises(RuntimeError, match=f"found {outputs} outputs for 1 inputs"):
            await batcher.ask(work.job([text]), "me")
        return await batcher.ask(work.job(["a"]), "me")

    assert together(10, ask) == ["aa"]


def test_the_rest_of_a_request_that_failed_is_not_worked_for():
    work = Work()

    async def ask(batcher):
        with pytest.raises(TransductError, match="a text is broken"):
            await batcher.ask(work.job(["broken"] + ["x"] * (2 * AT_ONCE), costs=[1] * 129), "me")
        return batcher.waiting

    assert together(1000, ask) == 0
    assert len(work.slices) == 1


def test_no_more_waits_than_may():
    work = Work()

    async def ask(batcher):
        rest = asyncio.create_task(batcher.ask(work.job(["b"] * 3), "me"))
        await settled()
        assert batcher.waiting == 3
        batcher._pace = 0.3  # seconds for each of the 8 letters that are here
        with pytest.raises(Full, match="too much is waiting; come back in 3 s") as full:
            await batcher.ask(work.job(["c"]), "me")
        work.gate.set()
        await rest
        return full.value.seconds, await batcher.ask(work.job(["c"]), "me")

    assert held(work, ask, 3, opens=False) == (3, ["cc"])


def test_large_requests_leave_places_to_small_ones():
    work = Work()

    async def ask(batcher):
        rest = [asyncio.create_task(batcher.ask(work.job(["b"] * 100), "large"))]
        await settled()
        with pytest.raises(Full):
            await batcher.ask(work.job(["b"] * 2), "large")
        rest += [asyncio.create_task(batcher.ask(work.job(["c"]), "small")) for _ in range(10)]
        await settled()
        assert batcher.waiting == 110
        with pytest.raises(Full):
            await batcher.ask(work.job(["c"]), "small")
        work.gate.set()
        await asyncio.gather(*rest)

    held(work, ask, 100, opens=False)


def test_who_stops_waiting_is_not_worked_for():
    work = Work()

    async def ask(batcher):
        gone = asyncio.create_task(batcher.ask(work.job(["gone"]), "me"))
        await settled()
        assert batcher.waiting == 1
        gone.cancel()
        await asyncio.wait([gone])
        assert batcher.waiting == 0

    held(work, ask, opens=False)
    assert work.slices == []


def test_who_leaves_while_being_worked_for_harms_nobody():
    gate = threading.Event()
    work = Work(gate)

    async def ask(batcher):
        asked = [
            asyncio.create_task(batcher.ask(work.job([text]), "me")) for text in ("broken", "b")
        ]
        await settled()
        asked[0].cancel()
        await asyncio.wait(asked[:1])
        gate.set()
        return await asked[1]

    assert together(10, ask) == ["bb"]


class Steps:
    """Work of many steps with a pause before each, as a search; keeps what it was given last."""

    def __init__(self, count):
        self.count, self.taken, self.order, self.running = count, 0, [], threading.Event()

    def __call__(self, inputs):
        for _ in range(self.count):
            pause()
            self.taken += 1
            self.running.set()
            time.sleep(0.001)
        self.order.append(inputs[0])
        return inputs

    def job(self, text, cost):
        return Job.of_inputs(str(cost), [text], [cost], self)


def test_a_much_shorter_request_is_answered_in_between():
    long, short, middle = Steps(1000), Steps(1), Steps(1)

    async def ask(batcher):
        waits = asyncio.create_task(batcher.ask(long.job("long", 1000), "me"))
        await settled(long.running.is_set)
        third = asyncio.create_task(batcher.ask(middle.job("middle", 500), "you"))
        assert await batcher.ask(short.job("short", 10), "me") == ["short"]
        assert not waits.done()
        assert not third.done(), "what is hardly shorter has to wait"
        assert long.taken < 900
        return await waits, await third

    assert together(10, ask) == (["long"], ["middle"])


def test_what_nobody_waits_for_ends_at_the_next_pause():
    long, other = Steps(10**6), Steps(1)

    async def ask(batcher):
        gone = asyncio.create_task(batcher.ask(long.job("long", 1000), "me"))
        await settled(long.running.is_set)
        gone.cancel()
        return await batcher.ask(other.job("other", 900), "you")

    assert together(10, ask) == ["other"]
    assert long.taken < 10**4
    assert long.order == []


def test_it_stops_at_the_next_pause_too():
    long = Steps(10**6)

    async def ask(batcher):
        gone = asyncio.create_task(batcher.ask(long.job("long", 1000), "me"))
        await settled(long.running.is_set)
        return gone

    together(10, ask)
    taken = long.taken
    assert taken < 10**4


def test_advice_is_the_pace_times_what_is_here():
    seen, work = [], Work()

    async def ask(batcher):
        asked = asyncio.create_task(batcher.ask(work.job(["a"] * 2 * AT_ONCE), "me"))
        await settled()
        found = []
        for pace in (0.25, 1e6, 1e-6):
            batcher._pace = pace
            found.append(batcher.advice)
        batcher._pace = 0.5
        work.gate.set()
        await asked
        await settled(lambda: len(seen) == 3)
        return found, batcher._pace

    found, pace = held(work, ask, watch=lambda *told: seen.append(told), opens=False)
    assert found == [(2 * AT_ONCE + len("first")) // 4 + 1, LONGEST_ADVICE, 1]
    assert 0.3 < pace != 0.5
    assert [count for count, _ in seen] == [1, AT_ONCE, AT_ONCE]
    assert all(seconds >= 0 for _, seconds in seen)


@pytest.fixture(scope="module")
def translator():
    made = make(max_length=40)
    prepare(made.model, torch.device("cpu"), torch.float32)
    return made


def options_of(number):
    return [{"beam": 1}, {"beam": 4}, {"beam": 2, "temperature": 0.7}, {"no_repeat": 2}][number % 4]


@compiled
def test_sentences_of_any_options_that_come_and_go_get_what_translate_finds(translator):
    texts = [" ".join("abcd"[(n * k) % 4] for k in range(1 + n % 9)) for n in range(80)]

    async def one(batcher, number):
        await asyncio.sleep(0.001 * (number % 17))
        given = jobs.translation(translator, [texts[number]], None, options_of(number), lambda x: x)
        return await batcher.ask(given, f"client {number % 3}")

    async def ask(batcher):
        asked = [asyncio.create_task(one(batcher, number)) for number in range(80)]
        await asyncio.sleep(0.01)
        for task in asked[::10]:
            task.cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        await settled(lambda: not batcher._running)
        assert [type(each) for each in batcher._every()] == [Running, Cohorts]
        for batch in batcher._every():
            assert (batch.rows, batch.tokens, batch.all, batch.used) == (0, 0, {}, 0)
        return found

    for number, found in enumerate(together(1000, ask)):
        if number % 10:
            assert found == translator.translate([texts[number]], **options_of(number))


@compiled
@pytest.mark.parametrize("options", [{"beam": 2}, {"no_repeat": 2}], ids=["running", "cohorts"])
def test_a_model_that_was_worked_with_can_leave_the_memory(options):
    """Else a server that unloads models grows with each."""

    async def ask(batcher):
        made = make(max_length=40)
        prepare(made.model, torch.device("cpu"), torch.float32)
        gone = weakref.ref(made.model)
        await batcher.ask(jobs.translation(made, ["a b"], None, options, str), "me")
        del made
        await settled(lambda: gc.collect() >= 0 and gone() is None)
        return batcher._every()

    assert together(10, ask) == []


def by_hand(ask, budget=10_000):
    """`ask(batcher, turn)`, where each `turn` is what the thread does between two looks at what has
    changed."""

    async def main():
        batcher = Batcher(1000, budget, lambda *_: None)

        async def turn():
            await settled()
            batcher._advance(batcher._next())
            await settled()

        return await ask(batcher, turn)

    return asyncio.run(main())


@compiled
@pytest.mark.parametrize("options", [{"beam": 2}, {"no_repeat": 2}], ids=["running", "cohorts"])
def test_who_stops_waiting_takes_no_step_more(translator, monkeypatch, options):
    monkeypatch.setattr(running, "STEPS", 1)

    async def ask(batcher, turn):
        gone, stays = (
            asyncio.create_task(
                batcher.ask(jobs.translation(translator, [text], None, options, str), "me")
            )
            for text in ("a b c d", "d c b a")
        )
        await turn()
        [batch] = batcher._every()
        assert (len(batch.all), batch.steps) == (2, 1)
        gone.cancel()
        await turn()
        assert (len(batch.all), batch.steps) == (1, 2)
        [one] = batch.all
        assert (batch.used, batch.rows) == (one.pages, one.beam)
        stays.cancel()

    by_hand(ask)


@compiled
def test_who_comes_is_read_in_runs_of_bounded_size_and_steps_are_taken_in_between(
    translator, monkeypatch
):
    done = []

    class Watched(Running):
        def join(self, sentences):
            done.append(len(sentences))
            super().join(sentences)

        def step(self, most, only):
            done.append("step")
            return super().step(most, only)

    monkeypatch.setattr(running, "STEPS", 1)
    monkeypatch.setattr(engine, "Running", Watched)
    monkeypatch.setattr("transduct.serving.batcher.ENCODED", 100)

    async def ask(batcher, turn):
        def ask(count):
            job = jobs.translation(translator, ["a b c d"] * count, None, {"beam": 1}, str)
            return job.costs[0], asyncio.create_task(batcher.ask(job, "me"))

        _, first = ask(1)
        await turn()
        cost, rest = ask(40)
        while not (first.done() and rest.done()):
            await turn()
        return 100 // cost

    most = by_hand(ask)
    assert done[:2] == [1, "step"]
    joined = [each for each in done if each != "step"]
    assert joined[1:-1] == [most] * (len(joined) - 2)
    assert sum(joined) == 41
    assert all("step" in pair for pair in itertools.pairwise(done))


@compiled
def test_who_comes_waits_for_one_step_for_every_eight_rows(translator):
    async def ask(batcher, turn):
        def asked(count):
            texts = ["a b c d", "d c b a"] * (count // 2)
            job = jobs.translation(translator, texts, None, {"beam": 1}, str)
            return asyncio.create_task(batcher.ask(job, "me"))

        first = asked(16)
        await turn()
        [batch] = batcher._every()
        assert (len(batch.all), batch.steps) == (16, 2)
        second = asked(8)
        await turn()
        assert len(batch.all) == 24
        assert batch.steps <= 2 + 3
        while not (first.done() and second.done()):
            await turn()

    by_hand(ask)


@compiled
@pytest.mark.parametrize("encoded, beam, joins", [(90, 4, 1), (200, 4, 0), (200, 8, 1)])
def test_who_is_much_cheaper_joins_a_batch_that_one_fills(
    translator, monkeypatch, encoded, beam, joins
):
    monkeypatch.setattr(running, "STEPS", 1)
    monkeypatch.setattr("transduct.serving.batcher.ENCODED", encoded)

    async def ask(batcher, turn):
        def asked(text, client, **options):
            job = jobs.translation(translator, [text], None, options, str)
            return asyncio.create_task(batcher.ask(job, client))

        dear = asked("a b c d a b c d", "one", beam=beam)
        await turn()
        others = [asked("a b c", "two", beam=8), asked("a b", "three", beam=1)]
        await turn()
        [batch] = batcher._every()
        expected = [(beam, 9), (1, 3)][: 1 + joins]
        assert [(one.beam, len(one.source)) for one in batch.all] == expected
        assert not dear.done()
        while not (dear.done() and others[0].done()):
            await turn()

    by_hand(ask, budget=90)


@compiled
@pytest.mark.parametrize("options", [{}, {"no_repeat": 9}], ids=["running", "cohorts"])
@pytest.mark.parametrize("much", [MUCH, 10_000], ids=["ours", "the control: all are alike"])
def test_a_small_request_joins_a_large_one_at_once_and_takes_steps_alone(
    translator, monkeypatch, options, much
):
    """The large one has half of the time."""
    monkeypatch.setattr(running, "STEPS", 1)
    for module in (batcher_module, scheduler):
        monkeypatch.setattr(module, "MUCH", much)
    now = [0.0]
    monkeypatch.setattr(batcher_module, "perf_counter", lambda: now[0])

    async def ask(batcher, turn):
        def asked(texts):
            job = jobs.translation(translator, texts, None, {"beam": 1, **options}, str)
            return asyncio.create_task(batcher.ask(job, "me"))

        stepped = []
        for kind in (Running, Cohorts):

            def step(batch, most=1, only=None, step=kind.step):
                stepped.append(len(batch.all if only is None else only))
                now[0] += stepped[-1]  # as long as it has rows
                return step(batch, most, only)

            monkeypatch.setattr(kind, "step", step)
        large = asked(["a b c d"] * 40)
        await turn()
        small = asked(["d c b a"])
        while not small.done():
            await turn()
        turns = [*stepped]
        assert large.done() == (much != MUCH)
        while not large.done():
            await turn()
        return turns

    turns = by_hand(ask)
    if much == MUCH:
        assert turns[:2] == [40, 1]
        assert {*turns} == {40, 1}
        assert sum(turns[1:]) <= 40, "as long as the step before"
    else:
        assert turns[:2] == [40, 40]


@compiled
def test_however_many_small_requests_come_a_large_one_has_half_of_the_time(translator, monkeypatch):
    monkeypatch.setattr(running, "STEPS", 1)
    now, spent = [0.0], {"all": 0, "only": 0}
    monkeypatch.setattr(batcher_module, "perf_counter", lambda: now[0])

    def step(batch, most=1, only=None, step=Running.step):
        rows = len(batch.all if only is None else only)
        spent["all" if only is None else "only"] += rows
        now[0] += rows
        return step(batch, most, only)

    monkeypatch.setattr(Running, "step", step)

    async def ask(batcher, turn):
        def asked(texts, client):
            job = jobs.translation(translator, texts, None, {"beam": 1}, str)
            return asyncio.create_task(batcher.ask(job, client))

        large, number = asked(["a b c d"] * 40, "large"), 0
        small = []
        await turn()
        while not large.done():
            small = [each for each in small if not each.done()]
            while len(small) < 20:
                number += 1
                small.append(asked(["d c b a"], f"small {number}"))
            await turn()
        for each in small:
            each.cancel()

    by_hand(ask)
    assert 0 < spent["only"] <= spent["all"] + 20


@compiled
def test_an_answer_can_be_followed_token_by_token(translator):
    parts = []

    async def ask(batcher):
        job = jobs.translation(translator, ["a b c d"], None, {"beam": 1}, lambda found: found)
        found = await batcher.ask(job, "me", lambda piece, tokens: parts.append((piece, tokens)))
        return found, batcher.pages

    [found], pages = together(10, ask)
    assert pages == 0
    assert {piece for piece, _ in parts} == {0}
    assert [token for _, tokens in parts for token in tokens] == found.tokens
    assert len(parts) == len(found.tokens)


@compiled
@pytest.mark.parametrize("method", ["join", "step"])
def test_where_a_running_batch_fails_its_sentences_are_worked_on_one_by_one(
    translator, monkeypatch, method
):
    def fails(*_):
        raise IndexError("a token is not in the vocabulary")

    async def ask(batcher):
        asked = [
            jobs.translation(translator, [text], None, {"beam": 2}, lambda found: found)
            for text in ("a", "b c")
        ]
        return await asyncio.gather(*(batcher.ask(job, "me") for job in asked))

    broken = type("Broken", (engine.Running,), {method: fails})
    monkeypatch.setattr(engine, "Running", broken)

    found = [each for [each] in together(10, ask)]
    assert found == translator.translate(["a", "b c"], beam=2)
