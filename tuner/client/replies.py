"""The answers of a server, as frozen records. Times are UTC; an absent value is None.

The routes of the service return these records, and the clients read them: their fields are the JSON of the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from storage.service.records import ENDED, Role, SubmissionState
from tuner.errors import InfrastructureError

Record = TypeVar("Record")


@dataclass(frozen=True)
class StudyProgress:
    """Progress of a study: finished trials of the search, measurements in rounds, failed trials, and the best score."""

    trials: int
    rounds: int
    failed: int
    score: float | None


@dataclass(frozen=True)
class SubmittedStudy:
    """A submitted study.

    Attributes:
        id: its name.
        owner: who submitted it.
        state: see docs/design/service.md.
        reason: why it ended; None if there is nothing to say.
        culprit: `configuration`, `infrastructure` or `tuner` of a failed one.
        waits_for: why it waits, while it is queued.
        kind: of the devices.
        gpus: most devices at once.
        granted: names of the devices that it has.
        priority: larger is sooner, among the owner's own.
        shared: whether every token may read it.
        gpu_seconds: device-seconds used so far.
        settings: keywords of `tuner.optimize`; None in a list of studies.
        progress: None before its first run.
        webhook: of the server, which gets a message at its end; None: none, or the server is of an older version.
        watch: its deployed servers: `urls`, `window_s`, `text`, what has `drifted`, and `problem`; None: none.
    """

    id: str
    owner: str
    state: SubmissionState
    reason: str | None
    culprit: str | None
    waits_for: str | None
    kind: str
    gpus: int
    granted: tuple[str, ...]
    priority: int
    shared: bool
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    heartbeat_at: datetime | None
    gpu_seconds: float
    settings: Mapping[str, Any] | None
    progress: StudyProgress | None
    webhook: str | None = None
    watch: Mapping[str, Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether the study has ended: it neither runs nor waits."""
        return self.state in ENDED


@dataclass(frozen=True)
class StudyPage:
    """A page of studies, the newest first. `next` is the `after` of the next page; None on the last one."""

    studies: tuple[SubmittedStudy, ...]
    next: str | None


@dataclass(frozen=True)
class SubmittedTrial:
    """A trial of the search (`round` 0), or a measurement in a round.

    `metrics` are the medians over its benchmarks, `values` those of the objectives, `constraints` the violations of the
    SLOs, each satisfied at or below 0. `failure` has `kind`, `culprit` and `message`. `cut` is why a trial was cut
    short. `provenance` is `measured` or `simulated`; None while the trial is pending.
    """

    number: int
    round: int
    kind: str
    label: str | None
    state: str
    score: float | None
    feasible: bool | None
    values: Mapping[str, float | None]
    constraints: Mapping[str, float]
    metrics: Mapping[str, float | None]
    config: Mapping[str, Any]
    failure: Mapping[str, str] | None
    provenance: str | None
    started_at: datetime | None
    ended_at: datetime | None
    cut: str | None = None


@dataclass(frozen=True)
class StudyEvent:
    """Something that happened to a study. `number` grows by 1, from 1; `data` depends on `kind`."""

    number: int
    kind: str
    at: datetime
    data: Mapping[str, Any]

    @property
    def state(self) -> SubmissionState | None:
        """The study's new state; None if the event does not change it."""
        state = str(self.data.get("state"))
        return SubmissionState(state) if state in SubmissionState.__members__ else None  # a trial's are others


@dataclass(frozen=True)
class LogPart:
    """Bytes of a driver's log from `offset` on; `size` is that of the whole log now."""

    content: bytes
    offset: int
    size: int

    @property
    def end(self) -> int:
        """Where the next part begins."""
        return self.offset + len(self.content)


@dataclass(frozen=True)
class ServiceToken:
    """A token. `token` is the secret itself, only in the answer that creates it, else None; `repr` omits it."""

    name: str
    owner: str
    role: Role
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None
    token: str | None = None

    def __repr__(self) -> str:
        return f"ServiceToken({self.name!r}, owner={self.owner!r}, role={self.role!r})"


def parsed(reply: httpx.Response, kind: type[Record]) -> Record:
    """Return the JSON of an answer as a record; keys of a newer server are ignored.

    Raises:
        InfrastructureError: if it is none, so that something else answers at this address.
    """
    try:
        return TypeAdapter(kind).validate_json(reply.content)
    except ValidationError:
        url = f"{reply.request.url.scheme}://{reply.request.url.netloc.decode()}"
        raise InfrastructureError(f"what answers at {url} is not a tuner's server; check the address") from None
