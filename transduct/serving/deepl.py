"""DeepL's API, version 2: texts, languages and usage."""

import re
from typing import Any, Literal

from transduct.errors import needing
from transduct.formats.markup import Markup
from transduct.serving.calls import FORM, JSON, Api, Body, Call, Endpoint, Wanted, without_errors
from transduct.serving.requests import Problem, expect

with needing("serve"):
    from starlette.responses import JSONResponse, Response

ENDLESS = 10**12  # characters of a key without a quota
# What DeepL's clients call these languages when they translate into them.
REGIONS = {"en": ("en-GB", "en-US"), "pt": ("pt-PT", "pt-BR")}


API = Api("DeepL", lambda _, text, __: {"message": text}, {"message": str}, {401: 403, 456: 456})


class Translate(Body):
    """Texts to translate."""

    text: str | list[str]
    target_lang: str
    source_lang: str | None = None
    split_sentences: str | bool | int = "1"
    preserve_formatting: bool = True
    formality: str = "default"
    tag_handling: Literal["html", "xml", "", None] = None
    ignore_tags: str | list[str] = ""
    splitting_tags: str | list[str] = ""
    non_splitting_tags: str | list[str] = ""
    glossary_id: str | None = None
    glossary_ids: list[str] | None = None

    @property
    def format(self) -> str | Markup:
        """How the texts are written."""
        if not self.tag_handling:
            return "text"
        lists = self.ignore_tags, self.splitting_tags, self.non_splitting_tags
        names = [re.split(r"[\s,]+", x) if isinstance(x, str) else x for x in lists]
        return Markup(self.tag_handling, *map(tuple, names))


class Asked(Body):
    """Which languages are wanted: those to translate from, or into."""

    type: str = "source"


# What answers look like; see `openapi.shape`.
TRANSLATED = {
    "text": str,
    "detected_source_language": str,
    "billed_characters": int,
    "lost?": [str],
}
LANGUAGE = {"language": str, "name": str, "supports_formality?": bool}
USAGE = {"character_count": int, "character_limit": int}


async def translate(call: Call, body: Translate) -> Response:
    """Translate texts."""
    expect(
        body.formality == "default" or body.formality.startswith("prefer_"),
        400,
        f"formality is '{body.formality:.40}'; send default or prefer_less",
    )
    expect(not body.glossary_ids, 400, "several glossaries are not supported; send glossary_id")
    texts = [body.text] if isinstance(body.text, str) else body.text
    options = {
        "sentences": str(body.split_sentences).lower() not in ("0", "false"),
        "format": body.format,
        "glossary": body.glossary_id,
    }
    wanted = Wanted(texts, body.source_lang or "auto", body.target_lang, options=options)
    found = await call.service.translate(call, wanted)
    without_errors([each.translation for each in found])
    answers = [
        {
            "detected_source_language": each.source.upper(),
            "text": each.translation.text,
            "billed_characters": len(text),
            **({"lost": list(each.translation.lost)} if each.translation.lost else {}),
        }
        for text, each in zip(texts, found, strict=True)
    ]
    return JSONResponse({"translations": answers})


async def languages(call: Call, body: Asked) -> Response:
    """The languages to translate from, or into."""
    known = call.service.models.languages()
    names = {each["code"]: each["name"] for each in known}
    codes = list(names)
    if body.type == "target":
        every = dict.fromkeys(code for each in known for code in each["targets"])
        codes = [region for code in every for region in REGIONS.get(code, (code,))]
    answers = [
        {
            "language": code.upper(),
            "name": call.service.models.name_of(code),
            **({"supports_formality": False} if body.type == "target" else {}),
        }
        for code in codes
    ]
    return JSONResponse(answers)


async def usage(call: Call, _: Any) -> Response:
    """How much was sent."""
    key = call.key
    if key is None or key.quota is None:
        used = call.service.characters if key is None else key.characters
        return JSONResponse({"character_count": used, "character_limit": ENDLESS})
    return JSONResponse({"character_count": key.quota.used, "character_limit": key.quota.most})


async def absent(_: Call, __: Any) -> Response:
    """Documents and glossaries are not offered."""
    raise Problem(404, "documents and glossaries are not supported; send texts to /v2/translate")


ENDPOINTS = [
    Endpoint(
        "POST",
        "/v2/translate",
        translate,
        (Translate,),
        {"translations": [TRANSLATED]},
        (JSON, FORM),
        API,
    ),
    Endpoint("GET", "/v2/languages", languages, (Asked,), [LANGUAGE], (FORM,), API),
    Endpoint("GET", "/v2/usage", usage, (), USAGE, api=API),
    *(
        Endpoint(method, path, absent, (), API.shape, api=API)
        for path in ("/v2/document", "/v2/glossaries", "/v3/glossaries")
        for path in (path, path + "/{id:path}")
        for method in ("GET", "POST")
    ),
]
