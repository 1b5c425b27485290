"""The HTTP service for one model: JSON for programs, a web page for people.

    POST /translate   {"texts": [..], "prefixes": [..], "from": "en", "to": "ko", "beam": 5, ..}
                      {"translations": [{"text", "score", ..}, ..]}
    POST /score       {"sources": [..], "targets": [..]}        {"scores": [..]}
    POST /attention   {"text": .., "target": .., "name": ..}    where the model looked
    POST /predict     {"inputs": [..], "options": {..}}         {"outputs": [..]}, or a PNG
                      or a picture or a sound as the body, with options in the query string
    GET  /            the web page
    GET  /health      200 once warm
    GET  /metrics     for Prometheus

Errors are {"error": ".."}: 400 wrong request, 401 no valid key, 413 too large, 415 wrong content
type; 429 queue full and 503 timed out, both with Retry-After; 500 server error.
"""

import asyncio
import hmac
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from transduct import __version__
from transduct.data.images import encode_picture
from transduct.errors import MissingExtra, NotFinite, TransductError, needing
from transduct.predictors.base import Predictor, json_value
from transduct.predictors.options import PredictConfig
from transduct.records import record
from transduct.serving import jobs
from transduct.serving.batcher import Batcher, Full
from transduct.serving.jobs import BESIDE, Job
from transduct.serving.requests import (
    Attention,
    Predict,
    Problem,
    Score,
    checked_options,
    is_json,
    read,
    taken_languages,
    texts_of,
    value_of,
)

with needing("serve"):
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        generate_latest,
    )
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

# the most bytes of a request body, and of all bodies held at once
LARGEST, HELD = 16 << 20, 256 << 20
# the most bytes of a JSON body, and the memory per byte once it is parsed
LARGEST_JSON, WEIGHT = 2 << 20, 32
LARGEST_MAP = 1 << 16  # the most attention weights per head in an answer
DEAREST_TEXT = 40_000  # the largest cost of a text: characters, read and requested, times the beam
SLICE, SLICE_ON_GPU = 4_096, 16_384  # the most tokens worked on together
AT_A_GLANCE = 4_000  # the most characters that are cut into pieces without a thread of their own
SHORT_BATCHES = 512  # tokens that a model without a search computes between two pauses
PATIENCE = 60.0  # seconds that a request may take
# suffix of the temporary file; the real type is read from its content
ENDINGS = {"picture": ".png", "sound": ".wav"}
WARMING = ["a", "A sentence that is a little longer than that."]
log = logging.getLogger("transduct")
Endpoint = Callable[[Request], Awaitable[Response]]


class Service:
    """The service for one model.

    Args:
        model: the result of `transduct.load`.
        name: the model's name.
        most: how many inputs may wait.
        keys: if there are any, each request must bring one ("Authorization: Bearer KEY").
    """

    def __init__(self, model: Predictor, name: str, most: int, keys: Sequence[str] = ()) -> None:
        import torch

        self.model: Any = model  # a `Predictor` with the methods that its `verbs` name
        self.name, self.keys, self.warm = name, [key.encode() for key in keys], False
        self.translates = "translate" in model.verbs
        on_gpu = torch.cuda.is_initialized()
        self._device = torch.cuda.current_device() if on_gpu else None
        self.reads, self.paints = model.reads, model.paints
        self.registry = CollectorRegistry()
        self._answers = Counter(
            "transduct_requests", "Answers", ["path", "status"], registry=self.registry
        )
        self._inputs = Counter("transduct_inputs", "Inputs answered", registry=self.registry)
        self._sizes = Histogram(
            "transduct_batch_size",
            "Inputs together",
            buckets=[1, 2, 4, 8, 16, 32, 64],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "transduct_batch_seconds", "Seconds of a batch", registry=self.registry
        )
        budget = SLICE_ON_GPU if on_gpu else SLICE
        self.batcher = Batcher(most, budget, self._seen, self._choose_device)
        self._held, self._broken = 0, False
        waiting = Gauge("transduct_waiting", "Inputs waiting in the queue", registry=self.registry)
        waiting.set_function(lambda: self.batcher.waiting)

    def application(self) -> Starlette:
        """The ASGI application."""
        verbs: dict[str, Endpoint] = {"/predict": self._predict}
        if self.translates:
            verbs |= {
                "/translate": self._translate,
                "/score": self._score,
                "/attention": self._attention,
            }
        routes = [
            Route(path, self._guarded(path, endpoint), methods=["POST"])
            for path, endpoint in verbs.items()
        ]
        for path, endpoint in (
            ("/", self._page),
            ("/health", self._health),
            ("/metrics", self._metrics),
        ):
            routes.append(Route(path, endpoint, methods=["GET"]))
        handlers: dict[Any, Any] = {404: _refused, 405: _refused, Exception: self._mistaken}
        application = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        # a redirect would repeat the client's Host header
        application.router.redirect_slashes = False
        return application

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.batcher.run()), asyncio.create_task(self._warm())]
        for task in tasks:
            task.add_done_callback(self._ended)
        yield
        for task in tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Mark the service as broken if a background task has failed."""
        if not task.cancelled() and (error := task.exception()):
            self._broken = True
            log.critical("the server is broken: %s", error, exc_info=error)

    async def _warm(self) -> None:
        """Answer a few sentences, so that no client waits for one-time initialisation.

        Raises:
            NotFinite: if the model's outputs are not finite.
        """
        if self.reads == "text":
            for text in WARMING:
                try:
                    await self._answers_to("predict", [text], {}, "")
                except NotFinite:
                    raise
                # e.g. the task takes pairs, or requests are already warming it
                except (TransductError, Full):
                    log.debug("nothing to warm it with", exc_info=True)
        self.warm = True

    def _settings(self, options: Mapping[str, Any]) -> tuple[int, int]:
        """The tokens that an answer is asked to have, and the rows of the search for it."""
        settings = {"length": 0, "beam": 1, "samples": 1, "n_best": 1}
        settings |= vars(self.model.decoding) | dict(options)
        return settings["length"], max(settings[name] for name in ("beam", "samples", "n_best"))

    def _cost(self, verb: str, given: Any, options: Mapping[str, Any]) -> int:
        """The size of an input before anything has read it: in characters read and asked for, times
        the rows of the search."""
        texts = [given] if isinstance(given, str) else [text for text in given[:2] if text]
        size = sum(map(len, texts))
        if verb == "score" or (verb == "attention" and given[1] is not None):
            return size  # both sides are given: no search
        length, rows = self._settings(options)
        codes = 2 * self.model.places if self.paints else 0  # computed with and without the text
        return int((size + length + codes) * rows)

    def _job(self, verb: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Job:
        """The inputs of a request in pieces of work, with their costs in tokens."""
        model = self.model
        if verb == "translate":
            texts, prefixes = [text for text, _ in inputs], [prefix for _, prefix in inputs]
            given = prefixes if any(prefixes) else None
            return jobs.translation(model, texts, given, options, lambda found: found)
        if self.translates and verb == "predict":
            return jobs.translation(model, inputs, None, options, lambda found: found.text)
        length, rows = self._settings(options)
        if verb == "score":
            sides = [model.token_counts(list(side)) for side in zip(*inputs)]
            costs = [sum(pair) + BESIDE for pair in zip(*sides)]
            kind = f"{verb} {sorted(options.items())}"
            return Job.of_inputs(
                kind, inputs, costs, lambda some: model.score(*map(list, zip(*some)), **options)
            )
        if verb == "attention":  # one by one, because all heads of all layers take much memory
            [(text, target, name)] = inputs
            [count] = model.token_counts([text])
            cost = (3 * count + BESIDE) * (1 if target is not None else rows)
            return Job.of_inputs(
                f"{verb} {name} {sorted(options.items())}",
                inputs,
                [cost],
                lambda some: [
                    _shown(model.attention(*each[:2], **options), each[2]) for each in some
                ],
            )
        if isinstance(model.decoding, PredictConfig):
            options = {"batch_tokens": SHORT_BATCHES, **options}
        costs = [(count + length + BESIDE) * rows for count in model.token_counts(inputs)]
        kind = f"{verb} {sorted(options.items())}"
        return Job.of_inputs(kind, inputs, costs, lambda some: list(model.predict(some, **options)))

    def _choose_device(self) -> None:
        """Work on the model's device: the current one is set for each thread."""
        if self._device is not None:
            import torch

            torch.cuda.set_device(self._device)

    def _seen(self, inputs: int, seconds: float) -> None:
        self._sizes.observe(inputs)
        self._seconds.observe(seconds)

    def _guarded(self, path: str, endpoint: Endpoint) -> Endpoint:
        """Wrap an endpoint: check the key, limit the time, and turn exceptions into error
        answers."""

        async def answer(request: Request) -> Response:
            request.state.held = 0
            try:
                self._check_key(request)
                async with asyncio.timeout(PATIENCE):
                    response = await endpoint(request)
            except Problem as problem:
                response = _error(problem.status, problem)
            except ClientDisconnect:
                response = _error(499, "the client has gone")
            except TimeoutError:
                response = _error(
                    503, f"not done within {PATIENCE:.0f} s; send less at once", self.batcher.advice
                )
            except Full as full:
                response = _error(429, full, full.seconds)
            except TransductError as error:
                if isinstance(error, MissingExtra):  # for the operator; a client cannot fix it
                    log.error("%s", error)
                response = _error(
                    500 if isinstance(error, NotFinite | MissingExtra) else 400, error
                )
            finally:
                self._held -= request.state.held
            self._answers.labels(path, response.status_code).inc()
            return response

        return answer

    def _check_key(self, request: Request) -> None:
        if not self.keys:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # all, in constant time
        known = sum(hmac.compare_digest(given.strip().encode(), key) for key in self.keys)
        if not known or scheme.lower() != "bearer":
            raise Problem(401, "no such key; send the header 'Authorization: Bearer KEY'")

    async def _translate(self, request: Request) -> Response:
        body = await self._json(request)
        texts = texts_of(body.pop("texts", None), "texts")
        prefixes = texts_of(body.pop("prefixes", [""] * len(texts)), "prefixes")
        if len(texts) != len(prefixes):
            raise TransductError(
                f"found {len(texts)} texts and {len(prefixes)} prefixes; give one for each"
            )
        options = checked_options(body)
        pairs = list(zip(texts, prefixes))
        found = await self._ask(request, "translate", pairs, options)
        return _answered("translations", found, _translation, await self._unknown(texts))

    async def _score(self, request: Request) -> Response:
        content = await self._json(request)
        languages = taken_languages(content)
        body = record(Score, content, "", "the request")
        sources, targets = texts_of(body.sources, "sources"), texts_of(body.targets, "targets")
        if len(sources) != len(targets):
            raise TransductError(
                f"found {len(sources)} sources and {len(targets)} targets; give as many of each"
            )
        found = await self._ask(request, "score", list(zip(sources, targets)), languages)
        return _answered("scores", found, float, await self._unknown(sources))

    async def _attention(self, request: Request) -> Response:
        content = await self._json(request)
        languages = taken_languages(content)
        body = record(Attention, content, "", "the request")
        texts_of([body.text, body.target or ""], "text")
        asked = [(body.text, body.target, body.name)]
        [shown] = await self._ask(request, "attention", asked, languages)
        if isinstance(shown, TransductError):
            raise shown
        return JSONResponse(shown | await self._unknown([body.text]))

    async def _unknown(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """A field of the answer where the model could not read some characters: how many, of each
        text."""
        counts = await asyncio.to_thread(lambda: [len(self.model.unknown(text)) for text in texts])
        return {"unknown": counts} if any(counts) else {}

    async def _predict(self, request: Request) -> Response:
        if self.reads != "text":
            output, drawn = await self._predict_file(request)
            return (
                Response(drawn, media_type="image/png")
                if drawn
                else JSONResponse({"outputs": [json_value(output)]})
            )
        body = record(Predict, await self._json(request), "", "the request")
        inputs = texts_of(body.inputs, "inputs")
        if self.paints and len(inputs) != 1:
            raise TransductError(f"found {len(inputs)} inputs, the answer is one picture; send one")
        outputs = await self._ask(request, "predict", inputs, checked_options(body.options or {}))
        if self.paints and not isinstance(outputs[0], TransductError):
            drawn = await asyncio.to_thread(self._png, inputs[0], outputs[0])
            return Response(drawn, media_type="image/png")
        return _answered("outputs", outputs, json_value, await self._unknown(inputs))

    async def _predict_file(self, request: Request) -> tuple[Any, bytes]:
        """The answer to an uploaded file and, if the model paints, its picture."""
        kind = request.headers.get("content-type", "")
        if is_json(kind) or kind.strip().lower().startswith("multipart/"):
            raise Problem(
                415,
                f"this model reads a {self.reads}; send the file itself as the body: curl "
                "--data-binary @FILE URL/predict",
            )
        options = checked_options(
            {name: value_of(value) for name, value in request.query_params.items()}
        )
        with tempfile.NamedTemporaryFile(suffix=ENDINGS[self.reads]) as file:
            file.write(await self._body(request, LARGEST))
            file.flush()
            try:
                [output] = await self._ask(request, "predict", [file.name], options)
                if isinstance(output, TransductError):
                    raise output
            except (NotFinite, MissingExtra):
                raise
            except TransductError as error:  # without the name of the temporary file
                raise error.at(file=error.file and f"the {self.reads}") from error
            return output, await asyncio.to_thread(
                self._png, file.name, output
            ) if self.paints else b""

    def _png(self, given: str, output: Any) -> bytes:
        return encode_picture(self.model.picture(given, output), Path("drawn.png"))

    async def _json(self, request: Request) -> dict[str, Any]:
        if not is_json(request.headers.get("content-type", "")):
            raise Problem(415, "send JSON, with the header 'Content-Type: application/json'")
        content = await self._body(request, LARGEST_JSON, WEIGHT)
        try:
            body = read(content)
        except (ValueError, RecursionError) as error:
            raise TransductError(f"the request is not valid JSON: {error}") from error
        if not isinstance(body, dict):
            raise TransductError(f"the request is a JSON {type(body).__name__}, expected an object")
        for value in body.values():
            # too many inputs are rejected before their texts are checked
            if isinstance(value, list):
                self.batcher.check(len(value))
        return body

    async def _body(self, request: Request, largest: int, weight: int = 1) -> bytes:
        """Read the body of a request, at most `largest` bytes; `weight` is the memory each byte
        takes once parsed."""
        parts, size = [], 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > largest:
                raise Problem(
                    413, f"the request is larger than {largest >> 20} MiB; send less at once"
                )
            self._hold(request, len(part))
        self._hold(request, (weight - 1) * size)
        return b"".join(parts)

    def _hold(self, request: Request, count: int) -> None:
        """Count memory held for a request. Raises `Full` if all requests together hold too much. A
        small one finds room of its own, so that large ones cannot lock it out."""
        request.state.held += count
        self._held += count
        small = request.state.held <= HELD // 128
        if self._held > HELD + (HELD // 4 if small else 0):
            raise Full(self.batcher.advice)

    async def _ask(
        self, request: Request, verb: str, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> list[Any]:
        """The batcher's answer, unless the client disconnects first."""
        for each in inputs if self.reads == "text" else []:
            if (cost := self._cost(verb, each, options)) > DEAREST_TEXT:
                size = f"{cost:,} characters, those asked for counted and times the beam"
                raise Problem(
                    413,
                    f"{size}; at most {DEAREST_TEXT:,} are taken: send it in parts, or ask "
                    "for less",
                )
        answer = asyncio.create_task(self._answers_to(verb, inputs, options, self._client(request)))
        gone = asyncio.create_task(_gone(request))
        try:
            await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise ClientDisconnect
        finally:
            answer.cancel()
            gone.cancel()

    async def _answers_to(
        self, verb: str, inputs: Sequence[Any], options: Mapping[str, Any], client: str
    ) -> list[Any]:
        """An answer, or the error that concerns it alone, for each input."""
        if sum(len(str(each)) for each in inputs) <= AT_A_GLANCE:
            job = self._job(verb, inputs, options)
        else:  # what takes long to read must not hold up the others
            job = await asyncio.to_thread(self._job, verb, inputs, options)
        found = await self.batcher.ask(job, client)
        self._inputs.inc(len(found))
        return found

    def _client(self, request: Request) -> str:
        """Who takes turns with others: the owner of a key, or else of an address."""
        if self.keys:
            return request.headers.get("authorization", "")
        return request.client.host if request.client else ""

    async def _mistaken(self, request: Request, _: Exception) -> Response:
        """The answer to an unexpected exception, which is in the log."""
        self._answers.labels(request.url.path, 500).inc()
        return _error(500, "internal error; the server's log has the details")

    async def _page(self, _: Request) -> Response:
        return HTMLResponse(
            files("transduct.serving").joinpath("web/index.html").read_text(encoding="utf-8")
        )

    async def _health(self, _: Request) -> Response:
        status = "broken" if self._broken else "ready" if self.warm else "warming"
        about = {"status": status, "model": self.name, "version": __version__}
        can = {
            "reads": self.reads,
            "paints": self.paints,
            "translates": self.translates,
        }
        headers = {"Retry-After": "1"} if status == "warming" else {}
        return JSONResponse(
            about | can, {"ready": 200, "warming": 503, "broken": 500}[status], headers
        )

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)


async def _refused(_: Request, error: Any) -> Response:
    """The answer to an unknown path or method."""
    response = _error(error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


def _error(status: int, message: object, seconds: int | None = None) -> Response:
    # it may quote surrogates from the request
    text = str(message).encode("utf-8", "replace").decode()
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(
        {"error": text}, status, headers if seconds is None else {"Retry-After": str(seconds)}
    )


async def _gone(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _answered(
    name: str,
    found: Sequence[Any],
    shown: Callable[[Any], Any],
    beside: dict[str, Any],
) -> Response:
    """What was found for each input: an answer, or null and, under "errors", what is wrong; with
    further fields beside it.

    Raises:
        TransductError: none has an answer.
    """
    errors = [str(each) if isinstance(each, TransductError) else None for each in found]
    if found and all(errors):
        raise found[0]
    answers = [None if error else shown(each) for each, error in zip(found, errors)]
    return JSONResponse({name: answers} | ({"errors": errors} if any(errors) else {}) | beside)


def _translation(found: Any) -> dict[str, Any]:
    others = [{"text": other.text, "score": other.score} for other in found.alternatives]
    return {"text": found.text, "score": found.score, "alternatives": others}


def _shown(found: Any, name: str | None) -> dict[str, Any]:
    """The alignment and one attention map, the last one if no name is given.

    Raises:
        TransductError: if there is no map of this name.
        Problem: if the map is too large for an answer.
    """
    rows, columns, alignment = found.alignment()
    name = name or next(reversed(found.weights))
    if name not in found.weights:
        raise TransductError(f"unknown name '{name}'; known are: {', '.join(found.weights)}")
    queries, keys = found.labels(name)
    if len(rows) * len(columns) > LARGEST_MAP or found[name][0].numel() > LARGEST_MAP:
        raise Problem(
            413,
            f"more than {LARGEST_MAP:,} weights a head are too many to be shown; shorten the text",
        )
    aligned = {"rows": rows, "columns": columns, "weights": _four_digits(alignment)}
    weights = {"name": name, "rows": queries, "columns": keys, "heads": _four_digits(found[name])}
    return {"names": list(found.weights), "alignment": aligned, **weights}


def _four_digits(weights: Any) -> Any:
    """Weights as lists of numbers, rounded to four digits."""
    return weights.double().mul(1e4).round().div(1e4).tolist()
