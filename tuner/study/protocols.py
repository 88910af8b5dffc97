"""What the loop hands around: items of work, where they come from, who listens, and why a run ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from storage.records import Config, Failure, TrialKind, TrialRecord
from tuner.engines.base import EngineInfo
from tuner.executors.base import WorkerState
from tuner.specs import TrialSpec
from tuner.study.settings import Budget
from tuner.study.spec import StudySpec


class RunEnding(StrEnum):
    """Why a run of the study ended."""

    DONE = "done"
    EXHAUSTED = "exhausted"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    SAME_FAILURE = "same_failure"
    INFRASTRUCTURE = "infrastructure"


class Stage(StrEnum):
    """The stages of a run, in order."""

    SEARCH = "search"
    ABLATION = "ablation"
    CONFIRMATION = "confirmation"


@dataclass(frozen=True)
class StagePlan:
    """A stage that begins.

    `trials` is the most that it measures, those of earlier runs included; `subjects` names what it measures, such as
    the finalists `#0`, `#12`; `rounds` are the numbers of a confirmation's rounds.
    """

    stage: Stage
    trials: int
    subjects: tuple[str, ...] = ()
    rounds: tuple[int, ...] = ()


@dataclass(frozen=True)
class SyncStatus:
    """How many of the study's finished trials MLflow has, and the follower's last error (None: none).

    `waiting` is True at the end of a run, when nothing but MLflow is waited for.
    """

    logged: int
    finished: int
    problem: str | None
    waiting: bool = False

    @property
    def complete(self) -> bool:
        """True if MLflow has every finished trial."""
        return self.logged >= self.finished


@dataclass
class WorkItem:
    """One trial, or one round of a finalist, that has to be run; `retries` counts infrastructure's failures so far."""

    number: int
    round: int
    kind: TrialKind
    config: Config
    label: str | None = None
    retries: int = 0
    known: bool = field(default=False, kw_only=True)
    """True if the database already has it as pending."""


class TrialSource(Protocol):
    """Gives work until there is none."""

    def next(self, slot: int) -> WorkItem | None:
        """Return work for a slot; None if there is none for it now."""

    def exhausted(self) -> bool:
        """Return True if no slot will be given work again, unless an item comes back."""

    def give_back(self, item: WorkItem) -> None:
        """Take back an item that must be run again."""


@dataclass(frozen=True)
class StudyStart:
    """A study when a run of it begins; `records` are the trials of earlier runs."""

    spec: StudySpec
    budget: Budget
    engine: EngineInfo
    workers: int
    records: tuple[TrialRecord, ...]


class StudyObserver(Protocol):
    """Receives the events of a study, in order: the terminal, MLflow."""

    def opened(self, start: StudyStart) -> None:
        """The study is in the database and its run begins."""

    def stage(self, plan: StagePlan) -> None:
        """A stage of the run begins."""

    def started(self, spec: TrialSpec, slot: int) -> None:
        """A trial was handed to a worker."""

    def finished(self, record: TrialRecord) -> None:
        """A trial is in the database."""

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        """Infrastructure failed a trial; it will be run again."""

    def note(self, text: str) -> None:
        """Something a user should read, one line."""

    def tick(self, states: Sequence[WorkerState]) -> None:
        """About a second has passed."""

    def synced(self, status: SyncStatus) -> None:
        """MLflow's progress was read, about once a second and at the end until MLflow has every trial."""
