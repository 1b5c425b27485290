"""Answers that arrive in parts, as server-sent events.

What is followed is whatever `Job.follow` tells: sentences that are done, or words.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from transduct.errors import TransductError, needing
from transduct.serving import calls
from transduct.serving.batcher import Full
from transduct.serving.calls import Call
from transduct.serving.requests import Problem

with needing("serve"):
    from starlette.responses import Response, StreamingResponse

Start = Callable[[Callable[[str], None]], Coroutine[Any, Any, Any]]


async def followed(call: Call, start: Start) -> AsyncGenerator[Any, None]:
    """Yields what each part adds to the text, and at last the result of the work.

    Args:
        start: begins the work, given what is to be called with the text so far.
    """
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    task, sent = asyncio.create_task(start(queue.put_nowait)), ""
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (
            text := await asyncio.wait_for(queue.get(), calls.PATIENCE - call.seconds)
        ) is not None:
            if text.startswith(sent) and text != sent:
                call.answered()
                yield text[len(sent) :]
                sent = text
        yield task.result()
    finally:
        task.cancel()


async def stream(call: Call, events: AsyncGenerator[Any, None], end: str = "") -> Response:
    """The answer of some events, each an object of JSON. An error before the first is answered as
    any other; later it is an event."""
    first = await anext(events)

    async def lines() -> AsyncGenerator[str, None]:
        try:
            yield _line(first)
            async for event in events:
                yield _line(event)
        except (Problem, Full, TransductError, TimeoutError) as error:
            text = str(error) or "not done in time; send less at once"
            yield _line(call.api.error(504 if isinstance(error, TimeoutError) else 400, text, None))
        finally:
            await events.aclose()
        if end:
            yield f"data: {end}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def _line(event: Any) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
