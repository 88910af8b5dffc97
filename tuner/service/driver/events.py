"""A study's events, as the service stores and logs them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from records.trials import Failure, TrialRecord
from storage.service.records import Driver
from storage.service.store import ServiceStore
from tuner.executors.base import WorkerState
from tuner.service.watching.logs import say_event
from tuner.specs import TrialSpec
from tuner.study.protocols import Stage, StagePlan, StudyObserver, StudyStart

CONCLUDING = frozenset({Stage.CONFIRMATION, Stage.REDUCTION, Stage.CAPACITY})
"""Stages after the search."""


class EventObserver(StudyObserver):
    """Stores the events of a submission's study, but not the progress of MLflow, which follows by itself."""

    def __init__(self, store: ServiceStore, submission: str, driver: Driver) -> None:
        self._store, self._submission, self._driver = store, submission, driver
        self._workers: list[dict[str, Any]] = []

    def _write(self, event: str, /, **data: Any) -> None:
        say_event(self._submission, event, data)
        self._store.event(self._submission, event, data, datetime.now(UTC))

    def opened(self, start: StudyStart) -> None:
        """Write what the study optimises, and on what."""
        self._write(
            "opened",
            study=start.spec.name,
            trials=start.budget.trials,
            workers=start.workers,
            engine=start.engine.name,
            version=start.engine.version,
            provenance=start.engine.provenance.value,
            objectives=[objective.metric for objective in start.spec.goals.objectives],
            slos=[str(slo) for slo in start.spec.goals.slos],
            price=None if start.spec.price is None else start.spec.price.to_dict(),
        )

    def stage(self, plan: StagePlan) -> None:
        if plan.stage in CONCLUDING:
            self._store.concluding(self._submission, self._driver, datetime.now(UTC))
        subjects, rounds = list(plan.subjects), list(plan.rounds)
        self._write("stage", stage=plan.stage.value, trials=plan.trials, subjects=subjects, rounds=rounds)

    def started(self, spec: TrialSpec, slot: int) -> None:
        about = {"number": spec.number, "round": spec.round, "attempt": spec.attempt}
        self._write("trial_started", **about, worker=slot, kind=spec.kind.value, config=dict(spec.config))

    def finished(self, record: TrialRecord) -> None:
        """Write a trial's result; lost drivers before it count no more."""
        verdict, outcome = record.verdict, record.outcome
        failure = None if outcome is None else outcome.failure
        self._store.progressed(self._submission)
        self._write(
            "trial",
            number=record.number,
            round=record.round,
            kind=record.kind.value,
            label=record.label,
            state=record.state,
            score=record.score,
            values={} if verdict is None else dict(verdict.values),
            constraints={} if verdict is None else dict(verdict.constraints),
            failure=None if failure is None else {"kind": failure.kind.value, "message": failure.message},
            cut=None if outcome is None or outcome.cut is None else outcome.cut.reason,
            config=dict(record.config),
            seconds={} if outcome is None else dict(outcome.timings),
        )

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        about = {"number": spec.number, "round": spec.round, "attempt": spec.attempt}
        self._write("trial_retried", **about, kind=failure.kind.value, message=failure.message)

    def note(self, text: str) -> None:
        self._write("note", text=text)

    def tick(self, states: Sequence[WorkerState]) -> None:
        """Write the workers' phases when they have changed."""
        workers = [
            {"device": state.device, "trial": state.trial, "phase": None if state.phase is None else state.phase.value}
            for state in states
        ]
        if workers != self._workers:
            self._workers = workers
            self._write("workers", workers=workers)
