"""Closes idle and slow connections: clients that send no request, never finish one, or do not read
the answer.

The number of connections is limited, so such clients could otherwise lock everyone else out. Where
there is no room for a new one, the oldest that has no whole request goes, of the address that has
the most of them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

FULL = b'{"error": "too many connections are open; come back in 1 s"}'
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b"
)


class Impatient(HttpToolsProtocol):
    """uvicorn's protocol with timeouts for request heads and for reading answers, and limits to
    the size of a head and to the connections; the service times out bodies."""

    most = 1000  # connections
    of_one_address = 0.75  # the most of these, as a fraction
    patience = 60.0  # seconds
    slowest = 1 << 16  # the fewest bytes of an answer that a client must read in this time
    longest = 1 << 16  # bytes of a request's head, beside those that come with its first
    count_refusal: Callable[[], None] = staticmethod(lambda: None)
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _since = 0.0  # when it began to wait for a request
    _head: int | None = None  # the bytes of a head that is not complete

    def connection_made(self, transport: Any) -> None:
        """Start the timeout for the first request, if there is room for another connection."""
        super().connection_made(transport)
        self._since = perf_counter()
        if not self._finds_room():
            type(self).count_refusal()
            transport.write(REFUSAL % (len(FULL), FULL))
            transport.close()
            return
        # so that `pause_writing` is called for any unread data
        transport.set_write_buffer_limits(0)
        self._wait()

    @property
    def address(self) -> str:
        """The client's, without the port; behind a trusted proxy that of the last request."""
        client = self.scope["client"] if self.scope else self.client
        return client[0] if client else ""

    @property
    def waits(self) -> bool:
        """Whether it is open, and no whole request has come that is not answered yet."""
        in_hand = self.cycle and not self.cycle.response_complete and not self.cycle.more_body
        return not in_hand and not self.transport.is_closing()

    def _finds_room(self) -> bool:
        """Make room for this connection where there is none, by closing one that waits. False if
        none does."""
        if len(self.connections) <= self.of_one_address * self.most:
            return True
        everyone = [
            each
            for each in self.connections
            if isinstance(each, Impatient) and not each.transport.is_closing()
        ]
        # of each once: thousands may come in a second
        addresses, own = {each: each.address for each in everyone}, self.address
        counts = Counter(addresses.values())
        if counts[own] > self.of_one_address * self.most:
            everyone = [each for each in everyone if addresses[each] == own]
        elif len(everyone) <= self.most:
            return True
        waiting = [each for each in everyone if each.waits and each is not self]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda each: (-counts[addresses[each]], each._since))
        oldest.transport.close()
        return True

    def on_response_complete(self) -> None:
        """From now on it waits for the next request."""
        self._since = perf_counter()
        super().on_response_complete()

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
        before = self._head
        super().data_received(data)
        if before is not None and self._head is not None:
            self._head += len(data)
            if self._head > self.longest:
                self.send_400_response("The head of the request is too long.")
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._head = None
        super().on_headers_complete()

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
