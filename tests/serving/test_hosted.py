"""What requests to one model cost, and how it warms up."""

import asyncio
from types import SimpleNamespace

import pytest

from tests.helpers import Stub
from transduct.predictors.text_to_image import PaintingConfig
from transduct.serving.batcher import Full
from transduct.serving.hosted import Hosted


@pytest.mark.parametrize(
    "own, asked, cost",
    [
        ({}, {}, 4),
        ({"beam": 5}, {}, 20),
        ({"beam": 5}, {"beam": 2}, 8),
        ({"samples": 16}, {}, 64),
        ({"samples": 16}, {"samples": 2}, 8),
        ({"length": 100}, {}, 104),
        ({"beam": 5}, {"n_best": 3}, 20),
        ({"beam": 5}, {"n_best": 16}, 64),
        ({"length": 100}, {"length": 10, "samples": 3}, 42),
    ],
)
def test_what_an_answer_costs_goes_by_the_call_and_else_by_the_model(own, asked, cost):
    model = Stub(decoding=SimpleNamespace(**own)) if own else Stub()
    cost_of = Hosted(model, "slow", 50).cost
    assert (
        cost_of("predict", "abcd", asked)
        == cost_of("attention", ("abcd", None, None), asked)
        == cost
    )
    assert (
        cost_of("score", ("ab", "cd"), asked)
        == cost_of("attention", ("ab", "cd", None, None, ()), asked)
        == 4
    )


def test_a_picture_costs_its_codes_with_the_text_and_without():
    painter = Stub(paints=True, places=64, decoding=PaintingConfig(samples=2))
    cost = Hosted(painter, "painter", 50).cost
    assert cost("predict", "ab", {}) == 2 * (2 + 2 * 64)
    assert cost("predict", "ab", {"samples": 7}) == 7 * (2 + 2 * 64)


def test_a_server_whose_queue_is_full_while_it_warms_is_warmed_by_others(monkeypatch):
    hosted = Hosted(Stub(predict=lambda inputs: inputs), "crowded", 1)

    async def full(*_):
        raise Full(1)

    with monkeypatch.context() as patch:
        patch.setattr(hosted.batcher, "ask", full)
        asyncio.run(hosted._warm())
    assert hosted.warm
