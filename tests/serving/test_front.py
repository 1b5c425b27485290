"""Hosts, origins, proxies, prefixes and headers."""

import http.client
import re
import socket

import pytest

from tests.helpers import Stub
from tests.interfaces.clients import service_of, serving
from transduct.serving import front
from transduct.serving.batcher import Batcher
from transduct.serving.connections import Impatient
from transduct.serving.front import Settings


@pytest.fixture
def serving_with():
    """A server of a stub, with some settings."""

    def make(**settings):
        model = Stub(predict=lambda inputs: inputs)
        return serving(service_of(model, settings=Settings(**settings)))

    return make


def test_only_names_that_are_allowed_are_answered():
    settings = Settings(hosts=["translate.example.org"])
    for host in ("localhost:5000", "127.0.0.1:5000", "[::1]:5000", "Translate.example.org", ""):
        assert settings.allows(host), host
    assert not settings.allows("evil.example")
    assert Settings().allows("evil.example")


def test_a_host_that_is_not_allowed_is_misdirected(serving_with):
    with serving_with(hosts=["a"]) as client:
        status, _, answer = client("GET", "/health", Host="evil.example")
        assert status == 421
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(b"GET /live HTTP/1.1\r\nHost: evil.example\r\nHost: a\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 421 ")
        assert answer["error"].startswith("the host 'evil.example' is not served here")
        assert client("GET", "/live", Host="localhost")[0] == 200
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(b"GET /live HTTP/1.0\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_pages_of_allowed_origins_may_ask(serving_with):
    asks = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with serving_with(origins=["https://a.example"]) as client:
        status, headers, _ = client("OPTIONS", "/predict", **asks)
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://a.example")
        assert "authorization" in headers["Access-Control-Allow-Headers"]
        found = client("POST", "/predict", {"inputs": ["a"]}, **asks)
        assert found[1]["Access-Control-Allow-Origin"] == "https://a.example"
        other = client("OPTIONS", "/predict", **{**asks, "Origin": "https://b.example"})
        assert (other[0], other[1]["Access-Control-Allow-Origin"]) == (400, None)
    with serving_with(origins=["*"]) as client:
        assert client("GET", "/live", **asks)[1]["Access-Control-Allow-Origin"] == "*"


def test_every_answer_has_an_id_and_its_headers(serving_with):
    with serving_with() as client:
        for path in ("/", "/nothing"):
            headers = client("GET", path, **{"X-Request-ID": "id-1"})[1]
            assert headers["X-Request-ID"] == "id-1"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-store"
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert headers["Server"] is None
        for bad in ("a" * 65, "a b", "<a>"):
            made = client("GET", "/live", **{"X-Request-ID": bad})[1]["X-Request-ID"]
            assert re.fullmatch(r"[0-9a-f]{32}-\d+", made)


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (["127.0.0.0/8"], "1.2.3.4", "1.2.3.4"),
        (["127.0.0.1/8"], "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        (["10.0.0.0/8", "127.0.0.1"], "6.6.6.6, 1.2.3.4, 10.0.0.2", "1.2.3.4"),
        (["9.9.9.9"], "1.2.3.4", "127.0.0.1"),
        (["127.0.0.1"], "", "127.0.0.1"),
        ([], "1.2.3.4", "127.0.0.1"),
    ],
)
def test_clients_of_a_trusted_proxy_take_turns_and_connections_apart(
    serving_with, monkeypatch, proxies, forwarded, address
):
    asked, connections, ask, done = [], [], Batcher.ask, Impatient.on_response_complete

    def record(batcher, job, client, *rest):
        asked.append(client)
        return ask(batcher, job, client, *rest)

    def complete(connection):
        connections.append(connection.address)
        done(connection)

    monkeypatch.setattr(Batcher, "ask", record)
    monkeypatch.setattr(Impatient, "on_response_complete", complete)
    with serving_with(proxies=proxies) as client:
        client.post("/predict", {"inputs": ["a"]}, X_Forwarded_For=forwarded)
    assert {*asked} == {"", address}  # the first is what warms it
    assert connections == [address]


def test_everything_can_stand_below_a_path(serving_with):
    with serving_with(prefix="/translate/") as client:
        assert client("GET", "/translate/")[0] == 200
        assert client("GET", "/translate/web/app.js")[0] == 200
        assert client("GET", "/translate/live")[2] == {"status": "ok"}
        assert client("GET", "/live")[0] == client("GET", "/translated")[0] == 404
        status, headers, _ = client("GET", "/translate")
        assert (status, headers["Location"]) == (307, "/translate/")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_left_unread(serving_with, monkeypatch, chunked):
    monkeypatch.setattr(front, "LINGER", 0.2)
    read, receive = [], Impatient.data_received
    monkeypatch.setattr(
        Impatient, "data_received", lambda self, data: (read.append(len(data)), receive(self, data))
    )
    size = 100 << 20
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    part = b"a" * (1 << 16)
    part = b"10000\r\n%b\r\n" % part if chunked else part
    with (
        serving_with() as client,
        socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection,
    ):
        connection.sendall(head + b"\r\n\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(part * (size >> 16))
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.headers["Connection"]) == (413, "close")
    assert sum(read) < (4 << 20 if chunked else 1 << 20)
