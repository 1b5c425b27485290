"""The HTTP service: finds models for requests, and asks them.

The paths are in one file for each API: `libretranslate`, `openai`, `deepl`, and `native` for ours.
"""

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from transduct.data.tokenizer_file import is_blank
from transduct.errors import MissingExtra, NotFinite, TransductError, needing, require
from transduct.formats.marked import Segment, plain
from transduct.formats.office import TooLarge
from transduct.predictors.long_texts import Translation
from transduct.predictors.terms import Glossary
from transduct.serving import calls, deepl, libretranslate, native, openai
from transduct.serving.calls import JSON, OURS, Api, Call, Endpoint, Found, Wanted
from transduct.serving.detection import detect
from transduct.serving.downloads import Downloads
from transduct.serving.front import Front, Settings
from transduct.serving.jobs import ignore
from transduct.serving.keys import Keys, of_header
from transduct.serving.metrics import Metrics
from transduct.serving.openapi import description
from transduct.serving.requests import Problem, expect, media_type
from transduct.serving.served_models import Models, Pair, Served, Step

with needing("serve"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware.cors import CORSMiddleware
    from starlette.middleware.errors import ServerErrorMiddleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

SHARED: Any = {  # what pages of allowed origins may send and read
    "allow_methods": ("GET", "POST"),
    "allow_headers": ("authorization", "x-request-id"),
    "expose_headers": ("x-request-id", "retry-after"),
}
ALL_STEPS = "beam", "format", "placeholders"  # options of each model of a chain
log = logging.getLogger("transduct")


class Service:
    """The service for some models.

    Args:
        models: those that requests may ask for.
        keys: if there are any, each request must bring one.
        suggestions: the file that takes suggestions for better translations.
        files: the folder of translated documents, for servers that have it in common.
        glossaries: those that requests may name.
    """

    def __init__(
        self,
        models: Models,
        keys: Keys | None = None,
        settings: Settings | None = None,
        suggestions: Path | None = None,
        files: Path | None = None,
        glossaries: Mapping[str, Glossary] | None = None,
    ) -> None:
        self.glossaries = glossaries or {}
        self.models, self.keys, self.suggestions = models, keys, suggestions
        self.settings = settings or Settings()
        self.downloads = Downloads(files)
        self.metrics = Metrics()
        self.metrics.watch(models)
        models.watch = self.metrics.batch
        self.ready, self.ending = True, False
        self.held = 0  # bytes of requests in memory
        self.characters = 0  # translated so far
        self.endpoints: list[Endpoint] = [
            *native.ENDPOINTS,
            *libretranslate.ENDPOINTS,
            *openai.ENDPOINTS,
            *deepl.ENDPOINTS,
        ]

    # the application

    def application(self) -> Any:
        """The ASGI application."""
        routes = [
            Route(each.path, self._guarded(each), methods=[each.method]) for each in self.endpoints
        ]
        handlers: dict[Any, Any] = {HTTPException: self._unknown_path}
        application = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        # a redirect would repeat the client's Host header
        application.router.redirect_slashes = False
        named = {(each.method, each.path): self._guarded(each) for each in self.endpoints}

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            # by name, because to try the pattern of each path takes longer
            handle = named.get((scope.get("method"), scope.get("path")))
            if handle is None:
                await application(scope, receive, send)
            else:
                response = await handle(Request(scope, receive, send))
                await response(scope, receive, send)

        inside: Any = ServerErrorMiddleware(answer, self._failed)
        if self.settings.origins:
            inside = CORSMiddleware(inside, self.settings.origins, **SHARED)
        front: Any = Front(inside, self)
        if self.settings.proxies:
            networks = [str(ip_network(each, strict=False)) for each in self.settings.proxies]
            front = ProxyHeadersMiddleware(front, networks)
        return front

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.models.start()
        yield
        self.models.stop()
        self.downloads.close()

    def description(self) -> dict[str, Any]:
        """The description of all paths, by OpenAPI."""
        return description(self.endpoints, self.settings.prefix)

    async def reload(self) -> None:
        """Read the keys and the models' folders again; what is wrong stays as it was."""
        try:
            if self.keys is not None:
                self.keys.read()
        except TransductError as error:
            log.error("the keys stay as they were: %s", error)
        await self.models.reload()

    def _guarded(self, endpoint: Endpoint) -> Callable[[Request], Any]:
        """Wrap an endpoint: check the key, limit the time, check the body, and turn exceptions into
        error answers."""

        async def answer(request: Request) -> Response:
            call: Call = request.scope["state"]["call"]
            call.request, call.path, call.api = request, endpoint.path, endpoint.api
            call.patience = endpoint.patience or calls.PATIENCE
            try:
                expect(
                    not self.ending,
                    503,
                    "the server is ending; ask it again in a second",
                    seconds=1,
                    close=True,
                )
                async with asyncio.timeout(call.patience) as limit:
                    return await self._handled(call, endpoint)
            except (Problem, TransductError, ClientDisconnect, TimeoutError) as error:
                if isinstance(error, TimeoutError) and not limit.expired():
                    raise
                return endpoint.api.refusal(self._problem(call, error))

        return answer

    async def _handled(self, call: Call, endpoint: Endpoint) -> Response:
        """The answer of an endpoint. The key is checked before the body is read, unless it is in
        the body."""
        key = of_header(call.request.headers.get("authorization", ""))
        key = key or call.request.query_params.get("api_key", "")
        kind, _ = media_type(call.request.headers.get("content-type", ""))
        no_fields = not endpoint.bodies or (endpoint.files and kind != JSON)
        if key or no_fields:
            self._admit(call, endpoint, key)
        if no_fields:
            return await endpoint.handle(call, None)
        fields = await call.fields(endpoint)
        key_in_body = fields.pop("api_key", None)
        if not key:
            self._admit(call, endpoint, key_in_body if isinstance(key_in_body, str) else "")
        return await call.alive(endpoint.handle(call, endpoint.checked(fields)))

    def _admit(self, call: Call, endpoint: Endpoint, key: str) -> None:
        """Check a key, and count its request."""
        if self.keys is None or endpoint.open:
            return
        call.key = self.keys.find(key)
        if call.key is None:
            raise Problem(
                401, "no such key; send the header 'Authorization: Bearer KEY'", close=call.large
            )
        call.key.enter()

    def _problem(self, call: Call, error: Exception) -> Problem:
        """An error as a client sees it."""
        if isinstance(error, Problem):
            return error
        if isinstance(error, ClientDisconnect):
            return Problem(499, "the client has gone")
        if isinstance(error, TimeoutError):
            if call.reading:
                late = f"the request was not sent within {call.patience:.0f} s; send it faster"
                return Problem(408, late, close=True)
            late = f"not done within {call.patience:.0f} s; send less at once"
            return Problem(504, late, seconds=self.models.advice)
        if isinstance(error, MissingExtra):  # for the operator; a client cannot fix it
            log.error("%s", error)
        statuses = {NotFinite: 500, MissingExtra: 500, TooLarge: 413}
        return Problem(statuses.get(type(error), 400), str(error))

    async def _unknown_path(self, request: Request, error: Exception) -> Response:
        """The answer to an unknown path or method."""
        assert isinstance(error, HTTPException)
        path = request.url.path
        other = deepl.API if path.startswith(("/v2/", "/v3/")) else OURS
        api = next((each.api for each in self.endpoints if each.path == path), other)
        response = api.refusal(Problem(error.status_code, error.detail))
        response.headers.update(error.headers or {})
        return response

    async def _failed(self, request: Request, _: Exception) -> Response:
        """The answer to an unexpected exception, which is in the log."""
        api: Api = request.scope["state"]["call"].api
        return api.refusal(Problem(500, "internal error; the server's log has the details"))

    # what endpoints ask for

    def check_count(self, count: int) -> None:
        """Check that a queue could take this many inputs.

        Raises:
            TransductError: if it could not.
        """
        require(
            count <= self.models.waiting,
            f"found {count} inputs, at most {self.models.waiting} may wait; send fewer at once",
        )

    async def ask(
        self,
        call: Call,
        served: Served,
        verb: str,
        inputs: Sequence[Any],
        options: Mapping[str, Any],
        follow: Callable[[Any], None] | None = None,
    ) -> list[Any]:
        """An answer, or the error that concerns it alone, for each input."""
        self.check_count(len(inputs))
        call.model = call.model or served.name
        async with self.models.use(served) as hosted:
            hosted.check(verb, inputs, options)
            begin = ignore if verb == "tokens" else call.begin  # which reads nothing anew
            found = await hosted.answers(verb, inputs, options, call.client, begin, follow)
        self.metrics.inputs.inc(len(found))
        return found

    async def unknown(self, served: Served, texts: Sequence[str]) -> dict[str, list[int]]:
        """A field of the answer where the model could not read some characters: how many, of each
        text."""
        async with self.models.use(served) as hosted:
            counts = await hosted.prompt(
                texts, lambda: [len(hosted.model.unknown(text)) for text in texts]
            )
        return {"unknown": counts} if any(counts) else {}

    def charge(self, call: Call, texts: Sequence[str]) -> None:
        """Count characters, for the quota of a key."""
        size = sum(map(len, texts))
        if call.key is not None:
            call.key.charge(size)
        self.characters += size

    async def detect(self, text: str) -> list[tuple[str, float]]:
        """The languages that a text may be in, the likeliest first, in percent."""
        codes = self.models.sources
        if is_blank(text) or not codes:
            return [(code, 0.0) for code in codes[:1]]
        return await asyncio.to_thread(detect, text, codes)

    async def translate(
        self, call: Call, wanted: Wanted, follow: Callable[[str], None] | None = None
    ) -> list[Found]:
        """Translate each text. A blank one is its own translation, and no model is asked.

        Args:
            follow: called with the beginning of the one translation, whenever more of it is known.
        """
        self.check_count(len(wanted.texts))
        expect(
            self.models.translators,
            404,
            "no model here translates; send texts to /v1/predict",
            "model",
        )
        served, pair = self.models.route_of_name(wanted.model)
        wanted = replace(wanted, options=self._with_terms(wanted.options))
        found = await self._sources(wanted, served, pair)
        target = self._target(wanted, served, pair, found[0].source if found else "")
        self.charge(call, wanted.texts)
        groups: dict[str, list[int]] = defaultdict(list)  # the texts in each language, by number
        for number, text in enumerate(wanted.texts):
            if not is_blank(text):
                groups[found[number].source].append(number)
        routes = {
            source: [] if source and source == target else self.models.route(source, target, served)
            for source in groups
        }

        async def translate_group(source: str, numbers: list[int]) -> None:
            texts = [(wanted.segments or wanted.texts)[number] for number in numbers]
            prefixes = [wanted.prefixes[n] for n in numbers] if wanted.prefixes else None
            steps = routes[source]
            outputs = await self._along(call, steps, texts, prefixes, wanted.options, follow)
            for number, output in zip(numbers, outputs, strict=True):
                found[number] = replace(found[number], translation=output, steps=tuple(steps))

        names = [step.served.name for steps in routes.values() for step in steps]
        call.model = "+".join(dict.fromkeys(names))  # for the log, each once
        work = [translate_group(source, numbers) for source, numbers in groups.items()]
        await (work[0] if len(work) == 1 else asyncio.gather(*work))
        call.answered()
        return found

    def _with_terms(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options with the glossary that they name. Placeholders stay, unless they say otherwise.

        Raises:
            Problem: there is no such glossary.
        """
        name = options.get("glossary")
        if isinstance(name, str) and name not in self.glossaries:
            known = ", ".join(self.glossaries) or "none"
            raise Problem(
                400, f"no glossary is called '{name:.40}'; there are: {known}", "glossary"
            )
        named = self.glossaries[name] if isinstance(name, str) else name
        return {"placeholders": True, **options, "glossary": named}

    async def _sources(
        self, wanted: Wanted, served: Served | None, pair: Pair | None
    ) -> list[Found]:
        """The language of each text, with the text as its own translation so far."""
        pairs = served.pairs if served else self.models.pairs
        unknown = [Found(_unchanged(text), "") for text in wanted.texts]
        if wanted.source and wanted.source != "auto":
            code = self.models.code(wanted.source)
            return [replace(each, source=code) for each in unknown]
        if pair is not None and not wanted.source:
            return [replace(each, source=pair[0]) for each in unknown]
        target = self.models.code(wanted.target, target=True) if wanted.target else ""
        possible = {a for a, b in pairs if not target or b == target}
        if not pairs or (len(possible) == 1 and not wanted.source):
            return [replace(each, source=next(iter(possible), "")) for each in unknown]
        if served is not None and not wanted.source:
            return unknown  # the model's own default
        texts: Sequence[str] = wanted.texts
        if wanted.options.get("format", "text") != "text":  # tags are in no language
            texts = [re.sub("<[^<>]*>", " ", text) for text in texts]
        detected = [await self.detect(text) for text in texts]
        return [
            replace(each, source=best[0][0], confidence=best[0][1]) if best else each
            for each, best in zip(unknown, detected, strict=True)
        ]

    def _target(self, wanted: Wanted, served: Served | None, pair: Pair | None, source: str) -> str:
        """The language to translate into; "" for the model's own default.

        Raises:
            Problem: several are possible.
        """
        if wanted.target:
            return self.models.code(wanted.target, target=True)
        if pair is not None:
            return pair[1]
        pairs = served.pairs if served else self.models.pairs
        targets = list(dict.fromkeys(b for a, b in pairs if a == source or not source))
        if len(targets) > 1 and served is None:
            known = ", ".join(targets[:12])
            raise Problem(400, f"no target language; give one of: {known}", "target")
        return targets[0] if len(targets) == 1 else ""

    async def _along(
        self,
        call: Call,
        steps: Sequence[Step],
        texts: Sequence[str | Segment],
        prefixes: Sequence[str] | None,
        options: Mapping[str, Any],
        follow: Callable[[str], None] | None,
    ) -> list[Any]:
        """Translate along a route, from model to model. A text with an error goes no further: its
        error is its answer."""
        found: list[Any] = [*map(_unchanged, texts)]
        if len(steps) > 1 and options.get("glossary"):
            middle = steps[1].source
            raise Problem(
                400, f"a glossary is for one model, and two are chained over {middle}", "glossary"
            )
        for step in steps:
            last = step is steps[-1]
            left = [n for n, each in enumerate(found) if isinstance(each, Translation)]
            begun = prefixes if last and prefixes else [""] * len(texts)
            given = [(found[n].parts or found[n].text, begun[n]) for n in left]
            languages = step.served.options(step.source, step.target)
            # options about several outputs concern the last step
            own = {k: v for k, v in options.items() if last or k in ALL_STEPS}
            follower = follow if last and len(given) == 1 else None
            outputs = await self.ask(
                call, step.served, "translate", given, {**own, **languages}, follower
            )
            for number, output in zip(left, outputs, strict=True):
                found[number] = output
            call.tokens_out += sum(
                len(each.tokens) + 1 for each in outputs if isinstance(each, Translation)
            )
        return found


def _unchanged(text: str | Segment) -> Translation:
    """A text as its own translation."""
    words, parts = (text, ()) if isinstance(text, str) else (plain(text), text)
    return Translation(words, 0.0, [], [Translation(words, 0.0, [], [], parts)], parts)
