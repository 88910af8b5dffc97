"""Who calls, and what they may do."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyCookie, HTTPBearer

from storage.service.records import AuditEntry, Role, Submission, Token
from storage.service.store import ServiceStore
from tuner.client.replies import ServiceToken
from tuner.service.http.context import Context, ServiceContext
from tuner.service.http.models import NewToken, token_of
from tuner.service.http.problems import Problem

COOKIE = "tuner_session"
_Bearer = Annotated[
    object,
    Security(
        HTTPBearer(scheme_name="token", description="a token as `tnr_` and 64 hexadecimal digits", auto_error=False)
    ),
]
_Session = Annotated[
    object,
    Security(
        APIKeyCookie(name=COOKIE, scheme_name="cookie", description="the same token, for the page", auto_error=False)
    ),
]
TOKEN = re.compile(r"tnr_[0-9a-f]{64}")
TOUCH = timedelta(minutes=1)
"""How often the time of a token's last use is written."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def digest_of(token: str) -> str:
    """Return the SHA-256 of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


def make_token(service: ServiceStore, asked: NewToken) -> ServiceToken:
    """Store a new token, and return it with its secret."""
    lasts = None if asked.days is None else timedelta(days=asked.days)
    secret, token = store_token(service, asked.name, asked.owner, asked.role, lasts)
    return token_of(token, secret)


def store_token(service: ServiceStore, name: str, owner: str, role: Role, lasts: timedelta | None) -> tuple[str, Token]:
    """Store a new token, and return its secret and its record; None: it does not expire."""
    secret, now = f"tnr_{secrets.token_hex(32)}", datetime.now(UTC)
    token = Token(name, owner, role, digest_of(secret), now, None if lasts is None else now + lasts)
    service.add_token(token)
    return secret, token


@dataclass(frozen=True)
class Caller:
    """Who calls: a token's name, its owner and its role, and the address; None without one."""

    token: str
    owner: str
    role: Role
    address: str | None = None

    @property
    def is_admin(self) -> bool:
        return self.role is Role.ADMIN

    @property
    def reads_as(self) -> str | None:
        """Whose studies the caller reads beside shared ones; None: everybody's."""
        return None if self.is_admin else self.owner

    def may_read(self, found: Submission) -> bool:
        return found.shared or self.may_change(found.owner)

    def may_change(self, owner: str) -> bool:
        return self.is_admin or owner == self.owner


def _given_token(request: Request) -> tuple[str | None, bool]:
    """Return the token of a request, and whether a cookie has it."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme:
        return (value.strip() if scheme.lower() == "bearer" else None), False
    return request.cookies.get(COOKIE), True


def caller(request: Request, context: Context, _bearer: _Bearer, _session: _Session) -> Caller:
    """Return who calls. FastAPI reads the last two parameters for the API's description only.

    Raises:
        Problem: 401 without a valid token; 403 for a change that another site's page asks for.
    """
    now = datetime.now(UTC)
    token = context.service.token(given_digest(request))
    request.state.caller = found = caller_at(request, token, now)
    if token is not None:
        touch(context, token, now)
    return found


def given_digest(request: Request) -> str:
    """Return the digest of a request's token.

    Raises:
        Problem: 401 without a token; 403 for a change that another site's page asks for.
    """
    digest = digest_of_request(request)
    if digest is None:
        raise _no_token()
    _, by_cookie = _given_token(request)
    if by_cookie and request.method not in SAFE and not _same_origin(request):
        raise Problem(403, "a change by a page of another site is refused")
    return digest


def digest_of_request(request: Request) -> str | None:
    """Return the digest of a request's token, whether it is valid or not; None without one."""
    given, _ = _given_token(request)
    return digest_of(given) if given is not None and TOKEN.fullmatch(given) else None


def caller_of(token: Token | None, now: datetime) -> Caller:
    """Return who has a token.

    Raises:
        Problem: 401 if it is not valid.
    """
    if token is None or not token.is_valid(now):
        raise _no_token()
    return Caller(token.name, token.owner, token.role)


def caller_at(request: Request, token: Token | None, now: datetime) -> Caller:
    """Return who has the token of a request, with the request's address.

    Raises:
        Problem: 401 if it is not valid.
    """
    return replace(caller_of(token, now), address=None if request.client is None else request.client.host)


def _no_token() -> Problem:
    rule = "send a valid token as `Authorization: Bearer tnr_…`; `tuner service token add` makes one"
    return Problem(401, rule, headers={"WWW-Authenticate": "Bearer"})


def touch(context: ServiceContext, token: Token, now: datetime) -> None:
    """Store that a token is used, once in `TOUCH`."""
    if token.is_valid(now) and (token.used_at is None or now - token.used_at > TOUCH):
        context.service.touch_token(token.name, now)


def _same_origin(request: Request) -> bool:
    """Return whether a request was sent by a page of this server: browsers send `Origin` with every change."""
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


Known = Annotated[Caller, Depends(caller)]


def user(who: Known) -> Caller:
    """Return a caller who may submit.

    Raises:
        Problem: 403 for a viewer.
    """
    if who.role is Role.VIEWER:
        raise Problem(403, f"the token {who.token!r} may only read; ask an admin for one of a user")
    return who


def admin(who: Known) -> Caller:
    """Return an admin.

    Raises:
        Problem: 403 for everybody else.
    """
    if not who.is_admin:
        raise Problem(403, f"the token {who.token!r} is not an admin's")
    return who


User = Annotated[Caller, Depends(user)]
Admin = Annotated[Caller, Depends(admin)]


def readable(id: str, who: Known, context: Context) -> Submission:
    """Return a submission that a caller may read.

    Raises:
        Problem: 404 if there is none, or it is another owner's and not shared.
    """
    found = context.service.submission(id)
    if found is None or not who.may_read(found):
        detail = f"there is no study {id!r} that you may read; list the studies to see their ids"
        raise Problem(404, detail, hides=found is not None)
    return found


def check_source(study: str, who: Caller, context: ServiceContext) -> None:
    """Refuse a study to learn from that a caller may not read; admins may also name one of the command line.

    Raises:
        Problem: 404, as `readable`.
    """
    if not (who.is_admin and context.service.submission(study) is None and context.store.study(study) is not None):
        readable(study, who, context)


Readable = Annotated[Submission, Depends(readable)]


def changeable(who: User, found: Readable) -> Submission:
    """Return a submission that a caller may change.

    Raises:
        Problem: 404 as `readable`; 403 for another owner's shared one.
    """
    if not who.may_change(found.owner):
        raise Problem(403, f"the study {found.id!r} is {found.owner}'s; only its owner and admins change it")
    return found


Changeable = Annotated[Submission, Depends(changeable)]


def log_action(context: ServiceContext, who: Caller, action: str, resource: str, result: str) -> None:
    """Write a line of the audit log."""
    detail = {} if who.address is None else {"address": who.address}
    context.service.audit(AuditEntry(datetime.now(UTC), who.token, who.owner, action, resource, result, detail))
