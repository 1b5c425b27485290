"""The description of a server, by OpenAPI 3.1, made from the records that check requests."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from transduct import __version__
from transduct.serving.calls import JSON, Endpoint

FILE = "application/octet-stream"
REFERENCE = "#/components/schemas/{model}"


def description(endpoints: Sequence[Endpoint], prefix: str = "") -> dict[str, Any]:
    """What each path takes and answers."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}

    def schema(kind: Any, api: str) -> Any:
        """The schema of a record, whose parts go to `schemas`."""
        made = TypeAdapter(kind).json_schema(
            by_alias=True, ref_template=REFERENCE.replace("{model}", f"{api}.{{model}}")
        )
        for name, part in made.pop("$defs", {}).items():
            schemas[f"{api}.{name}"] = part
        title = made.get("title")
        if not title:
            return made
        schemas[f"{api}.{title}"] = made
        return {"$ref": REFERENCE.format(model=f"{api}.{title}")}

    for each in endpoints:
        path = re.sub(r":\w+}", "}", each.path)
        api = each.handle.__module__.rpartition(".")[2]
        about: dict[str, Any] = {
            "operationId": f"{each.method.lower()}{re.sub(r'[^a-z0-9]+', '_', path.lower())}",
            "summary": (each.handle.__doc__ or "").strip().split("\n")[0],
            "tags": [each.api.name],
            "security": [] if each.open else [{}, {"key": []}],
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)", path)
            ],
        }
        wanted = [schema(kind, kind.__module__.rpartition(".")[2]) for kind in each.bodies]
        if wanted and each.method == "GET":
            about["parameters"] += [
                {"name": name, "in": "query", "schema": part}
                for kind in each.bodies
                for name, part in TypeAdapter(kind).json_schema()["properties"].items()
            ]
        elif wanted:
            body = {"schema": wanted[0] if len(wanted) == 1 else {"anyOf": wanted}}
            files = {FILE: {"schema": {"type": "string", "format": "binary"}}} if each.files else {}
            content = dict.fromkeys(each.media, body) | files
            about["requestBody"] = {"required": True, "content": content}
        error = {"description": "what is wrong", "content": _json(schema(each.api.schema, api))}
        about["responses"] = {"200": _good(each, schema, api), "default": error}
        paths.setdefault(path, {})[each.method.lower()] = about
    return {
        "openapi": "3.1.0",
        "info": {"title": "transduct", "version": __version__},
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _good(each: Endpoint, schema: Any, api: str) -> dict[str, Any]:
    """The answer to a request without fault."""
    if isinstance(each.answer, str):
        return {"description": "the text", "content": {each.answer: {"schema": {"type": "string"}}}}
    content = _json(schema(each.answer, api))
    if each.files:
        content["image/png"] = {"schema": {"type": "string", "format": "binary"}}
    if any("stream" in kind.model_fields for kind in each.bodies):
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "the answer", "content": content}


def _json(schema: Any) -> dict[str, Any]:
    return {JSON: {"schema": schema}}
