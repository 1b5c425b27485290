"""Connections that ask for nothing, never come to the end of asking, or do not read what they asked for are hung up on:
there is room for so many, and whoever held them all would keep everybody else out."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Impatient(H11Protocol):
    """uvicorn's protocol, with an end to every wait for the head of a request, and for answers to be read; bodies have
    theirs in the service."""

    patience = 60.0  # seconds
    slowest = 1 << 16  # bytes that are read in this time at least, of what is there to be read
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that we are told of whatever waits to be read
        self._wait()

    def pause_writing(self) -> None:
        """Something waits to be read."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """All has been read."""
        super().resume_writing()
        self._unwatch()

    def data_received(self, data: bytes) -> None:
        """Wait no more once a request has begun, and again where a next one has begun to come."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
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
                self.transport.abort()  # to close it would wait for the rest to be read
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
