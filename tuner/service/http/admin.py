"""Sessions, tokens, owners, the queue and the audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from storage.service.records import ACTIVE, Owner, SubmissionState
from tuner.client.replies import ServiceToken
from tuner.errors import SettingError
from tuner.service.http.access import (
    COOKIE,
    TOKEN,
    Admin,
    Known,
    caller_at,
    caller_of,
    digest_of,
    digest_of_request,
    log_action,
    make_token,
)
from tuner.service.http.context import Context
from tuner.service.http.models import NewToken, OwnerBody, Session, token_of
from tuner.service.http.problems import Problem
from tuner.service.http.sign_in import is_sign_in

router = APIRouter(prefix="/v1", tags=["service"])


@router.post("/session", status_code=204)
def log_in(body: Session, request: Request, context: Context) -> Response:
    """Keep a token in a cookie that scripts cannot read, and other sites' pages do not send."""
    token = context.service.token(digest_of(body.token)) if TOKEN.fullmatch(body.token) else None
    if token is None or not token.is_valid(now := datetime.now(UTC)):
        raise Problem(401, "this token is not valid; ask an admin for one")
    request.state.caller = caller_of(token, now)  # for the audit log
    response = Response(status_code=204)
    response.set_cookie(COOKIE, body.token, httponly=True, samesite="strict", secure=context.is_secure, path="/")
    return response


@router.delete("/session", status_code=204)
def log_out(request: Request, context: Context) -> Response:
    """Forget the cookie; a token that was made by a sign-in is worthless from now on."""
    token, now = context.service.token(digest_of_request(request) or ""), datetime.now(UTC)
    if token is not None and is_sign_in(token) and token.is_valid(now):
        context.service.revoke_token(token.name, now)
        log_action(context, caller_at(request, token, now), "log out", "session", "done")
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response


@router.get("/session")
def session(who: Known) -> dict[str, Any]:
    """Return who calls."""
    return {"token": who.token, "owner": who.owner, "role": who.role.value}


@router.post("/tokens", status_code=201)
def add_token(body: NewToken, who: Admin, context: Context) -> ServiceToken:
    """Make a token; its secret is in this answer only."""
    made = make_token(context.service, body)
    log_action(context, who, "add token", body.name, "done")
    return made


@router.get("/tokens")
def tokens(who: Admin, context: Context) -> list[ServiceToken]:
    """Return all tokens without their secrets."""
    return [token_of(token) for token in context.service.tokens()]


@router.post("/tokens/{name}:revoke")
def revoke_token(name: str, who: Admin, context: Context) -> ServiceToken:
    """Make a token worthless from now on."""
    token = context.service.revoke_token(name, datetime.now(UTC))
    log_action(context, who, "revoke token", name, "done")
    return token_of(token)


@router.get("/owners")
def owners(who: Admin, context: Context) -> dict[str, OwnerBody]:
    """Return the shares and quotas of owners; one that is not listed has weight 1 and no quota."""
    return {each.name: OwnerBody.model_validate(each, from_attributes=True) for each in context.service.owners()}


@router.put("/owners/{name}")
def set_owner(name: str, body: OwnerBody, who: Admin, context: Context) -> OwnerBody:
    """Set an owner's share and quotas."""
    if not name.isprintable() or len(name) > 64:
        raise SettingError("name", name, "a name has 1 to 64 printable characters")
    context.service.set_owner(Owner(name, **body.model_dump()))
    log_action(context, who, "set owner", name, "done")
    return body


@router.get("/queue")
def queue(who: Known, context: Context) -> dict[str, Any]:
    """Return the devices, who has them, and the number of studies by state; others' ids only to admins."""
    busy: dict[str, str | None] = {}
    for each in context.service.active_and_queued():
        if each.state in ACTIVE:
            busy |= dict.fromkeys(each.granted, each.id if who.may_read(each) else None)
    devices = [
        {"name": name, "kind": kind, "busy": name in busy, "study": busy.get(name)}
        for kind, names in context.devices.items()
        for name in names
    ]
    counts = context.service.figures().states
    return {"devices": devices, "states": counts, "waiting": counts[SubmissionState.QUEUED]}


@router.get("/audit")
def audit(
    who: Admin,
    context: Context,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: Annotated[int | None, Query(ge=1)] = None,
) -> list[dict[str, Any]]:
    """Return the last actions, refused requests and log-ins, the latest first."""
    return [
        {
            "at": entry.at.isoformat(),
            "token": entry.token,
            "owner": entry.owner,
            "action": entry.action,
            "resource": entry.resource,
            "result": entry.result,
            **{name: entry.detail.get(name) for name in ("address", "status", "field", "rule")},
        }
        for entry in context.service.audit_log(limit, before)
    ]
