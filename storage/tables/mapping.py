"""Conversion between the frozen records and the rows of the database."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from records.trials import (
    Failure,
    FailureKind,
    Phase,
    Provenance,
    Repeat,
    ServerFacts,
    StudyRecord,
    TrialKind,
    TrialOutcome,
    TrialRecord,
    Verdict,
)
from storage.errors import StorageError
from storage.tables.models import Base, FailureRow, RepeatRow, ServerFactsRow, StudyRow, TimingRow, TrialRow


@dataclass(frozen=True)
class FailedAttempt:
    """A failed attempt at a trial that was retried, or that will be; `timings` maps a phase to its seconds."""

    number: int
    round: int
    attempt: int
    failure: Failure
    started_at: datetime
    ended_at: datetime
    worker: str
    device: str
    artifacts: str
    timings: Mapping[str, float]


def to_json_value(where: str, value: Any) -> Any:
    """Return a value as JSON holds it: a tuple becomes a list, a mapping a dict with text keys.

    Args:
        where: the value's place, for the error message.
        value: text, a number, a truth value, None, or lists and mappings of them.

    Raises:
        StorageError: for inf, nan, and types that JSON does not have; the message names the place.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise StorageError(f"{where} is {value}: only finite numbers can be stored; use None for an absent value")
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json_value(f"{where}.{key}", item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(f"{where}[{index}]", item) for index, item in enumerate(value)]
    raise StorageError(f"{where} is a {type(value).__name__}, which JSON cannot hold; convert it to text or numbers")


def study_row(record: StudyRecord) -> StudyRow:
    """Return the row of a study."""
    return StudyRow(
        name=record.name,
        created_at=record.created_at,
        provenance=record.provenance.value,
        premise=to_json_value("premise", record.premise),
        facts=to_json_value("facts", record.facts),
        conclusion=to_json_value("conclusion", record.conclusion),
    )


def study_record(row: StudyRow) -> StudyRecord:
    """Return the study of a row."""
    return StudyRecord(row.name, row.created_at, Provenance(row.provenance), row.premise, row.facts, row.conclusion)


def trial_row(record: TrialRecord, study: StudyRow) -> TrialRow:
    """Return the row of a pending trial; its provenance is the study's."""
    return TrialRow(
        study_id=study.id,
        number=record.number,
        round=record.round,
        kind=record.kind.value,
        label=record.label,
        params=to_json_value("params", record.params),
        config=to_json_value("config", record.config),
        attempts=record.attempts,
        created_at=record.created_at,
        provenance=study.provenance,
    )


def verdict_columns(verdict: Verdict | None) -> dict[str, Any]:
    """Return the columns of `TrialRow` that hold a verdict, all None without one.

    Raises:
        StorageError: if a value is inf or nan.
    """
    if verdict is None:
        return {"verdict_values": None, "verdict_constraints": None, "score": None}
    return {
        "verdict_values": to_json_value("objective", verdict.values),
        "verdict_constraints": to_json_value("constraint", verdict.constraints),
        "score": to_json_value("score", verdict.score),
    }


def outcome_columns(outcome: TrialOutcome) -> dict[str, Any]:
    """Return the columns of `TrialRow` that hold an outcome; `outcome_rows` has the rest of it."""
    return {
        "started_at": outcome.started_at,
        "ended_at": outcome.ended_at,
        "worker": outcome.worker,
        "device": outcome.device,
        "artifacts": outcome.artifacts,
        "argv": to_json_value("argv", outcome.argv),
        "environment": to_json_value("environment", outcome.environment),
    }


def outcome_rows(trial_id: int, attempt: int, outcome: TrialOutcome) -> Iterator[Base]:
    """Yield the rows of an outcome in the other tables: repeats, server facts, failure, timings.

    Raises:
        StorageError: if a number is inf or nan.
    """
    yield from _repeat_rows(trial_id, outcome)
    if outcome.server is not None:
        yield ServerFactsRow(trial_id=trial_id, **to_json_value("server", asdict(outcome.server)))
    yield from attempt_rows(trial_id, attempt, outcome)


def _repeat_rows(trial_id: int, outcome: TrialOutcome) -> Iterator[RepeatRow]:
    for repeat in outcome.repeats:
        yield RepeatRow(
            trial_id=trial_id,
            position=repeat.index,
            seed=repeat.seed,
            offered=repeat.offered,
            completed=repeat.completed,
            failed=repeat.failed,
            duration_s=to_json_value(f"repeat {repeat.index}: duration_s", repeat.duration_s),
            metrics=to_json_value(f"repeat {repeat.index}: metric", repeat.metrics),
        )


def attempt_rows(trial_id: int, attempt: int, outcome: TrialOutcome) -> Iterator[FailureRow | TimingRow]:
    """Yield the rows of one attempt: its failure, if there is one, and its timings."""
    if outcome.failure is not None:
        failure = outcome.failure
        yield FailureRow(
            trial_id=trial_id,
            attempt=attempt,
            kind=failure.kind.value,
            phase=failure.phase.value,
            message=failure.message,
            evidence=failure.evidence,
            exit_code=failure.exit_code,
            started_at=outcome.started_at,
            ended_at=outcome.ended_at,
            worker=outcome.worker,
            device=outcome.device,
            artifacts=outcome.artifacts,
        )
    for position, (phase, seconds) in enumerate(to_json_value("timing", outcome.timings).items()):
        yield TimingRow(trial_id=trial_id, attempt=attempt, phase=phase, position=position, seconds=seconds)


def trial_record(row: TrialRow, study: str) -> TrialRecord:
    """Return the trial of a row and of the rows in other tables that belong to it."""
    return TrialRecord(
        study=study,
        number=row.number,
        round=row.round,
        kind=TrialKind(row.kind),
        label=row.label,
        params=row.params,
        config=row.config,
        attempts=row.attempts,
        created_at=row.created_at,
        outcome=_outcome(row),
        verdict=_verdict(row),
    )


def _outcome(row: TrialRow) -> TrialOutcome | None:
    if row.started_at is None or row.ended_at is None:
        return None
    failure = next((failure for failure in row.failures if failure.attempt == row.attempts), None)
    return TrialOutcome(
        started_at=row.started_at,
        ended_at=row.ended_at,
        provenance=Provenance(row.provenance),
        worker=row.worker or "",
        device=row.device or "",
        timings={timing.phase: timing.seconds for timing in row.timings if timing.attempt == row.attempts},
        artifacts=row.artifacts or "",
        argv=tuple(row.argv or ()),
        environment=row.environment or {},
        repeats=tuple(_repeat(repeat) for repeat in row.repeats),
        server=None if row.facts is None else _server_facts(row.facts),
        failure=None if failure is None else _failure(failure),
    )


def _repeat(row: RepeatRow) -> Repeat:
    return Repeat(row.position, row.seed, row.offered, row.completed, row.failed, row.duration_s, row.metrics)


def _server_facts(row: ServerFactsRow) -> ServerFacts:
    return ServerFacts(**{field.name: getattr(row, field.name) for field in fields(ServerFacts)})


def _failure(row: FailureRow) -> Failure:
    return Failure(FailureKind(row.kind), Phase(row.phase), row.message, row.evidence, row.exit_code)


def _verdict(row: TrialRow) -> Verdict | None:
    if row.verdict_values is None:
        return None
    return Verdict(row.verdict_values, row.verdict_constraints or {}, row.score)


def failed_attempt(row: FailureRow, trial: TrialRow) -> FailedAttempt:
    """Return the failed attempt of a row; `trial.timings` holds the timings of all attempts of its trial."""
    return FailedAttempt(
        number=trial.number,
        round=trial.round,
        attempt=row.attempt,
        failure=_failure(row),
        started_at=row.started_at,
        ended_at=row.ended_at,
        worker=row.worker,
        device=row.device,
        artifacts=row.artifacts,
        timings={timing.phase: timing.seconds for timing in trial.timings if timing.attempt == row.attempt},
    )
