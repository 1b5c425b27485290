"""Clients of a server, for its tests."""

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from transduct.serving import server


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


@contextmanager
def serving(service):
    """A client of a service that listens on a port of its own."""
    with server._listening("127.0.0.1", 0) as listening:
        runs = uvicorn.Server(
            uvicorn.Config(service.application(), log_level="critical", access_log=False)
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
        "POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: "
        f"application/json\r\nContent-Length: {len(content)}"
    )
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + content[: len(content) - missing])
        yield connection
