"""`transduct serve`: listening for requests and shutting down gracefully."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from ipaddress import ip_address
from types import FrameType
from typing import Any

from transduct.errors import TransductError, needing, require, warned_once
from transduct.interfaces.program import without_collection
from transduct.serving import calls
from transduct.serving.application import service_of
from transduct.serving.service import Service

with needing("serve"):
    import uvicorn

    from transduct.serving.connections import Impatient

OTHER_FILES = 100  # that are open beside the connections
LONGEST_GRACE = 600.0  # seconds
COLLECTION = 20_000, 20, 20  # objects, and collections, until garbage is looked for


class Server(uvicorn.Server):
    """uvicorn's server, which waits for a balancer to notice that it ends, and reads its models
    again on SIGHUP."""

    def __init__(self, config: uvicorn.Config, service: Service, grace: float) -> None:
        super().__init__(config)
        self._service, self._grace, self._tasks = service, grace, set[asyncio.Task[None]]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen to SIGHUP too, unless it is ignored, as nohup does."""
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what has been asked, and no more."""
        self._service.ready, self._service.ending = False, True
        await super().shutdown(sockets)
        if self.force_exit:  # by a second Ctrl-C; a search under way would hold up any other end
            print("transduct: stopped before all requests were answered", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End now or, at the first SIGTERM, once the grace is over."""
        if sig == signal.SIGTERM and self._grace and self._service.ready and self.started:
            self._service.ready = False
            loop = asyncio.get_running_loop()
            loop.call_later(self._grace, super().handle_exit, sig, frame)
        else:
            super().handle_exit(sig, frame)

    def _reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self._service.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def serve(
    models: Sequence[str],
    host: str = "127.0.0.1",
    port: int = 5000,
    grace: float = 0.0,
    **settings: Any,
) -> None:
    """Serve models, in the main thread, until SIGTERM or Ctrl-C; pending requests are still
    answered, unless a second Ctrl-C ends the process at once, with status 1. SIGHUP reads the keys
    and the models' folders again.

    Args:
        grace: the seconds between SIGTERM and the end, in which `/ready` says so.
        settings: as for `application.service_of`.

    Raises:
        TransductError: if there is no model, the port is taken or the keys cannot be read.
    """
    hosts = settings.pop("allow_host", None) or None
    if hosts is None and _is_loopback(host):
        hosts = [host]
    require(
        0.0 <= grace <= LONGEST_GRACE,
        f"--grace is {grace:g}, must be from 0 to {LONGEST_GRACE:g} seconds",
    )
    with without_collection():
        service = service_of(models, allow_host=hosts, **settings)
    gc.set_threshold(*COLLECTION)
    config = uvicorn.Config(
        service.application(),
        log_level="error",  # warnings are about requests that are not HTTP
        ws="none",  # or a connection could leave those that are counted
        access_log=False,
        server_header=False,
        http=Impatient,
        proxy_headers=False,  # ours say whom to trust
        timeout_graceful_shutdown=int(calls.PATIENCE) + 5,
    )
    runs = Server(config, service, grace)

    def end(*_: object) -> None:
        """Handle signals before uvicorn installs its own handlers, and after, when it raises them
        again."""
        runs.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    _allow_connections()
    Impatient.count_refusal = service.metrics.refused.inc
    with closing(_listening(host, port)) as listening, _without_warnings():
        name, port = listening.getsockname()[:2]
        name = f"[{name}]" if ":" in name else name
        if hosts is None:
            print("every Host is allowed; --allow-host names those that are yours", file=sys.stderr)
        where = f"http://{name}:{port}{service.settings.prefix}"
        print(f"serving {' '.join(models)} on {where} (Ctrl-C ends)", file=sys.stderr, flush=True)
        runs.run(sockets=[listening])


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _allow_connections() -> None:
    """Raise the limit of open files, if need be and if the system allows, or take fewer
    connections."""
    wanted = Impatient.most + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    Impatient.most = max(1, allowed - OTHER_FILES)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Log errors alone: warnings quote the texts of requests, which belong in no log."""
    logs = [logging.getLogger(name) for name in ("transduct", "python_multipart")]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warned_once(quiet=True):  # an answer counts what could not be read
            yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)


def _listening(host: str, port: int) -> socket.socket:
    # the system would take a larger port modulo 65536
    require(0 <= port < 1 << 16, f"--port is {port}, must be from 0 to 65535")
    with ExitStack() as on_failure:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            # With the protocol given, asyncio sets TCP_NODELAY.
            listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            on_failure.callback(listening.close)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            raise TransductError(
                f"cannot listen on {host}:{port} ({error}); give another --port or --host"
            ) from error
        on_failure.pop_all()
    return listening
