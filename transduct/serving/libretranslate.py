"""LibreTranslate's API, as of its version 1.9: what Weblate, Mastodon and many others speak."""

import asyncio
import json
import logging
import re
from mimetypes import guess_type
from typing import Annotated, Any, ClassVar

from pydantic import Field

from transduct.data.lines import named_kind
from transduct.errors import MissingExtra, TransductError, needing
from transduct.formats.documents import FORMATS, OF_TRANSLATORS, Document
from transduct.formats.marked import Segment, plain
from transduct.serving import native
from transduct.serving.calls import (
    FORM,
    JSON,
    MULTIPART,
    OURS,
    Body,
    Call,
    Endpoint,
    Terms,
    Wanted,
    without_errors,
)
from transduct.serving.requests import Problem, expect
from transduct.serving.served_models import UNDETERMINED

with needing("serve"):
    from starlette.responses import JSONResponse, Response

ANY = (JSON, FORM, MULTIPART)
log = logging.getLogger("transduct")
LONGEST_SUGGESTION = 10_000  # characters
BYTES = "application/octet-stream"
ENDINGS = (*FORMATS, *OF_TRANSLATORS)
DOCUMENT = 600.0  # seconds that a document may take
AT_ONCE, DETECTED = 100, 5_000  # texts of one that wait together, characters that tell its language


class Translate(Body, Terms):
    """A text, or several, in LibreTranslate's words."""

    marker: ClassVar[str] = "q"
    q: str | list[str]
    source: str = "auto"
    target: str
    alternatives: Annotated[int, Field(ge=0, le=15)] = 0


class Detect(Body):
    """A text whose language is wanted."""

    q: str


class Suggest(Body):
    """A better translation."""

    q: str
    s: str
    source: str
    target: str


class Uploaded(Body):
    """A document to translate."""

    file: bytes
    source: str = "auto"
    target: str


# What answers look like; see `openapi.shape`.
DETECTION = {"language": str, "confidence": float}
TRANSLATED = {  # of a list of texts, a list each
    "translatedText": str | list[str],
    "detectedLanguage?": (DETECTION, [DETECTION]),
    "alternatives?": [Any],
    "through?": [str],
    "lost?": [str | list[str]],
}
LANGUAGE = {"code": str, "name": str, "targets": [str]}


async def translate(call: Call, body: Any) -> Response:
    """Translate `q` as LibreTranslate does, or `texts` as /v1/translate does."""
    if isinstance(body, native.Translate):
        return await native.translate(call, body)
    texts = [body.q] if isinstance(body.q, str) else body.q
    options = body.terms | ({"n_best": body.alternatives + 1} if body.alternatives else {})
    wanted = Wanted(texts, body.source, body.target, options=options)
    found = await call.service.translate(call, wanted)
    without_errors([each.translation for each in found])
    answer: dict[str, list[Any]] = {"translatedText": [each.translation.text for each in found]}
    if body.source == "auto":
        answer["detectedLanguage"] = [
            {"language": each.source or UNDETERMINED, "confidence": each.confidence or 0.0}
            for each in found
        ]
    if body.alternatives:
        answer["alternatives"] = [
            [other.text for other in each.translation.alternatives[1:]] for each in found
        ]
    if any(each.translation.lost for each in found):
        answer["lost"] = [list(each.translation.lost) for each in found]
    one = isinstance(body.q, str)
    through = list(dict.fromkeys(code for each in found for code in each.through))
    return JSONResponse(
        {name: values[0] if one else values for name, values in answer.items()}
        | ({"through": through} if through else {})
    )


async def detect(call: Call, body: Detect) -> Response:
    """The languages that a text may be in."""
    found = await call.service.detect(body.q) or [(UNDETERMINED, 0.0)]
    some = [(code, sure) for code, sure in found if sure] or found[:1]
    return JSONResponse([{"language": code, "confidence": sure} for code, sure in some])


async def languages(call: Call, _: Any) -> Response:
    """The languages that can be translated from."""
    return JSONResponse(call.service.models.languages())


async def suggest(call: Call, body: Suggest) -> Response:
    """Keep a better translation, if the operator named a file for them."""
    expect(
        call.service.suggestions,
        403,
        "this server takes no suggestions; its operator can: serve --suggestions FILE",
    )
    line = json.dumps(body.model_dump(), ensure_ascii=False)
    expect(
        len(line) <= LONGEST_SUGGESTION,
        413,
        f"at most {LONGEST_SUGGESTION:,} characters can be suggested",
    )

    def keep() -> None:
        with open(call.service.suggestions or "", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    await asyncio.to_thread(keep)
    return JSONResponse({"success": True})


async def settings(call: Call, _: Any) -> Response:
    """What LibreTranslate's own page asks for."""
    known = call.service.models.languages()
    source = {name: known[0][name] for name in ("code", "name")}
    first = known[0]["targets"][0] if known[0]["targets"] else source["code"]
    names = {each["code"]: each["name"] for each in known}
    keys = call.service.keys is not None
    return JSONResponse(
        {
            "apiKeys": keys,
            "keyRequired": keys,
            "charLimit": -1,
            "frontendTimeout": 500,
            "language": {
                "source": source,
                "target": {"code": first, "name": names.get(first, first)},
            },
            "suggestions": call.service.suggestions is not None,
            "supportedFilesFormat": list(ENDINGS),
        }
    )


async def translate_file(call: Call, body: Uploaded) -> Response:
    """Translate a document, and say where it can be had for an hour."""
    kind = named_kind(call.file_name)
    if not kind:
        known = " ".join(ENDINGS)
        raise Problem(400, f"found a file of an unknown kind; its name must end in {known}", "file")
    name = re.split(r"[/\\]", call.file_name)[-1]
    target = "" if body.target == UNDETERMINED else body.target
    languages = body.source.replace("auto", ""), target
    try:
        document = await asyncio.to_thread(Document, kind, name, body.file, languages)
    except MissingExtra as error:  # of formats that the operator does not offer
        raise Problem(400, str(error), "file") from error
    segments = document.segments
    texts = [plain(each) for each in segments]
    source, found, lost = body.source, list[Segment](), list[str]()
    if source == "auto":
        best = await call.service.detect(" ".join(texts)[:DETECTED])
        source = best[0][0] if best else source
    size = min(AT_ONCE, call.service.models.waiting)
    for start in range(0, len(texts), size):
        some, marked = segments[start : start + size], {"format": "marked"}
        about = texts[start : start + size], source, body.target
        wanted = Wanted(*about, options=marked, segments=some)
        for each, segment in zip(await call.service.translate(call, wanted), some, strict=True):
            if isinstance(each.translation, TransductError):
                raise each.translation.at(input=None, file=name)
            found.append(each.translation.parts or segment)  # a blank one stays
            lost += each.translation.lost
    made = await asyncio.to_thread(document.translated, found)
    address = str(call.request.base_url).rstrip("/") + call.service.settings.prefix
    try:
        kept = await asyncio.to_thread(call.service.downloads.keep, made, kind)
    except TransductError as error:  # which names a folder of the operator
        log.error("%s", error)
        raise Problem(500, "the translation cannot be kept; the server's log says why") from error
    answer: dict[str, Any] = {"translatedFileUrl": f"{address}/download_file/{kept}"}
    return JSONResponse(answer | ({"lost": lost} if lost else {}))


async def download_file(call: Call, _: Any) -> Response:
    """A document that was translated."""
    name = call.request.path_params["id"]
    content = await asyncio.to_thread(call.service.downloads.find, name)
    if content is None:
        raise Problem(404, "no such file, or it is older than an hour; translate it again")
    kind = guess_type(name)[0] or BYTES
    return Response(content, media_type=kind, headers={"Content-Disposition": "attachment"})


ENDPOINTS = [
    Endpoint("POST", "/translate", translate, (Translate, native.Translate), TRANSLATED, ANY, OURS),
    Endpoint("POST", "/detect", detect, (Detect,), [DETECTION], ANY, OURS),
    Endpoint("POST", "/suggest", suggest, (Suggest,), {"success": bool}, ANY, OURS),
    Endpoint(
        "POST",
        "/translate_file",
        translate_file,
        (Uploaded,),
        {"translatedFileUrl": str, "lost?": [str]},
        (MULTIPART,),
        patience=DOCUMENT,
    ),
    Endpoint("GET", "/download_file/{id}", download_file, (), BYTES, open=True),
    Endpoint("GET", "/languages", languages, (), [LANGUAGE], open=True),
    Endpoint("GET", "/frontend/settings", settings, (), dict[str, Any], open=True),
]
