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


async def answer(send, body):
    head = {"type": "http.response.start", "status": 200}
    await send({**head, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def slow(scope, receive, send):
    """Answers after longer than a head may take."""
    await asyncio.sleep(0.3)
    await answer(send, b"ok")


async def lavish(scope, receive, send):
    """Answers with more than a socket holds."""
    await answer(send, bytes(LAVISH))


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


def test_who_sends_a_head_without_end_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(Impatient, "longest", 5000)
    with connected(monkeypatch, patience=30) as connection:
        found = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\nX: ")
            for _ in range(10):
                time.sleep(0.02)
                connection.sendall(b"x" * 1000)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1000):
                found += part
        assert found.startswith(b"HTTP/1.1 400 ")
        assert found.endswith(b"The head of the request is too long.")


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
        time.sleep(0.6)
        found = 0
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                found += len(part)
        assert found < LAVISH, "no more than what the system held"


def test_who_reads_slowly_gets_the_whole_answer(monkeypatch):
    with connected(monkeypatch, lavish, patience=1.0) as connection:
        connection.sendall(ASKED)
        found = 0
        while found < LAVISH:
            part = connection.recv(1 << 20)
            assert part, f"hung up after {found} bytes"
            found += len(part)
            time.sleep(0.04)


@contextmanager
def opened(address, sent, count):
    """This many connections on which so much has been sent, one after the other."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(stack.enter_context(socket.create_connection(address, timeout=10)))
            found[-1].sendall(sent)
        yield found


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        connection.settimeout(10)


HALVES = [b"", ASKED[:-2], b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"]


BEGUN, GATE = threading.Event(), threading.Event()


async def patient(scope, receive, send):
    """Answers once all has been sent; who asks for `/held` waits for the gate, too."""
    part = await receive()
    while part.get("more_body"):
        part = await receive()
    if part["type"] == "http.request":
        BEGUN.set()
        while scope["path"] == "/held" and not GATE.is_set():
            await asyncio.sleep(0.01)
        await answer(send, b"ok")


@pytest.mark.parametrize("sent", HALVES, ids=["nothing", "half a head", "half a body"])
def test_however_many_send_half_a_request_others_are_answered(monkeypatch, sent):
    monkeypatch.setattr(Impatient, "most", 20)
    BEGUN.clear()
    GATE.clear()
    with connected(monkeypatch, patient, patience=30) as first:
        first.sendall(ASKED.replace(b"/ ", b"/held ", 1))
        assert BEGUN.wait(10)
        with opened(first.getpeername(), sent, 40) as halves:
            with socket.create_connection(first.getpeername(), timeout=10) as other:
                other.sendall(ASKED)
                assert_answered(other)
            GATE.set()
            assert_answered(first)  # it was in hand
            states = [is_open(each) for each in halves]
            assert states == sorted(states), "the oldest went first"
            assert 12 <= sum(states) <= 15, "an address has three quarters of all"


def test_where_all_are_in_hand_a_new_one_is_refused(monkeypatch):
    monkeypatch.setattr(Impatient, "most", 4)
    with connected(monkeypatch, patience=30) as first, opened(first.getpeername(), ASKED, 2) as two:
        first.sendall(ASKED)
        time.sleep(0.1)
        with socket.create_connection(first.getpeername(), timeout=10) as other:
            said = b""
            while part := other.recv(1000):
                said += part
        assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nRetry-After: 1\r\n" in said
        assert said.endswith(b'{"error": "too many connections are open; come back in 1 s"}')
        for each in (first, *two):
            assert_answered(each)


def test_an_address_that_has_its_share_leaves_room_for_others(monkeypatch):
    """Two addresses of this machine: 127.0.0.1 is full, and loses its own first."""
    monkeypatch.setattr(Impatient, "most", 8)
    with (
        connected(monkeypatch, patient, patience=30) as first,
        opened(first.getpeername(), b"G", 20) as halves,
        contextlib.ExitStack() as stack,
    ):
        others = []
        for _ in range(3):
            there = (first.getpeername(), 10, ("127.0.0.2", 0))
            others.append(stack.enter_context(socket.create_connection(*there)))
            others[-1].sendall(ASKED)
        for each in others:
            assert_answered(each)
        assert sum(map(is_open, halves)) == 5, "six, and one gave way to the third of the others"
