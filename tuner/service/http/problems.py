"""Errors as problem details of RFC 9457: `type`, `title`, `status`, `detail`, `field`, `value`, `rule`, `remedy`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from search_spaces.errors import SpaceError
from storage.errors import StorageError, StorageUnavailable
from storage.service.errors import (
    InvalidCursor,
    SubmissionExists,
    TooMany,
    UnknownSubmission,
    UnknownToken,
    WrongState,
)
from storage.waiting import may_pass
from tuner.errors import InfrastructureError, SettingError, TunerError, UserError
from tuner.service.http.models import rule_of
from tuner.study.study_folder import StudyIsRunning

MEDIA_TYPE = "application/problem+json"
NO_JSON = "the body is not JSON in UTF-8"
TITLES = {
    400: "the request cannot work",
    401: "a token is needed",
    403: "not allowed",
    404: "there is no such thing",
    405: "not a method of this address",
    409: "the present state does not allow it",
    413: "the body is too large",
    421: "not a name of this server",
    422: "a value cannot work",
    429: "too many requests",
    500: "an error of the server",
    503: "not available now",
}


class Problem(Exception):
    """An answer that is an error.

    `detail` is one line with the rule, the value and the next step. `hides` says whether the answer hides from the
    caller something that exists.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        field: str | None = None,
        value: object = None,
        rule: str | None = None,
        headers: dict[str, str] | None = None,
        remedy: str | None = None,
        *,
        hides: bool = False,
    ) -> None:
        super().__init__(detail)
        self.hides = hides
        self.status, self.detail, self.headers = status, detail, headers
        self.field, self.value, self.rule, self.remedy = field, value, rule, remedy

    def response(self, shown: Callable[[str], str] = str) -> JSONResponse:
        """Return the answer; `shown` returns a text as users may see it."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": TITLES.get(self.status, "the request failed"),
            "status": self.status,
            "detail": self.detail,
        }
        is_json = not isinstance(self.value, float) or math.isfinite(self.value)
        value = self.value if is_json else str(self.value)
        more = {"field": self.field, "value": value, "rule": self.rule, "remedy": self.remedy}
        body |= {name: value for name, value in more.items() if value is not None}
        utf8 = {name: shown(_utf8(value)) if isinstance(value, str) else value for name, value in body.items()}
        return JSONResponse(utf8, self.status, self.headers, MEDIA_TYPE)


def _utf8(text: str) -> str:
    """Return a text as UTF-8 can have it: JSON escapes may be halves of a character."""
    return text.encode(errors="replace").decode()


def not_found(what: str, name: str, *, hides: bool = False) -> Problem:
    """Return the answer for something that does not exist, or that the caller may not know of (`hides`)."""
    return Problem(404, f"there is no {what} {name!r}", hides=hides)


def problem_of(error: Exception) -> Problem:
    """Return the answer for an error of the program's own types; others are errors of the server."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, WrongState | SubmissionExists | StudyIsRunning):
        return Problem(409, str(error))
    if isinstance(error, SettingError):
        value = error.value if isinstance(error.value, str | int | float | None) else str(error.value)
        return Problem(422, str(error), error.field, value, error.rule, remedy=error.remedy or None)
    if isinstance(error, UnknownSubmission | UnknownToken):
        return Problem(404, str(error))
    if isinstance(error, TooMany):
        return Problem(422, str(error), "id", rule=error.rule)
    if isinstance(error, InvalidCursor):
        return Problem(422, str(error), "after")
    if isinstance(error, StorageUnavailable | InfrastructureError) or may_pass(error):
        return Problem(503, str(error), headers={"Retry-After": "5"})
    if isinstance(error, UserError | SpaceError | StorageError):
        return Problem(422, str(error))
    detail = str(error) if isinstance(error, TunerError) else f"internal error: {type(error).__name__}"
    return Problem(500, detail)


def install(app: FastAPI) -> None:
    """Let an application answer every error with a problem."""

    async def own(request: Request, error: Exception) -> JSONResponse:
        request.state.problem = found = problem_of(error)
        return found.response(request.app.state.context.places.hidden_text)

    async def http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code == 400:  # a body that is no UTF-8
            return Problem(422, NO_JSON, "body", rule=NO_JSON).response()
        headers = dict(error.headers) if error.headers else None
        return Problem(error.status_code, str(error.detail), headers=headers).response()

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
        field, rule = ".".join(where) or "body", rule_of(first)
        value = first.get("input")
        shown = value if isinstance(value, str | int | float) else None
        return Problem(422, f"{field}: {rule}", field, shown, rule).response()

    for kind in (Problem, TunerError, StorageError, SpaceError):
        app.add_exception_handler(kind, own)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, own)
