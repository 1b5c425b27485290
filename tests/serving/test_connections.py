"""Idle connections are closed; those waiting for an answer are not."""

import asyncio
import contextlib
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from transduct.serving import server
from transduct.serving.connections import Impatient

LAVISH = 32 << 20
ASKED = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def slow(scope, receive, send):
    """Answers after longer than a head may take."""
    await asyncio.sleep(0.5)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


async def lavish(scope, receive, send):
    """Answers with more than a socket holds."""
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"%d" % LAVISH)],
        }
    )
    await send({"type": "http.response.body", "body": bytes(LAVISH)})


@contextmanager
def connected(monkeypatch, application=slow, patience=0.2):
    """A connection to a server with this timeout in seconds."""
    monkeypatch.setattr(Impatient, "patience", patience)
    config = uvicorn.Config(application, log_level="critical", lifespan="off", http=Impatient)
    with server._listening("127.0.0.1", 0) as listening:
        runs = uvicorn.Server(config)
        thread = threading.Thread(target=runs.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not runs.started:
                time.sleep(0.01)
            with socket.create_connection(listening.getsockname(), timeout=10) as connection:
                yield connection
        finally:
            runs.should_exit = True
            thread.join()


def assert_answered(connection):
    found = b""
    while not found.endswith(b"ok"):
        part = connection.recv(1000)
        assert part, f"hung up after {found}"
        found += part


@pytest.mark.parametrize(
    "sent", [b"", ASKED[:-2], b"G"], ids=["nothing", "half a head", "a letter"]
)
def test_who_does_not_ask_is_hung_up_on(monkeypatch, sent):
    with connected(monkeypatch) as connection:
        connection.sendall(sent)
        assert connection.recv(100) == b""


def test_who_asks_once_and_then_half_is_hung_up_on(monkeypatch):
    with connected(monkeypatch) as connection:
        connection.sendall(ASKED)
        assert_answered(connection)
        connection.sendall(ASKED[:-2])
        assert connection.recv(100) == b""


def test_who_waits_for_an_answer_gets_it_and_may_ask_again(monkeypatch):
    with connected(monkeypatch) as connection:
        for _ in range(2):
            connection.sendall(ASKED[:5])
            connection.sendall(ASKED[5:])
            assert_answered(connection)


def test_who_does_not_read_the_answer_is_hung_up_on(monkeypatch):
    with connected(monkeypatch, lavish) as connection:
        connection.sendall(ASKED)
        time.sleep(1.0)
        found = 0
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                found += len(part)
        assert found < LAVISH, "no more than what the system held"


def test_who_reads_slowly_gets_the_whole_answer(monkeypatch):
    with connected(monkeypatch, lavish, patience=2.0) as connection:
        connection.sendall(ASKED)
        found = 0
        while found < LAVISH:
            part = connection.recv(1 << 20)
            assert part, f"hung up after {found} bytes"
            found += len(part)
            time.sleep(0.1)
