"""The description of a server, by OpenAPI 3.1, made from the records that check requests."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from transduct import __version__
from transduct.serving.calls import JSON, Endpoint

FILE = "application/octet-stream"
REFERENCE = "#/components/schemas/{model}"


def description(endpoints: Sequence[Endpoint], prefix: str = "") -> dict[str, Any]:
    """What each path takes and answers."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}

    def schema(kind: type[BaseModel]) -> dict[str, str]:
        """A reference to the schema of a record, which goes to `schemas` with its parts."""
        api = kind.__module__.rpartition(".")[2]
        made = kind.model_json_schema(ref_template=REFERENCE.replace("{model}", f"{api}.{{model}}"))
        for name, part in {**made.pop("$defs", {}), kind.__name__: made}.items():
            schemas[f"{api}.{name}"] = part
        return {"$ref": REFERENCE.format(model=f"{api}.{kind.__name__}")}

    for each in endpoints:
        path = re.sub(r":\w+}", "}", each.path)
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
        if each.method == "GET":
            about["parameters"] += [
                {"name": name, "in": "query", "schema": part}
                for kind in each.bodies
                for name, part in kind.model_json_schema()["properties"].items()
            ]
        elif each.bodies:
            body = {"schema": {"anyOf": [*map(schema, each.bodies)]}}
            files = {FILE: {"schema": {"type": "string", "format": "binary"}}} if each.files else {}
            content = dict.fromkeys(each.media, body) | files
            about["requestBody"] = {"required": True, "content": content}
        error = {"description": "what is wrong", "content": _json(each.api.shape)}
        about["responses"] = {"200": _good(each), "default": error}
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


def _good(each: Endpoint) -> dict[str, Any]:
    """The answer to a request without fault."""
    if isinstance(each.answer, str):
        return {"description": "the text", "content": {each.answer: {"schema": {"type": "string"}}}}
    content = _json(each.answer)
    if each.files:
        content["image/png"] = {"schema": {"type": "string", "format": "binary"}}
    if any("stream" in kind.model_fields for kind in each.bodies):
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "the answer", "content": content}


def _json(answer: Any) -> dict[str, Any]:
    return {JSON: {"schema": shape(answer)}}


def shape(answer: Any) -> dict[str, Any]:
    """The schema of JSON: of fields by name ("name?" where one may be missing), of a list of one
    shape, of one of several shapes in a tuple, or of a type."""
    if isinstance(answer, dict):
        return {
            "type": "object",
            "properties": {name.rstrip("?"): shape(each) for name, each in answer.items()},
            "required": [name for name in answer if not name.endswith("?")],
        }
    if isinstance(answer, list):
        [each] = answer
        return {"type": "array", "items": shape(each)}
    if isinstance(answer, tuple):
        return {"anyOf": [*map(shape, answer)]}
    return TypeAdapter(answer).json_schema()
