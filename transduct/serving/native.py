"""Our own API, and what every server offers: its page, health, metrics and description.

    POST /v1/translate   {"texts": [..], "prefixes": [..], "from": "en", "to": "ko", "beam": 5, ..}
                         {"translations": [{"text", "score", ..}, ..]}
    POST /v1/score       {"sources": [..], "targets": [..]}        {"scores": [..]}
    POST /v1/inspect     {"text": .., "target": .., "view": ..}    the inside of one sentence
                         or a picture or a sound as the body
    POST /v1/alternatives {"text": .., "target": .., "place": 12}  what else could stand there
    POST /v1/predict     {"inputs": [..], "options": {..}}         {"outputs": [..]}, or a PNG
                         or a picture or a sound as the body, with options in the query string

`/translate`, `/score`, `/attention` and `/predict` are the same.
"""

import asyncio
import base64
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from transduct import __version__
from transduct.data.images import encode_picture
from transduct.errors import MissingExtra, NotFinite, TransductError, needing, require
from transduct.predictors.base import json_value, model_directory
from transduct.predictors.inside import counted, settings
from transduct.serving.calls import (
    JSON,
    LARGEST,
    MULTIPART,
    Call,
    Endpoint,
    Found,
    Terms,
    Wanted,
    without_errors,
)
from transduct.serving.requests import Problem, checked_options, expect, media_type, value_of
from transduct.serving.served_models import Served
from transduct.serving.streams import followed, progress, stream
from transduct.storage import weights_of

with needing("serve"):
    from prometheus_client import generate_latest
    from starlette.responses import JSONResponse, Response

# suffix of the temporary file; the real type is read from its content
ENDINGS = {"picture": ".png", "sound": ".wav"}
DRAWN = Path("drawn.png")
# what may be asked instead of a prediction: what is said of a model that has none
ASKED = {"probabilities": "predicts no labels", "codes": "makes no codes"}
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
View = Literal["sentence", "attention", "next", "beam", "positions", "model", "panels"]
STATUSES = {"ok": 200, "warming": 503, "broken": 500}


class Strict(BaseModel):
    """A body of ours: it has nothing that we do not know."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class InLanguages(Strict):
    """Which model is asked, and in which languages."""

    model: str | None = None
    source_language: str = Field(
        "", validation_alias=AliasChoices("from", "source_language"), title="from"
    )
    target_language: str = Field(
        "", validation_alias=AliasChoices("to", "target_language"), title="to"
    )


class Translate(Terms, InLanguages):
    """Texts to translate. All other fields are options, such as beam, n_best or sentences."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    marker: ClassVar[str] = "texts"
    texts: list[str]
    prefixes: list[str] | None = None
    log_probabilities: bool = False
    alignments: bool = False
    stream: bool = False


class Predict(Strict):
    """Texts for any model that reads texts."""

    inputs: list[str]
    options: dict[str, Any] | None = None
    model: str | None = None
    probabilities: bool = False
    stream: bool = False


class Score(InLanguages):
    """Pairs whose log-probabilities are wanted."""

    sources: list[str]
    targets: list[str]


class Inspect(InLanguages):
    """A text, a translation (text or tokens; the model's own if not given), and what to show.

    Without a `view`, the answer holds an alignment and one map. With `prefix`, an own translation
    goes on from these tokens.
    """

    text: str
    target: str | list[int] | None = None
    name: str | None = None
    view: View | None = None
    prefix: list[int] = []
    beam: int | None = None
    seed: int | None = None


class Alternatives(InLanguages):
    """A text, its translation, and the character of the latter that should be otherwise."""

    text: str
    target: str
    place: int = Field(ge=0)
    count: int = Field(8, ge=1, le=8)


# What answers look like; see `openapi.shape`.
ERRORS = {"errors?": [str | None], "unknown?": [int]}
HYPOTHESIS = {"text": str, "score": float}
SPAN = [int], None  # the first character and the one after the last
TOKEN = {"text": str, "log_probability": float, "target": SPAN, "source": SPAN}
TRANSLATED = {
    **HYPOTHESIS,
    "alternatives": [HYPOTHESIS],
    "detected?": str,
    "through?": [str],
    "tokens?": ([TOKEN], None),
    "lost?": [str],
}
INSPECTED = {
    "names": [str],
    "alignment": {"rows": [str], "columns": [str], "weights": [[float]]},
    "name": str,
    "rows": [str],
    "columns": [str],
    "heads": [[[float]]],
    "unknown?": [int],
}
HEALTH = {
    **dict.fromkeys(("status", "model", "version", "reads"), str),
    **dict.fromkeys(("paints", "translates", "key"), bool),
    "models": [dict[str, Any]],
}
STATUS = {"status": str}


async def translate(call: Call, body: Translate) -> Response:
    """Translate texts."""
    options = checked_options(dict(body.model_extra or {})) | body.terms
    require(
        body.prefixes is None or len(body.prefixes) == len(body.texts),
        f"found {len(body.texts)} texts and {len(body.prefixes or [])} prefixes; give one for each",
    )
    about = body.source_language, body.target_language, body.model
    wanted = Wanted(body.texts, *about, options, body.prefixes)
    if not body.stream:
        return JSONResponse(
            await _translations(call, body, await call.service.translate(call, wanted))
        )
    expect(
        len(body.texts) == 1, 400, f"found {len(body.texts)} texts; stream one at a time", "texts"
    )

    async def events() -> AsyncGenerator[Any, None]:
        async for part in followed(
            call, lambda follow: call.service.translate(call, wanted, follow)
        ):
            if isinstance(part, str):
                yield {"delta": part}
            else:
                yield await _translations(call, body, part)

    return await stream(call, events())


async def _translations(call: Call, body: Translate, found: Sequence[Found]) -> dict[str, Any]:
    answer = answered("translations", [each.translation for each in found], _translation)
    for place, each in enumerate(found):
        shown = answer["translations"][place]
        if shown is None:
            continue
        if each.confidence is not None:
            shown["detected"] = each.source
        if each.through:
            shown["through"] = list(each.through)
        if each.translation.lost:
            shown["lost"] = list(each.translation.lost)
        if (body.log_probabilities or body.alignments) and each.steps and body.format == "text":
            shown["tokens"] = await _tokens(call, body, body.texts[place], each)
    steps = {each.steps[0].served for each in found if each.steps}
    first = next(iter(steps), None) if body.format == "text" else None
    return answer | (await call.service.unknown(first, body.texts) if first else {})


async def _tokens(call: Call, body: Translate, text: str, found: Found) -> Any:
    """The tokens of a translation that one model made."""
    if len(found.steps) > 1:
        return None
    [step] = found.steps
    asked = (text, found.translation.text, found.translation.tokens)
    options = step.served.options(step.source, step.target)
    [tokens] = await call.service.ask(call, step.served, "tokens", [asked], options)
    if isinstance(tokens, TransductError):
        return None  # such as a text of several lines
    return tokens if body.alignments else [{**t, "source": None, "target": None} for t in tokens]


async def score(call: Call, body: Score) -> Response:
    """Score translations by forced decoding."""
    require(
        len(body.sources) == len(body.targets),
        f"found {len(body.sources)} sources and {len(body.targets)} targets; give as many of each",
    )
    served, options = _one(call, body, body.sources)
    pairs = list(zip(body.sources, body.targets))
    found = await call.service.ask(call, served, "score", pairs, options)
    answer = answered("scores", found, float)
    return JSONResponse(answer | await call.service.unknown(served, body.sources))


async def inspect(call: Call, body: Inspect | None) -> Response:
    """Show where the model looked in a text, a picture or a sound."""
    if body is None:
        return await _inspect_file(call)
    served, languages = _one(call, body, [body.text])
    if body.view == "model":
        return JSONResponse(await _parts(call, served))
    own = {"beam": body.beam, "seed": body.seed}
    options = languages | {name: value for name, value in own.items() if value is not None}
    asked = [(body.text, body.target, body.name, body.view, body.prefix)]
    [shown] = without_errors(await call.service.ask(call, served, "attention", asked, options))
    return JSONResponse(shown | await call.service.unknown(served, [body.text]))


async def _inspect_file(call: Call) -> Response:
    query = call.request.query_params
    served, name = call.service.models.named(query.get("model")), query.get("name")
    expect(
        served.reads != "text" and "attention" in served.verbs,
        415,
        "this model shows no attention of files; send a text or ask another one",
    )

    async def answer(_: str, found: Any) -> Response:
        return JSONResponse(found)

    def asked(path: str) -> Any:
        return path, None, name, "panels", []

    return await _of_body(call, served, "attention", answer, ("name",), asked)


async def alternatives(call: Call, body: Alternatives) -> Response:
    """Other translations that begin as a given one does."""
    served, options = _one(call, body, [body.text])
    asked = [(body.text, body.target, body.place, body.count)]
    [found] = without_errors(await call.service.ask(call, served, "alternatives", asked, options))
    return JSONResponse({"alternatives": [{"text": t, "probability": p} for t, p in found]})


async def _parts(call: Call, served: Served) -> dict[str, Any]:
    """The parts of a model, from its file if it has one: the loaded one is packed for speed."""
    async with call.service.models.use(served) as hosted:
        path, module = served.path, hosted.model.model
        return await asyncio.to_thread(
            lambda: (
                counted(*settings(model_directory(path)))
                if path
                else counted({"task": served.task}, weights_of(module))
            )
        )


def _one(call: Call, body: InLanguages, texts: Sequence[str]) -> tuple[Served, dict[str, str]]:
    """The one model of a request that no chain can answer, and its languages as options. The texts
    are counted for the key."""
    models = call.service.models
    served, pair = models.route_of_name(body.model)
    given = models.code(body.source_language), models.code(body.target_language, target=True)
    source, target = (mine or other for mine, other in zip(given, pair or ("", ""), strict=True))
    if source and target:
        [step, *more] = models.route(source, target, served)
        expect(
            not more,
            400,
            f"no single model translates {source}-{target}; name a pair that one has",
            "to",
        )
        served = step.served
    served = served or models.named(None, "translate")
    call.service.charge(call, texts)
    return served, served.options(source, target)


async def predict(call: Call, body: Predict | None) -> Response:
    """The model's answers to texts, or to a file."""
    served = call.service.models.named(
        body.model if body else call.request.query_params.get("model")
    )
    if served.reads != "text":
        return await _predict_file(call, served, body)
    if body is None:
        raise Problem(415, f"send JSON, with the header 'Content-Type: {JSON}'")
    require(
        len(body.inputs) == 1 or not served.paints,
        f"found {len(body.inputs)} inputs, the answer is one picture; send one",
    )
    call.service.charge(call, body.inputs)
    options = checked_options(body.options or {})
    if body.stream:
        expect(served.paints, 400, "only pictures are streamed here; leave stream out", "stream")
        return await stream(call, _painted(call, served, body.inputs[0], options))
    verb = _predicting(served, vars(body))
    outputs = await call.service.ask(call, served, verb, body.inputs, options)
    if served.paints and not isinstance(outputs[0], TransductError):
        return await _picture(call, served, body.inputs[0], outputs[0])
    answer = answered("outputs", outputs, json_value)
    return JSONResponse(answer | await call.service.unknown(served, body.inputs))


async def _painted(
    call: Call, served: Served, text: str, options: dict[str, Any]
) -> AsyncGenerator[Any, None]:
    """A picture while it is drawn: with its codes so far, and at last the whole."""

    def work(follow: Any) -> Any:
        return call.service.ask(call, served, "predict", [text], options, follow)

    async with aclosing(progress(call, work)) as parts:
        async for part, last in parts:
            output = part[0] if last else part
            if isinstance(output, TransductError):
                raise output
            drawn = await asyncio.to_thread(encode_picture, output.pixels, DRAWN)
            picture = base64.b64encode(drawn).decode()
            yield {"picture": picture} if last else {"codes": output.codes, "picture": picture}


def _predicting(served: Served, asked: Mapping[str, Any]) -> str:
    """The verb for a prediction."""
    for verb, lacking in ASKED.items():
        expect(
            verb in served.verbs or not asked.get(verb),
            400,
            f"this model {lacking}; leave {verb} out",
        )
    return next((verb for verb in ASKED if asked.get(verb)), "predict")


async def _predict_file(call: Call, served: Served, body: Predict | None) -> Response:
    """The answer to an uploaded file; a picture if the model paints."""
    kind, _ = media_type(call.request.headers.get("content-type", ""))
    expect(
        body is None and kind != MULTIPART,
        415,
        f"this model reads a {served.reads}; send the file itself as the body: curl "
        "--data-binary @FILE URL/predict",
    )
    asked = {name: value_of(value) for name, value in call.request.query_params.items()}
    verb = _predicting(served, asked)

    async def answer(name: str, output: Any) -> Response:
        if verb == "predict" and served.paints:
            return await _picture(call, served, name, output)
        return JSONResponse({"outputs": [json_value(output) if verb == "predict" else output]})

    return await _of_body(call, served, verb, answer, tuple(ASKED))


async def _of_body(
    call: Call,
    served: Served,
    verb: str,
    answer: Callable[[str, Any], Any],
    fields: Sequence[str],
    asked: Callable[[str], Any] = str,
) -> Any:
    """As `of_file`, for the file that is the body; the query has the options, and these fields."""
    given = call.request.query_params
    others = {"api_key", "model", *fields}
    content = await call.content(LARGEST)
    options = checked_options({k: value_of(v) for k, v in given.items() if k not in others})
    return await call.alive(of_file(call, served, content, options, answer, verb, asked))


async def of_file(
    call: Call,
    served: Served,
    content: bytes,
    options: dict[str, Any],
    answer: Callable[[str, Any], Any],
    verb: str = "predict",
    asked: Callable[[str], Any] = str,
) -> Any:
    """What `answer` makes of the name of a file and the model's output for it; `asked` makes an
    input of the name."""
    with tempfile.NamedTemporaryFile(suffix=ENDINGS[served.reads]) as file:
        file.write(content)
        file.flush()
        try:
            [output] = without_errors(
                await call.service.ask(call, served, verb, [asked(file.name)], options)
            )
        except (NotFinite, MissingExtra):
            raise
        except TransductError as error:  # without the name of the temporary file
            raise error.at(file=error.file and f"the {served.reads}") from error
        return await answer(file.name, output)


async def _picture(call: Call, served: Served, given: str, output: Any) -> Response:
    async with call.service.models.use(served) as hosted:
        drawn = await asyncio.to_thread(
            lambda: encode_picture(hosted.model.picture(given, output), DRAWN)
        )
    return Response(drawn, media_type="image/png")


def answered(name: str, found: Sequence[Any], shown: Callable[[Any], Any]) -> dict[str, Any]:
    """What was found for each input: an answer, or null and, under "errors", what is wrong.

    Raises:
        TransductError: none has an answer.
    """
    errors = [str(each) if isinstance(each, TransductError) else None for each in found]
    if found and all(errors):
        raise found[0]
    answers = [None if error else shown(each) for each, error in zip(found, errors)]
    return {name: answers} | ({"errors": errors} if any(errors) else {})


def _translation(found: Any) -> dict[str, Any]:
    others = [{"text": other.text, "score": other.score} for other in found.alternatives]
    return {"text": found.text, "score": found.score, "alternatives": others}


# what every server offers


async def page(call: Call, _: None) -> Response:
    """The web page, and the scripts and styles that it names."""
    name = call.request.path_params.get("name", "index.html")
    kind = KINDS.get(Path(name).suffix)
    file = files("transduct.serving").joinpath("web", *Path(name).parts)
    if kind is None or ".." in Path(name).parts or name.startswith("/") or not file.is_file():
        raise Problem(404, "Not Found")
    return Response(file.read_bytes(), media_type=f"{kind}; charset=utf-8")


async def health(call: Call, _: None) -> Response:
    """What is served, and whether it is warm."""
    status = call.service.models.status
    return JSONResponse(_about(call), STATUSES[status], _later(status))


async def about(call: Call, _: None) -> Response:
    """The same for the page. It is no error to be warming: browsers would report one."""
    return JSONResponse(_about(call))


def _about(call: Call) -> dict[str, Any]:
    models = call.service.models
    first = models.every[0]
    return {
        "status": models.status,
        "model": first.name,
        "version": __version__,
        "reads": first.reads,
        "paints": first.paints,
        "translates": first.translates,
        "key": call.service.keys is not None,
        "models": [
            {
                "name": each.name,
                "task": each.task,
                "reads": each.reads,
                "paints": each.paints,
                "verbs": sorted(each.verbs),
                "pairs": len(each.pairs),
                "status": each.hosted.status if each.hosted else "not loaded",
            }
            for each in models.every
        ],
    }


async def live(call: Call, _: None) -> Response:
    """Whether the loop and the workers answer."""
    broken = call.service.models.status == "broken"
    return JSONResponse({"status": "broken" if broken else "ok"}, 500 if broken else 200)


async def ready(call: Call, _: None) -> Response:
    """Whether requests should be sent here: not before it is warm, nor once it is ending."""
    status = call.service.models.status if call.service.ready else "ending"
    return JSONResponse({"status": status}, 200 if status == "ok" else 503, _later(status))


def _later(status: str) -> dict[str, str]:
    return {"Retry-After": "1"} if status in ("warming", "ending") else {}


async def metrics(call: Call, _: None) -> Response:
    """What is counted, for Prometheus."""
    text = generate_latest(call.service.metrics.registry)
    return Response(text, media_type="text/plain; version=0.0.4")


async def described(call: Call, _: None) -> Response:
    """This description."""
    return JSONResponse(call.service.description())


VERBS: list[tuple[tuple[str, ...], Any, Any, Any]] = [
    (("/v1/translate",), translate, Translate, {"translations": [(TRANSLATED, None)], **ERRORS}),
    (("/score", "/v1/score"), score, Score, {"scores": [float | None], **ERRORS}),
    (("/attention", "/v1/inspect"), inspect, Inspect, (INSPECTED, dict[str, Any])),
    (
        ("/v1/alternatives",),
        alternatives,
        Alternatives,
        {"alternatives": [{"text": str, "probability": float}]},
    ),
    (("/predict", "/v1/predict"), predict, Predict, {"outputs": [Any], **ERRORS}),
]
OPEN: list[tuple[str, Any, Any]] = [
    ("/", page, "text/html"),
    ("/web/about", about, HEALTH),
    ("/web/{name:path}", page, "text/javascript"),
    ("/health", health, HEALTH),
    ("/live", live, STATUS),
    ("/ready", ready, STATUS),
    ("/metrics", metrics, "text/plain"),
    ("/openapi.json", described, dict[str, Any]),
]
ENDPOINTS = [
    *(
        Endpoint("POST", path, handle, (body,), answer, files=handle in (predict, inspect))
        for paths, handle, body, answer in VERBS
        for path in paths
    ),
    *(Endpoint("GET", path, handle, (), answer, open=True) for path, handle, answer in OPEN),
]
