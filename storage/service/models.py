"""The service's tables as SQLAlchemy models, beside those of `storage.tables.models`.

Row numbers of submissions and events are never used again, also not after a deletion: readers of events keep them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from storage.tables.models import KEYWORD_LENGTH, NAME_LENGTH, Base, CleanText

_NEVER_AGAIN = {"sqlite_autoincrement": True}
_ROW_NUMBER = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers only rows whose key is INTEGER


class SubmissionRow(Base):
    """A submission: the fields of `storage.service.records.Submission`, of which `name` is the id.

    `counted_at` is until when `gpu_seconds` has the present run's; None without one. `events` is the number of the last
    event. The settings may be large and are read only where they are asked for.
    """

    __tablename__ = "tuner_submissions"
    __table_args__ = (
        Index("ix_tuner_submissions_created_at", "created_at", "id"),
        Index("ix_tuner_submissions_owner", "owner", "created_at", "id"),
        Index("ix_tuner_submissions_state", "state", "created_at", "id"),
        _NEVER_AGAIN,
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH), unique=True)
    owner: Mapped[str] = mapped_column(String(NAME_LENGTH))
    state: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    reason: Mapped[str | None] = mapped_column(CleanText)
    culprit: Mapped[str | None] = mapped_column(String(KEYWORD_LENGTH))
    settings: Mapped[dict[str, Any]] = mapped_column(deferred=True)
    kind: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    gpus: Mapped[int]
    priority: Mapped[int]
    shared: Mapped[bool]
    request: Mapped[str | None] = mapped_column(String(KEYWORD_LENGTH))
    granted: Mapped[list[str]]
    runs: Mapped[int]
    driver_host: Mapped[str | None] = mapped_column(CleanText)
    driver_pid: Mapped[int | None]
    driver_started: Mapped[int | None] = mapped_column(BigInteger)
    driver_boot: Mapped[str | None] = mapped_column(CleanText)
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    run_began_at: Mapped[datetime | None]
    counted_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    gpu_seconds: Mapped[float]
    losses: Mapped[int]
    events: Mapped[int]
    webhook: Mapped[str | None] = mapped_column(String(KEYWORD_LENGTH))


class EventRow(Base):
    """An event. `id` numbers the rows of all submissions, `number` those of one submission without gaps."""

    __tablename__ = "tuner_events"
    __table_args__ = (UniqueConstraint("submission_id", "number", name="uq_tuner_events_number"), _NEVER_AGAIN)

    id: Mapped[int] = mapped_column(_ROW_NUMBER, primary_key=True)
    submission_id: Mapped[int] = mapped_column(ForeignKey("tuner_submissions.id"))
    number: Mapped[int]
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    data: Mapped[dict[str, Any]]


class UseRow(Base):
    """The devices that one run used. It stays when its submission is deleted, because quotas count it."""

    __tablename__ = "tuner_uses"
    __table_args__ = (Index("ix_tuner_uses_ended_at", "ended_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(String(NAME_LENGTH))
    submission: Mapped[str] = mapped_column(String(NAME_LENGTH))
    kind: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    began_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    gpu_seconds: Mapped[float]


class OwnerRow(Base):
    """An owner: the fields of `storage.service.records.Owner`."""

    __tablename__ = "tuner_owners"

    name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    weight: Mapped[float]
    most_gpus: Mapped[int | None]
    gpu_hours_a_week: Mapped[float | None]


class TokenRow(Base):
    """A token: the fields of `storage.service.records.Token`."""

    __tablename__ = "tuner_tokens"
    __table_args__ = (
        UniqueConstraint("name", name="uq_tuner_tokens_name"),
        UniqueConstraint("digest", name="uq_tuner_tokens_digest"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    owner: Mapped[str] = mapped_column(String(NAME_LENGTH))
    role: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    digest: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    used_at: Mapped[datetime | None]


class LeaseRow(Base):
    """A lease; without `expires_at` nobody has it. The row stays, so that the term only grows."""

    __tablename__ = "tuner_leases"

    name: Mapped[str] = mapped_column(String(KEYWORD_LENGTH), primary_key=True)
    holder: Mapped[str] = mapped_column(CleanText)
    term: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime | None]


class MessageRow(Base):
    """A message to a webhook that is still to be sent: the fields of `storage.service.watching.records.Message`."""

    __tablename__ = "tuner_messages"
    __table_args__ = (Index("ix_tuner_messages_next_at", "next_at", "id"), _NEVER_AGAIN)

    id: Mapped[int] = mapped_column(_ROW_NUMBER, primary_key=True)
    webhook: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    key: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    next_at: Mapped[datetime]
    attempts: Mapped[int]


class AuditRow(Base):
    """An entry of the audit log: the fields of `storage.service.records.AuditEntry`, of which `id` is the number."""

    __tablename__ = "tuner_audit"
    __table_args__ = (_NEVER_AGAIN,)

    id: Mapped[int] = mapped_column(_ROW_NUMBER, primary_key=True)
    at: Mapped[datetime]
    token: Mapped[str | None] = mapped_column(CleanText)
    owner: Mapped[str | None] = mapped_column(CleanText)
    action: Mapped[str] = mapped_column(CleanText)
    resource: Mapped[str] = mapped_column(CleanText)
    result: Mapped[str] = mapped_column(CleanText)
    detail: Mapped[dict[str, Any]]


__all__ = [
    "AuditRow",
    "Base",
    "EventRow",
    "LeaseRow",
    "MessageRow",
    "OwnerRow",
    "SubmissionRow",
    "TokenRow",
    "UseRow",
]
