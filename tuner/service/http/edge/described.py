"""The OpenAPI description: FastAPI's, with the problem details that each operation may answer, and how to log in."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from tuner.service.http.access import COOKIE
from tuner.service.http.problems import MEDIA_TYPE, TITLES

OPEN = frozenset({"/healthz", "/readyz", "/v1/session", "/v1/sign-in"})
"""Paths that answer without a token."""

SECURITY: list[dict[str, list[str]]] = [{"token": []}, {"cookie": []}]
SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "a token as `tnr_` and 64 hexadecimal digits"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "the same token, for the page"},
}


class ProblemDetails(BaseModel):
    """An error (RFC 9457): what happened, and where there is one, the field, its value, the rule and the next step."""

    model_config = ConfigDict(extra="forbid")
    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    value: str | int | float | bool | None = Field(default=None, description="the value that was refused")
    rule: str | None = None
    remedy: str | None = None


def text(media_type: str) -> dict[int | str, dict[str, Any]]:
    """Return the description of a good answer that is text of a media type."""
    return {200: {"content": {media_type: {"schema": {"type": "string"}}}}}


def event_stream() -> dict[int | str, dict[str, Any]]:
    """Return the description of a stream of events; its schema is that of each event."""
    fields = {"id": "its number", "event": "its kind", "data": "its time `at`, and what belongs to its kind, as JSON"}
    properties = {name: {"type": "string", "description": what} for name, what in fields.items()}
    event = {"type": "object", "properties": properties, "required": [*fields]}
    return {200: {"content": {"text/event-stream": {"schema": event}}}}


def describe(app: FastAPI) -> None:
    """Let an application describe its problem details and its security."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _add(made())
        return made()

    app.openapi = openapi  # type: ignore[method-assign]


def _add(document: dict[str, Any]) -> None:
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own form of a 422, which is never sent
        schemas.pop(name, None)
    schemas["ProblemDetails"] = ProblemDetails.model_json_schema()
    parts["securitySchemes"] = SCHEMES
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            responses = operation["responses"]
            responses.pop("422", None)
            responses |= {str(status): _problem(status) for status in _statuses(path, method, operation)}
            if _needs_token(path, method):
                operation["security"] = SECURITY


def _needs_token(path: str, method: str) -> bool:
    return path not in OPEN or (path == "/v1/session" and method == "get")


def _statuses(path: str, method: str, operation: dict[str, Any]) -> list[int]:
    named = "{" in path
    places = [each["in"] for each in operation.get("parameters", ())]
    signs_in = path == "/v1/sign-in"
    asks = {
        401: _needs_token(path, method) or "requestBody" in operation,
        403: _needs_token(path, method) or (signs_in and method == "post"),
        404: named or signs_in or "study" in {each["name"] for each in operation.get("parameters", ())},
        409: method != "get" and path.startswith("/v1/"),
        413: True,
        422: bool(places) or "requestBody" in operation or named,
        429: True,
        503: True,
    }
    return [status for status, asked in asks.items() if asked]


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {"description": TITLES[status], "content": {MEDIA_TYPE: {"schema": schema}}}
