"""Copy a study from one database to another as lines of JSON, so that commands read it as on its own machine.

Optuna's part and the files of trials stay where they are.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from storage.records import Provenance, StudyRecord, TrialOutcome, TrialRecord
from storage.store import Store
from storage.tables.mapping import FailedAttempt


@functools.cache
def _adapters() -> Mapping[str, TypeAdapter[Any]]:
    """Return what a line may hold. An attempt is before its trial, which cannot be changed once it has its outcome."""
    kinds = {"study": StudyRecord, "attempt": FailedAttempt, "trial": TrialRecord}
    return {name: TypeAdapter(kind) for name, kind in kinds.items()}


def study_lines(store: Store, name: str) -> Iterator[str]:
    """Yield the lines of a study: the study, its trials, and each failed attempt before its trial.

    Raises:
        StorageError: if there is no such study.
    """
    record, trials = store.study(name), store.trials(name)
    yield _line("study", record)
    attempts = store.failed_attempts(name)
    for trial in trials:
        for attempt in attempts:
            if (attempt.number, attempt.round) == (trial.number, trial.round):
                yield _line("attempt", attempt)
        yield _line("trial", trial)


def _line(kind: str, value: object) -> str:
    return json.dumps({kind: _adapters()[kind].dump_python(value, mode="json")})


def add_study(store: Store, lines: Iterable[Mapping[str, Any]]) -> None:
    """Store a study that another database has.

    Args:
        store: it lacks the study.
        lines: what `study_lines` yielded, as JSON values.

    Raises:
        StorageError: if the database has the study.
    """
    attempts: list[FailedAttempt] = []
    provenance = Provenance.MEASURED
    for line in lines:
        for kind, body in line.items():
            value = _adapters()[kind].validate_python(body)
            if isinstance(value, StudyRecord):
                store.create_study(value)
                provenance = value.provenance
            elif isinstance(value, FailedAttempt):
                attempts.append(value)
            else:
                _add_trial(store, value, attempts, provenance)
                attempts = []


def _add_trial(store: Store, trial: TrialRecord, attempts: list[FailedAttempt], provenance: Provenance) -> None:
    place = (trial.study, trial.number, trial.round)
    store.add_trial(replace(trial, outcome=None, verdict=None))
    for each in attempts:
        where = (each.started_at, each.ended_at, provenance, each.worker, each.device)
        failed = TrialOutcome(*where, each.timings, each.artifacts, failure=each.failure)
        store.record_failed_attempt(*place, each.attempt, failed)
    if trial.outcome is not None:
        store.finish_trial(*place, trial.outcome, trial.verdict)
