"""The tuner's tables. Their names start with `tuner_`; Optuna's tables are in the same database.

A table has the fields of the records that it is derived from, see `storage.columns`, and the columns that are written
here. The metrics of a repeat are one JSON object instead of rows. A repeat is always written and read whole, and the
set of metric names grows with the benchmark. As rows, 1,000 trials of three repeats would be over 100,000 rows to load
at each resume. Both databases can query inside the object (`metrics ->> 'output_throughput'`).

Rows of submissions, of their events and of leases change step by step; they are objects of SQLAlchemy's ORM.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, composite, mapped_column

from records.answers import AnswersKey, AnswersRecord
from records.lessons import Lesson, Site
from records.trials import FailedAttempt, Failure, Repeat, ServerFacts, StudyRecord, TrialOutcome, TrialRecord
from storage.columns import JSON_VALUE, KEYWORD, NAME, ROW_NUMBER, CleanText, UtcDateTime, columns
from storage.service.records import AuditEntry, Driver, Message, Owner, Token, Use

TABLE_PREFIX = "tuner_"
METADATA = MetaData(  # constraints have names, so that a later migration can change them
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _of_trial() -> Column[int]:
    return Column("trial_id", ForeignKey("tuner_trials.id"), primary_key=True)


def _numbered(name: str) -> Column[int]:
    return Column(name, Integer, primary_key=True, autoincrement=False)


STUDIES = Table(
    "tuner_studies",
    METADATA,
    _id(),
    *columns(StudyRecord, name=NAME),
    UniqueConstraint("name"),
)

TRIALS = Table(
    "tuner_trials",
    METADATA,
    _id(),
    Column("study_id", ForeignKey("tuner_studies.id"), nullable=False),
    *columns(TrialRecord, without=("study", "outcome", "verdict")),
    Column("provenance", KEYWORD, nullable=False),
    *columns(TrialOutcome, without=("provenance", "timings", "repeats", "server", "failure"), nullable=True),
    Column("verdict_values", JSON_VALUE),
    Column("verdict_constraints", JSON_VALUE),
    Column("score", Double),
    UniqueConstraint("study_id", "number", "round", name="uq_tuner_trials_number"),
)
"""Trials with outcome and verdict; `ended_at` is set if a trial is finished."""

REPEATS = Table(
    "tuner_repeats",
    METADATA,
    _of_trial(),
    _numbered("position"),
    *columns(Repeat, without=("index",), seed=BigInteger()),
)
"""The benchmarks of finished trials."""

SERVER_FACTS = Table("tuner_server_facts", METADATA, _of_trial(), *columns(ServerFacts, kv_cache_tokens=BigInteger()))

FAILURES = Table(
    "tuner_failures",
    METADATA,
    _of_trial(),
    _numbered("attempt"),
    *columns(Failure),
    *columns(FailedAttempt, without=("number", "round", "attempt", "failure", "timings")),
)
"""Failed attempts. The last one of a finished trial is its outcome; earlier ones were retried."""

TIMINGS = Table(
    "tuner_timings",
    METADATA,
    _of_trial(),
    _numbered("attempt"),
    Column("phase", KEYWORD, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("seconds", Double, nullable=False),
)
"""The duration of each phase of each attempt, in seconds."""

SYNCS = Table(
    "tuner_syncs",
    METADATA,
    _of_trial(),
    Column("run_id", KEYWORD, nullable=False),
    Column("synced_at", UtcDateTime, nullable=False),
)
"""Finished trials that are completely logged to MLflow, and the ids of their runs there."""

LESSONS = Table(
    "tuner_lessons",
    METADATA,
    _of_trial(),
    *columns(Site, host=NAME, card=NAME, version=KEYWORD, predictor=KEYWORD),
    *columns(Lesson, without=("site",)),
    Index("ix_tuner_lessons_host", "host", "card"),
)
"""What measured trials tell about the predictor of their host. No simulated trial has a row."""

ANSWERS = Table(
    "tuner_answers",
    METADATA,
    _id(),
    Column("digest", KEYWORD, nullable=False),
    *columns(AnswersKey, weights=KEYWORD, asked=KEYWORD),
    *columns(AnswersRecord, without=("key",)),
    UniqueConstraint("digest"),
)
"""What servers answered in quality checks; `digest` is that of the key."""

USES = Table(
    "tuner_uses",
    METADATA,
    _id(),
    *columns(Use, owner=NAME, submission=NAME, kind=KEYWORD),
    Index("ix_tuner_uses_ended_at", "ended_at"),
)
"""The devices that each run used. A row stays when its submission is deleted, because quotas count it."""

OWNERS = Table("tuner_owners", METADATA, *columns(Owner, name=NAME), PrimaryKeyConstraint("name"))

TOKENS = Table(
    "tuner_tokens",
    METADATA,
    _id(),
    *columns(Token, name=NAME, owner=NAME, digest=KEYWORD),
    UniqueConstraint("name"),
    UniqueConstraint("digest"),
)

AUDIT = Table(
    "tuner_audit",
    METADATA,
    Column("id", ROW_NUMBER, primary_key=True),
    *columns(AuditEntry, without=("number",)),
    sqlite_autoincrement=True,
)
"""The audit log; `id` is the number of an entry."""

MESSAGES = Table(
    "tuner_messages",
    METADATA,
    Column("id", ROW_NUMBER, primary_key=True),
    *columns(Message, without=("number",), webhook=KEYWORD, key=KEYWORD),
    Column("next_at", UtcDateTime, nullable=False),
    Index("ix_tuner_messages_next_at", "next_at", "id"),
    sqlite_autoincrement=True,
)
"""Messages to webhooks that are still to be sent; `id` is the number of a message."""


class _Row(DeclarativeBase):
    """Base of the rows that change step by step."""

    metadata = METADATA
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy requires this attribute)
        datetime: UtcDateTime,
        float: Double,
        dict[str, Any]: JSON_VALUE,
        list[str]: JSON_VALUE,
    }


class SubmissionRow(_Row):
    """A submission: the fields of `storage.service.records.Submission`, of which `name` is the id.

    `counted_at` is until when `gpu_seconds` has the present run's; None without one. `events` is the number of the last
    event. `answer` is the result of a study without trials. Answer and settings may be large and are read only where
    they are asked for. Row numbers of submissions are never used again, also not after a deletion: the keys of messages
    have them.
    """

    __tablename__ = "tuner_submissions"
    __table_args__ = (
        Index("ix_tuner_submissions_created_at", "created_at", "id"),
        Index("ix_tuner_submissions_owner", "owner", "created_at", "id"),
        Index("ix_tuner_submissions_state", "state", "created_at", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(NAME, unique=True)
    owner: Mapped[str] = mapped_column(NAME)
    state: Mapped[str] = mapped_column(KEYWORD)
    reason: Mapped[str | None] = mapped_column(CleanText)
    culprit: Mapped[str | None] = mapped_column(KEYWORD)
    settings: Mapped[dict[str, Any]] = mapped_column(deferred=True)
    kind: Mapped[str] = mapped_column(KEYWORD)
    gpus: Mapped[int]
    priority: Mapped[int]
    shared: Mapped[bool]
    request: Mapped[str | None] = mapped_column(KEYWORD)
    granted: Mapped[list[str]]
    runs: Mapped[int]
    driver: Mapped[Driver | None] = composite(
        mapped_column("driver_host", CleanText, nullable=True),
        mapped_column("driver_pid", Integer, nullable=True),
        mapped_column("driver_started", BigInteger, nullable=True),
        mapped_column("driver_boot", CleanText, nullable=True),
    )
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
    webhook: Mapped[str | None] = mapped_column(KEYWORD)
    answer: Mapped[dict[str, Any] | None] = mapped_column(deferred=True)
    watch: Mapped[dict[str, Any] | None]


class EventRow(_Row):
    """An event. `id` numbers the rows of all submissions, `number` those of one submission without gaps."""

    __tablename__ = "tuner_events"
    __table_args__ = (
        UniqueConstraint("submission_id", "number", name="uq_tuner_events_number"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(ROW_NUMBER, primary_key=True)
    submission_id: Mapped[int] = mapped_column(ForeignKey("tuner_submissions.id"))
    number: Mapped[int]
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(KEYWORD)
    data: Mapped[dict[str, Any]]


class LeaseRow(_Row):
    """A lease; without `expires_at` nobody has it. The row stays, so that the term only grows."""

    __tablename__ = "tuner_leases"

    name: Mapped[str] = mapped_column(KEYWORD, primary_key=True)
    holder: Mapped[str] = mapped_column(CleanText)
    term: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime | None]
