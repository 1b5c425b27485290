"""Requests are answered together, in order and fairly; the queue is bounded; an error reaches only
its request."""

import asyncio
import threading

import pytest

from transduct.errors import TransductError
from transduct.serving.batcher import AT_ONCE, DEAREST, LONGEST_ADVICE, Batcher, Full


class Work:
    """Doubles texts, and keeps what it was given; waits for `gate` where there is one."""

    def __init__(self, gate=None):
        self.slices, self.gate = [], gate

    def __call__(self, verb, inputs, options):
        if self.gate is not None:
            assert self.gate.wait(30)
        self.slices.append((verb, list(inputs), options))
        if "broken" in inputs:
            raise TransductError("a text is broken")
        for name in {"input", "pair", "prefix"}.intersection(inputs):
            raise TransductError(f"{name} {inputs.index(name) + 1}: 99 tokens; shorten it")
        if "bug" in inputs:
            raise ZeroDivisionError("ours")
        return [text * 2 for text in inputs if text != "lost"] + ["more"] * inputs.count("more")


async def settled():
    """Let everything that can go on without the work's answer do so."""
    for _ in range(50):
        await asyncio.sleep(0)


def together(work, most, ask, watch=lambda *_: None):
    """Run `ask(batcher)` beside the batcher's own loop."""

    async def main():
        batcher = Batcher(
            work, most, lambda verb, text, options: len(text) * options.get("beam", 1), watch
        )
        running = asyncio.create_task(batcher.run())
        try:
            return await asyncio.wait_for(ask(batcher), 30)
        finally:
            running.cancel()

    return asyncio.run(main())


def test_each_gets_its_own_answers_and_those_who_ask_the_same_are_answered_at_once():
    work = Work()

    async def ask(batcher):
        questions = [["a", "b"], ["c"], ["d", "e", "f"], []]
        return await asyncio.gather(*(batcher.ask("predict", each, {}) for each in questions))

    assert together(work, 10, ask) == [["aa", "bb"], ["cc"], ["dd", "ee", "ff"], []]
    assert work.slices == [("predict", ["a", "b", "c", "d", "e", "f"], {})]


def test_other_verbs_and_options_are_answered_apart():
    work = Work()

    async def ask(batcher):
        asked = [
            ("predict", {}),
            ("predict", {"beam": 1}),
            ("score", {}),
            ("predict", {}),
            ("predict", {"beam": 2}),
        ]
        await asyncio.gather(*(batcher.ask(verb, ["a"], options) for verb, options in asked))

    together(work, 10, ask)
    assert work.slices == [
        ("predict", ["a", "a"], {}),
        ("predict", ["a"], {"beam": 1}),
        ("score", ["a"], {}),
        ("predict", ["a"], {"beam": 2}),
    ]


def test_a_large_request_lets_small_ones_pass():
    work, order = Work(), []

    async def one(batcher, name, inputs):
        await batcher.ask("predict", inputs, {})
        order.append(name)

    async def ask(batcher):
        await asyncio.gather(
            one(batcher, "large", ["x"] * (3 * AT_ONCE)), one(batcher, "small", ["y"])
        )

    together(work, 1000, ask)
    assert order == ["small", "large"]
    assert [len(inputs) for _, inputs, _ in work.slices] == [AT_ONCE, AT_ONCE, AT_ONCE, 1]
    assert "y" in work.slices[1][1]  # as soon as the first slice was done


def test_what_is_dear_makes_short_slices():
    work, texts = Work(), ["a" * DEAREST, "b" * (2 * DEAREST), "c", "d" * (DEAREST - 1), "e"]
    together(work, 10, lambda batcher: batcher.ask("predict", texts, {}))
    assert [[text[0] for text in inputs] for _, inputs, _ in work.slices] == [
        ["a"],
        ["b"],
        ["c", "d"],
        ["e"],
    ]
    work, texts = Work(), ["a" * (DEAREST // 4)] * 4
    together(work, 10, lambda batcher: batcher.ask("predict", texts, {"beam": 2}))
    assert [len(inputs) for _, inputs, _ in work.slices] == [2, 2]


def test_what_is_wrong_with_one_request_is_told_to_it_alone():
    work = Work()

    async def ask(batcher):
        questions = [["a"], ["broken"], ["b"], ["bug"]]
        asked = (batcher.ask("predict", each, {}) for each in questions)
        found = await asyncio.gather(*asked, return_exceptions=True)
        return found, await batcher.ask("predict", ["later"], {})

    (first, broken, second, bug), later = together(work, 10, ask)
    assert (first, second, later) == (["aa"], ["bb"], ["laterlater"])
    assert isinstance(broken, TransductError)
    assert isinstance(bug, ZeroDivisionError)


@pytest.mark.parametrize("name", ["input", "pair", "prefix"])
def test_an_input_is_named_by_its_place_in_the_request(name):
    async def ask(batcher):
        texts = ["a"] * (2 * AT_ONCE + 5)
        texts[-2] = name
        asked = [batcher.ask("score", each, {}) for each in (["b"], texts, ["c", name])]
        return await asyncio.gather(*asked, return_exceptions=True)

    _, late, early = together(Work(), 1000, ask)
    assert str(late) == f"{name} {2 * AT_ONCE + 4}: 99 tokens; shorten it"
    assert str(early) == f"{name} 2: 99 tokens; shorten it"


def test_whose_fault_it_is_is_found_by_halves_and_for_none_who_has_gone():
    gate = threading.Event()
    work = Work(gate)

    async def ask(batcher):
        texts = ["broken", *(str(number) for number in range(15))]
        asked = [asyncio.create_task(batcher.ask("predict", [text], {})) for text in texts]
        await settled()
        for task in asked[8:]:
            task.cancel()
        gate.set()
        return await asyncio.gather(*asked[:8], return_exceptions=True)

    broken, *others = together(work, 100, ask)
    assert isinstance(broken, TransductError)
    assert others == [[str(number) * 2] for number in range(7)]
    assert [len(inputs) for _, inputs, _ in work.slices] == [16, 8, 4, 2, 1, 1, 2, 4]


@pytest.mark.parametrize("text, outputs", [("lost", 0), ("more", 2)])
def test_an_answer_too_few_or_too_many_is_a_mistake_of_the_work_and_not_the_end(text, outputs):
    async def ask(batcher):
        with pytest.raises(RuntimeError, match=f"predict: {outputs} outputs for 1 inputs"):
            await batcher.ask("predict", [text], {})
        return await batcher.ask("predict", ["a"], {})

    assert together(Work(), 10, ask) == ["aa"]


def test_the_rest_of_a_request_that_failed_is_not_worked_for():
    work = Work()

    async def ask(batcher):
        with pytest.raises(TransductError, match="a text is broken"):
            await batcher.ask("predict", ["broken"] + ["x"] * (2 * AT_ONCE), {})
        return batcher.waiting

    assert together(work, 1000, ask) == 0
    assert len(work.slices) == 1


def test_no_more_waits_than_may():
    gate = threading.Event()
    work = Work(gate)

    async def ask(batcher):
        first = asyncio.create_task(batcher.ask("predict", ["a"], {}))
        await settled()
        assert batcher.waiting == 0  # it is being worked on
        rest = asyncio.create_task(batcher.ask("predict", ["b"] * 3, {}))
        await settled()
        assert batcher.waiting == 3
        batcher._pace = 0.6  # for the three that wait and the one that is worked on
        with pytest.raises(Full, match="too much is waiting; come back in 3 s") as full:
            await batcher.ask("predict", ["c"], {})
        with pytest.raises(
            TransductError, match="found 4 inputs, at most 3 may wait; send fewer at once"
        ):
            await batcher.ask("predict", ["c"] * 4, {})
        gate.set()
        await asyncio.gather(first, rest)
        return full.value.seconds, await batcher.ask("predict", ["c"], {})

    assert together(work, 3, ask) == (3, ["cc"])


def test_who_stops_waiting_is_not_worked_for():
    gate = threading.Event()
    work = Work(gate)

    async def ask(batcher):
        first = asyncio.create_task(batcher.ask("predict", ["a"], {}))
        await settled()
        gone = asyncio.create_task(batcher.ask("predict", ["gone"], {}))
        await settled()
        assert batcher.waiting == 1
        gone.cancel()
        await asyncio.wait([gone])
        assert batcher.waiting == 0
        gate.set()
        return await first

    assert together(work, 10, ask) == ["aa"]
    assert work.slices == [("predict", ["a"], {})]


def test_who_leaves_while_being_worked_for_harms_nobody():
    gate = threading.Event()
    work = Work(gate)

    async def ask(batcher):
        asked = [asyncio.create_task(batcher.ask("predict", [text], {})) for text in "ab"]
        await settled()
        asked[0].cancel()
        await asyncio.wait(asked[:1])
        gate.set()
        return await asked[1]

    assert together(work, 10, ask) == ["bb"]


def test_who_leaves_before_an_error_of_its_own_harms_nobody():
    gate = threading.Event()

    async def ask(batcher):
        gone = asyncio.create_task(batcher.ask("predict", ["broken"], {}))
        await settled()
        gone.cancel()
        await asyncio.wait([gone])
        gate.set()
        return await batcher.ask("predict", ["later"], {})

    assert together(Work(gate), 10, ask) == ["laterlater"]


def test_advice_knows_what_is_here_and_how_long_it_has_taken():
    seen, gate = [], threading.Event()
    work = Work(gate)

    async def ask(batcher):
        assert batcher.advice == 1
        asked = asyncio.create_task(batcher.ask("predict", ["a"] * 2 * AT_ONCE, {}))
        await settled()
        found = []
        for pace, began in ((0.25, 0), (1e6, 0), (1e-6, 20)):
            batcher._pace = pace
            batcher._slice_began -= began
            found.append(batcher.advice)
        batcher._pace = 0.5
        gate.set()
        await asked
        return found, batcher._pace

    found, pace = together(work, 1000, ask, lambda *told: seen.append(told))
    assert found == [AT_ONCE // 2, LONGEST_ADVICE, 21]
    assert 0.4 < pace < 0.6
    assert [count for count, _ in seen] == [AT_ONCE, AT_ONCE]
    assert all(seconds >= 0 for _, seconds in seen)
