"""Closes idle and slow connections: clients that send no request, never finish one, or do not read
the answer.

The number of connections is limited, so such clients could otherwise lock everyone else out.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Impatient(H11Protocol):
    """uvicorn's protocol with timeouts for request heads and for reading answers; the service times
    out bodies."""

    patience = 60.0  # seconds
    slowest = 1 << 16  # the fewest bytes of an answer that a client must read in this time
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timeout for the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(
            0
        )  # so that `pause_writing` is called for any unread data
        self._wait()

    def pause_writing(self) -> None:
        """Start watching whether the client reads its answer."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Stop watching: everything has been read."""
        super().resume_writing()
        self._unwatch()

    def data_received(self, data: bytes) -> None:
        """Stop the timeout once a request's head is complete; restart it when the next request
        begins to arrive."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop()
        self._unwatch()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(self.patience, self.transport.close)

    def _watch(self) -> None:
        left = self.transport.get_write_buffer_size()

        def look() -> None:
            if self.transport.get_write_buffer_size() > max(0, left - self.slowest):
                self.transport.abort()  # `close` would wait until the rest has been read
            else:
                self._watch()

        self._unread = self.loop.call_later(self.patience, look)

    def _unwatch(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
