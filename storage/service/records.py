"""Records of the service: plain, frozen, without SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class SubmissionState(StrEnum):
    """Where a submission is, see docs/design/service.md."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    CONCLUDING = "CONCLUDING"
    DONE = "DONE"
    STOPPED = "STOPPED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


ACTIVE = frozenset({SubmissionState.RUNNING, SubmissionState.STOPPING, SubmissionState.CONCLUDING})
"""States with devices and a driver."""

CONSIDERED = ACTIVE | {SubmissionState.QUEUED}
"""States of submissions that run or wait."""

ENDED = frozenset({SubmissionState.DONE, SubmissionState.STOPPED, SubmissionState.CANCELLED, SubmissionState.FAILED})
"""States without either, which only a person leaves."""

RESUMABLE = ENDED - {SubmissionState.DONE}
"""States from which a submission can be queued again."""


class Request(StrEnum):
    """What a driver is asked to do: finish and conclude, end at once, or give its devices back and queue again."""

    STOP = "stop"
    CANCEL = "cancel"
    YIELD = "yield"


class Role(StrEnum):
    """What a token may do, see docs/design/service.md."""

    VIEWER = "viewer"
    USER = "user"
    ADMIN = "admin"


@dataclass(frozen=True)
class Driver:
    """The process that runs a submission's study.

    `started` is its start time in clock ticks since its host's boot, `boot` the id of that boot: together with `pid`
    they are one process for good.
    """

    host: str
    pid: int
    started: int
    boot: str


@dataclass(frozen=True)
class Submission:
    """A study that a person asked for.

    Attributes:
        id: name of the study.
        owner: who asked.
        settings: keywords of `tuner.optimize`, with contents instead of files.
        kind: kind of the devices, such as `h200`, `cpu` or `simulated`.
        gpus: most devices at once, 1 or more.
        priority: larger is sooner, among the owner's own.
        queued_at: when it was queued last.
        reason: why it ended or waits; None if there is nothing to say.
        culprit: `configuration`, `infrastructure` or `tuner` of a failed one; None for the others.
        shared: whether every token may read it.
        request: what its driver was asked and has not done yet.
        granted: names of the devices that it has, one for each worker; empty if it is not active or measures no more.
        runs: how often it got devices; it names the present run.
        run_began_at: when its present run got its devices; None if it is not active.
        driver: the process that runs it; None until it is started, and after its end.
        heartbeat_at: when its driver wrote last.
        started_at: when it got devices for the first time.
        gpu_seconds: device-seconds used by all its runs.
        losses: drivers that were lost since its last finished trial.
        events: number of its last event.
        webhook: name of the server's webhook that gets a message when it ends; None: none.
        watch: the deployed servers that are watched for it, and what they last counted; None: none are.
    """

    id: str
    owner: str
    settings: Mapping[str, Any]
    kind: str
    gpus: int
    priority: int
    created_at: datetime
    queued_at: datetime
    state: SubmissionState = SubmissionState.QUEUED
    reason: str | None = None
    culprit: str | None = None
    shared: bool = False
    request: Request | None = None
    granted: tuple[str, ...] = ()
    runs: int = 0
    run_began_at: datetime | None = None
    driver: Driver | None = None
    heartbeat_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    gpu_seconds: float = 0.0
    losses: int = 0
    events: int = 0
    webhook: str | None = None
    watch: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Page:
    """Some submissions of a longer list. `cursor` is the `after` of the next page; None: there is none."""

    submissions: tuple[Submission, ...]
    cursor: str | None = None


@dataclass(frozen=True)
class Event:
    """Something that happened to a submission. `number` grows by 1 within a submission, from 1."""

    submission: str
    number: int
    at: datetime
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Owner:
    """A person or a team.

    `weight` is the share of the devices relative to others. `most_gpus` is the quota of devices at once, and
    `gpu_hours_a_week` that of use in seven days; None: no quota.
    """

    name: str
    weight: float = 1.0
    most_gpus: int | None = None
    gpu_hours_a_week: float | None = None


@dataclass(frozen=True)
class Use:
    """Device-seconds that an owner used from `began_at` until `ended_at` by one run of a submission."""

    owner: str
    submission: str
    kind: str
    began_at: datetime
    ended_at: datetime
    gpu_seconds: float


@dataclass(frozen=True)
class Token:
    """A token's record; the token itself is not stored, only `digest`, its SHA-256 in hexadecimal digits."""

    name: str
    owner: str
    role: Role
    digest: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    used_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """Return whether the token is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


@dataclass(frozen=True)
class Lease:
    """The right to schedule. `term` grows by 1 with each new holder."""

    name: str
    holder: str
    term: int
    expires_at: datetime


@dataclass(frozen=True)
class AuditEntry:
    """Who did what, and whether it was allowed.

    `token` is a token's name; None without a valid one. The store gives each entry a `number` that only grows.
    """

    at: datetime
    token: str | None
    owner: str | None
    action: str
    resource: str
    result: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    number: int | None = None


@dataclass(frozen=True)
class Waiting:
    """Submissions of one kind of devices that wait: how many, and since when the oldest one has waited."""

    count: int
    since: datetime


@dataclass(frozen=True)
class Figures:
    """The queue in numbers.

    Attributes:
        states: number of submissions in each state, 0 included.
        waiting: those that wait, by kind of devices; a kind without one is left out.
        granted: names of the devices that submissions have.
    """

    states: Mapping[SubmissionState, int]
    waiting: Mapping[str, Waiting]
    granted: tuple[str, ...]


@dataclass(frozen=True)
class Message:
    """A message to a webhook that is still to be sent.

    Attributes:
        number: of its row.
        webhook: name of the server's webhook.
        key: the same for each attempt, and for no other message.
        data: what it says, of a submission: `id`, `owner`, `kind`, `state`, `reason`, `culprit`, `gpu_seconds`, and
            `created_at` and `ended_at` in ISO 8601; about deployed servers also `drift`, and when it was `found_at`.
        created_at: when the submission ended, or its servers had drifted.
        attempts: attempts that failed.
    """

    number: int
    webhook: str
    key: str
    data: Mapping[str, Any]
    created_at: datetime
    attempts: int = 0
