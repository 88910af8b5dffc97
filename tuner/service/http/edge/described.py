"""The OpenAPI description: FastAPI's, with the problem details of errors, and answers that are no JSON."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from tuner.service.http.problems import MEDIA_TYPE


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


PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "an error",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
    }
}
"""The description of every error. It replaces FastAPI's own form of a 422, which the service never sends."""


def describe(app: FastAPI) -> None:
    """Let an application, whose answers are described by `PROBLEM`, describe the problem details."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        document["components"]["schemas"]["ProblemDetails"] = ProblemDetails.model_json_schema()
        return document

    app.openapi = openapi  # type: ignore[method-assign]
