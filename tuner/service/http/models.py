"""Bodies of requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from storage.service.records import Owner, Role, Submission, SubmissionState, Token
from tuner.service.asked.settings import schema
from tuner.settings.study import MOST_GPUS

ID = r"^[a-z0-9][a-z0-9._-]{0,99}$"
"""Ids of studies are file names and parts of addresses, too."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$"
RULES = {
    ID: "an id has up to 100 lower-case letters, digits and ._- and begins with a letter or a digit",
    NAME: "a name has up to 63 letters, digits and ._@- and begins with a letter or a digit",
}
"""The patterns in words, for messages."""


def rule_of(error: Mapping[str, Any]) -> str:
    """Return the rule that a value breaks, of one of pydantic's errors."""
    message = str(error["msg"])
    return RULES.get(error.get("ctx", {}).get("pattern"), message[:1].lower() + message[1:])


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewStudy(_Body):
    """A study to submit. The same `id` with the same content is accepted again and changes nothing."""

    id: Annotated[str | None, Field(pattern=ID, description="name of the study; made up if it is left out")] = None
    settings: Annotated[dict[str, Any], WithJsonSchema(schema())]
    kind: Annotated[
        str | None, Field(max_length=100, description="kind of the devices; by default the server's only one")
    ] = None
    gpus: Annotated[int, Field(ge=1, le=MOST_GPUS, description="most devices at once")] = 1
    priority: Annotated[int, Field(ge=-100, le=100, description="larger is sooner, among your own")] = 0
    shared: Annotated[bool, Field(description="whether every token may read it")] = False
    webhook: Annotated[
        str | None, Field(max_length=100, description="webhook of the server; by default the server's choice")
    ] = None


class StudyChange(_Body):
    """What may be changed of a submitted study."""

    priority: Annotated[int | None, Field(ge=-100, le=100)] = None
    shared: bool | None = None


class Progress(BaseModel):
    """How far a study is: finished trials of the search, measurements in rounds, and the best score."""

    trials: int
    rounds: int
    failed: int
    score: float | None


class StudyView(BaseModel):
    """A submitted study. Times are UTC."""

    id: str
    owner: str
    state: SubmissionState
    reason: str | None
    culprit: str | None
    waits_for: Annotated[str | None, Field(description="why it waits, while it is queued")]
    kind: str
    gpus: int
    granted: list[str]
    priority: int
    shared: bool
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    heartbeat_at: datetime | None
    gpu_seconds: float
    webhook: Annotated[str | None, Field(description="name of the webhook that gets a message at its end")]
    settings: dict[str, Any] | None
    progress: Progress | None


class StudyPage(BaseModel):
    """A page of studies, the newest first. `next` is the `after` of the next page; null on the last one."""

    studies: list[StudyView]
    next: str | None


class NewToken(_Body):
    """A token to make. `owner` is whose studies it submits and reads."""

    name: Annotated[str, Field(pattern=NAME)]
    owner: Annotated[str, Field(pattern=NAME)]
    role: Role = Role.USER
    days: Annotated[int | None, Field(ge=1, le=3650, description="days until it expires; none: it does not")] = None


class TokenView(BaseModel):
    """A token without its secret. `token` is the secret, once, in the answer to its making."""

    name: str
    owner: str
    role: Role
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None
    token: str | None = None


class OwnerBody(_Body):
    """An owner's share and quotas."""

    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    most_gpus: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    gpu_hours_a_week: Annotated[float | None, Field(ge=0, le=1e9, allow_inf_nan=False)] = None


class Session(_Body):
    """A token, to be kept in a cookie."""

    token: Annotated[str, Field(max_length=200)]


def study_view(
    found: Submission, waits: str | None = None, progress: Progress | None = None, *, settings: bool = True
) -> StudyView:
    """Return the view of a submission."""
    return StudyView(
        id=found.id,
        owner=found.owner,
        state=found.state,
        reason=found.reason,
        culprit=found.culprit,
        waits_for=waits if found.state is SubmissionState.QUEUED else None,
        kind=found.kind,
        gpus=found.gpus,
        granted=list(found.granted),
        priority=found.priority,
        shared=found.shared,
        created_at=found.created_at,
        queued_at=found.queued_at,
        started_at=found.started_at,
        ended_at=found.ended_at,
        heartbeat_at=found.heartbeat_at,
        gpu_seconds=found.gpu_seconds,
        webhook=found.webhook,
        settings=dict(found.settings) if settings else None,
        progress=progress,
    )


def token_view(token: Token, secret: str | None = None) -> TokenView:
    """Return the view of a token; `secret` only for the one who made it."""
    names = ("name", "owner", "role", "created_at", "expires_at", "revoked_at", "used_at")
    return TokenView(**{name: getattr(token, name) for name in names}, token=secret)


def owner_of(name: str, body: OwnerBody) -> Owner:
    """Return an owner's record."""
    return Owner(name, body.weight, body.most_gpus, body.gpu_hours_a_week)
