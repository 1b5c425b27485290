"""`transduct serve`: listening for requests and shutting down gracefully."""

import logging
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from transduct.data.text_warnings import warned_once
from transduct.errors import TrainingFailed, TransductError, needing
from transduct.interfaces.program import load
from transduct.predictors.options import with_options
from transduct.serving.service import PATIENCE, Service

with needing("serve"):
    import uvicorn

    from transduct.serving.connections import Impatient

OTHER_FILES = 100  # that are open beside the connections


def read_keys(path: Path) -> list[str]:
    """Read API keys from a file, one per line.

    Raises:
        TransductError: if the file cannot be read or has no key, or a line is not a key.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TransductError(
            f"{path}: cannot be read ({error}); give a text file with one key a line"
        ) from error
    keys = {number: line.strip() for number, line in enumerate(lines, 1) if line.strip()}
    for number, key in keys.items():
        if not key.isascii() or len(key.split()) > 1:
            raise TransductError(
                f"{path}:{number}: not a key; write letters and digits without blanks"
            )
    if not keys:
        raise TransductError(f"{path}: holds no key; write one a line")
    return list(keys.values())


def serve(
    path: str,
    host: str,
    port: int,
    waiting: int,
    keys: Path | None,
    device: str = "auto",
    precision: str = "float32",
    options: Mapping[str, Any] | None = None,
) -> None:
    """Serve a model, in the main thread, until SIGTERM, SIGHUP or Ctrl-C; pending requests are
    still answered. SIGHUP does not end it where it is ignored, as nohup does.

    Raises:
        TransductError: if there is no model, the port is taken or the keys cannot be read.
        TrainingFailed: if a second Ctrl-C ended it before all requests were answered.
    """
    if waiting < 1:
        raise TransductError(f"--waiting is {waiting}, must be at least 1")
    known = [] if keys is None else read_keys(keys)
    model = load(path, device, precision)
    if options:
        model.decoding = with_options(model.decoding, options)
    service = Service(model, Path(path).resolve().name, waiting, known)
    config = uvicorn.Config(
        service.application(),
        log_level="warning",
        access_log=False,
        http=Impatient,
        timeout_graceful_shutdown=int(PATIENCE) + 5,
    )
    runs = uvicorn.Server(config)

    def end(*_: object) -> None:
        """Handle signals before uvicorn installs its own handlers, and after, when it raises them
        again."""
        runs.should_exit = True

    hang_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    for number in (signal.SIGINT, signal.SIGTERM, *hang_up):
        signal.signal(number, end)
    _allow_connections()
    with closing(_listening(host, port)) as listening, _without_warnings():
        name, port = listening.getsockname()[:2]
        name = f"[{name}]" if ":" in name else name
        print(f"serving {path} on http://{name}:{port} (Ctrl-C ends)", file=sys.stderr, flush=True)
        runs.run(sockets=[listening])
    if runs.force_exit:
        raise TrainingFailed("stopped before all requests were answered")


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
    log = logging.getLogger("transduct")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warned_once(quiet=True):  # an answer counts what could not be read
            yield
    finally:
        log.setLevel(before)


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port < 1 << 16:  # the system would take a larger port modulo 65536
        raise TransductError(f"--port is {port}, must be from 0 to 65535")
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
