"""Sign in at an OpenID Connect provider: the address to which a browser is sent, and the token that it gets afterwards.

The token is one like every other, with the owner and the role that the provider's claims stand for. It expires after
some hours; an admin may revoke it, and logging out does.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from storage.service.records import Token
from tuner.service.http.access import COOKIE, caller_of, store_token
from tuner.service.http.context import Context, ServiceContext
from tuner.service.http.models import Body
from tuner.service.http.problems import Problem, not_found
from tuner.service.http.provider import Attempt, Person, Provider

router = APIRouter(prefix="/v1", tags=["service"])

ATTEMPT = "tuner_sign_in"
PATH = "/v1/sign-in"
PREFIX = "sign-in-"
"""How the names of these tokens begin."""

MOST_TIME = timedelta(minutes=10)
"""How long a person may take at the provider."""


class SignIn(Body):
    """What the provider gave the browser."""

    code: Annotated[str, Field(min_length=1, max_length=4096)]
    state: Annotated[str, Field(min_length=1, max_length=200)]


@router.get("/sign-in")
async def begin(request: Request, response: Response, context: Context) -> dict[str, str]:
    """Return the address at which a browser signs in, and set the cookie that ties the answer to this browser.

    The provider sends the browser back to the page, whose script sends code and state to `POST /v1/sign-in`.
    """
    attempt = Attempt.new()
    address = await _provider(context).address(attempt, _page(request, context))
    age, secure = int(MOST_TIME.total_seconds()), context.is_secure
    response.set_cookie(ATTEMPT, attempt.cookie, age, httponly=True, samesite="strict", secure=secure, path=PATH)
    return {"address": address}


@router.post("/sign-in", status_code=204)
async def sign_in(body: SignIn, request: Request, context: Context) -> Response:
    """Keep a new token in the page's cookie, with the role that the provider's groups stand for."""
    provider, attempt = _provider(context), Attempt.read(request.cookies.get(ATTEMPT))
    if attempt is None or not secrets.compare_digest(attempt.state.encode(), body.state.encode()):
        raise Problem(401, "this sign-in was begun elsewhere, or took too long; begin again")
    person = await provider.person(attempt, body.code, _page(request, context))
    secret, token = await run_in_threadpool(_store_token, context, person)
    request.state.caller = caller_of(token, token.created_at)  # for the audit log
    response = Response(status_code=204)
    response.set_cookie(COOKIE, secret, httponly=True, samesite="strict", secure=context.is_secure, path="/")
    response.delete_cookie(ATTEMPT, path=PATH)
    return response


def is_sign_in(token: Token) -> bool:
    """Return whether a token was made for somebody who signed in."""
    return token.name.startswith(PREFIX)


def _provider(context: ServiceContext) -> Provider:
    if context.provider is None:
        raise not_found("provider", "to sign in at")
    return context.provider


def _page(request: Request, context: ServiceContext) -> str:
    """Return the address of the page, which is registered at the provider as the redirect URI."""
    scheme = "https" if context.is_secure else "http"
    return context.public_url or f"{scheme}://{request.headers.get('host', '')}/"


def _store_token(context: ServiceContext, person: Person) -> tuple[str, Token]:
    """Store a token for somebody, and return it with its secret; those of earlier sign-ins that expired are deleted."""
    context.service.forget_tokens(PREFIX, datetime.now(UTC))
    name = f"{PREFIX}{secrets.token_hex(8)}"
    return store_token(context.service, name, person.owner, person.role, context.sign_in_time)
