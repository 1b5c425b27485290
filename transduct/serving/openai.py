"""OpenAI's API: what a program with a "custom URL" speaks.

A translation model answers the last user message. A language model continues the text.
"""

import asyncio
import base64
import struct
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from time import time
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field

from transduct.data.audio import read_sound
from transduct.errors import needing
from transduct.predictors.base import json_value
from transduct.serving import native
from transduct.serving.calls import MULTIPART, Api, Body, Call, Endpoint, Wanted, without_errors
from transduct.serving.requests import MOST, Problem, expect
from transduct.serving.served_models import Models, Served
from transduct.serving.streams import followed, stream

with needing("serve"):
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from starlette.responses import JSONResponse, PlainTextResponse, Response

STARTED = int(time())  # when the models were "created"
CONTINUES = "language_modeling"  # the task of models that continue a text
END = "[DONE]"
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
REFUSED = {
    "tools": "these models call no tools; leave tools out",
    "functions": "these models call no functions; leave functions out",
    "suffix": "these models cannot fill a gap; leave suffix out",
    "dimensions": "the vectors have the width of the model; leave dimensions out",
}
UNKNOWN: dict[str, Any] = {"logprob": None, "top_logprobs": []}  # what nobody predicted
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def _error(status: int, text: str, param: str | None) -> dict[str, Any]:
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    fault = {"message": text, "type": kind, "param": param, "code": CODES.get(status)}
    return {"error": fault}


FAULT = {"message": str, "type": str, "param": str | None, "code": str | None}
API = Api("OpenAI", _error, {"error": FAULT})


class StreamOptions(Body):
    """Whether a last event counts tokens."""

    include_usage: bool = False


class Generation(Body):
    """What both kinds of completions may be asked."""

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: int | None = None  # below 1 for no limit, as LM Studio's users send it
    stop: str | list[str] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    source_language: str = ""
    target_language: str = ""

    @property
    def stops(self) -> list[str]:
        """The texts that end an answer."""
        return [
            each
            for each in ([self.stop] if isinstance(self.stop, str) else self.stop or [])
            if each
        ]

    @property
    def options(self) -> dict[str, Any]:
        """Options of a search, or of sampling."""
        temperature = self.temperature
        if temperature is None and self.top_p not in (None, 1.0):
            temperature = 1.0
        if not temperature:
            return {}
        given = {"temperature": max(temperature, 1e-3), "top_p": self.top_p, "seed": self.seed}
        return {name: value for name, value in given.items() if value is not None}


class Message(Body):
    """A message of a chat."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class Chat(Generation):
    """A chat to answer."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None


class Completion(Generation):
    """A text to translate or to continue."""

    prompt: str | list[str]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: str | None = None


class Embeddings(Body):
    """Texts whose vectors are wanted."""

    model: str
    input: str | list[str]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class Transcription(Body):
    """A sound to transcribe."""

    model: str
    file: bytes
    response_format: str = "json"


# What answers look like; see `openapi.shape`.
HEAD = {"id": str, "object": str, "created": int}
USAGE = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), int)
ANSWER = {**HEAD, "model": str, "choices": [dict[str, Any]], "usage?": USAGE}
MODEL = {**HEAD, "owned_by": str, "running_batch": bool | None, "reason": str | None}
VECTORS = {"object": str, "data": [dict[str, Any]], "model": str, "usage": dict[str, int]}


@dataclass(frozen=True)
class Written:
    """One answer of a model.

    Attributes:
        reason: why it ends: stop or length.
        tokens: with their log-probabilities, if they are wanted.
    """

    text: str
    reason: str
    tokens: list[dict[str, Any]] | None = None


def _cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """A text up to the first of the texts that end it, and whether one does."""
    ends = [place for each in stops if (place := text.find(each)) >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


async def _write(
    call: Call,
    body: Generation,
    prompts: Sequence[str],
    most: int | None,
    logs: int | None,
    follow: Callable[[str], None] | None = None,
) -> list[Written]:
    """The answers to some prompts, `n` to each; with the log-probabilities of their tokens and of
    the `logs` likeliest of each place, unless that is None."""
    served, _ = call.service.models.route_of_name(body.model)
    most = None if most is None or most < 1 else min(most, MOST["length"])
    if served is None or served.translates:
        return await _translate(call, body, prompts, most, logs, follow)
    expect(
        served.reads == "text" and not served.paints,
        400,
        f"'{served.name}' makes no text of a text; choose another model",
        "model",
    )
    call.service.charge(call, prompts)
    if served.task == CONTINUES:
        return await _continue(call, served, body, prompts, most, logs, follow)
    expect(
        logs is None, 400, "this model gives no log-probabilities; leave logprobs out", "logprobs"
    )
    written = []
    asked = call.service.ask(call, served, "predict", prompts, body.options)
    for output in without_errors(await asked):
        text, _ = _cut(json_value(output), body.stops)
        written += [Written(text, "stop")] * (body.n or 1)
    return written


async def _continue(
    call: Call,
    served: Served,
    body: Generation,
    prompts: Sequence[str],
    most: int | None,
    logs: int | None,
    follow: Callable[[str], None] | None,
) -> list[Written]:
    """What a language model writes after some prompts."""
    options = dict(body.options) if most is None else {**body.options, "length": most}
    alone = follow if len(prompts) == 1 and (body.n or 1) == 1 and not body.stops else None
    seeds = [(body.seed or 1) + number for number in range(body.n or 1)]
    varied = [{"seed": seed} if "temperature" in options else {} for seed in seeds]
    each = [(prompt, options | more) for prompt in prompts for more in varied]
    asked = [call.service.ask(call, served, "continued", [p], own, alone) for p, own in each]
    written = []
    for (prompt, _), outputs in zip(each, await asyncio.gather(*asked), strict=True):
        [found] = without_errors(outputs)
        call.tokens_out += len(found.tokens)
        text, stopped = _cut(found.text, body.stops)
        given = prompt, found.text, found.tokens
        tokens = None if logs is None else await _logs(call, served, given, logs, {}, text)
        written.append(Written(text, "stop" if stopped else "length", tokens))
    call.answered()
    return written


async def _translate(
    call: Call,
    body: Generation,
    prompts: Sequence[str],
    most: int | None,
    logs: int | None,
    follow: Callable[[str], None] | None,
) -> list[Written]:
    count = body.n or 1
    options = {**body.options, **({"n_best": count} if count > 1 else {})}
    if most is not None:
        options["max_length"] = most + 1  # its end included
    wanted = Wanted(prompts, body.source_language, body.target_language, body.model, options)
    found = await call.service.translate(call, wanted, None if body.stops else follow)
    without_errors([each.translation for each in found])
    written = []
    for prompt, each in zip(prompts, found, strict=True):
        best, *others = each.translation.alternatives
        # they differ from each other, and there may be fewer than are asked for
        for one in [best, *others, *[best] * count][:count]:
            text, stopped = _cut(one.text, body.stops)
            tokens: list[dict[str, Any]] | None = None if logs is None else []
            expect(
                logs is None or len(each.steps) < 2,
                400,
                "two models made this translation; leave logprobs out",
                "logprobs",
            )
            for step in each.steps if logs is not None else ():
                languages = step.served.options(step.source, step.target)
                given = prompt, one.text, one.tokens
                tokens = await _logs(call, step.served, given, logs or 0, languages, text)
            full = most is not None and len(one.tokens) >= most and not stopped
            written.append(Written(text, "length" if full else "stop", tokens))
    return written


async def _logs(
    call: Call,
    served: Served,
    given: tuple[str, str, Sequence[int]],
    count: int,
    languages: Mapping[str, str],
    text: str,
) -> list[dict[str, Any]]:
    """The tokens of an answer, with their log-probabilities and those of the `count` likeliest of
    each place. Put together, the tokens are the text.

    Args:
        given: what was asked, the whole answer and its tokens.
        text: the answer, which may be cut.
    """
    asked = call.service.ask(call, served, "tokens", [(*given, count)], languages)
    [tokens] = without_errors(await asked)
    shown: list[dict[str, Any]] = []
    start, ends = 0, [each["target"][1] if each["target"] else 0 for each in tokens]
    ends[-1:] = [len(given[1])] * bool(tokens)
    for each, end in zip(tokens, ends, strict=True):
        if start >= len(text):
            break
        end = min(max(start, end), len(text))
        others = [(t if start else t.lstrip(" "), value) for t, value in each.get("top", ())]
        top = [_token(*other) for other in others]
        shown.append(_token(text[start:end], each["log_probability"]) | {"top_logprobs": top})
        start = end
    return shown


def _token(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(text.encode("utf-8", "replace"))}


def _refuse(body: Body) -> None:
    """Refuse what would change the meaning of an answer."""
    for name, reason in REFUSED.items():
        expect(not vars(body).get(name), 400, reason, name)


def _prompt(call: Call, body: Chat) -> str:
    """What a model is to translate or to continue."""
    texts = []
    for message in body.messages:
        content = message.content or ""
        if not isinstance(content, str):
            if odd := [part for part in content if part.get("type") != "text"]:
                kind = f"{odd[0].get('type')}"
                raise Problem(
                    400, f"a message has a part of type '{kind:.40}'; send text", "messages"
                )
            content = "\n".join(str(part.get("text", "")) for part in content)
        texts.append((message.role, content))
    served, _ = call.service.models.route_of_name(body.model)
    if served is not None and served.task == CONTINUES:
        if served.template:
            return _rendered(served.template, texts)
        return "\n".join(text for _, text in texts)
    asked = [text for role, text in texts if role == "user"]
    expect(asked, 400, "there is no message of a user to translate", "messages")
    return asked[-1]


def _rendered(template: str, texts: Sequence[tuple[str, str]]) -> str:
    """A chat as a model has learnt to read it, by its template in Jinja.

    The template comes from who made the model, and reaches nothing but these values.
    """

    def refuse(reason: str) -> None:
        raise TemplateError(reason)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    sandbox.globals["raise_exception"] = refuse
    messages = [{"role": role, "content": text} for role, text in texts]
    # The model begins by itself, and a line feed is what ends a line.
    given = {"messages": messages, "add_generation_prompt": True, "bos_token": ""}
    try:
        return sandbox.from_string(template).render(given, eos_token="\n")
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        reason = f"the chat template of this model refuses these messages: {error}"
        raise Problem(400, reason, "messages") from error


def _usage(call: Call) -> dict[str, int]:
    read, written = call.tokens_in, call.tokens_out
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


async def _answer(
    call: Call,
    body: Generation,
    write: Callable[[Callable[[str], None] | None], Coroutine[Any, Any, list[Written]]],
    kind: tuple[str, str, str],
    shown: Callable[[Written | str | None, bool], dict[str, Any]],
) -> Response:
    """The answer, or events of it.

    Args:
        write: what is called with more and more of the one text -> all texts.
        kind: how its id begins, what the whole is, and what an event is.
        shown: what a choice has of an answer, or of what an event adds; and whether it is an event.
    """
    name, whole, event = kind
    head = {"id": f"{name}-{uuid4().hex}", "created": int(time()), "model": body.model}
    if not body.stream:
        written = await write(None)
        choices = [
            {"index": place, **shown(each, False), "finish_reason": each.reason}
            for place, each in enumerate(written)
        ]
        return JSONResponse({**head, "object": whole, "choices": choices, "usage": _usage(call)})

    def part(index: int, text: str | Written | None, reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, **shown(text, True), "finish_reason": reason}
        return {**head, "object": event, "choices": [choice]}

    async def events() -> AsyncGenerator[Any, None]:
        sent = ""
        async for each in followed(call, write):
            if isinstance(each, str):
                sent += each
                yield part(0, each)
                continue
            for index, written in enumerate(each):
                rest = written.text.removeprefix(sent) if len(each) == 1 else written.text
                if rest or written.tokens:
                    yield part(index, Written(rest, "", written.tokens))
                yield part(index, None, written.reason)
        if body.stream_options is not None and body.stream_options.include_usage:
            yield {**head, "object": event, "choices": [], "usage": _usage(call)}

    return await stream(call, events(), END)


async def chat(call: Call, body: Chat) -> Response:
    """Translate the last message of a user, or continue the text of all."""
    asks_for = (body.response_format or {}).get("type", "text")
    _refuse(body)
    expect(
        asks_for == "text",
        400,
        "these models write plain text; leave response_format out",
        "response_format",
    )

    def shown(given: Written | str | None, event: bool) -> dict[str, Any]:
        text = given.text if isinstance(given, Written) else given
        tokens = given.tokens if isinstance(given, Written) else None
        logs = None if tokens is None else {"content": tokens, "refusal": None}
        if event:
            delta = {} if text is None else {"role": "assistant", "content": text}
            return {"delta": delta, "logprobs": logs}
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"message": message, "logprobs": logs}

    expect(
        body.logprobs or not body.top_logprobs,
        400,
        "top_logprobs needs logprobs to be true",
        "top_logprobs",
    )
    logs = (body.top_logprobs or 0) if body.logprobs else None
    most = body.max_completion_tokens or body.max_tokens
    kind = ("chatcmpl", "chat.completion", "chat.completion.chunk")
    write = partial(_write, call, body, [_prompt(call, body)], most, logs)
    return await _answer(call, body, write, kind, shown)


async def complete(call: Call, body: Completion) -> Response:
    """Translate a prompt, or continue it."""
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    _refuse(body)
    expect(
        not body.echo or (len(prompts) == 1 and not body.stream),
        400,
        "echo is for one prompt, without stream",
        "echo",
    )
    expect(
        len(prompts) == 1 or not body.stream,
        400,
        f"found {len(prompts)} prompts; stream one at a time",
        "prompt",
    )

    served, _ = call.service.models.route_of_name(body.model)

    async def write(follow: Callable[[str], None] | None) -> list[Written]:
        if body.echo and body.max_tokens == 0:  # the prompt alone
            call.service.charge(call, prompts)
            written = [Written("", "length", [])] * (body.n or 1)
        else:
            written = await _write(call, body, prompts, body.max_tokens, body.logprobs, follow)
        if not body.echo or body.logprobs is None:
            return written
        before = await _echoed(call, served, prompts[0], body.logprobs)
        call.tokens_in = call.tokens_in or len(before)
        return [replace(each, tokens=[*before, *(each.tokens or ())]) for each in written]

    def shown(given: Written | str | None, _: bool) -> dict[str, Any]:
        text = (given.text if isinstance(given, Written) else given) or ""
        tokens = given.tokens if isinstance(given, Written) and body.logprobs is not None else None
        logs = None if tokens is None else _columns(tokens)
        return {"text": (prompts[0] if body.echo else "") + text, "logprobs": logs}

    kind = ("cmpl", "text_completion", "text_completion")
    return await _answer(call, body, write, kind, shown)


async def _echoed(
    call: Call, served: Served | None, prompt: str, count: int
) -> list[dict[str, Any]]:
    """The tokens of a prompt, as those of an answer. The first has no log-probability. Nor has a
    text to translate, which the model did not predict: it is one token."""
    tokens = [_token(prompt, 0.0)]
    if served is not None and served.task == CONTINUES:
        tokens = await _logs(call, served, ("", prompt, ()), count, {}, prompt) or tokens
    return [tokens[0] | UNKNOWN, *tokens[1:]]


def _columns(tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tokens as completions show them: a list of each property."""
    texts = [each["token"] for each in tokens]
    tops = [{one["token"]: one["logprob"] for one in each["top_logprobs"]} for each in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [each["logprob"] for each in tokens],
        "top_logprobs": [each or None for each in tops] if any(tops) else None,
        "text_offset": [*accumulate(map(len, texts), initial=0)][: len(texts)],
    }


async def embeddings(call: Call, body: Embeddings) -> Response:
    """The mean of the last layer, for each text."""
    served = call.service.models.named(body.model)
    expect(
        served.hosted is None or "embed" in served.hosted.model.verbs,
        400,
        f"'{served.name}' gives no vectors; choose a model with an encoder alone",
        "model",
    )
    _refuse(body)
    texts = [body.input] if isinstance(body.input, str) else body.input
    call.service.charge(call, texts)
    found = without_errors(await call.service.ask(call, served, "embed", texts, {}))
    if body.encoding_format == "base64":
        found = [base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode() for v in found]
    data = [
        {"object": "embedding", "index": place, "embedding": each}
        for place, each in enumerate(found)
    ]
    usage = {"prompt_tokens": call.tokens_in, "total_tokens": call.tokens_in}
    return JSONResponse({"object": "list", "data": data, "model": served.name, "usage": usage})


async def transcribe(call: Call, body: Transcription) -> Response:
    """What is said in a sound."""
    served = call.service.models.named(body.model)
    expect(
        served.reads == "sound",
        400,
        f"'{served.name}' does not read sounds; choose one that does",
        "model",
    )
    expect(
        body.response_format in ("json", "text", "verbose_json"),
        400,
        f"'{body.response_format:.40}' needs times, which this model does not give; ask for "
        "json, text or verbose_json",
        "response_format",
    )

    async def answer(name: str, output: Any) -> Response:
        text = json_value(output)
        if body.response_format == "text":
            return PlainTextResponse(text + "\n")
        if body.response_format == "json":
            return JSONResponse({"text": text})
        samples, rate = read_sound(Path(name), None)
        about = {"task": "transcribe", "language": "und", "segments": []}
        return JSONResponse({**about, "duration": len(samples) / rate, "text": text})

    response: Response = await native.of_file(call, served, body.file, {}, answer)
    return response


async def models(call: Call, _: None) -> Response:
    """All models, and the pairs of languages."""
    data = [_model(call.service.models, name) for name in call.service.models.names()]
    return JSONResponse({"object": "list", "data": data})


async def model(call: Call, _: None) -> Response:
    """One model."""
    name = call.request.path_params["id"]
    return JSONResponse(_model(call.service.models, name))


def _model(models: Models, name: str) -> dict[str, Any]:
    """A name, and whether its texts join a running batch, or why not. That is unknown until it is
    loaded.

    Raises:
        Problem: no model is called so.
    """
    served, pair = models.route_of_name(name)
    steps = models.route(*pair) if pair else []
    used = [each for each in (served, *(step.served for step in steps)) if each]
    reasons = [each.separate for each in used]
    known = {"id": name, "object": "model", "created": STARTED, "owned_by": "transduct"}
    runs = None if None in reasons else not any(reasons)
    reason = "it is not loaded" if runs is None else next(filter(None, reasons), None)
    return {**known, "running_batch": runs, "reason": reason}


ENDPOINTS = [
    Endpoint("POST", "/v1/chat/completions", chat, (Chat,), ANSWER, api=API),
    Endpoint("POST", "/v1/completions", complete, (Completion,), ANSWER, api=API),
    Endpoint("POST", "/v1/embeddings", embeddings, (Embeddings,), VECTORS, api=API),
    Endpoint(
        "POST",
        "/v1/audio/transcriptions",
        transcribe,
        (Transcription,),
        {"text": str},
        (MULTIPART,),
        API,
    ),
    Endpoint("GET", "/v1/models", models, (), {"object": str, "data": [MODEL]}, api=API),
    Endpoint("GET", "/v1/models/{id:path}", model, (), MODEL, api=API),
]
