"""What every request passes on its way in and out, whatever it asks for: its host is checked, it
gets an id, headers, a line of the log, and is counted.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network
from itertools import count
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from transduct.errors import require, rewording
from transduct.serving.calls import Call
from transduct.serving.requests import Problem

if TYPE_CHECKING:
    from transduct.serving.service import Service

SMALL = 1 << 16  # bytes of a body that is read even if nobody wants it
LINGER = 1.0  # seconds in which a client reads why the rest of its request is not read
PROCESS, COUNT = uuid4().hex, count(1)  # of ids that are made here
IDENTITY = re.compile(rb"[A-Za-z0-9._:/=+-]{1,64}")
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/A-Z\s]+")  # as browsers send it, without a path
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' blob: data:; media-src blob:; "
    "style-src 'self'; script-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]


@dataclass(frozen=True)
class Settings:
    """How a server is seen from outside.

    Attributes:
        origins: pages of which origins may ask, such as https://example.org; * for all.
        hosts: by which names it may be called; None for any.
        proxies: addresses or networks whose X-Forwarded-For counts.
        prefix: the path below which it serves, such as /translate.
        access_log: whether each request is logged.
    """

    origins: Sequence[str] = ()
    hosts: Sequence[str] | None = None
    proxies: Sequence[str] = ()
    prefix: str = ""
    access_log: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", self.prefix.rstrip("/"))
        require(
            re.fullmatch(r"(/[\w.~-]+)*", self.prefix),
            f"--prefix is '{self.prefix}'; write a path such as /translate",
        )
        for origin in self.origins:
            require(
                ORIGIN.fullmatch(origin),
                f"--allow-origin is '{origin}'; write one such as https://example.org, or *",
            )
        for proxy in self.proxies:
            with rewording(
                ValueError,
                f"--trusted-proxy is '{proxy}'; write an address or a network, 10.0.0.0/8",
            ):
                ip_network(proxy, strict=False)

    def allows(self, host: str) -> bool:
        """Whether the server may be called by this name: those allowed, localhost, and any
        address."""
        name = re.sub(r":\d+$", "", host.strip().lower())
        if self.hosts is None or name in ("", "localhost", *map(str.lower, self.hosts)):
            return True
        return _is_address(name.strip("[]"))


@lru_cache(maxsize=256)
def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Front:
    """The application, behind its checks."""

    def __init__(self, application: Any, service: "Service") -> None:
        self.application, self.service = application, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        identity = given.decode() if IDENTITY.fullmatch(given) else f"{PROCESS}-{next(COUNT)}"
        call = Call(self.service, identity, scope["client"][0] if scope.get("client") else "")
        length = headers.get(b"content-length", b"0")
        call.large = not length.isdigit() or int(length) > SMALL or b"transfer-encoding" in headers
        scope.setdefault("state", {})["call"] = call
        status, unread = 499, False

        async def answer(message: Any) -> None:
            nonlocal status, unread
            if unread and message["type"] == "http.response.body" and not message.get("more_body"):
                await send({**message, "more_body": True})
                await asyncio.sleep(LINGER)
                message = {"type": "http.response.body", "body": b""}
            if message["type"] == "http.response.start":
                status = message["status"]
                given = message.get("headers", [])
                unread = call.large and any(name.lower() == b"connection" for name, _ in given)
                added = [*given, *HEADERS, (b"x-request-id", call.id.encode())]
                message = {**message, "headers": added}
            await send(message)

        try:
            await (self._checked(scope) or self.application)(scope, receive, answer)
        except BaseException:
            status = 500 if status == 499 else status
            raise
        finally:
            self.service.held -= call.held
            self.service.metrics.call(call, status)
            self._log(call, scope["method"], status)

    def _checked(self, scope: Any) -> Any:
        """The answer to a request that goes no further, or None."""
        from starlette.responses import Response

        call: Call = scope["state"]["call"]
        prefix = self.service.settings.prefix
        for host in [v.decode("latin-1") for name, v in scope["headers"] if name == b"host"]:
            if not self.service.settings.allows(host):
                problem = f"the host '{host:.60}' is not served here; allow it with --allow-host"
                return call.api.refusal(Problem(421, problem))
        if prefix:
            if scope["path"] == prefix:  # what a page names is found from its folder
                return Response(status_code=307, headers={"Location": f"{prefix}/"})
            if not scope["path"].startswith(prefix + "/"):
                return call.api.refusal(Problem(404, "Not Found"))
            scope["path"] = scope["path"][len(prefix) :] or "/"
            scope["raw_path"] = scope["path"].encode()
        return None

    def _log(self, call: Call, method: str, status: int) -> None:
        """Write a line about a request, without texts and keys."""
        if not self.service.settings.access_log:
            return
        line = {
            "time": round(time(), 3),
            "id": call.id,
            "method": method,
            "path": call.path,
            "status": status,
            "seconds": round(call.seconds, 4),
            "queued": call.queued and round(call.queued, 4),
            "model": call.model,
            "tokens_in": call.tokens_in,
            "tokens_out": call.tokens_out,
            "key": call.key and call.key.name,
        }
        print(json.dumps(line), flush=True)
