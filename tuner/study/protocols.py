"""The interfaces around the study loop: work items, trial sources, observers, stages and endings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from records.trials import Config, Failure, TrialKind, TrialRecord
from tuner.engines.base import EngineInfo
from tuner.executors.base import WorkerState
from tuner.specs import TrialSpec
from tuner.study.specification.spec import Budget, StudySpec


class RunEnding(StrEnum):
    """Why a run of the study ended."""

    DONE = "done"
    EXHAUSTED = "exhausted"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    DEFAULTS_FAILED = "defaults_failed"
    SAME_FAILURE = "same_failure"
    INFRASTRUCTURE = "infrastructure"


class Stage(StrEnum):
    """The stages of a run, in order."""

    SEARCH = "search"
    ABLATION = "ablation"
    REDUCTION = "reduction"
    CONFIRMATION = "confirmation"
    CAPACITY = "capacity"


@dataclass(frozen=True)
class StagePlan:
    """A stage that begins.

    `trials` is the largest number of its measurements, those of earlier runs included. `subjects` are the names of the
    measured configurations, such as the finalists `#0`, `#12`. `rounds` are the numbers of a confirmation's rounds.
    """

    stage: Stage
    trials: int
    subjects: tuple[str, ...] = ()
    rounds: tuple[int, ...] = ()


class MlflowLacks(StrEnum):
    """What MLflow lacks of a study at the end of a run; `conclusion` is the summary in the study's parent run."""

    NOTHING = "nothing"
    TRIALS = "trials"
    CONCLUSION = "conclusion"


@dataclass(frozen=True)
class SyncStatus:
    """How many of the study's finished trials MLflow has, and the follower's last error (None: none).

    `waiting` is True at the end of a run, while the study waits for MLflow only.
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
    """One trial, or one round of a finalist, to run.

    `retries` counts its infrastructure failures so far, `began_s` is when its last attempt was submitted, by the clock
    of the run.
    """

    number: int
    round: int
    kind: TrialKind
    config: Config
    label: str | None = None
    retries: int = 0
    began_s: float = field(default=0.0, kw_only=True)
    known: bool = field(default=False, kw_only=True)
    """True if the database already contains it as a pending trial."""


class TrialSource(Protocol):
    """Provides the trials of one stage."""

    def next(self, slot: int) -> WorkItem | None:
        """Return the next trial for a slot; None if there is none for it now."""

    def exhausted(self) -> bool:
        """Return True if `next` will return no trial for any slot, unless one is given back."""

    def give_back(self, item: WorkItem) -> None:
        """Queue a trial again that failed by infrastructure."""


@dataclass(frozen=True)
class StudyStart:
    """A study when a run of it begins; `records` are the trials of earlier runs."""

    spec: StudySpec
    budget: Budget
    engine: EngineInfo
    workers: int
    records: tuple[TrialRecord, ...]


class StudyObserver:
    """Receives the events of a study, in order: the terminal, MLflow. By default it ignores each."""

    def opened(self, start: StudyStart) -> None:
        """The study is in the database and its run begins."""

    def stage(self, plan: StagePlan) -> None:
        """A stage of the run begins."""

    def started(self, spec: TrialSpec, slot: int) -> None:
        """A trial was handed to a worker."""

    def finished(self, record: TrialRecord) -> None:
        """A trial is in the database."""

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        """A trial failed by infrastructure; it will run again."""

    def note(self, text: str) -> None:
        """A message of one line for the user."""

    def tick(self, states: Sequence[WorkerState]) -> None:
        """The loop has waited for a trial, at most half a second."""

    def synced(self, status: SyncStatus) -> None:
        """MLflow's progress was read, about once a second and at the end until MLflow has every trial."""
