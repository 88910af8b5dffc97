"""A study's events, as the service stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from records.trials import Failure, TrialRecord
from tuner.executors.base import WorkerState
from tuner.specs import TrialSpec
from tuner.study.protocols import Stage, StagePlan, StudyStart, SyncStatus

CONCLUDING = frozenset({Stage.CONFIRMATION, Stage.REDUCTION, Stage.CAPACITY})
"""Stages after the search."""


class Journal(Protocol):
    """Where a driver writes what happens."""

    def write(self, kind: str, data: Mapping[str, Any]) -> None:
        """Store an event."""

    def concluding(self) -> None:
        """The search is over."""

    def progressed(self) -> None:
        """A trial has ended."""


class EventObserver:
    """Writes a study's events to a journal; a `StudyObserver`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._workers: list[dict[str, Any]] = []

    def opened(self, start: StudyStart) -> None:
        """Write what the study optimises, and on what."""
        engine = start.engine
        self._journal.write(
            "opened",
            {
                "study": start.spec.name,
                "trials": start.budget.trials,
                "workers": start.workers,
                "engine": engine.name,
                "version": engine.version,
                "provenance": engine.provenance.value,
                "objectives": [objective.metric for objective in start.spec.goals.objectives],
                "slos": [str(slo) for slo in start.spec.goals.slos],
            },
        )

    def stage(self, plan: StagePlan) -> None:
        """Write that a stage begins."""
        if plan.stage in CONCLUDING:
            self._journal.concluding()
        stage = {"stage": plan.stage.value, "trials": plan.trials}
        self._journal.write("stage", stage | {"subjects": list(plan.subjects), "rounds": list(plan.rounds)})

    def started(self, spec: TrialSpec, slot: int) -> None:
        """Write that a worker has a trial."""
        trial = {"number": spec.number, "round": spec.round, "attempt": spec.attempt, "worker": slot}
        self._journal.write("trial_started", trial | {"kind": spec.kind.value, "config": dict(spec.config)})

    def finished(self, record: TrialRecord) -> None:
        """Write a trial's result."""
        verdict, outcome = record.verdict, record.outcome
        failure = None if outcome is None else outcome.failure
        self._journal.progressed()
        self._journal.write(
            "trial",
            {
                "number": record.number,
                "round": record.round,
                "kind": record.kind.value,
                "label": record.label,
                "state": record.state,
                "score": None if verdict is None else verdict.score,
                "values": {} if verdict is None else dict(verdict.values),
                "constraints": {} if verdict is None else dict(verdict.constraints),
                "failure": None if failure is None else {"kind": failure.kind.value, "message": failure.message},
                "config": dict(record.config),
                "seconds": {} if outcome is None else dict(outcome.timings),
            },
        )

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        """Write that a trial runs again."""
        trial = {"number": spec.number, "round": spec.round, "attempt": spec.attempt}
        self._journal.write("trial_retried", trial | {"kind": failure.kind.value, "message": failure.message})

    def note(self, text: str) -> None:
        """Write a message for the user."""
        self._journal.write("note", {"text": text})

    def tick(self, states: Sequence[WorkerState]) -> None:
        """Write the workers' phases when they have changed."""
        workers = [
            {"device": state.device, "trial": state.trial, "phase": None if state.phase is None else state.phase.value}
            for state in states
        ]
        if workers != self._workers:
            self._workers = workers
            self._journal.write("workers", {"workers": workers})

    def synced(self, status: SyncStatus) -> None:
        """Ignore the progress of MLflow, which follows by itself."""
