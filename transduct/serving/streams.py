"""Answers that arrive in parts, as server-sent events.

Parts are what `Job.follow` or a model reports: sentences that are done, words, or pictures.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from transduct.errors import TransductError, needing
from transduct.serving import calls
from transduct.serving.calls import Call
from transduct.serving.requests import Problem

with needing("serve"):
    from starlette.responses import Response, StreamingResponse

Start = Callable[[Callable[[Any], None]], Coroutine[Any, Any, Any]]


async def progress(call: Call, start: Start) -> AsyncGenerator[tuple[Any, bool], None]:
    """Yields the parts that some work reports and at last its result, each with whether it is that.

    Args:
        start: begins the work, given what is to be called, in any thread.
    """
    queue: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def put(part: Any) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, part)

    task = asyncio.create_task(start(put))
    task.add_done_callback(lambda _: put(None))
    try:
        while (
            part := await asyncio.wait_for(queue.get(), calls.PATIENCE - call.seconds)
        ) is not None:
            yield part, False
        yield task.result(), True
    finally:
        task.cancel()


async def followed(call: Call, start: Start) -> AsyncGenerator[Any, None]:
    """Yields what each part adds to the text, and at last the result; see `progress`."""
    sent = ""
    async with aclosing(progress(call, start)) as parts:
        async for part, last in parts:
            if last:
                yield part
            elif part.startswith(sent) and part != sent:
                call.answered()
                yield part[len(sent) :]
                sent = part


async def stream(call: Call, events: AsyncGenerator[Any, None], end: str = "") -> Response:
    """The answer of some events, each an object of JSON. An error before the first is answered as
    any other; later it is an event."""
    first = await anext(events)

    async def lines() -> AsyncGenerator[str, None]:
        try:
            yield _line(first)
            async for event in events:
                yield _line(event)
        except (Problem, TransductError, TimeoutError) as error:
            text = str(error) or "not done in time; send less at once"
            yield _line(call.api.error(504 if isinstance(error, TimeoutError) else 400, text, None))
        finally:
            await events.aclose()
        if end:
            yield f"data: {end}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def _line(event: Any) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
