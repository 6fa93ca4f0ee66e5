"""GET /openapi.json: the API for programs, from the table of routes and ``components.json`` (OpenAPI 3.1)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path

from cronstable.api import Json
from cronstable.builtin.web.routes import JSON, Route

TITLE = "cronstable"
_OPEN: list[Json] = [{}]


def components() -> dict[str, Json]:
    """The shapes of documents and bodies, by name; JSON Schema."""
    found: dict[str, Json] = json.loads(Path(__file__).with_name("components.json").read_text("utf-8"))
    return found


def document(routes: Iterable[Route], version: str, *, tokens: bool) -> dict[str, Json]:
    """The whole description. ``tokens``: whether this service asks for any."""
    paths: dict[str, dict[str, Json]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    security: list[Json] = [{"token": []}] if tokens else [{}]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": version,
            "description": "What a node of cronstable tells, and what it can be told to do.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "security": security,
        "paths": {path: {**operations} for path, operations in paths.items()},
        "components": {
            "schemas": components(),
            "responses": {"Error": {"description": "Why not.", "content": _content((JSON,), "Error")}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Json]:
    operation: dict[str, Json] = {
        "operationId": _identity(route),
        "summary": route.about,
        "responses": {**dict(_answers(route)), "default": {"$ref": "#/components/responses/Error"}},
    }
    if parameters := list(_parameters(route)):
        operation["parameters"] = parameters
    if route.body:
        operation["requestBody"] = {"required": False, "content": _content((JSON,), route.body)}
    if route.open:
        operation["security"] = _OPEN
    return operation


def _identity(route: Route) -> str:
    """``post-jobs-name-start``: one word for each part of the path."""
    parts = [part.strip("{}").replace(".", "-") for part in route.path.split("/") if part]
    return "-".join([route.method.lower(), *parts])


def _parameters(route: Route) -> Iterator[Json]:
    if "{name}" in route.path:
        name: Json = {"type": "string", "minLength": 1}
        yield {"name": "name", "in": "path", "required": True, "description": "the name of a job", "schema": name}
    for query in route.query:
        yield {
            "name": query.name,
            "in": "query",
            "required": query.required,
            "description": query.about,
            "schema": dict(query.schema),
        }


def _answers(route: Route) -> Iterator[tuple[str, Json]]:
    for code in route.codes:
        words = HTTPStatus(code).phrase
        if code == HTTPStatus.OK:
            yield str(code), {"description": words, "content": _content(route.media, route.answer)}
        elif code < HTTPStatus.BAD_REQUEST:
            yield str(code), {"description": words}
        else:
            yield str(code), {"$ref": "#/components/responses/Error"}


def _content(media: tuple[str, ...], answer: str) -> dict[str, Json]:
    shape: Json = {"$ref": f"#/components/schemas/{answer}"}
    text: Json = {"type": "string"}
    return {kind: {"schema": shape if kind == JSON else text} for kind in media}
