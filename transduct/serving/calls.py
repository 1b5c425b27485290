"""A request on its way: what it is, who sends it, and how its body is read and checked."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, ValidationError

from transduct.errors import TransductError, needing, require
from transduct.formats.marked import Segment
from transduct.records import in_our_words
from transduct.serving.batcher import Full
from transduct.serving.requests import Problem, expect, media_type, read
from transduct.serving.served_models import Step

if TYPE_CHECKING:
    from transduct.serving.keys import Key
    from transduct.serving.service import Service

with needing("serve"):
    from starlette.formparsers import MultiPartException, MultiPartParser
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response

# the most bytes of a file, and of all bodies held at once
LARGEST, HELD = 16 << 20, 256 << 20
# the most bytes of any other body, and the memory per byte once it is parsed
LARGEST_JSON, WEIGHT = 2 << 20, 32
PATIENCE = 60.0  # seconds that a request may take
UNWATCHED = 0.25  # seconds of work until it is watched whether the client is still there
JSON, FORM, MULTIPART = (
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
)
OF_TOKENS = ("target", "prefix")  # fields that may hold the tokens of one text
HALVES = re.compile("[\ud800-\udfff]")  # surrogates, which JSON can express but UTF-8 cannot
Checked = TypeVar("Checked", bound=BaseModel)
Answer = TypeVar("Answer")


class Body(BaseModel):
    """The body of a request in another program's API, which may have more than we know."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class Terms(BaseModel):
    """What stands in the texts of a request, and what must in their translations.

    Attributes:
        format: text, or mark-up, whose tags stay.
        glossary: terms with a translation or several forms of it; or the name of a glossary of the
            operator's.
        placeholders: whether %s, {name}, numbers and the like must come as often as in a text.
    """

    format: Literal["text", "html", "xml"] = "text"
    glossary: str | dict[str, str | list[str]] | None = None
    placeholders: bool = True

    @property
    def terms(self) -> dict[str, Any]:
        """These as options of `translate`."""
        return {name: vars(self)[name] for name in Terms.model_fields}


@dataclass(frozen=True)
class Api:
    """What all requests of one API have in common.

    Attributes:
        name: its name in the description of the server.
        error: status, message and parameter -> the body of an error.
        shape: of that body; see `openapi.shape`.
        statuses: our status -> the API's, where it has another.
    """

    name: str
    error: Callable[[int, str, str | None], dict[str, Any]]
    shape: Any
    statuses: Mapping[int, int] = field(default_factory=dict)

    def refusal(self, problem: Problem) -> Response:
        """The answer to a request that is refused."""
        # it may quote surrogates from the request
        text = str(problem).encode("utf-8", "replace").decode()
        status = {456: 429, **self.statuses}.get(problem.status, problem.status)
        headers = {
            "WWW-Authenticate": "Bearer" if problem.status == 401 else None,
            "Retry-After": None if problem.seconds is None else str(problem.seconds),
            "Connection": "close" if problem.close else None,
        }
        return JSONResponse(
            self.error(status, text, problem.param),
            status,
            {name: value for name, value in headers.items() if value is not None},
        )


OURS = Api("transduct", lambda _, text, __: {"error": text}, {"error": str})


@dataclass(frozen=True)
class Endpoint:
    """What is done at a path.

    Attributes:
        bodies: the records that its body, or its query, is checked by: the one whose `marker` is
            among the fields, if there are several.
        answer: the shape of its answer (see `openapi.shape`); a media type for what is no JSON.
        media: the types of body that it reads.
        api: whose errors it answers with.
        open: whether it needs no key.
        files: whether a body of any other type is a file, which it reads itself.
        patience: the seconds that a request may take; 0 for `PATIENCE`.
    """

    method: str
    path: str
    handle: Callable[["Call", Any], Coroutine[Any, Any, Response]]
    bodies: tuple[type[BaseModel], ...] = ()
    answer: Any = None
    media: tuple[str, ...] = (JSON,)
    api: Api = OURS
    open: bool = False
    files: bool = False
    patience: float = 0.0

    def checked(self, fields: Mapping[str, Any]) -> BaseModel:
        """The record made of some fields.

        Raises:
            Problem: one is missing, unknown or of another type.
        """
        if len(self.bodies) == 1:
            return checked(self.bodies[0], fields)
        by_marker = {vars(kind)["marker"]: kind for kind in self.bodies}
        names = [name for name in by_marker if name in fields]
        if len(names) != 1:
            wanted = " or ".join(f"'{name}'" for name in by_marker)
            raise Problem(400, f"the request: give {wanted}, and not both", param="q")
        return checked(by_marker[names[0]], fields)


@dataclass(frozen=True)
class Wanted:
    """A request for translations, in whatever API it was made.

    Attributes:
        source: a language, "auto" to detect it, or "" if the request does not say it.
        target: a language, or "" likewise.
        model: the name of a model or of a pair.
        prefixes: with what each translation begins.
        segments: the texts with their tags, of a document.
    """

    texts: Sequence[str]
    source: str = ""
    target: str = ""
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prefixes: Sequence[str] | None = None
    segments: Sequence[Segment] | None = None


@dataclass(frozen=True)
class Found:
    """The answer to one text.

    Attributes:
        translation: it, or what is wrong.
        source, confidence: the language of the text, and how sure that is if it was detected.
        steps: the models that made it; none for a blank text.
    """

    translation: Any
    source: str
    confidence: float | None = None
    steps: tuple[Step, ...] = ()

    @property
    def through(self) -> list[str]:
        """The languages between source and target."""
        return [step.source for step in self.steps[1:]]


@dataclass(eq=False)
class Call:
    """A request, and what becomes known of it.

    Attributes:
        id: its X-Request-ID.
        address: the client's, behind trusted proxies.
        path: the path of its endpoint, for metrics and logs.
        patience: the seconds that it may take.
        file_name: of the file in a form, as the client calls it; never a path here.
        model, tokens_in, tokens_out: of its answer.
        queued, first: seconds until work began, and until the first token was known.
        held: the memory that is held for it.
        reading: whether its body is being read.
        large: whether its body may be so large that it is better left unread.
    """

    service: "Service"
    id: str
    address: str
    path: str = "unknown"
    patience: float = 0.0
    file_name: str = ""
    model: str = ""
    key: "Key | None" = None
    request: Any = None  # a `Request`
    api: Api = OURS
    began: float = field(default_factory=perf_counter)
    queued: float | None = None
    first: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    held: int = 0
    reading: bool = False
    large: bool = False

    @property
    def seconds(self) -> float:
        """How long ago it began."""
        return perf_counter() - self.began

    @property
    def client(self) -> str:
        """Who takes turns with others: the owner of a key, or else of an address."""
        return self.address if self.key is None else self.key.text

    def begin(self, tokens: int) -> None:
        """Work on so many tokens has begun."""
        self.tokens_in += tokens
        if self.queued is None:
            self.queued = self.seconds

    def answered(self) -> None:
        """The first token is known."""
        if self.first is None:
            self.first = self.seconds

    async def alive(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """The result of some work, unless the client disconnects first.

        Raises:
            ClientDisconnect: it does.
        """
        here = asyncio.current_task()
        assert here is not None
        watchers: list[asyncio.Task[None]] = []

        def watch() -> None:
            watchers.append(asyncio.create_task(self._watch(here)))

        # Later, because most answers come sooner, and a task for each takes time.
        timer = asyncio.get_running_loop().call_later(UNWATCHED, watch)
        try:
            return await work
        except asyncio.CancelledError:
            if not any(each.done() for each in watchers):
                raise
            here.uncancel()
            raise ClientDisconnect from None
        finally:
            timer.cancel()
            for each in watchers:
                each.cancel()

    async def _watch(self, work: "asyncio.Task[Any]") -> None:
        """Cancel some work once the client disconnects."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass
        work.cancel()

    async def content(self, largest: int, weight: int = 1) -> bytes:
        """Read the body, at most `largest` bytes.

        Args:
            weight: the memory that each byte takes once it is parsed.

        Raises:
            Problem: it is too large.
            Full: all requests together hold too much.
        """
        large = f"the request is larger than {largest >> 20} MiB; send less at once"
        too_large = Problem(413, large, close=True)
        length = self.request.headers.get("content-length", "")
        if length.isdigit() and int(length) > largest:
            raise too_large
        parts, size, self.reading = [], 0, True
        async for part in self.request.stream():
            parts.append(part)
            size += len(part)
            if size > largest:
                raise too_large
            self._hold(len(part))
        self._hold((weight - 1) * size)
        self.reading = False
        return b"".join(parts)

    def _hold(self, count: int) -> None:
        """Count memory held for the request. A small one finds room of its own, so that large ones
        cannot lock it out."""
        self.held += count
        self.service.held += count
        small = self.held <= HELD // 128
        if self.service.held > HELD + (HELD // 4 if small else 0):
            raise Full(self.service.models.advice, close=True)

    async def fields(self, endpoint: Endpoint) -> dict[str, Any]:
        """The fields of the body, or of the query where there is none.

        Raises:
            Problem: it is of another type, or damaged.
        """
        kind, charset = media_type(self.request.headers.get("content-type", ""))
        if self.request.method == "GET" and not kind:  # DeepL's client sends a form
            return dict(self.request.query_params)
        if kind not in endpoint.media:
            wanted = f"send JSON, with the header 'Content-Type: {JSON}'"
            raise Problem(415, wanted if JSON in endpoint.media else "send a form with a file")
        if (coding := self.request.headers.get("content-encoding", "identity")) != "identity":
            raise Problem(415, f"the content is encoded by '{coding:.40}'; send it as it is")
        expect(
            charset in ("", "utf-8", "utf8", "us-ascii"),
            415,
            f"the charset is '{charset:.40}'; send UTF-8",
        )
        if kind == MULTIPART:
            return await self._parts(LARGEST if JSON not in endpoint.media else LARGEST_JSON)
        content = await self.content(LARGEST_JSON, WEIGHT)
        try:
            found = read(content) if kind == JSON else _form(content)
        except (ValueError, RecursionError) as error:
            what = "valid JSON" if kind == JSON else "a valid form"
            raise TransductError(f"the request is not {what}: {error}") from error
        require(
            isinstance(found, dict),
            "the request is JSON, but no object; send names and values in braces",
        )
        for name, value in found.items():
            # too many inputs are rejected before their texts are checked
            if isinstance(value, list) and name not in OF_TOKENS:
                self.service.check_count(len(value))
            # only an escape can make a surrogate
            if b"\\u" in content and HALVES.search(name + json.dumps(value, ensure_ascii=False)):
                problem = f"the request: '{name:.40}' contains an unpaired surrogate; remove it"
                raise Problem(400, problem, name)
        return found

    async def _parts(self, largest: int) -> dict[str, Any]:
        """The fields of a multipart form; a file is its content."""
        content = await self.content(largest)

        async def stream() -> Any:
            yield content

        try:
            parser = MultiPartParser(
                self.request.headers, stream(), max_files=1, max_fields=100, max_part_size=largest
            )
            form = await parser.parse()
        except (MultiPartException, KeyError, UnicodeDecodeError) as error:
            message = error.message if isinstance(error, MultiPartException) else error
            raise TransductError(f"the request is not a valid form: {message}") from error
        self.file_name = next(
            (each.filename or "" for _, each in form.multi_items() if not isinstance(each, str)), ""
        )
        pairs = [
            (name, value if isinstance(value, str) else await value.read())
            for name, value in form.multi_items()
        ]
        await form.close()
        return _grouped(pairs)


def _form(content: bytes) -> dict[str, Any]:
    """The fields of a URL-encoded form."""
    found = parse_qsl(
        content.decode(), keep_blank_values=True, errors="strict", max_num_fields=1_000
    )
    return _grouped(found)


def _grouped(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Fields by name, "name[]" included; of several values a list."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        key = name.removesuffix("[]")
        if key in found or key != name:
            earlier = found.get(key, [])
            found[key] = [*(earlier if isinstance(earlier, list) else [earlier]), value]
        else:
            found[key] = value
    return found


def without_errors(outputs: Sequence[Any]) -> Sequence[Any]:
    """Outputs of which none is an error.

    Raises:
        TransductError: the first that is one.
    """
    for each in outputs:
        if isinstance(each, TransductError):
            raise each
    return outputs


def checked(kind: type[Checked], fields: Mapping[str, Any]) -> Checked:
    """A record made of the fields of a request.

    Raises:
        Problem: one is missing, unknown or of another type.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
    name, kind_of_error = str(first["loc"][0]) if first["loc"] else "", first["type"]
    if kind_of_error == "missing":
        problem = f"missing key '{name}'"
    elif kind_of_error == "extra_forbidden":
        near = get_close_matches(name, kind.model_fields, 1)
        problem = f"unknown key '{name:.40}'" + (f"; did you mean '{near[0]}'?" if near else "")
    elif kind_of_error == "value_error":
        problem = str(first["ctx"]["error"])
    else:
        _, prefix, expected = first["msg"].rpartition("Input should be ")
        expected = f"must be {in_our_words(expected)}" if prefix else expected
        problem = f"'{name}' {expected[0].lower()}{expected[1:]}"
    raise Problem(400, f"the request: {problem}", param=name or None)
