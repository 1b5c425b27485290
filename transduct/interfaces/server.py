"""`transduct serve`: one model over HTTP, to programs as JSON and to people as a page.

    POST /translate   {"texts": [..], "beam": 5, "n_best": 3, ..}       {"translations": [{"text", "score", ..}, ..]}
    POST /score       {"sources": [..], "targets": [..]}                {"scores": [..]}
    POST /attention   {"text": .., "target": .., "name": ..}            where the model looked
    POST /predict     {"inputs": [..], "options": {..}}                  {"outputs": [..]}, or a PNG
                      or a picture or a sound itself as the body, and options in the query
    GET  /            the page          GET /health   200 once warm          GET /metrics   for Prometheus

Errors are {"error": ".."}: 400 the request is wrong, 401 no key, 413 too large, 429 too much is waiting and 503 it took
too long or the model is not warm yet, both with Retry-After.
"""

import asyncio
import hmac
import json
import logging
import re
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from transduct import __version__
from transduct.config import parse_override, record
from transduct.errors import NotFinite, TransductError, missing_extra
from transduct.interfaces.batcher import Batcher, Full
from transduct.interfaces.start import load
from transduct.tasks.model import draw

try:
    import uvicorn
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise missing_extra(error.name or "starlette", "serve") from error

LARGEST = 16 << 20  # bytes of a request
LONGEST = 20_000  # characters of an input
PATIENCE = 60.0  # seconds that a request may take
MOST = {"beam": 32, "n_best": 32, "samples": 32, "length": 2_000}  # what an option may ask for
OURS = ("workers", "batch_tokens", "captured", "validation_beam")  # options that are for whoever runs the server
ENDINGS = {"picture": ".png", "sound": ".wav"}  # of a file that was sent, whose first bytes say what it is
HALVES = re.compile("[\ud800-\udfff]")  # JSON can say them, UTF-8 cannot
WARMING = ["a", "A sentence that is a little longer than that."]
log = logging.getLogger("transduct")
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Predict:
    """The body of POST /predict."""

    inputs: list[str]
    options: dict[str, Any] | None = None


@dataclass(frozen=True)
class Score:
    """The body of POST /score."""

    sources: list[str]
    targets: list[str]


@dataclass(frozen=True)
class Attention:
    """The body of POST /attention: a text, a translation of it if not the model's own, the weights that are wanted."""

    text: str
    target: str | None = None
    name: str | None = None


class Problem(Exception):
    """What is answered instead: a status and one line."""

    def __init__(self, status: int, message: str, seconds: int | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, {} if seconds is None else {"Retry-After": str(seconds)}


class Service:
    """One model and what is asked of it.

    Args:
        model: as `transduct.load` gives it.
        name: what it is called.
        most: how many inputs may wait.
        keys: one of them stands in each request ("Authorization: Bearer KEY"), if there are any.
    """

    def __init__(self, model: Any, name: str, most: int, keys: Sequence[str] = ()) -> None:
        self.model, self.name, self.keys, self.warm = model, name, [key.encode() for key in keys], False
        self.reads, self.paints = getattr(model, "reads", "text"), getattr(model, "paints", False)
        self.registry = CollectorRegistry()
        self._answers = Counter("transduct_requests", "Answers", ["path", "status"], registry=self.registry)
        self._inputs = Counter("transduct_inputs", "Inputs answered", registry=self.registry)
        self._sizes = Histogram(
            "transduct_batch_size", "Inputs together", buckets=[1, 2, 4, 8, 16, 32, 64], registry=self.registry
        )
        self._seconds = Histogram("transduct_batch_seconds", "Seconds of a batch", registry=self.registry)
        self.batcher = Batcher(self._work, most, self._seen)
        waiting = Gauge("transduct_waiting", "Inputs nobody works on yet", registry=self.registry)
        waiting.set_function(lambda: self.batcher.waiting)

    def application(self) -> Starlette:
        """What a server of the ASGI runs."""
        verbs: dict[str, Endpoint] = {"/predict": self._predict}
        if hasattr(self.model, "translate"):
            verbs |= {"/translate": self._translate, "/score": self._score, "/attention": self._attention}
        routes = [Route(path, self._guarded(path, endpoint), methods=["POST"]) for path, endpoint in verbs.items()]
        for path, shown in (("/", self._page), ("/health", self._health), ("/metrics", self._metrics)):
            routes.append(Route(path, shown, methods=["GET"]))
        handlers: dict[Any, Any] = {404: _refused, 405: _refused, Exception: self._broken}
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.batcher.run()), asyncio.create_task(self._warm())]
        yield
        for task in tasks:
            task.cancel()

    async def _warm(self) -> None:
        """Answer something, so that nobody waits for what is done once."""
        if self.reads == "text":
            try:
                await self.batcher.ask("predict", WARMING, {})
            except TransductError:  # a pair is wanted, say: then it is as warm as it gets
                log.debug("nothing to warm it with", exc_info=True)
        self.warm = True

    def _work(self, verb: str, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
        """What the batcher does with a slice, in its own thread."""
        if verb == "score":
            found: list[Any] = self.model.score(*map(list, zip(*inputs)))
            return found
        if verb == "attention":
            return [self.model.attention(*each) for each in inputs]
        return list(getattr(self.model, verb)(inputs, **options))

    def _seen(self, inputs: int, seconds: float) -> None:
        self._inputs.inc(inputs)
        self._sizes.observe(inputs)
        self._seconds.observe(seconds)

    def _guarded(self, path: str, endpoint: Endpoint) -> Endpoint:
        """An endpoint that asks for a key and turns what goes wrong into an answer."""

        async def answer(request: Request) -> Response:
            try:
                self._check_key(request)
                response = await endpoint(request)
            except Problem as problem:
                response = JSONResponse({"error": str(problem)}, problem.status, problem.headers)
            except Full as full:
                response = JSONResponse({"error": str(full)}, 429, {"Retry-After": str(full.seconds)})
            except TransductError as error:
                response = JSONResponse({"error": str(error)}, 500 if isinstance(error, NotFinite) else 400)
            self._answers.labels(path, response.status_code).inc()
            return response

        return answer

    def _check_key(self, request: Request) -> None:
        if not self.keys:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
        if not sum(hmac.compare_digest(given, key) for key in self.keys):  # looks at all of them, whatever is given
            raise Problem(401, "no such key; send the header 'Authorization: Bearer KEY'")

    async def _translate(self, request: Request) -> Response:
        body = await self._json(request)
        texts = _texts(body.pop("texts", None), "texts")
        found = await self._ask(request, "translate", texts, _options(body))
        return JSONResponse({"translations": [_translation(each) for each in found]})

    async def _score(self, request: Request) -> Response:
        given = record(Score, await self._json(request), "", "the request")
        sources, targets = _texts(given.sources, "sources"), _texts(given.targets, "targets")
        if len(sources) != len(targets):
            raise TransductError(f"found {len(sources)} sources and {len(targets)} targets; give as many of each")
        return JSONResponse({"scores": await self._ask(request, "score", list(zip(sources, targets)), {})})

    async def _attention(self, request: Request) -> Response:
        given = record(Attention, await self._json(request), "", "the request")
        _texts([given.text, given.target or ""], "text")
        [found] = await self._ask(request, "attention", [(given.text, given.target)], {})
        rows, columns, alignment = found.alignment()
        name = given.name or next(reversed(found.weights))
        if name not in found.weights:
            raise TransductError(f"unknown name '{name}'; known are: {', '.join(found.weights)}")
        queries, keys = found.labels(name)
        heads = (found[name] * 1e4).round().div(1e4)  # four digits are enough to draw
        aligned = {"rows": rows, "columns": columns, "weights": (alignment * 1e4).round().div(1e4).tolist()}
        weights = {"name": name, "rows": queries, "columns": keys, "heads": heads.tolist()}
        return JSONResponse({"names": list(found.weights), "alignment": aligned, **weights})

    async def _predict(self, request: Request) -> Response:
        if self.reads != "text":
            output, drawn = await self._predict_file(request)
            return Response(drawn, media_type="image/png") if drawn else JSONResponse({"outputs": [_plain(output)]})
        given = record(Predict, await self._json(request), "", "the request")
        inputs = _texts(given.inputs, "inputs")
        if self.paints and len(inputs) != 1:
            raise TransductError(f"found {len(inputs)} inputs, the answer is one picture; send one")
        outputs = await self._ask(request, "predict", inputs, _options(given.options or {}))
        if self.paints:
            return Response(self._png(inputs[0], outputs[0]), media_type="image/png")
        return JSONResponse({"outputs": [_plain(output) for output in outputs]})

    async def _predict_file(self, request: Request) -> tuple[Any, bytes]:
        """The answer to a file that was sent, and its picture if the model paints."""
        if request.headers.get("content-type", "").startswith("application/json"):
            raise Problem(415, f"this model reads a {self.reads}; send the file itself as the body, with its type")
        options: dict[str, Any] = {}
        for name, value in request.query_params.items():
            options |= parse_override(f"{name}={value}")
        content = await _body(request)
        with tempfile.NamedTemporaryFile(suffix=ENDINGS[self.reads]) as file:
            file.write(content)
            file.flush()
            try:
                [output] = await self._ask(request, "predict", [file.name], _options(options))
            except TransductError as error:
                raise TransductError(str(error).replace(file.name, f"the {self.reads}")) from error
            return output, self._png(file.name, output) if self.paints else b""

    def _png(self, given: str, output: Any) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "drawn.png"
            draw(self.model, given, output, path)
            return path.read_bytes()

    async def _json(self, request: Request) -> dict[str, Any]:
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise Problem(415, "send JSON, with the header 'Content-Type: application/json'")
        try:
            body = json.loads(await _body(request))
        except (ValueError, RecursionError) as error:
            raise TransductError(f"the request is not valid JSON: {error}") from error
        if not isinstance(body, dict):
            raise TransductError(f"the request is a JSON {type(body).__name__}, expected an object")
        return body

    async def _ask(self, request: Request, verb: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """The batcher's answer, for as long as whoever asked is there and patient."""
        asked = asyncio.create_task(self.batcher.ask(verb, inputs, options))
        gone = asyncio.create_task(_gone(request))
        try:
            await asyncio.wait([asked, gone], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            if gone.done():
                raise Problem(499, "the client has gone")
            raise Problem(503, f"not done within {PATIENCE:.0f} s; send less at once", self.batcher.advice)
        finally:
            asked.cancel()
            gone.cancel()

    async def _broken(self, request: Request, _: Exception) -> Response:
        """A mistake of ours, of which the log says more."""
        self._answers.labels(request.url.path, 500).inc()
        return JSONResponse({"error": "the server has made a mistake; its log says more"}, 500)

    async def _page(self, _: Request) -> Response:
        return HTMLResponse(files("transduct.interfaces").joinpath("web/index.html").read_text(encoding="utf-8"))

    async def _health(self, _: Request) -> Response:
        said = {"status": "ready" if self.warm else "warming", "model": self.name, "version": __version__}
        can = {"reads": self.reads, "paints": self.paints, "translates": hasattr(self.model, "translate")}
        return JSONResponse(said | can, 200 if self.warm else 503, {} if self.warm else {"Retry-After": "1"})

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)


async def _refused(_: Request, error: Any) -> Response:
    """No such path, or no such method for it."""
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _gone(request: Request) -> None:
    """Wait until whoever asked has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    """The body of a request, of which no more is read than is taken."""
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise Problem(413, f"the request is larger than {LARGEST >> 20} MiB; send less at once")
    return b"".join(parts)


def _texts(values: Any, name: str) -> list[str]:
    """What should be a list of texts that are not too long."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TransductError(f"the request: '{name}' must be a list of texts")
    if any(map(HALVES.search, values)):
        raise TransductError(f"the request: '{name}' holds half a character, a surrogate without its other half")
    if (longest := max(map(len, values), default=0)) > LONGEST:
        raise Problem(413, f"a text has {longest:,} characters, at most {LONGEST:,} are taken; send it in parts")
    return values


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Options that anyone may set, as far as anyone may."""
    for name, value in given.items():
        if name in OURS:
            raise TransductError(f"'{name}' is set by whoever runs the server; leave it out")
        if isinstance(value, int) and value > MOST.get(name, value):
            raise TransductError(f"{name} is {value}, the server takes at most {MOST[name]}")
    return given


def _translation(found: Any) -> dict[str, Any]:
    others = [{"text": other.text, "score": other.score} for other in found.alternatives]
    return {"text": found.text, "score": found.score, "alternatives": others}


def _plain(output: Any) -> Any:
    """An answer as JSON has it."""
    return [asdict(each) for each in output] if isinstance(output, list) else str(output)


def read_keys(path: Path) -> list[str]:
    """The keys in a file, one a line.

    Raises:
        TransductError: it cannot be read, or holds none.
    """
    try:
        keys = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise TransductError(f"{path}: cannot be read ({error}); give a text file with one key a line") from error
    if not keys:
        raise TransductError(f"{path}: holds no key; write one a line")
    return keys


def serve(
    path: str, host: str, port: int, waiting: int, keys: Path | None, device: str = "auto", precision: str = "float32"
) -> None:
    """Serve a model until SIGTERM or Ctrl-C; what has been asked by then is still answered.

    Raises:
        TransductError: there is no model, the port is taken, the keys cannot be read, or the extra is not installed.
    """
    if waiting < 1:
        raise TransductError(f"--waiting is {waiting}, must be at least 1")
    known = [] if keys is None else read_keys(keys)
    service = Service(load(path, device, precision), Path(path).resolve().name, waiting, known)
    config = uvicorn.Config(service.application(), log_level="warning", access_log=False)
    with closing(_listening(host, port)) as listening:
        name, port = listening.getsockname()[:2]
        print(f"serving {path} on http://{name}:{port} (Ctrl-C ends)", file=sys.stderr, flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn drains, and then raises the signal once more
            signal.signal(number, lambda *_: None)
        uvicorn.Server(config).run(sockets=[listening])


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
        except OSError as error:
            raise TransductError(f"cannot listen on {host}:{port} ({error}); give another --port or --host") from error
        unless_it_works.pop_all()
    return made
