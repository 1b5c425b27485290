"""Clients of a server, for its tests."""

import http.client
import json
import re
import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from tests.forked import apart
from transduct.serving import server
from transduct.serving.connections import Impatient
from transduct.serving.hosted import Hosted
from transduct.serving.keys import Key, Keys
from transduct.serving.served_models import Models, Served
from transduct.serving.service import Service


class Client:
    """Calls one server."""

    def __init__(self, port):
        self.port = port

    def __call__(self, method, path, body=None, kind="application/json", **headers):
        """Send one request. Returns (status, headers, body), with JSON parsed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, content, {"Content-Type": kind, **named})
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, response.headers, json.loads(answer) if is_json else answer

    def post(self, path, body, **rest):
        """The answer to a valid request."""
        status, _, answer = self("POST", path, body, **rest)
        assert status == 200, answer
        return answer

    def refused(self, path, body, status, **rest):
        """The error line for an invalid request, and the headers of the answer."""
        found, headers, answer = self("POST", path, body, **rest)
        assert (found, list(answer)) == (status, ["error"]), answer
        assert "\n" not in answer["error"]
        return answer["error"], headers


def served_of(model, name, pair=None):
    """A model that is loaded already, as a server has it."""
    served = Served(name, own_pair=pair)
    known = model.languages
    served.describe(type(model), {"languages": vars(known) if known else None})
    served.verbs, served.hosted = model.verbs, Hosted(model, name, 0)
    return served


def service_of(model, name="model", most=50, keys=(), pair=None, **rest):
    """The service of one model that is loaded already."""
    return service_of_all([served_of(model, name, pair)], most, keys, **rest)


def service_of_all(every, most=50, keys=(), settings=None, suggestions=None, **rest):
    """The service of some models."""
    known = None
    if keys:
        known = Keys.__new__(Keys)
        known.keys = [Key(each, each) if isinstance(each, str) else each for each in keys]
    return Service(Models(every, most, **rest), known, settings, suggestions)


@contextmanager
def serving(service):
    """A client of a service that listens on a port of its own."""
    with server._listening("127.0.0.1", 0) as listening:
        runs = uvicorn.Server(
            uvicorn.Config(
                service.application(),
                log_level="critical",
                access_log=False,
                server_header=False,
                http=Impatient,
                proxy_headers=False,
            )
        )
        thread = threading.Thread(target=runs.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            client = Client(listening.getsockname()[1])
            while not runs.started:
                time.sleep(0.01)
            yield client
        finally:
            runs.should_exit = True
            thread.join()


@contextmanager
def half_sent(client, body, missing=1):
    """A connection on which all of a request but its last bytes has been sent."""
    content = json.dumps(body).encode()
    head = (
        "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        f"application/json\r\nContent-Length: {len(content)}"
    )
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + content[: len(content) - missing])
        yield connection


@contextmanager
def program(*words, **more):
    """`transduct serve` as a process, and a client of it."""
    with apart("serve", *words, **more) as process:
        yield process, *listening(process)


def listening(process):
    """A client of a server that begins to listen, and the line in which it says so."""
    line = next(line for line in process.stderr if re.search(rb":\d+ ", line)).decode()
    return Client(int(re.search(r":(\d+) ", line)[1])), line
