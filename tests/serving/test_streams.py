"""What is followed arrives in parts, and an error in the middle is an event."""

import asyncio
from types import SimpleNamespace

import pytest

from transduct.errors import TransductError
from transduct.serving.calls import OURS
from transduct.serving.streams import followed, stream


def call():
    return SimpleNamespace(seconds=0.0, answered=lambda: None, api=OURS)


def test_each_part_is_what_is_new():
    async def work(follow):
        for text in ("a", "a b", "x", "a b c"):
            follow(text)
        return "whole"

    async def collect():
        return [each async for each in followed(call(), work)]

    assert asyncio.run(collect()) == ["a", " b", " c", "whole"]


def test_an_error_before_the_first_part_is_raised_and_later_an_event():
    async def fails(follow):
        raise TransductError("wrong")

    async def breaks():
        yield 1
        raise TransductError("late")

    async def lines():
        with pytest.raises(TransductError, match="wrong"):
            await stream(call(), followed(call(), fails))
        answer = await stream(call(), breaks(), "[DONE]")
        return [line async for line in answer.body_iterator]

    assert asyncio.run(lines()) == [
        "data: 1\n\n",
        'data: {"error": "late"}\n\n',
        "data: [DONE]\n\n",
    ]
