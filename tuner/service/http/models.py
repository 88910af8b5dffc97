"""Bodies of requests, and answers of records of the database; `tuner.client.replies` declares the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from storage.service.records import Role, Submission, SubmissionState, Token
from tuner.client.replies import ServiceToken, StudyProgress, SubmittedStudy
from tuner.service.asked.settings import schema
from tuner.service.watching.deployed import MOST_SERVERS
from tuner.settings.declared import settings_of
from tuner.settings.study import MOST_GPUS
from tuner.settings.submit import SubmitSettings

Record = TypeVar("Record")
Counts = tuple[int, int, int, float | None]
ID = r"^[a-z0-9][a-z0-9._-]{0,99}$"
"""Ids of studies are file names and parts of addresses, too."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,62}$"
RULES = {
    ID: "an id has up to 100 lower-case letters, digits and ._- and begins with a letter or a digit",
    NAME: "a name has up to 63 letters, digits and ._@+- and begins with a letter or a digit",
}
"""The patterns in words, for messages."""


def rule_of(error: Mapping[str, Any]) -> str:
    """Return the rule that a value breaks, of one of pydantic's errors."""
    message = str(error["msg"])
    return RULES.get(error.get("ctx", {}).get("pattern"), message[:1].lower() + message[1:])


class Body(BaseModel):
    """The body of a request, without unknown names."""

    model_config = ConfigDict(extra="forbid")


def _queued(name: str, **more: Any) -> Any:
    """Return the description and the limits of a setting of the queue, as `tuner service submit` has them."""
    _, setting = settings_of(SubmitSettings)[name]
    default = f" By default {setting.shown}." if setting.shown else ""
    return Field(**{"description": setting.help + default, "ge": setting.least, "le": setting.most, **more})


class NewStudy(Body):
    """A study to submit. The same `id` with the same content is accepted again and changes nothing."""

    id: Annotated[str | None, _queued("id", pattern=ID)] = None
    settings: Annotated[dict[str, Any], WithJsonSchema(schema())]
    kind: Annotated[str | None, _queued("kind", max_length=100)] = None
    gpus: Annotated[int, _queued("gpus", le=MOST_GPUS)] = 1
    priority: Annotated[int, _queued("priority")] = 0
    shared: Annotated[bool, _queued("shared")] = False
    webhook: Annotated[str | None, _queued("webhook", max_length=100)] = None


class StudyChange(Body):
    """What may be changed of a submitted study."""

    priority: Annotated[int | None, _queued("priority")] = None
    shared: bool | None = None


class NewWatch(Body):
    """Deployed servers of an ended study, whose /metrics are compared with it."""

    urls: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=MOST_SERVERS)]
    window_s: Annotated[float, Field(ge=60, le=86400, description="seconds of a window")] = 300.0


class NewToken(Body):
    """A token to make. `owner` is whose studies it submits and reads."""

    name: Annotated[str, Field(pattern=NAME)]
    owner: Annotated[str, Field(pattern=NAME)]
    role: Role = Role.USER
    days: Annotated[int | None, Field(ge=1, le=3650, description="days until it expires; none: it does not")] = None


class OwnerBody(Body):
    """An owner's share and quotas."""

    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    most_gpus: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    gpu_hours_a_week: Annotated[float | None, Field(ge=0, le=1e9, allow_inf_nan=False)] = None


class Session(Body):
    """A token, to be kept in a cookie."""

    token: Annotated[str, Field(max_length=200)]


def study_of(found: Submission, waits: str | None, progress: Counts | None, *, settings: bool = True) -> SubmittedStudy:
    """Return a submission as its readers see it.

    `waits` is why it waits; `progress` is None before its first run.
    """
    more = {
        "waits_for": waits if found.state is SubmissionState.QUEUED else None,
        "settings": found.settings if settings else None,
        "progress": None if progress is None else StudyProgress(*progress),
    }
    return _record(SubmittedStudy, found, **more)


def token_of(token: Token, secret: str | None = None) -> ServiceToken:
    """Return a token without its digest; `secret` only for the one who made it."""
    return _record(ServiceToken, token, token=secret)


def _record(kind: type[Record], source: object, **more: Any) -> Record:
    """Return a record with the values of another one's fields, and further ones."""
    names = [each.name for each in fields(kind) if each.name not in more]  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: getattr(source, name) for name in names}, **more)
