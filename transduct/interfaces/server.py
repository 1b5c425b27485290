"""`transduct serve`: the program that listens, and ends in order."""

import signal
import socket
import sys
from contextlib import ExitStack, closing
from pathlib import Path

from transduct.errors import TrainingFailed, TransductError, missing_extra
from transduct.interfaces.service import PATIENCE, Service
from transduct.interfaces.start import load

try:
    import uvicorn

    from transduct.interfaces.connections import Impatient
except ImportError as error:
    raise missing_extra(error.name or "uvicorn", "serve") from error

CONNECTIONS = 1000  # above which uvicorn itself answers 503


def read_keys(path: Path) -> list[str]:
    """The keys in a file, one a line.

    Raises:
        TransductError: it cannot be read, holds none, or a line is no key.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TransductError(f"{path}: cannot be read ({error}); give a text file with one key a line") from error
    keys = {number: line.strip() for number, line in enumerate(lines, 1) if line.strip()}
    for number, key in keys.items():
        if not key.isascii() or len(key.split()) > 1:
            raise TransductError(f"{path}:{number}: not a key; write letters and digits without blanks")
    if not keys:
        raise TransductError(f"{path}: holds no key; write one a line")
    return list(keys.values())


def serve(
    path: str, host: str, port: int, waiting: int, keys: Path | None, device: str = "auto", precision: str = "float32"
) -> None:
    """Serve a model until SIGTERM or Ctrl-C, in the main thread; what has been asked by then is still answered.

    Raises:
        TransductError: there is no model, the port is taken, the keys cannot be read, or the extra is not installed.
        TrainingFailed: a second Ctrl-C has ended it before all was answered.
    """
    if waiting < 1:
        raise TransductError(f"--waiting is {waiting}, must be at least 1")
    known = [] if keys is None else read_keys(keys)
    service = Service(load(path, device, precision), Path(path).resolve().name, waiting, known)
    config = uvicorn.Config(
        service.application(),
        log_level="warning",
        access_log=False,
        http=Impatient,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=int(PATIENCE) + 5,
    )
    runs = uvicorn.Server(config)

    def end(*_: object) -> None:
        """Until uvicorn listens to signals, and after: it raises them once more when all is done."""
        runs.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with closing(_listening(host, port)) as listening:
        name, port = listening.getsockname()[:2]
        name = f"[{name}]" if ":" in name else name
        print(f"serving {path} on http://{name}:{port} (Ctrl-C ends)", file=sys.stderr, flush=True)
        runs.run(sockets=[listening])
    if runs.force_exit:
        raise TrainingFailed("ended before all was answered")


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port < 1 << 16:  # the system would take what is left of a larger one
        raise TransductError(f"--port is {port}, must be from 0 to 65535")
    with ExitStack() as unless_it_works:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # told so, asyncio sends without delay
            unless_it_works.callback(made.close)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen()
        except (OSError, UnicodeError) as error:  # the latter for what is no host's name
            raise TransductError(f"cannot listen on {host}:{port} ({error}); give another --port or --host") from error
        unless_it_works.pop_all()
    return made
