"""The tuner's tables as SQLAlchemy models. Their names start with `tuner_`; Optuna's tables are in the same database.

The metrics of a repeat are one JSON object instead of rows. A repeat is always written and read whole, and the set of
metric names grows with the benchmark. As rows, 1,000 trials of three repeats would be over 100,000 rows to load at each
resume. Both databases can query inside the object (`metrics ->> 'output_throughput'`).

The column type is JSON instead of JSONB, because JSONB loses the order of keys, which objectives have, and turns 1e16
into an integer.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

TABLE_PREFIX = "tuner_"
NAME_LENGTH = 512
KEYWORD_LENGTH = 64


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware UTC datetime on every database. SQLite stores no zone, so reading adds it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC.

        Raises:
            ValueError: for a datetime without a zone, whose instant is ambiguous.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a datetime without a time zone cannot be stored: {value.isoformat()}")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return a timezone-aware UTC datetime."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class CleanText(TypeDecorator[str]):
    """Text from logs. NUL and lone surrogates, which a database rejects, become U+FFFD, so that the trial is stored."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace the characters that cannot be stored."""
        if value is None:
            return None
        return value.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Base(DeclarativeBase):
    """Base of the tuner's tables. Constraints have names, so that a later migration can change them."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy requires this attribute)
        datetime: UtcDateTime,
        float: Double,
        dict[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
    }


class StudyRow(Base):
    """A study. `mlflow_run` is the id of its parent run in MLflow, None until that run exists."""

    __tablename__ = "tuner_studies"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH), unique=True)
    created_at: Mapped[datetime]
    provenance: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    premise: Mapped[dict[str, Any]]
    facts: Mapped[dict[str, Any]]
    conclusion: Mapped[dict[str, Any] | None]
    mlflow_run: Mapped[str | None] = mapped_column(String(KEYWORD_LENGTH))


class TrialRow(Base):
    """A trial. The columns from `started_at` on are its outcome and verdict; `ended_at` is set if it is finished."""

    __tablename__ = "tuner_trials"
    __table_args__ = (UniqueConstraint("study_id", "number", "round", name="uq_tuner_trials_number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("tuner_studies.id"))
    number: Mapped[int]
    round: Mapped[int]
    kind: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    label: Mapped[str | None] = mapped_column(CleanText)
    params: Mapped[dict[str, Any]]
    config: Mapped[dict[str, Any]]
    attempts: Mapped[int]
    created_at: Mapped[datetime]
    provenance: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))

    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    worker: Mapped[str | None] = mapped_column(CleanText)
    device: Mapped[str | None] = mapped_column(CleanText)
    artifacts: Mapped[str | None] = mapped_column(CleanText)
    argv: Mapped[list[str] | None]
    environment: Mapped[dict[str, Any] | None]
    verdict_values: Mapped[dict[str, Any] | None]
    verdict_constraints: Mapped[dict[str, Any] | None]
    score: Mapped[float | None]

    study: Mapped[StudyRow] = relationship()
    repeats: Mapped[list[RepeatRow]] = relationship(order_by="RepeatRow.position")
    facts: Mapped[ServerFactsRow | None] = relationship()
    failures: Mapped[list[FailureRow]] = relationship(order_by="FailureRow.attempt")
    timings: Mapped[list[TimingRow]] = relationship(order_by="TimingRow.attempt, TimingRow.position")


class RepeatRow(Base):
    """One benchmark of a finished trial."""

    __tablename__ = "tuner_repeats"

    trial_id: Mapped[int] = mapped_column(ForeignKey("tuner_trials.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    seed: Mapped[int] = mapped_column(BigInteger)
    offered: Mapped[int]
    completed: Mapped[int]
    failed: Mapped[int]
    duration_s: Mapped[float | None]
    metrics: Mapped[dict[str, Any]]


class ServerFactsRow(Base):
    """The facts that a trial's server reported: one column for each field of `records.trials.ServerFacts`."""

    __tablename__ = "tuner_server_facts"

    trial_id: Mapped[int] = mapped_column(ForeignKey("tuner_trials.id"), primary_key=True)
    kv_cache_tokens: Mapped[int | None] = mapped_column(BigInteger)
    kv_cache_gib: Mapped[float | None]
    max_concurrency: Mapped[float | None]
    weights_gib: Mapped[float | None]
    graph_gib: Mapped[float | None]
    graph_capture_s: Mapped[float | None]
    compile_s: Mapped[float | None]
    engine_init_s: Mapped[float | None]
    attention_backend: Mapped[str | None] = mapped_column(CleanText)
    preemptions: Mapped[float | None]
    prefix_hit_rate: Mapped[float | None]
    queue_time_mean_s: Mapped[float | None]
    kv_usage_max: Mapped[float | None]
    kv_usage_mean: Mapped[float | None]
    spec_acceptance_rate: Mapped[float | None]
    spec_tokens_per_draft: Mapped[float | None]
    warmup_windows: Mapped[int | None]
    warmup_settled: Mapped[bool | None]
    benchmarks_again: Mapped[int | None]


class FailureRow(Base):
    """A failed attempt. The last one of a finished trial is its outcome; earlier ones were retried."""

    __tablename__ = "tuner_failures"

    trial_id: Mapped[int] = mapped_column(ForeignKey("tuner_trials.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    phase: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    message: Mapped[str] = mapped_column(CleanText)
    evidence: Mapped[str | None] = mapped_column(CleanText)
    exit_code: Mapped[int | None]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    worker: Mapped[str] = mapped_column(CleanText)
    device: Mapped[str] = mapped_column(CleanText)
    artifacts: Mapped[str] = mapped_column(CleanText)


class TimingRow(Base):
    """The duration of one phase of one attempt, in seconds."""

    __tablename__ = "tuner_timings"

    trial_id: Mapped[int] = mapped_column(ForeignKey("tuner_trials.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    phase: Mapped[str] = mapped_column(String(KEYWORD_LENGTH), primary_key=True)
    position: Mapped[int]
    seconds: Mapped[float]


class SyncRow(Base):
    """A finished trial that is completely logged to MLflow, and the id of its run there."""

    __tablename__ = "tuner_syncs"

    trial_id: Mapped[int] = mapped_column(ForeignKey("tuner_trials.id"), primary_key=True)
    run_id: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    synced_at: Mapped[datetime]


class AnswersRow(Base):
    """What a server answered in a quality check: the fields of `records.answers.AnswersRecord`."""

    __tablename__ = "tuner_answers"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(KEYWORD_LENGTH), unique=True)
    weights: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    formats: Mapped[list[str]]
    engine: Mapped[str] = mapped_column(CleanText)
    device: Mapped[str] = mapped_column(CleanText)
    asked: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    model: Mapped[str] = mapped_column(CleanText)
    created_at: Mapped[datetime]
    seconds: Mapped[float]
    answers: Mapped[dict[str, Any]]


__all__ = [
    "NAME_LENGTH",
    "TABLE_PREFIX",
    "AnswersRow",
    "Base",
    "FailureRow",
    "RepeatRow",
    "ServerFactsRow",
    "StudyRow",
    "SyncRow",
    "TimingRow",
    "TrialRow",
]
